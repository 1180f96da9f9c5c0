//! What becomes of the plugin where something is missing or strange, on P800.

use std::path::Path;
use std::process::Command;

use iccl_tests::command::{Ran, run_to_end};
use iccl_tests::maker::small_library;
use iccl_tests::workspace;

use crate::simulator::KUNLUN;

const ALL: &[&str] = &["libxpurt.so.2", "libcudart.so", "libbkcl.so", "bkcl.h"];

fn run(folder: &Path, settings: &[String]) -> Ran {
    let mut command = KUNLUN.plugins(Some(folder), &[("ICCL_LOG", "info")]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    let ran = run_to_end(&mut command);
    assert_eq!(ran.json()["plugins"][0]["state"], "active", "{}", ran.all());
    ran
}

#[test]
fn the_makers_own_libcudart_is_used_by_its_path() {
    let folder = KUNLUN.libraries(ALL);
    let ran = run(folder.path(), &[]);
    let used = format!("path={}", folder.path().join("libcudart.so").display());
    assert!(ran.all().contains(&used), "{}", ran.all());
}

#[test]
fn without_it_libxpurt_does_alone() {
    let folder = KUNLUN.libraries(&["libxpurt.so.2", "libbkcl.so", "bkcl.h"]);
    let ran = run(folder.path(), &[]);
    assert!(ran.all().contains("no libcudart lies in"), "{}", ran.all());
    assert!(ran.all().contains("Kunlun cards are reached by libxpurt alone"), "{}", ran.all());
}

#[test]
fn a_libcudart_with_other_cards_is_not_used() {
    let folder = KUNLUN.libraries(ALL);
    let source = "
        const char *text = \"xpu\";
        int cudaGetDeviceCount(int *count) { *count = 9; return 0; }";
    let names = [
        "cudaGetDevice",
        "cudaSetDevice",
        "cudaGetErrorName",
        "cudaGetErrorString",
        "cudaGetLastError",
        "cudaDeviceGetPCIBusId",
        "cudaGetDeviceProperties",
        "cudaMalloc",
        "cudaFree",
        "cudaHostAlloc",
        "cudaFreeHost",
        "cudaPointerGetAttributes",
        "cudaMemcpyAsync",
        "cudaStreamCreateWithFlags",
        "cudaStreamDestroy",
        "cudaStreamQuery",
        "cudaStreamSynchronize",
        "cudaLaunchHostFunc",
        "cudaEventCreateWithFlags",
        "cudaEventDestroy",
        "cudaEventRecord",
        "cudaEventQuery",
    ];
    let rest = names.map(|name| format!("int {name}() {{ return 0; }}")).join("\n");
    std::fs::remove_file(folder.path().join("libcudart.so")).expect("removed");
    small_library(folder.path(), "libcudart.so", &format!("{source}\n{rest}"));
    let ran = run(folder.path(), &[]);
    let why = "libcudart has 9 cards and libxpurt 4: it is another maker's";
    assert!(ran.all().contains(why), "{}", ran.all());
}

#[test]
fn what_bkcl_needs_is_opened_from_the_folder_of_the_runtime() {
    let folder = KUNLUN.libraries(&ALL[..2]);
    let other = tempfile::tempdir().expect("a folder");
    let needed = small_library(folder.path(), "libxpuml.so.1", "int xpuml_something;");
    // By its soname, as the loader compares.
    let source = folder.path().join("libxpuml.so.1.c");
    let soname = "-Wl,-soname,libxpuml.so.1";
    iccl_tests::run(
        Command::new("cc").args(["-shared", "-fPIC", soname, "-o"]).args([&needed, &source]),
    );
    let source = other.path().join("bkcl.c");
    std::fs::write(&source, "extern int xpuml_something; int f(void) { return xpuml_something; }")
        .expect("written");
    let bkcl = other.path().join("libbkcl.so");
    iccl_tests::run(
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&bkcl, &source, &needed]),
    );
    let both = format!("{}:{}", folder.path().display(), other.path().display());
    let ran = run(Path::new(&both), &[]);
    let opened = format!("opens what BKCL needs path={}", needed.display());
    assert!(ran.all().contains(&opened), "{}", ran.all());
    // It was loaded, and is only not BKCL.
    assert!(ran.all().contains("libbkcl.so: it lacks bkcl_get_unique_id"), "{}", ran.all());
}

