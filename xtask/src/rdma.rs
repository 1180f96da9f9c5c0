//! The step `rdma`: what needs real libibverbs, in a virtual machine with Soft-RoCE, booted once.

use std::path::PathBuf;
use std::process::Command;

use crate::layout;
use crate::run::{Failure, cargo, is_installed, output, run, workspace};

/// The programs that the machine needs here, and the Debian packages that bring them.
const NEEDED: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("depmod", "kmod"),
    ("cpio", "cpio"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
    ("ip", "iproute2"),
    ("ibv_devices", "ibverbs-utils"),
];

/// Boots the machine and runs the tests in it. Without the packages this says so, and is a failure if
/// `is_demanded`.
pub(crate) fn test(is_demanded: bool) -> Result<(), Failure> {
    if let Some(lacks) = lacks() {
        return if is_demanded {
            Err(Failure(lacks))
        } else {
            println!("not checked: {lacks}");
            Ok(())
        };
    }
    let mut command = Command::new(workspace().join("tests/rdma-vm"));
    command.args(["run", "--timeout", "300", "--env", "ICCL_TEST_RDMA=real", "--"]);
    run(command.arg(unit_tests()?).args(["--test-threads", "2"]))
}

/// What is missing here, and how to get it.
fn lacks() -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("the virtual machine with RDMA devices is for x86-64".to_owned());
    }
    let in_sbin = |program: &str| {
        ["/sbin", "/usr/sbin"].iter().any(|folder| PathBuf::from(folder).join(program).is_file())
    };
    let missing = NEEDED.iter().filter(|(program, _)| !is_installed(program) && !in_sbin(program));
    let missing: Vec<_> = missing.map(|(program, _)| *program).collect();
    (!missing.is_empty()).then(|| {
        let packages: Vec<_> = NEEDED.iter().map(|(_, package)| *package).collect();
        format!(
            "no virtual machine with RDMA devices, for want of {}. On Debian: apt-get install {} \
             ibverbs-providers util-linux",
            missing.join(", "),
            packages.join(" ")
        )
    })
}

/// The program of the transport's own tests.
fn unit_tests() -> Result<PathBuf, Failure> {
    let package = layout::plugin_package("transport-rdma");
    let arguments = ["test", "-p", &package, "--lib", "--no-run", "--message-format=json"];
    let told = output(&mut cargo(&arguments))?;
    let told = String::from_utf8_lossy(&told);
    let program = told.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(PathBuf::from(message["executable"].as_str()?))
    });
    program.ok_or_else(|| Failure(format!("cargo names no test program of {package}")))
}
