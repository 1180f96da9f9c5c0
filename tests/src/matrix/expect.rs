//! What one rank passes to a call, what its memory holds before, and what it must hold after. Written
//! from the documentation of the calls and from MPI's and NCCL's rules; shares no code with iccl.

use iccl_plugin_api::Collective;
use iccl_runtime::comm::Block;

use super::cell::Cell;
use super::image::{Content, Image};

/// One memory of a rank.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Before the call.
    pub before: Image,
    /// After it.
    pub after: Image,
}

impl Memory {
    /// One that the call does not change.
    fn constant(image: Image) -> Self {
        Self { after: image.clone(), before: image }
    }
}

/// A pointer that is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// Into which of [`Part::memories`].
    pub memory: usize,
    /// How many elements after its start.
    pub element: u64,
}

/// The part of one rank in a cell.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// At most two; one where the call is in place.
    pub memories: Vec<Memory>,
    /// The send buffer; null without.
    pub send: Option<Pointer>,
    /// The receive buffer; null without.
    pub receive: Option<Pointer>,
    /// The blocks of a vector form that describe the send buffer.
    pub send_blocks: Vec<Block>,
    /// Those that describe the receive buffer.
    pub receive_blocks: Vec<Block>,
    /// What a gather-v sends or a scatter-v receives on this rank.
    pub own_count: u64,
}

/// The shapes of a vector form: which lengths blocks have, and where each rank puts them.
struct Shapes {
    ranks: u64,
    longest: u64,
    random: u64,
}

impl Shapes {
    /// The length of the block of a rank.
    fn length(&self, rank: u64) -> u64 {
        match (rank + self.random) % 4 {
            1 => 0,
            2 => self.longest.div_ceil(2),
            _ => self.longest,
        }
    }

    /// The length of the block that one rank sends another; all ranks keep something for themselves.
    fn length_between(&self, from: u64, to: u64) -> u64 {
        if from == to { self.longest } else { self.length(from * 3 + to * 5) }
    }

    /// Where a rank puts blocks of these lengths: gaps before each, in rising or falling order.
    fn blocks(&self, rank: u64, lengths: &[u64]) -> Vec<Block> {
        let gap = (rank + self.random / 4) % 3;
        let falling = (rank + self.random / 16).is_multiple_of(2);
        let mut blocks = vec![Block::default(); lengths.len()];
        let mut first = 0;
        let order: Vec<usize> =
            if falling { (0..lengths.len()).rev().collect() } else { (0..lengths.len()).collect() };
        for index in order {
            first += gap;
            blocks[index] = Block { first, count: lengths[index] };
            first += lengths[index];
        }
        blocks
    }

    fn lengths(&self) -> Vec<u64> {
        (0..self.ranks).map(|rank| self.length(rank)).collect()
    }
}

/// Where blocks end.
fn end(blocks: &[Block]) -> u64 {
    blocks.iter().map(|block| block.first + block.count).max().unwrap_or(0)
}

/// The first element of block `index` in a rank's contribution, whatever its place in memory.
fn first_of(lengths: &[u64], index: usize) -> u64 {
    lengths[..index].iter().sum()
}

/// Memory that holds the blocks of a contribution, and nothing between them.
fn holding(blocks: &[Block], rank: u32) -> Image {
    let lengths: Vec<u64> = blocks.iter().map(|block| block.count).collect();
    let nothing = Image::nothing(end(blocks));
    blocks.iter().enumerate().fold(nothing, |image, (index, block)| {
        let first = first_of(&lengths, index);
        image.with(block.first, block.count, Content::Contribution { rank, first })
    })
}