/// A libbkcl of C++ with these functions, whose bodies do nothing.
fn strange_bkcl(folder: &Path, functions: &str) {
    let source = folder.join("bkcl.cc");
    let head = "#include <cstddef>
        typedef void *XPUStream; typedef struct BKCLContext *BKCLContext_t;
        struct BKCLUniqueId { char a[16]; }; enum BKCLDataType { A }; enum BKCLOp { B };\n";
    std::fs::write(&source, format!("{head}{functions}")).expect("written");
    let library = folder.join("libbkcl.so");
    iccl_tests::run(Command::new("g++").args(["-shared", "-fPIC", "-o"]).args([&library, &source]));
}

#[test]
fn mangled_names_that_are_not_as_expected_are_told_with_what_was_found() {
    let folder = KUNLUN.libraries(&ALL[..2]);
    strange_bkcl(
        folder.path(),
        "int bkcl_init_rank(BKCLContext_t *, int, int, BKCLUniqueId) { return 0; }
         int bkcl_send(BKCLContext_t, const void *, size_t, BKCLDataType, int, XPUStream) { return 0; }
         int bkcl_group_end() { return 0; }
         namespace other { int bkcl_group_end() { return 0; } }
         int bkcl_destroy_context(BKCLContext_t) { return 0; }",
    );
    let ran = run(folder.path(), &[]);
    let said = ran.all();
    for why in [
        "no native collectives on Kunlun cards",
        "bkcl_init_rank has other arguments than expected: \
         bkcl_init_rank(BKCLContext**, int, int, BKCLUniqueId)",
        "bkcl_send has other arguments than expected: \
         bkcl_send(BKCLContext*, void const*, unsigned long, BKCLDataType, int, void*)",
        "bkcl_group_end is there 2 times: ",
        "it lacks bkcl_get_unique_id, bkcl_init_rank, bkcl_all_reduce",
    ] {
        assert!(said.contains(why), "no {why:?}: {said}");
    }
    assert!(!said.contains("bkcl_destroy_context"), "that one is as it should be: {said}");
}

#[test]
fn a_shim_gives_functions_and_numbers() {
    let folder = KUNLUN.libraries(&ALL[..3]);
    let of_simulator = iccl_tests::sim_sdk::folder(KUNLUN.name);
    let shim = folder.path().join("libiccl_bkcl_shim.so");
    // The header's own declarations name the library's symbols: nothing may stay undefined.
    iccl_tests::run(
        Command::new("g++")
            .args(["-std=c++17", "-shared", "-fPIC", "-Wl,-z,defs", "-Wl,-rpath,$ORIGIN", "-I"])
            .arg(&of_simulator)
            .arg("-o")
            .arg(&shim)
            .arg(workspace().join("plugins/kunlun/shim/iccl_bkcl_shim.cc"))
            .arg(folder.path().join("libbkcl.so")),
    );
    let setting = format!("plugin.kunlun.bkcl_shim={}", shim.display());
    let ran = run(folder.path(), &[setting]);
    let said = ran.all();
    assert!(said.contains(&format!("takes BKCL's numbers source={}", shim.display())), "{said}");
    // All reductions were tried through it, and none was struck off.
    assert_eq!(ran.json()["plugins"][0]["notes"].to_string(), "[]", "{said}");
    let wrong = format!("plugin.kunlun.bkcl_shim={}", folder.path().join("libcudart.so").display());
    let said = run(folder.path(), &[wrong]).all();
    assert!(said.contains("it lacks bkcl_get_unique_id, "), "{said}");
}
