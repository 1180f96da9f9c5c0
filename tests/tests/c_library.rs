//! `libiccl.so` from C and C++: the examples, and what the library shows of itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::bootstrap::UniqueId;
use iccl_tests::c_library::{Sanitizer, build_c_program, library_folder};
use iccl_tests::command::{clean, iccl, run_to_end};
use iccl_tests::processes::Launch;
use iccl_tests::{plugin_folder, workspace};
use object::read::elf::{Dyn, FileHeader};
use object::{Object, ObjectSymbol};

const BOTH: [Sanitizer; 2] = [Sanitizer::Off, Sanitizer::AddressAndUndefined];

fn example(name: &str) -> PathBuf {
    workspace().join("iccl-capi/examples/c").join(name)
}

#[test]
fn the_example_in_c_runs_on_four_ranks_that_were_launched() {
    for sanitizer in BOTH {
        let program = build_c_program(&example("all_reduce.c"), sanitizer);
        let ran = run_to_end(iccl(&["run", "-n", "4", "--"]).arg(program));
        assert_eq!(ran.code(), Some(0), "{}", ran.all());
        for rank in 0..4 {
            let line = format!("rank {rank} of 4: the mean of the ranks is 1.5");
            assert!(ran.out.contains(&line), "{}", ran.all());
        }
        assert_eq!(ran.err, "", "{}", ran.all());
    }
}

#[test]
fn only_names_of_iccl_are_exported_under_the_name_that_programs_look_for() {
    let bytes = std::fs::read(library_folder().join("libiccl.so.1")).expect("the library");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let exported: Vec<&str> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .map(|symbol| symbol.name().expect("a name"))
        .collect();
    assert!(exported.contains(&"icclAllReduce"), "{exported:?}");
    let others: Vec<_> = exported.iter().filter(|name| !name.starts_with("iccl")).collect();
    assert!(others.is_empty(), "{others:?}");

    let header = object::elf::FileHeader64::<object::Endianness>::parse(&*bytes).expect("64 bits");
    let endian = header.endian().expect("an endianness");
    let sections = header.sections(endian, &*bytes).expect("sections");
    let (dynamic, strings) = sections.dynamic(endian, &*bytes).expect("read").expect("a section");
    let strings = sections.strings(endian, &*bytes, strings).expect("strings");
    let soname = dynamic
        .iter()
        .find(|one| one.tag32(endian) == Some(object::elf::DT_SONAME))
        .map(|one| one.string(endian, strings).expect("a string"));
    assert_eq!(soname, Some(&b"libiccl.so.1"[..]));
}

#[test]
fn the_example_in_cpp_runs_on_threads() {
    for sanitizer in BOTH {
        let program = build_c_program(&example("threads.cpp"), sanitizer);
        let ran = run_to_end(&mut clean(&program, plugin_folder(), &[]));
        assert_eq!(ran.code(), Some(0), "{}", ran.all());
        for rank in 0..4 {
            let line =
                format!("rank {rank}: the sum is 10, the left neighbour is {}", (rank + 3) % 4);
            assert!(ran.out.contains(&line), "{}", ran.all());
        }
    }
}

fn test_program(name: &str) -> PathBuf {
    workspace().join("tests/c").join(name)
}

/// Builds a program as it is and with sanitizers, and runs it both ways.
fn runs(source: &Path, says: &str) {
    for sanitizer in BOTH {
        let ran = run_to_end(&mut alone(&build_c_program(source, sanitizer)));
        assert_eq!(ran.code(), Some(0), "{}", ran.all());
        assert!(ran.out.lines().any(|line| line == says), "{}", ran.all());
    }
}

fn alone(program: &Path) -> Command {
    clean(program, plugin_folder(), &[])
}

#[test]
fn b051_what_a_caller_gets_wrong_is_answered() {
    runs(&test_program("misuse.c"), "all refused");
}

#[test]
fn b038_b051_communicators_are_made_and_aborted_without_blocking() {
    runs(&test_program("without_blocking.c"), "nothing blocked");
}

#[test]
fn every_call_does_what_it_says() {
    for (sanitizer, ranks) in BOTH.into_iter().zip(["3", "5"]) {
        let program = build_c_program(&test_program("every_call.c"), sanitizer);
        let ran = run_to_end(iccl(&["run", "-n", ranks, "--"]).arg(program));
        assert_eq!(ran.code(), Some(0), "{}", ran.all());
        let right = ran.out.lines().filter(|line| line.ends_with("every call was right")).count();
        assert_eq!(right.to_string(), ranks, "{}", ran.all());
        assert_eq!(ran.err, "", "{}", ran.all());
    }
}

#[test]
fn b052_a_process_may_end_without_destroying_anything() {
    let program = build_c_program(&test_program("leaves.c"), Sanitizer::Off);
    let started = Instant::now();
    let ran = run_to_end(&mut alone(&program));
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    assert!(started.elapsed() < Duration::from_secs(60), "far less than the operation's timeout");
}

#[test]
fn b060_a_forked_child_ends_and_may_begin_anew() {
    // Not with sanitizers, whose own threads do not survive a fork.
    let ran = run_to_end(&mut alone(&build_c_program(&test_program("forked.c"), Sanitizer::Off)));
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    assert!(ran.out.lines().any(|line| line == "children did no harm"), "{}", ran.all());
}

