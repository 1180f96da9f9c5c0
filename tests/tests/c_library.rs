//! `libiccl.so` from C and C++: the examples, and what the library shows of itself.

use std::path::PathBuf;

use iccl_tests::c_library::{Sanitizer, build_c_program, library_folder};
use iccl_tests::command::{clean, iccl, run_to_end};
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
