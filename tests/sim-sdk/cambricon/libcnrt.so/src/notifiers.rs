//! Notifiers.

use std::ffi::c_void;

use iccl_sim_cambricon::{ARGS_INVALID, Outcome, Status, put, queue, status};
use iccl_sim_core::{EventHandle, EventKind};

use super::{pending, runtime};

/// Without the time of the host; without any.
const DISABLE_TIMING_SW: u32 = 2;
const DISABLE_TIMING_ALL: u32 = 4;
const INTERPROCESS: u32 = 8;

fn create(symbol: &'static str, out: *mut *mut c_void, flags: u32) -> Status {
    runtime(symbol, |machine| {
        let without_time = flags & DISABLE_TIMING_ALL != 0;
        let shared = flags & INTERPROCESS != 0;
        let known = DISABLE_TIMING_SW | DISABLE_TIMING_ALL | INTERPROCESS;
        if flags & !known != 0 || out.is_null() || (shared && !without_time) {
            return Err(ARGS_INVALID);
        }
        let kind = EventKind { without_time, shared };
        let handle = machine.create_event(machine.current_device(), kind).map_err(status)?;
        put(out, handle as *mut c_void)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtNotifierCreate(out: *mut *mut c_void) -> Status {
    create("cnrtNotifierCreate", out, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cnrtNotifierCreateWithFlags(out: *mut *mut c_void, flags: u32) -> Status {
    create("cnrtNotifierCreateWithFlags", out, flags)
}

#[unsafe(no_mangle)]
extern "C" fn cnrtNotifierDestroy(notifier: *mut c_void) -> Status {
    runtime("cnrtNotifierDestroy", |machine| machine.destroy_event(notifier as u64).map_err(status))
}

/// The notifier comes first.
fn place(symbol: &'static str, notifier: *mut c_void, handle: *mut c_void, flags: u32) -> Status {
    runtime(symbol, |machine| -> Outcome {
        if flags != 0 {
            return Err(ARGS_INVALID);
        }
        let notifier = machine.event(notifier as u64).map_err(status)?;
        machine.record(&notifier, &queue(machine, handle)?).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtPlaceNotifier(notifier: *mut c_void, queue: *mut c_void) -> Status {
    place("cnrtPlaceNotifier", notifier, queue, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cnrtPlaceNotifierWithFlags(
    notifier: *mut c_void,
    queue: *mut c_void,
    flags: u32,
) -> Status {
    place("cnrtPlaceNotifierWithFlags", notifier, queue, flags)
}

#[unsafe(no_mangle)]
extern "C" fn cnrtQueryNotifier(notifier: *mut c_void) -> Status {
    runtime("cnrtQueryNotifier", |machine| {
        let notifier = machine.event(notifier as u64).map_err(status)?;
        if notifier.is_reached() { Ok(()) } else { Err(pending(machine)) }
    })
}

/// Waits on the host.
#[unsafe(no_mangle)]
extern "C" fn cnrtWaitNotifier(notifier: *mut c_void) -> Status {
    runtime("cnrtWaitNotifier", |machine| {
        let notifier = machine.event(notifier as u64).map_err(status)?;
        machine.synchronize_event(&notifier).map_err(status)
    })
}

/// The time comes last, in these units per millisecond.
fn time(
    symbol: &'static str,
    from: *mut c_void,
    to: *mut c_void,
    out: *mut f32,
    units: f32,
) -> Status {
    runtime(symbol, |machine| {
        let from = machine.event(from as u64).map_err(status)?;
        let to = machine.event(to as u64).map_err(status)?;
        put(out, machine.elapsed(&from, &to).map_err(status)? * units)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtNotifierElapsedTime(
    from: *mut c_void,
    to: *mut c_void,
    milliseconds: *mut f32,
) -> Status {
    time("cnrtNotifierElapsedTime", from, to, milliseconds, 1.0)
}

#[unsafe(no_mangle)]
extern "C" fn cnrtNotifierDuration(
    from: *mut c_void,
    to: *mut c_void,
    microseconds: *mut f32,
) -> Status {
    time("cnrtNotifierDuration", from, to, microseconds, 1000.0)
}

/// `cnrtIpcNotifierHandle`.
#[repr(C)]
struct IpcHandle {
    words: [u64; 8],
}

#[unsafe(no_mangle)]
extern "C" fn cnrtIpcGetNotifierHandle(out: *mut IpcHandle, notifier: *mut c_void) -> Status {
    runtime("cnrtIpcGetNotifierHandle", |machine| {
        let notifier = machine.event(notifier as u64).map_err(status)?;
        let bytes = machine.export_event(&notifier).map_err(status)?.to_bytes();
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        put(out, IpcHandle { words })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtIpcOpenNotifierHandle(out: *mut *mut c_void, handle: IpcHandle) -> Status {
    runtime("cnrtIpcOpenNotifierHandle", |machine| {
        let mut bytes = [0; EventHandle::BYTES];
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(handle.words) {
            *bytes = word.to_ne_bytes();
        }
        let notifier = machine.open_event(EventHandle::from_bytes(bytes)).map_err(status)?;
        put(out, notifier as *mut c_void)
    })
}
