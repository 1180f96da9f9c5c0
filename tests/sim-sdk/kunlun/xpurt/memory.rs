//! Memory and copies.

use std::ffi::c_void;

use iccl_sim_core::{Machine, Pace, Place, Span};
use iccl_sim_kunlun::{
    INVALID_PARAM, NOT_SUPPORTED, Outcome, Status, call, put, span, status, stream,
};

use super::device;
use crate::machine;

/// Main memory, on-chip memory, main memory that the host may map, main memory in huge pages.
const MEMORY_KINDS: [i32; 4] = [0, 1, 16, 17];

#[unsafe(no_mangle)]
extern "C" fn xpu_malloc(out: *mut *mut c_void, bytes: u64, kind: i32) -> Status {
    call(machine(), "xpu_malloc", |machine| {
        if !MEMORY_KINDS.contains(&kind) {
            return Err(INVALID_PARAM);
        }
        let address = machine.allocate(machine.current_device(), bytes).map_err(status)?;
        put(out, address as *mut c_void)
    })
}

/// Waits for the card first; nothing else would be safe.
#[unsafe(no_mangle)]
extern "C" fn xpu_free(pointer: *mut c_void) -> Status {
    call(machine(), "xpu_free", |machine| {
        let Place::Device(index) = span(machine, pointer, 0)?.place() else {
            return Err(INVALID_PARAM);
        };
        machine.synchronize_device(index).map_err(status)?;
        machine.free(pointer as u64).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn xpu_host_alloc(out: *mut *mut c_void, bytes: u64, flags: u32) -> Status {
    call(machine(), "xpu_host_alloc", |machine| {
        if flags != 0 {
            return Err(INVALID_PARAM);
        }
        put(out, machine.allocate_pinned(bytes).map_err(status)? as *mut c_void)
    })
}

#[unsafe(no_mangle)]
extern "C" fn xpu_host_free(pointer: *mut c_void) -> Status {
    call(machine(), "xpu_host_free", |machine| {
        for index in 0..machine.devices().len() {
            // Another card's error is not this one's.
            let _ = machine.synchronize_device(index as u32);
        }
        machine.free_pinned(pointer as u64).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn xpu_host_register(pointer: *mut c_void, bytes: u64, flags: u32) -> Status {
    call(machine(), "xpu_host_register", |machine| {
        if flags != 0 {
            return Err(INVALID_PARAM);
        }
        machine.register(pointer as u64, bytes).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn xpu_host_unregister(pointer: *mut c_void) -> Status {
    call(machine(), "xpu_host_unregister", |machine| {
        machine.unregister(pointer as u64).map_err(status)
    })
}

/// Both sides of a copy, if the direction says what they are. The numbers are the reverse of CUDA's, and
/// there is none for within the host.
pub(crate) fn sides(
    machine: &Machine,
    to: *mut c_void,
    from: *const c_void,
    bytes: u64,
    kind: i32,
) -> Result<(Span, Span), Status> {
    let (to, from) = (span(machine, to, bytes)?, span(machine, from, bytes)?);
    let is_device = |span: &Span| matches!(span.place(), Place::Device(_));
    let agrees = match kind {
        0 => !is_device(&to) && is_device(&from),
        1 => is_device(&to) && !is_device(&from),
        2 => is_device(&to) && is_device(&from),
        _ => false,
    };
    if agrees { Ok((to, from)) } else { Err(INVALID_PARAM) }
}

/// Always synchronous, on the default stream: other streams are not waited for.
fn copy_now(machine: &'static Machine, to: Span, from: Span) -> Outcome {
    let stream = stream(machine, std::ptr::null_mut())?;
    machine.copy(&stream, to, from, Pace::Waiting);
    machine.synchronize(&stream).map_err(status)
}

#[unsafe(no_mangle)]
extern "C" fn xpu_memcpy(to: *mut c_void, from: *const c_void, bytes: u64, kind: i32) -> Status {
    call(machine(), "xpu_memcpy", |machine| {
        if bytes == 0 {
            return Ok(());
        }
        let (to, from) = sides(machine, to, from, bytes, kind)?;
        copy_now(machine, to, from)
    })
}

/// K200: its cards do not reach each other.
const MODEL_K200: u64 = 0;

#[unsafe(no_mangle)]
extern "C" fn xpu_memcpy_peer(
    to_device: i32,
    to: *mut c_void,
    from_device: i32,
    from: *const c_void,
    bytes: u64,
) -> Status {
    call(machine(), "xpu_memcpy_peer", |machine| {
        let (to_device, from_device) = (device(to_device)?, device(from_device)?);
        if machine.settings().number("model", crate::MODEL) == MODEL_K200 {
            return Err(NOT_SUPPORTED);
        }
        let (to, from) = (span(machine, to, bytes)?, span(machine, from, bytes)?);
        if (to.place(), from.place()) != (Place::Device(to_device), Place::Device(from_device)) {
            return Err(INVALID_PARAM);
        }
        copy_now(machine, to, from)
    })
}

#[unsafe(no_mangle)]
extern "C" fn xpu_mmap(out: *mut *mut c_void, pointer: *mut c_void, bytes: usize) -> Status {
    call(machine(), "xpu_mmap", |machine| {
        let alias = machine.host_alias(pointer as u64, bytes as u64).map_err(status)?;
        put(out, alias.cast())
    })
}
