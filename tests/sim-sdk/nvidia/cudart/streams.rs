//! Streams, and functions of the host's in them.

use std::ffi::c_void;

use iccl_sim_core::{StreamKind, User};
use iccl_sim_nvidia::{
    INVALID_HANDLE, INVALID_VALUE, NOT_READY, Outcome, Status, put, status, stream,
};

use super::runtime;

const NON_BLOCKING: u32 = 1;
const LEAST_PRIORITY: i32 = 0;
const GREATEST_PRIORITY: i32 = -5;

fn create(symbol: &'static str, out: *mut *mut c_void, flags: u32) -> Status {
    runtime(symbol, |machine| {
        let kind = match flags {
            0 => StreamKind::Blocking,
            NON_BLOCKING => StreamKind::NonBlocking,
            _ => return Err(INVALID_VALUE),
        };
        if out.is_null() {
            return Err(INVALID_VALUE);
        }
        let handle = machine.create_stream(machine.current_device(), kind).map_err(status)?;
        put(out, handle as *mut c_void)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamCreate(out: *mut *mut c_void) -> Status {
    create("cudaStreamCreate", out, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamCreateWithFlags(out: *mut *mut c_void, flags: u32) -> Status {
    create("cudaStreamCreateWithFlags", out, flags)
}

/// Any priority is taken, and brought into the range, which has no meaning here.
#[unsafe(no_mangle)]
extern "C" fn cudaStreamCreateWithPriority(
    out: *mut *mut c_void,
    flags: u32,
    _priority: i32,
) -> Status {
    create("cudaStreamCreateWithPriority", out, flags)
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) -> Status {
    runtime("cudaDeviceGetStreamPriorityRange", |_| {
        put(least, LEAST_PRIORITY)?;
        put(greatest, GREATEST_PRIORITY)
    })
}

/// What is in the stream is still done.
#[unsafe(no_mangle)]
extern "C" fn cudaStreamDestroy(handle: *mut c_void) -> Status {
    runtime("cudaStreamDestroy", |machine| match handle as u64 {
        0..=2 => Err(INVALID_HANDLE),
        handle => machine.destroy_stream(handle).map_err(status),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamSynchronize(handle: *mut c_void) -> Status {
    runtime("cudaStreamSynchronize", |machine| {
        machine.synchronize(&stream(machine, handle)?).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamQuery(handle: *mut c_void) -> Status {
    runtime("cudaStreamQuery", |machine| {
        let stream = stream(machine, handle)?;
        machine.health(stream.device()).map_err(status)?;
        if machine.is_idle(&stream) { Ok(()) } else { Err(NOT_READY) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamWaitEvent(handle: *mut c_void, event: *mut c_void, flags: u32) -> Status {
    runtime("cudaStreamWaitEvent", |machine| {
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        let stream = stream(machine, handle)?;
        let event = machine.event(event as u64).map_err(status)?;
        machine.wait_for_event(&stream, &event);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaLaunchHostFunc(
    handle: *mut c_void,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    user: *mut c_void,
) -> Status {
    runtime("cudaLaunchHostFunc", |machine| {
        let function = function.ok_or(INVALID_VALUE)?;
        let stream = stream(machine, handle)?;
        let user = User::new(user);
        // SAFETY: the caller's function with the caller's argument, called once.
        machine.call_host(&stream, Box::new(move || unsafe { function(user.pointer()) }));
        Ok(())
    })
}

type Callback = unsafe extern "C" fn(*mut c_void, Status, *mut c_void);

#[unsafe(no_mangle)]
extern "C" fn cudaStreamAddCallback(
    handle: *mut c_void,
    function: Option<Callback>,
    user: *mut c_void,
    flags: u32,
) -> Status {
    runtime("cudaStreamAddCallback", |machine| -> Outcome {
        let function = function.ok_or(INVALID_VALUE)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let stream = stream(machine, handle)?;
        let (handle, user) = (User::new(handle), User::new(user));
        // SAFETY: as above.
        let call = move || unsafe { function(handle.pointer(), 0, user.pointer()) };
        machine.call_host(&stream, Box::new(call));
        Ok(())
    })
}

/// Nothing is ever captured.
#[unsafe(no_mangle)]
extern "C" fn cudaStreamIsCapturing(handle: *mut c_void, out: *mut i32) -> Status {
    runtime("cudaStreamIsCapturing", |machine| {
        stream(machine, handle)?;
        put(out, 0)
    })
}

/// The mode is the thread's; it has no effect, as nothing is captured.
#[unsafe(no_mangle)]
extern "C" fn cudaThreadExchangeStreamCaptureMode(mode: *mut i32) -> Status {
    thread_local! {
        static MODE: std::cell::Cell<i32> = const { std::cell::Cell::new(0) };
    }
    runtime("cudaThreadExchangeStreamCaptureMode", |_| {
        if mode.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: C passes the address of a variable.
        let wanted = unsafe { mode.read_unaligned() };
        if !(0..=2).contains(&wanted) {
            return Err(INVALID_VALUE);
        }
        put(mode, MODE.replace(wanted))
    })
}
