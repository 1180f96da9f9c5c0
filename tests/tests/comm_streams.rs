//! Every operation returns at once and takes place in the order of its stream: a stream is held, and each
//! call there is returns, with nothing written, until the stream goes on. Ranks are threads of this
//! process.

use std::sync::Arc;
use std::time::Duration;

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::comm::{Block, Buffer, Communicator, Group, Handle, Hold, Stream};
use iccl_runtime::{ErrorKind, Result};
use iccl_tests::ranks::{Job, Meeting, SOON, layouts, must_be_right, wait_until};

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

const I32: DataType = DataType::I32;
const SUM: RedOp = RedOp::Sum;
/// What no result has.
const UNTOUCHED: i32 = -77;

/// Element `at` of the block that `from` has for `to`.
fn element(from: u32, to: u32, at: u64) -> i32 {
    (from * 1000 + to * 100) as i32 + (at % 97) as i32
}

fn block(from: u32, to: u32, count: u64) -> Vec<i32> {
    (0..count).map(|at| element(from, to, at)).collect()
}

/// A block of each rank, or for each.
fn all(blocks: impl Fn(u32) -> Vec<i32>, ranks: u32) -> Vec<i32> {
    (0..ranks).flat_map(blocks).collect()
}

/// The sum of what all ranks have for `to`.
fn sum(to: u32, count: u64, ranks: u32) -> Vec<i32> {
    (0..count).map(|at| (0..ranks).map(|from| element(from, to, at)).sum()).collect()
}

/// Rank r's block in the vector forms has r more elements, and a gap follows.
fn uneven(count: u64, ranks: u32) -> Vec<Block> {
    let mut first = 0;
    (0..ranks)
        .map(|rank| {
            let block = Block { first, count: count + u64::from(rank) };
            first += block.count + 1;
            block
        })
        .collect()
}

/// `parts` where the blocks are, `UNTOUCHED` between them.
fn placed(blocks: &[Block], parts: impl Fn(u32) -> Vec<i32>) -> Vec<i32> {
    let end = blocks.last().expect("a block");
    let mut elements = vec![UNTOUCHED; (end.first + end.count) as usize];
    for (block, rank) in blocks.iter().zip(0..) {
        elements[block.first as usize..][..block.count as usize].copy_from_slice(&parts(rank));
    }
    elements
}

/// One call that was made: what comes of it, and where.
struct Made {
    name: &'static str,
    handle: Handle,
    receive: Option<(Buffer, Vec<i32>)>,
}

impl Made {
    fn is_untouched(&self) -> bool {
        self.receive.as_ref().is_none_or(|(buffer, _)| {
            buffer.read::<i32>().expect("memory").iter().all(|one| *one == UNTOUCHED)
        })
    }

    fn must_be_right(&self, layout: &str) {
        if let Some((buffer, expected)) = &self.receive {
            let got = buffer.read::<i32>().expect("memory");
            let wrong = got.iter().zip(expected).position(|(one, other)| one != other);
            assert_eq!(wrong, None, "{layout}: {}: element", self.name);
        }
    }
}

/// Makes calls on one stream and keeps what is to come of them.
struct Caller<'a> {
    communicator: &'a Communicator,
    stream: &'a Stream,
    made: Vec<Made>,
}

