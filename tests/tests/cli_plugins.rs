//! What becomes of commands when plugins are missing or bad.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use iccl_tests::command::{Ran, iccl, iccl_with, run_to_end};
use iccl_tests::plugin_folder;
use tempfile::TempDir;

/// A copy of the plugins, without some.
fn folder_without(missing: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))
        .expect("rights");
    for entry in std::fs::read_dir(plugin_folder()).expect("the plugins").map(Result::unwrap) {
        let name = entry.file_name().into_string().expect("a name");
        if !missing.iter().any(|one| name == format!("libiccl_{one}.so")) {
            std::fs::copy(entry.path(), folder.path().join(name)).expect("copied");
        }
    }
    folder
}

fn ran_with(folder: &Path, arguments: &[&str]) -> Ran {
    run_to_end(&mut iccl_with(folder, arguments))
}

#[test]
fn a_dry_plan_is_the_same_on_every_call() {
    let folder = folder_without(&[]);
    let first = ran_with(folder.path(), &["plan", "-n", "2", "--json"]);
    let second = ran_with(folder.path(), &["plan", "-n", "2", "--json"]);
    assert_eq!(first.json(), second.json());
}

#[test]
fn a_transport_that_is_switched_off_is_called_so() {
    let folder = folder_without(&[]);
    for setting in ["transport.enabled=[\"tcp\"]", "plugins.disable=[\"transport-shm\"]"] {
        let plan = ran_with(folder.path(), &["plan", "-n", "2", "--set", setting]);
        assert_eq!(plan.code(), Some(0), "{}", plan.all());
        assert!(plan.out.contains("shm: transport-disabled(both)"), "{setting}: {}", plan.out);
    }
}

#[test]
fn without_shared_memory_links_take_tcp_and_say_why() {
    let folder = folder_without(&["transport-shm"]);
    let plan = ran_with(folder.path(), &["plan", "-n", "3", "--json"]);
    assert_eq!(plan.code(), Some(0), "{}", plan.all());
    let links = plan.json()["links"].as_array().expect("links").clone();
    assert_eq!(links.len(), 3);
    for link in &links {
        assert_eq!(link["tier"], "tcp", "{link}");
        let shm = link["refused_better"]
            .as_array()
            .and_then(|all| all.iter().find(|one| one["tier"] == "shm").cloned())
            .expect("why not shm");
        assert_eq!(shm["reason"], "plugin-absent", "{link}");
    }
    let text = ran_with(folder.path(), &["plan", "-n", "3"]);
    assert!(text.out.contains("shm: plugin-absent"), "{}", text.out);
    let small = ["--dtype", "bf16,i64", "--op", "avg,sum", "-b", "100", "-e", "100K", "-f", "1000"];
    let perf = ran_with(folder.path(), &[&["perf", "all", "-n", "3"], &small[..]].concat());
    assert_eq!(perf.code(), Some(0), "{}", perf.all());
    assert!(perf.out.contains("links: 0-1 tcp, 0-2 tcp, 1-2 tcp"), "{}", perf.out);
}

#[test]
fn without_transports_every_rank_says_what_is_missing() {
    let folder = folder_without(&["transport-shm", "transport-tcp"]);
    let ran = ran_with(folder.path(), &["perf", "all_reduce", "-n", "3", "-b", "8", "-e", "8"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.all());
    let errors: Vec<&str> = ran.err.lines().filter(|line| line.contains("error:")).collect();
    // What the others of them said alike is shown once.
    let mut told: Vec<&str> =
        errors.iter().filter_map(|line| line.split("error: ").next()).collect();
    told.sort_unstable();
    let alike = told == ["", "[1-2] "];
    assert!(alike || told == ["", "[1] ", "[2] "], "one for each rank: {}", ran.err);
    for error in errors {
        assert!(error.contains("shm") && error.contains("tcp"), "{error}");
        assert!(error.contains("plugin-absent"), "{error}");
    }
}

#[test]
fn a_bad_candidate_is_listed_with_its_reason_and_the_others_work() {
    let folder = folder_without(&[]);
    std::fs::write(folder.path().join("libiccl_broken.so"), "no shared object").expect("written");
    let ran = ran_with(folder.path(), &["plugins", "--json"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    let answer = ran.json();
    let plugins = answer["plugins"].as_array().expect("plugins");
    let broken = plugins
        .iter()
        .find(|one| one["path"].as_str().is_some_and(|path| path.ends_with("libiccl_broken.so")))
        .expect("listed");
    assert_eq!((&broken["state"], &broken["reason"]), (&"rejected".into(), &"not-elf".into()));
    assert!(broken["hint"].as_str().is_some_and(|hint| !hint.is_empty()));
    let active: Vec<&str> = plugins
        .iter()
        .filter(|one| one["state"] == "active")
        .filter_map(|one| one["name"].as_str())
        .collect();
    assert_eq!(active, ["host", "transport-shm", "transport-tcp"]);
    let table = ran_with(folder.path(), &["plugins"]).out;
    let row = table.lines().find(|line| line.contains("broken")).expect("a row");
    assert!(row.contains("rejected") && row.contains("not-elf"), "{row}");
    let doctor = ran_with(folder.path(), &["doctor"]);
    assert!(doctor.out.contains("WARN") && doctor.out.contains("not-elf"), "{}", doctor.out);
}

#[test]
fn details_show_each_plugins_settings() {
    let ran = run_to_end(&mut iccl(&["plugins", "-v", "tcp"]));
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    assert!(ran.out.contains("transport-tcp") && ran.out.contains("setting"), "{}", ran.out);
    assert!(!ran.out.contains("transport-shm"), "{}", ran.out);
    assert!(ran.out.contains("searched, in this order:"), "{}", ran.out);
}

#[test]
fn a_plugin_that_is_asked_for_or_required_and_not_there_fails() {
    let ran = run_to_end(&mut iccl(&["plugins", "nvidia"]));
    assert_eq!(ran.code(), Some(1), "{}", ran.all());
    assert!(ran.err.contains("nvidia") && ran.err.contains("searched"), "{}", ran.err);
    let require = ["--set", "plugins.require=host=>=99"];
    for command in [&["plugins"][..], &["doctor"], &["perf", "barrier", "-n", "1"]] {
        let ran = run_to_end(&mut iccl(&[command, &require].concat()));
        assert_eq!(ran.code(), Some(1), "{command:?}: {}", ran.all());
        let said = format!("{}{}", ran.out, ran.err);
        assert!(said.contains("plugin host >=99"), "{command:?}: {}", ran.all());
    }
}

#[test]
fn the_doctor_fails_where_nothing_can_work() {
    let folder = folder_without(&["host", "transport-shm", "transport-tcp"]);
    let ran = ran_with(folder.path(), &["doctor", "--json"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.all());
    let answer = ran.json();
    let failed: Vec<&str> = answer["checks"]
        .as_array()
        .expect("checks")
        .iter()
        .filter(|check| check["result"] == "fail")
        .filter_map(|check| check["name"].as_str())
        .collect();
    assert_eq!(failed, ["devices", "transports"]);
    let devices = ran_with(folder.path(), &["devices"]);
    assert_eq!(devices.code(), Some(1), "{}", devices.all());
}

#[test]
fn the_doctor_names_a_folder_that_others_can_write_to() {
    let folder = folder_without(&[]);
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777))
        .expect("rights");
    let ran = ran_with(folder.path(), &["doctor"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.all());
    let row = ran.out.lines().find(|line| line.contains("mode 777")).expect("the folder");
    assert!(row.starts_with("FAIL"), "{row}");
    assert!(ran.out.contains("chmod go-w"), "{}", ran.out);
}
