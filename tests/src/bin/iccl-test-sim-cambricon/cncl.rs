//! What is tried with CNCL.

use std::ffi::CStr;
use std::time::{Duration, Instant};

use iccl_tests::maker::program::{from_hex, hear, say, to_hex};
use iccl_tests::{c_call as c, c_succeeds as ok};

use crate::Sdk;
use crate::symbols::{CliqueId, Cncl, Word};

const FLOAT: i32 = 0x12;
const INT16: i32 = 0x21;
const INT32: i32 = 0x22;
const UINT8: i32 = 0x30;
const SUM: i32 = 0;
const PROD: i32 = 1;
const MAX: i32 = 2;
const MIN: i32 = 3;
const UNSUPPORTED: i32 = 0x11;
const NULL_POINTER: i32 = 0x21;
const REINIT: i32 = 0x71;
const CNRT_DEVICE: i32 = 0x13;
const MLU_RUNTIME: i32 = 0x03;
const ASYNC_ERROR: i32 = 0x16;
const ARGUMENTS: i32 = 0x07;

/// How two numbers become one.
type Fold = fn(i32, i32) -> i32;

fn library(sdk: &Sdk) -> Cncl {
    Cncl::open(&sdk.folder.join("libcncl.so.1"))
}

fn fresh_id(cncl: &Cncl) -> CliqueId {
    let mut id = CliqueId { data: [0; 128], hash: 0 };
    ok!(cncl, cnclGetCliqueId(&raw mut id));
    id
}

struct Member<'a> {
    sdk: &'a Sdk,
    cncl: Cncl,
    comm: Word,
    queue: Word,
    rank: i32,
    ranks: i32,
}

/// `rank ranks id-or-dash what`: joins, then tries.
pub(crate) fn rank(sdk: &Sdk, words: &[&str]) {
    let [rank, ranks, id, what] = words else { panic!("{words:?}") };
    let (rank, ranks): (i32, i32) = (rank.parse().expect("a rank"), ranks.parse().expect("ranks"));
    let cncl = library(sdk);
    let mut clique = CliqueId { data: [0; 128], hash: 0 };
    if *id == "-" {
        clique = fresh_id(&cncl);
        let all = [&clique.data[..], &clique.hash.to_ne_bytes()].concat();
        say(&format!("id {}", to_hex(&all)));
    } else {
        let all: [u8; 136] = from_hex(id);
        clique.data.copy_from_slice(&all[..128]);
        clique.hash = u64::from_ne_bytes(*all.last_chunk::<8>().expect("a hash"));
    }
    ok!(sdk.runtime, cnrtSetDevice(rank));
    let mut comm = 0;
    let id = &raw const clique;
    ok!(cncl, cnclInitComms(&raw mut comm, 1, &raw const rank, &raw const rank, ranks, id));
    // An id is good for one init of a process.
    let mut other = 5;
    let again =
        c!(cncl, cnclInitComms(&raw mut other, 1, &raw const rank, &raw const rank, ranks, id));
    assert_eq!((again, other), (REINIT, 5));
    let one = Member { sdk, cncl, comm, queue: sdk.queue(), rank, ranks };
    match *what {
        "collectives" => one.collectives(),
        "release" => one.release(),
        "abort" => one.abort(),
        "death" => one.death(),
        _ => panic!("{what}"),
    }
}

fn ints(values: impl IntoIterator<Item = i32>) -> Vec<u8> {
    values.into_iter().flat_map(i32::to_le_bytes).collect()
}

