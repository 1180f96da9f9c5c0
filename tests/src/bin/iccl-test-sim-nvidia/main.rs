//! A process that uses the simulated libraries of NVIDIA as a program would. The first argument is their
//! folder, the second what is tried; it panics if something is not as it should be.

mod nccl;
mod numbers;
mod runtime;
mod symbols;

use std::path::PathBuf;

pub(crate) use iccl_tests::maker::program::{from_hex, hear, say, to_hex};

use symbols::{Driver, Runtime};

/// What a scenario works with.
pub(crate) struct Sdk {
    folder: PathBuf,
    cuda: Runtime,
    driver: Driver,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [folder, scenario, rest @ ..] = &words[..] else { panic!("no scenario") };
    let folder = PathBuf::from(folder);
    if *scenario == "no-driver" {
        return nccl::no_driver(&folder);
    }
    let version = std::env::var("CUDART").unwrap_or_else(|_| "12".to_owned());
    let cuda = Runtime::open(&folder.join(format!("libcudart.so.{version}")));
    let driver = Driver::open(&folder.join("libcuda.so.1"));
    let sdk = Sdk { folder, cuda, driver };
    match *scenario {
        "nccl" => nccl::rank(&sdk, rest),
        "nccl-one-process" => nccl::one_process(&sdk),
        "nccl-refusals" => nccl::refusals(&sdk),
        "nccl-old" => nccl::old(&sdk),
        "devices" => runtime::devices(&sdk),
        "dereference" => runtime::dereference(&sdk),
        "copies" => runtime::copies(&sdk),
        "streams" => runtime::streams(&sdk),
        "default-stream" => runtime::default_stream(&sdk),
        "host-functions" => runtime::host_functions(&sdk),
        "values" => runtime::values(&sdk),
        "pointers" => runtime::pointers(&sdk),
        "faults" => runtime::faults(&sdk),
        "export" => runtime::export(&sdk),
        "import" => runtime::import(&sdk),
        _ => panic!("no scenario: {scenario} {rest:?}"),
    }
    say("done");
}
