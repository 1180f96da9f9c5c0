//! Collectives, made of exchanges. What a rank reduces lies in scratch of a bounded size.

use super::exchange::{Ended, Message};
use super::file::GroupFile;
use crate::memory::Span;
use crate::reduce::{Element, Factor, Reduction, reduce};

/// What a rank asks for. Counts are elements, as in NCCL: of one rank's block for all but all-reduce,
/// reduce and broadcast.
#[derive(Clone)]
pub enum Operation {
    AllReduce {
        send: Span,
        receive: Span,
        reduction: Reduction,
    },
    /// `receive` counts on the root only.
    Reduce {
        send: Span,
        receive: Option<Span>,
        reduction: Reduction,
        root: u32,
    },
    ReduceScatter {
        send: Span,
        receive: Span,
        reduction: Reduction,
    },
    /// `send` counts on the root only.
    Broadcast {
        send: Option<Span>,
        receive: Span,
        root: u32,
    },
    AllGather {
        send: Span,
        receive: Span,
    },
    AllToAll {
        send: Span,
        receive: Span,
    },
    Gather {
        send: Span,
        receive: Option<Span>,
        root: u32,
    },
    Scatter {
        send: Option<Span>,
        receive: Span,
        root: u32,
    },
    /// Blocks of any length from each to each. How long they are, and where, lies in memory and is read
    /// when the call runs.
    AllToAllV {
        send: Span,
        receive: Span,
        sent: BlocksAt,
        received: BlocksAt,
    },
    /// All messages of a group of calls, under way together.
    Messages {
        sends: Vec<(u32, Span)>,
        receives: Vec<(u32, Span)>,
    },
}

/// Where counts and displacements of all ranks lie: 8-byte numbers of elements.
#[derive(Clone)]
pub struct BlocksAt {
    pub counts: Span,
    pub displacements: Span,
}

impl BlocksAt {
    /// The blocks of a buffer, by rank. Those that do not lie in it are the caller's fault, and end the
    /// process as a fault of the real card would.
    fn read(&self, buffer: &Span, width: usize) -> Vec<(u32, Span)> {
        let words = |span: &Span| -> Vec<u64> {
            // SAFETY: the span keeps its memory mapped; the numbers were put there for this call.
            let bytes = unsafe { std::slice::from_raw_parts(span.view(), span.bytes() as usize) };
            bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
        };
        let blocks = words(&self.counts).into_iter().zip(words(&self.displacements)).enumerate();
        let of_rank = |(rank, (count, displacement))| {
            let (at, bytes) = (displacement * width as u64, count * width as u64);
            let part = (bytes > 0).then(|| buffer.part(at, bytes).expect("a block in its buffer"));
            part.map(|part| (rank as u32, part))
        };
        blocks.filter_map(of_rank).collect()
    }
}

/// What a fault does to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The last bytes of the result stay as they were.
    DropSlice,
}

/// One call.
#[derive(Clone)]
pub struct Call {
    pub operation: Operation,
    pub element: Element,
    /// Where the factor of its reduction lies, if that is read when the call runs.
    pub factor_at: Option<Span>,
    pub flaw: Option<Flaw>,
}

/// Scratch of one reduction, over all contributions.
const SCRATCH_BYTES: usize = 8 << 20;

/// The memory of a span, piece by piece. Spans are checked before they come here.
#[derive(Clone, Copy)]
struct Memory(*mut u8);

impl Memory {
    fn of(span: &Span) -> Self {
        Self(span.view())
    }

    fn at(self, offset: usize) -> *mut u8 {
        // SAFETY: the caller's offsets lie in the span.
        unsafe { self.0.add(offset) }
    }
}

struct Run<'a> {
    group: &'a GroupFile,
    stop: &'a dyn Fn() -> bool,
    element: Element,
    tag: u64,
}

impl GroupFile {
    /// Does one call. All ranks come here with their calls in the same order.
    pub(crate) fn run(&self, call: &Call, stop: &dyn Fn() -> bool) -> Ended {
        let kept = match call.flaw {
            Some(Flaw::DropSlice) => call.operation.result().map(|span| keep_end(&span)),
            None => None,
        };
        let run = Run { group: self, stop, element: call.element, tag: tag(call) };
        let ended = match &call.factor_at {
            Some(at) => run.operation(&call.operation.clone().with_factor(factor(at))),
            None => run.operation(&call.operation),
        };
        if let Some((at, bytes)) = kept {
            // SAFETY: the end of the result, as `keep_end` found it.
            unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        ended
    }
}

/// The number that lies somewhere now.
fn factor(at: &Span) -> Factor {
    let mut bytes = [0; 8];
    // SAFETY: one element, which the span keeps mapped.
    unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(at.view(), at.bytes() as usize) };
    Factor::Bits(u64::from_le_bytes(bytes))
}

impl Operation {
    fn with_factor(mut self, factor: Factor) -> Self {
        if let Self::AllReduce { reduction, .. }
        | Self::Reduce { reduction, .. }
        | Self::ReduceScatter { reduction, .. } = &mut self
        {
            reduction.factor = factor;
        }
        self
    }

