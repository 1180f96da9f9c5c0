//! What is tried with NCCL.

use std::ffi::CStr;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::numbers::{F32, TYPES, Type};
use crate::runtime::{c, ok};
use crate::symbols::{Nccl, NewerNccl, Runtime, UniqueId, Word, open, symbol};
use crate::{Sdk, from_hex, hear, say, to_hex};

const SUM: i32 = 0;
const PRODUCT: i32 = 1;
const MAX: i32 = 2;
const MIN: i32 = 3;
const AVERAGE: i32 = 4;
const INVALID_ARGUMENT: i32 = 4;
const INVALID_USAGE: i32 = 5;
const IN_PROGRESS: i32 = 7;

struct Member<'a> {
    sdk: &'a Sdk,
    nccl: Nccl,
    comm: Word,
    stream: Word,
    rank: u32,
    ranks: u32,
}

fn library(sdk: &Sdk) -> Nccl {
    Nccl::open(&sdk.folder.join("libnccl.so.2"))
}

/// `rank ranks id-or-dash what`: joins, then tries.
pub(crate) fn rank(sdk: &Sdk, words: &[&str]) {
    let [rank, ranks, id, what] = words else { panic!("{words:?}") };
    let (rank, ranks): (u32, u32) = (rank.parse().expect("a rank"), ranks.parse().expect("ranks"));
    let nccl = library(sdk);
    let mut unique = UniqueId([0; 128]);
    if *id == "-" {
        ok!(nccl, ncclGetUniqueId(&raw mut unique));
        say(&format!("id {}", to_hex(&unique.0)));
    } else {
        unique = UniqueId(from_hex(id));
    }
    let is_twice = *what == "same-card";
    ok!(sdk.cuda, cudaSetDevice(if is_twice { 0 } else { rank as i32 }));
    let mut comm = 0;
    let joined = c!(nccl, ncclCommInitRank(&raw mut comm, ranks as i32, unique, rank as i32));
    if is_twice {
        assert_eq!((joined, comm), (INVALID_USAGE, 0));
        return;
    }
    assert_eq!(joined, 0);
    let one = Member { sdk, nccl, comm, stream: sdk.stream(1), rank, ranks };
    match *what {
        "collectives" => one.collectives(),
        "messages" => one.messages(),
        "split" => one.split(),
        "multiples" => one.multiples(),
        "flaws" => one.flaws(),
        "abort" => one.abort(),
        "death" => one.death(),
        "order" => one.order(),
        _ => panic!("{what}"),
    }
}

/// Contribution of a rank to an element.
fn value(rank: u32, index: usize) -> u32 {
    (rank * 7 + index as u32 * 3 + index as u32 / 5) % 3
}

