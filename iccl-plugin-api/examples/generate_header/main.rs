//! Writes `include/iccl_plugin.h` anew from the Rust sources of the tables.
//!
//! `cargo run -p iccl-plugin-api --example generate_header`

mod generator;

use std::path::Path;

fn main() -> std::io::Result<()> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = generator::generate(package)?;
    std::fs::write(package.join(generator::HEADER), header)
}
