//! The operations that are measured: what each moves, how it is called, what has to come out.

use std::fmt;

use clap::ValueEnum;
use iccl_plugin_api::{Collective, DataType, RedOp};
use iccl_runtime::comm::{Buffer, Communicator, Handle, Stream};

use super::oracle::Task;

/// An operation that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Operation {
    /// Every rank gets the reduction of all ranks' vectors.
    AllReduce,
    /// Every rank gets the root's vector.
    Broadcast,
    /// No rank passes before every rank has come.
    Barrier,
    /// Each rank sends to the next and receives from the one before, around the ring.
    Sendrecv,
}

/// One row of the table: an operation on elements of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) operation: Operation,
    pub(super) dtype: DataType,
    pub(super) op: Option<RedOp>,
    pub(super) root: Option<u32>,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::AllReduce => "all_reduce",
            Self::Broadcast => "broadcast",
            Self::Barrier => "barrier",
            Self::Sendrecv => "sendrecv",
        })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        if self.operation.moves_elements() {
            write!(f, " {}", self.dtype)?;
        }
        if let Some(op) = self.op {
            write!(f, " {op}")?;
        }
        match self.root {
            Some(root) => write!(f, " from rank {root}"),
            None => Ok(()),
        }
    }
}

impl Operation {
    /// Every operation.
    pub(super) const ALL: [Self; 4] =
        [Self::AllReduce, Self::Broadcast, Self::Barrier, Self::Sendrecv];

    pub(super) fn reduces(self) -> bool {
        self == Self::AllReduce
    }

    pub(super) fn has_root(self) -> bool {
        self == Self::Broadcast
    }

    /// Whether it has elements at all.
    pub(super) fn moves_elements(self) -> bool {
        self != Self::Barrier
    }

    /// Whether one buffer may be both input and output.
    pub(super) fn can_be_in_place(self) -> bool {
        matches!(self, Self::AllReduce | Self::Broadcast)
    }

    pub(super) fn fewest_ranks(self) -> u32 {
        if self == Self::Sendrecv { 2 } else { 1 }
    }

    /// nccl-tests' factor from algorithm bandwidth to bus bandwidth.
    pub(super) fn bus_factor(self, ranks: u32) -> f64 {
        match self {
            Self::AllReduce => 2.0 * f64::from(ranks - 1) / f64::from(ranks),
            Self::Broadcast | Self::Barrier | Self::Sendrecv => 1.0,
        }
    }

    /// The collective by which the plan chooses an algorithm.
    pub(super) fn collective(self) -> Collective {
        match self {
            Self::AllReduce => Collective::AllReduce,
            Self::Broadcast => Collective::Broadcast,
            Self::Barrier => Collective::Barrier,
            Self::Sendrecv => Collective::Send,
        }
    }
}

/// The two streams of a rank: a send that waits for its peer must not keep a receive from starting.
pub(super) struct Streams {
    pub(super) main: Stream,
    pub(super) receiving: Stream,
}

impl Case {
    /// What has to come out on `rank`.
    pub(super) fn task(&self, rank: u32, ranks: u32) -> Task {
        match (self.operation, self.op) {
            (Operation::AllReduce, Some(op)) => Task::Reduce(op),
            (Operation::Broadcast, _) => Task::Move { from: self.root.unwrap_or(0) },
            _ => Task::Move { from: (rank + ranks - 1) % ranks },
        }
    }

    /// Enqueues it once. In place, `send` and `receive` are the same.
    pub(super) fn enqueue(
        &self,
        communicator: &Communicator,
        streams: &Streams,
        send: &Buffer,
        receive: &Buffer,
        count: u64,
    ) -> iccl_runtime::Result<Vec<Handle>> {
        let (dtype, stream) = (self.dtype, &streams.main);
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        match self.operation {
            Operation::AllReduce => {
                let op = self.op.unwrap_or(RedOp::Sum);
                Ok(vec![communicator.all_reduce(send, receive, count, dtype, op, stream)?])
            }
            Operation::Broadcast => {
                let root = self.root.unwrap_or(0);
                let send = (rank == root).then_some(send);
                Ok(vec![communicator.broadcast(send, receive, count, dtype, root, stream)?])
            }
            Operation::Barrier => Ok(vec![communicator.barrier(stream)?]),
            Operation::Sendrecv => {
                let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
                let sent = communicator.send(send, count, dtype, next, stream)?;
                let received =
                    communicator.recv(receive, count, dtype, before, &streams.receiving)?;
                Ok(vec![sent, received])
            }
        }
    }
}
