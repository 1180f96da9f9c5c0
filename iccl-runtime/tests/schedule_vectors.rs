//! The vector forms: any counts, zero ones included, at any displacements; and what must not be.

use std::sync::Arc;

use iccl_plugin_api::types::{Collective, DataType, RedOp};
use iccl_runtime::ErrorKind;
use iccl_runtime::schedule::interpret::{Buffering, Fault, Options, interpret};
use iccl_runtime::schedule::{
    Algorithm, Block, Counts, Request, Schedule, StepKind, compile, cost,
};
use proptest::prelude::*;

const FORMS: [Collective; 5] = [
    Collective::AllGatherV,
    Collective::ReduceScatterV,
    Collective::GatherV,
    Collective::ScatterV,
    Collective::AllToAllV,
];

fn request(collective: Collective, rank: u32, ranks: u32, root: u32, counts: Counts) -> Request {
    let knows_all = matches!(collective, Collective::AllGatherV | Collective::ReduceScatterV);
    Request {
        collective,
        dtype: DataType::I32,
        op: RedOp::Sum,
        count: if knows_all { counts.total().expect("it can be counted") } else { 0 },
        root,
        rank,
        ranks,
        in_place: false,
        algorithm: if ranks == 1 { Algorithm::Local } else { Algorithm::Direct },
        chunk_bytes: 16,
        counts: Some(Arc::new(counts)),
        islands: None,
    }
}

/// Everything at random: `counts[from][to]`, and how blocks lie in a buffer.
#[derive(Clone, Debug)]
struct Case {
    collective: Collective,
    ranks: u32,
    root: u32,
    counts: Vec<Vec<u64>>,
    /// Gaps before each block, and which block comes first; for each rank and buffer in turn.
    gaps: Vec<Vec<u64>>,
    orders: Vec<Vec<usize>>,
    in_place: bool,
    op: RedOp,
    chunk_bytes: u64,
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    (1..8_usize).prop_flat_map(|ranks| {
        let count = prop_oneof![2 => Just(0_u64), 3 => 1..6_u64, 1 => 6..40_u64];
        let order = Just((0..ranks).collect::<Vec<usize>>()).prop_shuffle();
        (
            prop::sample::select(&FORMS[..]),
            0..ranks as u32,
            prop::collection::vec(prop::collection::vec(count, ranks), ranks),
            prop::collection::vec(prop::collection::vec(0..3_u64, ranks), 2 * ranks),
            prop::collection::vec(order, 2 * ranks),
            any::<(bool, u64)>(),
            prop::sample::select(&[RedOp::Sum, RedOp::Avg, RedOp::PreMulSum][..]),
            prop::sample::select(&[1_u64, 16, 1 << 20][..]),
        )
            .prop_map(
                move |(collective, root, counts, gaps, orders, flags, op, chunk_bytes)| Case {
                    collective,
                    ranks: ranks as u32,
                    root,
                    counts,
                    gaps,
                    orders,
                    in_place: flags.0 && collective != Collective::AllToAllV,
                    op,
                    chunk_bytes,
                    seed: flags.1,
                },
            )
    })
}

impl Case {
    /// Blocks of these lengths, in this buffer's order and with its gaps.
    fn lay(&self, counts: &[u64], buffer: usize) -> Vec<Block> {
        let mut blocks = vec![Block::default(); counts.len()];
        let mut first = 0;
        for (gap, rank) in self.gaps[buffer].iter().zip(&self.orders[buffer]) {
            first += gap;
            blocks[*rank] = Block { first, count: counts[*rank] };
            first += counts[*rank];
        }
        blocks
    }

