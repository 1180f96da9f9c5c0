//! The collectives that exchange blocks, and reduce, on ranks that are threads of this process.

use std::collections::HashMap;
use std::ptr::{null, null_mut};
use std::sync::{LazyLock, Mutex};

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::comm::{Block, Buffer, Communicator, Counts, Handle, Runtime};
use iccl_runtime::config::{Config, Sources};
use iccl_runtime::{ErrorKind, Result};

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

const I64: DataType = DataType::I64;
/// What lies in buffers that nobody has written.
const CANARY: i64 = -7_777;

/// A call to be made.
type Call<'a> = &'a dyn Fn() -> Result<Handle>;

type Settings = Vec<(&'static str, String)>;

/// The runtime for some settings; equal settings share one.
fn runtime(settings: &Settings) -> Runtime {
    static KNOWN: LazyLock<Mutex<HashMap<String, Runtime>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().expect("runtimes");
    let name = format!("{settings:?}");
    known
        .entry(name)
        .or_insert_with(|| {
            let sources = Sources::default().with("engine.op_timeout", "60s");
            let sources =
                settings.iter().fold(sources, |sources, (key, value)| sources.with(*key, value));
            Runtime::with_config(Config::load(&sources).expect("settings")).expect("a runtime")
        })
        .clone()
}

/// Runs `body` on every rank; `settings` tells what a rank is told.
fn run<R: Send>(
    ranks: u32,
    settings: impl Fn(u32) -> Settings,
    body: impl Fn(&Communicator) -> R + Sync,
) -> Vec<R> {
    let runtimes: Vec<Runtime> = (0..ranks).map(|rank| runtime(&settings(rank))).collect();
    let id = runtimes[0].local_unique_id().expect("a unique id");
    std::thread::scope(|scope| {
        let (body, id) = (&body, &id);
        let threads: Vec<_> = (0..ranks)
            .zip(&runtimes)
            .map(|(rank, runtime)| {
                scope.spawn(move || {
                    let communicator = runtime.communicator(id, rank, ranks).expect("a rank");
                    let result = body(&communicator);
                    // Nobody leaves before all have seen what they were to see.
                    let _ = communicator.finalize();
                    result
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

/// Element `at` of what `rank` contributes.
fn value(rank: u32, at: u64) -> i64 {
    i64::from(rank) * 1_000_003 + at as i64 * 17 + 1
}

fn contribution(rank: u32, elements: u64) -> Vec<i64> {
    (0..elements).map(|at| value(rank, at)).collect()
}

/// The sum of all contributions, from element `first` on.
fn sums(ranks: u32, first: u64, elements: u64) -> Vec<i64> {
    (first..first + elements).map(|at| (0..ranks).map(|rank| value(rank, at)).sum()).collect()
}

fn buffer(communicator: &Communicator, elements: &[i64]) -> Buffer {
    communicator.device().buffer_from(elements).expect("memory")
}

fn elements(buffer: &Buffer, first: u64, count: u64) -> Buffer {
    buffer.slice(first * 8, count * 8).expect("inside")
}

/// Memory with a canary on both sides: `content` between them, and the buffer of it.
fn guarded(communicator: &Communicator, content: &[i64]) -> (Buffer, Buffer) {
    let all = [&[CANARY; 3][..], content, &[CANARY; 3][..]].concat();
    let all = buffer(communicator, &all);
    let inner = elements(&all, 3, content.len() as u64);
    (all, inner)
}

fn require(all: &Buffer, expected: &[i64], what: &str) {
    let expected = [&[CANARY; 3][..], expected, &[CANARY; 3][..]].concat();
    let found: Vec<i64> = all.read().expect("elements");
    assert_eq!(found, expected, "{what}");
}

/// Every collective with equal blocks, for every root, out of place and in place.
fn all_with_equal_blocks(communicator: &Communicator, count: u64, what: &str) {
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    let stream = communicator.stream();
    let own = contribution(rank, count);
    let wide = contribution(rank, count * u64::from(ranks));
    let block = |from: u32| contribution(from, count);
    let gathered: Vec<i64> = (0..ranks).flat_map(block).collect();
    let mine = u64::from(rank) * count;
    let untouched = |elements: u64| vec![CANARY; elements as usize];
    let places = |long: &[i64], short: &[i64]| {
        // `short` at this rank's place of a longer vector.
        let mut all = long.to_vec();
        all[mine as usize..(mine + count) as usize].copy_from_slice(short);
        all
    };
    let total = count * u64::from(ranks);

    // All-gather.
    let (send_all, send) = guarded(communicator, &own);
    let (receive_all, receive) = guarded(communicator, &untouched(total));
    communicator.all_gather(&send, &receive, count, I64, stream).expect(what).wait().expect(what);
    require(&receive_all, &gathered, what);
    require(&send_all, &own, what);
    let (all, whole) = guarded(communicator, &places(&untouched(total), &own));
    let send = elements(&whole, mine, count);
    communicator.all_gather(&send, &whole, count, I64, stream).expect(what).wait().expect(what);
    require(&all, &gathered, what);

    // Reduce-scatter.
    let reduced = sums(ranks, mine, count);
    let (send_all, send) = guarded(communicator, &wide);
    let (receive_all, receive) = guarded(communicator, &untouched(count));
    let sum = RedOp::Sum;
    let handle = communicator.reduce_scatter(&send, &receive, count, I64, sum, stream);
    handle.expect(what).wait().expect(what);
    require(&receive_all, &reduced, what);
    require(&send_all, &wide, what);
    let receive = elements(&send, mine, count);
    let handle = communicator.reduce_scatter(&send, &receive, count, I64, sum, stream);
    handle.expect(what).wait().expect(what);
    require(&send_all, &places(&wide, &reduced), what);

    // All-to-all.
    let exchanged: Vec<i64> =
        (0..ranks).flat_map(|from| (mine..mine + count).map(move |at| value(from, at))).collect();
    let (send_all, send) = guarded(communicator, &wide);
    let (receive_all, receive) = guarded(communicator, &untouched(total));
    communicator.all_to_all(&send, &receive, count, I64, stream).expect(what).wait().expect(what);
    require(&receive_all, &exchanged, what);
    require(&send_all, &wide, what);
    communicator.all_to_all(&send, &send, count, I64, stream).expect(what).wait().expect(what);
    require(&send_all, &exchanged, what);

    for root in 0..ranks {
        let what = &format!("{what}, root {root}");
        let is_root = rank == root;

        // Gather.
        let (send_all, send) = guarded(communicator, &own);
        let (receive_all, receive) = guarded(communicator, &untouched(total));
        let handle = communicator.gather(&send, Some(&receive), count, I64, root, stream);
        handle.expect(what).wait().expect(what);
        let expected = if is_root { gathered.clone() } else { untouched(total) };
        require(&receive_all, &expected, what);
        require(&send_all, &own, what);
        let (all, whole) = guarded(communicator, &places(&untouched(total), &own));
        let send = elements(&whole, mine, count);
        let receive = is_root.then_some(&whole);
        let handle = communicator.gather(&send, receive, count, I64, root, stream);
        handle.expect(what).wait().expect(what);
        let expected = if is_root { gathered.clone() } else { places(&untouched(total), &own) };
        require(&all, &expected, what);

        // Scatter.
        let scattered: Vec<i64> = (mine..mine + count).map(|at| value(root, at)).collect();
        let (send_all, send) = guarded(communicator, &wide);
        let (receive_all, receive) = guarded(communicator, &untouched(count));
        let handle = communicator.scatter(Some(&send), &receive, count, I64, root, stream);
        handle.expect(what).wait().expect(what);
        require(&receive_all, &scattered, what);
        require(&send_all, &wide, what);
        if is_root {
            let receive = elements(&send, mine, count);
            let handle = communicator.scatter(Some(&send), &receive, count, I64, root, stream);
            handle.expect(what).wait().expect(what);
            require(&send_all, &wide, what);
        } else {
            let handle = communicator.scatter(None, &receive, count, I64, root, stream);
            handle.expect(what).wait().expect(what);
            require(&receive_all, &scattered, what);
        }

        // Reduce, twice on the same buffers (B022).
        for _ in 0..2 {
            let (send_all, send) = guarded(communicator, &own);
            let (receive_all, receive) = guarded(communicator, &untouched(count));
            let handle = communicator.reduce(&send, Some(&receive), count, I64, sum, root, stream);
            handle.expect(what).wait().expect(what);
            let expected = if is_root { sums(ranks, 0, count) } else { untouched(count) };
            require(&receive_all, &expected, what);
            require(&send_all, &own, what);
            let receive = is_root.then_some(&send);
            let handle = communicator.reduce(&send, receive, count, I64, sum, root, stream);
            handle.expect(what).wait().expect(what);
            let expected = if is_root { sums(ranks, 0, count) } else { own.clone() };
            require(&send_all, &expected, what);
        }
    }
}

/// B008, B021, B022: one rank and several, on one host and on several, islands of one rank included.
#[test]
fn b008_b021_every_block_comes_to_its_place() {
    let hosts: [&[&str]; 6] = [
        &["a"],
        &["a", "a"],
        &["a", "a", "b"],
        &["a", "a", "b", "b"],
        &["a", "b", "c", "a"],
        &["a"; 5],
    ];
    for hosts in hosts {
        let settings = |rank: u32| vec![("bootstrap.host_id", hosts[rank as usize].to_owned())];
        run(hosts.len() as u32, settings, |communicator| {
            for count in [0, 1, 3, 1000, 40_000] {
                let what = format!("{hosts:?}, rank {}, count {count}", communicator.rank());
                all_with_equal_blocks(communicator, count, &what);
            }
        });
    }
}

/// Every algorithm can be forced, and does the same.
#[test]
fn every_algorithm_can_be_forced() {
    for (collective, algorithms) in [
        ("reduce", &["direct", "owner", "binomial"][..]),
        ("all_gather", &["direct", "ring", "bruck"][..]),
        ("reduce_scatter", &["direct", "ring"][..]),
    ] {
        for algorithm in algorithms {
            for ranks in [2, 5] {
                let settings = |_| {
                    vec![
                        ("algorithm", format!("{{ {collective} = \"{algorithm}\" }}")),
                        ("engine.chunk_bytes", "4KiB".to_owned()),
                    ]
                };
                run(ranks, settings, |communicator| {
                    for count in [3, 5000] {
                        all_with_equal_blocks(
                            communicator,
                            count,
                            &format!("{collective} {algorithm}"),
                        );
                    }
                });
            }
        }
    }
}

/// How many elements rank `from` sends to rank `to`.
fn exchanged(from: u32, to: u32) -> u64 {
    [0, 5, 1, 3000, 0, 2][((from * 3 + to * 5) % 6) as usize]
}

/// Blocks of these lengths with a gap before each, the last rank's first.
fn spread(counts: &[u64]) -> (Vec<Block>, u64) {
    let mut blocks = vec![Block::default(); counts.len()];
    let mut end = 0;
    for (block, count) in blocks.iter_mut().zip(counts).rev() {
        *block = Block { first: end + 2, count: *count };
        end += 2 + count;
    }
    (blocks, end)
}

/// A vector with canaries wherever no block is: element `at` of block `rank` is `content(rank, at)`.
fn filled(blocks: &[Block], length: u64, content: impl Fn(u32, u64) -> i64) -> Vec<i64> {
    let mut all = vec![CANARY; length as usize];
    for (rank, block) in (0..).zip(blocks) {
        for at in 0..block.count {
            all[(block.first + at) as usize] = content(rank, at);
        }
    }
    all
}

/// B018, B021.
fn all_with_counts(communicator: &Communicator) {
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    let stream = communicator.stream();
    let listed: Vec<u64> = (0..ranks).map(|to| exchanged(0, to)).collect();
    let (blocks, length) = spread(&listed);
    let own = blocks[rank as usize];
    let untouched = filled(&[], length, |_, _| 0);
    let contributions = filled(&blocks, length, value);

    // All-gather-v.
    let (send_all, send) = guarded(communicator, &contribution(rank, own.count));
    let (receive_all, receive) = guarded(communicator, &untouched);
    let wait = |handle: Result<Handle>| {
        handle.and_then(|handle| handle.wait()).expect("the operation");
    };
    wait(communicator.all_gather_v(&send, &receive, &blocks, I64, stream));
    require(&receive_all, &contributions, "all_gather_v");
    require(&send_all, &contribution(rank, own.count), "all_gather_v");
    let only_own = |from, at| if from == rank { value(from, at) } else { CANARY };
    let (all, whole) = guarded(communicator, &filled(&blocks, length, only_own));
    wait(communicator.all_gather_v(
        &elements(&whole, own.first, own.count),
        &whole,
        &blocks,
        I64,
        stream,
    ));
    require(&all, &contributions, "all_gather_v in place");

    // Reduce-scatter-v: element `at` of block b of rank r is value(r, 100 b + at).
    let part = |of: u32| move |block: u32, at: u64| value(of, 100 * u64::from(block) + at);
    let before = filled(&blocks, length, part(rank));
    let reduced = sums(ranks, 100 * u64::from(rank), own.count);
    let (send_all, send) = guarded(communicator, &before);
    let (receive_all, receive) = guarded(communicator, &vec![CANARY; own.count as usize]);
    wait(communicator.reduce_scatter_v(&send, &receive, &blocks, I64, RedOp::Sum, stream));
    require(&receive_all, &reduced, "reduce_scatter_v");
    require(&send_all, &before, "reduce_scatter_v");
    let receive = elements(&send, own.first, own.count);
    wait(communicator.reduce_scatter_v(&send, &receive, &blocks, I64, RedOp::Sum, stream));
    let mut after = before;
    after[own.first as usize..(own.first + own.count) as usize].copy_from_slice(&reduced);
    require(&send_all, &after, "reduce_scatter_v in place");

    for root in 0..ranks {
        let is_root = rank == root;
        // Gather-v.
        let (_, send) = guarded(communicator, &contribution(rank, own.count));
        let (receive_all, receive) = guarded(communicator, &untouched);
        wait(communicator.gather_v(&send, own.count, Some(&receive), &blocks, I64, root, stream));
        require(&receive_all, if is_root { &contributions } else { &untouched }, "gather_v");
        // Scatter-v.
        let (_, send) = guarded(communicator, &filled(&blocks, length, part(root)));
        let (receive_all, receive) = guarded(communicator, &vec![CANARY; own.count as usize]);
        let send = is_root.then_some(&send);
        wait(communicator.scatter_v(send, &blocks, &receive, own.count, I64, root, stream));
        let expected: Vec<i64> = (0..own.count).map(|at| part(root)(rank, at)).collect();
        require(&receive_all, &expected, "scatter_v");
    }

    // All-to-all-v.
    let sent: Vec<u64> = (0..ranks).map(|to| exchanged(rank, to)).collect();
    let received: Vec<u64> = (0..ranks).map(|from| exchanged(from, rank)).collect();
    let ((send_blocks, send_length), (blocks, length)) = (spread(&sent), spread(&received));
    let (send_all, send) = guarded(communicator, &filled(&send_blocks, send_length, part(rank)));
    let (receive_all, receive) = guarded(communicator, &filled(&[], length, value));
    wait(communicator.all_to_all_v(&send, &send_blocks, &receive, &blocks, I64, stream));
    require(
        &receive_all,
        &filled(&blocks, length, |from, at| part(from)(rank, at)),
        "all_to_all_v",
    );
    require(&send_all, &filled(&send_blocks, send_length, part(rank)), "all_to_all_v");
}

#[test]
fn b018_blocks_of_any_length_come_to_their_places() {
    for ranks in 1..=5 {
        run(
            ranks,
            |_| Vec::new(),
            |communicator| (0..2).for_each(|_| all_with_counts(communicator)),
        );
    }
}

/// Two ranks do not agree on one block. The error comes on all ranks, names both, and no buffer is
/// written whose rank has heard of it.
#[test]
fn b018_counts_that_differ_are_refused_before_a_byte_is_written() {
    type Operation = fn(&Communicator, &Buffer, &Buffer) -> Result<Handle>;
    let operations: [(&str, Operation); 4] = [
        ("all_gather_v", |communicator, send, receive| {
            let wrong = u64::from(communicator.rank() == 2);
            let blocks = Counts::packed(&[2, 2 + wrong, 2]);
            communicator.all_gather_v(send, receive, &blocks, I64, communicator.stream())
        }),
        ("gather_v", |communicator, send, receive| {
            let count = 2 + u64::from(communicator.rank() == 2);
            let blocks = Counts::packed(&[2, 2, 2]);
            let stream = communicator.stream();
            communicator.gather_v(send, count, Some(receive), &blocks, I64, 0, stream)
        }),
        ("scatter_v", |communicator, send, receive| {
            let count = 2 + u64::from(communicator.rank() == 2);
            let blocks = Counts::packed(&[2, 2, 2]);
            let stream = communicator.stream();
            communicator.scatter_v(Some(send), &blocks, receive, count, I64, 0, stream)
        }),
        ("all_to_all_v", |communicator, send, receive| {
            let wrong = u64::from(communicator.rank() == 2);
            let (sent, received) = (Counts::packed(&[2 + wrong, 2, 2]), Counts::packed(&[2, 2, 2]));
            communicator.all_to_all_v(send, &sent, receive, &received, I64, communicator.stream())
        }),
    ];
    let both = ["shm", "tcp"];
    for (transport, (name, operation)) in
        both.iter().flat_map(|transport| operations.map(|operation| (*transport, operation)))
    {
        let errors = run(
            3,
            |_| vec![("transport.enabled", transport.to_owned())],
            |communicator| {
                let (_, send) = guarded(communicator, &contribution(communicator.rank(), 8));
                let (receive_all, receive) = guarded(communicator, &[CANARY; 8]);
                let outcome =
                    operation(communicator, &send, &receive).and_then(|handle| handle.wait());
                // A rank that only sends may be through before anybody has looked at its message.
                let outcome = outcome.and_then(|()| {
                    communicator.barrier(communicator.stream()).and_then(|handle| handle.wait())
                });
                // In an all-to-all-v, ranks 1 and 2 get what they asked for: only rank 0 can see that
                // it does not get that from rank 2.
                if name != "all_to_all_v" || communicator.rank() == 0 {
                    require(&receive_all, &[CANARY; 8], name);
                }
                outcome.expect_err(name)
            },
        );
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{name}: {error}");
            let text = error.to_string();
            assert!(text.contains("rank 2"), "{name}: {text}");
            assert!(text.contains(name), "{text}");
        }
    }
}

/// Exchanges of one round carry the fingerprint, and the counts, with the payload: a rank sends each
/// other one message, empty blocks included, and no other. What has a root is gated by ⌈log₂ n⌉ messages.
#[test]
fn one_round_costs_no_extra_message() {
    run(
        4,
        |_| Vec::new(),
        |communicator| {
            let (rank, stream) = (communicator.rank(), communicator.stream());
            let sent = || {
                let peers = (0..4).filter_map(|peer| communicator.counters().peer(peer));
                peers
                    .fold((0, 0), |sum, peer| (sum.0 + peer.messages_sent, sum.1 + peer.bytes_sent))
            };
            let long = buffer(communicator, &[1; 400]);
            let short = buffer(communicator, &[1; 100]);
            let blocks = Counts::packed(&[0, 7, 100, 0]);
            // Nobody sends rank 0 anything; rank 3 gets nothing, either.
            let received = Counts::packed(&[[0; 4], [7; 4], [100; 4], [0; 4]][rank as usize]);
            let calls: [(&str, u64, u64, Call<'_>); 5] = [
                ("all_gather", 3, 300, &|| {
                    communicator.all_gather(&short, &long, 100, I64, stream)
                }),
                ("reduce_scatter", 3, 300, &|| {
                    communicator.reduce_scatter(&long, &short, 100, I64, RedOp::Sum, stream)
                }),
                ("all_to_all", 3, 300, &|| {
                    let other = buffer(communicator, &[1; 400]);
                    communicator.all_to_all(&long, &other, 100, I64, stream)
                }),
                ("all_to_all_v", 3, 107 - [0, 7, 100, 0][rank as usize], &|| {
                    let other = buffer(communicator, &[1; 400]);
                    communicator.all_to_all_v(&long, &blocks, &other, &received, I64, stream)
                }),
                ("gather", 2 + u64::from(rank != 0), if rank == 0 { 0 } else { 100 }, &|| {
                    communicator.gather(&short, Some(&long), 100, I64, 0, stream)
                }),
            ];
            for (name, messages, elements, call) in calls {
                let before = sent();
                call().and_then(|handle| handle.wait()).expect(name);
                let after = sent();
                assert_eq!(after.0 - before.0, messages, "{name} on rank {rank}: messages");
                assert_eq!(after.1 - before.1, 8 * elements, "{name} on rank {rank}: bytes");
            }
        },
    );
}

/// B019: nothing at all, in memory that is not there, for every collective; and the calls stay in step.
#[test]
fn b019_zero_counts_with_null_buffers() {
    run(
        3,
        |_| Vec::new(),
        |communicator| {
            let stream = communicator.stream();
            let none = vec![Block::default(); 3];
            let sum = RedOp::Sum;
            // SAFETY: no element is read or written.
            let calls = unsafe {
                let c = communicator;
                [
                    c.all_reduce_raw(null(), null_mut(), 0, I64, sum, stream),
                    c.reduce_raw(null(), null_mut(), 0, I64, sum, 1, stream),
                    c.broadcast_raw(null(), null_mut(), 0, I64, 1, stream),
                    c.all_gather_raw(null(), null_mut(), 0, I64, stream),
                    c.reduce_scatter_raw(null(), null_mut(), 0, I64, sum, stream),
                    c.gather_raw(null(), null_mut(), 0, I64, 1, stream),
                    c.scatter_raw(null(), null_mut(), 0, I64, 1, stream),
                    c.all_to_all_raw(null(), null_mut(), 0, I64, stream),
                    c.all_gather_v_raw(null(), null_mut(), &none, I64, stream),
                    c.reduce_scatter_v_raw(null(), null_mut(), &none, I64, sum, stream),
                    c.gather_v_raw(null(), 0, null_mut(), &none, I64, 1, stream),
                    c.scatter_v_raw(null(), &none, null_mut(), 0, I64, 1, stream),
                    c.all_to_all_v_raw(null(), &none, null_mut(), &none, I64, stream),
                ]
            };
            for call in calls {
                call.and_then(|handle| handle.wait()).expect("nothing to do");
            }
            let vector = buffer(communicator, &[i64::from(communicator.rank()); 3]);
            communicator.all_reduce(&vector, &vector, 3, I64, sum, stream).unwrap().wait().unwrap();
            assert_eq!(vector.read::<i64>().unwrap(), [3; 3]);
        },
    );
}

/// B019, B023: a buffer may be null exactly where it is not used, and the call says so at once.
#[test]
fn b023_null_is_refused_on_the_right_rank() {
    run(
        2,
        |_| Vec::new(),
        |communicator| {
            let stream = communicator.stream();
            let is_root = communicator.rank() == 1;
            let mut memory = contribution(communicator.rank(), 8);
            let (sum, there) = (RedOp::Sum, memory.as_mut_ptr().cast::<std::ffi::c_void>());
            let mut other = [0_i64; 8];
            let receive = other.as_mut_ptr().cast::<std::ffi::c_void>();
            let refused = |call: Result<Handle>, what: &str| {
                let error = call.expect_err(what);
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                assert!(error.to_string().contains("is null"), "{error}");
            };
            // SAFETY: the memory outlives the calls, each of which is refused or waited for.
            unsafe {
                let c = communicator;
                if is_root {
                    refused(c.reduce_raw(there, null_mut(), 2, I64, sum, 1, stream), "reduce");
                    refused(c.gather_raw(there, null_mut(), 2, I64, 1, stream), "gather");
                    refused(c.scatter_raw(null(), receive, 2, I64, 1, stream), "scatter");
                }
                refused(c.all_gather_raw(null(), receive, 2, I64, stream), "all_gather");
                refused(c.all_to_all_raw(there, null_mut(), 2, I64, stream), "all_to_all");
                let (target, source) =
                    if is_root { (receive, there) } else { (null_mut(), null_mut()) };
                c.reduce_raw(there, target, 2, I64, sum, 1, stream).unwrap().wait().unwrap();
                c.gather_raw(there, target, 2, I64, 1, stream).unwrap().wait().unwrap();
                c.scatter_raw(source, receive, 2, I64, 1, stream).unwrap().wait().unwrap();
            }
            let first = 2 * u64::from(communicator.rank());
            assert_eq!(other[..2], [value(1, first), value(1, first + 1)]);
        },
    );
}

/// B021: buffers that overlap in any other way than in place are refused, and nothing is written.
#[test]
fn b021_partial_overlap_is_refused() {
    run(
        2,
        |_| Vec::new(),
        |communicator| {
            let stream = communicator.stream();
            let rank = u64::from(communicator.rank());
            let whole = buffer(communicator, &contribution(0, 12));
            let refused = |call: Result<Handle>, what: &str| {
                let error = call.expect_err(what);
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                assert!(error.to_string().contains("overlap"), "{error}");
            };
            let eight = elements(&whole, 0, 8);
            // One element off the own block, and the other rank's block.
            for first in [4 * rank + 1, 4 * (1 - rank)] {
                let four = elements(&whole, first, 4);
                refused(communicator.all_gather(&four, &eight, 4, I64, stream), "all_gather");
                let call = communicator.reduce_scatter(&eight, &four, 4, I64, RedOp::Sum, stream);
                refused(call, "reduce_scatter");
            }
            let shifted = elements(&whole, 1, 8);
            refused(communicator.all_to_all(&eight, &shifted, 4, I64, stream), "all_to_all");
            assert_eq!(whole.read::<i64>().unwrap(), contribution(0, 12));
            communicator.barrier(stream).unwrap().wait().unwrap();
        },
    );
}

/// B020: a count is that of a block, so a total that does not fit the ranks cannot be given; a buffer
/// that is too short for it is refused with both numbers.
#[test]
fn b020_a_short_buffer_is_refused_with_both_numbers() {
    run(
        3,
        |_| Vec::new(),
        |communicator| {
            let stream = communicator.stream();
            let (ten, four) = (buffer(communicator, &[1; 10]), buffer(communicator, &[0; 4]));
            let call = communicator.reduce_scatter(&ten, &four, 4, I64, RedOp::Sum, stream);
            let error = call.expect_err("10 elements are not 3 blocks of 4");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            let text = error.to_string();
            assert!(text.contains("80 bytes") && text.contains("96"), "{text}");
            communicator.barrier(stream).unwrap().wait().unwrap();
        },
    );
}
