//! Collectives over islands whose parts have an owner each: native libraries move or reduce them inside
//! islands, iccl carries each across once per island.
//!
//! The parts are the blocks of all-gather, reduce-scatter and their vector forms; broadcast and reduce
//! have one, the root's. They go chunk by chunk. On each other island a **deputy** stands for the owner; it
//! changes from block to block and from chunk to chunk, so that all members carry their share.
//!
//! * Gathering (all-gather, broadcast): the owner's island broadcasts the chunk natively, the owner sends it
//!   to the deputies (in a broadcast a member of the root's island does, each in turn), and these
//!   broadcast it on their islands.
//! * Reducing (reduce-scatter, reduce): each island reduces the chunk natively to its deputy, on the owner's
//!   island to the owner. The deputies send the partial results to the owner, which combines all of them and
//!   divides once for AVG.
//!
//! A rank on no island is its own deputy. A native call is for one block, since the blocks of an island's
//! ranks need not lie side by side; so chunks are as much longer than messages as the largest island has
//! ranks.

use iccl_plugin_api::types::{Collective, RedOp};

use super::all_reduce::islands::{Map, native_op};
use super::builder::Builder;
use super::cost::Cost;
use super::cuts::{Cut, aligned, chunk_elements};
use super::islands::Islands;
use super::types::{Buffer, IslandCall, Request, Slice};

/// How many chunks are under way.
const WINDOW: u64 = 4;
/// How many stages after its first native call a chunk is broadcast on other islands, or combined. Less
/// than the window, so that a slot's last reader stands before its next writer.
const LAG: u64 = 2;

/// What islands must offer besides being there: see `refusal` of all-reduce.
pub(super) const fn needs(collective: Collective) -> &'static [Collective] {
    if collective.reduces() { &[Collective::Reduce] } else { &[Collective::Broadcast] }
}

/// How blocks are cut.
struct Cutting {
    /// Elements of a message.
    message: u64,
    /// Elements of a chunk.
    chunk: u64,
}

impl Cutting {
    fn new(request: &Request, map: &Map<'_>) -> Self {
        let lengths = (0..request.ranks).map(|rank| length(request, rank));
        let longest = lengths.clone().max().unwrap_or(0);
        let blocks = lengths.filter(|length| *length > 0).count() as u64;
        let (largest, groups) = (map.largest(), map.groups.len() as u64);
        let steps = blocks.max(1) * (3 + 2 * groups * largest);
        let message = chunk_elements(
            request.chunk_bytes,
            request.element_bytes(),
            longest.div_ceil(largest),
            steps,
        );
        Self { message, chunk: message.saturating_mul(largest) }
    }

    /// Chunk `number` of a block, counted from its start.
    fn get(&self, length: u64, number: u64) -> Option<Cut> {
        let block = Cut::whole(length);
        (number < block.chunks(self.chunk)).then(|| block.chunk(self.chunk, number))
    }

    /// The messages of a chunk.
    fn messages(&self, cut: Cut) -> impl Iterator<Item = Cut> + use<> {
        let message = self.message;
        (0..cut.chunks(message)).map(move |number| cut.chunk(message, number))
    }

    /// How many messages a block is.
    fn count(&self, length: u64) -> u64 {
        let (chunks, rest) = (length / self.chunk, length % self.chunk);
        chunks * self.chunk.div_ceil(self.message) + rest.div_ceil(self.message)
    }
}

/// Elements of the part that a rank owns.
fn length(request: &Request, owner: u32) -> u64 {
    match request.collective {
        Collective::Broadcast | Collective::Reduce if owner != request.root => 0,
        Collective::AllGatherV => request.recv_block(owner).elements,
        Collective::ReduceScatterV => request.send_block(owner).elements,
        _ => request.count,
    }
}

