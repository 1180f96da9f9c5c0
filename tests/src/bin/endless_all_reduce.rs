//! A rank that reduces until something goes wrong, and then says what: for tests that break jobs.

use std::io::Write;
use std::time::Instant;

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::comm::Runtime;

const COUNT: usize = 10_000;

fn main() -> iccl_runtime::Result<()> {
    let runtime = Runtime::new()?;
    let communicator = runtime.world()?;
    let device = communicator.device();
    let send = device.buffer_from(&vec![1_u32; COUNT])?;
    let receive = device.allocate::<u32>(COUNT)?;
    let mut rounds = 0_u64;
    loop {
        let started = Instant::now();
        let ended = communicator
            .all_reduce(
                &send,
                &receive,
                COUNT as u64,
                DataType::U32,
                RedOp::Sum,
                communicator.stream(),
            )
            .and_then(|handle| handle.wait());
        if let Err(error) = ended {
            println!(
                "lost {:?} in round {rounds} after {} ms: {error}",
                error.rank(),
                started.elapsed().as_millis()
            );
            return Err(error);
        }
        rounds += 1;
        if rounds == 10 {
            println!("pid {}", std::process::id());
            let _ = std::io::stdout().flush();
        }
    }
}
