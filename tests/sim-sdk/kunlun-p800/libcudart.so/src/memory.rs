//! Memory and copies.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use iccl_sim_core::{Machine, MemoryHandle, Pace, Place, Span, Stream};
use iccl_sim_nvidia::{
    INVALID_HANDLE, INVALID_MEMCPY_DIRECTION, INVALID_VALUE, Outcome, Status, put, put_bytes, span,
    status,
};

use super::runtime;

/// The stream behind a handle, which must be of the current card.
fn stream(machine: &'static Machine, handle: *mut c_void) -> Result<Arc<Stream>, Status> {
    let stream = iccl_sim_nvidia::stream(machine, handle)?;
    if stream.device() == machine.current_device() { Ok(stream) } else { Err(INVALID_HANDLE) }
}

fn allocate(symbol: &'static str, out: *mut *mut c_void, bytes: usize) -> Status {
    runtime(symbol, |machine| {
        if bytes == 0 {
            return put(out, null_mut());
        }
        let address = machine.allocate(machine.current_device(), bytes as u64).map_err(status)?;
        put(out, address as *mut c_void)
    })
}

/// Waits for the card; then the memory is gone.
fn free(symbol: &'static str, pointer: *mut c_void) -> Status {
    runtime(symbol, |machine| {
        if pointer.is_null() {
            return Ok(());
        }
        if let Place::Device(index) = span(machine, pointer, 0)?.place() {
            machine.synchronize_device(index).map_err(status)?;
        }
        machine.free(pointer as u64).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaMalloc(out: *mut *mut c_void, bytes: usize) -> Status {
    allocate("cudaMalloc", out, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn cudaFree(pointer: *mut c_void) -> Status {
    free("cudaFree", pointer)
}

/// Synchronous in effect.
#[unsafe(no_mangle)]
extern "C" fn cudaMallocAsync(out: *mut *mut c_void, bytes: usize, _stream: *mut c_void) -> Status {
    allocate("cudaMallocAsync", out, bytes)
}

/// Synchronous in effect.
#[unsafe(no_mangle)]
extern "C" fn cudaFreeAsync(pointer: *mut c_void, _stream: *mut c_void) -> Status {
    free("cudaFreeAsync", pointer)
}

#[unsafe(no_mangle)]
extern "C" fn cudaHostAlloc(out: *mut *mut c_void, bytes: usize, flags: u32) -> Status {
    runtime("cudaHostAlloc", |machine| {
        if flags > 7 || out.is_null() {
            return Err(INVALID_VALUE);
        }
        put(out, machine.allocate_pinned(bytes as u64).map_err(status)? as *mut c_void)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaFreeHost(pointer: *mut c_void) -> Status {
    runtime("cudaFreeHost", |machine| {
        for index in 0..machine.devices().len() {
            // Another card's error is not this one's.
            let _ = machine.synchronize_device(index as u32);
        }
        machine.free_pinned(pointer as u64).map_err(status)
    })
}

const MAPPED: u32 = 2;
/// From this length on a field of 32 bits overflows in the driver.
const TOO_LONG: usize = 512 << 30;

/// Ends the process where the real one does.
#[unsafe(no_mangle)]
extern "C" fn cudaHostRegister(pointer: *mut c_void, bytes: usize, flags: u32) -> Status {
    runtime("cudaHostRegister", |machine| {
        if flags & MAPPED != 0 {
            eprintln!("rm_mem.cc:2284: assertion failed");
            std::process::abort();
        }
        if bytes >= TOO_LONG {
            eprintln!("mem_desc.c:282: assertion failed");
            std::process::abort();
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

/// sizeof(cudaPointerAttributes) of CUDA 11.
const ATTRIBUTES_BYTES: usize = 24;

#[unsafe(no_mangle)]
extern "C" fn cudaPointerGetAttributes(out: *mut c_void, pointer: *const c_void) -> Status {
    runtime("cudaPointerGetAttributes", |machine| {
        let address = pointer as u64;
        let (kind, device, on_device, on_host) = match span(machine, pointer, 1)?.place() {
            Place::Device(index) => (2_i32, index as i32, address, 0),
            Place::Pinned => (1, 0, address, address),
            Place::Pageable => (0, -2, 0, address),
        };
        let mut bytes = [0; ATTRIBUTES_BYTES];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..8].copy_from_slice(&device.to_ne_bytes());
        bytes[8..16].copy_from_slice(&on_device.to_ne_bytes());
        bytes[16..24].copy_from_slice(&on_host.to_ne_bytes());
        put_bytes(out, &bytes)
    })
}

// Copies.

/// Refuses a direction that the pointers contradict. The numbers are CUDA's here.
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
            return Ok(());
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

/// Fills, and waits for the stream: also where the name says that it does not.
fn fill(
    machine: &'static Machine,
    to: *mut c_void,
    value: i32,
    bytes: usize,
    handle: *mut c_void,
) -> Outcome {
    let to = span(machine, to, bytes)?;
    if to.place() == Place::Pageable {
        return Err(INVALID_VALUE);
    }
    let stream = stream(machine, handle)?;
    machine.fill(&stream, to, value as u8, Pace::Waiting);
    machine.synchronize(&stream).map_err(status)
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemset(to: *mut c_void, value: i32, bytes: usize) -> Status {
    runtime("cudaMemset", |machine| fill(machine, to, value, bytes, null_mut()))
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemsetAsync(
    to: *mut c_void,
    value: i32,
    bytes: usize,
    handle: *mut c_void,
) -> Status {
    runtime("cudaMemsetAsync", |machine| fill(machine, to, value, bytes, handle))
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
