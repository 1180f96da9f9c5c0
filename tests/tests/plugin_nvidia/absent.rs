//! What becomes of the plugin where something is missing.

use std::path::Path;

use iccl_tests::command::run_to_end;
use iccl_tests::maker::small_library;

use crate::simulator::NVIDIA;

const ALL: &[&str] = &["libcuda.so.1", "libcudart.so.12", "libcudart.so.13", "libnccl.so.2"];

#[test]
fn without_libraries_it_says_which_and_where_it_looked() {
    let folder = tempfile::tempdir().expect("a folder");
    let record = NVIDIA.record(folder.path(), &[]);
    assert_eq!(record["state"], "no-device", "{record}");
    assert_eq!(record["reason"], "library-missing", "{record}");
    let looked = folder.path().display();
    let expected = format!("libcudart.so.13 or libcudart.so.12 not found: looked {looked}");
    assert_eq!(record["detail"], expected, "{record}");
}

#[test]
fn without_driver_there_is_no_device_in_nvidias_own_words() {
    let folder = NVIDIA.libraries(&["libcudart.so.12", "libcudart.so.13"]);
    let record = NVIDIA.record(folder.path(), &[]);
    assert_eq!(record["reason"], "no-device", "{record}");
    let detail = record["detail"].as_str().expect("words");
    assert!(detail.contains("cudaGetDeviceCount: CUDA driver version is insufficient"), "{detail}");
    assert!(detail.contains("cudaErrorInsufficientDriver, 35"), "{detail}");
    assert!(detail.contains("no driver"), "{detail}");
}

#[test]
fn without_a_card_there_is_no_device_in_nvidias_own_words() {
    let folder = NVIDIA.libraries(ALL);
    let record = NVIDIA.record(folder.path(), &[("ICCL_SIM_NVIDIA_DEVICES", "0")]);
    assert_eq!(record["reason"], "no-device", "{record}");
    let detail = record["detail"].as_str().expect("words");
    assert!(detail.contains("cudaErrorNoDevice, 100"), "{detail}");
}

#[test]
fn a_driver_too_old_for_the_newest_runtime_does_for_the_one_before() {
    let folder = NVIDIA.libraries(ALL);
    let variables = [("ICCL_SIM_NVIDIA_DRIVER_VERSION", "12020"), ("ICCL_LOG", "info")];
    let ran = run_to_end(&mut NVIDIA.plugins(Some(folder.path()), &variables));
    assert_eq!(ran.json()["plugins"][0]["state"], "active", "{}", ran.all());
    assert!(ran.all().contains("a driver for CUDA 12.2"), "{}", ran.all());
    let used = format!("path={}", folder.path().join("libcudart.so.12").display());
    assert!(ran.all().contains(&used), "{}", ran.all());
}

#[test]
fn all_functions_that_a_library_lacks_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = "int cudaGetDeviceCount(int *count) { return *count = 1; }";
    small_library(folder.path(), "libcudart.so.12", source);
    let ran = run_to_end(&mut NVIDIA.plugins(Some(folder.path()), &[("ICCL_LOG", "info")]));
    let record = ran.json()["plugins"][0].clone();
    assert_eq!(record["reason"], "library-missing", "{record}");
    let detail = record["detail"].as_str().expect("words");
    assert!(detail.contains("libcudart.so.12: it lacks cudaGetDevice, "), "{detail}");
    assert!(detail.ends_with(" more"), "{detail}");
    assert!(!detail.contains("cudaGetDeviceCount"), "{detail}");
    // The log has them all.
    assert!(ran.err.contains("cudaLaunchHostFunc, cudaEventCreateWithFlags, "), "{}", ran.all());
}

#[test]
fn a_folder_that_is_not_there_is_a_mistake_and_no_missing_library() {
    let record = NVIDIA.record(Path::new("/no/such/folder"), &[]);
    assert_eq!(record["reason"], "probe-failed", "{record}");
    let detail = record["detail"].as_str().expect("words");
    assert!(detail.contains("library_dir: /no/such/folder is not the absolute path"), "{detail}");
}

#[test]
fn another_version_that_was_loaded_before_is_told_with_its_path() {
    let (used, loaded) = (NVIDIA.libraries(ALL), tempfile::tempdir().expect("a folder"));
    let other = small_library(loaded.path(), "libcudart.so.12", "int something_of_its_own;");
    let variables = [("LD_PRELOAD", other.to_str().expect("text")), ("ICCL_LOG", "warn")];
    let ran = run_to_end(&mut NVIDIA.plugins(Some(used.path()), &variables));
    assert_eq!(ran.json()["plugins"][0]["state"], "active", "{}", ran.all());
    assert!(
        ran.all().contains("this process had loaded another version of a library before"),
        "{}",
        ran.all()
    );
    assert!(ran.all().contains(&format!("loaded={}", other.display())), "{}", ran.all());
}

#[test]
fn what_the_process_has_loaded_already_is_used() {
    let folder = NVIDIA.libraries(ALL);
    let path = |name| folder.path().join(name).display().to_string();
    let loaded = format!("{}:{}", path("libcudart.so.12"), path("libcuda.so.1"));
    let variables = [("LD_PRELOAD", loaded.as_str()), ("ICCL_LOG", "info")];
    let ran = run_to_end(&mut NVIDIA.plugins(None, &variables));
    assert_eq!(ran.json()["plugins"][0]["state"], "active", "{}", ran.all());
    assert!(ran.all().contains(&format!("path={}", path("libcudart.so.12"))), "{}", ran.all());
}
