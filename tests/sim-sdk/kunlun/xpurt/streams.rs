//! Streams and events. None of them can be asked whether it is done: they can only be waited for.

use std::ffi::c_void;

use iccl_sim_core::{EventKind, StreamKind};
use iccl_sim_kunlun::{INVALID_PARAM, Status, call, put, status, stream};

use crate::machine;

#[unsafe(no_mangle)]
extern "C" fn xpu_stream_create(out: *mut *mut c_void) -> Status {
    call(machine(), "xpu_stream_create", |machine| {
        let device = machine.current_device();
        let made = machine.create_stream(device, StreamKind::NonBlocking).map_err(status)?;
        put(out, made as *mut c_void)
    })
}

/// What is in the stream is still done.
#[unsafe(no_mangle)]
extern "C" fn xpu_stream_destroy(handle: *mut c_void) -> Status {
    call(machine(), "xpu_stream_destroy", |machine| {
        if handle.is_null() {
            return Err(INVALID_PARAM);
        }
        stream(machine, handle)?;
        machine.destroy_stream(handle as u64).map_err(status)
    })
}

/// Null is the default stream only, not the card.
#[unsafe(no_mangle)]
extern "C" fn xpu_wait(handle: *mut c_void) -> Status {
    call(machine(), "xpu_wait", |machine| {
        machine.synchronize(&stream(machine, handle)?).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn xpu_stream_wait_event(handle: *mut c_void, event: *mut c_void) -> Status {
    call(machine(), "xpu_stream_wait_event", |machine| {
        let event = machine.event(event as u64).map_err(status)?;
        machine.wait_for_event(&stream(machine, handle)?, &event);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn xpu_event_create(out: *mut *mut c_void) -> Status {
    call(machine(), "xpu_event_create", |machine| {
        let kind = EventKind { without_time: true, shared: false };
        let made = machine.create_event(machine.current_device(), kind).map_err(status)?;
        put(out, made as *mut c_void)
    })
}

#[unsafe(no_mangle)]
extern "C" fn xpu_event_record(event: *mut c_void, handle: *mut c_void) -> Status {
    call(machine(), "xpu_event_record", |machine| {
        let event = machine.event(event as u64).map_err(status)?;
        machine.record(&event, &stream(machine, handle)?).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn xpu_event_wait(event: *mut c_void) -> Status {
    call(machine(), "xpu_event_wait", |machine| {
        let event = machine.event(event as u64).map_err(status)?;
        machine.synchronize_event(&event).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn xpu_event_destroy(event: *mut c_void) -> Status {
    call(machine(), "xpu_event_destroy", |machine| {
        machine.destroy_event(event as u64).map_err(status)
    })
}
