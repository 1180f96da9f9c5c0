//! Memory and copies.

use std::ffi::c_void;

use iccl_sim_ascend::{
    ADDR_UNALIGNED, FEATURE_NOT_SUPPORT, Outcome, PARAM_INVALID, Status, chosen, put, span, status,
    stream,
};
use iccl_sim_core::{Machine, Pace, Place, Span};

use super::call;

const PAGE_BYTES: usize = 4096;
/// The policies from `HUGE_FIRST` to `HUGE1G_ONLY_P2P`.
const LAST_POLICY: i32 = 7;

#[unsafe(no_mangle)]
extern "C" fn aclrtMalloc(out: *mut *mut c_void, bytes: usize, policy: i32) -> Status {
    call("aclrtMalloc", |machine| {
        if bytes == 0 || !(0..=LAST_POLICY).contains(&policy) || out.is_null() {
            return Err(PARAM_INVALID);
        }
        let address = machine.allocate(chosen(machine)?, bytes as u64).map_err(status)?;
        put(out, address as *mut c_void)
    })
}

#[unsafe(no_mangle)]
extern "C" fn aclrtFree(pointer: *mut c_void) -> Status {
    call("aclrtFree", |machine| machine.free(pointer as u64).map_err(status))
}

#[unsafe(no_mangle)]
extern "C" fn aclrtMallocHost(out: *mut *mut c_void, bytes: usize) -> Status {
    call("aclrtMallocHost", |machine| {
        chosen(machine)?;
        if bytes == 0 || out.is_null() {
            return Err(PARAM_INVALID);
        }
        put(out, machine.allocate_pinned(bytes as u64).map_err(status)? as *mut c_void)
    })
}

#[unsafe(no_mangle)]
extern "C" fn aclrtFreeHost(pointer: *mut c_void) -> Status {
    call("aclrtFreeHost", |machine| machine.free_pinned(pointer as u64).map_err(status))
}

/// Whole pages of the host's memory, mapped (0) at the same address for the card.
#[unsafe(no_mangle)]
extern "C" fn aclrtHostRegister(
    pointer: *mut c_void,
    bytes: u64,
    kind: i32,
    out: *mut *mut c_void,
) -> Status {
    call("aclrtHostRegister", |machine| {
        if kind != 0 || out.is_null() {
            return Err(PARAM_INVALID);
        }
        if !(pointer as usize).is_multiple_of(PAGE_BYTES) {
            return Err(ADDR_UNALIGNED);
        }
        machine.register(pointer as u64, bytes).map_err(status)?;
        put(out, pointer)
    })
}

#[unsafe(no_mangle)]
extern "C" fn aclrtHostUnregister(pointer: *mut c_void) -> Status {
    call("aclrtHostUnregister", |machine| machine.unregister(pointer as u64).map_err(status))
}

/// `aclrtPtrAttributes`.
#[repr(C)]
struct PointerAttributes {
    location_id: u32,
    location_type: i32,
    page_bytes: u32,
    reserved: [u32; 4],
}

const HOST: i32 = 0;
const DEVICE: i32 = 1;
const UNREGISTERED: i32 = 2;

#[unsafe(no_mangle)]
extern "C" fn aclrtPointerGetAttributes(pointer: *const c_void, out: *mut c_void) -> Status {
    call("aclrtPointerGetAttributes", |machine| {
        chosen(machine)?;
        let (location_id, location_type) = match span(machine, pointer, 1)?.place() {
            Place::Device(index) => (index, DEVICE),
            Place::Pinned => (0, HOST),
            Place::Pageable => (0, UNREGISTERED),
        };
        let page_bytes = PAGE_BYTES as u32;
        put(
            out.cast(),
            PointerAttributes { location_id, location_type, page_bytes, reserved: [0; 4] },
        )
    })
}

/// A copy as C asks for it.
struct Copy {
    to: *mut c_void,
    room: usize,
    from: *const c_void,
    bytes: usize,
    kind: i32,
}

/// Host to host, host to device, device to host, device to device.
const HOST_TO_HOST: i32 = 0;

impl Copy {
    /// Both sides, if there is room and the direction is what it says.
    fn spans(&self, machine: &Machine) -> Result<(Span, Span), Status> {
        if self.bytes > self.room || self.to.is_null() || self.from.is_null() {
            return Err(PARAM_INVALID);
        }
        let to = span(machine, self.to, self.bytes)?;
        let from = span(machine, self.from, self.bytes)?;
        let is_device = |span: &Span| matches!(span.place(), Place::Device(_));
        let expected = match (is_device(&from), is_device(&to)) {
            (false, false) => HOST_TO_HOST,
            (false, true) => 1,
            (true, false) => 2,
            (true, true) => 3,
        };
        if self.kind == expected { Ok((to, from)) } else { Err(PARAM_INVALID) }
    }
}

/// Done when it returns, and not ordered with any stream.
#[unsafe(no_mangle)]
extern "C" fn aclrtMemcpy(
    to: *mut c_void,
    room: usize,
    from: *const c_void,
    bytes: usize,
    kind: i32,
) -> Status {
    call("aclrtMemcpy", |machine| {
        let device = chosen(machine)?;
        let (to, from) = Copy { to, room, from, bytes, kind }.spans(machine)?;
        let stream = machine.default_stream(device).map_err(status)?;
        machine.copy(&stream, to, from, Pace::Waiting);
        machine.synchronize(&stream).map_err(status)
    })
}

/// With pageable memory of the host's it is done when it returns.
#[unsafe(no_mangle)]
extern "C" fn aclrtMemcpyAsync(
    to: *mut c_void,
    room: usize,
    from: *const c_void,
    bytes: usize,
    kind: i32,
    handle: *mut c_void,
) -> Status {
    call("aclrtMemcpyAsync", |machine| {
        let stream = stream(machine, handle)?;
        let (to, from) = Copy { to, room, from, bytes, kind }.spans(machine)?;
        if kind == HOST_TO_HOST {
            return Err(FEATURE_NOT_SUPPORT);
        }
        let waits = [&to, &from].iter().any(|span| span.place() == Place::Pageable);
        machine.copy(&stream, to, from, Pace::Enqueued);
        if waits { machine.synchronize(&stream).map_err(status) } else { Ok(()) }
    })
}

fn fill(
    machine: &'static Machine,
    (to, room): (*mut c_void, usize),
    value: i32,
    bytes: usize,
    handle: *mut c_void,
    pace: Pace,
) -> Outcome {
    if bytes > room {
        return Err(PARAM_INVALID);
    }
    machine.fill(&stream(machine, handle)?, span(machine, to, bytes)?, value as u8, pace);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn aclrtMemset(to: *mut c_void, room: usize, value: i32, bytes: usize) -> Status {
    call("aclrtMemset", |machine| {
        let none = std::ptr::null_mut();
        fill(machine, (to, room), value, bytes, none, Pace::Waiting)?;
        machine.synchronize(&stream(machine, none)?).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn aclrtMemsetAsync(
    to: *mut c_void,
    room: usize,
    value: i32,
    bytes: usize,
    handle: *mut c_void,
) -> Status {
    call("aclrtMemsetAsync", |machine| {
        fill(machine, (to, room), value, bytes, handle, Pace::Enqueued)
    })
}