pub(super) fn compile(builder: &mut Builder<'_>) {
    let request = builder.request;
    let all: Vec<u32> = (0..request.ranks).collect();
    let Some(islands) = request.islands.as_deref() else {
        unreachable!("refused before it was compiled")
    };
    let map = Map::new(islands, &all, request.rank);
    builder.gate();
    let cutting = Cutting::new(request, &map);
    let parts: Vec<(u32, u64)> = (0..request.ranks)
        .map(|owner| (owner, length(request, owner)))
        .filter(|(_, length)| *length > 0)
        .collect();
    if let Some(island) = map.group().island.filter(|_| !parts.is_empty()) {
        builder.on_island(&island.ranks);
    }
    let longest = parts.iter().map(|(_, length)| *length).max().unwrap_or(0);
    let chunks = Cut::whole(longest).chunks(cutting.chunk);
    let work = Work { request, map: &map, cutting, bytes: request.element_bytes() };
    // What is done with each part, and how many stages late.
    let gathering: [(u64, Stage<'_, '_>); 2] = [(0, Work::hand_out), (LAG, Work::pass_on)];
    let reducing: [(u64, Stage<'_, '_>); 3] =
        [(0, Work::reduce_inside), (1, Work::exchange), (LAG, Work::combine)];
    let stages: &[(u64, Stage<'_, '_>)] =
        if request.collective.reduces() { &reducing } else { &gathering };
    for time in 0..chunks + LAG {
        for (late, stage) in stages {
            let Some(number) = time.checked_sub(*late) else { continue };
            for (owner, length) in &parts {
                let Some(cut) = work.cutting.get(*length, number) else { continue };
                let part = Part { owner: *owner, home: map.group_of(*owner), number, cut };
                stage(&work, builder, &part);
            }
        }
    }
}

/// Something that is done with a part.
type Stage<'r, 'p> = fn(&Work<'r>, &mut Builder<'p>, &Part);

/// One chunk of what one rank owns.
struct Part {
    owner: u32,
    /// The group of the owner.
    home: usize,
    number: u64,
    /// Counted from the start of the block.
    cut: Cut,
}

struct Work<'a> {
    request: &'a Request,
    map: &'a Map<'a>,
    cutting: Cutting,
    /// Of an element.
    bytes: u64,
}