#[test]
fn b052_destructors_of_threads_and_of_the_program_may_call() {
    runs(&test_program("late.c"), "right to the end");
}

#[test]
fn survivors_go_on_without_a_rank_that_died() {
    let program = build_c_program(&test_program("survivors.c"), Sanitizer::AddressAndUndefined);
    let launch = Launch::new(&program.to_string_lossy(), 3, &[]);
    let mut ranks = launch.start_all();
    for rank in &mut ranks {
        let number = rank.rank();
        let (status, said) = rank.finish();
        if number == 1 {
            assert!(!status.success(), "rank 1 kills itself");
        } else {
            assert!(status.success(), "rank {number}: {status}\n{}", said.join("\n"));
            assert!(said.iter().any(|line| line == "2 went on"), "{said:?}");
        }
    }
}

/// What a port renames, as docs/api-c.md says it.
const RENAMED: &[(&str, &str)] = &[
    ("#include <cuda_runtime.h>", ""),
    ("nccl", "iccl"),
    ("NCCL", "ICCL"),
    ("cudaStream", "icclStream"),
    ("cudaMalloc", "icclMemAlloc"),
    ("cudaFree", "icclMemFree"),
    ("cudaError_t", "icclResult_t"),
    ("cudaSuccess", "icclSuccess"),
    ("cudaGetErrorString", "icclGetErrorString"),
];

/// What is left of CUDA where the device is the host's memory.
const HOST_MEMORY: &str = "#include <string.h>
#define cudaMemcpyHostToDevice
#define cudaMemcpyDeviceToHost
#define cudaSetDevice(device) ((void)(device), icclSuccess)
#define cudaMemcpy(to, from, bytes, way) (memcpy(to, from, bytes), icclSuccess)
";

#[test]
fn a_program_for_nccl_is_ported_by_renaming() {
    let original = std::fs::read_to_string(test_program("nccl_program.c")).expect("a program");
    let renamed = RENAMED.iter().fold(original, |text, (from, to)| text.replace(from, to));
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("ported.c");
    std::fs::write(&source, format!("{HOST_MEMORY}{renamed}")).expect("written");
    runs(&source, "Success");
    let reference = std::fs::read_to_string(workspace().join("docs/api-c.md")).expect("a page");
    for (from, to) in &RENAMED[1..] {
        assert!(reference.contains(&format!("`{from}` | `{to}`")), "{from} is not in the table");
    }
}

#[test]
fn the_numbers_of_the_header_are_those_of_the_code() {
    let mut checks = vec![format!("sizeof(icclUniqueId) == {}", UniqueId::BYTES)];
    let mut equal = |name: String, number: i64| checks.push(format!("{name} == {number}"));
    for (name, number, ..) in iccl::results() {
        equal(format!("iccl{name}"), number.into());
    }
    let dtypes = [
        (DataType::I8, "Int8"),
        (DataType::I8, "Char"),
        (DataType::U8, "Uint8"),
        (DataType::I32, "Int32"),
        (DataType::I32, "Int"),
        (DataType::U32, "Uint32"),
        (DataType::I64, "Int64"),
        (DataType::U64, "Uint64"),
        (DataType::F16, "Float16"),
        (DataType::F16, "Half"),
        (DataType::F32, "Float32"),
        (DataType::F32, "Float"),
        (DataType::F64, "Float64"),
        (DataType::F64, "Double"),
        (DataType::Bf16, "Bfloat16"),
        (DataType::F8E4M3, "Float8e4m3"),
        (DataType::F8E5M2, "Float8e5m2"),
        (DataType::I16, "Int16"),
        (DataType::U16, "Uint16"),
    ];
    for (dtype, name) in dtypes {
        equal(format!("iccl{name}"), dtype.code().into());
    }
    equal("icclNumTypes".into(), DataType::ALL.len() as i64);
    let ops = [
        (RedOp::Sum, "Sum"),
        (RedOp::Prod, "Prod"),
        (RedOp::Max, "Max"),
        (RedOp::Min, "Min"),
        (RedOp::Avg, "Avg"),
        (RedOp::BitAnd, "Band"),
        (RedOp::BitOr, "Bor"),
        (RedOp::BitXor, "Bxor"),
    ];
    for (op, name) in ops {
        equal(format!("iccl{name}"), op.code().into());
    }
    // A number alone is no pre-multiplied sum.
    equal("icclNumOps".into(), RedOp::ALL.len() as i64 - 1);
    // NCCL's own numbers, which programs may have stored.
    for (name, number) in [
        ("icclUnhandledCudaError", 1),
        ("icclSystemError", 2),
        ("icclInternalError", 3),
        ("icclInvalidArgument", 4),
        ("icclInvalidUsage", 5),
        ("icclRemoteError", 6),
        ("icclInProgress", 7),
        ("icclBfloat16", 9),
        ("icclAvg", 4),
        ("icclScalarDevice", 0),
        ("icclScalarHostImmediate", 1),
    ] {
        equal(name.to_owned(), number);
    }
    let lines: Vec<String> =
        checks.iter().map(|check| format!("_Static_assert({check}, \"{check}\");\n")).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("numbers.c");
    let program = "int main(void) { return 0; }\n";
    std::fs::write(&source, format!("#include <iccl.h>\n{}{program}", lines.concat())).expect("it");
    build_c_program(&source, Sanitizer::Off);
}