impl Caller<'_> {
    fn buffer(&self, elements: &[i32]) -> Buffer {
        self.communicator.device().buffer_from(elements).expect("memory")
    }

    /// `used` says whether this rank's receive buffer is.
    fn make(
        &mut self,
        name: &'static str,
        expected: Vec<i32>,
        used: bool,
        call: impl FnOnce(&Buffer) -> Result<Handle>,
    ) {
        let receive = self.buffer(&vec![UNTOUCHED; expected.len()]);
        let handle = call(&receive).unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected = if used { expected } else { vec![UNTOUCHED; expected.len()] };
        self.made.push(Made { name, handle, receive: Some((receive, expected)) });
    }

    /// Every call that there is, with `count` elements.
    fn make_all(&mut self, count: u64) {
        self.make_reductions(count);
        self.make_moves(count);
        self.make_uneven(count);
        self.make_messages(count);
    }

    fn make_reductions(&mut self, count: u64) {
        let (one, stream) = (self.communicator, self.stream);
        let (rank, ranks) = (one.rank(), one.ranks());
        let vector = self.buffer(&block(rank, 0, count));
        let many = self.buffer(&all(|to| block(rank, to, count), ranks));
        self.make("all_reduce", sum(0, count, ranks), true, |receive| {
            one.all_reduce(&vector, receive, count, I32, SUM, stream)
        });
        self.make("reduce", sum(0, count, ranks), rank == 1, |receive| {
            one.reduce(&vector, Some(receive), count, I32, SUM, 1, stream)
        });
        self.make("reduce_scatter", sum(rank, count, ranks), true, |receive| {
            one.reduce_scatter(&many, receive, count, I32, SUM, stream)
        });
        let blocks = uneven(count, ranks);
        let own = blocks[rank as usize].count;
        let many = self.buffer(&placed(&blocks, |to| block(rank, to, count + u64::from(to))));
        self.make("reduce_scatter_v", sum(rank, own, ranks), true, |receive| {
            one.reduce_scatter_v(&many, receive, &blocks, I32, SUM, stream)
        });
    }

    fn make_moves(&mut self, count: u64) {
        let (one, stream) = (self.communicator, self.stream);
        let (rank, ranks) = (one.rank(), one.ranks());
        let vector = self.buffer(&block(rank, 0, count));
        let many = self.buffer(&all(|to| block(rank, to, count), ranks));
        let of_all = || all(|from| block(from, 0, count), ranks);
        self.make("broadcast", block(1, 0, count), true, |receive| {
            one.broadcast(Some(&vector), receive, count, I32, 1, stream)
        });
        self.make("all_gather", of_all(), true, |receive| {
            one.all_gather(&vector, receive, count, I32, stream)
        });
        self.make("gather", of_all(), rank == 0, |receive| {
            one.gather(&vector, Some(receive), count, I32, 0, stream)
        });
        self.make("scatter", block(1, rank, count), true, |receive| {
            one.scatter(Some(&many), receive, count, I32, 1, stream)
        });
        let received = all(|from| block(from, rank, count), ranks);
        self.make("all_to_all", received, true, |receive| {
            one.all_to_all(&many, receive, count, I32, stream)
        });
        let handle = one.barrier(stream).expect("a barrier");
        self.made.push(Made { name: "barrier", handle, receive: None });
    }

    fn make_uneven(&mut self, count: u64) {
        let (one, stream) = (self.communicator, self.stream);
        let (rank, ranks) = (one.rank(), one.ranks());
        let blocks = uneven(count, ranks);
        let own = blocks[rank as usize].count;
        let vector = self.buffer(&block(rank, 0, own));
        let of_all = || placed(&blocks, |from| block(from, 0, count + u64::from(from)));
        self.make("all_gather_v", of_all(), true, |receive| {
            one.all_gather_v(&vector, receive, &blocks, I32, stream)
        });
        self.make("gather_v", of_all(), rank == 0, |receive| {
            one.gather_v(&vector, own, Some(receive), &blocks, I32, 0, stream)
        });
        let many = self.buffer(&placed(&blocks, |to| block(rank, to, count + u64::from(to))));
        self.make("scatter_v", block(1, rank, own), true, |receive| {
            one.scatter_v(Some(&many), &blocks, receive, own, I32, 1, stream)
        });
        // To each what belongs to it; from each as much as belongs to this one.
        let from_each: Vec<_> =
            (0..u64::from(ranks)).map(|at| Block { first: at * (own + 1), count: own }).collect();
        let received = placed(&from_each, |from| block(from, rank, own));
        self.make("all_to_all_v", received, true, |receive| {
            one.all_to_all_v(&many, &blocks, receive, &from_each, I32, stream)
        });
    }

    fn make_messages(&mut self, count: u64) {
        let (one, stream) = (self.communicator, self.stream);
        let (rank, ranks) = (one.rank(), one.ranks());
        let to_last = self.buffer(&block(rank, ranks - 1, count));
        match rank {
            0 => {
                let handle = one.send(&to_last, count, I32, ranks - 1, stream).expect("a send");
                self.made.push(Made { name: "send", handle, receive: None });
            }
            last if last == ranks - 1 => {
                self.make("recv", block(0, last, count), true, |receive| {
                    one.recv(receive, count, I32, 0, stream)
                });
            }
            _ => {}
        }
        let group = Group::start();
        for peer in 0..ranks {
            let send = self.buffer(&block(rank, peer, count));
            let handle = one.send(&send, count, I32, peer, stream).expect("a grouped send");
            self.made.push(Made { name: "grouped send", handle, receive: None });
            self.make("grouped recv", block(peer, rank, count), true, |receive| {
                one.recv(receive, count, I32, peer, stream)
            });
        }
        let vector = self.buffer(&block(rank, 0, count));
        self.make("grouped all_reduce", sum(0, count, ranks), true, |receive| {
            one.all_reduce(&vector, receive, count, I32, SUM, stream)
        });
        group.end().expect("a group");
    }
}

