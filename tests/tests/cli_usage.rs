//! Help, usage errors, settings, plans: what needs no job.

use std::collections::BTreeSet;

use iccl_tests::command::{Ran, iccl, run_to_end};

fn ran(arguments: &[&str]) -> Ran {
    run_to_end(&mut iccl(arguments))
}

const COMMANDS: [&str; 7] = ["plugins", "devices", "plan", "perf", "run", "doctor", "config"];

#[test]
fn every_help_has_examples() {
    let top = ran(&["--help"]);
    assert_eq!(top.code(), Some(0));
    for command in COMMANDS {
        assert!(top.out.lines().any(|line| line.trim_start().starts_with(command)), "{command}");
        let help = ran(&[command, "--help"]);
        assert_eq!(help.code(), Some(0), "{}", help.all());
        assert!(help.out.contains("Examples:"), "{command}: {}", help.out);
        assert!(help.out.contains("--json") && help.out.contains("--set"), "{}", help.out);
    }
    assert!(!top.out.contains("rank-of-run"), "{}", top.out);
    assert!(ran(&["--version"]).out.starts_with("iccl "));
}

#[test]
fn a_command_line_that_makes_no_sense_ends_with_two() {
    for arguments in [
        &[][..],
        &["nonsense"],
        &["perf"],
        &["perf", "all_reduce", "-n", "0"],
        &["perf", "all_reduce", "--dtype", "f31"],
        &["perf", "all_reduce", "--op", "median"],
        &["perf", "all_reduce", "-b", "2M", "-e", "1M"],
        &["perf", "all_reduce", "-i", "0"],
        &["perf", "all_reduce", "-f", "1"],
        &["perf", "all_reduce", "-f", "2", "-i", "8"],
        &["perf", "broadcast", "-n", "2", "--root", "2"],
        &["perf", "all_reduce", "-n", "4", "--ranks-per-host", "3,2"],
        &["plan", "-n", "2", "--hosts", "3"],
        &["run", "-n", "2"],
        &["run", "--", "true"],
        &["plan", "--set", "nothing"],
        &["config", "engin.spin"],
        &["config", "--set", "engine.spim=1ms"],
        &["config", "--set", "engine.spin=fast"],
        &["config", "--config", "/nonexistent/iccl.toml"],
        &["run", "-n", "2", "--set", "plugins.path=/x", "--", "true"],
    ] {
        let ran = ran(arguments);
        assert_eq!(ran.code(), Some(2), "{arguments:?}: {}", ran.all());
        assert!(!ran.err.is_empty(), "{arguments:?}");
        assert!(ran.out.is_empty(), "{arguments:?}: {}", ran.out);
    }
}

#[test]
fn a_mistyped_setting_names_the_nearest() {
    let file = ran(&["config", "--set", "engine.spim=1ms"]);
    assert!(
        file.err.starts_with("error: ") && file.err.contains("did you mean \"spin\""),
        "{}",
        file.err
    );
    let key = ran(&["config", "engine.spim"]);
    assert!(key.err.contains("hint: did you mean engine.spin?"), "{}", key.err);
    let section = ran(&["config", "engin"]);
    assert!(section.err.contains("hint: did you mean engine?"), "{}", section.err);
}

#[test]
fn a_mistyped_name_of_a_plugin_or_an_algorithm_names_the_nearest() {
    let device = ran(&["plan", "--set", "device.backend=hots"]);
    assert!(device.err.contains("hint: did you mean host?"), "{}", device.err);
    let transport = ran(&["plan", "--set", "transport.enabled=tpc,shm"]);
    assert_eq!(transport.code(), Some(0), "{}", transport.all());
    assert!(
        transport.err.contains("lists \"tpc\"") && transport.err.contains("did you mean \"tcp\"?"),
        "{}",
        transport.err
    );
    let none = ran(&["plan", "--set", "transport.enabled=tpc"]);
    assert!(none.err.contains("hint: ") && none.code() == Some(1), "{}", none.all());
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("iccl.toml");
    std::fs::write(&file, "[algorithm]\nbroadcast = \"binominal\"\n").expect("written");
    let algorithm = ran(&["plan", "--config", file.to_str().expect("a path")]);
    assert_eq!(algorithm.code(), Some(2), "{}", algorithm.all());
    assert!(
        algorithm.err.contains("iccl.toml:2:13: algorithm.broadcast: ")
            && algorithm.err.contains("did you mean \"binomial\"?"),
        "{}",
        algorithm.err
    );
    let quiet = ran(&["plan", "--set", "transport.enabled=shm,tcp,rdma"]);
    assert!(quiet.err.is_empty(), "{}", quiet.err);
}

#[test]
fn b096_an_unknown_key_of_a_file_is_named_with_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("iccl.toml");
    std::fs::write(&file, "\n[transport]\nenabld = [\"tcp\"]\n").expect("written");
    for command in [&["plan"][..], &["perf", "barrier"], &["run", "-n", "1"], &["doctor"]] {
        let tail: &[&str] = if command[0] == "run" { &["--", "true"] } else { &[] };
        let file = ["--config", file.to_str().expect("a path")];
        let ran = ran(&[command, &file, tail].concat());
        assert_eq!(ran.code(), Some(2), "{command:?}: {}", ran.all());
        assert!(ran.err.contains("iccl.toml:3:1") && ran.err.contains("enabled"), "{}", ran.err);
    }
}

