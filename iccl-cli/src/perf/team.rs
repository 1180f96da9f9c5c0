//! What the ranks tell each other about their measurements.

use std::time::Duration;

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::comm::{Buffer, Communicator};

use crate::failure::Result;

/// The ranks as one: figures of all of them.
pub(super) struct Team<'a> {
    communicator: &'a Communicator,
    send: Buffer,
    receive: Buffer,
}

impl<'a> Team<'a> {
    pub(super) fn new(communicator: &'a Communicator) -> Result<Self> {
        let device = communicator.device();
        Ok(Self {
            communicator,
            send: device.allocate::<u64>(1)?,
            receive: device.allocate::<u64>(1)?,
        })
    }

    pub(super) fn is_first(&self) -> bool {
        self.communicator.rank() == 0
    }

    /// Waits until every rank has come.
    pub(super) fn meet(&self) -> Result<()> {
        Ok(self.communicator.barrier(self.communicator.stream())?.wait()?)
    }

    fn combine(&self, value: u64, op: RedOp) -> Result<u64> {
        self.send.write(0, &[value])?;
        let stream = self.communicator.stream();
        let dtype = DataType::U64;
        self.communicator.all_reduce(&self.send, &self.receive, 1, dtype, op, stream)?.wait()?;
        let mut result = [0];
        self.receive.read_into(0, &mut result)?;
        Ok(result[0])
    }

    pub(super) fn largest(&self, value: u64) -> Result<u64> {
        self.combine(value, RedOp::Max)
    }

    pub(super) fn smallest(&self, value: u64) -> Result<u64> {
        self.combine(value, RedOp::Min)
    }

    pub(super) fn sum(&self, value: u64) -> Result<u64> {
        self.combine(value, RedOp::Sum)
    }

    /// The longest of all ranks' times.
    pub(super) fn slowest(&self, time: Duration) -> Result<Duration> {
        Ok(Duration::from_nanos(self.largest(time.as_nanos() as u64)?))
    }
}
