//! A program that finds its plugins in a folder, as an operator lays them out, and is started once
//! for each rank.
//!
//! ```text
//! cargo xtask build --release
//! cargo build --release -p iccl-runtime --example plugin_folder
//! target/release/iccl run -n 4 -- target/release/examples/plugin_folder
//! ```

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::Result;
use iccl_runtime::comm::Runtime;
use iccl_runtime::config::{Config, Sources};

const COUNT: usize = 1 << 20;

fn main() -> Result<()> {
    // `iccl.toml` and `ICCL_*` decide; the program only says where its plugins lie, if nobody did.
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.ancestors().nth(2).unwrap_or(&program).join("plugins");
    let mut config = Config::load(&Sources::of_process())?;
    if config.plugins.path.is_empty() {
        config.plugins.path.push(beside);
    }
    let runtime = Runtime::with_config(config)?;
    for plugin in runtime.plugins() {
        eprintln!("{plugin}");
    }

    let communicator = runtime.world()?;
    let rank = communicator.rank();
    let device = communicator.device();
    let send = device.buffer_from(&vec![rank as f32 + 1.0; COUNT])?;
    let receive = device.allocate::<f32>(COUNT)?;
    let stream = communicator.stream();

    // Returns at once; whatever is computed here overlaps with the communication.
    let sum = communicator.all_reduce(
        &send,
        &receive,
        COUNT as u64,
        DataType::F32,
        RedOp::Sum,
        stream,
    )?;
    sum.wait()?;

    let ranks = communicator.ranks();
    let expected = (ranks * (ranks + 1) / 2) as f32;
    let received: Vec<f32> = receive.read()?;
    assert!(received.iter().all(|value| (*value - expected).abs() < f32::EPSILON));
    println!("rank {rank} of {ranks}: every element is {expected}");
    communicator.finalize()
}