    /// Where its result lies, if it has one here.
    fn result(&self) -> Option<Span> {
        match self {
            Self::AllReduce { receive, .. }
            | Self::ReduceScatter { receive, .. }
            | Self::Broadcast { receive, .. }
            | Self::AllGather { receive, .. }
            | Self::AllToAll { receive, .. }
            | Self::AllToAllV { receive, .. }
            | Self::Scatter { receive, .. } => Some(receive.clone()),
            Self::Reduce { receive, .. } | Self::Gather { receive, .. } => receive.clone(),
            Self::Messages { receives, .. } => receives.last().map(|(_, span)| span.clone()),
        }
    }
}

fn keep_end(span: &Span) -> (*mut u8, Vec<u8>) {
    let length = span.bytes() as usize;
    let bytes = length.div_ceil(4).min(length);
    let at = Memory::of(span).at(length - bytes);
    // SAFETY: the last bytes of the span.
    (at, unsafe { std::slice::from_raw_parts(at, bytes) }.to_vec())
}

/// The same on all ranks that ask for the same.
fn tag(call: &Call) -> u64 {
    let (kind, bytes, root) = match &call.operation {
        Operation::AllReduce { receive, .. } => (1, receive.bytes(), 0),
        Operation::Reduce { send, root, .. } => (2, send.bytes(), *root),
        Operation::ReduceScatter { receive, .. } => (3, receive.bytes(), 0),
        Operation::Broadcast { receive, root, .. } => (4, receive.bytes(), *root),
        Operation::AllGather { send, .. } => (5, send.bytes(), 0),
        Operation::AllToAll { send, .. } => (6, send.bytes(), 0),
        Operation::Gather { send, root, .. } => (7, send.bytes(), *root),
        Operation::Scatter { receive, root, .. } => (8, receive.bytes(), *root),
        // Those of a pair compare their lengths.
        Operation::Messages { .. } | Operation::AllToAllV { .. } => (9, 0, 0),
    };
    kind << 56 | u64::from(root) << 40 | bytes
}