#[test]
fn settings_say_where_they_come_from() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("iccl.toml");
    std::fs::write(&file, "[engine]\nspin = \"7us\"\nop_timeout = \"9s\"\n").expect("written");
    let file = file.to_str().expect("a path");
    let mut command =
        iccl(&["config", "--config", file, "--set", "engine.chunk_bytes=1MiB", "--json"]);
    let ran = run_to_end(command.env("ICCL_OP_TIMEOUT", "11s"));
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    let answer = ran.json();
    assert_eq!(answer["file"], file);
    let source = |key: &str| {
        let settings = answer["settings"].as_array().expect("settings");
        let found = settings.iter().find(|one| one["key"] == key).expect("listed").clone();
        (found["value"].clone(), found["provenance"]["source"].clone())
    };
    assert_eq!(source("engine.spin"), ("7us".into(), "file".into()));
    assert_eq!(source("engine.op_timeout"), ("11s".into(), "environment".into()));
    assert_eq!(source("engine.chunk_bytes"), ("1MiB".into(), "api".into()));
    assert_eq!(source("log.level").1, "default");
    let changed = run_to_end(&mut iccl(&["config", "--config", file, "--changed", "engine"]));
    let rows: Vec<&str> = changed.out.lines().skip(2).collect();
    assert_eq!(rows.len(), 2, "{}", changed.out);
    assert!(rows.iter().any(|row| row.contains("iccl.toml:2:")), "{}", changed.out);
}

#[test]
fn a_dry_plan_shows_hosts_tiers_and_reasons() {
    let ran = ran(&["plan", "--ranks-per-host", "3,1", "--json"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    let plan = ran.json();
    assert_eq!(plan["ranks"], 4);
    assert_eq!(plan["tiers"]["shm"], 3);
    assert_eq!(plan["tiers"]["tcp"], 3);
    assert_eq!(plan["hosts"][0]["ranks"], serde_json::json!([0, 1, 2]));
    assert_eq!(plan["matrix"][0][3], "tcp");
    let text = run_to_end(&mut iccl(&["plan", "-n", "4", "--hosts", "2"]));
    assert!(text.out.contains("not-same-host"), "{}", text.out);
}

#[test]
fn devices_are_listed() {
    let ran = ran(&["devices", "--json"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    let devices = ran.json();
    assert_eq!(devices["devices"][0]["plugin"], "host");
    assert_eq!(devices["devices"][0]["host_accessible"], true);
    assert!(run_to_end(&mut iccl(&["devices", "-v"])).out.contains("host:0"));
}

#[test]
fn the_doctor_is_content_here_and_its_json_has_stable_keys() {
    let ran = ran(&["doctor", "--json"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    for check in ran.json()["checks"].as_array().expect("checks") {
        for key in ["name", "result", "found", "hint"] {
            assert!(check[key].is_string(), "{check}");
        }
        assert!(check["result"] == "ok" || check["hint"] != "", "{check}");
    }
}

/// The keys of all objects in a value.
fn keys(value: &serde_json::Value, into: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(object) => {
            for (key, value) in object {
                into.insert(key.clone());
                keys(value, into);
            }
        }
        serde_json::Value::Array(values) => values.iter().for_each(|value| keys(value, into)),
        _ => {}
    }
}

#[test]
fn the_page_lists_every_key() {
    let page = std::fs::read_to_string(iccl_tests::workspace().join("docs/command.md"));
    let page = page.expect("docs/command.md");
    let mut all = BTreeSet::new();
    for arguments in [
        &["plugins", "--json"][..],
        &["devices", "--json"],
        &["doctor", "--json"],
        &["doctor", "--vendor", "nvidia", "--json"],
        &["devices", "--capabilities", "--json"],
        &["config", "--json", "--set", "engine.spin=1ms"],
        &[
            "perf", "all", "-n", "2", "-b", "8", "-e", "8", "--op", "sum,bor", "--dtype", "f32",
            "--json",
        ],
    ] {
        keys(&ran(arguments).json(), &mut all);
    }
    assert!(all.len() > 40, "{all:?}");
    for key in all {
        assert!(page.contains(&format!("\"{key}\"")), "docs/command.md does not list \"{key}\"");
    }
}

#[test]
fn logs_go_to_standard_error_as_asked() {
    let quiet = ran(&["plan", "-n", "2"]);
    assert!(quiet.err.is_empty(), "{}", quiet.err);
    let mut command = iccl(&["plan", "-n", "2", "--json"]);
    let loud = run_to_end(command.env("ICCL_LOG", "debug").env("ICCL_LOG_FORMAT", "json"));
    let line = loud.err.lines().next().expect("a log line");
    let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
    assert!(line["level"].is_string() && line["target"].is_string(), "{line}");
    assert!(loud.json()["hash"].is_string());
    assert!(ran(&["plan", "-n", "2", "-vv"]).err.contains("DEBUG"));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let iccl_path = iccl_tests::command::command_path().to_str().expect("a path");
    let line = format!("{iccl_path} config -v | head -1; echo status ${{PIPESTATUS[0]}}");
    let mut shell = iccl_tests::command::clean(
        std::path::Path::new("/bin/bash"),
        iccl_tests::plugin_folder(),
        &["-c", &line],
    );
    let ran = run_to_end(&mut shell);
    assert!(ran.out.ends_with("status 0\n"), "{}", ran.all());
}
