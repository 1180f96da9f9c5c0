//! The fifteen further checks of a cluster.

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::bootstrap::UniqueId;
use iccl_runtime::comm::{Buffer, Communicator, Counts, Element, Handle};

use super::super::benchmark::{Case, Operation};
use super::part::{Found, Ranks, f32_sum};
use crate::cluster::Order;
use crate::failure::Result;

/// A check, and the layout that it is about.
pub(super) struct Check {
    /// A stable name.
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) cards: Cards,
    pub(super) order: Order,
    pub(super) run: fn(&mut Ranks) -> Result<()>,
}

/// How many cards each node has.
#[derive(Clone, Copy)]
pub(super) enum Cards {
    AsTheyAre,
    /// These, and again from the first.
    Each(&'static [u32]),
    /// Three on at most three nodes.
    ThreeInAll,
}

pub(super) const CHECKS: [Check; 15] = [
    Check {
        name: "unequal-cards",
        what: "unequal cards per node",
        cards: Cards::Each(&[3, 1, 2]),
        order: Order::ByNode,
        run: usual,
    },
    Check {
        name: "interleaved",
        what: "interleaved process order",
        cards: Cards::Each(&[2]),
        order: Order::Interleaved,
        run: usual,
    },
    as_it_is("in-place", "input and output the same buffer", in_place),
    as_it_is("zero-and-odd", "zero and odd counts", zero_and_odd),
    as_it_is("indivisible", "counts that the ranks do not divide", indivisible),
    Check {
        name: "one-card",
        what: "one-card nodes",
        cards: Cards::Each(&[1]),
        order: Order::ByNode,
        run: usual,
    },
    Check {
        name: "reversed",
        what: "reversed ranks",
        cards: Cards::AsTheyAre,
        order: Order::Reversed,
        run: usual,
    },
    as_it_is("repeated-init", "repeated init", repeated_init),
    as_it_is("two-communicators", "two communicators at once", two_communicators),
    as_it_is("sub-communicators", "sub-communicators", sub_communicators),
    as_it_is("every-root", "broadcast from every root", every_root),
    as_it_is("empty-blocks", "all-to-all-v with zero blocks", empty_blocks),
    as_it_is("back-to-back", "back-to-back sizes", back_to_back),
    as_it_is("mixed-types", "mixed types in a row", mixed_types),
    Check {
        name: "average",
        what: "AVG of 2, 4, 6 is 4",
        cards: Cards::ThreeInAll,
        order: Order::ByNode,
        run: average,
    },
];

const fn as_it_is(
    name: &'static str,
    what: &'static str,
    run: fn(&mut Ranks) -> Result<()>,
) -> Check {
    Check { name, what, cards: Cards::AsTheyAre, order: Order::ByNode, run }
}

/// The operations that have elements.
fn all_operations() -> Vec<Case> {
    let moving = Operation::ALL.into_iter().filter(|operation| operation.moves_elements());
    moving.map(f32_sum).collect()
}

/// What a layout is tried with.
fn usual(ranks: &mut Ranks) -> Result<()> {
    ranks.cases(&all_operations(), &[1, 1000], false)
}

fn in_place(ranks: &mut Ranks) -> Result<()> {
    let cases: Vec<Case> =
        all_operations().into_iter().filter(|case| case.operation.can_be_in_place()).collect();
    ranks.cases(&cases, &[1000], true)
}

fn zero_and_odd(ranks: &mut Ranks) -> Result<()> {
    ranks.cases(&all_operations(), &[0, 1, 3, 17], false)
}

/// Primes: pieces of vectors and of chunks differ in length.
fn indivisible(ranks: &mut Ranks) -> Result<()> {
    let cases = [Operation::AllReduce, Operation::ReduceScatter, Operation::Reduce].map(f32_sum);
    ranks.cases(&cases, &[1009, 10_007], false)
}

fn every_root(ranks: &mut Ranks) -> Result<()> {
    let broadcast = f32_sum(Operation::Broadcast);
    let roots = 0..ranks.communicator.ranks();
    let cases: Vec<Case> = roots.map(|root| Case { root: Some(root), ..broadcast }).collect();
    ranks.cases(&cases, &[1, 1000], false)
}

/// Each type after another, reduced and moved.
fn mixed_types(ranks: &mut Ranks) -> Result<()> {
    let mut cases = Vec::new();
    for dtype in DataType::ALL {
        cases.push(Case { dtype: *dtype, ..f32_sum(Operation::AllReduce) });
        cases.push(Case { dtype: *dtype, ..f32_sum(Operation::AllGather) });
    }
    ranks.cases(&cases, &[333], false)
}

/// The sum over all ranks of rank + 1.
fn sum_of_ranks(communicator: &Communicator) -> i32 {
    (1..=communicator.ranks() as i32).sum()
}

/// A verified sum on a communicator.
fn sums(communicator: &Communicator, count: usize, found: &mut Found) -> Result<()> {
    let sum = Prepared::new(communicator, count, 1)?;
    sum.enqueue(communicator)?.wait()?;
    found.compare(&sum.receive, &sum.expected)
}

/// Communicators of the same ranks, made and ended one after the other.
fn repeated_init(ranks: &mut Ranks) -> Result<()> {
    let first = ranks.communicator;
    for round in 0..3 {
        let bytes = if first.rank() == 0 {
            ranks.runtime.unique_id()?.to_bytes()
        } else {
            [0; UniqueId::BYTES]
        };
        let id = first.device().buffer_from(&bytes)?;
        let count = bytes.len() as u64;
        first.broadcast(Some(&id), &id, count, DataType::U8, 0, first.stream())?.wait()?;
        let id = UniqueId::from_bytes(&id.read::<u8>()?)?;
        let again = ranks.runtime.communicator(&id, first.rank(), first.ranks())?;
        let mut found = Found::default();
        sums(&again, 1000, &mut found)?;
        again.finalize()?;
        ranks.all_agree(&format!("init {}", round + 2), &found)?;
    }
    Ok(())
}

/// A sum of which the memory is there before anything is under way: makers' libraries may wait for
/// their cards when memory is allocated.
struct Prepared {
    send: Buffer,
    receive: Buffer,
    expected: Vec<i32>,
}

impl Prepared {
    fn new(communicator: &Communicator, count: usize, factor: i32) -> Result<Self> {
        let device = communicator.device();
        let own = (communicator.rank() as i32 + 1) * factor;
        Ok(Self {
            send: device.buffer_from(&vec![own; count])?,
            receive: device.allocate::<i32>(count)?,
            expected: vec![sum_of_ranks(communicator) * factor; count],
        })
    }