/// The part of `rank` in a cell.
pub fn part(cell: &Cell, rank: u32, ranks: u32) -> Part {
    let from = |rank| Content::Contribution { rank, first: 0 };
    let (count, all) = (cell.count, cell.count * u64::from(ranks));
    let own = u64::from(rank) * count;
    let is_root = rank == cell.root;
    let shapes =
        Shapes { ranks: u64::from(ranks), longest: count, random: cell.hash() >> 8 & 0xffff };
    match cell.collective {
        Collective::AllReduce => {
            let (before, after) =
                (Image::of(count, from(rank)), Image::of(count, Content::Reduced { first: 0 }));
            same_or_two(cell, before, after)
        }
        Collective::Reduce => {
            let before = Image::of(count, from(rank));
            if is_root {
                let after = Image::of(count, Content::Reduced { first: 0 });
                return same_or_two(cell, before, after);
            }
            only_send(cell, before)
        }
        Collective::Broadcast => {
            let after = Image::of(count, from(cell.root));
            if is_root {
                return same_or_two(cell, after.clone(), after);
            }
            only_receive(cell, after)
        }
        Collective::AllGather => {
            let after = (0..ranks).fold(Image::nothing(all), |image, peer| {
                image.with(u64::from(peer) * count, count, from(peer))
            });
            send_is_block(cell, Image::of(count, from(rank)), after, own)
        }
        Collective::ReduceScatter => {
            let after = Image::of(count, Content::Reduced { first: own });
            receive_is_block(cell, Image::of(all, from(rank)), after, own)
        }
        Collective::Gather => {
            let send = Image::of(count, from(rank));
            if !is_root {
                return only_send(cell, send);
            }
            let after = (0..ranks).fold(Image::nothing(all), |image, peer| {
                image.with(u64::from(peer) * count, count, from(peer))
            });
            send_is_block(cell, send, after, own)
        }
        Collective::Scatter => {
            let content = Content::Contribution { rank: cell.root, first: own };
            let after = Image::of(count, content);
            if !is_root {
                return only_receive(cell, after);
            }
            receive_is_block(cell, Image::of(all, from(rank)), after, own)
        }
        Collective::AllToAll => {
            let after = (0..ranks).fold(Image::nothing(all), |image, peer| {
                let content = Content::Contribution { rank: peer, first: own };
                image.with(u64::from(peer) * count, count, content)
            });
            same_or_two(cell, Image::of(all, from(rank)), after)
        }
        Collective::AllGatherV | Collective::GatherV => {
            let lengths = shapes.lengths();
            let own_count = lengths[rank as usize];
            let send = Image::of(own_count, from(rank));
            if cell.collective == Collective::GatherV && !is_root {
                return Part { own_count, ..only_send(cell, send) };
            }
            let blocks = shapes.blocks(u64::from(rank), &lengths);
            let nothing = Image::nothing(end(&blocks));
            let after = (0..ranks).zip(&blocks).fold(nothing, |image, (peer, block)| {
                image.with(block.first, block.count, from(peer))
            });
            let own = blocks[rank as usize].first;
            Part { receive_blocks: blocks, own_count, ..send_is_block(cell, send, after, own) }
        }
        Collective::ReduceScatterV | Collective::ScatterV => {
            let lengths = shapes.lengths();
            let own_count = lengths[rank as usize];
            let first = first_of(&lengths, rank as usize);
            let scatters = cell.collective == Collective::ScatterV;
            let content = if scatters {
                Content::Contribution { rank: cell.root, first }
            } else {
                Content::Reduced { first }
            };
            let after = Image::of(own_count, content);
            if scatters && !is_root {
                return Part { own_count, ..only_receive(cell, after) };
            }
            let blocks = shapes.blocks(u64::from(rank), &lengths);
            let own = blocks[rank as usize].first;
            let part = receive_is_block(cell, holding(&blocks, rank), after, own);
            Part { send_blocks: blocks, own_count, ..part }
        }
        Collective::AllToAllV => {
            let me = u64::from(rank);
            let sent_by = |from: u64| -> Vec<u64> {
                (0..shapes.ranks).map(|to| shapes.length_between(from, to)).collect()
            };
            let received: Vec<u64> =
                (0..shapes.ranks).map(|from| shapes.length_between(from, me)).collect();
            let send_blocks = shapes.blocks(me + 1, &sent_by(me));
            let receive_blocks = shapes.blocks(me, &received);
            let nothing = Image::nothing(end(&receive_blocks));
            let after = (0..ranks).zip(&receive_blocks).fold(nothing, |image, (peer, block)| {
                let first = first_of(&sent_by(u64::from(peer)), rank as usize);
                image.with(block.first, block.count, Content::Contribution { rank: peer, first })
            });
            let before = holding(&send_blocks, rank);
            let part = if cell.in_place {
                // It has no form in place: refused, unless there is nothing to move.
                let longer = before.elements().max(after.elements());
                Part {
                    memories: vec![Memory::constant(Image::nothing(longer))],
                    send: Some(Pointer { memory: 0, element: 0 }),
                    receive: Some(Pointer { memory: 0, element: 0 }),
                    ..Part::default()
                }
            } else {
                two(cell, before, after)
            };
            Part { send_blocks, receive_blocks, ..part }
        }
        Collective::Barrier => Part::default(),
        Collective::Send | Collective::Recv => {
            let previous = (rank + ranks - 1) % ranks;
            two(cell, Image::of(count, from(rank)), Image::of(count, from(previous)))
        }
    }
}

/// Which of the things that a caller may do this cell does.
fn chooses(cell: &Cell, what: u32) -> bool {
    cell.hash() >> (32 + what) & 1 == 1
}

/// A pointer to a memory, or null where nothing of it is used and the cell chooses so.
fn pointer(cell: &Cell, memory: usize, element: u64, image: &Image) -> Option<Pointer> {
    let null = image.elements() == 0 && chooses(cell, memory as u32);
    (!null).then_some(Pointer { memory, element })
}

