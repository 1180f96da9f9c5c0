//! Prints `docs/configuration.md`.

fn main() {
    print!("{}", iccl_runtime::config::reference_markdown());
}
