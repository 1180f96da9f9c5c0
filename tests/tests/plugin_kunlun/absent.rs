//! What becomes of the plugin where something is missing, on the older cards.

use std::path::Path;

use iccl_tests::command::run_to_end;
use iccl_tests::maker::small_library;

use crate::simulator::KUNLUN;

const ALL: &[&str] = &["libxpurt.so.1", "libbkcl.so", "bkcl.h"];

#[test]
fn without_libraries_it_says_which_and_where_it_looked() {
    let folder = tempfile::tempdir().expect("a folder");
    let record = KUNLUN.record(folder.path(), &[]);
    assert_eq!(record["state"], "no-device", "{record}");
    assert_eq!(record["reason"], "library-missing", "{record}");
    let expected = format!(
        "libxpurt.so.2 or libxpurt.so.1 or libxpurt.so not found: looked {}",
        folder.path().display()
    );
    assert_eq!(record["detail"], expected, "{record}");
}

#[test]
fn without_a_card_there_is_no_device_in_the_runtimes_own_words() {
    let folder = KUNLUN.libraries(ALL);
    let variables = [("ICCL_SIM_KUNLUN_DEVICES", "0"), ("ICCL_LOG", "info")];
    let ran = run_to_end(&mut KUNLUN.plugins(Some(folder.path()), &variables));
    let record = ran.json()["plugins"][0].clone();
    assert_eq!(record["reason"], "no-device", "{record}");
    let detail = record["detail"].as_str().expect("words");
    assert!(detail.contains("xpu_device_count: XPUERR_NODEV (-703); XRE 4.33"), "{detail}");
    let line = ran.err.lines().find(|line| line.contains("plugin kunlun")).expect("a line");
    assert!(line.contains(" INFO ") && line.contains("XPUERR_NODEV"), "a normal answer: {line}");
}

#[test]
fn all_functions_that_a_library_lacks_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = "int xpu_device_count(int *count) { return *count = 1; }";
    small_library(folder.path(), "libxpurt.so.1", source);
    let ran = run_to_end(&mut KUNLUN.plugins(Some(folder.path()), &[("ICCL_LOG", "info")]));
    let record = ran.json()["plugins"][0].clone();
    assert_eq!(record["reason"], "library-missing", "{record}");
    let detail = record["detail"].as_str().expect("words");
    assert!(detail.contains("libxpurt.so.1: it lacks xpu_set_device, "), "{detail}");
    assert!(detail.ends_with(" more"), "{detail}");
    // The log has them all.
    assert!(ran.err.contains("xpu_event_wait, xpu_event_destroy"), "{}", ran.all());
}

#[test]
fn a_folder_that_is_not_there_is_a_mistake_and_no_missing_library() {
    let record = KUNLUN.record(Path::new("/no/such/folder"), &[]);
    assert_eq!(record["reason"], "probe-failed", "{record}");
    let detail = record["detail"].as_str().expect("words");
    assert!(detail.contains("library_dir: /no/such/folder is not the absolute path"), "{detail}");
}

#[test]
fn another_version_that_was_loaded_before_is_told_with_its_path() {
    let (used, loaded) = (KUNLUN.libraries(ALL), tempfile::tempdir().expect("a folder"));
    let other = small_library(loaded.path(), "libxpurt.so.2", "int something_of_its_own;");
    let variables = [("LD_PRELOAD", other.to_str().expect("text")), ("ICCL_LOG", "warn")];
    let ran = run_to_end(&mut KUNLUN.plugins(Some(used.path()), &variables));
    assert_eq!(ran.json()["plugins"][0]["state"], "active", "{}", ran.all());
    let told = "this process had loaded another version of a library before";
    assert!(ran.all().contains(told), "{}", ran.all());
    assert!(ran.all().contains(&format!("loaded={}", other.display())), "{}", ran.all());
}

#[test]
fn the_makers_variables_say_where_it_lies() {
    let xre = tempfile::tempdir().expect("a folder");
    let xccl = tempfile::tempdir().expect("a folder");
    let put = |from: &str, to: std::path::PathBuf| {
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("made");
        std::fs::copy(iccl_tests::sim_sdk::folder(KUNLUN.name).join(from), to).expect("copied");
    };
    put("libxpurt.so.1", xre.path().join("so/libxpurt.so.1"));
    // The simulated library asks its neighbour for the machine.
    put("libxpurt.so.1", xccl.path().join("so/libxpurt.so.1"));
    put("libbkcl.so", xccl.path().join("so/libbkcl.so"));
    put("bkcl.h", xccl.path().join("include/bkcl.h"));
    let [xre, xccl] = [xre, xccl].map(|folder| (folder.path().display().to_string(), folder));
    let variables =
        [("XRE_PATH", xre.0.as_str()), ("BKCL_PATH", xccl.0.as_str()), ("ICCL_LOG", "info")];
    let ran = run_to_end(&mut KUNLUN.plugins(None, &variables));
    assert_eq!(ran.json()["plugins"][0]["state"], "active", "{}", ran.all());
    for used in [
        format!("path={}/so/libxpurt.so.1", xre.0),
        format!("path={}/so/libbkcl.so", xccl.0),
        format!("source={}/so/../include/bkcl.h", xccl.0),
    ] {
        assert!(ran.all().contains(&used), "no {used}: {}", ran.all());
    }
}

