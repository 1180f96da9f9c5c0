//! All-reduce over islands: native libraries reduce inside islands, iccl between them.
//!
//! For each chunk of the vector, each island reduces and scatters: its members own equal parts, and the
//! last one also what is left over. A rank that is on no island owns the whole. The elements are
//! then cut at the **union of all islands' borders**, so each piece has exactly one owner on each island.
//! These send their partial results to the one that finishes the piece; it combines all of them, divides
//! once for AVG, and sends the result back. Last, each island gathers its parts.
//!
//! Which owner finishes which share of a piece's elements goes by the size of its island: an owner on a
//! small island has more elements to send already. Bytes between islands are at most twice what an
//! owner owns; no rank of an island sends what another of it owns.
//!
//! Chunks flow through a window of scratch. In the sequence, stage t is: the native reductions of
//! chunk t, the partial results of chunk t − 1, what finishes chunk t − 2, and the native gathering of
//! chunk t − 3: so libraries, network and arithmetic overlap.

use iccl_plugin_api::types::{Collective, RedOp};

use super::super::builder::Builder;
use super::super::cost::Cost;
use super::super::cuts::{Cut, aligned, chunk_elements};
use super::super::island_blocks;
use super::super::islands::{Island, Islands};
use super::super::types::{Buffer, IslandCall, Request, Slice};

/// How many chunks are under way.
const WINDOW: u64 = 4;
/// How many stages after its native reduction a chunk's partial results travel, are combined, and
/// are gathered. All less than the window, so that a slot's last reader stands before its next writer.
const TRAVELS: u64 = 1;
const FINISHES: u64 = 2;
const GATHERED: u64 = 3;

/// What each library must offer.
const NEEDS: &[Collective] =
    &[Collective::ReduceScatter, Collective::Reduce, Collective::AllGather, Collective::Broadcast];

/// Why islands cannot carry the request, whichever collective it is, or `None` if they can.
pub(in super::super) fn refusal(request: &Request) -> Option<String> {
    let Request { dtype, op, collective, .. } = *request;
    let islands = request.islands.as_deref().filter(|islands| !islands.list().is_empty());
    let Some(islands) = islands else {
        return Some("no native library serves two ranks together".into());
    };
    let rounds = dtype.is_narrow_float() && !matches!(op, RedOp::Min | RedOp::Max);
    if op == RedOp::Avg && dtype.is_integer() {
        return Some(format!("a native sum of {dtype} would wrap before it is divided"));
    }
    if op == RedOp::Avg && dtype.is_narrow_float() && dtype != iccl_plugin_api::DataType::Bf16 {
        return Some(format!("a native sum of {dtype} may overflow where the mean does not"));
    }
    if op == RedOp::Avg && !islands.rules().library_rounds {
        return Some(format!(
            "numerics.accumulate is \"f32\", and a native sum of {dtype} may overflow where the mean does not"
        ));
    }
    let is_rounded_again = islands.whole().is_err() || op == RedOp::Avg;
    if rounds && is_rounded_again && !islands.rules().library_rounds {
        return Some(format!(
            "numerics.accumulate is \"f32\", and partial sums would travel as {dtype}"
        ));
    }
    let needs = match collective {
        Collective::AllReduce => NEEDS,
        _ => island_blocks::needs(collective),
    };
    let refuses = |island: &Island| {
        needs.iter().find_map(|one| {
            if one.reduces() {
                islands.refusal_to_reduce(island, *one, dtype, native_op(op))
            } else {
                Islands::moves_as(island, *one, dtype).err()
            }
        })
    };
    islands.list().iter().find_map(refuses)
}

/// What libraries are asked for: the mean is made of a sum, and products are made before.
pub(in super::super) const fn native_op(op: RedOp) -> RedOp {
    match op {
        RedOp::Avg | RedOp::PreMulSum => RedOp::Sum,
        other => other,
    }
}

/// The ranks as islands, in the order of their lowest ranks; a rank that no library serves together
/// with others is an island of its own.
pub(in super::super) struct Map<'a> {
    pub(in super::super) groups: Vec<Group<'a>>,
    /// The island of this rank, and its place there.
    pub(in super::super) own: (usize, u64),
}

