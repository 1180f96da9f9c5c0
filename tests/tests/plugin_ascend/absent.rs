//! What becomes of the plugin where something is missing or of another version.

use std::path::Path;

use iccl_tests::command::run_to_end;
use iccl_tests::maker::{Maker, small_library};
use iccl_tests::sim_sdk;

use crate::application::ASCEND;

const ALL: &[&str] = &["libascendcl.so", "libhccl.so"];

/// What the log says of the plugin.
fn log(maker: &Maker, libraries: &Path, variables: &[(&str, &str)]) -> String {
    let mut all = vec![("ICCL_LOG", "info")];
    all.extend(variables);
    let ran = run_to_end(&mut maker.plugins(Some(libraries), &all));
    assert_eq!(ran.json()["plugins"][0]["state"], "active", "{}", ran.all());
    ran.all()
}

#[test]
fn without_libraries_it_says_which_and_where_it_looked() {
    let folder = tempfile::tempdir().expect("a folder");
    let record = ASCEND.record(folder.path(), &[]);
    assert_eq!(record["state"], "no-device", "{record}");
    assert_eq!(record["reason"], "library-missing", "{record}");
    let expected = format!("libascendcl.so not found: looked {}", folder.path().display());
    assert_eq!(record["detail"], expected, "{record}");
}

#[test]
fn without_a_card_there_is_no_device_in_ascends_own_words() {
    let folder = ASCEND.libraries(ALL);
    let none = [("ICCL_SIM_ASCEND_DEVICES", "0")];
    let record = ASCEND.record(folder.path(), &none);
    assert_eq!(record["reason"], "no-device", "{record}");
    let detail = record["detail"].as_str().expect("words");
    assert!(detail.contains("error 207004: EE9999: Inner Error!; aclrt"), "{detail}");
    // A runtime that does not even begin has no card either.
    let broken = [("ICCL_SIM_ASCEND_FAULTS", "aclInit@1=507899")];
    let record = ASCEND.record(folder.path(), &broken);
    assert_eq!(record["reason"], "no-device", "{record}");
    assert!(record["detail"].as_str().expect("words").starts_with("aclInit: error 507899"));
}

#[test]
fn a_runtime_that_somebody_began_before_is_used() {
    let folder = ASCEND.libraries(ALL);
    let begun = [("ICCL_SIM_ASCEND_FAULTS", "aclInit@1=100002")];
    // The simulator was not begun in truth, so its next call says that; any other answer of `aclInit`
    // would have been the end.
    let record = ASCEND.record(folder.path(), &begun);
    let detail = record["detail"].as_str().expect("words");
    assert!(detail.contains("aclrtGetVersion: error 100001"), "{detail}");
}

#[test]
fn all_functions_that_a_library_lacks_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = "int aclInit(const char *none) { return 0; }";
    small_library(folder.path(), "libascendcl.so", source);
    let ran = run_to_end(&mut ASCEND.plugins(Some(folder.path()), &[("ICCL_LOG", "info")]));
    let record = ran.json()["plugins"][0].clone();
    assert_eq!(record["reason"], "library-missing", "{record}");
    let detail = record["detail"].as_str().expect("words");
    assert!(detail.contains("libascendcl.so: it lacks aclGetRecentErrMsg, "), "{detail}");
    assert!(detail.ends_with(" more") && !detail.contains("aclInit"), "{detail}");
    // The log has them all.
    assert!(ran.err.contains("aclrtUnSubscribeReport, aclrtProcessReport"), "{}", ran.all());
}

#[test]
fn without_hccl_the_cards_are_there_all_the_same() {
    let folder = ASCEND.libraries(&["libascendcl.so"]);
    let said = log(&ASCEND, folder.path(), &[]);
    assert!(said.contains("no native collectives on Ascend cards"), "{said}");
    assert!(said.contains("libhccl.so not found"), "{said}");
}

#[test]
fn on_a_chip_that_is_not_known_there_are_no_native_collectives() {
    let folder = ASCEND.libraries(ALL);
    let said = log(&ASCEND, folder.path(), &[("ICCL_SIM_ASCEND_CHIP", "Ascend910D1")]);
    let expected = "HCCL is not used on the chip Ascend910D1, of which its support is not known";
    assert!(said.contains(expected), "{said}");
    // The 950 came after CANN 8.1.
    let old = sim_sdk::ascend_8();
    let said = log(&ASCEND, &old, &[("ICCL_SIM_ASCEND_CHIP", "Ascend950PR_958b")]);
    assert!(said.contains("HCCL is not used on 950 with ACL 1.13"), "{said}");
}

#[test]
fn communicators_may_have_a_library_of_their_own() {
    let folder = sim_sdk::ascend_with_hcomm();
    let said = log(&ASCEND, &folder, &[]);
    assert!(!said.contains("no native collectives"), "{said}");
    assert!(said.contains(&format!("path={}", folder.join("libhcomm.so").display())), "{said}");
    // Without it, what is missing is named.
    let half = tempfile::tempdir().expect("a folder");
    for library in ALL {
        std::fs::copy(folder.join(library), half.path().join(library)).expect("copied");
    }
    let said = log(&ASCEND, half.path(), &[]);
    assert!(said.contains("libhccl.so: it lacks HcclGetErrorString, HcclGetRootInfo"), "{said}");
}

#[test]
fn folders_come_from_the_variables_of_cann() {
    let home = tempfile::tempdir().expect("a folder");
    let library = home.path().join("lib64");
    std::fs::create_dir(&library).expect("made");
    for file in ALL {
        std::fs::copy(ASCEND.folder().join(file), library.join(file)).expect("copied");
    }
    let home = home.path().to_str().expect("text");
    for variable in ["ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH"] {
        let variables = [(variable, home), ("ICCL_LOG", "info")];
        let ran = run_to_end(&mut ASCEND.plugins(None, &variables));
        assert_eq!(ran.json()["plugins"][0]["state"], "active", "{}", ran.all());
        assert!(ran.all().contains(&format!("path={home}/lib64/libascendcl.so")), "{}", ran.all());
    }
}

#[test]
fn another_version_that_was_loaded_before_is_told_with_its_path() {
    let (used, loaded) = (ASCEND.libraries(ALL), tempfile::tempdir().expect("a folder"));
    let other = small_library(loaded.path(), "libascendcl.so", "int something_of_its_own;");
    let said = log(&ASCEND, used.path(), &[("LD_PRELOAD", other.to_str().expect("text"))]);
    assert!(said.contains("this process had loaded another version of a library before"), "{said}");
    assert!(said.contains(&format!("loaded={}", other.display())), "{said}");
}

#[test]
fn a_reduction_that_is_wrong_is_struck_off_and_the_rest_is_used() {
    let folder = ASCEND.libraries(ALL);
    let flawed = [("ICCL_SIM_ASCEND_FAULTS", "HcclAllReduce@*=drop-slice")];
    let record = ASCEND.record(folder.path(), &flawed);
    assert_eq!(record["state"], "active", "{record}");
    let said = record["self_test"].to_string();
    assert!(said.contains("all_reduce f32 sum"), "{record}");
    assert!(!said.contains("reduce_scatter"), "{record}");
}