/// What the plugin says of BKCL, with these files and settings. The cards are there in any case.
fn why_no_bkcl(files: &[&str], settings: &[String], variables: &[(&str, &str)]) -> String {
    let folder = KUNLUN.libraries(files);
    let variables = [variables, &[("ICCL_LOG", "info")]].concat();
    let mut command = KUNLUN.plugins(Some(folder.path()), &variables);
    for setting in settings {
        command.args(["--set", setting]);
    }
    let ran = run_to_end(&mut command);
    assert_eq!(ran.json()["plugins"][0]["state"], "active", "{}", ran.all());
    ran.all()
}

const NOT_THERE: &str = "no native collectives on Kunlun cards";

#[test]
fn bkcls_numbers_are_never_guessed() {
    let without_header = &ALL[..2];
    let said = why_no_bkcl(without_header, &[], &[]);
    assert!(said.contains(NOT_THERE), "{said}");
    assert!(said.contains("BKCL's numbers are not public, and no bkcl.h tells them"), "{said}");
    // Without the library, that is the reason.
    let said = why_no_bkcl(&ALL[..1], &[], &[]);
    assert!(said.contains(NOT_THERE) && said.contains("libbkcl.so or libbkcl.so.1 not found"));
    // A header elsewhere, or the numbers themselves, are the operator's.
    let header = iccl_tests::sim_sdk::folder(KUNLUN.name).join("bkcl.h");
    let header = format!("plugin.kunlun.bkcl_header={}", header.display());
    let said = why_no_bkcl(without_header, &[header], &[]);
    assert!(!said.contains(NOT_THERE), "{said}");
    let numbers = "BKCL_UNIQUE_ID_BYTES=192 BKCL_FLOAT=11 BKCL_ADD=5";
    let numbers = format!("plugin.kunlun.bkcl_constants={numbers}");
    let said = why_no_bkcl(without_header, &[numbers], &[]);
    assert!(said.contains("source=bkcl_constants") && !said.contains(NOT_THERE), "{said}");
    let said = why_no_bkcl(ALL, &["plugin.kunlun.bkcl_constants=BKCL_FLOAT=x".to_owned()], &[]);
    assert!(said.contains("`BKCL_FLOAT=x` is no number of BKCL's"), "{said}");
}

#[test]
fn numbers_that_are_wrong_are_found_by_the_self_test() {
    // SUM and MAX exchanged: the result is not the host's.
    let numbers = "BKCL_UNIQUE_ID_BYTES=192 BKCL_FLOAT=11 BKCL_INT32=13 BKCL_ADD=3 BKCL_MAX=5";
    let folder = KUNLUN.libraries(ALL);
    let mut command = KUNLUN.plugins(Some(folder.path()), &[]);
    command.args(["--set", &format!("plugin.kunlun.bkcl_constants={numbers}")]);
    let ran = run_to_end(&mut command);
    let record = ran.json()["plugins"][0].clone();
    let notes = record["notes"].to_string();
    assert!(notes.contains("all_reduce f32 sum (its result differs from the host's)"), "{record}");
}

#[test]
fn a_variable_for_which_bkcl_would_end_the_process_keeps_it_out() {
    let said = why_no_bkcl(ALL, &[], &[("BKCL_DEBUG", "INFO")]);
    assert!(said.contains("BKCL_DEBUG=INFO is no number, and BKCL would end"), "{said}");
    let said = why_no_bkcl(ALL, &[], &[("BKCL_DEBUG", "1")]);
    assert!(!said.contains(NOT_THERE), "{said}");
}

#[test]
fn another_makers_libcudart_beside_it_is_not_touched() {
    let folder = KUNLUN.libraries(ALL);
    let source = "int cudaGetDeviceCount(int *count) { return *count = 5; }";
    small_library(folder.path(), "libcudart.so.12", source);
    let ran = run_to_end(&mut KUNLUN.plugins(Some(folder.path()), &[("ICCL_LOG", "info")]));
    assert_eq!(ran.json()["plugins"][0]["state"], "active", "{}", ran.all());
    assert!(ran.all().contains("only another maker's libcudart lies in"), "{}", ran.all());
    let path = format!("path={}", folder.path().join("libcudart.so.12").display());
    assert!(!ran.all().contains(&path), "{}", ran.all());
}
