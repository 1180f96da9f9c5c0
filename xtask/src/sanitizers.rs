//! Tests under sanitizers that watch the standard library too. That takes a nightly that builds one.

use std::path::Path;
use std::process::Command;

use crate::run::{Failure, is_installed, run, workspace};

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// What several threads do: the engine and the communicators, both transports, and whole jobs of
/// threads.
pub(crate) fn threads() -> Result<(), Failure> {
    let thread = Sanitizer { name: "thread", options: "TSAN_OPTIONS", value: "halt_on_error=1" };
    thread.test(&["-p", "iccl-runtime", "--lib", "--", "engine::", "comm::"])?;
    let transports =
        ["-p", "iccl-plugin-transport-shm", "-p", "iccl-tcp", "-p", "iccl-plugin-transport-tcp"];
    thread.test(&[&transports[..], &["--tests"]].concat())?;
    let jobs = ["comm_threads", "comm_groups", "comm_streams", "comm_split"];
    let jobs = jobs.iter().flat_map(|job| ["--test", *job]);
    thread.test(&["-p", "iccl-tests"].into_iter().chain(jobs).collect::<Vec<_>>())
}

/// What crosses the ABI, in both directions, and what a NIC is lent. What tests leak on purpose is not an error.
pub(crate) fn addresses() -> Result<(), Failure> {
    let address = Sanitizer { name: "address", options: "ASAN_OPTIONS", value: "detect_leaks=0" };
    address.test(&["-p", "iccl-plugin-api", "--tests"])?;
    address.test(&["-p", "iccl-plugin-transport-rdma", "--lib"])?;
    // Plugins in Rust would look for the run-time library in the test, which does not export it.
    address.test(&["-p", "iccl-tests", "--test", "abi", "--", "a_plugin_in_c"])
}

struct Sanitizer {
    name: &'static str,
    /// The environment variable that its run-time library reads, and what it is told.
    options: &'static str,
    value: &'static str,
}

impl Sanitizer {
    /// Runs `cargo test` under the sanitizer, where the toolchain has it.
    fn test(&self, arguments: &[&str]) -> Result<(), Failure> {
        if !has_source_of_nightly() {
            println!(
                "not checked: no nightly toolchain with the source of the standard library \
                 (`rustup toolchain install nightly --component rust-src`)"
            );
            return Ok(());
        }
        let folder = workspace().join("target/sanitizers").join(self.name);
        let mut command = Command::new("rustup");
        command
            .args(["run", "nightly", "cargo", "test"])
            .args(arguments)
            .current_dir(workspace())
            // By the environment, for what tests build themselves too.
            .env("CARGO_TARGET_DIR", folder)
            .env("CARGO_BUILD_TARGET", TARGET)
            .env("CARGO_UNSTABLE_BUILD_STD", "std")
            .env("RUSTFLAGS", format!("-Zsanitizer={}", self.name))
            .env(self.options, self.value)
            // Some tests panic on purpose; naming the lines takes a minute in what is built here.
            .env("RUST_BACKTRACE", "0");
        run(&mut command)
    }
}

fn has_source_of_nightly() -> bool {
    if !is_installed("rustup") {
        return false;
    }
    let asked =
        Command::new("rustup").args(["run", "nightly", "rustc", "--print", "sysroot"]).output();
    asked.is_ok_and(|asked| {
        let root = String::from_utf8_lossy(&asked.stdout).trim().to_owned();
        let source = Path::new(&root).join("lib/rustlib/src/rust/library/Cargo.lock");
        asked.status.success() && source.is_file()
    })
}