impl Run<'_> {
    fn operation(&self, operation: &Operation) -> Ended {
        let (ranks, rank) = (self.group.ranks, self.group.rank);
        match operation {
            Operation::AllReduce { send, receive, reduction } => {
                self.all_reduce(send, receive, *reduction)
            }
            Operation::Reduce { send, receive, reduction, root } => {
                let bytes = send.bytes() as usize;
                let (from, root) = (Memory::of(send), *root as usize);
                let out = receive.as_ref().map(Memory::of);
                self.pieces(bytes, |at, bytes| {
                    let block =
                        |owner| if owner == root { Some((from.at(at), bytes)) } else { None };
                    let to = if rank == root { out.map(|out| (out.at(at), bytes)) } else { None };
                    self.reduce_blocks(&block, to, *reduction)
                })
            }
            Operation::ReduceScatter { send, receive, reduction } => {
                let (from, out) = (Memory::of(send), Memory::of(receive));
                let block_bytes = receive.bytes() as usize;
                self.pieces(block_bytes, |at, bytes| {
                    let block = |owner| Some((from.at(owner * block_bytes + at), bytes));
                    self.reduce_blocks(&block, Some((out.at(at), bytes)), *reduction)
                })
            }
            Operation::Broadcast { send, receive, root } => {
                let root = *root as usize;
                let mut sends = Vec::new();
                let mut receives = vec![(root, Memory::of(receive).at(0), receive.bytes())];
                if let (true, Some(send)) = (rank == root, send) {
                    sends.extend((0..ranks).map(|to| (to, Memory::of(send).at(0), send.bytes())));
                } else if rank == root {
                    receives.clear();
                }
                self.exchange(sends, receives)
            }
            Operation::AllGather { send, receive } => {
                let (from, to) = (Memory::of(send), Memory::of(receive));
                let bytes = send.bytes();
                let place = |peer: usize| (peer, to.at(peer * bytes as usize), bytes);
                self.exchange(
                    (0..ranks).map(|peer| (peer, from.at(0), bytes)).collect(),
                    (0..ranks).map(place).collect(),
                )
            }
            Operation::AllToAll { send, receive } => {
                let (from, to) = (Memory::of(send), Memory::of(receive));
                let bytes = send.bytes() / ranks as u64;
                let offset = |peer: usize| peer * bytes as usize;
                self.exchange(
                    (0..ranks).map(|peer| (peer, from.at(offset(peer)), bytes)).collect(),
                    (0..ranks).map(|peer| (peer, to.at(offset(peer)), bytes)).collect(),
                )
            }
            Operation::Gather { send, receive, root } => {
                let bytes = send.bytes();
                let sends = vec![(*root as usize, Memory::of(send).at(0), bytes)];
                let all = receive.as_ref().filter(|_| rank == *root as usize).map(Memory::of);
                let receives = all.map_or(Vec::new(), |to| {
                    (0..ranks).map(|peer| (peer, to.at(peer * bytes as usize), bytes)).collect()
                });
                self.exchange(sends, receives)
            }
            Operation::Scatter { send, receive, root } => {
                let bytes = receive.bytes();
                let receives = vec![(*root as usize, Memory::of(receive).at(0), bytes)];
                let all = send.as_ref().filter(|_| rank == *root as usize).map(Memory::of);
                let sends = all.map_or(Vec::new(), |from| {
                    (0..ranks).map(|peer| (peer, from.at(peer * bytes as usize), bytes)).collect()
                });
                self.exchange(sends, receives)
            }
            Operation::AllToAllV { send, receive, sent, received } => {
                let width = self.element.bytes();
                let (sends, receives) = (sent.read(send, width), received.read(receive, width));
                self.operation(&Operation::Messages { sends, receives })
            }
            Operation::Messages { sends, receives } => {
                let all = |list: &[(u32, Span)]| -> Vec<_> {
                    list.iter()
                        .map(|(peer, span)| (*peer as usize, span.view(), span.bytes()))
                        .collect()
                };
                self.exchange(all(sends), all(receives))
            }
        }
    }

    fn exchange(
        &self,
        sends: Vec<(usize, *mut u8, u64)>,
        receives: Vec<(usize, *mut u8, u64)>,
    ) -> Ended {
        let is_pairwise = self.tag >> 56 == 9;
        let messages = |list: Vec<(usize, *mut u8, u64)>| -> Vec<Message> {
            let made = list.into_iter().map(|(peer, at, bytes)| {
                let tag = if is_pairwise { self.tag | bytes } else { self.tag };
                Message { peer, at, bytes: bytes as usize, tag }
            });
            made.collect()
        };
        self.group.exchange(messages(sends), messages(receives), self.stop)
    }

    /// Cuts a vector so that the contributions of all ranks fit into scratch.
    fn pieces(&self, bytes: usize, mut step: impl FnMut(usize, usize) -> Ended) -> Ended {
        let most = (SCRATCH_BYTES / self.group.ranks).max(64) / 64 * 64;
        let mut at = 0;
        while at < bytes {
            let piece = most.min(bytes - at);
            if step(at, piece) == Ended::Stopped {
                return Ended::Stopped;
            }
            at += piece;
        }
        Ended::Done
    }

    /// Sends each owner the block that is for it, and reduces what is for this rank, in order of ranks.
    fn reduce_blocks(
        &self,
        block: &dyn Fn(usize) -> Option<(*mut u8, usize)>,
        out: Option<(*mut u8, usize)>,
        reduction: Reduction,
    ) -> Ended {
        let ranks = self.group.ranks;
        let sends = (0..ranks)
            .filter_map(|owner| block(owner).map(|(at, bytes)| (owner, at, bytes as u64)));
        let sends = sends.collect();
        let Some((to, bytes)) = out else { return self.exchange(sends, Vec::new()) };
        let mut scratch = vec![0_u8; ranks * bytes];
        let receives = scratch.chunks_exact_mut(bytes.max(1)).enumerate();
        let receives =
            receives.map(|(peer, part)| (peer, part.as_mut_ptr(), bytes as u64)).collect();
        if self.exchange(sends, receives) == Ended::Stopped {
            return Ended::Stopped;
        }
        let contributions: Vec<&[u8]> = scratch.chunks_exact(bytes.max(1)).collect();
        // SAFETY: the part of the result that is reduced here; nobody else touches it now.
        let out = unsafe { std::slice::from_raw_parts_mut(to, bytes) };
        if bytes > 0 {
            reduce(self.element, reduction, &contributions, out);
        }
        Ended::Done
    }

    /// Each rank reduces its share, and gives it to all.
    fn all_reduce(&self, send: &Span, receive: &Span, reduction: Reduction) -> Ended {
        let ranks = self.group.ranks;
        let (from, to) = (Memory::of(send), Memory::of(receive));
        let width = self.element.bytes();
        let total = send.bytes() as usize;
        // A piece of the vector, cut among all ranks.
        let most = SCRATCH_BYTES / 64 * 64;
        let mut start = 0;
        while start < total {
            let piece = most.min(total - start);
            let elements = piece / width;
            let cut = |rank: usize| start + elements * rank / ranks * width;
            let share = |rank: usize| (cut(rank), cut(rank + 1) - cut(rank));
            let block = |owner| {
                let (at, bytes) = share(owner);
                Some((from.at(at), bytes))
            };
            let (at, bytes) = share(self.group.rank);
            if self.reduce_blocks(&block, Some((to.at(at), bytes)), reduction) == Ended::Stopped {
                return Ended::Stopped;
            }
            let own = (0..ranks).map(|peer| (peer, to.at(at), bytes as u64)).collect();
            let others = (0..ranks).map(|peer| {
                let (at, bytes) = share(peer);
                (peer, to.at(at), bytes as u64)
            });
            if self.exchange(own, others.collect()) == Ended::Stopped {
                return Ended::Stopped;
            }
            start += piece;
        }
        Ended::Done
    }
}
