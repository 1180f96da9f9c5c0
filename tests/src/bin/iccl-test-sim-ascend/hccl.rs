//! What is tried with HCCL.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::symbols::{Hccl, Item, RootInfo, Word, open};
use crate::{Sdk, answers, c, say};

const OK: i32 = 0;
const PARA: i32 = 1;
const PTR: i32 = 2;
const NOT_SUPPORT: i32 = 5;
const RUNTIME: i32 = 15;
const AGAIN: i32 = 20;
const REMOTE: i32 = 21;

const INT32: i32 = 2;
const BFP16: i32 = 11;
const FP32: i32 = 4;
const UINT8: i32 = 7;
const FP64: i32 = 10;
const SUM: i32 = 0;
const PRODUCT: i32 = 1;
const AVERAGE: i32 = 4;

const HOST_TO_DEVICE: i32 = 1;
const DEVICE_TO_HOST: i32 = 2;
const COUNT: usize = 6;
const BYTES: usize = 4 * COUNT;

fn library(sdk: &Sdk) -> Hccl {
    // SAFETY: the prototypes are those of the header.
    unsafe { Hccl::resolve(&open(&sdk.folder.join("libhccl.so"))) }.expect("all functions")
}

/// A rank with its communicator, a stream and two buffers.
struct Member<'a> {
    sdk: &'a Sdk,
    hccl: &'a Hccl,
    comm: Word,
    stream: Word,
    send: Word,
    receive: Word,
    rank: u32,
    ranks: u32,
}

/// `rank ranks root-or-dash what`: joins, then tries.
pub(crate) fn rank(sdk: &Sdk, words: &[&str]) {
    let [rank, ranks, root, what] = words else { panic!("{words:?}") };
    let (rank, ranks): (u32, u32) = (rank.parse().expect("a rank"), ranks.parse().expect("ranks"));
    let hccl = library(sdk);
    let mut info = RootInfo([0; 4108]);
    sdk.on_card(rank as i32);
    if *root == "-" {
        answers!(OK, hccl, HcclGetRootInfo(&raw mut info));
        let text = info.0.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        say(&format!("id {text}"));
    } else {
        for (index, byte) in info.0.iter_mut().enumerate() {
            let digits = &root[2 * index..2 * index + 2];
            *byte = u8::from_str_radix(digits, 16).expect("hexadecimal");
        }
    }
    let mut comm = 0;
    answers!(OK, hccl, HcclCommInitRootInfo(ranks, &raw const info, rank, &raw mut comm));
    let (send, receive) = (sdk.card_memory(BYTES), sdk.card_memory(BYTES));
    let stream = sdk.stream();
    let member = Member { sdk, hccl: &hccl, comm, stream, send, receive, rank, ranks };
    match *what {
        "sum" => member.sum(),
        "death" => member.death(),
        _ => panic!("{what}"),
    }
}

