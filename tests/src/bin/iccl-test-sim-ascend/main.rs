//! A process that uses the simulated libraries of Ascend as a program would. The first argument is their
//! folder, the second what is tried; it panics if something is not as it should be.

// A macro calls functions of C, which is all that this program does.
#![allow(clippy::macro_metavars_in_unsafe)]

mod hccl;
mod runtime;
mod symbols;

use std::io::Write as _;
use std::path::PathBuf;

use symbols::{Acl, open};

/// What a scenario works with.
pub(crate) struct Sdk {
    folder: PathBuf,
    acl: Acl,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [folder, scenario, rest @ ..] = &words[..] else { panic!("no scenario") };
    let folder = PathBuf::from(folder);
    let library = open(&folder.join("libascendcl.so"));
    // SAFETY: the prototypes are those of the header.
    let acl = unsafe { Acl::resolve(&library) }.expect("all functions");
    let sdk = Sdk { folder, acl };
    match *scenario {
        "begin" => runtime::begin(&sdk),
        "dereference" => runtime::dereference(&sdk),
        "memory" => runtime::memory(&sdk),
        "copies" => runtime::copies(&sdk),
        "streams" => runtime::streams(&sdk),
        "threads" => runtime::threads(&sdk),
        "reports" => runtime::reports(&sdk),
        "abort" => runtime::abort(&sdk),
        "rank" => hccl::rank(&sdk, rest),
        "hccl-one-process" => hccl::one_process(&sdk),
        _ => panic!("no scenario: {scenario} {rest:?}"),
    }
    say("done");
}

/// Prints a line at once.
pub(crate) fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    let _ = writeln!(output, "{line}");
    let _ = output.flush();
}

/// Calls a function of C.
#[macro_export]
macro_rules! c {
    ($table:expr, $name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the scenarios pass what the prototypes ask for.
        unsafe { ($table.$name)($($argument),*) }
    };
}

/// Calls, and asserts the status.
#[macro_export]
macro_rules! answers {
    ($status:expr, $table:expr, $name:ident($($argument:expr),* $(,)?)) => {
        assert_eq!($crate::c!($table, $name($($argument),*)), $status, stringify!($name))
    };
}