    fn enqueue(&self, communicator: &Communicator) -> Result<Handle> {
        let (count, stream) = (self.expected.len() as u64, communicator.stream());
        let (dtype, op) = (DataType::I32, RedOp::Sum);
        Ok(communicator.all_reduce(&self.send, &self.receive, count, dtype, op, stream)?)
    }

    fn verify(&self, ranks: &mut Ranks) -> Result<()> {
        let mut found = Found::default();
        found.compare(&self.receive, &self.expected)?;
        ranks.all_agree("all_reduce", &found)
    }
}

/// Operations of two communicators under way at once.
fn two_communicators(ranks: &mut Ranks) -> Result<()> {
    let first = ranks.communicator;
    let second = first.duplicate()?;
    let each = (1..=8).map(|factor| {
        let communicator = if factor % 2 == 0 { &second } else { first };
        Ok((communicator, Prepared::new(communicator, 5000, factor)?))
    });
    let sums = each.collect::<Result<Vec<_>>>()?;
    let handles = sums
        .iter()
        .map(|(communicator, sum)| sum.enqueue(communicator))
        .collect::<Result<Vec<_>>>()?;
    handles.iter().try_for_each(Handle::wait)?;
    sums.iter().try_for_each(|(_, sum)| sum.verify(ranks))?;
    second.finalize()?;
    Ok(())
}

/// Ranks of odd and even number apart, in the opposite order.
fn sub_communicators(ranks: &mut Ranks) -> Result<()> {
    let whole = ranks.communicator;
    let (rank, size) = (whole.rank(), whole.ranks());
    let mut found = Found::default();
    if let Some(part) = whole.split(Some(rank % 2), -(rank as i32))? {
        let members: Vec<u32> = (0..size).rev().filter(|other| other % 2 == rank % 2).collect();
        let send = part.device().buffer_from(&[rank])?;
        let receive = part.device().allocate::<u32>(part.ranks() as usize)?;
        part.all_gather(&send, &receive, 1, DataType::U32, part.stream())?.wait()?;
        found.compare(&receive, &members)?;
        sums(&part, 1000, &mut found)?;
        part.finalize()?;
    }
    ranks.all_agree("split", &found)
}

/// Blocks of every length from nothing to three elements.
fn empty_blocks(ranks: &mut Ranks) -> Result<()> {
    let whole = ranks.communicator;
    let (rank, size) = (u64::from(whole.rank()), u64::from(whole.ranks()));
    for round in 0..4 {
        let length = |from: u64, to: u64| (from * 3 + to * 5 + round) % 4;
        let element = |from: u64, to: u64, place: u64| (from * 10_000 + to * 100 + place) as i32;
        let vector = |blocks: &dyn Fn(u64) -> (u64, u64)| -> Vec<i32> {
            let pairs = (0..size).map(blocks);
            pairs
                .flat_map(|(from, to)| (0..length(from, to)).map(move |i| element(from, to, i)))
                .collect()
        };
        let sent = vector(&|other| (rank, other));
        let expected = vector(&|other| (other, rank));
        let lengths = |blocks: &dyn Fn(u64) -> u64| (0..size).map(blocks).collect::<Vec<u64>>();
        let send_blocks = Counts::packed(&lengths(&|other| length(rank, other)));
        let receive_blocks = Counts::packed(&lengths(&|other| length(other, rank)));
        let send = whole.device().buffer_from(&sent)?;
        let receive = whole.device().buffer_from(&vec![-1; expected.len()])?;
        let (dtype, stream) = (DataType::I32, whole.stream());
        whole
            .all_to_all_v(&send, &send_blocks, &receive, &receive_blocks, dtype, stream)?
            .wait()?;
        let mut found = Found::default();
        found.compare(&receive, &expected)?;
        ranks.all_agree("all_to_all_v", &found)?;
    }
    Ok(())
}

/// Operations of very different sizes, none waited for before the next.
fn back_to_back(ranks: &mut Ranks) -> Result<()> {
    const COUNTS: [usize; 8] = [1, 50_000, 3, 4096, 100_003, 17, 1, 20_000];
    let whole = ranks.communicator;
    let each = (1..).zip(COUNTS).map(|(factor, count)| Prepared::new(whole, count, factor));
    let sums = each.collect::<Result<Vec<_>>>()?;
    let handles = sums.iter().map(|sum| sum.enqueue(whole)).collect::<Result<Vec<_>>>()?;
    handles.iter().try_for_each(Handle::wait)?;
    sums.iter().try_for_each(|sum| sum.verify(ranks))
}

/// 2, 4 and 6 on three ranks.
fn average(ranks: &mut Ranks) -> Result<()> {
    averages(ranks, DataType::F32, [2.0_f32, 4.0, 6.0])?;
    averages(ranks, DataType::F64, [2.0_f64, 4.0, 6.0])?;
    // The bits of 2, 4 and 6.
    averages(ranks, DataType::F16, [0x4000_u16, 0x4400, 0x4600])?;
    averages(ranks, DataType::Bf16, [0x4000_u16, 0x4080, 0x40c0])?;
    averages(ranks, DataType::I32, [2_i32, 4, 6])?;
    averages(ranks, DataType::I64, [2_i64, 4, 6])?;
    averages(ranks, DataType::U8, [2_u8, 4, 6])
}

fn averages<T: Element + PartialEq>(
    ranks: &mut Ranks,
    dtype: DataType,
    values: [T; 3],
) -> Result<()> {
    const COUNT: usize = 1000;
    let whole = ranks.communicator;
    let own = values[whole.rank() as usize % values.len()];
    let send = whole.device().buffer_from(&[own; COUNT])?;
    let receive = whole.device().buffer_from(&[own; COUNT])?;
    let stream = whole.stream();
    whole.all_reduce(&send, &receive, COUNT as u64, dtype, RedOp::Avg, stream)?.wait()?;
    let mut found = Found::default();
    found.compare(&receive, &[values[1]; COUNT])?;
    ranks.all_agree(&format!("all_reduce {dtype} avg"), &found)
}