    /// The call of one rank.
    fn request(&self, rank: u32) -> Request {
        let (this, root) = (rank as usize, self.root as usize);
        let (send, recv) = (2 * this, 2 * this + 1);
        // The forms with one list of counts take the first row.
        let listed = &self.counts[0];
        let row = &self.counts[this];
        let column: Vec<u64> = self.counts.iter().map(|row| row[this]).collect();
        let on_root = |blocks: Vec<Block>| if this == root { blocks } else { Vec::new() };
        let counts = match self.collective {
            Collective::AllGatherV => Counts::all_gather_v(self.lay(listed, recv)),
            Collective::ReduceScatterV => Counts::reduce_scatter_v(self.lay(listed, send)),
            Collective::GatherV => Counts::gather_v(listed[this], on_root(self.lay(listed, recv))),
            Collective::ScatterV => {
                Counts::scatter_v(on_root(self.lay(listed, send)), listed[this])
            }
            _ => Counts::all_to_all_v(self.lay(row, send), self.lay(&column, recv)),
        };
        let reduces = self.collective == Collective::ReduceScatterV;
        Request {
            op: if reduces { self.op } else { RedOp::Sum },
            in_place: self.in_place,
            chunk_bytes: self.chunk_bytes,
            ..request(self.collective, rank, self.ranks, self.root, counts)
        }
    }

    fn compile_all(&self) -> Vec<Schedule> {
        (0..self.ranks).map(|rank| compile(&self.request(rank)).expect("legal")).collect()
    }
}

