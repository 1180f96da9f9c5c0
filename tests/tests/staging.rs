//! Communicators on cards whose memory the host cannot read: simulated NVIDIA cards, whose copies land late.
//! Every combination of what can be called is in `matrix.rs` and `soak.rs`; here is what those do not see.

use std::ffi::{CString, c_char, c_int, c_void};
use std::time::{Duration, Instant};

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::ErrorKind;
use iccl_runtime::comm::{Communicator, Reduction, Scalar};
use iccl_runtime::plan::{Access, Tier};
use iccl_tests::processes::Launch;
use iccl_tests::ranks::{Job, SOON, must_be_right, sum};
use iccl_tests::sim_cards;
use libloading::{Library, Symbol};

// Linked in, so that no folder is needed.
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

const RANK: &str = env!("CARGO_BIN_EXE_iccl-test-rank");
const I32: DataType = DataType::I32;

// --- Ranks that are threads --------------------------------------------------------------------------

#[test]
fn an_all_reduce_on_two_cards() {
    for transport in ["shm", "tcp"] {
        let job = sim_cards::nvidia(Job::new(2).with("transport.enabled", transport));
        job.run(|communicator| {
            assert_eq!(communicator.device().plugin(), "nvidia");
            must_be_right(communicator);
            let sums = sum(communicator, communicator.rank() as i32 + 1, 1_000_000);
            assert_eq!(sums.expect("sums"), vec![3; 1_000_000]);
            let counts = communicator.counters().staging();
            assert!(counts.copies_to_host > 0 && counts.copies_to_card > 0, "{counts:?}");
            let peer = 1 - communicator.rank();
            let way = communicator.plan().link(communicator.rank(), peer).expect("a link").chosen;
            assert_eq!((way.src, way.dst), (Access::Staged, Access::Staged));
            assert_eq!(way.tier, if transport == "shm" { Tier::Shm } else { Tier::Tcp });
        });
    }
}

/// Messages around the length of a block of pinned memory, with as little of it as there can be.
#[test]
fn b033_lengths_around_blocks_with_pinned_memory_for_one_message() {
    let job = sim_cards::nvidia(Job::new(3))
        .with("engine.chunk_bytes", "4KiB")
        .with("engine.staging_bytes", "0B");
    job.run(|communicator| {
        let device = communicator.device();
        let stream = communicator.stream();
        for bytes in [1, 4095, 4096, 4097, 8191, 12_288, 12_289, 65_537] {
            for shift in [0, 1, 3] {
                let own: Vec<u8> =
                    (0..bytes).map(|at| (at % 83) as u8 + communicator.rank() as u8).collect();
                let untouched = vec![0xa5_u8; bytes + 2 * 64];
                let memory = device.buffer_from(&untouched).expect("memory");
                let buffer = memory.slice(64 + shift - 1, bytes as u64).expect("inside");
                buffer.write(0, &own).expect("written");
                communicator
                    .all_reduce(&buffer, &buffer, bytes as u64, DataType::U8, RedOp::Sum, stream)
                    .and_then(|handle| handle.wait())
                    .unwrap_or_else(|error| panic!("{bytes}: {error}"));
                let mut expected = untouched;
                for at in 0..bytes {
                    expected[64 + shift as usize - 1 + at] = 3 * (at % 83) as u8 + 3;
                }
                let found = memory.read::<u8>().expect("memory");
                assert!(found == expected, "{bytes} bytes, shifted by {shift}");
            }
        }
    });
}

#[test]
fn scalars_lie_on_the_card_or_in_the_host() {
    sim_cards::nvidia(Job::new(2)).run(|communicator| {
        let device = communicator.device();
        let factor = communicator.rank() as i32 + 2;
        let on_card = device.buffer_from(&[0, factor]).expect("memory");
        let on_card = on_card.slice(4, 4).expect("inside");
        // SAFETY: the buffer lives until the operation is over.
        let raw = unsafe { Scalar::in_memory(on_card.address()) };
        let buffer = device.buffer_from(&vec![5_i32; 100_000]).expect("memory");
        for scalar in [Scalar::from(factor), Scalar::in_buffer(&on_card), raw] {
            let result = device.allocate::<i32>(100_000).expect("memory");
            let reduction = Reduction::pre_mul_sum(scalar);
            communicator
                .all_reduce(&buffer, &result, 100_000, I32, reduction, communicator.stream())
                .and_then(|handle| handle.wait())
                .unwrap_or_else(|error| panic!("{error}"));
            assert!(result.read::<i32>().expect("memory").iter().all(|value| *value == 25));
        }
    });
}

