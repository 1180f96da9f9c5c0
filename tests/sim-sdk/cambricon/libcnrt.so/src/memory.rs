//! Memory and copies.

use std::ffi::c_void;
use std::ptr::null_mut;

use iccl_sim_cambricon::{
    ARGS_INVALID, INVALID_DEVICE_ADDRESS, MEMCPY_DIRECTION_INVALID, Outcome, Status, put,
    put_bytes, queue, span, status,
};
use iccl_sim_core::{Machine, MemoryHandle, Pace, Place, Span};

use super::runtime;

#[unsafe(no_mangle)]
extern "C" fn cnrtMalloc(out: *mut *mut c_void, bytes: usize) -> Status {
    runtime("cnrtMalloc", |machine| {
        if bytes == 0 {
            return Err(ARGS_INVALID);
        }
        let address = machine.allocate(machine.current_device(), bytes as u64).map_err(status)?;
        put(out, address as *mut c_void)
    })
}

/// Waits for the card; then the memory is gone.
#[unsafe(no_mangle)]
extern "C" fn cnrtFree(pointer: *mut c_void) -> Status {
    runtime("cnrtFree", |machine| {
        if let Place::Device(index) = span(machine, pointer, 0)?.place() {
            machine.synchronize_device(index).map_err(status)?;
        }
        machine.free(pointer as u64).map_err(status)
    })
}

