//! Events.

use std::ffi::c_void;

use iccl_sim_core::{EventHandle, EventKind};
use iccl_sim_nvidia::{INVALID_VALUE, NOT_READY, Outcome, Status, put, status, stream};

use super::memory::IpcHandle;
use super::runtime;

const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

fn create(symbol: &'static str, out: *mut *mut c_void, flags: u32) -> Status {
    runtime(symbol, |machine| {
        let without_time = flags & DISABLE_TIMING != 0;
        let shared = flags & INTERPROCESS != 0;
        if flags > 7 || out.is_null() || (shared && !without_time) {
            return Err(INVALID_VALUE);
        }
        let kind = EventKind { without_time, shared };
        let handle = machine.create_event(machine.current_device(), kind).map_err(status)?;
        put(out, handle as *mut c_void)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventCreate(out: *mut *mut c_void) -> Status {
    create("cudaEventCreate", out, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventCreateWithFlags(out: *mut *mut c_void, flags: u32) -> Status {
    create("cudaEventCreateWithFlags", out, flags)
}

fn record(symbol: &'static str, event: *mut c_void, handle: *mut c_void, flags: u32) -> Status {
    runtime(symbol, |machine| -> Outcome {
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        let event = machine.event(event as u64).map_err(status)?;
        machine.record(&event, &stream(machine, handle)?).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventRecord(event: *mut c_void, handle: *mut c_void) -> Status {
    record("cudaEventRecord", event, handle, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventRecordWithFlags(
    event: *mut c_void,
    handle: *mut c_void,
    flags: u32,
) -> Status {
    record("cudaEventRecordWithFlags", event, handle, flags)
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventQuery(event: *mut c_void) -> Status {
    runtime("cudaEventQuery", |machine| {
        let event = machine.event(event as u64).map_err(status)?;
        if event.is_reached() { Ok(()) } else { Err(NOT_READY) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventSynchronize(event: *mut c_void) -> Status {
    runtime("cudaEventSynchronize", |machine| {
        let event = machine.event(event as u64).map_err(status)?;
        machine.synchronize_event(&event).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventElapsedTime(
    milliseconds: *mut f32,
    from: *mut c_void,
    to: *mut c_void,
) -> Status {
    runtime("cudaEventElapsedTime", |machine| {
        let from = machine.event(from as u64).map_err(status)?;
        let to = machine.event(to as u64).map_err(status)?;
        put(milliseconds, machine.elapsed(&from, &to).map_err(status)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventDestroy(event: *mut c_void) -> Status {
    runtime("cudaEventDestroy", |machine| machine.destroy_event(event as u64).map_err(status))
}

#[unsafe(no_mangle)]
extern "C" fn cudaIpcGetEventHandle(out: *mut IpcHandle, event: *mut c_void) -> Status {
    runtime("cudaIpcGetEventHandle", |machine| {
        let event = machine.event(event as u64).map_err(status)?;
        let mut reserved = [0; 64];
        let handle = machine.export_event(&event).map_err(status)?;
        reserved[..EventHandle::BYTES].copy_from_slice(&handle.to_bytes());
        put(out, IpcHandle { reserved })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaIpcOpenEventHandle(out: *mut *mut c_void, handle: IpcHandle) -> Status {
    runtime("cudaIpcOpenEventHandle", |machine| {
        let mut bytes = [0; EventHandle::BYTES];
        bytes.copy_from_slice(&handle.reserved[..EventHandle::BYTES]);
        let event = machine.open_event(EventHandle::from_bytes(bytes)).map_err(status)?;
        put(out, event as *mut c_void)
    })
}