impl Work<'_> {
    /// Who stands for the owner in a group, as a place in it, and the how many-th part of the chunk this is
    /// for which it does.
    fn deputy(&self, part: &Part, group: usize) -> (usize, u64) {
        let ranks = self.map.groups[group].ranks;
        let size = ranks.len() as u64;
        if group == part.home {
            let own = ranks.iter().position(|rank| *rank == part.owner).unwrap_or(0);
            // In a broadcast members of the root's island send in turn, the root first.
            let turn =
                if self.request.collective == Collective::Broadcast { part.number } else { 0 };
            return (((own as u64 + turn) % size) as usize, 0);
        }
        let before = ranks.iter().filter(|rank| **rank < part.owner).count() as u64;
        let foreign = u64::from(part.owner) - before;
        (((foreign + part.number) % size) as usize, foreign / size)
    }

    fn deputy_rank(&self, part: &Part, group: usize) -> u32 {
        self.map.groups[group].ranks[self.deputy(part, group).0]
    }

    /// Where a deputy keeps a part on its card. The owner of a part keeps its own in front of all.
    fn slot(&self, builder: &mut Builder<'_>, part: &Part) -> Slice {
        let own = self.map.own.0;
        let place = if own == part.home { 0 } else { 1 + self.deputy(part, own).1 };
        let slot = place * WINDOW + part.number % WINDOW;
        let all = aligned(self.cutting.chunk * self.bytes);
        let slice = Slice {
            buffer: Buffer::DeviceScratch,
            offset: slot * all,
            bytes: part.cut.elements * self.bytes,
        };
        builder.reserve_device_scratch(slice.end());
        slice
    }

    /// What of a chunk that lies in `slice` a message is.
    fn message(&self, slice: Slice, part: &Part, message: Cut) -> Slice {
        let offset = slice.offset + (message.first - part.cut.first) * self.bytes;
        Slice { offset, bytes: message.elements * self.bytes, ..slice }
    }

    fn nothing() -> Slice {
        Slice { buffer: Buffer::DeviceScratch, offset: 0, bytes: 0 }
    }

    /// A part's place in the receive buffer of a collective that gathers.
    fn gathered(&self, builder: &Builder<'_>, part: &Part) -> Slice {
        let block = self.request.recv_block(part.owner);
        builder.slice(Buffer::Recv, part.cut.inside(block))
    }

    /// Broadcasts a part on this rank's island, from the member at `place`, where it lies at `source`.
    fn broadcast(&self, builder: &mut Builder<'_>, part: &Part, place: usize, source: Slice) {
        let group = self.map.group();
        let Some(island) = group.island else { return };
        let (dtype, factor) = Islands::moves_as(island, Collective::Broadcast, self.request.dtype)
            .unwrap_or_else(|why| unreachable!("refused before it was compiled: {why}"));
        let call = IslandCall {
            collective: Collective::Broadcast,
            dtype,
            op: None,
            count: part.cut.elements * factor,
            root: place as u32,
        };
        let is_root = group.ranks[place] == self.request.rank;
        let mut destination = self.gathered(builder, part);
        let is_there = builder.in_place() && part.owner == self.request.rank;
        if is_there && !island.abilities.works_in_place() {
            destination = self.slot(builder, part);
        }
        builder.native(call, if is_root { source } else { Self::nothing() }, destination);
    }

    /// The owner's island has the part, and whoever sends it does.
    fn hand_out(&self, builder: &mut Builder<'_>, part: &Part) {
        let rank = self.request.rank;
        let own = builder.slice(Buffer::Send, part.cut);
        let is_home = self.map.own.0 == part.home;
        if is_home {
            let ranks = self.map.group().ranks;
            let place = ranks.iter().position(|one| *one == part.owner).unwrap_or(0);
            match self.map.group().island {
                Some(_) => self.broadcast(builder, part, place, own),
                None => builder.copy_own(part.cut),
            }
        }
        let sender = self.deputy_rank(part, part.home);
        let source = if rank == part.owner { own } else { self.gathered(builder, part) };
        for group in (0..self.map.groups.len()).filter(|group| *group != part.home) {
            let deputy = self.deputy_rank(part, group);
            for message in self.cutting.messages(part.cut) {
                if rank == sender {
                    builder.send(deputy, self.message(source, part, message), message);
                } else if rank == deputy {
                    let held = self.held(builder, part);
                    builder.recv(sender, self.message(held, part, message), message);
                }
            }
        }
    }

    /// Where a deputy receives what it broadcasts; a rank of its own has it in its place.
    fn held(&self, builder: &mut Builder<'_>, part: &Part) -> Slice {
        match self.map.group().island {
            Some(_) => self.slot(builder, part),
            None => self.gathered(builder, part),
        }
    }

    /// Another island has the part from its deputy.
    fn pass_on(&self, builder: &mut Builder<'_>, part: &Part) {
        let own = self.map.own.0;
        if own == part.home || self.map.group().island.is_none() {
            return;
        }
        let (place, _) = self.deputy(part, own);
        let is_deputy = self.map.group().ranks[place] == self.request.rank;
        let source = if is_deputy { self.slot(builder, part) } else { Self::nothing() };
        self.broadcast(builder, part, place, source);
    }

    /// What this rank gives of a part.
    fn given(&self, builder: &Builder<'_>, part: &Part) -> Slice {
        let block = self.request.send_block(part.owner);
        builder.slice(Buffer::Send, part.cut.inside(block))
    }

    /// Each island reduces the part to its deputy.
    fn reduce_inside(&self, builder: &mut Builder<'_>, part: &Part) {
        let group = self.map.group();
        if group.island.is_none() {
            return;
        }
        let Request { dtype, op, rank, .. } = *self.request;
        let (place, _) = self.deputy(part, self.map.own.0);
        let is_deputy = group.ranks[place] == rank;
        let destination = if is_deputy { self.slot(builder, part) } else { Self::nothing() };
        let call = IslandCall {
            collective: Collective::Reduce,
            dtype,
            op: Some(native_op(op)),
            count: part.cut.elements,
            root: place as u32,
        };
        builder.native(call, self.given(builder, part), destination);
    }

    /// The partial result of this rank's island, on its deputy.
    fn partial(&self, builder: &mut Builder<'_>, part: &Part) -> Slice {
        match self.map.group().island {
            Some(_) => self.slot(builder, part),
            None => self.given(builder, part),
        }
    }

    /// Where the owner has the partial result of another group.
    fn received(&self, builder: &mut Builder<'_>, part: &Part, group: usize) -> Slice {
        let place = group as u64 * WINDOW + part.number % WINDOW;
        let all = aligned(self.cutting.chunk * self.bytes);
        let bytes = part.cut.elements * self.bytes;
        let slice = Slice { buffer: Buffer::Scratch, offset: place * all, bytes };
        builder.reserve_scratch(slice.end());
        slice
    }

    /// Partial results go to the owner.
    fn exchange(&self, builder: &mut Builder<'_>, part: &Part) {
        let rank = self.request.rank;
        for group in (0..self.map.groups.len()).filter(|group| *group != part.home) {
            let deputy = self.deputy_rank(part, group);
            for message in self.cutting.messages(part.cut) {
                if rank == part.owner {
                    let received = self.received(builder, part, group);
                    builder.recv(deputy, self.message(received, part, message), message);
                } else if rank == deputy {
                    let partial = self.partial(builder, part);
                    builder.send(part.owner, self.message(partial, part, message), message);
                }
            }
        }
    }

    /// The owner combines all partial results.
    fn combine(&self, builder: &mut Builder<'_>, part: &Part) {
        if self.request.rank != part.owner {
            return;
        }
        let own = self.partial(builder, part);
        let result = builder.slice(Buffer::Recv, part.cut);
        if self.map.groups.len() == 1 && self.request.op != RedOp::Avg {
            builder.copy(own, result);
            return;
        }
        let sources: Vec<Slice> = (0..self.map.groups.len())
            .map(|group| if group == part.home { own } else { self.received(builder, part, group) })
            .collect();
        builder.reduce(sources, result, true);
    }
}