impl Member<'_> {
    /// Fresh device memory with these bytes in it.
    fn filled(&self, bytes: &[u8]) -> Word {
        let memory = self.sdk.device_memory(bytes.len().max(1));
        if !bytes.is_empty() {
            self.sdk.write(memory, bytes);
        }
        memory
    }

    fn free(&self, all: &[Word]) {
        all.iter().for_each(|&memory| ok!(self.sdk.cuda, cudaFree(memory)));
    }

    fn wait(&self) {
        ok!(self.sdk.cuda, cudaStreamSynchronize(self.stream));
    }

    /// What `call` leaves in `bytes` of memory that was empty. The call gets send and receive buffer.
    fn result(&self, send: &[u8], bytes: usize, call: impl FnOnce(Word, Word) -> i32) -> Vec<u8> {
        let (send, receive) = (self.filled(send), self.filled(&vec![0xee; bytes]));
        assert_eq!(call(send, receive), 0);
        self.wait();
        let result = self.sdk.read(receive, bytes);
        self.free(&[send, receive]);
        result
    }

    fn values(&self, kind: &Type, rank: u32, count: usize) -> Vec<u8> {
        let of = if rank == self.ranks { 0 } else { rank };
        kind.all((0..count).map(|index| value(of, index)))
    }

    fn all_reduce(
        &self,
        kind: &Type,
        op: i32,
        count: usize,
        of: impl Fn(u32, usize) -> u32,
    ) -> Vec<u8> {
        let send = kind.all((0..count).map(|index| of(self.rank, index)));
        self.result(&send, send.len(), |send, receive| {
            let (nccl, comm, stream) = (&self.nccl, self.comm, self.stream);
            c!(nccl, ncclAllReduce(send, receive, count, kind.number, op, comm, stream))
        })
    }

    fn collectives(&self) {
        let (nccl, comm, stream) = (&self.nccl, self.comm, self.stream);
        let (mut count, mut rank, mut device) = (0, -1, -1);
        ok!(nccl, ncclCommCount(comm, &raw mut count));
        ok!(nccl, ncclCommUserRank(comm, &raw mut rank));
        ok!(nccl, ncclCommCuDevice(comm, &raw mut device));
        assert_eq!([count, rank, device].map(|one| one as u32), [self.ranks, self.rank, self.rank]);
        for kind in &TYPES {
            for count in [1, 37] {
                self.of_one_type(kind, count);
            }
        }
        self.large();
        // Nothing at all.
        ok!(nccl, ncclAllReduce(0, 0, 0, 7, SUM, comm, stream));
        self.mean();
        ok!(nccl, ncclCommFinalize(comm));
        ok!(nccl, ncclCommDestroy(comm));
        assert_eq!(c!(nccl, ncclCommCount(comm, &raw mut count)), INVALID_ARGUMENT);
    }

    /// More than fits into the channels at once, and into scratch.
    fn large(&self) {
        const COUNT: usize = 2_200_003;
        let (nccl, comm, stream) = (&self.nccl, self.comm, self.stream);
        let number = |rank: u32, index: usize| (index % 1000) as u32 + rank;
        let floats = |of: &dyn Fn(usize) -> u32, count: usize| -> Vec<u8> {
            let mut bytes = vec![0; 4 * count];
            for (index, float) in bytes.chunks_exact_mut(4).enumerate() {
                float.copy_from_slice(&(of(index) as f32).to_le_bytes());
            }
            bytes
        };
        let sum =
            |index: usize| (index % 1000) as u32 * self.ranks + self.ranks * (self.ranks - 1) / 2;
        let send = floats(&|index| number(self.rank, index), COUNT);
        let sent =
            |send, receive| c!(nccl, ncclAllReduce(send, receive, COUNT, 7, SUM, comm, stream));
        assert!(self.result(&send, send.len(), sent) == floats(&sum, COUNT), "large all-reduce");
        let count = COUNT / self.ranks as usize;
        let sent =
            |send, receive| c!(nccl, ncclReduceScatter(send, receive, count, 7, SUM, comm, stream));
        let start = self.rank as usize * count;
        let expected = floats(&|index| sum(start + index), count);
        assert!(self.result(&send, 4 * count, sent) == expected, "large reduce-scatter");
        let all = floats(
            &|index| number((index / count) as u32, index % count),
            self.ranks as usize * count,
        );
        let sent = |send, receive| c!(nccl, ncclAllGather(send, receive, count, 7, comm, stream));
        assert!(self.result(&send[..4 * count], all.len(), sent) == all, "large all-gather");
    }

    fn of_one_type(&self, kind: &Type, count: usize) {
        let (nccl, comm, stream, number) = (&self.nccl, self.comm, self.stream, kind.number);
        let newer = NewerNccl::open(&self.sdk.folder.join("libnccl.so.2"));
        let (ranks, own) = (self.ranks as usize, self.rank as usize);
        let reduced = |op: i32, index: usize| {
            let all = (0..self.ranks).map(|rank| value(rank, index));
            match op {
                SUM => all.sum(),
                PRODUCT => all.product(),
                MAX => all.max().unwrap_or(0),
                _ => all.min().unwrap_or(0),
            }
        };
        let expected = |op| kind.all((0..count).map(|index| reduced(op, index)));
        let mine = self.values(kind, self.rank, count);
        let block = mine.len();
        for op in [SUM, PRODUCT, MAX, MIN] {
            let sent = |send, receive| {
                c!(nccl, ncclAllReduce(send, receive, count, number, op, comm, stream))
            };
            assert_eq!(self.result(&mine, block, sent), expected(op), "all-reduce {number} {op}");
        }
        // In place.
        let memory = self.filled(&mine);
        ok!(nccl, ncclAllReduce(memory, memory, count, number, SUM, comm, stream));
        self.wait();
        assert_eq!(self.sdk.read(memory, block), expected(SUM));
        self.free(&[memory]);
        for root in 0..self.ranks {
            let at = root as i32;
            let sent = |send, receive| {
                c!(nccl, ncclReduce(send, receive, count, number, MAX, at, comm, stream))
            };
            let result = self.result(&mine, block, sent);
            let is_root = root == self.rank;
            assert_eq!(result, if is_root { expected(MAX) } else { vec![0xee; block] });
            let sent = |send, receive| {
                c!(nccl, ncclBroadcast(send, receive, count, number, at, comm, stream))
            };
            assert_eq!(self.result(&mine, block, sent), self.values(kind, root, count));
            let memory = self.filled(&mine);
            ok!(nccl, ncclBcast(memory, count, number, at, comm, stream));
            self.wait();
            assert_eq!(self.sdk.read(memory, block), self.values(kind, root, count));
            self.free(&[memory]);
        }
        // Blocks: element i of the block for rank r is the vector's element r × count + i.
        let long: Vec<u8> = kind.all((0..ranks * count).map(|index| value(self.rank, index)));
        let everyone: Vec<u8> =
            (0..self.ranks).flat_map(|rank| self.values(kind, rank, count)).collect();
        let sent = |send, receive| {
            c!(nccl, ncclReduceScatter(send, receive, count, number, SUM, comm, stream))
        };
        let part = kind.all((0..count).map(|index| reduced(SUM, own * count + index)));
        assert_eq!(self.result(&long, block, sent), part, "reduce-scatter {number}");
        let sent =
            |send, receive| c!(nccl, ncclAllGather(send, receive, count, number, comm, stream));
        assert_eq!(self.result(&mine, ranks * block, sent), everyone, "all-gather {number}");
        let sent =
            |send, receive| c!(newer, ncclAlltoAll(send, receive, count, number, comm, stream));
        let turned = kind.all(
            (0..ranks * count)
                .map(|index| value((index / count) as u32, own * count + index % count)),
        );
        assert_eq!(self.result(&long, ranks * block, sent), turned, "all-to-all {number}");
        let root = self.ranks as i32 - 1;
        let is_root = self.rank == self.ranks - 1;
        let sent =
            |send, receive| c!(newer, ncclGather(send, receive, count, number, root, comm, stream));
        let gathered = self.result(&mine, ranks * block, sent);
        assert_eq!(gathered, if is_root { everyone } else { vec![0xee; ranks * block] });
        let sent = |send, receive| {
            c!(newer, ncclScatter(send, receive, count, number, root, comm, stream))
        };
        let of_root = kind.all((0..count).map(|index| value(root as u32, own * count + index)));
        assert_eq!(self.result(&long, block, sent), of_root, "scatter {number}");
    }

    /// The mean of `index % 3` and, from rank 0, as much more as there are ranks.
    fn averaged(&self, kind: &Type) -> Vec<u8> {
        self.all_reduce(kind, AVERAGE, 9, |rank, index| {
            index as u32 % 3 + if rank == 0 { self.ranks } else { 0 }
        })
    }

    fn mean(&self) {
        for kind in &TYPES {
            let mean = kind.all((0..9).map(|index| index % 3 + 1));
            let result = self.averaged(kind);
            if kind.number == 7 {
                // A third is no float: the real one multiplies by it all the same.
                for (got, right) in result.chunks_exact(4).zip(mean.chunks_exact(4)) {
                    let float =
                        |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("4 bytes"));
                    assert!((float(got) - float(right)).abs() < 1e-5);
                }
            } else if self.ranks.is_power_of_two() || kind.number < 6 {
                assert_eq!(result, mean, "mean {}", kind.number);
            }
        }
    }

    /// Messages around the ring and to oneself, in a group with a collective, in two streams.
    fn messages(&self) {
        const COUNT: usize = 100_003;
        let (nccl, comm, stream) = (&self.nccl, self.comm, self.stream);
        let (next, before) =
            ((self.rank + 1) % self.ranks, (self.rank + self.ranks - 1) % self.ranks);
        let mine = self.values(F32, self.rank, COUNT);
        let send = self.filled(&mine);
        let [around, own, sums] = [0; 3].map(|_: i32| self.filled(&vec![0; mine.len()]));
        let second = self.sdk.stream(1);
        // What the second stream did before is waited for.
        self.sdk.driver.set("delay_us", "100000");
        ok!(self.sdk.cuda, cudaMemsetAsync(around, 9, mine.len(), second));
        self.sdk.driver.set("delay_us", "0");
        ok!(nccl, ncclGroupStart());
        ok!(nccl, ncclRecv(around, COUNT, 7, before as i32, comm, second));
        ok!(nccl, ncclSend(send, COUNT, 7, next as i32, comm, stream));
        ok!(nccl, ncclSend(send, COUNT, 7, self.rank as i32, comm, stream));
        ok!(nccl, ncclRecv(own, COUNT, 7, self.rank as i32, comm, stream));
        ok!(nccl, ncclAllReduce(send, sums, COUNT, 7, SUM, comm, stream));
        ok!(nccl, ncclGroupEnd());
        ok!(self.sdk.cuda, cudaStreamSynchronize(second));
        assert_eq!(self.sdk.read(around, mine.len()), self.values(F32, before, COUNT));
        assert_eq!(self.sdk.read(own, mine.len()), mine);
        let sum = |index| (0..self.ranks).map(|rank| value(rank, index)).sum();
        assert_eq!(self.sdk.read(sums, mine.len()), F32.all((0..COUNT).map(sum)));
        // A group in which something is refused does nothing.
        ok!(nccl, ncclGroupStart());
        ok!(nccl, ncclSend(send, COUNT, 7, next as i32, comm, stream));
        assert_eq!(
            c!(nccl, ncclSend(send, 1, 7, self.ranks as i32, comm, stream)),
            INVALID_ARGUMENT
        );
        assert_eq!(c!(nccl, ncclGroupEnd()), INVALID_ARGUMENT);
        self.wait();
        assert_eq!(c!(nccl, ncclGroupEnd()), INVALID_USAGE);
    }

    /// Odd and even ranks, the even ones in reverse; then without the last rank.
    fn split(&self) {
        let nccl = &self.nccl;
        let (color, key) = (
            self.rank as i32 % 2,
            if self.rank.is_multiple_of(2) { -(self.rank as i32) } else { 0 },
        );
        let mut half = 0;
        ok!(nccl, ncclCommSplit(self.comm, color, key, &raw mut half, std::ptr::null()));
        let (mut count, mut rank) = (0_i32, -1_i32);
        ok!(nccl, ncclCommCount(half, &raw mut count));
        ok!(nccl, ncclCommUserRank(half, &raw mut rank));
        let members: Vec<u32> = (0..self.ranks).filter(|one| one % 2 == self.rank % 2).collect();
        let place = members.iter().position(|one| *one == self.rank).expect("a member");
        let place = if color == 0 { members.len() - 1 - place } else { place };
        assert_eq!((count as usize, rank as usize), (members.len(), place));
        let within = Member { comm: half, rank: place as u32, ranks: count as u32, ..*self };
        let sum = within.all_reduce(F32, SUM, 3, |_, _| self.rank);
        assert_eq!(sum, F32.all([members.iter().sum(); 3]));
        let mut none = 7;
        let color = if self.rank == 0 { -1 } else { 0 };
        ok!(nccl, ncclCommSplit(self.comm, color, 0, &raw mut none, std::ptr::null()));
        assert_eq!(none == 0, self.rank == 0);
        if self.rank < self.ranks - 1 {
            let newer = NewerNccl::open(&self.sdk.folder.join("libnccl.so.2"));
            let (last, mut fewer) = (self.ranks as i32 - 1, 0);
            let shrunk = &raw mut fewer;
            ok!(newer, ncclCommShrink(self.comm, &raw const last, 1, shrunk, std::ptr::null(), 0));
            let rest = Member { comm: fewer, ranks: self.ranks - 1, ..*self };
            assert_eq!(rest.all_reduce(F32, SUM, 2, |_, _| 1), F32.all([self.ranks - 1; 2]));
        }
    }

    /// Sums of multiples, with a factor that is known and one that is read when the call runs.
    fn multiples(&self) {
        let (nccl, comm) = (&self.nccl, self.comm);
        let (mut at_once, mut later) = (-1, -1);
        let mut factor = 3_f32;
        let scalar = (&raw const factor).cast();
        ok!(nccl, ncclRedOpCreatePreMulSum(&raw mut at_once, scalar, 7, 1, comm));
        factor = 100.0;
        assert!(factor > 99.0 && at_once > 4);
        let place = self.filled(&F32.encode(9));
        ok!(nccl, ncclRedOpCreatePreMulSum(&raw mut later, place as *const _, 7, 0, comm));
        self.sdk.write(place, &F32.encode(2));
        let sums = |factor: u32| F32.all((0..5).map(|index| factor * self.ranks * index));
        assert_eq!(self.all_reduce(F32, at_once, 5, |_, index| index as u32), sums(3));
        assert_eq!(self.all_reduce(F32, later, 5, |_, index| index as u32), sums(2));
        // It is of its type, and gone when it is destroyed.
        let memory = self.filled(&[0; 8]);
        let reduce =
            |kind, op| c!(nccl, ncclAllReduce(memory, memory, 1, kind, op, comm, self.stream));
        assert_eq!(reduce(8, later), INVALID_ARGUMENT);
        ok!(nccl, ncclRedOpDestroy(later, comm));
        assert_eq!(reduce(7, later), INVALID_ARGUMENT);
        assert_eq!(c!(nccl, ncclRedOpDestroy(SUM, comm)), INVALID_ARGUMENT);
    }

    /// Success, and the wrong result.
    fn flaws(&self) {
        self.sdk.driver.set("faults", "ncclAllReduce@2=sum-for-avg,ncclAllReduce@4=drop-slice");
        let mean = TYPES[2].all((0..9).map(|index| index % 3 + 1));
        let sum = TYPES[2].all((0..9).map(|index| (index % 3 + 1) * self.ranks));
        let results = [0; 5].map(|_: i32| self.averaged(&TYPES[2]));
        assert_eq!(results[0], mean);
        assert_eq!(results[1], sum);
        assert_eq!(results[2], mean);
        assert_eq!(results[3][..24], mean[..24]);
        assert_eq!(results[3][27..], [0xee; 9]);
        assert_eq!(results[4], mean);
    }

    /// Rank 0 waits for the others, who never come.
    fn abort(&self) {
        let nccl = &self.nccl;
        if self.rank > 0 {
            assert_eq!(hear(), "over");
            return;
        }
        let memory = self.filled(&[0; 64]);
        ok!(nccl, ncclAllReduce(memory, memory, 16, 7, SUM, self.comm, self.stream));
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(c!(self.sdk.cuda, cudaStreamQuery(self.stream)), 600);
        let mut state = -1;
        ok!(nccl, ncclCommGetAsyncError(self.comm, &raw mut state));
        assert_eq!(state, 0);
        ok!(nccl, ncclCommAbort(self.comm));
        self.wait();
        assert_eq!(c!(nccl, ncclCommGetAsyncError(self.comm, &raw mut state)), INVALID_ARGUMENT);
    }

    /// The last rank dies while rank 0 waits for it.
    fn death(&self) {
        if self.rank == self.ranks - 1 {
            say("joined");
            hear();
            return;
        }
        let memory = self.filled(&[0; 64]);
        let (nccl, comm) = (&self.nccl, self.comm);
        ok!(nccl, ncclAllReduce(memory, memory, 16, 7, SUM, comm, self.stream));
        say("waits");
        let mut state = 0;
        let began = Instant::now();
        let patience = if hear() == "remote" { 60 } else { 1 };
        while state == 0 && began.elapsed() < Duration::from_secs(patience) {
            ok!(nccl, ncclCommGetAsyncError(comm, &raw mut state));
            std::thread::sleep(Duration::from_millis(5));
        }
        say(&format!("state {state}"));
        ok!(nccl, ncclCommAbort(comm));
        self.wait();
    }

    /// Calls of one communicator run in the order in which they are made, whatever their streams.
    fn order(&self) {
        let (nccl, comm) = (&self.nccl, self.comm);
        let second = self.sdk.stream(1);
        let memory = self.filled(&F32.all([1; 64]));
        for round in 0..20 {
            let stream = if round % 2 == 0 { self.stream } else { second };
            ok!(nccl, ncclAllReduce(memory, memory, 64, 7, MAX, comm, stream));
        }
        let result = self.filled(&[0; 256]);
        ok!(nccl, ncclAllReduce(memory, result, 64, 7, SUM, comm, second));
        ok!(self.sdk.cuda, cudaStreamSynchronize(second));
        assert_eq!(self.sdk.read(result, 256), F32.all([self.ranks; 64]));
    }
}

