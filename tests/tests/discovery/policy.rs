//! What the configuration asks for.

use iccl_runtime::ErrorKind;
use iccl_runtime::plugins::{PluginSet, ProbeMethod};
use tracing::Level;

use crate::log_lines;
use crate::support::{Folder, config, failure, good_plugins_work, mappings};

#[test]
fn b071_one_line_a_plugin_and_probing_only_at_debug() {
    let folder = Folder::new();
    folder.compile("quiet", &[]);
    folder.compile("absent", &["FAULT_NO_DEVICE"]);
    std::fs::write(folder.file("libiccl_broken.so"), "").unwrap();
    let configuration = config(&[folder.path(), iccl_tests::plugin_folder()], &[]);
    let lines = log_lines::of(Level::INFO, || {
        PluginSet::load(&configuration).unwrap();
    });
    let about = |name: &str| -> Vec<&(Level, String)> {
        lines.iter().filter(|(_, line)| line.contains(&format!("libiccl_{name}.so"))).collect()
    };
    for (name, level, words) in [
        ("quiet", Level::INFO, "plugin quiet 1.0.0: active (device)"),
        ("absent", Level::INFO, "plugin absent 1.0.0: no-device: no acme card"),
        ("broken", Level::WARN, "plugin candidate: rejected (empty): it has 0 bytes"),
        ("host", Level::INFO, "plugin host"),
        ("transport-tcp", Level::INFO, "active (transport)"),
    ] {
        let about = about(name);
        assert_eq!(about.len(), 1, "{about:?}");
        assert_eq!(about[0].0, level, "{about:?}");
        assert!(about[0].1.contains(words), "{about:?}");
    }
    assert_eq!(lines.iter().filter(|(level, _)| *level < Level::INFO).count(), 1, "{lines:#?}");
    let more = log_lines::of(Level::DEBUG, || {
        PluginSet::load(&configuration).unwrap();
    });
    assert!(more.iter().any(|(_, line)| line.contains("checked a plugin's file")), "{more:#?}");
}

#[test]
fn a_plugin_s_lines_come_with_its_name() {
    let folder = Folder::new();
    folder.compile("talks", &["FAULT_TALKS"]);
    let lines = log_lines::of(Level::INFO, || {
        let set = folder.discover_with(&[("plugins.allow", "talks")]).unwrap();
        assert!(set.plugin("talks").is_some());
    });
    let (level, line) = lines.iter().find(|(_, line)| line.contains("fan")).expect("its line");
    assert_eq!(*level, Level::WARN);
    assert!(line.starts_with("fan \u{fffd}\\n speed"), "{line}");
    assert!(
        line.contains("plugin=\"talks\"") && line.contains("from=\"corpus::driver\""),
        "{line}"
    );
}

#[test]
fn b072_a_required_plugin_that_is_missing_ends_initialisation() {
    let folder = Folder::new();
    folder.compile("ascend", &["FAULT_LIBRARY_MISSING"]);
    let load = |require: &str| PluginSet::load(&folder.config(&[("plugins.require", require)]));
    let error = failure(load("{ ascend = \"*\" }"));
    assert_eq!(error.kind(), ErrorKind::PluginMissing);
    let text = error.to_string();
    assert!(text.contains("plugin ascend * is asked for by plugins.require"), "{text}");
    assert!(text.contains("no-device (library-missing): libacme.so.3: not found"), "{text}");
    assert!(text.contains(folder.path().to_str().unwrap()), "where it looked: {text}");
    assert!(text.contains("/usr/lib/iccl/plugins"), "where it looked: {text}");

    let text = failure(load("{ cambricon = \"*\" }")).to_string();
    assert!(text.contains("host (active)") && text.contains("ascend (no-device)"), "{text}");

    // A file that is not even a plugin is found by its name.
    std::fs::write(folder.file("libiccl_kunlun.so"), "").unwrap();
    let text = failure(load("{ kunlun = \"*\" }")).to_string();
    assert!(text.contains("rejected (empty)"), "{text}");

    let set = folder.discover();
    let error = set.missing("ascend", "device.backend");
    assert_eq!(error.kind(), ErrorKind::PluginMissing);
    assert!(error.to_string().contains("asked for by device.backend"), "{error}");
}

#[test]
fn requirements_are_semver() {
    let folder = Folder::new();
    folder.compile("versioned", &["VERSION=\"1.2.3\""]);
    folder.compile("early", &["VERSION=\"2.0.0-rc.1\""]);
    let load = |require: &str| PluginSet::load(&folder.config(&[("plugins.require", require)]));
    load("{ versioned = \">=1.2, <2\", tcp = \"*\", host = \"*\" }").unwrap();
    let text = failure(load("{ versioned = \">=1.3\" }")).to_string();
    assert!(text.contains("version 1.2.3 is here"), "{text}");
    // A pre-release matches only if the requirement names one.
    failure(load("{ early = \">=1\" }"));
    load("{ early = \">=2.0.0-rc\" }").unwrap();
}

#[test]
fn b084_what_is_not_enabled_is_never_loaded() {
    let folder = Folder::new();
    let marker = folder.file("loaded");
    let marker_definition = format!("MARKER=\"{}\"", marker.display());
    let definitions = ["NAME=\"transport-rdma\"", "FAMILIES=4", marker_definition.as_str()];
    let file = folder.compile("transport-rdma", &definitions);
    let settings = [("transport.enabled", "tcp")];
    let set = PluginSet::load(&folder.config(&settings)).unwrap();
    let record = folder.record(&set, "libiccl_transport-rdma.so");
    assert_eq!(record.reason.unwrap().code(), "transport-not-enabled", "{record}");
    assert!(record.detail.contains("[tcp]"), "{record}");
    assert_eq!(mappings(&file), 0, "it is mapped into this process");
    assert!(!marker.exists(), "it was loaded into some process");
    assert!(set.transport("shm").is_none(), "shm is not enabled");
    assert!(set.transport("tcp").is_some());

    // The same for a plugin that is disabled, be it named by its own name or by its tier's.
    for name in ["rdma", "transport-rdma"] {
        let set = PluginSet::load(&folder.config(&[("plugins.disable", name)])).unwrap();
        let record = folder.record(&set, "libiccl_transport-rdma.so");
        assert_eq!(record.reason.unwrap().code(), "disabled", "{record}");
    }
    assert!(!marker.exists());
    let set = folder.discover();
    assert!(!folder.record(&set, "libiccl_transport-rdma.so").is_active());
    assert!(marker.exists(), "the marker works");
}

#[test]
fn those_that_are_allowed_are_probed_here() {
    let folder = Folder::new();
    folder.compile("known", &[]);
    folder.compile("byfile", &[]);
    folder.compile("stranger", &[]);
    let allow = [("plugins.allow", "known,libiccl_byfile.so")];
    let set = folder.discover_with(&allow).unwrap();
    for (name, probe) in [
        ("known", ProbeMethod::Inline),
        ("byfile", ProbeMethod::Inline),
        ("stranger", ProbeMethod::Child),
    ] {
        let record = folder.record(&set, &format!("libiccl_{name}.so"));
        assert_eq!(record.probe, Some(probe), "{record}");
    }
}

#[test]
fn a_table_of_an_absent_plugin_is_a_warning() {
    let folder = Folder::new();
    let lines = log_lines::of(Level::WARN, || {
        let set = folder.discover_with(&[("plugin.nvidiaa.library_dir", "/opt")]).unwrap();
        good_plugins_work(&set);
    });
    assert!(lines.iter().any(|(_, line)| line.contains("[plugin.nvidiaa] has no effect")));
}