fn prove(schedules: &[Schedule], buffering: Buffering, seed: u64) -> Result<(), Fault> {
    interpret(schedules, Options { buffering, seed }).and_then(|mut outcome| outcome.verify())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// B018, B021.
    #[test]
    fn b018_any_blocks_come_to_their_places(case in cases()) {
        let schedules = case.compile_all();
        for buffering in [Buffering::Rendezvous, Buffering::Unbounded] {
            prop_assert_eq!(prove(&schedules, buffering, case.seed), Ok(()));
        }
    }

    /// What a rank is said to do is what its schedule does.
    #[test]
    fn costs_are_what_the_schedules_do(case in cases()) {
        for rank in (0..case.ranks).filter(|_| case.ranks > 1) {
            let request = case.request(rank);
            let schedule = compile(&request).expect("legal");
            let found = cost(Algorithm::Direct, &request);
            let (mut sent, mut received, mut reduced, mut gates) = ((0, 0), (0, 0), 0, 0);
            for step in &schedule.steps {
                match &step.kind {
                    StepKind::Send { source, .. } => sent = (sent.0 + 1, sent.1 + source.bytes),
                    StepKind::Recv { destination, .. } => {
                        received = (received.0 + 1, received.1 + destination.bytes);
                    }
                    StepKind::Reduce { .. } => {
                        let reads = schedule.reads(&step.kind).iter();
                        reduced += reads.map(|slice| slice.bytes).sum::<u64>();
                    }
                    StepKind::GateSend { .. } => gates += 1,
                    StepKind::Copy { .. }
            | StepKind::Scale { .. }
            | StepKind::Native { .. }
            | StepKind::GateRecv { .. } => {}
                }
            }
            prop_assert_eq!(found.messages, u64::max(sent.0, received.0));
            prop_assert_eq!(found.bytes, u64::max(sent.1, received.1));
            prop_assert_eq!(found.reduced_bytes, reduced);
            prop_assert_eq!(found.gate_rounds, gates);
        }
    }

    /// Two ranks that do not agree on the length of a block hear of it, and no byte of the receiver's
    /// buffer is written.
    #[test]
    fn b018_counts_are_compared_pair_by_pair(case in cases(), at in any::<(u32, u32)>()) {
        let pairwise =
            [Collective::GatherV, Collective::ScatterV, Collective::AllToAllV].contains(&case.collective);
        prop_assume!(case.ranks > 1 && pairwise);
        let wrong = at.0 % case.ranks;
        let peer = (wrong + 1 + at.1 % (case.ranks - 1)) % case.ranks;
        let mut other = case.clone();
        match case.collective {
            Collective::AllToAllV => other.counts[wrong as usize][peer as usize] += 1,
            _ => other.counts[0][peer as usize] += 1,
        }
        let (wrong, peer) = match case.collective {
            // The rank that is wrong about its own block is the peer.
            Collective::AllToAllV => (wrong, peer),
            _ if peer == case.root => return Err(TestCaseError::reject("the root knows its own")),
            _ => (peer, case.root),
        };
        let mut schedules = case.compile_all();
        schedules[wrong as usize] = compile(&other.request(wrong)).expect("legal by itself");
        match prove(&schedules, Buffering::Rendezvous, case.seed) {
            Err(Fault::Disagreement { from, to, field: "count", .. }) => {
                let pair = [from.min(to), from.max(to)];
                prop_assert_eq!(pair, [wrong.min(peer), wrong.max(peer)]);
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }
}

/// The case that goes wrong elsewhere: one rank sends nothing at all, blocks of two sizes.
#[test]
fn b018_all_to_all_with_zero_blocks() {
    for block in [4, 7_077_888] {
        let counts = [[[1, 1], [1, 0]], [[0, 0], [1, 0]]];
        let schedules: Vec<Schedule> = (0..2)
            .map(|rank| {
                let [send, recv] =
                    counts[rank].map(|counts| Counts::packed(&counts.map(|one| one * block)));
                let counts = Counts::all_to_all_v(send, recv);
                let request = request(Collective::AllToAllV, rank as u32, 2, 0, counts);
                compile(&Request { chunk_bytes: 1 << 20, ..request }).expect("legal")
            })
            .collect();
        // Rank 1 sends nothing: its buffer may be null.
        assert_eq!((schedules[1].send_bytes, schedules[1].recv_bytes), (0, 4 * block));
        prove(&schedules, Buffering::Rendezvous, block).expect("right");
    }
    // Nothing at all, and one idle rank of four: everyone still hears from everyone.
    for idle in [0..4, 2..3] {
        let count = |from: u32, to: u32| u64::from(!idle.contains(&from) && !idle.contains(&to));
        let schedules: Vec<Schedule> = (0..4)
            .map(|rank| {
                let send: Vec<u64> = (0..4).map(|to| count(rank, to)).collect();
                let recv: Vec<u64> = (0..4).map(|from| count(from, rank)).collect();
                let counts = Counts::all_to_all_v(Counts::packed(&send), Counts::packed(&recv));
                compile(&request(Collective::AllToAllV, rank, 4, 0, counts)).expect("legal")
            })
            .collect();
        prove(&schedules, Buffering::Rendezvous, 1).expect("right");
        for schedule in &schedules {
            let sends =
                schedule.steps.iter().filter(|step| matches!(step.kind, StepKind::Send { .. }));
            assert_eq!(sends.count(), 3);
        }
    }
}

fn refused(request: &Request, words: &str) {
    let error = compile(request).expect_err(words);
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn b018_lists_that_make_no_sense_are_refused() {
    use Collective::{AllGatherV, AllToAllV, GatherV, ReduceScatterV, ScatterV};
    let three = || Counts::packed(&[1, 2, 3]);
    let overlap = || {
        vec![
            Block { first: 0, count: 3 },
            Block { first: 9, count: 0 },
            Block { first: 2, count: 1 },
        ]
    };
    for (request, words) in [
        (
            request(AllToAllV, 0, 4, 0, Counts::all_to_all_v(three(), Counts::packed(&[1; 4]))),
            "gives 3 send counts, and 4 are needed",
        ),
        (
            request(AllToAllV, 0, 3, 0, Counts::all_to_all_v(three(), Counts::packed(&[2, 1, 1]))),
            "sends itself 1 elements and receives 2",
        ),
        (
            request(
                AllToAllV,
                0,
                3,
                0,
                Counts::all_to_all_v(Counts::packed(&[3, 0, 0]), overlap()),
            ),
            "the receive blocks of ranks 0 and 2 overlap",
        ),
        (
            request(AllGatherV, 0, 3, 0, Counts::all_gather_v(overlap())),
            "the receive blocks of ranks 0 and 2 overlap",
        ),
        (
            request(ReduceScatterV, 0, 3, 0, Counts::reduce_scatter_v(overlap())),
            "the send blocks of ranks 0 and 2 overlap",
        ),
        (
            request(GatherV, 1, 3, 0, Counts::gather_v(1, three())),
            "gives 3 receive counts, and 0 are needed",
        ),
        (
            request(GatherV, 0, 3, 0, Counts::gather_v(1, Vec::new())),
            "gives 0 receive counts, and 3 are needed",
        ),
        (
            request(GatherV, 1, 3, 1, Counts::gather_v(1, three())),
            "rank 1 sends itself 1 elements and receives 2",
        ),
        (
            request(ScatterV, 2, 3, 2, Counts::scatter_v(three(), 2)),
            "sends itself 3 elements and receives 2",
        ),
    ] {
        refused(&request, words);
    }
    let legal = request(AllGatherV, 0, 3, 0, Counts::all_gather_v(three()));
    refused(&Request { count: 7, ..legal.clone() }, "the count of the request is 7, not 6");
    refused(&Request { counts: None, ..legal.clone() }, "needs a count for each rank");
    refused(&Request { collective: Collective::AllGather, ..legal }, "takes one count");
    let exchange = Counts::all_to_all_v(Counts::packed(&[1; 3]), Counts::packed(&[1; 3]));
    let exchange = request(AllToAllV, 0, 3, 0, exchange);
    refused(&Request { in_place: true, ..exchange }, "cannot be done in place");
}

/// B025: blocks that reach further than any buffer, and totals that cannot be counted.
#[test]
fn b025_blocks_beyond_all_buffers_are_refused() {
    let far = |first, count| vec![Block { first, count }, Block::default()];
    for (blocks, count) in [
        (far(u64::MAX, 1), 1),
        (far(1 << 62, 1), 1),
        (far(0, u64::MAX), u64::MAX),
        (far((1 << 61) - 1, 1), 1),
    ] {
        let counts = Counts::all_gather_v(blocks);
        let request = Request { count, ..request(Collective::AllGatherV, 0, 2, 0, counts) };
        refused(&request, "reach further than any buffer");
    }
    let uncountable = Counts::all_to_all_v(far(0, u64::MAX), far(0, u64::MAX));
    refused(&request(Collective::AllToAllV, 0, 2, 0, uncountable), "reach further");
    // The displacement of an empty block means nothing.
    let empty = Counts::all_gather_v(far(u64::MAX, 0));
    assert!(compile(&request(Collective::AllGatherV, 0, 2, 0, empty)).is_ok());
}

/// B025: 2^33 elements and more, without their data.
#[test]
fn b025_huge_blocks() {
    for collective in FORMS {
        let listed = [(1 << 31) + 17, 0, 1 << 33];
        let blocks = || {
            vec![
                Block { first: 1 << 34, count: listed[0] },
                Block::default(),
                Block { first: 5, count: listed[2] },
            ]
        };
        let schedules: Vec<Schedule> = (0..3)
            .map(|rank| {
                let on_root = if rank == 2 { blocks() } else { Vec::new() };
                let own = listed[rank as usize];
                let counts = match collective {
                    Collective::AllGatherV => Counts::all_gather_v(blocks()),
                    Collective::ReduceScatterV => Counts::reduce_scatter_v(blocks()),
                    Collective::GatherV => Counts::gather_v(own, on_root),
                    Collective::ScatterV => Counts::scatter_v(on_root, own),
                    // Everyone sends the same to everyone: rank r gets `listed[from]` from each.
                    _ => Counts::all_to_all_v(Counts::packed(&[own; 3]), blocks()),
                };
                let request = request(collective, rank, 3, 2, counts);
                compile(&Request { chunk_bytes: 1 << 28, ..request }).expect("legal")
            })
            .collect();
        prove(&schedules, Buffering::Rendezvous, 7).expect("right");
        let short = compile(&Request {
            chunk_bytes: 4096,
            ..request(
                collective,
                2,
                3,
                2,
                match collective {
                    Collective::AllGatherV => Counts::all_gather_v(blocks()),
                    Collective::ReduceScatterV => Counts::reduce_scatter_v(blocks()),
                    Collective::GatherV => Counts::gather_v(listed[2], blocks()),
                    Collective::ScatterV => Counts::scatter_v(blocks(), listed[2]),
                    _ => Counts::all_to_all_v(Counts::packed(&[listed[2]; 3]), blocks()),
                },
            )
        })
        .expect("legal");
        assert!((10_000..101_000).contains(&short.steps.len()), "{}", short.steps.len());
    }
}
