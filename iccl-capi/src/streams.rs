//! Streams: in which order a device does its work.

use std::sync::Arc;

use iccl_runtime::comm::{Communicator, Device, Stream};

use crate::failure::{Refused, guard, guard_alone};
use crate::handles::{Kind, Table};
use crate::numbers::Outcome;
use crate::types::{CommHandle, ResultNumber, StreamHandle, answer, not_null};
use crate::{entry, process};

static STREAMS: Table<Stream> = Table::new(Kind::Stream);

/// The stream of a handle; null is the communicator's own.
pub(crate) fn stream_of(stream: StreamHandle, communicator: &Communicator) -> Refused<Stream> {
    if stream.is_null() {
        return Ok(communicator.stream().clone());
    }
    Ok((*STREAMS.get(stream)?).clone())
}

/// Makes a stream of the process's device, which all communicators use that were not configured
/// otherwise. Operations of one stream take place in the order in which they were enqueued.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclStreamCreate(stream: *mut StreamHandle) -> ResultNumber {
    guard_alone("icclStreamCreate", || {
        not_null("stream", stream)?;
        // SAFETY: the caller promises it.
        unsafe { create(&process::device()?, stream) }
    })
}

/// Makes a stream of the communicator's device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclCommStreamCreate(
    comm: CommHandle,
    stream: *mut StreamHandle,
) -> ResultNumber {
    guard("icclCommStreamCreate", comm, || {
        not_null("stream", stream)?;
        // SAFETY: the caller promises it.
        unsafe { create(entry::ready(comm)?.device(), stream) }
    })
}

/// # Safety
/// `stream` may be written.
unsafe fn create(device: &Device, stream: *mut StreamHandle) -> Refused<Outcome> {
    let handle = STREAMS.insert(Arc::new(device.stream()?))?;
    // SAFETY: the caller promises it.
    unsafe { answer("stream", stream, handle)? };
    Ok(Outcome::Success)
}

/// Waits until all work of the stream is done. Gives the error of the first operation on it that
/// failed. An operation ends at the latest when its timeout has passed.
#[unsafe(no_mangle)]
pub extern "C" fn icclStreamSynchronize(stream: StreamHandle) -> ResultNumber {
    guard_alone("icclStreamSynchronize", || {
        STREAMS.get(stream)?.synchronize()?;
        Ok(Outcome::Success)
    })
}

/// Waits until all work of the communicator's own stream is done: that of operations whose stream was
/// NULL. Gives the error of the first that failed.
#[unsafe(no_mangle)]
pub extern "C" fn icclCommSynchronize(comm: CommHandle) -> ResultNumber {
    guard("icclCommSynchronize", comm, || {
        entry::ready(comm)?.stream().synchronize()?;
        Ok(Outcome::Success)
    })
}

/// Makes later work of stream wait until the work that other has now is done, operations of iccl
/// included, whether they succeed or fail. Returns at once. Both are of one device.
#[unsafe(no_mangle)]
pub extern "C" fn icclStreamWaitStream(stream: StreamHandle, other: StreamHandle) -> ResultNumber {
    guard_alone("icclStreamWaitStream", || {
        STREAMS.get(stream)?.wait_for(&*STREAMS.get(other)?)?;
        Ok(Outcome::Success)
    })
}

/// Answers icclSuccess if all work of the stream is done, icclInProgress if not. Does not block; how
/// operations ended, icclStreamSynchronize tells.
#[unsafe(no_mangle)]
pub extern "C" fn icclStreamQuery(stream: StreamHandle) -> ResultNumber {
    guard_alone("icclStreamQuery", || {
        Ok(if STREAMS.get(stream)?.is_done()? { Outcome::Success } else { Outcome::InProgress })
    })
}

/// Ends a stream's handle. Waits until its work is done.
#[unsafe(no_mangle)]
pub extern "C" fn icclStreamDestroy(stream: StreamHandle) -> ResultNumber {
    guard_alone("icclStreamDestroy", || {
        STREAMS.remove(stream)?.synchronize()?;
        Ok(Outcome::Success)
    })
}
