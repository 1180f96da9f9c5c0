//! Memory and copies.

use std::ffi::c_void;
use std::ptr::null_mut;

use iccl_sim_core::{Machine, MemoryHandle, Pace, Place, Span};
use iccl_sim_nvidia::{
    INVALID_MEMCPY_DIRECTION, INVALID_VALUE, Outcome, Status, put, put_bytes, span, status, stream,
};

use super::runtime;

#[unsafe(no_mangle)]
extern "C" fn cudaMalloc(out: *mut *mut c_void, bytes: usize) -> Status {
    runtime("cudaMalloc", |machine| {
        if bytes == 0 {
            return put(out, null_mut());
        }
        let address = machine.allocate(machine.current_device(), bytes as u64).map_err(status)?;
        put(out, address as *mut c_void)
    })
}

/// Waits for the card, as the real one does; then the memory is gone.
#[unsafe(no_mangle)]
extern "C" fn cudaFree(pointer: *mut c_void) -> Status {
    runtime("cudaFree", |machine| {
        if pointer.is_null() {
            return Ok(());
        }
        if let Place::Device(index) = span(machine, pointer, 0)?.place() {
            machine.synchronize_device(index).map_err(status)?;
        }
        machine.free(pointer as u64).map_err(status)
    })
}

/// At once, though the real one waits for the stream: the memory may be used earlier than promised.
#[unsafe(no_mangle)]
extern "C" fn cudaMallocAsync(out: *mut *mut c_void, bytes: usize, handle: *mut c_void) -> Status {
    runtime("cudaMallocAsync", |machine| {
        let device = stream(machine, handle)?.device();
        let address = machine.allocate(device, bytes as u64).map_err(status)?;
        put(out, address as *mut c_void)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaFreeAsync(pointer: *mut c_void, handle: *mut c_void) -> Status {
    runtime("cudaFreeAsync", |machine| {
        let stream = stream(machine, handle)?;
        let (start, _) = machine.allocation(pointer as u64).map_err(status)?;
        if start != pointer as u64 {
            return Err(INVALID_VALUE);
        }
        let free = move || {
            // Freed twice is the caller's fault, and found by nobody, as with the real one.
            let _ = machine.free(start);
        };
        machine.enqueue(&stream, Box::new(free));
        Ok(())
    })
}

fn host_alloc(symbol: &'static str, out: *mut *mut c_void, bytes: usize, flags: u32) -> Status {
    runtime(symbol, |machine| {
        if flags > 7 || out.is_null() {
            return Err(INVALID_VALUE);
        }
        if bytes == 0 {
            return put(out, null_mut());
        }
        put(out, machine.allocate_pinned(bytes as u64).map_err(status)? as *mut c_void)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaMallocHost(out: *mut *mut c_void, bytes: usize) -> Status {
    host_alloc("cudaMallocHost", out, bytes, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cudaHostAlloc(out: *mut *mut c_void, bytes: usize, flags: u32) -> Status {
    host_alloc("cudaHostAlloc", out, bytes, flags)
}

#[unsafe(no_mangle)]
extern "C" fn cudaFreeHost(pointer: *mut c_void) -> Status {
    runtime("cudaFreeHost", |machine| {
        if pointer.is_null() {
            return Ok(());
        }
        for index in 0..machine.devices().len() {
            // Another card's error is not this one's.
            let _ = machine.synchronize_device(index as u32);
        }
        machine.free_pinned(pointer as u64).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaHostRegister(pointer: *mut c_void, bytes: usize, flags: u32) -> Status {
    runtime("cudaHostRegister", |machine| {
        if flags > 15 {
            return Err(INVALID_VALUE);
        }
        machine.register(pointer as u64, bytes as u64).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaHostUnregister(pointer: *mut c_void) -> Status {
    runtime("cudaHostUnregister", |machine| machine.unregister(pointer as u64).map_err(status))
}

#[unsafe(no_mangle)]
extern "C" fn cudaHostGetDevicePointer(
    out: *mut *mut c_void,
    pointer: *mut c_void,
    flags: u32,
) -> Status {
    runtime("cudaHostGetDevicePointer", |machine| {
        if flags != 0 || span(machine, pointer, 1)?.place() != Place::Pinned {
            return Err(INVALID_VALUE);
        }
        put(out, pointer)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> Status {
    runtime("cudaMemGetInfo", |machine| {
        let room = machine.room(machine.current_device());
        put(free, room.0 as usize)?;
        put(total, room.1 as usize)
    })
}

const POINTER_UNREGISTERED: i32 = 0;
const POINTER_HOST: i32 = 1;
const POINTER_DEVICE: i32 = 2;

/// Writes the whole structure, reserved tail included: 24 bytes in version 12, 88 in 13.
#[unsafe(no_mangle)]
extern "C" fn cudaPointerGetAttributes(out: *mut c_void, pointer: *const c_void) -> Status {
    runtime("cudaPointerGetAttributes", |machine| {
        let address = pointer as u64;
        let (kind, device, on_device, on_host) = match span(machine, pointer, 1)?.place() {
            Place::Device(index) => (POINTER_DEVICE, index as i32, address, 0),
            Place::Pinned => (POINTER_HOST, 0, address, address),
            Place::Pageable => (POINTER_UNREGISTERED, -2, 0, address),
        };
        let mut bytes = [0; crate::POINTER_ATTRIBUTES_BYTES];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..8].copy_from_slice(&device.to_ne_bytes());
        bytes[8..16].copy_from_slice(&on_device.to_ne_bytes());
        bytes[16..24].copy_from_slice(&on_host.to_ne_bytes());
        put_bytes(out, &bytes)
    })
}

// Copies.

/// Refuses a direction that the pointers contradict.
fn check(kind: i32, to: &Span, from: &Span) -> Outcome {
    let is_device = |span: &Span| matches!(span.place(), Place::Device(_));
    let agrees = match kind {
        0 => !is_device(to) && !is_device(from),
        1 => is_device(to) && !is_device(from),
        2 => !is_device(to) && is_device(from),
        3 => is_device(to) && is_device(from),
        4 => true,
        _ => return Err(INVALID_MEMCPY_DIRECTION),
    };
    if agrees { Ok(()) } else { Err(INVALID_VALUE) }
}

struct Copy {
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: i32,
}

impl Copy {
    fn run(&self, machine: &'static Machine, handle: *mut c_void, pace: Pace) -> Outcome {
        let stream = stream(machine, handle)?;
        if self.bytes == 0 {
            return if self.kind > 4 { Err(INVALID_MEMCPY_DIRECTION) } else { Ok(()) };
        }
        let (to, from) =
            (span(machine, self.to, self.bytes)?, span(machine, self.from, self.bytes)?);
        check(self.kind, &to, &from)?;
        machine.copy(&stream, to, from, pace);
        machine.health(stream.device()).map_err(status)
    }
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemcpy(to: *mut c_void, from: *const c_void, bytes: usize, kind: i32) -> Status {
    runtime("cudaMemcpy", |machine| {
        Copy { to, from, bytes, kind }.run(machine, null_mut(), Pace::Waiting)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: i32,
    handle: *mut c_void,
) -> Status {
    runtime("cudaMemcpyAsync", |machine| {
        Copy { to, from, bytes, kind }.run(machine, handle, Pace::Enqueued)
    })
}

/// Both pointers must be of the cards that are named.
fn peer(machine: &Machine, pointer: *const c_void, device: i32, bytes: usize) -> Outcome {
    let is_there = span(machine, pointer, bytes)?.place() == Place::Device(device as u32);
    if is_there { Ok(()) } else { Err(INVALID_VALUE) }
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemcpyPeer(
    to: *mut c_void,
    to_device: i32,
    from: *const c_void,
    from_device: i32,
    bytes: usize,
) -> Status {
    runtime("cudaMemcpyPeer", |machine| {
        peer(machine, to, to_device, bytes)?;
        peer(machine, from, from_device, bytes)?;
        Copy { to, from, bytes, kind: 3 }.run(machine, null_mut(), Pace::Waiting)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemcpyPeerAsync(
    to: *mut c_void,
    to_device: i32,
    from: *const c_void,
    from_device: i32,
    bytes: usize,
    handle: *mut c_void,
) -> Status {
    runtime("cudaMemcpyPeerAsync", |machine| {
        peer(machine, to, to_device, bytes)?;
        peer(machine, from, from_device, bytes)?;
        Copy { to, from, bytes, kind: 3 }.run(machine, handle, Pace::Enqueued)
    })
}

fn fill(
    machine: &'static Machine,
    to: *mut c_void,
    value: i32,
    bytes: usize,
    handle: *mut c_void,
    pace: Pace,
) -> Outcome {
    let to = span(machine, to, bytes)?;
    if to.place() == Place::Pageable {
        return Err(INVALID_VALUE);
    }
    machine.fill(&stream(machine, handle)?, to, value as u8, pace);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemset(to: *mut c_void, value: i32, bytes: usize) -> Status {
    runtime("cudaMemset", |machine| fill(machine, to, value, bytes, null_mut(), Pace::Waiting))
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemsetAsync(
    to: *mut c_void,
    value: i32,
    bytes: usize,
    handle: *mut c_void,
) -> Status {
    runtime("cudaMemsetAsync", |machine| fill(machine, to, value, bytes, handle, Pace::Enqueued))
}

// Sharing with other processes.

/// `cudaIpcMemHandle_t`, `cudaIpcEventHandle_t`.
#[repr(C)]
pub(crate) struct IpcHandle {
    pub(crate) reserved: [u8; 64],
}

#[unsafe(no_mangle)]
extern "C" fn cudaIpcGetMemHandle(out: *mut IpcHandle, pointer: *mut c_void) -> Status {
    runtime("cudaIpcGetMemHandle", |machine| {
        let mut reserved = [0; 64];
        let handle = machine.export(pointer as u64).map_err(status)?;
        reserved[..MemoryHandle::BYTES].copy_from_slice(&handle.to_bytes());
        put(out, IpcHandle { reserved })
    })
}

/// Gives the start of the allocation, whatever address was exported.
#[unsafe(no_mangle)]
extern "C" fn cudaIpcOpenMemHandle(out: *mut *mut c_void, handle: IpcHandle, flags: u32) -> Status {
    runtime("cudaIpcOpenMemHandle", |machine| {
        if flags != 1 {
            return Err(INVALID_VALUE);
        }
        let mut bytes = [0; MemoryHandle::BYTES];
        bytes.copy_from_slice(&handle.reserved[..MemoryHandle::BYTES]);
        let opened = machine.open(MemoryHandle::from_bytes(bytes)).map_err(status)?;
        put(out, opened as *mut c_void)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaIpcCloseMemHandle(pointer: *mut c_void) -> Status {
    runtime("cudaIpcCloseMemHandle", |machine| {
        machine.synchronize_device(machine.current_device()).map_err(status)?;
        machine.close(pointer as u64).map_err(status)
    })
}
