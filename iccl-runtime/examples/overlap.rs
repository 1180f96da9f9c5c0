//! Multiplies matrices whose inner dimension is cut among ranks, block by block: while one block of rows
//! is multiplied, the sums of the block before it are exchanged by a reduce-scatter on a stream of its own.
//! Every element is verified, and what the overlap saved is printed.
//!
//! ```text
//! cargo run --release -p iccl-runtime --example overlap [ROWS_OF_A_BLOCK]
//! ```
//!
//! The ranks are threads of this process, on host memory, where the processor does both the computing and
//! the moving: on a machine with two cores for each rank most of the communication is hidden, with fewer
//! less. With an accelerator the product would be a kernel on another stream, and `Stream::wait_for` would
//! put the reduce-scatter behind it.

use std::time::{Duration, Instant};

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::Result;
use iccl_runtime::bootstrap::UniqueId;
use iccl_runtime::comm::{Buffer, Communicator, Handle, Runtime, Stream};

// A plugin that is linked in registers itself, if something names its crate.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

const RANKS: usize = 2;
const BLOCKS: usize = 6;
/// How often each time is taken.
const REPETITIONS: usize = 3;
/// The inner dimension, and the columns of the right matrix and of the product.
const INNER: usize = 128;
const COLUMNS: usize = 256;

/// An element of the left matrix; small whole numbers, so that sums are exact in any order.
fn left(row: usize, inner: usize) -> f32 {
    ((row * 3 + inner * 5) % 7) as f32 - 3.0
}

/// An element of the right matrix.
fn right(inner: usize, column: usize) -> f32 {
    ((inner * 2 + column) % 5) as f32 - 2.0
}

/// One rank's share of the work: it holds INNER / RANKS of the inner dimension, and gets
/// `block_rows` / RANKS rows of each block of the product.
struct Share<'a> {
    communicator: &'a Communicator,
    /// Carries the communication.
    stream: Stream,
    block_rows: usize,
    /// This rank's rows of the right matrix.
    right: Vec<f32>,
    partial: Vec<f32>,
    /// Partial products on their way, two in turn.
    sends: [Buffer; 2],
    /// This rank's rows of every block.
    receives: Vec<Buffer>,
}

impl<'a> Share<'a> {
    fn new(communicator: &'a Communicator, block_rows: usize) -> Result<Self> {
        let device = communicator.device();
        let rank = communicator.rank() as usize;
        let share = INNER / RANKS;
        let right = (rank * share..(rank + 1) * share)
            .flat_map(|inner| (0..COLUMNS).map(move |column| right(inner, column)))
            .collect();
        let block = block_rows * COLUMNS;
        Ok(Self {
            communicator,
            stream: device.stream()?,
            block_rows,
            right,
            partial: vec![0.0; block],
            sends: [device.allocate::<f32>(block)?, device.allocate::<f32>(block)?],
            receives: (0..BLOCKS)
                .map(|_| device.allocate::<f32>(block / RANKS))
                .collect::<Result<_>>()?,
        })
    }

    /// Multiplies this rank's columns of a block of the left matrix with its rows of the right one.
    fn compute(&mut self, block: usize) {
        let first_inner = self.communicator.rank() as usize * (INNER / RANKS);
        for (row, out) in self.partial.chunks_exact_mut(COLUMNS).enumerate() {
            out.fill(0.0);
            for (inner, other) in self.right.chunks_exact(COLUMNS).enumerate() {
                let factor = left(block * self.block_rows + row, first_inner + inner);
                for (sum, element) in out.iter_mut().zip(other) {
                    *sum += factor * element;
                }
            }
        }
    }

    /// Starts the exchange of a block's sums; returns at once.
    fn reduce_scatter(&self, block: usize) -> Result<Handle> {
        let send = &self.sends[block % 2];
        send.write(0, &self.partial)?;
        let count = (self.block_rows / RANKS * COLUMNS) as u64;
        let receive = &self.receives[block];
        let (dtype, op) = (DataType::F32, RedOp::Sum);
        self.communicator.reduce_scatter(send, receive, count, dtype, op, &self.stream)
    }

