//! Cases that broke other libraries, told as they were met there, where no other test tells them so.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::ptr::null_mut;

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::comm::{Block, Communicator, Counts};
use iccl_tests::guarded::Guarded;
use iccl_tests::oracle::scramble;
use iccl_tests::processes::{Launch, Rank};
use iccl_tests::ranks::{Job, layouts, must_be_right};

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

const PROGRAM: &str = env!("CARGO_BIN_EXE_iccl-test-rank");

fn bytes_of(elements: &[i32]) -> Vec<u8> {
    elements.iter().flat_map(|one| one.to_le_bytes()).collect()
}

// --- Wrong results -----------------------------------------------------------------------------

/// Two hosts of two ranks reduce to rank 3, twice with the same buffers: send buffers stay as they are,
/// and so do the receive buffers of ranks that are no root.
#[test]
fn b022_buffers_of_ranks_that_get_nothing_stay_as_they_are() {
    for algorithm in ["direct", "owner", "binomial"] {
        let job = Job::new(4).on_hosts(&["a", "a", "b", "b"]).with("algorithm.reduce", algorithm);
        job.run(|communicator| {
            let rank = communicator.rank();
            for count in [1_usize, 1000, 100_003] {
                let contribution = |rank: u32| -> Vec<i32> {
                    (0..count as i32).map(|at| at.wrapping_mul(77) + rank as i32).collect()
                };
                let all: Vec<Vec<i32>> = (0..4).map(contribution).collect();
                let sum: Vec<i32> = (0..count)
                    .map(|at| all.iter().fold(0, |sum: i32, one| sum.wrapping_add(one[at])))
                    .collect();
                let own = bytes_of(&contribution(rank));
                let send = Guarded::holding(&own, 0);
                let receive = Guarded::new(own.len(), 0x77);
                for round in 0..2 {
                    // SAFETY: memory of `count` elements that lives until the wait is over.
                    let called = unsafe {
                        communicator.reduce_raw(
                            send.address(),
                            receive.address(),
                            count as u64,
                            DataType::I32,
                            RedOp::Sum,
                            3,
                            communicator.stream(),
                        )
                    };
                    let place = format!("{algorithm}, {count}, rank {rank}, round {round}");
                    let ended = called.and_then(|handle| handle.wait());
                    ended.unwrap_or_else(|error| panic!("{place}: {error}"));
                    assert!(send.bytes() == own, "{place}: the send buffer changed");
                    if rank == 3 {
                        assert!(receive.bytes() == bytes_of(&sum), "{place}: a wrong sum");
                    } else {
                        let untouched = receive.bytes().iter().all(|byte| *byte == 0x77);
                        assert!(untouched, "{place}: no root, and it got something");
                    }
                    send.check();
                    receive.check();
                }
            }
        });
    }
}

/// All-to-all-v in blocks of a length: `sent[a][b]` says how many blocks rank a sends to rank b. Where a
/// rank sends nothing, its buffer is null.
fn exchange(communicator: &Communicator, sent: &[&[u64]], length: usize) {
    let (rank, ranks) = (communicator.rank() as usize, communicator.ranks() as usize);
    let value = |from: usize, to: usize| (from * 16 + to + 1) as u8;
    let to: Vec<u64> = (0..ranks).map(|peer| sent[rank][peer] * length as u64).collect();
    let from: Vec<u64> = (0..ranks).map(|peer| sent[peer][rank] * length as u64).collect();
    let content = |counts: &[u64], value: &dyn Fn(usize) -> u8| -> Vec<u8> {
        let blocks = counts.iter().enumerate();
        blocks.flat_map(|(peer, count)| vec![value(peer); *count as usize]).collect()
    };
    let send = Guarded::holding(&content(&to, &|peer| value(rank, peer)), 0);
    let expected = content(&from, &|peer| value(peer, rank));
    let receive = Guarded::new(expected.len(), 0);
    let source = if send.bytes().is_empty() { null_mut() } else { send.address() };
    let target = if expected.is_empty() { null_mut() } else { receive.address() };
    let blocks: [Vec<Block>; 2] = [Counts::packed(&to), Counts::packed(&from)];
    // SAFETY: memory as long as the blocks say, which lives until the wait is over.
    let called = unsafe {
        let stream = communicator.stream();
        communicator.all_to_all_v_raw(source, &blocks[0], target, &blocks[1], DataType::U8, stream)
    };
    let ended = called.and_then(|handle| handle.wait());
    ended.unwrap_or_else(|error| panic!("rank {rank}, blocks of {length}: {error}"));
    assert!(receive.bytes() == expected, "rank {rank}, blocks of {length}: {sent:?}");
    receive.check();
}

#[test]
fn b018_zero_blocks_as_they_hung_elsewhere() {
    for (_, job) in layouts(2) {
        job.run(|communicator| {
            for length in [4, 7_077_888] {
                // Rank 0 keeps one and sends one; rank 1 sends nothing, from nowhere.
                exchange(communicator, &[&[1, 1], &[0, 0]], length);
                exchange(communicator, &[&[0, 0], &[1, 0]], length);
            }
            exchange(communicator, &[&[0, 0], &[0, 0]], 4);
            must_be_right(communicator);
        });
    }
    // One of four has nothing to do at all.
    for (_, job) in layouts(4) {
        job.run(|communicator| {
            let idle: [&[u64]; 4] = [&[1, 2, 0, 1], &[0, 1, 0, 3], &[0; 4], &[2, 0, 0, 0]];
            exchange(communicator, &idle, 1000);
            must_be_right(communicator);
        });
    }
}

