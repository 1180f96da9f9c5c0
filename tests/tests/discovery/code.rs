//! What is wrong with the code of a plugin.

use std::path::{Path, PathBuf};
use std::process::Command;

use iccl_plugin_api::MemoryKind;
use iccl_runtime::ErrorKind;
use iccl_runtime::plugins::{Door, PluginSet, ProbeMethod, Reason, SelfTest, State, call_error};

use crate::support::{Folder, config, failure, good_plugins_work, mappings};

#[test]
fn each_fault_has_its_own_reason() {
    let folder = Folder::new();
    let faults = [
        ("undefined", "FAULT_UNDEFINED_SYMBOL", "undefined-symbol", "acme_driver_version_2"),
        ("nullcopy", "FAULT_NULL_COPY", "null-function", "device.copy"),
        ("nullsync", "FAULT_NULL_SYNCHRONIZE", "null-function", "device.stream_synchronize"),
        ("nullprobe", "FAULT_NULL_PROBE", "null-function", "probe"),
        ("nulltable", "FAULT_NULL_TABLE", "bad-table", "null table"),
        ("major", "FAULT_ROOT_MAJOR", "abi-major", "ABI 2"),
        ("panicd", "FAULT_PANICS_IN_DESCRIBE", "panicked", "in describe: no words for it"),
        ("panicp", "FAULT_PANICS_IN_PROBE", "panicked", "in probe: index out of bounds"),
        (
            "crashp",
            "FAULT_CRASHES_IN_PROBE",
            "probe-crashed",
            "killed by SIGSEGV in probe; it printed: acme driver: about to dereference null",
        ),
        ("crashc", "FAULT_CRASHING_CONSTRUCTOR", "probe-crashed", "killed by SIGILL in dlopen"),
        ("exit", "FAULT_EXITS_IN_PROBE", "probe-crashed", "ended with status 3 in probe"),
        ("fails", "FAULT_PROBE", "probe-failed", "acmeInit failed (code 802)"),
        ("nocard", "FAULT_NO_DEVICE", "no-device", "no acme card in this machine"),
        ("nolib", "FAULT_LIBRARY_MISSING", "library-missing", "libacme.so.3: not found"),
        ("none", "FAULT_COUNTS_NONE", "no-device", "counts 0 devices"),
        ("many", "FAULT_COUNTS_TOO_MANY", "bad-facts", "4000000000 devices"),
        ("facts", "FAULT_FACTS", "bad-facts", "the driver lost the card (code 999)"),
        ("selftest", "FAULT_SELF_TEST", "self-test-failed", "2 + 2 came to 5"),
        ("version", "VERSION=\"one\"", "describe-failed", "\"one\" is no semver"),
        (
            "renamed",
            "NOTE_NAME=\"named\"",
            "note-differs",
            "its name is \"renamed\", its note says \"named\"",
        ),
        ("families", "FAMILIES=5", "note-differs", "families"),
    ];
    for (name, fault, _, _) in faults {
        folder.compile(name, &[fault]);
    }
    // All at once, as they would lie in a folder.
    let set = folder.discover();
    for (name, _, code, words) in faults {
        let record = folder.record(&set, &format!("libiccl_{name}.so"));
        let line = record.to_string();
        assert_eq!(record.reason.map(Reason::code), Some(code), "{line}");
        assert!(line.contains(words), "{words:?} is not in {line:?}");
        assert!(!line.contains('\n') && !record.hint.is_empty(), "{line}");
    }
    // What runs in this process gives the same reasons.
    let crashes = ["crashp", "crashc", "exit"];
    for name in crashes {
        std::fs::remove_file(folder.file(&format!("libiccl_{name}.so"))).unwrap();
    }
    let set = folder.discover_with(&[("plugins.probe", "inline")]).unwrap();
    for (name, _, code, words) in faults.iter().filter(|fault| !crashes.contains(&fault.0)) {
        let record = folder.record(&set, &format!("libiccl_{name}.so"));
        assert_eq!(record.reason.map(Reason::code), Some(*code), "{record}");
        assert!(record.to_string().contains(words), "{record}");
    }
}

