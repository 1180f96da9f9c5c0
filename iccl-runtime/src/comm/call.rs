//! What one call asks for: how each collective's arguments become a [`Call`], which of the buffers a
//! rank uses, and what is refused about the memory that was given.

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

use iccl_plugin_api::{Collective, DataType, RedOp};

use super::buffer::Buffer;
use super::device::Device;
use super::own_messages;
use super::reduction::Reduction;
use super::turns::Turn;
use crate::engine::envelope::Purpose;
use crate::engine::{Allocation, Program};
use crate::schedule::{Block, Counts, Request};
use crate::{Error, ErrorKind, Result};

/// What is asked for, whatever memory it is done on.
pub(super) struct Call {
    pub(super) collective: Collective,
    pub(super) dtype: DataType,
    pub(super) reduction: Reduction,
    pub(super) count: u64,
    /// Root or peer.
    pub(super) root: u32,
    pub(super) counts: Option<Counts>,
    pub(super) purpose: Purpose,
    /// Queues when the call is numbered.
    pub(super) turn: Option<Arc<Turn>>,
}

impl Call {
    pub(super) fn all_reduce(count: u64, dtype: DataType, reduction: Reduction) -> Self {
        Self { reduction, ..Self::of(Collective::AllReduce, count, dtype) }
    }

    pub(super) fn reduce(count: u64, dtype: DataType, reduction: Reduction, root: u32) -> Self {
        Self { reduction, root, ..Self::of(Collective::Reduce, count, dtype) }
    }

    pub(super) fn reduce_scatter(count: u64, dtype: DataType, reduction: Reduction) -> Self {
        Self { reduction, ..Self::of(Collective::ReduceScatter, count, dtype) }
    }

    pub(super) fn broadcast(count: u64, dtype: DataType, root: u32) -> Self {
        Self { root, ..Self::of(Collective::Broadcast, count, dtype) }
    }

    pub(super) fn all_gather(count: u64, dtype: DataType) -> Self {
        Self::of(Collective::AllGather, count, dtype)
    }

    pub(super) fn gather(count: u64, dtype: DataType, root: u32) -> Self {
        Self { root, ..Self::of(Collective::Gather, count, dtype) }
    }

    pub(super) fn scatter(count: u64, dtype: DataType, root: u32) -> Self {
        Self { root, ..Self::of(Collective::Scatter, count, dtype) }
    }

    pub(super) fn all_to_all(count: u64, dtype: DataType) -> Self {
        Self::of(Collective::AllToAll, count, dtype)
    }

    pub(super) fn all_gather_v(blocks: &[Block], dtype: DataType) -> Self {
        Self::with_counts(Collective::AllGatherV, Counts::all_gather_v(blocks.to_vec()), dtype)
    }

    pub(super) fn reduce_scatter_v(
        blocks: &[Block],
        dtype: DataType,
        reduction: Reduction,
    ) -> Self {
        let counts = Counts::reduce_scatter_v(blocks.to_vec());
        Self { reduction, ..Self::with_counts(Collective::ReduceScatterV, counts, dtype) }
    }

    /// `blocks` is empty except on the root.
    pub(super) fn gather_v(send_count: u64, blocks: &[Block], dtype: DataType, root: u32) -> Self {
        let counts = Counts::gather_v(send_count, blocks.to_vec());
        Self { root, ..Self::with_counts(Collective::GatherV, counts, dtype) }
    }

    /// `blocks` is empty except on the root.
    pub(super) fn scatter_v(
        blocks: &[Block],
        receive_count: u64,
        dtype: DataType,
        root: u32,
    ) -> Self {
        let counts = Counts::scatter_v(blocks.to_vec(), receive_count);
        Self { root, ..Self::with_counts(Collective::ScatterV, counts, dtype) }
    }

    pub(super) fn all_to_all_v(send: &[Block], receive: &[Block], dtype: DataType) -> Self {
        let counts = Counts::all_to_all_v(send.to_vec(), receive.to_vec());
        Self::with_counts(Collective::AllToAllV, counts, dtype)
    }

    pub(super) fn barrier() -> Self {
        Self::of(Collective::Barrier, 0, DataType::U8)
    }

    pub(super) fn send(count: u64, dtype: DataType, peer: u32) -> Self {
        Self { root: peer, ..Self::of(Collective::Send, count, dtype) }
    }

    pub(super) fn recv(count: u64, dtype: DataType, peer: u32) -> Self {
        Self { root: peer, ..Self::of(Collective::Recv, count, dtype) }
    }

    fn of(collective: Collective, count: u64, dtype: DataType) -> Self {
        let reduction = RedOp::Sum.into();
        let purpose = Purpose::Application;
        Self { collective, dtype, reduction, count, root: 0, counts: None, purpose, turn: None }
    }

    fn with_counts(collective: Collective, counts: Counts, dtype: DataType) -> Self {
        // As `Request::count` says: the total where all ranks know it.
        let count = match collective {
            Collective::AllGatherV | Collective::ReduceScatterV => {
                counts.total().unwrap_or(u64::MAX)
            }
            _ => 0,
        };
        Self { counts: Some(counts), ..Self::of(collective, count, dtype) }
    }

    /// Whether this rank's send buffer is used at all.
    pub(super) fn uses_send(&self, rank: u32) -> bool {
        match self.collective {
            Collective::Broadcast | Collective::Scatter | Collective::ScatterV => rank == self.root,
            Collective::Recv | Collective::Barrier => false,
            _ => true,
        }
    }

