//! A program that carries its plugins inside: no folder is needed. Runs four ranks on threads of this
//! process and averages a vector.
//!
//! ```text
//! cargo run -p iccl-runtime --example static_plugins
//! ```

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::comm::Runtime;

// A plugin that is linked in registers itself, if something names its crate.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

const RANKS: u32 = 4;
const COUNT: usize = 1000;

fn rank(
    runtime: &Runtime,
    id: &iccl_runtime::bootstrap::UniqueId,
    rank: u32,
) -> iccl_runtime::Result<Vec<f32>> {
    let communicator = runtime.communicator(id, rank, RANKS)?;
    let device = communicator.device();
    let send = device.buffer_from(&vec![rank as f32; COUNT])?;
    let receive = device.allocate::<f32>(COUNT)?;
    let stream = communicator.stream();
    communicator
        .all_reduce(&send, &receive, COUNT as u64, DataType::F32, RedOp::Avg, stream)?
        .wait()?;
    communicator.finalize()?;
    receive.read()
}

fn main() -> iccl_runtime::Result<()> {
    let runtime = Runtime::new()?;
    for plugin in runtime.plugins() {
        println!("{plugin}");
    }
    let id = runtime.local_unique_id()?;
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..RANKS)
            .map(|number| {
                let (runtime, id) = (&runtime, &id);
                scope.spawn(move || rank(runtime, id, number))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    });
    for (number, result) in results.into_iter().enumerate() {
        let averages = result?;
        assert!(averages.iter().all(|value| (*value - 1.5).abs() < f32::EPSILON));
        println!("rank {number}: the mean of 0, 1, 2 and 3 is {}", averages[0]);
    }
    Ok(())
}
