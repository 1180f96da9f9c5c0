//! What is tried with BKCL.

use std::fmt::Write as _;

use crate::symbols::{Bkcl, Word, bkcl};
use crate::{Sdk, address, answers, c, say};

const OK: i32 = 0;
const INVALID_ARGUMENT: i32 = 1;
const RUNTIME_ERROR: i32 = 2;
const ABNORMAL: i32 = -713;

const COUNT: usize = 4;

/// The made-up numbers of a library's header.
struct Numbers {
    id_bytes: usize,
    float: i32,
    int64: i32,
    add: i32,
}

impl Sdk {
    fn numbers(&self) -> Numbers {
        if self.is_new {
            Numbers { id_bytes: 240, float: 0, int64: 6, add: 0 }
        } else {
            Numbers { id_bytes: 192, float: 11, int64: 20, add: 5 }
        }
    }

    fn bkcl(&self) -> Bkcl {
        bkcl(&self.folder.join("libbkcl.so"), self.is_new)
    }
}

/// `rank ranks id-or-dash`: joins, and sums with the others.
pub(crate) fn rank(sdk: &Sdk, words: &[&str]) {
    let [rank, ranks, told] = words else { panic!("{words:?}") };
    let (rank, ranks): (i32, i32) = (rank.parse().expect("a rank"), ranks.parse().expect("ranks"));
    let (bkcl, numbers) = (sdk.bkcl(), sdk.numbers());
    let mut id = vec![0xee_u8; numbers.id_bytes + 8];
    if *told == "-" {
        answers!(OK, bkcl, bkcl_get_unique_id(id.as_mut_ptr()));
        assert_eq!(id[numbers.id_bytes..], [0xee; 8], "it is no longer than it says");
        let text = id.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        say(&format!("id {text}"));
    } else {
        for (index, byte) in id.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&told[2 * index..2 * index + 2], 16).expect("hexadecimal");
        }
    }
    answers!(OK, sdk.xpu, xpu_set_device(rank));
    let mut context = 0;
    answers!(INVALID_ARGUMENT, bkcl, bkcl_init_rank(&raw mut context, ranks, rank, id.as_ptr()));
    answers!(OK, bkcl, bkcl_init_rank(&raw mut context, rank, ranks, id.as_ptr()));
    let (send, receive) = (sdk.on_card(&[rank as f32; COUNT]), sdk.on_card(&[0_f32; COUNT]));
    let (stream, Numbers { float, add, .. }) = (sdk.stream(), numbers);
    answers!(OK, bkcl, bkcl_all_reduce(context, send, receive, COUNT, float, add, stream));
    answers!(OK, sdk.xpu, xpu_wait(stream));
    let sum: i32 = (0..ranks).sum();
    assert_eq!(sdk.read::<f32>(receive, COUNT), [sum as f32; COUNT]);
    answers!(OK, bkcl, bkcl_destroy_context(context));
}

/// Both ranks of a process, and a stream and memory of the first.
fn two_ranks(sdk: &Sdk, bkcl: &Bkcl) -> ([Word; 2], Word, Word) {
    let mut contexts = [0; 2];
    answers!(OK, bkcl, bkcl_comm_init_all(contexts.as_mut_ptr(), 2, [0, 1].as_ptr()));
    (contexts, sdk.stream(), sdk.on_card(&[1_f32; 2 * COUNT]))
}

pub(crate) fn refusals(sdk: &Sdk) {
    let (bkcl, numbers) = (sdk.bkcl(), sdk.numbers());
    let ([first, second], stream, memory) = two_ranks(sdk, &bkcl);
    let Numbers { float, int64, add, .. } = numbers;
    let reduce = |context, dtype, op| {
        c!(bkcl, bkcl_all_reduce(context, memory, memory, COUNT, dtype, op, stream))
    };
    assert_eq!(reduce(first, 99, add), INVALID_ARGUMENT, "no type has this number");
    assert_eq!(reduce(first, float, 99), INVALID_ARGUMENT, "no operation has this number");
    assert_eq!(reduce(0, float, add), INVALID_ARGUMENT, "no context");
    assert_eq!(reduce(second, float, add), RUNTIME_ERROR, "the current card is another one");
    if !sdk.is_new {
        let broadcast = c!(bkcl, bkcl_broadcast(first, memory, memory, COUNT, int64, 0, stream));
        assert_eq!(broadcast, INVALID_ARGUMENT, "older libraries broadcast no i64");
    }
    // One send to each peer in a group, and one group in a process.
    let send = || c!(bkcl, bkcl_send(first, memory, COUNT, 1, float, stream));
    answers!(OK, bkcl, bkcl_group_start());
    assert_eq!(send(), OK);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| (c!(bkcl, bkcl_group_start()), c!(bkcl, bkcl_group_end())));
        assert_eq!(other.join().expect("no panic"), (RUNTIME_ERROR, INVALID_ARGUMENT));
    });
    assert_eq!(send(), RUNTIME_ERROR);
    answers!(RUNTIME_ERROR, bkcl, bkcl_group_end());
    answers!(INVALID_ARGUMENT, bkcl, bkcl_group_end());
    // Nothing of the group has happened.
    answers!(OK, sdk.xpu, xpu_wait(stream));
    for context in [first, second] {
        answers!(OK, bkcl, bkcl_destroy_context(context));
        answers!(INVALID_ARGUMENT, bkcl, bkcl_destroy_context(context));
    }
}

/// A card cannot read the host's memory: counts that lie there break it.
pub(crate) fn counts_in_host_memory(sdk: &Sdk) {
    let (bkcl, float) = (sdk.bkcl(), sdk.numbers().float);
    let ([first, _], stream, memory) = two_ranks(sdk, &bkcl);
    let counts = [1_u64, 1];
    let host = address(&counts);
    let on_card = sdk.on_card(&counts);
    let half = memory + 4 * COUNT as u64;
    let call = |counts| {
        c!(
            bkcl,
            bkcl_all_to_all_v(
                first, memory, counts, on_card, float, half, on_card, on_card, float, stream
            )
        )
    };
    assert_eq!(call(host), OK, "it is seen when the stream comes there");
    answers!(ABNORMAL, sdk.xpu, xpu_wait(stream));
}