pub(in super::super) struct Group<'a> {
    pub(in super::super) ranks: &'a [u32],
    /// `None` for a rank of its own.
    pub(in super::super) island: Option<&'a Island>,
}

impl Group<'_> {
    pub(in super::super) fn size(&self) -> u64 {
        self.ranks.len() as u64
    }

    /// What the member at `place` owns of a chunk, counted from the start of the chunk.
    fn owned(&self, chunk: Cut, place: u64) -> Cut {
        let even = chunk.elements / self.size();
        let rest = if place + 1 == self.size() { chunk.elements % self.size() } else { 0 };
        Cut { first: even * place, elements: even + rest }
    }

    /// The member that owns an element of a chunk.
    fn owner(&self, chunk: Cut, element: u64) -> u32 {
        let even = chunk.elements / self.size();
        let last = self.size() - 1;
        let place = element.checked_div(even).map_or(last, |place| place.min(last));
        self.ranks[place as usize]
    }
}

/// Elements of a chunk that one rank of each island owns, and one of these finishes.
struct Piece {
    /// Counted from the start of the chunk.
    cut: Cut,
    /// The owners, by island.
    owners: Vec<u32>,
    finisher: u32,
}

impl Piece {
    fn others(&self) -> impl Iterator<Item = u32> + '_ {
        self.owners.iter().copied().filter(|owner| *owner != self.finisher)
    }
}

impl<'a> Map<'a> {
    pub(in super::super) fn new(islands: &'a Islands, all: &'a [u32], rank: u32) -> Self {
        let mut groups: Vec<Group<'a>> = Vec::new();
        for (place, one) in all.iter().enumerate() {
            match islands.of(*one) {
                Some(island) if island.ranks[0] == *one => {
                    groups.push(Group { ranks: &island.ranks, island: Some(island) });
                }
                Some(_) => {}
                None => groups.push(Group { ranks: &all[place..=place], island: None }),
            }
        }
        let own = groups.iter().enumerate().find_map(|(index, group)| {
            let place = group.ranks.iter().position(|member| *member == rank)?;
            Some((index, place as u64))
        });
        let own = own.unwrap_or_else(|| unreachable!("every rank is on an island or its own"));
        Self { groups, own }
    }

    pub(in super::super) fn largest(&self) -> u64 {
        self.groups.iter().map(Group::size).max().unwrap_or(1)
    }

    pub(in super::super) fn group(&self) -> &Group<'a> {
        &self.groups[self.own.0]
    }

    /// The island that a rank is on.
    pub(in super::super) fn group_of(&self, rank: u32) -> usize {
        let group = self.groups.iter().position(|group| group.ranks.contains(&rank));
        group.unwrap_or_else(|| unreachable!("every rank is on an island or its own"))
    }

    /// The pieces of a chunk, in the order of their elements.
    fn pieces(&self, chunk: Cut) -> Vec<Piece> {
        let borders = |group: &Group<'_>| -> Vec<u64> {
            (0..group.size()).map(|place| group.owned(chunk, place).first).collect()
        };
        let mut starts: Vec<u64> = self.groups.iter().flat_map(borders).collect();
        starts.push(chunk.elements);
        starts.sort_unstable();
        starts.dedup();
        let all: u64 = self.groups.iter().map(Group::size).sum();
        let share = |elements: u64, size: u64| {
            (u128::from(elements) * u128::from(size) / u128::from(all)) as u64
        };
        let mut pieces = Vec::new();
        for ends in starts.windows(2) {
            let (first, elements) = (ends[0], ends[1] - ends[0]);
            let owner = |group: &Group<'_>| group.owner(chunk, first);
            let owners: Vec<u32> = self.groups.iter().map(owner).collect();
            let mut before = 0;
            for (group, finisher) in self.groups.iter().zip(&owners) {
                let start = share(elements, before);
                before += group.size();
                let end = share(elements, before);
                if start < end {
                    let cut = Cut { first: first + start, elements: end - start };
                    pieces.push(Piece { cut, owners: owners.clone(), finisher: *finisher });
                }
            }
        }
        pieces
    }
}

