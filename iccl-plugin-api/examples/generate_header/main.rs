//! Prints `include/iccl_plugin.h` as the Rust sources of the tables say it is; `cargo xtask generate`
//! writes it.

mod generator;

use std::path::Path;

fn main() -> std::io::Result<()> {
    print!("{}", generator::generate(Path::new(env!("CARGO_MANIFEST_DIR")))?);
    Ok(())
}