impl Member<'_> {
    fn fill(&self) {
        let numbers: Vec<i32> = (0..COUNT as i32).map(|one| one + self.rank as i32).collect();
        let from = numbers.as_ptr() as Word;
        answers!(OK, self.sdk.acl, aclrtMemcpy(self.send, BYTES, from, BYTES, HOST_TO_DEVICE));
    }

    fn result(&self) -> Vec<i32> {
        answers!(OK, self.sdk.acl, aclrtSynchronizeStream(self.stream));
        let mut numbers = vec![0_i32; COUNT];
        let to = numbers.as_mut_ptr() as Word;
        answers!(OK, self.sdk.acl, aclrtMemcpy(to, BYTES, self.receive, BYTES, DEVICE_TO_HOST));
        numbers
    }

    fn all_reduce(&self, dtype: i32, op: i32) -> i32 {
        let (send, receive, count) = (self.send, self.receive, COUNT as u64);
        c!(self.hccl, HcclAllReduce(send, receive, count, dtype, op, self.comm, self.stream))
    }

    /// A sum over all, and a communicator that is busy.
    fn sum(&self) {
        self.fill();
        assert_eq!(self.all_reduce(INT32, SUM), OK);
        // Late by the machine's delay, so it is still at it.
        answers!(AGAIN, self.hccl, HcclCommDestroy(self.comm));
        let others: i32 = (0..self.ranks as i32).sum();
        let expected: Vec<i32> =
            (0..COUNT as i32).map(|one| one * self.ranks as i32 + others).collect();
        assert_eq!(self.result(), expected);
        answers!(OK, self.hccl, HcclCommDestroy(self.comm));
    }

    /// The last rank's process ends; the others hear of it, if it was on another host.
    fn death(&self) {
        say("joined");
        if self.rank + 1 == self.ranks {
            std::thread::sleep(Duration::from_secs(600));
            return;
        }
        self.fill();
        assert_eq!(self.all_reduce(INT32, SUM), OK);
        say("waits");
        let begin = Instant::now();
        let mut error = 0;
        while error == 0 && begin.elapsed() < Duration::from_secs(60) {
            answers!(OK, self.hccl, HcclGetCommAsyncError(self.comm, &raw mut error));
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(error, REMOTE);
    }
}

/// Two ranks of one process, and what is refused.
pub(crate) fn one_process(sdk: &Sdk) {
    let hccl = library(sdk);
    let mut root = RootInfo([0; 4108]);
    answers!(OK, sdk.acl, aclInit(std::ptr::null()));
    answers!(RUNTIME, hccl, HcclGetRootInfo(&raw mut root));
    sdk.on_card_again(0);
    let (twice, both) = ([1, 1], [0, 1]);
    let mut comms: [Word; 2] = [7; 2];
    answers!(PARA, hccl, HcclCommInitAll(2, twice.as_ptr(), comms.as_mut_ptr()));
    assert_eq!(comms, [7; 2], "outputs stay as they were");
    answers!(OK, hccl, HcclCommInitAll(2, both.as_ptr(), comms.as_mut_ptr()));
    let memory = sdk.card_memory(BYTES);
    let stream = sdk.stream();
    let [first, second] = comms;
    let reduce = |dtype, op, comm| {
        c!(hccl, HcclAllReduce(memory, memory, COUNT as u64, dtype, op, comm, stream))
    };
    assert_eq!(reduce(UINT8, SUM, first), NOT_SUPPORT);
    assert_eq!(reduce(FP64, SUM, first), NOT_SUPPORT);
    assert_eq!(reduce(BFP16, PRODUCT, first), NOT_SUPPORT);
    assert_eq!(reduce(FP32, AVERAGE, first), PARA, "there is no mean");
    assert_eq!(reduce(13, SUM, first), PARA, "no type has this number");
    assert_eq!(reduce(FP32, SUM, 0), PTR);
    assert_eq!(reduce(FP32, SUM, second), RUNTIME, "on another card than its own");
    let odd = memory + 2;
    answers!(PARA, hccl, HcclAllReduce(odd, memory, 2, FP32, SUM, first, stream));
    answers!(PTR, hccl, HcclReduce(memory, 0, 2, FP32, SUM, 1, first, stream));
    answers!(PARA, hccl, HcclBroadcast(memory, 2, FP32, 2, first, stream));
    let item =
        |kind, remote_rank| Item { kind, buffer: memory, count: 1, dtype: FP32, remote_rank };
    for wrong in [[item(0, 1), item(0, 1)], [item(0, 0), item(1, 1)], [item(0, 1), item(2, 1)]] {
        answers!(PARA, hccl, HcclBatchSendRecv(wrong.as_ptr(), 2, first, stream));
    }
    answers!(OK, hccl, HcclCommDestroy(first));
    answers!(OK, sdk.acl, aclrtSetDevice(1));
    answers!(OK, hccl, HcclCommDestroy(second));
}

impl Sdk {
    /// Chooses a card after the runtime was begun.
    fn on_card_again(&self, card: i32) {
        answers!(OK, self.acl, aclrtSetDevice(card));
    }
}