impl Member<'_> {
    fn filled(&self, bytes: &[u8]) -> Word {
        let memory = self.sdk.device_memory(bytes.len());
        self.sdk.write(memory, bytes);
        memory
    }

    fn wait(&self) {
        ok!(self.sdk.runtime, cnrtQueueSync(self.queue));
    }

    /// What `call` leaves in memory of so many ints. The call gets send and receive buffer.
    fn result(&self, send: &[u8], count: i32, call: impl FnOnce(Word, Word) -> i32) -> Vec<u8> {
        let (send, receive) = (self.filled(send), self.filled(&ints((0..count).map(|_| -1))));
        assert_eq!(call(send, receive), 0);
        self.wait();
        self.sdk.read(receive, 4 * count as usize)
    }

    fn collectives(&self) {
        let (cncl, comm, queue) = (&self.cncl, self.comm, self.queue);
        let (rank, ranks) = (self.rank, self.ranks);
        let all = 0..ranks;
        let mine = |count: i32| ints((0..count).map(|index| 10 * rank + index + 1));
        let of = |rank: i32, index: i32| 10 * rank + index + 1;
        let fold = |index: i32, how: Fold| {
            all.clone().map(|rank| of(rank, index)).reduce(how).expect("ranks")
        };
        let operations: [(i32, Fold); 4] = [
            (SUM, |a, b| a + b),
            (PROD, |a, b| a.wrapping_mul(b)),
            (MAX, i32::max),
            (MIN, i32::min),
        ];
        for (op, how) in operations {
            let got = self.result(&mine(5), 5, |send, receive| {
                c!(cncl, cnclAllReduce(send, receive, 5, INT32, op, comm, queue))
            });
            assert_eq!(got, ints((0..5).map(|index| fold(index, how))), "{op}");
        }
        let got = self.result(&mine(ranks), 1, |send, receive| {
            c!(cncl, cnclReduceScatter(send, receive, 1, INT32, SUM, comm, queue))
        });
        assert_eq!(got, ints([fold(rank, |a, b| a + b)]));
        // Off the root a reduce has no result.
        let memory = self.filled(&mine(3));
        let into = if rank == 1 { self.filled(&mine(3)) } else { 0 };
        ok!(cncl, cnclReduce(memory, into, 3, INT32, MAX, 1, comm, queue));
        self.wait();
        if rank == 1 {
            let expected = ints((0..3).map(|index| of(ranks - 1, index)));
            assert_eq!(self.sdk.read(into, 12), expected);
        }
        let got = self.result(&mine(2), 2 * ranks, |send, receive| {
            c!(cncl, cnclAllGather(send, receive, 2, INT32, comm, queue))
        });
        assert_eq!(got, ints(all.clone().flat_map(|rank| [of(rank, 0), of(rank, 1)])));
        // Both forms of broadcast.
        let root = ranks - 1;
        let got = self.result(&mine(4), 4, |send, receive| {
            c!(cncl, cnclBroadcast(send, receive, 4, INT32, root, comm, queue))
        });
        assert_eq!(got, ints((0..4).map(|index| of(root, index))));
        let one = self.filled(&mine(4));
        ok!(cncl, cnclBcast(one, 4, INT32, 0, comm, queue));
        self.wait();
        assert_eq!(self.sdk.read(one, 16), ints((0..4).map(|index| of(0, index))));
        let got = self.result(&mine(ranks), ranks, |send, receive| {
            c!(cncl, cnclAlltoAll(send, receive, 1, INT32, comm, queue))
        });
        assert_eq!(got, ints(all.clone().map(|peer| of(peer, rank))));
        self.all_to_all_v();
        self.ring();
        let (mut count, mut own, mut card) = (0, -1, -1);
        ok!(cncl, cnclGetCommCount(&raw mut count, comm));
        ok!(cncl, cnclGetCommRank(&raw mut own, comm));
        ok!(cncl, cnclGetCommDevice(&raw mut card, comm));
        assert_eq!((count, own, card), (ranks, rank, rank));
        assert_eq!(c!(cncl, cnclGetCommAsyncError(comm)), 0);
        let mut comm = comm;
        ok!(cncl, cnclDestroyComms(&raw mut comm, 1));
        assert_eq!(c!(cncl, cnclGetCommAsyncError(comm)), ARGUMENTS);
    }

    /// Rank r sends p + 1 ints to rank p, from an address, with a count and a type for each.
    fn all_to_all_v(&self) {
        let (rank, ranks) = (self.rank, self.ranks);
        let sent: Vec<u32> = (1..=ranks as u32).collect();
        let received = vec![rank as u32 + 1; ranks as usize];
        let value = |from: i32, to: i32| 100 * from + to;
        let blocks: Vec<Word> = (0..ranks)
            .map(|peer| self.filled(&ints((0..=peer).map(|_| value(rank, peer)))))
            .collect();
        let empty = ints((0..=rank).map(|_| -1));
        let places: Vec<Word> = (0..ranks).map(|_| self.filled(&empty)).collect();
        let types = vec![INT32; ranks as usize];
        let (types, sent) = (types.as_ptr(), sent.as_ptr());
        let (blocks, into, received) = (blocks.as_ptr(), places.as_ptr(), received.as_ptr());
        let (comm, queue) = (self.comm, self.queue);
        ok!(self.cncl, cnclAlltoAllv(blocks, sent, types, into, received, types, comm, queue));
        self.wait();
        for (peer, place) in places.iter().enumerate() {
            let expected = ints((0..=rank).map(|_| value(peer as i32, rank)));
            assert_eq!(self.sdk.read(*place, expected.len()), expected);
        }
    }

    fn ring(&self) {
        let (cncl, comm, queue) = (&self.cncl, self.comm, self.queue);
        let next = (self.rank + 1) % self.ranks;
        let before = (self.rank + self.ranks - 1) % self.ranks;
        let (send, receive) = (self.filled(&ints([self.rank])), self.filled(&ints([-1])));
        ok!(cncl, cnclGroupStart());
        ok!(cncl, cnclSend(send, 1, INT32, next, comm, queue));
        ok!(cncl, cnclRecv(receive, 1, INT32, before, comm, queue));
        ok!(cncl, cnclGroupEnd());
        self.wait();
        assert_eq!(self.sdk.read(receive, 4), ints([before]));
        // A group in which something is refused does nothing.
        ok!(cncl, cnclGroupStart());
        ok!(cncl, cnclSend(send, 1, INT32, next, comm, queue));
        assert_eq!(c!(cncl, cnclSend(send, 1, INT32, self.ranks, comm, queue)), ARGUMENTS);
        assert_eq!(c!(cncl, cnclGroupEnd()), ARGUMENTS);
        assert_eq!(c!(cncl, cnclGroupEnd()), ARGUMENTS);
    }

    /// Freeing waits until all have done so.
    fn release(&self) {
        if self.rank > 0 {
            assert_eq!(hear(), "free");
            ok!(self.cncl, cnclFreeComm(self.comm));
            return;
        }
        let (cncl, comm) = (self.cncl, self.comm);
        let freeing = std::thread::spawn(move || c!(cncl, cnclFreeComm(comm)));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!freeing.is_finished(), "the others have not");
        say("waits");
        assert_eq!(freeing.join().expect("freed"), 0);
    }

    /// Rank 0 waits for others that never come, and is ended; it is released when they are.
    fn abort(&self) {
        if self.rank > 0 {
            assert_eq!(hear(), "abort");
            ok!(self.cncl, cnclAbortComm(self.comm));
            return;
        }
        let memory = self.filled(&[0; 64]);
        let (cncl, comm) = (self.cncl, self.comm);
        ok!(cncl, cnclAllReduce(memory, memory, 16, FLOAT, SUM, comm, self.queue));
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(c!(self.sdk.runtime, cnrtQueueQuery(self.queue)), 1);
        assert_eq!(c!(cncl, cnclGetCommAsyncError(comm)), 0);
        let aborting = std::thread::spawn(move || c!(cncl, cnclAbortComm(comm)));
        self.wait();
        assert!(!aborting.is_finished(), "the others have not");
        say("waits");
        assert_eq!(aborting.join().expect("aborted"), 0);
    }

    /// The last rank dies while rank 0 waits for it.
    fn death(&self) {
        if self.rank == self.ranks - 1 {
            say("joined");
            hear();
            return;
        }
        let memory = self.filled(&[0; 64]);
        let (cncl, comm) = (&self.cncl, self.comm);
        ok!(cncl, cnclAllReduce(memory, memory, 16, FLOAT, SUM, comm, self.queue));
        say("waits");
        hear();
        let began = Instant::now();
        while c!(cncl, cnclGetCommAsyncError(comm)) == 0 {
            assert!(began.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(c!(cncl, cnclGetCommAsyncError(comm)), ASYNC_ERROR);
    }
}

/// Two ranks of one process: without an id, called by one thread in a group, freed together.
pub(crate) fn one_process(sdk: &Sdk) {
    let cncl = library(sdk);
    let (mut comms, devices, ranks) = ([0; 2], [1, 0], [0, 1]);
    let all = comms.as_mut_ptr();
    let (devices_at, ranks_at) = (devices.as_ptr(), ranks.as_ptr());
    // More ranks than are here need an id.
    let partial = c!(cncl, cnclInitComms(all, 2, devices_at, ranks_at, 3, std::ptr::null()));
    assert_eq!((partial, comms), (NULL_POINTER, [0; 2]));
    let all = comms.as_mut_ptr();
    ok!(cncl, cnclInitComms(all, 2, devices_at, ranks_at, 2, std::ptr::null()));
    let (mut queues, mut memory) = ([0; 2], [0; 2]);
    for rank in 0..2 {
        ok!(sdk.runtime, cnrtSetDevice(devices[rank]));
        (queues[rank], memory[rank]) = (sdk.queue(), sdk.device_memory(400));
        sdk.write(memory[rank], &ints([1 + rank as i32; 100]));
    }
    let reduce = move |rank: usize| {
        let (at, comm, queue) = (memory[rank], comms[rank], queues[rank]);
        c!(cncl, cnclAllReduce(at, at, 100, INT32, SUM, comm, queue))
    };
    ok!(cncl, cnclGroupStart());
    assert_eq!([reduce(0), reduce(1)], [0; 2]);
    ok!(cncl, cnclGroupEnd());
    for rank in 0..2 {
        ok!(sdk.runtime, cnrtSetDevice(devices[rank]));
        ok!(sdk.runtime, cnrtQueueSync(queues[rank]));
        assert_eq!(sdk.read(memory[rank], 400), ints([3; 100]));
    }
    // Outside a group a call waits for that of the other rank: a thread for each.
    let waiting = std::thread::spawn(move || reduce(0));
    std::thread::sleep(Duration::from_millis(300));
    assert!(!waiting.is_finished(), "the other rank did not call");
    assert_eq!(reduce(1), 0);
    assert_eq!(waiting.join().expect("an answer"), 0);
    // A queue of another card.
    let (at, comm, queue) = (memory[0], comms[0], queues[1]);
    assert_eq!(c!(cncl, cnclAllReduce(at, at, 1, INT32, SUM, comm, queue)), MLU_RUNTIME);
    let all = comms.as_mut_ptr();
    ok!(cncl, cnclDestroyComms(all, 2));
}

pub(crate) fn refusals(sdk: &Sdk) {
    let cncl = library(sdk);
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    ok!(cncl, cnclGetLibVersion(&raw mut major, &raw mut minor, &raw mut patch));
    assert_eq!((major, minor, patch), (1, 25, 0));
    // SAFETY: a text that the library keeps.
    let text = unsafe { CStr::from_ptr((cncl.cnclGetErrorStr)(UNSUPPORTED)) };
    assert_eq!(text, c"unsupported operation or data type");
    let mut comm = 9;
    let id = fresh_id(&cncl);
    let init = |out: *mut Word, card: i32, rank: i32, ranks: i32, id: &CliqueId| {
        c!(cncl, cnclInitComms(out, 1, &raw const card, &raw const rank, ranks, id))
    };
    let out = &raw mut comm;
    assert_eq!(init(std::ptr::null_mut(), 0, 0, 1, &id), NULL_POINTER);
    assert_eq!(init(out, 99, 0, 1, &id), CNRT_DEVICE);
    assert_eq!(init(out, 0, 1, 1, &id), ARGUMENTS);
    // All 136 bytes of an id count.
    let torn = CliqueId { hash: 0, ..id };
    assert_eq!(init(out, 0, 0, 1, &torn), ARGUMENTS);
    assert_eq!(init(out, 0, 0, 1, &id), 0);
    let (memory, queue) = (sdk.device_memory(64), sdk.queue());
    let reduce = |at, dtype, op, comm| c!(cncl, cnclAllReduce(at, at, 1, dtype, op, comm, queue));
    // Types and operations that the header does not have: 64-bit floats, mean.
    for (dtype, op) in [(0, SUM), (0x13, SUM), (0x24, SUM), (0x34, SUM), (FLOAT, 4), (FLOAT, -1)] {
        assert_eq!(reduce(memory, dtype, op, comm), ARGUMENTS, "{dtype:#x} {op}");
    }
    assert_eq!(reduce(memory, FLOAT, SUM, 0), NULL_POINTER);
    assert_eq!(reduce(0, FLOAT, SUM, comm), NULL_POINTER);
    assert_eq!(reduce(memory, FLOAT, SUM, comm + 1), ARGUMENTS);
    let root = c!(cncl, cnclBcast(memory, 1, UINT8, 1, comm, queue));
    assert_eq!(root, ARGUMENTS);
    // Pairs that a card has not.
    sdk.driver.set("unsupported", "float int16:prod");
    assert_eq!(
        [reduce(memory, FLOAT, SUM, comm), reduce(memory, FLOAT, MAX, comm)],
        [UNSUPPORTED; 2]
    );
    assert_eq!(reduce(memory, INT16, PROD, comm), UNSUPPORTED);
    assert_eq!(reduce(memory, INT16, SUM, comm), 0);
    sdk.driver.set("unsupported", "");
    assert_eq!(reduce(memory, FLOAT, SUM, comm), 0);
    // Memory that cards don't reach is found out by the card, which is broken then.
    ok!(sdk.runtime, cnrtQueueSync(queue));
    let local = [0_f32; 4];
    assert_eq!(reduce(local.as_ptr() as u64, FLOAT, SUM, comm), 0);
    assert_eq!(c!(sdk.runtime, cnrtQueueSync(queue)), 100_132);
    assert_eq!(c!(cncl, cnclGetCommAsyncError(comm)), ASYNC_ERROR);
    assert_eq!(reduce(memory, FLOAT, SUM, comm), MLU_RUNTIME);
}
