//! What a blocking all-reduce of 8 bytes takes, on one rank or several threads: `call_cost RANKS CALLS`. Prints
//! the fastest batch in nanoseconds a call; under callgrind, count instructions with different CALLS.

use std::time::Instant;

use iccl_plugin_api::{DataType, RedOp};
use iccl_tests::ranks::Job;

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

const BATCH: u32 = 1000;

fn main() {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<u32>().expect("a number"));
    let ranks = numbers.next().unwrap_or(1);
    let calls = numbers.next().unwrap_or(200_000);
    let fastest = Job::new(ranks).run(|communicator| {
        let device = communicator.device();
        let send = device.buffer_from(&[1.0_f32, 2.0]).expect("a buffer");
        let receive = device.allocate::<f32>(2).expect("a buffer");
        let stream = communicator.stream();
        let mut fastest = f64::MAX;
        for _ in 0..calls.div_ceil(BATCH) {
            let begun = Instant::now();
            for _ in 0..BATCH.min(calls) {
                communicator
                    .all_reduce(&send, &receive, 2, DataType::F32, RedOp::Sum, stream)
                    .and_then(|handle| handle.wait())
                    .expect("a result");
            }
            let each = begun.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH.min(calls));
            fastest = fastest.min(each);
        }
        fastest
    });
    println!("{ranks} ranks: {:.0} ns a call", fastest[0]);
}