    /// Whether this rank's receive buffer is used at all.
    pub(super) fn uses_receive(&self, rank: u32) -> bool {
        match self.collective {
            Collective::Reduce | Collective::Gather | Collective::GatherV => rank == self.root,
            Collective::Send | Collective::Barrier => false,
            _ => true,
        }
    }
}

/// One side of a call: where the elements are.
pub(super) struct Operand {
    pub(super) pointer: *mut c_void,
    /// How much is there, where that is known.
    pub(super) bytes: Option<u64>,
    pub(super) keep: Option<Arc<dyn Any + Send + Sync>>,
    /// What it is part of, if that is known to be told before it is freed.
    pub(super) allocation: Option<Allocation>,
    /// Whether it is memory of the device, and not of this process.
    pub(super) is_on_device: bool,
}

impl Operand {
    pub(super) const NONE: Self = Self {
        pointer: std::ptr::null_mut(),
        bytes: Some(0),
        keep: None,
        allocation: None,
        is_on_device: true,
    };

    pub(super) fn raw(pointer: *mut c_void) -> Self {
        Self { pointer, bytes: None, ..Self::NONE }
    }

    /// A buffer, which must be of this device.
    pub(super) fn buffer(buffer: &Buffer, device: &Device) -> Result<Self> {
        if !Arc::ptr_eq(&buffer.device().inner, &device.inner) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("the buffer is memory of {}, the rank's is {device}", buffer.device()),
            ));
        }
        let keep: Arc<dyn Any + Send + Sync> = Arc::clone(&buffer.memory) as _;
        Ok(Self {
            pointer: buffer.address(),
            bytes: Some(buffer.bytes()),
            keep: Some(keep),
            allocation: Some(buffer.memory.allocation()),
            is_on_device: true,
        })
    }

    /// Bytes of its own, which are only read.
    pub(super) fn value(value: [u8; 8]) -> Self {
        let keep = Arc::new(value);
        let pointer = Arc::as_ptr(&keep).cast_mut().cast();
        Self {
            pointer,
            bytes: Some(value.len() as u64),
            keep: Some(keep),
            allocation: None,
            is_on_device: false,
        }
    }
}

/// Both sides of a call; what a rank does not use is [`Operand::NONE`].
pub(super) struct Operands {
    pub(super) send: Operand,
    pub(super) receive: Operand,
}

impl Operands {
    /// Whether the buffers lie in one memory as [`Request::in_place_origins`] tells.
    pub(super) fn are_in_place(&self, request: &Request) -> bool {
        let origins = request.in_place_origins();
        let memory_of = |operand: &Operand, origin| (operand.pointer as u64).wrapping_sub(origin);
        !self.send.pointer.is_null()
            && !self.receive.pointer.is_null()
            && memory_of(&self.send, origins.send) == memory_of(&self.receive, origins.recv)
    }

    /// Refuses memory that is null, too small, not the device's, or overlaps in part.
    pub(super) fn check(
        &self,
        request: &Request,
        program: &Program,
        device: &Device,
    ) -> Result<()> {
        let Self { send, receive } = self;
        let schedule = program.schedule();
        let collective = request.collective;
        let (send_bytes, recv_bytes) = own_messages::used_bytes(request, schedule);
        let refuse = |text: String| Err(Error::new(ErrorKind::InvalidArgument, text));
        for (name, what, operand, needed) in [
            ("send", "send buffer", send, send_bytes),
            ("receive", "receive buffer", receive, recv_bytes),
        ] {
            if needed == 0 {
                continue;
            }
            if operand.pointer.is_null() {
                return refuse(format!(
                    "{collective}: the {name} buffer is null, and {needed} bytes of it are needed"
                ));
            }
            if let Some(bytes) = operand.bytes
                && bytes < needed
            {
                return refuse(format!(
                    "{collective}: the {name} buffer has {bytes} bytes, and {request} needs {needed}"
                ));
            }
            device.inner.must_hold(what, operand.pointer)?;
        }
        let (first, second) = (send.pointer as u64, receive.pointer as u64);
        let apart =
            first.wrapping_add(send_bytes) <= second || second.wrapping_add(recv_bytes) <= first;
        if send_bytes > 0 && recv_bytes > 0 && !request.in_place && !apart {
            return refuse(format!(
                "{collective}: the send and receive buffers overlap, and not as in place they should"
            ));
        }
        Ok(())
    }

    /// Refuses a scalar that is not the device's, or that the operation would overwrite while it is still
    /// needed.
    pub(super) fn check_scalar(
        &self,
        scalar: &Operand,
        program: &Program,
        device: &Device,
    ) -> Result<()> {
        if !scalar.pointer.is_null() && scalar.is_on_device {
            device.inner.must_hold("scalar", scalar.pointer)?;
        }
        let schedule = program.schedule();
        let (at, receive) = (scalar.pointer as u64, self.receive.pointer as u64);
        let bytes = schedule.dtype.size_bytes() as u64;
        if at == 0
            || at.wrapping_add(bytes) <= receive
            || receive.wrapping_add(schedule.recv_bytes) <= at
        {
            return Ok(());
        }
        let collective = schedule.collective;
        let text = format!("{collective}: the scalar lies in the receive buffer");
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }
}