/// At once, though the real one waits for the queue: the memory may be used earlier than promised.
#[unsafe(no_mangle)]
extern "C" fn cnrtMemAllocAsync(
    out: *mut *mut c_void,
    bytes: usize,
    handle: *mut c_void,
) -> Status {
    runtime("cnrtMemAllocAsync", |machine| {
        let device = queue(machine, handle)?.device();
        let address = machine.allocate(device, bytes as u64).map_err(status)?;
        put(out, address as *mut c_void)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtMemFreeAsync(pointer: *mut c_void, handle: *mut c_void) -> Status {
    runtime("cnrtMemFreeAsync", |machine| {
        let queue = queue(machine, handle)?;
        let (start, _) = machine.allocation(pointer as u64).map_err(status)?;
        if start != pointer as u64 {
            return Err(ARGS_INVALID);
        }
        let free = move || {
            // Freed twice is the caller's fault, and found by nobody, as with the real one.
            let _ = machine.free(start);
        };
        machine.enqueue(&queue, Box::new(free));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtHostMalloc(out: *mut *mut c_void, bytes: usize) -> Status {
    runtime("cnrtHostMalloc", |machine| {
        if bytes == 0 || out.is_null() {
            return Err(ARGS_INVALID);
        }
        put(out, machine.allocate_pinned(bytes as u64).map_err(status)? as *mut c_void)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtFreeHost(pointer: *mut c_void) -> Status {
    runtime("cnrtFreeHost", |machine| {
        for index in 0..machine.devices().len() {
            // Another card's error is not this call's.
            let _ = machine.synchronize_device(index as u32);
        }
        machine.free_pinned(pointer as u64).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtMemGetInfo(free: *mut usize, total: *mut usize) -> Status {
    runtime("cnrtMemGetInfo", |machine| {
        let room = machine.room(machine.current_device());
        put(free, room.0 as usize)?;
        put(total, room.1 as usize)
    })
}

const UNREGISTERED: i32 = 0;
const HOST: i32 = 1;
const DEVICE: i32 = 2;

/// Writes the structure with the tail of newer versions: 48 bytes.
#[unsafe(no_mangle)]
extern "C" fn cnrtPointerGetAttributes(out: *mut c_void, pointer: *const c_void) -> Status {
    runtime("cnrtPointerGetAttributes", |machine| {
        let address = pointer as u64;
        let (kind, device, on_device, on_host) = match span(machine, pointer, 1)?.place() {
            Place::Device(index) => (DEVICE, index as i32, address, 0),
            Place::Pinned => (HOST, 0, address, address),
            Place::Pageable => (UNREGISTERED, -1, 0, 0),
        };
        let (start, size) = machine.allocation(address).unwrap_or_default();
        let mut bytes = [0; 48];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..8].copy_from_slice(&device.to_ne_bytes());
        bytes[8..16].copy_from_slice(&size.to_ne_bytes());
        bytes[16..24].copy_from_slice(&on_device.to_ne_bytes());
        bytes[24..32].copy_from_slice(&on_host.to_ne_bytes());
        bytes[40..].copy_from_slice(&start.to_ne_bytes());
        put_bytes(out, &bytes)
    })
}

/// A host address of a card's memory, if the setting `host_alias` is on.
#[unsafe(no_mangle)]
extern "C" fn cnrtMmap(pointer: *mut c_void, out: *mut *mut c_void, bytes: usize) -> Status {
    runtime("cnrtMmap", |machine| {
        let alias = machine.host_alias(pointer as u64, bytes as u64).map_err(status)?;
        put(out, alias.cast())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtMunmap(host: *mut c_void, _bytes: usize) -> Status {
    runtime("cnrtMunmap", |_| if host.is_null() { Err(ARGS_INVALID) } else { Ok(()) })
}

// Copies.

/// Refuses a direction that the pointers contradict.
fn check(direction: i32, to: &Span, from: &Span) -> Outcome {
    let is_device = |span: &Span| matches!(span.place(), Place::Device(_));
    let agrees = match direction {
        0 => is_device(to) && !is_device(from),
        1 | 4 => is_device(to) && is_device(from),
        2 => !is_device(to) && is_device(from),
        3 => !is_device(to) && !is_device(from),
        5 => true,
        _ => return Err(MEMCPY_DIRECTION_INVALID),
    };
    if agrees { Ok(()) } else { Err(MEMCPY_DIRECTION_INVALID) }
}

struct Copy {
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    direction: i32,
}

impl Copy {
    fn run(&self, machine: &'static Machine, handle: *mut c_void, pace: Pace) -> Outcome {
        let queue = queue(machine, handle)?;
        if !(0..=5).contains(&self.direction) {
            return Err(MEMCPY_DIRECTION_INVALID);
        }
        if self.bytes == 0 {
            return Ok(());
        }
        let (to, from) =
            (span(machine, self.to, self.bytes)?, span(machine, self.from, self.bytes)?);
        check(self.direction, &to, &from)?;
        machine.copy(&queue, to, from, pace);
        machine.health(queue.device()).map_err(status)
    }
}

#[unsafe(no_mangle)]
extern "C" fn cnrtMemcpy(
    to: *mut c_void,
    from: *mut c_void,
    bytes: usize,
    direction: i32,
) -> Status {
    runtime("cnrtMemcpy", |machine| {
        Copy { to, from, bytes, direction }.run(machine, null_mut(), Pace::Waiting)?;
        // It is synchronous whatever it copies.
        machine.synchronize(&queue(machine, null_mut())?).map_err(status)
    })
}

/// The queue comes before the direction, in all three.
macro_rules! copies {
    ($($symbol:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $symbol(
            to: *mut c_void,
            from: *mut c_void,
            bytes: usize,
            handle: *mut c_void,
            direction: i32,
        ) -> Status {
            runtime(stringify!($symbol), |machine| {
                Copy { to, from, bytes, direction }.run(machine, handle, Pace::Enqueued)
            })
        }
    )*};
}

copies!(cnrtMemcpyAsync cnrtMemcpyAsync_V2 cnrtMemcpyAsync_V3);

/// Both pointers must be of the cards that are named.
fn peer(machine: &Machine, pointer: *const c_void, device: i32, bytes: usize) -> Outcome {
    let is_there = span(machine, pointer, bytes)?.place() == Place::Device(device as u32);
    if is_there { Ok(()) } else { Err(ARGS_INVALID) }
}

#[unsafe(no_mangle)]
extern "C" fn cnrtMemcpyPeer(
    to: *mut c_void,
    to_device: i32,
    from: *mut c_void,
    from_device: i32,
    bytes: usize,
) -> Status {
    runtime("cnrtMemcpyPeer", |machine| {
        peer(machine, to, to_device, bytes)?;
        peer(machine, from, from_device, bytes)?;
        Copy { to, from, bytes, direction: 4 }.run(machine, null_mut(), Pace::Waiting)?;
        machine.synchronize(&queue(machine, null_mut())?).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtMemcpyPeerAsync(
    to: *mut c_void,
    to_device: i32,
    from: *mut c_void,
    from_device: i32,
    bytes: usize,
    handle: *mut c_void,
) -> Status {
    runtime("cnrtMemcpyPeerAsync", |machine| {
        peer(machine, to, to_device, bytes)?;
        peer(machine, from, from_device, bytes)?;
        Copy { to, from, bytes, direction: 4 }.run(machine, handle, Pace::Enqueued)
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
        return Err(ARGS_INVALID);
    }
    machine.fill(&queue(machine, handle)?, to, value as u8, pace);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cnrtMemset(to: *mut c_void, value: i32, bytes: usize) -> Status {
    runtime("cnrtMemset", |machine| {
        fill(machine, to, value, bytes, null_mut(), Pace::Waiting)?;
        machine.synchronize(&queue(machine, null_mut())?).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtMemsetAsync(
    to: *mut c_void,
    value: i32,
    bytes: usize,
    handle: *mut c_void,
) -> Status {
    runtime("cnrtMemsetAsync", |machine| fill(machine, to, value, bytes, handle, Pace::Enqueued))
}

// Sharing with other processes: a handle is 8 bytes, and names a whole allocation.

#[unsafe(no_mangle)]
extern "C" fn cnrtAcquireMemHandle(out: *mut u64, pointer: *mut c_void) -> Status {
    runtime("cnrtAcquireMemHandle", |machine| {
        let found = machine.allocation(pointer as u64).map_err(|_| INVALID_DEVICE_ADDRESS)?;
        if found.0 != pointer as u64 {
            return Err(INVALID_DEVICE_ADDRESS);
        }
        let handle = machine.export(pointer as u64).map_err(status)?;
        put(out, handle.to_word().map_err(status)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtMapMemHandle(out: *mut *mut c_void, handle: u64, flags: i32) -> Status {
    runtime("cnrtMapMemHandle", |machine| {
        if flags != 0 {
            return Err(ARGS_INVALID);
        }
        let handle = MemoryHandle::from_word(handle).map_err(status)?;
        put(out, machine.open(handle).map_err(status)? as *mut c_void)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtUnMapMemHandle(pointer: *mut c_void) -> Status {
    runtime("cnrtUnMapMemHandle", |machine| machine.close(pointer as u64).map_err(status))
}