pub(in super::super) fn compile(builder: &mut Builder<'_>) {
    let request = builder.request;
    let all: Vec<u32> = (0..request.ranks).collect();
    let islands = request
        .islands
        .as_deref()
        .unwrap_or_else(|| unreachable!("refused before it was compiled"));
    let map = Map::new(islands, &all, request.rank);
    builder.gate();
    if request.count == 0 {
        return;
    }
    if let Some(island) = map.group().island {
        builder.on_island(&island.ranks);
    }
    let whole = Cut::whole(request.count);
    let chunk = chunk(request, &map);
    let chunks = whole.chunks(chunk);
    let stages = Stages::new(builder, &map, whole.chunk(chunk, 0), whole.chunk(chunk, chunks - 1));
    let at = |number: Option<u64>| {
        number.filter(|number| *number < chunks).map(|number| (number, whole.chunk(chunk, number)))
    };
    for stage in 0..chunks + GATHERED {
        if let Some((number, cut)) = at(Some(stage)) {
            stages.reduce_inside(builder, number, cut);
        }
        if let Some((number, cut)) = at(stage.checked_sub(TRAVELS)) {
            stages.exchange(builder, number, cut);
        }
        if let Some((number, cut)) = at(stage.checked_sub(FINISHES)) {
            stages.finish(builder, number, cut);
        }
        if let Some((number, cut)) = at(stage.checked_sub(GATHERED)) {
            stages.gather_inside(builder, number, cut);
        }
    }
}

/// What is done with each chunk.
struct Stages<'a> {
    map: &'a Map<'a>,
    rank: u32,
    element_bytes: u64,
    /// Bytes of the part that this rank owns of a chunk, in the device's scratch.
    part_bytes: u64,
    /// Bytes of what others send it to finish of a chunk, in scratch.
    partial_bytes: u64,
}

impl<'a> Stages<'a> {
    fn new(builder: &mut Builder<'_>, map: &'a Map<'a>, first: Cut, last: Cut) -> Self {
        let (rank, element_bytes) = (builder.request.rank, builder.element_bytes);
        let mut stages = Self { map, rank, element_bytes, part_bytes: 0, partial_bytes: 0 };
        let mut partial_bytes = 0;
        for chunk in [first, last] {
            let part = map.group().owned(chunk, map.own.1).elements * element_bytes;
            stages.part_bytes = stages.part_bytes.max(aligned(part));
            let partials = stages.partials(0, &map.pieces(chunk));
            let bytes = partials.iter().map(|(_, partial)| aligned(partial.bytes)).sum();
            partial_bytes = u64::max(partial_bytes, bytes);
        }
        stages.partial_bytes = partial_bytes;
        if map.group().island.is_some() {
            builder.reserve_device_scratch(stages.part_bytes * WINDOW);
        }
        builder.reserve_scratch(stages.partial_bytes * WINDOW);
        stages
    }

    /// What others send this rank to finish of a chunk, in the order of the pieces and their owners: from
    /// whom, and where it lies.
    fn partials(&self, number: u64, pieces: &[Piece]) -> Vec<(u32, Slice)> {
        let mut offset = self.partial_bytes * (number % WINDOW);
        let mut list = Vec::new();
        for piece in pieces.iter().filter(|piece| piece.finisher == self.rank) {
            let bytes = piece.cut.elements * self.element_bytes;
            for other in piece.others() {
                list.push((other, Slice { buffer: Buffer::Scratch, offset, bytes }));
                offset += aligned(bytes);
            }
        }
        list
    }

    /// Where this rank has its island's partial result of a piece that it owns: a rank of its own in the
    /// send buffer.
    fn contribution(&self, number: u64, chunk: Cut, piece: Cut) -> Slice {
        match self.map.group().island {
            Some(_) => self.part(number, chunk, piece),
            None => piece.inside(chunk).within(Buffer::Send, self.element_bytes),
        }
    }

    /// Where this rank puts the result of a piece that it owns.
    fn result(&self, number: u64, chunk: Cut, piece: Cut) -> Slice {
        match self.map.group().island {
            Some(_) => self.part(number, chunk, piece),
            None => piece.inside(chunk).within(Buffer::Recv, self.element_bytes),
        }
    }