/// Lets the stream go on if the test does not come to it: a call that waits would wait for ever.
struct Watch {
    hold: Arc<std::sync::Mutex<Option<Hold>>>,
    ended: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Watch {
    fn new(hold: Hold) -> Self {
        let hold = Arc::new(std::sync::Mutex::new(Some(hold)));
        let (ended, end) = std::sync::mpsc::channel::<()>();
        let watched = Arc::clone(&hold);
        let thread = std::thread::spawn(move || {
            let _ = end.recv_timeout(SOON);
            drop(watched.lock().expect("a hold").take());
        });
        Self { hold, ended, thread }
    }

    fn release(self) {
        let hold = self.hold.lock().expect("a hold").take();
        assert!(hold.is_some(), "a call did not return within {SOON:?}");
        drop(hold);
        drop(self.ended);
        self.thread.join().expect("a thread");
    }
}

#[test]
fn every_call_returns_while_its_stream_is_held() {
    for (layout, job) in layouts(3) {
        let all_called = Meeting::new(3);
        job.run(|communicator| {
            let device = communicator.device();
            for (round, count) in [1, 20_000, 5, 3000].into_iter().enumerate() {
                let stream = device.stream().expect("a stream");
                // One rank goes ahead; in the last round none does.
                let is_held = communicator.rank() as usize != round;
                let watch = is_held.then(|| Watch::new(stream.hold().expect("a hold")));
                let mut caller = Caller { communicator, stream: &stream, made: Vec::new() };
                caller.make_all(count);
                let made = caller.made;
                all_called.wait();
                if let Some(watch) = watch {
                    let last = made.last().expect("calls");
                    for one in [&made[0], last] {
                        let error = one.handle.wait_for(Duration::from_millis(20));
                        let error = error.expect_err("the stream is held");
                        assert_eq!(error.kind(), ErrorKind::Timeout, "{}: {error}", one.name);
                    }
                    for one in &made {
                        let name = one.name;
                        assert!(!one.handle.is_over(), "{layout}: {name} did not wait");
                        assert!(one.handle.outcome().is_none(), "{layout}: {name}");
                        assert!(one.is_untouched(), "{layout}: {name} was early");
                    }
                    assert!(!stream.is_done().expect("a stream"));
                    let error = stream.synchronize_for(Duration::from_millis(20));
                    assert_eq!(error.expect_err("held").kind(), ErrorKind::Timeout);
                    watch.release();
                }
                for (at, one) in made.iter().enumerate() {
                    // Waited for with a deadline, polled, or left to the stream.
                    let ended = match at % 3 {
                        0 => one.handle.wait_for(SOON),
                        1 => {
                            wait_until(one.name, || one.handle.is_over());
                            one.handle.outcome().expect("it is over")
                        }
                        _ => Ok(()),
                    };
                    ended.unwrap_or_else(|error| panic!("{layout}: {}: {error}", one.name));
                }
                stream.synchronize().unwrap_or_else(|error| panic!("{layout}: {error}"));
                made.iter().for_each(|one| one.must_be_right(layout));
            }
        });
    }
}

#[test]
fn handles_are_dropped_while_the_stream_is_held() {
    for (layout, job) in layouts(2) {
        job.run(|communicator| {
            let stream = communicator.device().stream().expect("a stream");
            let watch = Watch::new(stream.hold().expect("a hold"));
            let mut caller = Caller { communicator, stream: &stream, made: Vec::new() };
            caller.make_all(1000);
            let results: Vec<_> = caller
                .made
                .into_iter()
                .filter_map(|made| {
                    drop(made.handle);
                    made.receive
                })
                .collect();
            watch.release();
            stream.synchronize().unwrap_or_else(|error| panic!("{layout}: {error}"));
            for (buffer, expected) in results {
                assert_eq!(buffer.read::<i32>().expect("memory"), expected, "{layout}");
            }
        });
    }
}

#[test]
fn b102_handles_buffers_and_streams_go_before_the_operations_are_over() {
    for (layout, job) in layouts(2) {
        for order in 0..4 {
            job.run(|communicator| {
                let device = communicator.device();
                let stream = device.stream().expect("a stream");
                let hold = stream.hold().expect("a hold");
                let mut caller = Caller { communicator, stream: &stream, made: Vec::new() };
                caller.make_all(2000);
                let mut made = caller.made;
                if order % 2 == 0 {
                    made.reverse();
                }
                // Only one result is kept, so that there is something to look at.
                let kept = made.iter().position(|one| one.name == "all_reduce").expect("a call");
                let kept = made.swap_remove(kept);
                for one in made {
                    let Made { handle, receive, .. } = one;
                    if order < 2 {
                        drop(handle);
                        drop(receive);
                    } else {
                        drop(receive);
                        drop(handle);
                    }
                }
                let memory: Vec<_> = (0..50).map(|_| device.allocate::<i32>(2000)).collect();
                hold.release();
                drop(stream);
                kept.handle.wait().unwrap_or_else(|error| panic!("{layout}: {error}"));
                kept.must_be_right(layout);
                must_be_right(communicator);
                communicator.finalize().unwrap_or_else(|error| panic!("{layout}: {error}"));
                // Memory of others is as it was.
                for buffer in memory {
                    let buffer = buffer.expect("memory").read::<i32>().expect("memory");
                    assert_eq!(buffer, vec![0; 2000], "{layout}");
                }
            });
        }
    }
}

#[test]
fn b102_a_communicator_goes_while_its_operations_are_held() {
    for (layout, job) in layouts(2) {
        let job = job.with("engine.op_timeout", "1s");
        let id = job.unique_id();
        job.each(|rank| {
            let runtime = job.runtime(rank).expect("a runtime");
            let communicator = runtime.communicator(&id, rank, 2).expect("a communicator");
            let stream = communicator.device().stream().expect("a stream");
            drop(runtime);
            let hold = stream.hold().expect("a hold");
            let mut caller =
                Caller { communicator: &communicator, stream: &stream, made: Vec::new() };
            caller.make_all(100);
            let made = caller.made;
            // Waits as long as an operation may take, then ends them.
            drop(communicator);
            for one in &made {
                let error = one.handle.wait().expect_err("the stream never came");
                assert_eq!(error.kind(), ErrorKind::Aborted, "{layout}: {}: {error}", one.name);
                assert!(one.is_untouched(), "{layout}: {}", one.name);
            }
            hold.release();
            let error = stream.synchronize_for(SOON).expect_err("they were aborted");
            assert_eq!(error.kind(), ErrorKind::Aborted, "{layout}: {error}");
            assert!(stream.is_done().expect("a stream"));
            assert!(made.iter().all(Made::is_untouched), "{layout}");
        });
    }
}

#[test]
fn holds_of_one_stream_are_passed_in_order() {
    Job::new(1).run(|communicator| {
        let stream = communicator.device().stream().expect("a stream");
        let other = communicator.device().stream().expect("a stream");
        let holds: Vec<_> = (0..3).map(|_| stream.hold().expect("a hold")).collect();
        let behind = communicator.barrier(&stream).expect("a call");
        let free = communicator.device().stream().expect("a stream");
        other.wait_for(&stream).expect("two streams");
        let mut holds = holds.into_iter().rev();
        for _ in 0..2 {
            drop(holds.next());
            assert!(!behind.is_over() && !stream.is_done().expect("a stream"));
            assert!(!other.is_done().expect("a stream"));
        }
        assert!(free.is_done().expect("a stream"), "another stream is not held");
        drop(holds.next());
        behind.wait_for(SOON).unwrap_or_else(|error| panic!("{error}"));
        for stream in [&stream, &other] {
            stream.synchronize_for(SOON).unwrap_or_else(|error| panic!("{error}"));
        }
    });
}
