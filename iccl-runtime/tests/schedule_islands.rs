//! Collectives over islands: random layouts of ranks, run by the interpreter of schedules and compared
//! with what the collective promises.

use std::sync::Arc;

use iccl_plugin_api::tables::{CollectiveSupport, collectives_flag};
use iccl_plugin_api::types::{Collective, DataType, RedOp};
use iccl_runtime::schedule::interpret::{Buffering, Options, interpret};
use iccl_runtime::schedule::{
    Algorithm, Block, CostModel, Counts, Finish, Island, Islands, NativeRules, Request, Schedule,
    StepKind, Verdict, compile, cost, select,
};
use iccl_runtime::topology::NativeAbilities;
use proptest::prelude::*;

/// A library that does everything, with these flags.
fn every(flags: u64) -> NativeAbilities {
    let support: Vec<CollectiveSupport> = Collective::ALL
        .iter()
        .map(|one| CollectiveSupport::new(*one, DataType::ALL, RedOp::ALL))
        .collect();
    NativeAbilities::new(flags, &support)
}

const LIBRARY_ROUNDS: NativeRules = NativeRules { library_rounds: true, deterministic: false };

/// Islands by the number of each rank's; 0 is a rank without a native library.
fn islands(layout: &[u32], abilities: &NativeAbilities, rules: NativeRules) -> Arc<Islands> {
    let numbers = 1..=layout.iter().copied().max().unwrap_or(0);
    let list = numbers.map(|number| Island {
        library: format!("library {number}"),
        ranks: (0..).zip(layout).filter(|(_, on)| **on == number).map(|(rank, _)| rank).collect(),
        abilities: abilities.clone(),
    });
    Arc::new(Islands::new(layout.len() as u32, list, rules))
}

fn all_reduce(layout: &[u32], dtype: DataType, op: RedOp, count: u64) -> Request {
    Request {
        collective: Collective::AllReduce,
        dtype,
        op,
        count,
        root: 0,
        rank: 0,
        ranks: layout.len() as u32,
        in_place: false,
        algorithm: Algorithm::Islands,
        chunk_bytes: 64,
        counts: None,
        islands: Some(islands(layout, &every(0), LIBRARY_ROUNDS)),
    }
}

fn compile_all(request: &Request) -> Vec<Schedule> {
    (0..request.ranks)
        .map(|rank| compile(&Request { rank, ..request.clone() }).expect("the request is legal"))
        .collect()
}

fn native_calls(schedule: &Schedule) -> usize {
    schedule.steps.iter().filter(|step| matches!(step.kind, StepKind::Native { .. })).count()
}

/// Two to five islands of one to six ranks each, and ranks on none, in any order.
fn layouts() -> impl Strategy<Value = Vec<u32>> {
    let sizes = prop::collection::vec(1_usize..=6, 2..=5);
    (sizes, 0_usize..=3)
        .prop_map(|(sizes, alone)| {
            let mut layout = vec![0; alone];
            for (number, size) in (1..).zip(sizes) {
                layout.extend(std::iter::repeat_n(number, size));
            }
            layout
        })
        .prop_filter("somebody shares an island", |layout| {
            (1..=5).any(|number| layout.iter().filter(|on| **on == number).count() > 1)
        })
        .prop_shuffle()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Counts of 0, 1, about the number of ranks, and odd ones; several chunks, in place and not.
    #[test]
    fn any_layout_of_islands_gives_every_rank_the_reduction_of_all(
        layout in layouts(),
        (about, off) in (0_u64..=4, 0_u64..=2),
        odd in 0_u64..400,
        op in prop::sample::select(vec![
            RedOp::Sum, RedOp::Prod, RedOp::Min, RedOp::Max, RedOp::Avg, RedOp::PreMulSum,
        ]),
        (in_place, unbounded) in any::<(bool, bool)>(),
        chunk_bytes in prop::sample::select(vec![1_u64, 16, 64, 256, 1 << 20]),
        seed in any::<u64>(),
    ) {
        let ranks = layout.len() as u64;
        let count = match about {
            0 => off,
            1 => ranks - 1 + off,
            2 => ranks * 7 + off,
            _ => odd,
        };
        let request =
            Request { in_place, chunk_bytes, ..all_reduce(&layout, DataType::F32, op, count) };
        let schedules = compile_all(&request);
        let buffering = if unbounded { Buffering::Unbounded } else { Buffering::Rendezvous };
        let mut outcome = interpret(&schedules, Options { buffering, seed })
            .map_err(|fault| TestCaseError::fail(format!("{layout:?} {request}: {fault}")))?;
        outcome
            .verify()
            .map_err(|fault| TestCaseError::fail(format!("{layout:?} {request}: {fault}")))?;
        for (on, schedule) in layout.iter().zip(&schedules) {
            let shares = layout.iter().filter(|other| *other == on).count() > 1;
            prop_assert_eq!(native_calls(schedule) > 0, *on > 0 && shares && count > 0);
        }
    }
}

