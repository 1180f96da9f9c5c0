//! The view of a plugin's native collectives family, and a native communicator.

use std::sync::Arc;

use super::error::must_be_done;
use super::plugin::static_text;
use super::{CallError, OpenDevice, call, missing};
use crate::sdk::{CollectivesFacts, NativeCall, Progress};
use crate::tables::{
    CollectiveCall, CollectivesCapabilities, CollectivesTable, ErrorInfo, Growing,
};

/// A plugin's native collectives family. Free to copy.
#[derive(Clone, Copy, Debug)]
pub struct CollectivesView(pub(super) &'static CollectivesTable);

/// Longest unique id in bytes.
const LONGEST_UNIQUE_ID: u64 = 65_536;

/// Most combinations that a library can list.
const MOST_COMBINATIONS: u64 = 4096;

impl CollectivesView {
    /// The mandatory functions that a table lacks.
    pub(super) fn missing(table: &CollectivesTable) -> Vec<&'static str> {
        missing!(
            table,
            "collectives.",
            [
                capabilities,
                unique_id,
                communicator_create,
                communicator_destroy,
                async_error,
                call,
                group_start,
                group_end,
            ]
        )
    }

    /// What the library can do. Combinations of unknown collectives are to be ignored.
    ///
    /// # Errors
    /// What the plugin says; `Internal` if the answer makes no sense.
    pub fn facts(self) -> Result<CollectivesFacts, CallError> {
        const CALL: &str = "collectives.capabilities";
        let mut value = CollectivesCapabilities::absent();
        let size = size_of::<CollectivesCapabilities>() as u64;
        let answer = call!(
            self.0,
            &mut ErrorInfo::new(),
            "collectives.",
            capabilities(&raw mut value, size)
        );
        must_be_done(CALL, answer)?;
        if !(1..=LONGEST_UNIQUE_ID).contains(&value.unique_id_bytes) {
            let bytes = value.unique_id_bytes;
            return Err(CallError::rules(CALL, format!("unique ids of {bytes} bytes")));
        }
        let support = if value.support_count == 0 {
            &[]
        } else if value.support_count > MOST_COMBINATIONS
            || value.support.is_null()
            || !value.support.is_aligned()
        {
            return Err(CallError::rules(CALL, "the list of combinations makes no sense"));
        } else {
            // SAFETY: checked for null, alignment and size; the list is a static of the plugin.
            unsafe { std::slice::from_raw_parts(value.support, value.support_count as usize) }
        };
        Ok(CollectivesFacts {
            unique_id_bytes: value.unique_id_bytes,
            support,
            flags: value.flags,
            library: static_text(CALL, value.library)?,
        })
    }

    /// A new unique id.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn unique_id(self) -> Result<Vec<u8>, CallError> {
        let mut id = vec![0; self.facts()?.unique_id_bytes as usize];
        let answer = call!(
            self.0,
            &mut ErrorInfo::new(),
            "collectives.",
            unique_id(id.as_mut_ptr(), id.len() as u64)
        );
        must_be_done("collectives.unique_id", answer)?;
        Ok(id)
    }

    /// Joins a communicator. Blocks until all ranks came: run it on an expendable thread.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn join(
        self,
        device: &Arc<OpenDevice>,
        unique_id: &[u8],
        ranks: u32,
        rank: u32,
    ) -> Result<OpenCommunicator, CallError> {
        let mut handle = 0;
        let answer = call!(
            self.0,
            &mut ErrorInfo::new(),
            "collectives.",
            communicator_create(
                device.handle(),
                unique_id.as_ptr(),
                unique_id.len() as u64,
                ranks,
                rank,
                &raw mut handle,
            )
        );
        must_be_done("collectives.communicator_create", answer)?;
        Ok(OpenCommunicator {
            table: self.0,
            handle,
            ranks,
            left: false,
            _device: Arc::clone(device),
        })
    }

    /// Begins a group: the calls of this thread until `group_end` are issued together.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn group_start(self) -> Result<(), CallError> {
        let answer = call!(self.0, &mut ErrorInfo::new(), "collectives.", group_start());
        must_be_done("collectives.group_start", answer)
    }

    /// Ends a group and issues its calls.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn group_end(self) -> Result<(), CallError> {
        let answer = call!(self.0, &mut ErrorInfo::new(), "collectives.", group_end());
        must_be_done("collectives.group_end", answer)
    }
}