    /// A piece of the part that this rank owns, in the device's scratch.
    fn part(&self, number: u64, chunk: Cut, piece: Cut) -> Slice {
        let first = self.map.group().owned(chunk, self.map.own.1).first;
        Slice {
            buffer: Buffer::DeviceScratch,
            offset: self.part_bytes * (number % WINDOW)
                + (piece.first - first) * self.element_bytes,
            bytes: piece.elements * self.element_bytes,
        }
    }

    /// The even part of a chunk, and what is left over.
    fn even_and_rest(&self, chunk: Cut) -> (Cut, Cut) {
        let even = chunk.elements / self.map.group().size() * self.map.group().size();
        (Cut { elements: even, ..chunk }, chunk.after(even))
    }

    /// The part of this rank of the even part, and of the rest, which is the last one's.
    fn own_parts(&self, number: u64, chunk: Cut) -> (Slice, Slice) {
        let group = self.map.group();
        let owned = group.owned(chunk, self.map.own.1);
        let even = Cut { elements: chunk.elements / group.size(), ..owned };
        let rest = owned.after(even.elements);
        (self.part(number, chunk, even), self.part(number, chunk, rest))
    }

    fn reduce_inside(&self, builder: &mut Builder<'_>, number: u64, chunk: Cut) {
        if self.map.group().island.is_none() {
            return;
        }
        let Request { dtype, op, .. } = *builder.request;
        let (even, rest) = self.even_and_rest(chunk);
        let (own_even, own_rest) = self.own_parts(number, chunk);
        let last = self.map.group().size() as u32 - 1;
        let call = |collective, count, root| IslandCall {
            collective,
            dtype,
            op: Some(native_op(op)),
            count,
            root,
        };
        if even.elements > 0 {
            let count = even.elements / self.map.group().size();
            let source = builder.slice(Buffer::Send, even);
            builder.native(call(Collective::ReduceScatter, count, 0), source, own_even);
        }
        if rest.elements > 0 {
            let source = builder.slice(Buffer::Send, rest);
            builder.native(call(Collective::Reduce, rest.elements, last), source, own_rest);
        }
    }

    fn exchange(&self, builder: &mut Builder<'_>, number: u64, chunk: Cut) {
        let pieces = self.map.pieces(chunk);
        let mut partials = self.partials(number, &pieces).into_iter();
        for piece in &pieces {
            let place = piece.cut.inside(chunk);
            if piece.finisher == self.rank {
                for (other, partial) in partials.by_ref().take(piece.others().count()) {
                    builder.recv(other, partial, place);
                }
            } else if piece.owners.contains(&self.rank) {
                let contribution = self.contribution(number, chunk, piece.cut);
                builder.send(piece.finisher, contribution, place);
            }
        }
    }

    fn finish(&self, builder: &mut Builder<'_>, number: u64, chunk: Cut) {
        let is_mean = builder.request.op == RedOp::Avg;
        let pieces = self.map.pieces(chunk);
        let mut partials = self.partials(number, &pieces).into_iter();
        for piece in &pieces {
            if !piece.owners.contains(&self.rank) {
                continue;
            }
            let place = piece.cut.inside(chunk);
            let result = self.result(number, chunk, piece.cut);
            if piece.finisher != self.rank {
                builder.recv(piece.finisher, result, place);
                continue;
            }
            // A single island's sum is the result, unless it is still to be divided.
            if piece.owners.len() > 1 || is_mean {
                let own = self.contribution(number, chunk, piece.cut);
                let others = partials.by_ref().take(piece.others().count());
                let mut others = others.map(|(_, partial)| partial);
                let contribution =
                    |owner: &u32| if *owner == self.rank { Some(own) } else { others.next() };
                builder.reduce(piece.owners.iter().filter_map(contribution), result, true);
            }
            for other in piece.others() {
                builder.send(other, result, place);
            }
        }
    }