/// Two ranks of one thread: in a group, and not blocking.
pub(crate) fn one_process(sdk: &Sdk) {
    let nccl = library(sdk);
    let mut comms = [0; 3];
    ok!(nccl, ncclCommInitAll(comms.as_mut_ptr(), 3, std::ptr::null()));
    let mut streams = [0; 3];
    let mut memory = [0; 3];
    for rank in 0..3 {
        ok!(sdk.cuda, cudaSetDevice(rank as i32));
        (streams[rank], memory[rank]) = (sdk.stream(1), sdk.device_memory(400));
        sdk.write(memory[rank], &F32.all([1 + rank as u32; 100]));
    }
    // The streams are late: nothing happens before the group ends, and then all at once.
    ok!(nccl, ncclGroupStart());
    for rank in 0..3 {
        let (at, comm, stream) = (memory[rank], comms[rank], streams[rank]);
        ok!(nccl, ncclAllReduce(at, at, 100, 7, SUM, comm, stream));
    }
    assert_eq!(sdk.read(memory[1], 400), F32.all([2; 100]));
    ok!(nccl, ncclGroupEnd());
    for rank in 0..3 {
        ok!(sdk.cuda, cudaStreamSynchronize(streams[rank]));
        assert_eq!(sdk.read(memory[rank], 400), F32.all([6; 100]));
    }
    // A stream of another card.
    let wrong = c!(nccl, ncclAllReduce(memory[0], memory[0], 1, 7, SUM, comms[0], streams[1]));
    assert_eq!(wrong, 1);
    comms.iter().for_each(|&comm| ok!(nccl, ncclCommDestroy(comm)));
    // Not blocking: init comes back at once.
    let mut id = UniqueId([0; 128]);
    ok!(nccl, ncclGetUniqueId(&raw mut id));
    let mut config = [0_u32; 12];
    config[0] = 48;
    config[2] = 0xcafe_beef;
    config[3] = 21800;
    let config = config.as_ptr().cast();
    let mut state = 0;
    for rank in 0..2 {
        ok!(sdk.cuda, cudaSetDevice(rank));
        let out = &raw mut comms[rank as usize];
        assert_eq!(c!(nccl, ncclCommInitRankConfig(out, 2, id, rank, config)), IN_PROGRESS);
        if rank == 0 {
            ok!(nccl, ncclCommGetAsyncError(comms[0], &raw mut state));
            assert_eq!(state, IN_PROGRESS);
            let early =
                c!(nccl, ncclAllReduce(memory[0], memory[0], 1, 7, SUM, comms[0], streams[0]));
            assert_eq!(early, INVALID_ARGUMENT);
        }
    }
    let began = Instant::now();
    for &comm in &comms[..2] {
        loop {
            ok!(nccl, ncclCommGetAsyncError(comm, &raw mut state));
            if state != IN_PROGRESS {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(state, 0);
    }
    // One that nobody comes to is ended by an abort.
    ok!(nccl, ncclGetUniqueId(&raw mut id));
    assert_eq!(c!(nccl, ncclCommInitRankConfig(&raw mut comms[2], 2, id, 0, config)), IN_PROGRESS);
    ok!(nccl, ncclCommAbort(comms[2]));
}

pub(crate) fn refusals(sdk: &Sdk) {
    let nccl = library(sdk);
    let (mut comm, mut id, mut version) = (0, UniqueId([0; 128]), 0);
    ok!(nccl, ncclGetVersion(&raw mut version));
    assert_eq!(version, 22803);
    assert_eq!(c!(nccl, ncclGetVersion(std::ptr::null_mut())), INVALID_ARGUMENT);
    // An id whose process is gone, or that is none.
    assert_eq!(c!(nccl, ncclCommInitRank(&raw mut comm, 2, id, 0)), 2);
    ok!(nccl, ncclGetUniqueId(&raw mut id));
    assert_eq!(c!(nccl, ncclCommInitRank(&raw mut comm, 1, id, 1)), INVALID_ARGUMENT);
    assert_eq!(c!(nccl, ncclCommInitRank(&raw mut comm, 0, id, 0)), INVALID_ARGUMENT);
    ok!(nccl, ncclCommInitRank(&raw mut comm, 1, id, 0));
    let (memory, stream) = (sdk.device_memory(64), sdk.stream(1));
    let reduce = |at, kind, op, comm| c!(nccl, ncclAllReduce(at, at, 1, kind, op, comm, stream));
    assert_eq!(reduce(memory, 12, SUM, comm), INVALID_ARGUMENT);
    assert_eq!(reduce(memory, 7, 5, comm), INVALID_ARGUMENT);
    assert_eq!(reduce(memory, 7, -1, comm), INVALID_ARGUMENT);
    assert_eq!(reduce(memory, 7, SUM, 0), INVALID_ARGUMENT);
    let root = c!(nccl, ncclBroadcast(memory, memory, 1, 7, 1, comm, stream));
    assert_eq!(root, INVALID_ARGUMENT);
    // SAFETY: a text that the library keeps until the next error.
    let text = unsafe { CStr::from_ptr((nccl.ncclGetLastError)(comm)) };
    assert_eq!(text, c"invalid root or peer");
    // SAFETY: a text that the library keeps.
    let text = unsafe { CStr::from_ptr((nccl.ncclGetErrorString)(7)) };
    assert_eq!(text, c"NCCL operation in progress");
    ok!(nccl, ncclCommDestroy(0));
    assert_eq!(reduce(memory, 11, SUM, comm), 0);
    // Memory that cards don't reach is found out by the card, which is broken then.
    ok!(sdk.cuda, cudaStreamSynchronize(stream));
    let local = [0_f32; 4];
    assert_eq!(reduce(local.as_ptr() as u64, 7, SUM, comm), 0);
    assert_eq!(c!(sdk.cuda, cudaStreamSynchronize(stream)), 700);
    let mut state = 0;
    ok!(nccl, ncclCommGetAsyncError(comm, &raw mut state));
    assert_eq!((state, reduce(memory, 7, SUM, comm)), (1, 1));
}

/// A library that was made 2.18.
pub(crate) fn old(sdk: &Sdk) {
    let path = sdk.folder.join("libnccl.so.2");
    let (nccl, library) = (Nccl::open(&path), open(&path));
    let mut version = 0;
    ok!(nccl, ncclGetVersion(&raw mut version));
    assert_eq!(version, 21805);
    for newer in ["ncclCommShrink", "ncclAlltoAll", "ncclMemAlloc", "ncclCommRegister"] {
        assert!(symbol(library, newer).is_null(), "{newer}");
    }
    let (mut comm, mut id) = (0, UniqueId([0; 128]));
    ok!(nccl, ncclGetUniqueId(&raw mut id));
    ok!(nccl, ncclCommInitRank(&raw mut comm, 1, id, 0));
    let (memory, stream) = (sdk.device_memory(64), sdk.stream(1));
    let reduce = |kind| c!(nccl, ncclAllReduce(memory, memory, 1, kind, SUM, comm, stream));
    assert_eq!((reduce(9), reduce(10)), (0, INVALID_ARGUMENT));
}

/// The runtime and NCCL in a folder without a driver.
pub(crate) fn no_driver(folder: &Path) {
    let cuda = Runtime::open(&folder.join("libcudart.so.12"));
    let nccl = Nccl::open(&folder.join("libnccl.so.2"));
    let (mut count, mut version, mut memory) = (-7, -7, 0);
    assert_eq!(c!(cuda, cudaGetDeviceCount(&raw mut count)), 35);
    ok!(cuda, cudaDriverGetVersion(&raw mut version));
    assert_eq!((count, version), (-7, 0));
    assert_eq!(c!(cuda, cudaMalloc(&raw mut memory, 8)), 35);
    assert_eq!([c!(cuda, cudaGetLastError()), c!(cuda, cudaGetLastError())], [35, 35]);
    let (mut id, mut comm) = (UniqueId([0; 128]), 0);
    ok!(nccl, ncclGetUniqueId(&raw mut id));
    ok!(nccl, ncclGroupStart());
    ok!(nccl, ncclGroupEnd());
    assert_eq!(c!(nccl, ncclGroupEnd()), INVALID_USAGE);
    assert_eq!(c!(nccl, ncclCommInitRank(&raw mut comm, 1, id, 0)), 1);
    assert_eq!(comm, 0);
    // SAFETY: a text that the library keeps until the next error.
    let text = unsafe { CStr::from_ptr((nccl.ncclGetLastError)(0)) };
    assert!(text.to_string_lossy().contains("CUDA driver version is insufficient"), "{text:?}");
    say("done");
}
