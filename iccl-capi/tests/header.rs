//! The C header in the repository is the one that the sources make.

#[path = "../examples/generate_c_header/generator.rs"]
mod generator;

use std::path::Path;

#[test]
fn the_header_is_up_to_date() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let generated = generator::generate(package).expect("the sources make a header");
    let committed = std::fs::read_to_string(package.join("include/iccl.h")).expect("a header");
    for (number, (generated, committed)) in generated.lines().zip(committed.lines()).enumerate() {
        assert_eq!(generated, committed, "line {}; run `cargo xtask generate`", number + 1);
    }
    assert_eq!(generated, committed);
}
