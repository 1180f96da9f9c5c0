//! What `cargo xtask install` lays out: found, moved, built against and run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use iccl_tests::command::{clean, run_to_end};
use iccl_tests::{PLUGIN_PACKAGES, run, workspace};

/// Installs in the test's own profile into one folder, and moves it to another.
fn installed(folder: &Path) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let first = folder.join("first");
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    run(Command::new(cargo)
        .current_dir(workspace())
        .env("CARGO_NET_OFFLINE", "true")
        .args(["run", "--quiet", "-p", "xtask", "--", "install", "--profile", profile, "--prefix"])
        .arg(&first));
    let prefix = folder.join("prefix");
    std::fs::rename(&first, &prefix).expect("the tree can be moved");
    prefix
}

/// The flags to build a program with, as `pkg-config` gives them; read from its file where it is not
/// installed.
fn flags(prefix: &Path) -> Vec<String> {
    let folder = prefix.join("lib/pkgconfig");
    let asked = Command::new("pkg-config")
        .env("PKG_CONFIG_PATH", &folder)
        .args(["--cflags", "--libs", "iccl"])
        .output();
    let text = match asked {
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{errors}");
            String::from_utf8(output.stdout).expect("flags")
        }
        Err(_) => read_package_config(&folder),
    };
    text.split_whitespace().map(str::to_owned).collect()
}

fn read_package_config(folder: &Path) -> String {
    let text = std::fs::read_to_string(folder.join("iccl.pc")).expect("a file for pkg-config");
    let mut variables = BTreeMap::from([("pcfiledir", folder.display().to_string())]);
    let mut flags = String::new();
    for line in text.lines() {
        let expanded = |value: &str| {
            variables.iter().fold(value.to_owned(), |text, (name, value)| {
                text.replace(&format!("${{{name}}}"), value)
            })
        };
        if let Some((name, value)) = line.split_once('=') {
            let value = expanded(value);
            variables.insert(name, value);
        } else if let Some(("Libs" | "Cflags", value)) = line.split_once(": ") {
            flags.push_str(&expanded(value));
            flags.push(' ');
        }
    }
    flags
}

#[test]
fn what_is_installed_is_found_and_programs_are_built_against_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = installed(folder.path());
    for file in [
        "bin/iccl",
        "lib/libiccl.so",
        "lib/libiccl.so.1",
        "lib/libiccl.so.1.0.0",
        "lib/iccl/plugins/iccl-plugin-probe",
        "include/iccl.h",
        "include/iccl_plugin.h",
        "share/doc/iccl/LICENSE-MIT",
        "share/doc/iccl/LICENSE-APACHE",
        "share/doc/iccl/api-c.md",
    ] {
        assert!(prefix.join(file).is_file(), "{file} is missing");
    }
    let licences = std::fs::read_to_string(prefix.join("share/doc/iccl/THIRD-PARTY.txt"));
    let licences = licences.expect("the licences of others");
    assert!(licences.contains("\n==== abi_stable ") && licences.contains("\n==== clap "));
    assert!(!licences.contains("==== iccl-") && !licences.contains("==== proptest"));

    // The command finds the installed plugins, with nothing that says where they are.
    let command = prefix.join("bin/iccl");
    let installed_only = |program: &Path, arguments: &[&str]| {
        let mut command = clean(program, Path::new("unused"), arguments);
        // Cargo's LD_LIBRARY_PATH leads to what was just built.
        command.env_remove("ICCL_PLUGIN_PATH").env_remove("LD_LIBRARY_PATH");
        command.current_dir(folder.path());
        command
    };
    let ran = run_to_end(&mut installed_only(&command, &["plugins", "--json"]));
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    for package in PLUGIN_PACKAGES {
        let name = package.strip_prefix("iccl-plugin-").expect("packages of plugins are named so");
        let path = prefix.join(format!("lib/iccl/plugins/libiccl_{name}.so"));
        let record = format!("\"{}\"", path.display());
        assert!(ran.out.contains(&record), "{record} is not in {}", ran.all());
    }

    let program = folder.path().join("all_reduce");
    run(Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .arg(workspace().join("iccl-capi/examples/c/all_reduce.c"))
        .args(flags(&prefix))
        .arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()))
        .arg("-o")
        .arg(&program));
    let program = program.to_string_lossy();
    let mut together = installed_only(&command, &["run", "-n", "2", "--", &program]);
    let ran = run_to_end(together.env("ICCL_LOG", "info"));
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    assert!(ran.out.contains("rank 1 of 2: the mean of the ranks is 0.5"), "{}", ran.all());
    // The library has looked there too, and uses what it carries inside.
    assert!(ran.err.contains("lib/iccl/plugins/libiccl_host.so"), "{}", ran.all());
}
