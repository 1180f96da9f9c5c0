//! What becomes of the plugin where something is missing.

use std::path::Path;

use iccl_tests::command::run_to_end;
use iccl_tests::maker::small_library;

use crate::simulator::CAMBRICON;

const ALL: &[&str] = &["libcndrv.so", "libcnrt.so", "libcncl.so.1"];

#[test]
fn without_libraries_it_says_which_and_where_it_looked() {
    let folder = tempfile::tempdir().expect("a folder");
    let record = CAMBRICON.record(folder.path(), &[]);
    assert_eq!(record["state"], "no-device", "{record}");
    assert_eq!(record["reason"], "library-missing", "{record}");
    let expected = format!("libcnrt.so not found: looked {}", folder.path().display());
    assert_eq!(record["detail"], expected, "{record}");
}

#[test]
fn without_driver_there_is_no_device_in_cambricons_own_words() {
    let folder = CAMBRICON.libraries(&["libcnrt.so", "libcncl.so.1"]);
    let record = CAMBRICON.record(folder.path(), &[]);
    assert_eq!(record["reason"], "no-device", "{record}");
    let detail = record["detail"].as_str().expect("words");
    let expected = "cnrtGetDeviceCount: the driver could not be initialized (cnrtErrorInit, 100002); \
                    CNRT 7.6.1, no driver";
    assert!(detail.contains(expected), "{detail}");
}

#[test]
fn without_a_card_there_is_no_device_in_cambricons_own_words_at_info() {
    let folder = CAMBRICON.libraries(ALL);
    let variables = [("ICCL_SIM_CAMBRICON_DEVICES", "0"), ("ICCL_LOG", "info")];
    let ran = run_to_end(&mut CAMBRICON.plugins(Some(folder.path()), &variables));
    let record = ran.json()["plugins"][0].clone();
    assert_eq!(record["reason"], "no-device", "{record}");
    let detail = record["detail"].as_str().expect("words");
    assert!(detail.contains("(cnrtErrorNoDevice, 100004); CNRT 7.6.1, driver 3.6.2"), "{detail}");
    let told = ran.err.lines().find(|line| line.contains("100004"));
    assert!(told.is_some_and(|line| line.contains(" INFO ")), "{}", ran.all());
}

#[test]
fn without_cncl_the_cards_are_there_and_the_log_says_why_nothing_is_native() {
    let folder = CAMBRICON.libraries(&["libcndrv.so", "libcnrt.so"]);
    let ran = run_to_end(&mut CAMBRICON.plugins(Some(folder.path()), &[("ICCL_LOG", "warn")]));
    let record = ran.json()["plugins"][0].clone();
    assert_eq!(record["state"], "active", "{record}");
    assert!(ran.err.contains("no native collectives on Cambricon cards"), "{}", ran.all());
    assert!(ran.err.contains("libcncl.so.1 or libcncl.so not found"), "{}", ran.all());
}

#[test]
fn b076_all_functions_that_a_library_lacks_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = "int cnrtGetDeviceCount(unsigned *count) { *count = 1; return 0; }";
    small_library(folder.path(), "libcnrt.so", source);
    let ran = run_to_end(&mut CAMBRICON.plugins(Some(folder.path()), &[("ICCL_LOG", "info")]));
    let record = ran.json()["plugins"][0].clone();
    assert_eq!(record["reason"], "library-missing", "{record}");
    let detail = record["detail"].as_str().expect("words");
    assert!(detail.contains("libcnrt.so: it lacks cnrtGetLibVersion, "), "{detail}");
    assert!(detail.ends_with(" more"), "{detail}");
    assert!(!detail.contains("cnrtGetDeviceCount"), "{detail}");
    // The log has them all.
    assert!(ran.err.contains("cnrtPlaceNotifier, cnrtQueryNotifier"), "{}", ran.all());
}

#[test]
fn a_folder_that_is_not_there_is_a_mistake_and_no_missing_library() {
    let record = CAMBRICON.record(Path::new("/no/such/folder"), &[]);
    assert_eq!(record["reason"], "probe-failed", "{record}");
    let detail = record["detail"].as_str().expect("words");
    assert!(detail.contains("library_dir: /no/such/folder is not the absolute path"), "{detail}");
}

#[test]
fn neuware_home_names_the_installation() {
    let home = tempfile::tempdir().expect("a folder");
    let libraries = home.path().join("lib64");
    std::fs::create_dir(&libraries).expect("a folder");
    for file in ALL {
        let from = iccl_tests::sim_sdk::folder("cambricon").join(file);
        std::fs::copy(from, libraries.join(file)).expect("copied");
    }
    let home = home.path().to_str().expect("text");
    let variables = [("NEUWARE_HOME", home), ("ICCL_LOG", "info")];
    let ran = run_to_end(&mut CAMBRICON.plugins(None, &variables));
    assert_eq!(ran.json()["plugins"][0]["state"], "active", "{}", ran.all());
    for file in ALL {
        let used = format!("path={}", libraries.join(file).display());
        assert!(ran.all().contains(&used), "{file}: {}", ran.all());
    }
}

#[test]
fn b076_another_version_that_was_loaded_before_is_told_with_its_path() {
    let used = CAMBRICON.libraries(ALL);
    let loaded = tempfile::tempdir().expect("a folder");
    let other = small_library(loaded.path(), "libcnrt.so.6", "int something_of_its_own;");
    let variables = [("LD_PRELOAD", other.to_str().expect("text")), ("ICCL_LOG", "warn")];
    let ran = run_to_end(&mut CAMBRICON.plugins(Some(used.path()), &variables));
    assert_eq!(ran.json()["plugins"][0]["state"], "active", "{}", ran.all());
    let told = "this process had loaded another version of a library before";
    assert!(ran.all().contains(told), "{}", ran.all());
    assert!(ran.all().contains(&format!("loaded={}", other.display())), "{}", ran.all());
}

#[test]
fn what_the_process_has_loaded_already_is_used() {
    let folder = CAMBRICON.libraries(ALL);
    let path = |name| folder.path().join(name).display().to_string();
    let loaded = format!("{}:{}", path("libcnrt.so"), path("libcndrv.so"));
    let variables = [("LD_PRELOAD", loaded.as_str()), ("ICCL_LOG", "info")];
    let ran = run_to_end(&mut CAMBRICON.plugins(None, &variables));
    assert_eq!(ran.json()["plugins"][0]["state"], "active", "{}", ran.all());
    assert!(ran.all().contains(&format!("path={}", path("libcnrt.so"))), "{}", ran.all());
}
