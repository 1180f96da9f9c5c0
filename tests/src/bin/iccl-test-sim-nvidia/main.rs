//! A process that uses the simulated libraries of NVIDIA as a program would. The first argument is their
//! folder, the second what is tried; it panics if something is not as it should be.

mod nccl;
mod numbers;
mod runtime;
mod symbols;

use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;

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

/// Prints a line at once.
pub(crate) fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    let _ = writeln!(output, "{line}");
    let _ = output.flush();
}

/// The next line that the test sends.
pub(crate) fn hear() -> String {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).expect("a line");
    line.trim().to_owned()
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(crate) fn from_hex<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).expect("two digits");
    }
    bytes
}
