//! The soak: thousands of random operations on several communicators, streams and groups, which come
//! and go, every one compared in every byte. All ranks draw the same numbers.

use std::cell::Cell as Counter;

use iccl_plugin_api::{Collective, DataType, RedOp};
use iccl_runtime::comm::{Communicator, Group, Runtime};
use iccl_runtime::{Error, ErrorKind, Result};

use super::cell::{Alignment, Cell};
use super::rank::{Column, Known, Prepared, Slot, longest_buffer, say};
use super::{declared, product};
use crate::oracle::scramble;

/// How many operations are under way at once on one communicator.
const SLOTS: usize = 8;
/// The largest count.
const LONGEST: u64 = 20_000;
/// After so many operations the communicators are others.
const GENERATION: u64 = 1000;

/// Random numbers that are the same on all ranks.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        scramble(self.0)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Runs this rank of a soak of `draws` operations, a few of which are on communicators of which this rank
/// is no part. Says how many it took part in and how many of those were refused. Its place among the ranks comes from the environment.
///
/// # Errors
/// What was wrong first.
pub fn run(seed: u64, draws: u64) -> Result<()> {
    let world = Runtime::new()?.world()?;
    let known = Known::default();
    let mut random = Random(scramble(seed));
    let mut drawn = 0;
    let (mut ran, mut refused, mut communicators) = (0, 0, 0);
    while drawn < draws {
        let others = others(&world, &mut random)?;
        communicators += others.iter().flatten().count();
        let all: Vec<&Communicator> =
            [Some(&world)].into_iter().chain(others.iter().map(Option::as_ref)).flatten().collect();
        // Where this rank's communicators stand among those that there are.
        let places: Vec<Option<usize>> = [true]
            .into_iter()
            .chain(others.iter().map(Option::is_some))
            .scan(0, |next, is_here| {
                let place = is_here.then_some(*next);
                *next += usize::from(is_here);
                Some(place)
            })
            .collect();
        let barriers = Counter::new(0);
        let mut columns = Vec::with_capacity(all.len());
        for communicator in &all {
            let longest = longest(communicator.rank(), communicator.ranks());
            let slots = (0..SLOTS).map(|_| Slot::new(communicator, longest));
            columns.push(Column {
                slots: slots.collect::<Result<_>>()?,
                communicator,
                forced: None,
                known: &known,
                meeting: None,
                barriers: &barriers,
            });
        }
        let end = draws.min(drawn + GENERATION);
        while drawn < end {
            let count = (1 + random.below(12)).min(end - drawn);
            drawn += count;
            let of_batch = batch(&mut columns, &places, &mut random, count)?;
            ran += of_batch.0;
            refused += of_batch.1;
        }
        drop(columns);
        let mut others = others;
        // They are destroyed in an order of each rank's own.
        if world.rank() % 2 == 1 {
            others.reverse();
        }
        others.into_iter().flatten().try_for_each(|one| one.finalize())?;
    }
    world.finalize()?;
    say(&format!("done {ran} {refused} {communicators}"));
    Ok(())
}

/// A duplicate, and two splits: some ranks belong to no part of them.
fn others(world: &Communicator, random: &mut Random) -> Result<Vec<Option<Communicator>>> {
    let mut others = vec![Some(world.duplicate()?)];
    for _ in 0..2 {
        let draw = random.next();
        let mine = scramble(draw ^ u64::from(world.rank()));
        // One of two colors for most; the order of the ranks is another one, too.
        let color = (!mine.is_multiple_of(8)).then_some((mine >> 8) as u32 % 2);
        others.push(world.split(color, (mine >> 16) as i32 % 100)?);
    }
    Ok(others)
}

/// The longest buffer of any cell.
fn longest(rank: u32, ranks: u32) -> usize {
    let cell = Cell { dtype: DataType::F64, count: LONGEST, ..product::barrier() };
    let of = |collective| longest_buffer(&Cell { collective, ..cell }, rank, ranks);
    // Gaps between blocks come on top.
    product::collectives().map(of).max().unwrap_or(0) + 64 * ranks as usize
}

/// Several operations at once, perhaps in one group. In how many this rank had a part, and how many of
/// those were refused.
fn batch(
    columns: &mut [Column],
    places: &[Option<usize>],
    random: &mut Random,
    count: u64,
) -> Result<(u64, u64)> {
    let in_one_group = random.below(4) == 0;
    // By operation: column, slot and cell; nothing where this rank has no part.
    let mut drawn: Vec<(usize, usize, Cell)> = Vec::new();
    let mut used = vec![0; columns.len()];
    for _ in 0..count {
        let place = random.below(places.len() as u64) as usize;
        let draw = random.next();
        let Some(column) = places[place].filter(|column| used[*column] < SLOTS) else { continue };
        let cell = draw_cell(draw, columns[column].communicator.ranks(), in_one_group);
        drawn.push((column, used[column], cell));
        used[column] += 1;
    }
    let prepared: Vec<(&(usize, usize, Cell), Prepared)> = drawn
        .iter()
        .map(|one| {
            let (column, slot, cell) = one;
            let ranks = columns[*column].communicator.ranks();
            let refusal = declared::refusal(cell, ranks, None);
            (one, columns[*column].prepare(*slot, cell, refusal))
        })
        .collect();
    let group = in_one_group.then(Group::start);
    let begun: Vec<_> = prepared
        .iter()
        .map(|((column, slot, _), one)| {
            let column = &columns[*column];
            column.call(one, &column.slots[*slot])
        })
        .collect();
    group.map_or(Ok(()), Group::end)?;
    let mut refused = 0;
    // The last ones are waited for first.
    for (((column, slot, cell), one), begun) in prepared.iter().zip(&begun).rev() {
        let column = &columns[*column];
        let ended = match begun {
            Ok(handles) => column.finish(one, &column.slots[*slot], handles),
            Err(error) => Err(error.clone()),
        };
        if let Some(text) = one.judge(&ended).or_else(|| one.compare()) {
            return Err(Error::new(ErrorKind::Internal, format!("{cell}: {text}")));
        }
        refused += u64::from(one.refusal.is_some());
    }
    Ok((prepared.len() as u64, refused))
}

/// A random operation that is carried by some algorithm if its type can be reduced.
fn draw_cell(draw: u64, ranks: u32, in_one_group: bool) -> Cell {
    let mut random = Random(draw);
    let collectives: Vec<Collective> = product::collectives().collect();
    loop {
        let collective = collectives[random.below(collectives.len() as u64) as usize];
        let ops = product::ops(collective);
        let places = product::places(collective);
        // Short ones are drawn as often as long ones.
        let bits = random.below(16);
        let cell = Cell {
            collective,
            dtype: DataType::ALL[random.below(DataType::ALL.len() as u64) as usize],
            op: if collective.reduces() {
                ops[random.below(ops.len() as u64) as usize]
            } else {
                RedOp::Sum
            },
            in_place: places[random.below(places.len() as u64) as usize],
            count: if collective == Collective::Barrier {
                0
            } else {
                random.below(1 << bits).min(LONGEST)
            },
            root: if collective.has_root() { random.below(u64::from(ranks)) as u32 } else { 0 },
            alignment: Alignment::ALL[random.below(4) as usize],
            grouped: !in_one_group && random.below(4) == 0,
        };
        // A call that is refused takes its group with it.
        if !in_one_group || declared::refusal(&cell, ranks, None).is_none() {
            return cell;
        }
    }
}
