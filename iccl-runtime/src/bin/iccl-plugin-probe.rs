//! Runs a plugin for the first time, so that a crash or a hang ends this process and no other.

fn main() -> std::process::ExitCode {
    iccl_runtime::plugins::helper_main(std::env::args_os())
}