/// Several threads reduce at once, each on a communicator of its own.
#[test]
fn b062_long_vectors_on_several_threads() {
    for threads in [1_u32, 2, 4] {
        for (layout, job) in layouts(2) {
            let ids: Vec<_> = (0..threads).map(|_| job.unique_id()).collect();
            job.each(|rank| {
                std::thread::scope(|scope| {
                    for (thread, id) in (0_u64..).zip(&ids) {
                        let job = &job;
                        scope.spawn(move || {
                            let runtime = job.runtime(rank).expect("a runtime");
                            let communicator = runtime.communicator(id, rank, 2).expect("a rank");
                            for count in [1, 409_600, 409_601] {
                                must_add(&communicator, thread, count, layout);
                            }
                        });
                    }
                });
            });
        }
    }
}

fn must_add(communicator: &Communicator, thread: u64, count: usize, what: &str) {
    let value =
        |rank: u32, at: usize| scramble(thread << 32 ^ u64::from(rank) << 40 ^ at as u64) as u32;
    let own: Vec<u32> = (0..count).map(|at| value(communicator.rank(), at)).collect();
    let device = communicator.device();
    let send = device.buffer_from(&own).expect("memory");
    let receive = device.allocate::<u32>(count).expect("memory");
    let (elements, stream) = (count as u64, communicator.stream());
    let called =
        communicator.all_reduce(&send, &receive, elements, DataType::U32, RedOp::Sum, stream);
    called.and_then(|handle| handle.wait()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let sums: Vec<u32> = receive.read().expect("the result");
    let right = (0..count).all(|at| sums[at] == value(0, at).wrapping_add(value(1, at)));
    assert!(right, "{what}: thread {thread}, {count} elements");
}

// --- Hangs -------------------------------------------------------------------------------------

/// One rank of three lacks descriptors, later and later in its initialisation: whatever step fails, all
/// ranks end, with an error or with the work done.
#[test]
fn b037_whatever_step_of_initialisation_fails_on_one_rank_all_ranks_end() {
    let mut failed = 0;
    for limit in 4..=24 {
        let text = format!("[ $ICCL_RANK = 1 ] && ulimit -n {limit}; exec \"$0\" \"$@\"");
        let arguments = ["-c", &text, PROGRAM, "rounds", "5", "100"];
        let launch = Launch::new("/bin/sh", 3, &arguments)
            .with("ICCL_INIT_TIMEOUT", "2s")
            .with("ICCL_OP_TIMEOUT", "5s");
        let mut ranks = launch.start_all();
        let said: Vec<_> = ranks.iter_mut().map(Rank::finish).collect();
        if said.iter().all(|(status, _)| status.success()) {
            continue;
        }
        failed += 1;
        for (rank, (status, lines)) in said.iter().enumerate() {
            // With so few descriptors that the program cannot even be loaded, a shell or a loader
            // speaks for it.
            let could_speak = rank != 1 || limit > 5;
            let error = lines.iter().any(|line| line.starts_with("error "));
            let done = lines.iter().any(|line| line == "done");
            assert!(
                !could_speak || (status.code() == Some(3) && error) || (status.success() && done),
                "rank {rank} with {limit} descriptors on rank 1: {status}: {lines:#?}"
            );
        }
    }
    assert!(failed > 2, "nothing failed, so nothing was tested");
}

/// The ports on which a process listens.
fn listening(process: i32) -> Vec<SocketAddr> {
    let links = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let sockets: Vec<String> = links
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter_map(|link| {
            Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let table = std::fs::read_to_string(format!("/proc/{process}/net/tcp")).unwrap_or_default();
    let ours = table.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let listens = words.get(3) == Some(&"0A")
            && sockets.iter().any(|one| words.get(9) == Some(&one.as_str()));
        let (address, port) = words.get(1).filter(|_| listens)?.split_once(':')?;
        let address = u32::from_str_radix(address, 16).ok()?.to_le_bytes();
        Some(SocketAddr::from((address, u16::from_str_radix(port, 16).ok()?)))
    });
    ours.collect()
}

/// A scrape, silence after a byte, a reset, nonsense and many idle connections, at every port on which
/// the ranks of a running job listen: it goes on, others can be made out of it, and it does not grow.
#[test]
fn b040_strangers_at_a_running_job_change_nothing() {
    let launch = Launch::new(PROGRAM, 2, &["strangers"])
        .with("ICCL_TRANSPORT_ENABLED", "tcp")
        .with("ICCL_HANDSHAKE_TIMEOUT", "1s");
    let mut ranks = launch.start_all();
    for rank in &mut ranks {
        rank.line("running");
    }
    let ports: Vec<SocketAddr> = ranks.iter().flat_map(|rank| listening(rank.process())).collect();
    assert!(ports.len() >= 2, "each rank of a job over TCP listens for the other: {ports:?}");
    let mut kept = Vec::new();
    for port in &ports {
        for words in [&b"GET /metrics HTTP/1.1\r\n\r\n"[..], b"x", &[0xff; 8]] {
            let mut stranger = TcpStream::connect(port).expect("a port that listens");
            let _ = stranger.write_all(words);
            kept.push(stranger);
        }
        // One that is gone at once, and many that say nothing.
        drop(TcpStream::connect(port));
        kept.extend((0..50).filter_map(|_| TcpStream::connect(port).ok()));
    }
    assert!(kept.len() > 50);
    for rank in &mut ranks {
        let line = rank.line("grown");
        let grown: u64 = line.parse().expect("a number of KiB");
        assert!(grown < 10 << 10, "rank {} grew by {grown} KiB", rank.rank());
        rank.line("done");
        rank.must_succeed();
    }
    drop(kept);
}