#[test]
fn a_probe_that_hangs_is_ended() {
    let folder = Folder::new();
    folder.compile("hangs", &["FAULT_HANGS_IN_PROBE"]);
    let settings = [("plugins.probe_timeout", "2s")];
    folder.refused_with(
        "libiccl_hangs.so",
        "probe-hung",
        "did not answer within 2s in probe",
        &settings,
    );
    let file = folder.file("libiccl_hangs.so");
    let children = iccl_tests::running_with(file.to_str().unwrap());
    assert_eq!(children, Vec::<u32>::new(), "the child is gone");
}

#[test]
fn what_a_plugin_prints_is_no_verdict() {
    let folder = Folder::new();
    folder.compile("prints", &["FAULT_PRINTS_IN_PROBE", "FAULT_SELF_TEST"]);
    folder.refused("libiccl_prints.so", "self-test-failed", "2 + 2 came to 5");
}

#[test]
fn a_good_plugin_in_c_is_loaded_by_its_door() {
    let folder = Folder::new();
    folder.compile("good", &[]);
    let set = folder.discover();
    let record = folder.record(&set, "libiccl_good.so");
    assert!(record.is_active(), "{record}");
    assert_eq!(record.reason, None);
    assert_eq!(record.door, Some(Door::C));
    assert_eq!(record.probe, Some(ProbeMethod::Child));
    assert_eq!(record.kinds, ["device"]);
    assert_eq!(record.version.as_deref(), Some("1.0.0"));
    assert_eq!(record.self_test, SelfTest::Passed);
    assert!(record.probe_time.is_some());
    let host = set.records().iter().find(|record| record.name.as_deref() == Some("host")).unwrap();
    assert_eq!(host.door, Some(Door::Rust));
    let json = serde_json::to_value(&record).unwrap();
    assert_eq!(json["state"], "active");
    assert_eq!(json["door"], "c");
    assert_eq!(json["probe"], "child");
}

#[test]
fn b045_every_absent_function_is_not_supported() {
    let folder = Folder::new();
    folder.compile("sparse", &[]);
    let set = folder.discover();
    let device = set.devices_of("sparse").next().unwrap().open().unwrap();
    let word = 0_u64;
    // SAFETY: the plugin has none of these functions, so nothing is called.
    let answers = unsafe {
        [
            device.host_function(1, never, std::ptr::null_mut()).err(),
            device.stream_wait_value(1, &raw const word, 1).err(),
            device.event_create().err(),
            device.event_record(1, 1).err(),
            device.event_destroy(1).err(),
        ]
    };
    for answer in answers {
        let error = call_error("sparse", answer.expect("it is absent"));
        assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
        assert!(error.to_string().contains("the plugin has no device."), "{error}");
    }
    // Absent, and yet there is an answer that holds for every device.
    assert_eq!(device.memory_kind(std::ptr::null()), Ok(MemoryKind::Device));
}

unsafe extern "C" fn never(_: *mut std::ffi::c_void) {
    unreachable!("the plugin has no host functions");
}

#[test]
fn b078_a_panic_of_a_call_names_plugin_and_call() {
    let folder = Folder::new();
    folder.compile("clumsy", &["FAULT_PANICS_IN_COPY"]);
    let set = folder.discover();
    let device = set.devices_of("clumsy").next().unwrap().open().unwrap();
    let (source, mut destination) = ([0_u8; 4], [0_u8; 4]);
    let to = (destination.as_mut_ptr().cast(), MemoryKind::Host);
    let from = (source.as_ptr().cast(), MemoryKind::Host);
    // SAFETY: both sides have 4 bytes.
    let error = unsafe { device.copy(0, to, from, 4) }.unwrap_err();
    let error = call_error("clumsy", error);
    assert_eq!(error.kind(), ErrorKind::PluginPanic);
    assert!(
        error.to_string().starts_with("plugin clumsy panicked in device.copy: copy went wrong")
    );
    good_plugins_work(&set);
}