    /// The whole product, each block's exchange beside the next block's computation.
    fn multiply(&mut self) -> Result<()> {
        let mut under_way: [Option<Handle>; 2] = [None, None];
        for block in 0..BLOCKS {
            self.compute(block);
            // Only now is the buffer needed of the block before the last.
            if let Some(before) = under_way[block % 2].take() {
                before.wait()?;
            }
            under_way[block % 2] = Some(self.reduce_scatter(block)?);
        }
        self.stream.synchronize()
    }

    /// Compares this rank's rows with the product of the whole matrices. Gives the wrong elements.
    fn wrong(&self) -> Result<usize> {
        let rows = self.block_rows / RANKS;
        let mut wrong = 0;
        for (block, receive) in self.receives.iter().enumerate() {
            let first = block * self.block_rows + self.communicator.rank() as usize * rows;
            for (at, element) in receive.read::<f32>()?.into_iter().enumerate() {
                let (row, column) = (first + at / COLUMNS, at % COLUMNS);
                let expected: f32 =
                    (0..INNER).map(|inner| left(row, inner) * right(inner, column)).sum();
                wrong += usize::from(element.to_bits() != expected.to_bits());
            }
        }
        Ok(wrong)
    }

    /// How long `work` takes the slowest rank, at best.
    fn time(&mut self, work: impl Fn(&mut Self) -> Result<()>) -> Result<Duration> {
        let mut best = Duration::MAX;
        for _ in 0..REPETITIONS {
            self.communicator.barrier(&self.stream)?.wait()?;
            let started = Instant::now();
            work(self)?;
            best = best.min(self.slowest(started.elapsed())?);
        }
        Ok(best)
    }

    fn slowest(&self, time: Duration) -> Result<Duration> {
        let nanoseconds = self.communicator.device().buffer_from(&[time.as_nanos() as u64])?;
        let (send, receive, dtype) = (&nanoseconds, &nanoseconds, DataType::U64);
        self.communicator.all_reduce(send, receive, 1, dtype, RedOp::Max, &self.stream)?.wait()?;
        Ok(Duration::from_nanos(nanoseconds.read::<u64>()?[0]))
    }
}

fn rank(runtime: &Runtime, id: &UniqueId, rank: u32, block_rows: usize) -> Result<()> {
    let communicator = runtime.communicator(id, rank, RANKS as u32)?;
    let mut share = Share::new(&communicator, block_rows)?;
    let computing = share.time(|share| {
        (0..BLOCKS).for_each(|block| share.compute(block));
        Ok(())
    })?;
    let exchanging = share
        .time(|share| (0..BLOCKS).try_for_each(|block| share.reduce_scatter(block)?.wait()))?;
    // What the overlapping products leave is verified, not what was there before.
    for receive in &share.receives {
        receive.write(0, &vec![f32::NAN; block_rows / RANKS * COLUMNS])?;
    }
    let both = share.time(Share::multiply)?;
    let wrong = share.wrong()?;
    assert_eq!(wrong, 0, "rank {rank}: {wrong} wrong elements");
    if rank == 0 {
        let [one, other, all] = [computing, exchanging, both].map(|time| time.as_secs_f64());
        let hidden = (one + other - all) / one.min(other) * 100.0;
        println!(
            "computing {computing:.1?}, exchanging {exchanging:.1?}, both {both:.1?}: {hidden:.0} % of the \
             shorter one hidden (below 0: they were in each other's way); every element is right"
        );
    }
    drop(share);
    communicator.finalize()
}

/// Runs it with blocks of so many rows.
pub(crate) fn run(block_rows: usize) -> Result<()> {
    assert!(block_rows.is_multiple_of(RANKS), "the rows of a block are cut among {RANKS} ranks");
    let runtime = Runtime::new()?;
    let id = runtime.local_unique_id()?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..RANKS as u32)
            .map(|number| {
                let (runtime, id) = (&runtime, &id);
                scope.spawn(move || rank(runtime, id, number, block_rows))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a rank panicked"))
    })
}

#[allow(dead_code)] // The tests call `run`.
fn main() -> Result<()> {
    let rows = std::env::args().nth(1).map_or(512, |rows| rows.parse().expect("a number of rows"));
    run(rows)
}