// --- The simulated card --------------------------------------------------------------------------------

/// The simulated libraries as this process has them.
struct Simulator {
    driver: Library,
    runtime: Library,
}

impl Simulator {
    fn new() -> Self {
        // SAFETY: the simulator's libraries do nothing when they are opened.
        let open = |name| unsafe { Library::new(sim_cards::libraries().join(name)) };
        let library = |name| open(name).expect("a simulated library");
        Self { driver: library("libcuda.so.1"), runtime: library("libcudart.so.13") }
    }

    fn set(&self, key: &str, value: &str) {
        type Set = unsafe extern "C" fn(*const c_char, *const c_char) -> c_int;
        let (key, value) = (CString::new(key).expect("text"), CString::new(value).expect("text"));
        // SAFETY: this is the function's signature, and both texts end with a zero.
        let status = unsafe {
            let set: Symbol<'_, Set> = self.driver.get(b"iccl_sim_set").expect("a function");
            set(key.as_ptr(), value.as_ptr())
        };
        assert_eq!(status, 0);
    }

    /// Enqueues a copy of the application's on its stream, in any direction.
    fn copy(
        &self,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        communicator: &Communicator,
    ) {
        type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int, u64) -> c_int;
        type Choose = unsafe extern "C" fn(c_int) -> c_int;
        const DEFAULT_DIRECTION: c_int = 4;
        let stream = communicator.stream().raw();
        // SAFETY: these are the functions' signatures; the tests keep both sides.
        let status = unsafe {
            let choose: Symbol<'_, Choose> = self.runtime.get(b"cudaSetDevice").expect("it");
            assert_eq!(choose(communicator.device().index() as c_int), 0);
            let copy: Symbol<'_, Copy> = self.runtime.get(b"cudaMemcpyAsync").expect("it");
            copy(to, from, bytes, DEFAULT_DIRECTION, stream)
        };
        assert_eq!(status, 0);
    }
}

/// B033: what the application enqueued before a call is there for it, and what it enqueued behind the call finds
/// the result, however late everything lands.
#[test]
fn b033_a_call_takes_its_place_among_the_late_work_of_its_stream() {
    const COUNT: usize = 50_000;
    const BYTES: usize = COUNT * size_of::<i32>();
    sim_cards::nvidia(Job::new(2)).run(|communicator| {
        let simulator = Simulator::new();
        let device = communicator.device();
        let buffers: [_; 4] =
            std::array::from_fn(|_| device.allocate::<i32>(COUNT).expect("memory"));
        let [first, send, receive, last] = &buffers;
        for round in 0..5 {
            let value = round * 10 + communicator.rank() as i32;
            first.write(0, &vec![value; COUNT]).expect("written");
            simulator.set("delay_us", "20000");
            simulator.copy(send.address(), first.address(), BYTES, communicator);
            let begun = Instant::now();
            let called = communicator.all_reduce(
                send,
                receive,
                COUNT as u64,
                I32,
                RedOp::Sum,
                communicator.stream(),
            );
            let called = called.unwrap_or_else(|error| panic!("{error}"));
            assert!(begun.elapsed() < SOON);
            simulator.copy(last.address(), receive.address(), BYTES, communicator);
            communicator.stream().synchronize_for(SOON).unwrap_or_else(|error| panic!("{error}"));
            assert!(called.is_over());
            simulator.set("delay_us", "0");
            let found = last.read::<i32>().expect("memory");
            assert!(found == vec![round * 20 + 1; COUNT], "round {round}: {}", found[0]);
        }
    });
}

// --- Ranks that are processes --------------------------------------------------------------------------