/// The collectives of one owner for each part.
const OF_OWNERS: [Collective; 6] = [
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllGatherV,
    Collective::ReduceScatterV,
];

/// The call of each rank. Blocks of the vector forms have `count` elements and fewer, some none, with gaps
/// that differ from rank to rank.
fn calls(collective: Collective, base: &Request, gaps: u64) -> Vec<Request> {
    (0..base.ranks)
        .map(|rank| {
            let mut first = 0;
            let blocks: Vec<Block> = (0..base.ranks)
                .map(|of| {
                    let count =
                        if of % 3 == 1 { 0 } else { base.count.saturating_sub(u64::from(of)) };
                    first += (gaps + u64::from(rank)) % 3;
                    let block = Block { first, count };
                    first += count;
                    block
                })
                .collect();
            let counts = match collective {
                Collective::AllGatherV => Some(Arc::new(Counts::all_gather_v(blocks))),
                Collective::ReduceScatterV => Some(Arc::new(Counts::reduce_scatter_v(blocks))),
                _ => None,
            };
            let total = counts.as_ref().map(|counts| counts.total().expect("few"));
            let op = if collective.reduces() { base.op } else { RedOp::Sum };
            let count = total.unwrap_or(base.count);
            Request { collective, rank, count, op, counts, ..base.clone() }
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// As above, for all that is made of parts with an owner each; natively too where all are on one
    /// island. In place on some ranks only.
    #[test]
    fn any_layout_of_islands_carries_what_is_made_of_blocks(
        layout in layouts(),
        whole in any::<bool>(),
        collective in prop::sample::select(&OF_OWNERS[..]),
        op in prop::sample::select(vec![RedOp::Sum, RedOp::Max, RedOp::Avg, RedOp::PreMulSum]),
        count in prop_oneof![0_u64..=3, 0_u64..90],
        (root, gaps, seed) in any::<(u32, u8, u64)>(),
        in_place in prop::collection::vec(any::<bool>(), 32),
        (unbounded, any_flags) in any::<(bool, bool)>(),
        chunk_bytes in prop::sample::select(vec![1_u64, 16, 64, 1 << 20]),
    ) {
        let layout = if whole { vec![1; layout.len()] } else { layout };
        let ranks = layout.len() as u32;
        let flags = if any_flags { collectives_flag::IN_PLACE } else { 0 };
        let base = Request {
            chunk_bytes,
            root: root % ranks,
            algorithm: if whole && root % 2 == 0 { Algorithm::Native } else { Algorithm::Islands },
            islands: Some(islands(&layout, &every(flags), LIBRARY_ROUNDS)),
            ..all_reduce(&layout, DataType::F32, op, count)
        };
        let requests = calls(collective, &base, gaps.into());
        let schedules: Vec<Schedule> = requests
            .iter()
            .zip(in_place.iter().cycle())
            .map(|(request, in_place)| {
                compile(&Request { in_place: *in_place, ..request.clone() }).expect("legal")
            })
            .collect();
        let what = format!("{layout:?} {} by {}", requests[0], base.algorithm);
        let buffering = if unbounded { Buffering::Unbounded } else { Buffering::Rendezvous };
        let mut outcome = interpret(&schedules, Options { buffering, seed })
            .map_err(|fault| TestCaseError::fail(format!("{what}: {fault}")))?;
        outcome.verify().map_err(|fault| TestCaseError::fail(format!("{what}: {fault}")))?;
        for (on, schedule) in layout.iter().zip(&schedules) {
            let shares = layout.iter().filter(|other| *other == on).count() > 1;
            prop_assert_eq!(native_calls(schedule) > 0, *on > 0 && shares && requests[0].count > 0);
        }
        // All come to the same choice, however their buffers lie.
        let choice = |request: &Request| {
            select(request, None, false, &CostModel::default()).expect("one").considered
        };
        for request in &requests {
            prop_assert_eq!(choice(request), choice(&requests[0]));
        }
    }
}

/// What crosses between two islands of four: each block once, and each member sends a quarter of a broadcast.
#[test]
fn every_block_crosses_once_for_each_other_island() {
    let layout = [1, 2, 1, 2, 1, 2, 1, 2];
    let count = 1 << 16;
    for (collective, expected) in [
        (Collective::AllGather, [count * 4; 8]),
        (Collective::ReduceScatter, [count * 4; 8]),
        // The root is of the second island.
        (Collective::Broadcast, [0, count, 0, count, 0, count, 0, count]),
        (Collective::Reduce, [count, 0, count, 0, count, 0, count, 0]),
    ] {
        let base = all_reduce(&layout, DataType::F32, RedOp::Sum, count);
        let base = Request { chunk_bytes: 1 << 12, root: 3, ..base };
        for (request, expected) in calls(collective, &base, 0).iter().zip(expected) {
            let schedule = compile(request).expect("legal");
            let sent = |kind: &StepKind| match kind {
                StepKind::Send { source, .. } => source.bytes,
                _ => 0,
            };
            let sent: u64 = schedule.steps.iter().map(|step| sent(&step.kind)).sum();
            assert_eq!(sent, expected, "{request}, rank {}", request.rank);
            let found = cost(Algorithm::Islands, request);
            assert!(sent <= found.bytes && found.native_calls > 0, "{request}: {found:?}");
        }
    }
}

/// B004: the mean over ranks, not of islands' means. With 2 on one island and 4, 6 on another, these would
/// give 3.5.
#[test]
fn b004_the_mean_over_islands_is_that_over_ranks() {
    for layout in [[0, 1, 1], [1, 1, 0], [1, 0, 1], [1, 1, 1]] {
        let schedules = compile_all(&all_reduce(&layout, DataType::F32, RedOp::Avg, 5));
        let options = Options { buffering: Buffering::Rendezvous, seed: 4 };
        let mut outcome = interpret(&schedules, options).expect("no fault");
        for (rank, element) in [(0, 0), (1, 4), (2, 2)] {
            let mean = outcome.evaluate(
                rank,
                element,
                |rank| f64::from(2 * (rank + 1)),
                |values, finish| {
                    let sum: f64 = values.iter().sum();
                    match finish {
                        Finish::None => sum,
                        Finish::DivideByRanks(ranks) => sum / f64::from(ranks),
                    }
                },
            );
            assert_eq!(mean, Some(4.0), "{layout:?}");
        }
    }
}

/// Every owner sends and receives its share between islands, and no rank more than twice what it owns.
#[test]
fn every_member_carries_its_share_between_islands() {
    let layout = [1, 2, 1, 2, 1, 2, 1, 2];
    let count = 1 << 16;
    let request =
        Request { chunk_bytes: 1 << 12, ..all_reduce(&layout, DataType::F32, RedOp::Sum, count) };
    for schedule in compile_all(&request) {
        let sent: u64 = schedule
            .steps
            .iter()
            .map(|step| match step.kind {
                StepKind::Send { source, .. } => source.bytes,
                _ => 0,
            })
            .sum();
        assert_eq!(sent, count * 4 / 4, "rank {}", schedule.rank);
    }
}

fn refusal(request: &Request) -> String {
    let verdict = select(request, Some(request.algorithm), false, &CostModel::default());
    verdict.expect_err("it must be refused").to_string()
}

/// What libraries may not do is told with the library and the reason.
#[test]
fn b011_what_libraries_must_not_reduce_is_refused_with_the_reason() {
    let two = [1, 1, 2, 2];
    let whole = |request: Request| Request { algorithm: Algorithm::Native, ..request };
    let with = |request: Request, layout: &[u32], abilities: &NativeAbilities, rules| Request {
        islands: Some(islands(layout, abilities, rules)),
        ..request
    };
    let sum = |layout: &[u32], dtype| all_reduce(layout, dtype, RedOp::Sum, 100);
    let strict = NativeRules::default();

    let text = refusal(&with(sum(&two, DataType::F16), &two, &every(0), strict));
    assert!(text.contains("partial sums would travel as f16"), "{text}");
    let one = [1, 1, 1, 1];
    let text = refusal(&with(whole(sum(&one, DataType::Bf16)), &one, &every(0), strict));
    assert!(text.contains("library 1 does not declare that it sums bf16 so"), "{text}");
    let declares = every(collectives_flag::ACCUMULATES_IN_F32);
    let request = with(whole(sum(&one, DataType::Bf16)), &one, &declares, strict);
    assert!(compile(&request).is_ok());
    // Minima are not rounded.
    let smallest = all_reduce(&two, DataType::F16, RedOp::Min, 100);
    assert!(compile(&with(smallest, &two, &every(0), strict)).is_ok());

    let mean = |dtype| all_reduce(&two, dtype, RedOp::Avg, 100);
    let text = refusal(&mean(DataType::I32));
    assert!(text.contains("a native sum of i32 would wrap before it is divided"), "{text}");
    let text = refusal(&mean(DataType::F16));
    assert!(text.contains("a native sum of f16 may overflow where the mean does not"), "{text}");
    let text = refusal(&with(mean(DataType::F32), &two, &every(0), strict));
    assert!(text.contains("a native sum of f32 may overflow where the mean does not"), "{text}");
    assert!(compile(&mean(DataType::F32)).is_ok());

    let repeatable = NativeRules { deterministic: true, ..strict };
    let text = refusal(&with(sum(&two, DataType::F32), &two, &every(0), repeatable));
    assert!(text.contains("does not declare the same bits on every run"), "{text}");
    let text = refusal(&whole(sum(&two, DataType::F32)));
    assert!(text.contains("the ranks are on 2 islands"), "{text}");
    let text = refusal(&whole(sum(&[1, 0, 1, 1, 0], DataType::F32)));
    assert!(
        text.contains("no native library serves ranks 1, 4 together with the others"),
        "{text}"
    );
    let no_avg = NativeAbilities::new(
        0,
        &[CollectiveSupport::new(Collective::AllReduce, &[DataType::F32], &[RedOp::Sum])],
    );
    let request = whole(all_reduce(&one, DataType::F32, RedOp::Avg, 100));
    let text = refusal(&with(request, &one, &no_avg, strict));
    assert!(text.contains("library 1 does not offer all_reduce f32 avg"), "{text}");
}

/// Types that a library lacks are moved as bytes.
#[test]
fn what_a_library_cannot_name_is_moved_as_bytes() {
    let bytes_only = NativeAbilities::new(
        0,
        &[CollectiveSupport::new(Collective::AllGather, &[DataType::U8], &[])],
    );
    let request = Request {
        collective: Collective::AllGather,
        algorithm: Algorithm::Native,
        islands: Some(islands(&[1, 1, 1], &bytes_only, NativeRules::default())),
        ..all_reduce(&[1, 1, 1], DataType::F8E5M2, RedOp::Sum, 7)
    };
    let request = Request { dtype: DataType::I64, ..request };
    let schedules = compile_all(&request);
    let calls = schedules[0].steps.iter().filter_map(|step| match step.kind {
        StepKind::Native { call, .. } => Some((call.dtype, call.count)),
        _ => None,
    });
    assert_eq!(calls.collect::<Vec<_>>(), [(DataType::U8, 56)]);
    let options = Options { buffering: Buffering::Unbounded, seed: 1 };
    interpret(&schedules, options).expect("no fault").verify().expect("right");
}

/// Long vectors go natively where they may, short ones over the host's links; and it is always told why.
#[test]
fn the_choice_names_what_the_others_cost_or_why_not() {
    let choice = |layout: &[u32], count| {
        let request = Request {
            chunk_bytes: 1 << 19,
            ..all_reduce(layout, DataType::F32, RedOp::Sum, count)
        };
        select(&request, None, false, &CostModel::default()).expect("one")
    };
    assert_eq!(choice(&[1; 8], 1 << 24).algorithm, Algorithm::Native);
    assert_eq!(choice(&[1, 1, 1, 1, 2, 2, 2, 2], 1 << 24).algorithm, Algorithm::Islands);
    let choice = choice(&[0; 4], 1 << 24);
    assert_eq!(choice.algorithm, Algorithm::Owner);
    for (algorithm, verdict) in choice.considered {
        if matches!(algorithm, Algorithm::Native | Algorithm::Islands) {
            let Verdict::Refused(why) = verdict else { panic!("{algorithm} without a library") };
            assert!(why.contains("native library"), "{algorithm}: {why}");
        }
    }
}
