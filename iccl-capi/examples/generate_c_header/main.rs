//! Prints `include/iccl.h` as the Rust sources say it is; `cargo xtask generate` writes it.

mod generator;

use std::path::Path;

fn main() -> std::io::Result<()> {
    print!("{}", generator::generate(Path::new(env!("CARGO_MANIFEST_DIR")))?);
    Ok(())
}