/// The busiest rank; deputies are taken to have equal shares.
pub(super) fn cost(request: &Request) -> Cost {
    let all: Vec<u32> = (0..request.ranks).collect();
    let Some(islands) = request.islands.as_deref() else { return Cost::default() };
    let map = Map::new(islands, &all, 0);
    let cutting = Cutting::new(request, &map);
    let others = map.groups.len() as u64 - 1;
    let lengths: Vec<u64> = all.iter().map(|owner| length(request, *owner)).collect();
    let load = |length: u64| (cutting.count(length), length);
    let sum = |one: (u64, u64), other: (u64, u64)| (one.0 + other.0, one.1.saturating_add(other.1));
    let whole = lengths.iter().map(|length| load(*length)).fold((0, 0), sum);
    let (mut messages, mut elements) = (0, 0);
    for group in &map.groups {
        let mine: Vec<(u64, u64)> =
            group.ranks.iter().map(|rank| load(lengths[*rank as usize])).collect();
        let inside = mine.iter().copied().fold((0, 0), sum);
        let shares = if request.collective == Collective::Broadcast { group.size() } else { 1 };
        for owned in mine {
            messages = messages.max((owned.0 * others).div_ceil(shares));
            elements = elements.max(owned.1.saturating_mul(others).div_ceil(shares));
        }
        messages = messages.max((whole.0 - inside.0).div_ceil(group.size()));
        elements = elements.max((whole.1 - inside.1).div_ceil(group.size()));
    }
    let combines = request.collective.reduces() && (others > 0 || request.op == RedOp::Avg);
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let calls = lengths.iter().map(|length| Cut::whole(*length).chunks(cutting.chunk)).sum();
    let bytes = |elements: u64| elements.saturating_mul(request.element_bytes());
    Cost {
        rounds: others.min(1),
        messages,
        bytes: bytes(elements),
        reduced_bytes: if combines { bytes(longest.saturating_mul(others + 1)) } else { 0 },
        native_calls: calls,
        native_bytes: bytes(whole.1),
        ..Cost::default()
    }
}