/// Ranks on cards, on one host or two.
fn launch(ranks: u32, hosts: u32, arguments: &[&str]) -> Launch {
    // Before the ranks' meeting place, which is there for a minute: what is built first may take longer.
    let settings = sim_cards::settings();
    let launch = Launch::new(RANK, ranks, arguments);
    let launch =
        settings.into_iter().fold(launch, |launch, (name, value)| launch.with(name, &value));
    (0..ranks).fold(launch, |launch, rank| {
        launch.with_on(rank, "ICCL_LOCAL_RANK", &rank.to_string()).with_on(
            rank,
            "ICCL_HOST_ID",
            ["left", "right"][(rank % hosts) as usize],
        )
    })
}

#[test]
fn b036_a_rank_that_is_killed_while_memory_is_staged_is_named() {
    for round in 0..6 {
        let launch = launch(4, 1 + round % 2, &["loop"]);
        let mut ranks = launch.start_all();
        let victim = round as usize % 4;
        ranks.iter_mut().for_each(|rank| drop(rank.line("running")));
        std::thread::sleep(Duration::from_millis(u64::from(round) * 7));
        ranks[victim].signal(libc::SIGKILL);
        let killed = Instant::now();
        for (number, rank) in ranks.iter_mut().enumerate().filter(|(number, _)| *number != victim) {
            let line = rank.line("error");
            assert!(line.starts_with(&format!("peer-lost {victim} ")), "rank {number}: {line}");
            let (status, _) = rank.finish();
            assert_eq!(status.code(), Some(3));
        }
        assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
    }
}

#[test]
fn b095_an_idle_communicator_on_a_card_costs_nothing() {
    for mut rank in launch(2, 1, &["idle", "2000"]).start_all() {
        let used: u64 = rank.line("used").parse().expect("a time");
        assert!(used < 30_000, "{used} µs of processor time in 2 s");
        rank.must_succeed();
    }
}

#[test]
fn b091_calls_on_cards_leave_nothing_behind() {
    let mut ranks = launch(2, 1, &["calls", "2000"]).start_all();
    for rank in &mut ranks {
        let [early, late] = [0, 1].map(|_| {
            let line = rank.line("holds");
            let numbers = line.split(' ').map(|number| number.parse().expect("a number"));
            numbers.collect::<Vec<u64>>()
        });
        assert_eq!(early[..2], late[..2], "descriptors and threads");
        let grown = late[2].saturating_sub(early[2]);
        assert!(grown < 2 << 10, "2000 calls left {grown} KiB");
    }
    for rank in &mut ranks {
        rank.must_succeed();
    }
}

/// A copy that the card refuses, or an error that it meets by itself, ends the job by name.
#[test]
fn what_a_card_does_not_do_is_named_with_device_plugin_and_call() {
    for (fault, kind, words) in [
        ("cudaMemcpyAsync@40+=46", "device-error", "cudaMemcpyAsync"),
        ("cudaEventRecord@9+=700", "device-error", "cudaEventRecord"),
        ("cudaMemcpyAsync@50=sticky:719", "device-error", "719"),
    ] {
        let launch = launch(2, 1, &["loop"]).with_on(1, "ICCL_SIM_NVIDIA_FAULTS", fault);
        let mut ranks = launch.start_all();
        let line = ranks[1].line("error");
        assert!(line.starts_with(kind), "{fault}: {line}");
        for word in ["nvidia", words] {
            assert!(line.contains(word), "{fault}: {line}");
        }
        let told = ranks[0].line("error");
        assert_eq!(told.split(' ').nth(1), Some("1"), "{fault}: {told}");
        ranks.iter_mut().for_each(|rank| drop(rank.finish()));
    }
}

#[test]
fn errors_of_threads_are_of_the_kind_that_they_should_be() {
    let job = sim_cards::nvidia(Job::new(2).with("engine.op_timeout", "500ms"));
    let outcomes = job.run(|communicator| {
        (communicator.rank() == 0).then(|| sum(communicator, 1, 100_000).expect_err("alone"))
    });
    let error = outcomes[0].as_ref().expect("rank 0 called");
    assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::PeerLost), "{error}");
    assert_eq!(error.rank(), Some(1), "{error}");
}