/// A communicator of a native library. Dropping it leaves it, which may block.
#[derive(Debug)]
pub struct OpenCommunicator {
    table: &'static CollectivesTable,
    handle: u64,
    ranks: u32,
    left: bool,
    /// Open as long as the communicator is.
    _device: Arc<OpenDevice>,
}

impl OpenCommunicator {
    /// Enqueues one operation on a stream of the communicator's device. One thread at a time.
    ///
    /// # Safety
    /// The buffers of the call are memory of the device, as large as the operation needs, and
    /// touched by nobody else until the stream is past it.
    ///
    /// # Errors
    /// What the plugin says; `InvalidArgument` if an array has not one entry for each rank.
    pub unsafe fn call(&self, native: &NativeCall<'_>, stream: u64) -> Result<(), CallError> {
        const CALL: &str = "collectives.call";
        let raw = CollectiveCall {
            collective: native.collective.code(),
            dtype: native.dtype.code(),
            op: native.op.map_or(0, crate::RedOp::code),
            root: native.root,
            count: native.count,
            send: native.send,
            receive: native.receive,
            send_counts: self.per_rank(native.send_counts)?,
            send_displacements: self.per_rank(native.send_displacements)?,
            receive_counts: self.per_rank(native.receive_counts)?,
            receive_displacements: self.per_rank(native.receive_displacements)?,
            reserved: [0; 4],
        };
        let answer = call!(
            self.table,
            &mut ErrorInfo::new(),
            "collectives.",
            call(self.handle, &raw const raw, stream)
        );
        must_be_done(CALL, answer)
    }

    /// The pointer to an array that is empty or has one entry for each rank.
    fn per_rank(&self, array: &[u64]) -> Result<*const u64, CallError> {
        if array.is_empty() {
            return Ok(std::ptr::null());
        }
        if array.len() != self.ranks as usize {
            return Err(CallError::local(
                "collectives.call",
                crate::Status::InvalidArgument,
                format!("an array of {} entries for {} ranks", array.len(), self.ranks),
            ));
        }
        Ok(array.as_ptr())
    }

    /// The error that the communicator met asynchronously. Any thread.
    ///
    /// # Errors
    /// That error.
    pub fn async_error(&self) -> Result<Progress, CallError> {
        call!(self.table, &mut ErrorInfo::new(), "collectives.", async_error(self.handle))
    }

    /// Makes every pending call end. Any thread, also while another function runs.
    ///
    /// # Errors
    /// What the plugin says; `NotSupported` if it has no such function.
    pub fn abort(&self) -> Result<(), CallError> {
        let answer = call!(
            self.table,
            &mut ErrorInfo::new(),
            "collectives.",
            communicator_abort(self.handle)
        );
        must_be_done("collectives.communicator_abort", answer)
    }

    /// Leaves the communicator and says what went wrong, which dropping can't. May block.
    ///
    /// # Errors
    /// What the plugin says; the communicator is gone all the same.
    pub fn leave(mut self) -> Result<(), CallError> {
        self.leave_once()
    }

    /// Gives the communicator up without a call into the library, which is stuck: it, its device and
    /// what they own stay for the life of the process.
    pub fn abandon(self) {
        std::mem::forget(self);
    }

    /// Leaves the communicator unless it is left.
    fn leave_once(&mut self) -> Result<(), CallError> {
        if std::mem::replace(&mut self.left, true) {
            return Ok(());
        }
        let answer = call!(
            self.table,
            &mut ErrorInfo::new(),
            "collectives.",
            communicator_destroy(self.handle)
        );
        must_be_done("collectives.communicator_destroy", answer)
    }
}

impl Drop for OpenCommunicator {
    fn drop(&mut self) {
        if let Err(error) = self.leave_once() {
            tracing::warn!(%error, "a native communicator could not be left");
        }
    }
}
