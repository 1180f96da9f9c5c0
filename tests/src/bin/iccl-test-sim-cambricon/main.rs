//! A process that uses the simulated libraries of Cambricon as a program would. The first argument is
//! their folder, the second what is tried; it panics if something is not as it should be.

mod cncl;
mod runtime;
mod symbols;

use std::path::PathBuf;

use iccl_tests::maker::program::say;

use symbols::{Driver, Runtime};

/// What a scenario works with.
pub(crate) struct Sdk {
    folder: PathBuf,
    runtime: Runtime,
    driver: Driver,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [folder, scenario, rest @ ..] = &words[..] else { panic!("no scenario") };
    let folder = PathBuf::from(folder);
    let runtime = Runtime::open(&folder.join("libcnrt.so"));
    let driver = Driver::open(&folder.join("libcndrv.so"));
    let sdk = Sdk { folder, runtime, driver };
    match *scenario {
        "cncl" => cncl::rank(&sdk, rest),
        "cncl-one-process" => cncl::one_process(&sdk),
        "cncl-refusals" => cncl::refusals(&sdk),
        "devices" => runtime::devices(&sdk),
        "dereference" => runtime::dereference(&sdk),
        "copies" => runtime::copies(&sdk),
        "queues" => runtime::queues(&sdk),
        "host-functions" => runtime::host_functions(&sdk),
        "pointers" => runtime::pointers(&sdk),
        "forked" => runtime::forked(&sdk),
        "export" => runtime::export(&sdk),
        "import" => runtime::import(&sdk),
        _ => panic!("no scenario: {scenario} {rest:?}"),
    }
    say("done");
}