#[test]
fn b077_a_thousand_sets_keep_one_mapping() {
    let folder = Folder::new();
    let file = folder.compile("kept", &[]);
    let configuration = config(&[folder.path()], &[]);
    let first = PluginSet::load(&configuration).unwrap();
    let mapped = mappings(&file);
    assert!(mapped > 0);
    let table = std::ptr::from_ref(first.plugin("kept").unwrap());
    for _ in 0..1000 {
        let set = PluginSet::load(&configuration).unwrap();
        assert!(std::ptr::eq(set.plugin("kept").unwrap(), table), "it was loaded again");
    }
    assert_eq!(mappings(&file), mapped);

    // Another configuration has its own set.
    let other = Folder::new();
    other.compile("fresh", &[]);
    let set = PluginSet::load(&config(&[other.path()], &[])).unwrap();
    assert!(set.plugin("fresh").is_some() && set.plugin("kept").is_none());
}

#[test]
fn without_the_helper_the_record_says_so() {
    let folder = Folder::new();
    folder.compile("alone", &[]);
    let set = PluginSet::load(&config(&[folder.path()], &[])).unwrap();
    let record = &set.records()[0];
    assert_eq!(record.state, State::Active, "{record}");
    assert_eq!(record.probe, Some(ProbeMethod::InlineWithoutHelper));
    assert!(record.to_string().contains("iccl-plugin-probe is not in"), "{record}");
}

#[test]
fn settings_cross_in_the_abi_s_form_and_unknown_ones_are_errors() {
    let folder = Folder::new();
    folder.compile("teller", &["FAULT_TELLS_SETTINGS"]);
    for probe in ["child", "inline"] {
        let settings = [
            ("plugin.teller.buffer", "64KiB"),
            ("plugin.teller.patience", "1.5ms"),
            ("plugins.probe", probe),
        ];
        folder.refused_with(
            "libiccl_teller.so",
            "probe-failed",
            "buffer=65536;patience=1500;",
            &settings,
        );
        let error = failure(
            folder.discover_with(&[("plugin.teller.bufer", "1"), ("plugins.probe", probe)]),
        );
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("did you mean \"buffer\"?"), "{error}");
        let error = failure(
            folder.discover_with(&[("plugin.teller.buffer", "much"), ("plugins.probe", probe)]),
        );
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("expected a value of kind bytes"), "{error}");
    }
}

/// Says to the test below that it runs in a process that ignores SIGCHLD.
const FOLDERS_VARIABLE: &str = "ICCL_TEST_IGNORED_CHILDREN_FOLDERS";

#[test]
fn an_application_may_ignore_its_children() {
    if let Some(folders) = std::env::var_os(FOLDERS_VARIABLE) {
        let folders: Vec<PathBuf> = std::env::split_paths(&folders).collect();
        let folders: Vec<&Path> = folders.iter().map(PathBuf::as_path).collect();
        for record in PluginSet::discover(&config(&folders, &[])).unwrap().records() {
            println!("{record}");
        }
        return;
    }
    let folder = Folder::new();
    folder.compile("crashing", &["FAULT_CRASHES_IN_PROBE"]);
    folder.compile("healthy", &[]);
    let folders = std::env::join_paths([folder.path(), iccl_tests::plugin_folder()]).unwrap();
    // The shell's trap becomes the program's disposition.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' CHLD; exec \"$0\" \"$@\""]);
    shell.arg(std::env::current_exe().unwrap());
    shell.args(["--exact", "code::an_application_may_ignore_its_children", "--nocapture"]);
    let lines = iccl_tests::run(shell.env(FOLDERS_VARIABLE, folders));
    let about = |name: &str| lines.lines().find(|line| line.contains(name)).expect(&lines);
    let line = about("libiccl_crashing.so");
    assert!(line.contains("(probe-crashed): "), "{line}");
    assert!(line.contains("in probe"), "{line}");
    assert!(about("libiccl_healthy.so").contains("active"), "{lines}");
}
