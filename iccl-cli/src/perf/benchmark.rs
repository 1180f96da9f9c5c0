//! The operations that are measured: what each moves, how it is called, what has to come out.

use std::fmt;

use clap::ValueEnum;
use iccl_plugin_api::{Collective, DataType, RedOp};
use iccl_runtime::comm::{Buffer, Communicator, Group, Handle, Reduction, Scalar};

use super::oracle::{Task, scalar};

/// An operation that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Operation {
    /// Every rank gets the reduction of all ranks' vectors.
    AllReduce,
    /// The root gets the reduction of all ranks' vectors.
    Reduce,
    /// Every rank gets the root's vector.
    Broadcast,
    /// Every rank gets all ranks' blocks.
    AllGather,
    /// Every rank gets its block of the reduction of all ranks' vectors.
    ReduceScatter,
    /// The root gets all ranks' blocks.
    Gather,
    /// Every rank gets its block of the root's vector.
    Scatter,
    /// Every rank gets a block from each rank.
    #[value(alias = "alltoall")]
    AllToAll,
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
            Self::Reduce => "reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all_to_all",
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
            Some(root) => write!(f, ", root {root}"),
            None => Ok(()),
        }
    }
}

impl Operation {
    /// Every operation.
    pub(super) const ALL: [Self; 10] = [
        Self::AllReduce,
        Self::Reduce,
        Self::Broadcast,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
        Self::Barrier,
        Self::Sendrecv,
    ];

    pub(super) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    pub(super) fn has_root(self) -> bool {
        matches!(self, Self::Reduce | Self::Broadcast | Self::Gather | Self::Scatter)
    }

    /// Whether it has elements at all.
    pub(super) fn moves_elements(self) -> bool {
        self != Self::Barrier
    }

    /// Whether one buffer may be both input and output.
    pub(super) fn can_be_in_place(self) -> bool {
        !matches!(self, Self::Barrier | Self::Sendrecv)
    }

    pub(super) fn fewest_ranks(self) -> u32 {
        if self == Self::Sendrecv { 2 } else { 1 }
    }

    /// How many blocks input and output have, each of the call's count.
    pub(super) fn blocks(self, ranks: u32) -> (u64, u64) {
        let ranks = u64::from(ranks);
        match self {
            Self::AllReduce | Self::Reduce | Self::Broadcast | Self::Barrier | Self::Sendrecv => {
                (1, 1)
            }
            Self::AllGather | Self::Gather => (1, ranks),
            Self::ReduceScatter | Self::Scatter => (ranks, 1),
            Self::AllToAll => (ranks, ranks),
        }
    }

    /// nccl-tests' size of a call: the bytes of the longer one of input and output.
    pub(super) fn size_bytes(self, ranks: u32, count: u64, element_bytes: u64) -> u64 {
        let (input, output) = self.blocks(ranks);
        input.max(output) * count * element_bytes
    }

    /// nccl-tests' factor from algorithm bandwidth to bus bandwidth.
    pub(super) fn bus_factor(self, ranks: u32) -> f64 {
        let others = f64::from(ranks - 1) / f64::from(ranks);
        match self {
            Self::AllReduce => 2.0 * others,
            Self::AllGather
            | Self::ReduceScatter
            | Self::Gather
            | Self::Scatter
            | Self::AllToAll => others,
            Self::Reduce | Self::Broadcast | Self::Barrier | Self::Sendrecv => 1.0,
        }
    }

    /// The collective by which the plan chooses an algorithm.
    pub(super) fn collective(self) -> Collective {
        match self {
            Self::AllReduce => Collective::AllReduce,
            Self::Reduce => Collective::Reduce,
            Self::Broadcast => Collective::Broadcast,
            Self::AllGather => Collective::AllGather,
            Self::ReduceScatter => Collective::ReduceScatter,
            Self::Gather => Collective::Gather,
            Self::Scatter => Collective::Scatter,
            Self::AllToAll => Collective::AllToAll,
            Self::Barrier => Collective::Barrier,
            Self::Sendrecv => Collective::Send,
        }
    }
}

impl Case {
    /// What is computed.
    pub(super) fn task(&self) -> Task {
        self.op.map_or(Task::Move, Task::Reduce)
    }

    /// Enqueues it once. Ranks that have no use for one of the buffers give it nevertheless: it must
    /// stay as it is.
    pub(super) fn enqueue(
        &self,
        communicator: &Communicator,
        send: &Buffer,
        receive: &Buffer,
        count: u64,
    ) -> iccl_runtime::Result<Vec<Handle>> {
        let (dtype, stream) = (self.dtype, communicator.stream());
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        let op = match self.op.unwrap_or(RedOp::Sum) {
            RedOp::PreMulSum => {
                Reduction::pre_mul_sum(Scalar::from_bits(dtype, scalar(dtype, rank)))
            }
            op => op.into(),
        };
        let root = self.root.unwrap_or(0);
        let handle = match self.operation {
            Operation::AllReduce => {
                communicator.all_reduce(send, receive, count, dtype, op, stream)?
            }
            Operation::Reduce => {
                communicator.reduce(send, Some(receive), count, dtype, op, root, stream)?
            }
            Operation::Broadcast => {
                communicator.broadcast(Some(send), receive, count, dtype, root, stream)?
            }
            Operation::AllGather => communicator.all_gather(send, receive, count, dtype, stream)?,
            Operation::ReduceScatter => {
                communicator.reduce_scatter(send, receive, count, dtype, op, stream)?
            }
            Operation::Gather => {
                communicator.gather(send, Some(receive), count, dtype, root, stream)?
            }
            Operation::Scatter => {
                communicator.scatter(Some(send), receive, count, dtype, root, stream)?
            }
            Operation::AllToAll => communicator.all_to_all(send, receive, count, dtype, stream)?,
            Operation::Barrier => communicator.barrier(stream)?,
            Operation::Sendrecv => {
                let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
                // A send that waits for its peer must not keep the receive from starting.
                return Group::run(|| {
                    let sent = communicator.send(send, count, dtype, next, stream)?;
                    Ok(vec![sent, communicator.recv(receive, count, dtype, before, stream)?])
                });
            }
        };
        Ok(vec![handle])
    }
}