    fn gather_inside(&self, builder: &mut Builder<'_>, number: u64, chunk: Cut) {
        let group = self.map.group();
        let Some(island) = group.island else { return };
        let dtype = builder.request.dtype;
        let moved = |collective, elements: u64, root| {
            let (dtype, factor) = Islands::moves_as(island, collective, dtype)
                .unwrap_or_else(|why| unreachable!("refused before it was compiled: {why}"));
            IslandCall { collective, dtype, op: None, count: elements * factor, root }
        };
        let (even, rest) = self.even_and_rest(chunk);
        let (own_even, own_rest) = self.own_parts(number, chunk);
        if even.elements > 0 {
            let call = moved(Collective::AllGather, even.elements / group.size(), 0);
            builder.native(call, own_even, builder.slice(Buffer::Recv, even));
        }
        if rest.elements > 0 {
            let call = moved(Collective::Broadcast, rest.elements, group.size() as u32 - 1);
            builder.native(call, own_rest, builder.slice(Buffer::Recv, rest));
        }
    }
}

/// Elements in a chunk: so many that an owner on the largest island owns `chunk_bytes`, and that they
/// divide by the sizes of all islands if that is possible, so that nothing is left over but at the end.
fn chunk(request: &Request, map: &Map<'_>) -> u64 {
    let (largest, groups) = (map.largest(), map.groups.len() as u64);
    let most_pieces = map.groups.iter().map(Group::size).sum::<u64>() * groups;
    let steps = 4 + 3 * most_pieces.min(64 * groups);
    let part = chunk_elements(
        request.chunk_bytes,
        request.element_bytes(),
        request.count.div_ceil(largest),
        steps,
    );
    let chunk = part.saturating_mul(largest);
    let multiple = map.groups.iter().fold(1, |multiple, group| lcm(multiple, group.size()));
    if multiple <= chunk { chunk - chunk % multiple } else { chunk }
}

fn lcm(first: u64, second: u64) -> u64 {
    let (mut divisor, mut other) = (first, second);
    while other > 0 {
        (divisor, other) = (other, divisor % other);
    }
    (first / divisor).saturating_mul(second)
}

/// The busiest rank, chunk by chunk; all but the last are alike.
pub(in super::super) fn cost(request: &Request) -> Cost {
    let all: Vec<u32> = (0..request.ranks).collect();
    let Some(islands) = request.islands.as_deref() else { return Cost::default() };
    let map = Map::new(islands, &all, 0);
    let chunk = chunk(request, &map);
    let whole = Cut::whole(request.count);
    let chunks = whole.chunks(chunk);
    let mut loads = vec![Load::default(); request.ranks as usize];
    let mut native_calls = 0;
    for (times, cut) in [(chunks - 1, whole.chunk(chunk, 0)), (1, whole.chunk(chunk, chunks - 1))] {
        let calls = |group: &Group<'_>| {
            let (even, left_over) = (cut.elements / group.size(), cut.elements % group.size());
            2 * (u64::from(even > 0) + u64::from(left_over > 0))
        };
        let on_islands = map.groups.iter().filter(|group| group.island.is_some());
        native_calls += times * on_islands.map(calls).max().unwrap_or(0);
        for piece in map.pieces(cut) {
            let elements = piece.cut.elements * times;
            let others = piece.owners.len() as u64 - 1;
            for owner in &piece.owners {
                let load = &mut loads[*owner as usize];
                let shares = if *owner == piece.finisher { others } else { 1 };
                load.messages += times * shares;
                load.elements = load.elements.saturating_add(elements.saturating_mul(shares));
                if *owner == piece.finisher && (others > 0 || request.op == RedOp::Avg) {
                    load.reduced = load.reduced.saturating_add(elements.saturating_mul(others + 1));
                }
            }
        }
    }
    let busiest = |pick: fn(&Load) -> u64| loads.iter().map(pick).max().unwrap_or(0);
    let bytes = |elements: u64| elements.saturating_mul(request.element_bytes());
    let exchanges = map.groups.len() > 1;
    Cost {
        rounds: if exchanges { 2 } else { 0 },
        messages: busiest(|load| load.messages),
        bytes: bytes(busiest(|load| load.elements)),
        reduced_bytes: bytes(busiest(|load| load.reduced)),
        native_calls,
        native_bytes: bytes(request.count).saturating_mul(2),
        ..Cost::default()
    }
}

#[derive(Clone, Default)]
struct Load {
    messages: u64,
    /// Sent, and received: as many.
    elements: u64,
    reduced: u64,
}
