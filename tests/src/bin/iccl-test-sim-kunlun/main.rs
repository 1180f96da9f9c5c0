//! A process that uses the simulated libraries of Kunlun as a program would. The first argument is their
//! folder, the second what is tried; it panics if something is not as it should be.

// A macro calls functions of C, which is all that this program does.
#![allow(clippy::macro_metavars_in_unsafe)]

mod bkcl;
mod runtime;
mod symbols;

use std::io::Write as _;
use std::path::PathBuf;

use symbols::{Word, Xpu, open};

/// What a scenario works with.
pub(crate) struct Sdk {
    folder: PathBuf,
    /// Whether these are the libraries of P800.
    is_new: bool,
    xpu: Xpu,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [folder, scenario, rest @ ..] = &words[..] else { panic!("no scenario") };
    let folder = PathBuf::from(folder);
    let is_new = folder.join("libxpurt.so.2").exists();
    let library = open(&folder.join(if is_new { "libxpurt.so.2" } else { "libxpurt.so.1" }));
    // SAFETY: the prototypes are those of the header.
    let xpu = unsafe { Xpu::resolve(&library) }.expect("all functions");
    let sdk = Sdk { folder, is_new, xpu };
    match *scenario {
        "devices" => runtime::devices(&sdk),
        "dereference" => runtime::dereference(&sdk),
        "copies" => runtime::copies(&sdk),
        "streams" => runtime::streams(&sdk),
        "k200" => runtime::k200(&sdk),
        "cuda" => runtime::cuda(&sdk),
        "register" => runtime::register(&sdk, rest),
        "rank" => bkcl::rank(&sdk, rest),
        "refusals" => bkcl::refusals(&sdk),
        "counts-in-host-memory" => bkcl::counts_in_host_memory(&sdk),
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

/// The bytes of a buffer of this process, as an address for C.
pub(crate) fn address<T>(values: &[T]) -> Word {
    values.as_ptr().expose_provenance() as Word
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