/// A send buffer and a receive buffer.
fn two(cell: &Cell, send: Image, after: Image) -> Part {
    let memory = Memory { before: Image::nothing(after.elements()), after };
    Part {
        send: pointer(cell, 0, 0, &send),
        receive: pointer(cell, 1, 0, &memory.after),
        memories: vec![Memory::constant(send), memory],
        ..Part::default()
    }
}

/// Both buffers of one length; in place they are the same.
fn same_or_two(cell: &Cell, before: Image, after: Image) -> Part {
    if !cell.in_place {
        return two(cell, before, after);
    }
    let same = pointer(cell, 0, 0, &before);
    Part { send: same, receive: same, memories: vec![Memory { before, after }], ..Part::default() }
}

/// In place, the send buffer is the block of the receive buffer that starts at `own`.
fn send_is_block(cell: &Cell, send: Image, after: Image, own: u64) -> Part {
    if !cell.in_place {
        return two(cell, send, after);
    }
    let mut before = Image::nothing(after.elements());
    for piece in send.pieces() {
        before = before.with(own + piece.start, piece.count, piece.content);
    }
    Part {
        send: pointer(cell, 0, own, &after),
        receive: pointer(cell, 0, 0, &after),
        memories: vec![Memory { before, after }],
        ..Part::default()
    }
}

/// In place, the receive buffer is the block of the send buffer that starts at `own`.
fn receive_is_block(cell: &Cell, send: Image, after: Image, own: u64) -> Part {
    if !cell.in_place {
        return two(cell, send, after);
    }
    let mut whole = send.clone();
    for piece in after.pieces() {
        whole = whole.with(own + piece.start, piece.count, piece.content);
    }
    Part {
        send: pointer(cell, 0, 0, &send),
        receive: pointer(cell, 0, own, &send),
        memories: vec![Memory { before: send, after: whole }],
        ..Part::default()
    }
}

/// A rank that only sends: its receive buffer is null, or the send buffer where the call is in place,
/// or memory that must stay as it is.
fn only_send(cell: &Cell, send: Image) -> Part {
    let pointer = pointer(cell, 0, 0, &send);
    let mut memories = vec![Memory::constant(send)];
    let receive = if cell.in_place {
        pointer
    } else if chooses(cell, 2) {
        None
    } else {
        memories.push(Memory::constant(Image::nothing(cell.count)));
        Some(Pointer { memory: 1, element: 0 })
    };
    Part { send: pointer, receive, memories, ..Part::default() }
}

/// A rank that only receives: its send buffer is null, or the receive buffer where the call is in place,
/// or memory that means nothing.
fn only_receive(cell: &Cell, after: Image) -> Part {
    let pointer = pointer(cell, 0, 0, &after);
    let before = Image::nothing(after.elements());
    let mut memories = vec![Memory { before, after }];
    let send = if cell.in_place {
        pointer
    } else if chooses(cell, 3) {
        None
    } else {
        memories.push(Memory::constant(Image::nothing(cell.count)));
        Some(Pointer { memory: 1, element: 0 })
    };
    Part { send, receive: pointer, memories, ..Part::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(text: &str) -> Cell {
        text.parse().expect("a cell")
    }

    /// Every block that one rank sends is one that another receives, with the same elements.
    #[test]
    fn vector_forms_fit_together() {
        for count in [0, 1, 4, 33] {
            let cell = cell(&format!("all_to_all_v/i32/sum/out/{count}/0/line/single"));
            let parts: Vec<Part> = (0..5).map(|rank| part(&cell, rank, 5)).collect();
            for (from, sender) in parts.iter().enumerate() {
                for (to, receiver) in parts.iter().enumerate() {
                    let (sent, got) = (sender.send_blocks[to], receiver.receive_blocks[from]);
                    assert_eq!(sent.count, got.count, "{from} to {to}");
                    if sent.count == 0 {
                        continue;
                    }
                    let content = |image: &Image, block: Block| {
                        let pieces = image.pieces().iter();
                        let mut pieces = pieces.filter(|piece| piece.start == block.first);
                        pieces.next().expect("a piece").content
                    };
                    assert_eq!(
                        content(&sender.memories[0].before, sent),
                        content(&receiver.memories[1].after, got)
                    );
                }
            }
        }
    }

    #[test]
    fn in_place_means_one_memory() {
        let cell = cell("reduce_scatter/i32/sum/in/7/0/line/single");
        let part = part(&cell, 2, 3);
        assert_eq!(part.memories.len(), 1);
        assert_eq!(part.send, Some(Pointer { memory: 0, element: 0 }));
        assert_eq!(part.receive, Some(Pointer { memory: 0, element: 14 }));
        let after = &part.memories[0].after;
        assert_eq!(after.pieces()[1].content, Content::Reduced { first: 14 });
        assert_eq!(after.pieces()[0].content, Content::Contribution { rank: 2, first: 0 });
    }
}
