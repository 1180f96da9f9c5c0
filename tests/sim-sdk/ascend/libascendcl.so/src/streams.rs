//! Streams, and functions of the host's that the runtime calls by itself.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use iccl_sim_ascend::{
    PARAM_INVALID, STREAM_ABORT, STREAM_CONTEXT, STREAM_SYNC_TIMEOUT, Status, chosen, put, status,
    stream,
};
use iccl_sim_core::{Stream, StreamKind, User};

use super::{call, reports};

const COMPLETE: i32 = 0;
const NOT_READY: i32 = 1;

fn create(symbol: &'static str, out: *mut *mut c_void) -> Status {
    call(symbol, |machine| {
        if out.is_null() {
            return Err(PARAM_INVALID);
        }
        let device = chosen(machine)?;
        let handle = machine.create_stream(device, StreamKind::NonBlocking).map_err(status)?;
        put(out, handle as *mut c_void)
    })
}

#[unsafe(no_mangle)]
extern "C" fn aclrtCreateStream(out: *mut *mut c_void) -> Status {
    create("aclrtCreateStream", out)
}

/// Priorities, and how fast work is taken, have no meaning here.
#[unsafe(no_mangle)]
extern "C" fn aclrtCreateStreamWithConfig(
    out: *mut *mut c_void,
    _priority: u32,
    _flag: u32,
) -> Status {
    create("aclrtCreateStreamWithConfig", out)
}

fn destroy(symbol: &'static str, handle: *mut c_void) -> Status {
    call(symbol, |machine| {
        let stream = machine.stream(handle as u64).map_err(status)?;
        if stream.device() != chosen(machine)? {
            return Err(STREAM_CONTEXT);
        }
        reports::forget(handle as u64);
        machine.destroy_stream(handle as u64).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn aclrtDestroyStream(handle: *mut c_void) -> Status {
    destroy("aclrtDestroyStream", handle)
}

#[unsafe(no_mangle)]
extern "C" fn aclrtDestroyStreamForce(handle: *mut c_void) -> Status {
    destroy("aclrtDestroyStreamForce", handle)
}

/// Whether a stream was torn down while somebody waited for it.
fn aborted(stream: &Stream) -> Result<(), Status> {
    if stream.is_aborted() { Err(STREAM_ABORT) } else { Ok(()) }
}

#[unsafe(no_mangle)]
extern "C" fn aclrtSynchronizeStream(handle: *mut c_void) -> Status {
    call("aclrtSynchronizeStream", |machine| {
        let stream = stream(machine, handle)?;
        machine.synchronize(&stream).map_err(status)?;
        aborted(&stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn aclrtSynchronizeStreamWithTimeout(handle: *mut c_void, timeout_ms: i32) -> Status {
    call("aclrtSynchronizeStreamWithTimeout", |machine| {
        let stream = stream(machine, handle)?;
        let deadline = u64::try_from(timeout_ms)
            .ok()
            .map(|milliseconds| Instant::now() + Duration::from_millis(milliseconds));
        while !machine.is_idle(&stream) {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(STREAM_SYNC_TIMEOUT);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        machine.health(stream.device()).map_err(status)?;
        aborted(&stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn aclrtStreamQuery(handle: *mut c_void, out: *mut i32) -> Status {
    call("aclrtStreamQuery", |machine| {
        let stream = stream(machine, handle)?;
        put(out, if machine.is_idle(&stream) { COMPLETE } else { NOT_READY })
    })
}

/// Nothing that is in it is done any more; who waits for it hears so.
#[unsafe(no_mangle)]
extern "C" fn aclrtStreamAbort(handle: *mut c_void) -> Status {
    call("aclrtStreamAbort", |machine| {
        machine.abort_stream(&*stream(machine, handle)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn aclrtStreamWaitEvent(handle: *mut c_void, event: *mut c_void) -> Status {
    call("aclrtStreamWaitEvent", |machine| {
        let stream = stream(machine, handle)?;
        let event = machine.event(event as u64).map_err(status)?;
        machine.wait_for_event(&stream, &event);
        Ok(())
    })
}

/// On a thread of the runtime's. Never on a stream that has a thread for reports.
#[unsafe(no_mangle)]
extern "C" fn aclrtLaunchHostFunc(
    handle: *mut c_void,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    user: *mut c_void,
) -> Status {
    call("aclrtLaunchHostFunc", |machine| {
        let function = function.ok_or(PARAM_INVALID)?;
        let stream = stream(machine, handle)?;
        if reports::is_subscribed(handle as u64) {
            return Err(PARAM_INVALID);
        }
        let user = User::new(user);
        // SAFETY: the caller's function with the caller's argument, called once.
        machine.call_host(&stream, Box::new(move || unsafe { function(user.pointer()) }));
        Ok(())
    })
}
