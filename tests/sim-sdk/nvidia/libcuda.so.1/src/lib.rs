//! A simulated `libcuda.so.1`. It owns the machine that the runtime and NCCL work on.
//!
//! Prototypes: `cuda.h` of CUDA 12.9.

use std::ffi::{CStr, c_char, c_void};
use std::os::fd::IntoRawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use iccl_sim_core::{Machine, Place, Span, own_machine};
use iccl_sim_nvidia::{
    INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_INITIALIZED, NOT_SUPPORTED, Outcome, Status,
    VENDOR, attribute, call, description, driver_version, enter, name, pci_address, put, put_bytes,
    put_text, span, status, stream, uuid,
};

own_machine!(VENDOR);

/// Everything but `cuInit` and the version fails before `cuInit`.
fn driver(symbol: &'static str, body: impl FnOnce(&'static Machine) -> Outcome) -> Status {
    call(machine(), symbol, |machine| {
        if !machine.is_initialised() {
            return Err(NOT_INITIALIZED);
        }
        body(machine)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: u32) -> Status {
    if flags != 0 {
        return INVALID_VALUE;
    }
    call(machine(), "cuInit", |machine| {
        machine.initialise();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: *mut i32) -> Status {
    match enter(machine(), "cuDriverGetVersion") {
        Ok(_) => put(version, driver_version(machine())).err().unwrap_or(0),
        Err(code) => code,
    }
}

fn text(found: Option<&'static CStr>, out: *mut *const c_char) -> Status {
    let pointer = found.map_or(std::ptr::null(), CStr::as_ptr);
    match put(out, pointer) {
        Ok(()) if pointer.is_null() => INVALID_VALUE,
        outcome => outcome.err().unwrap_or(0),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: Status, out: *mut *const c_char) -> Status {
    text(description(code), out)
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: Status, out: *mut *const c_char) -> Status {
    text(name(code, true), out)
}

// Devices: CUdevice is the number of the card.

fn device(machine: &Machine, index: i32) -> Result<u32, Status> {
    let index = u32::try_from(index).map_err(|_| INVALID_DEVICE)?;
    machine.device(index).map(|_| index).map_err(status)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: *mut i32) -> Status {
    driver("cuDeviceGetCount", |machine| put(count, machine.devices().len() as i32))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(out: *mut i32, index: i32) -> Status {
    driver("cuDeviceGet", |machine| put(out, device(machine, index)? as i32))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(out: *mut c_char, length: i32, index: i32) -> Status {
    driver("cuDeviceGetName", |machine| {
        device(machine, index)?;
        let name = machine.settings().text("name").unwrap_or_else(|| "NVIDIA Simulated".to_owned());
        put_text(out.cast(), length, &name)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(out: *mut c_void, index: i32) -> Status {
    driver("cuDeviceGetUuid_v2", |machine| put_bytes(out, &uuid(machine, device(machine, index)?)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid(out: *mut c_void, index: i32) -> Status {
    cuDeviceGetUuid_v2(out, index)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(out: *mut i32, number: i32, index: i32) -> Status {
    driver("cuDeviceGetAttribute", |machine| put(out, attribute(machine, number, index)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(out: *mut usize, index: i32) -> Status {
    driver("cuDeviceTotalMem_v2", |machine| {
        put(out, machine.room(device(machine, index)?).1 as usize)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetPCIBusId(out: *mut c_char, length: i32, index: i32) -> Status {
    driver("cuDeviceGetPCIBusId", |machine| {
        let index = device(machine, index)?;
        let physical = machine.device(index).map_err(status)?.physical();
        put_text(out.cast(), length, &pci_address(physical))
    })
}

// Contexts: the primary context of card n is known as n + 1, and there are no others.

fn context(index: u32) -> *mut c_void {
    (index as usize + 1) as *mut c_void
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(out: *mut *mut c_void, index: i32) -> Status {
    driver("cuDevicePrimaryCtxRetain", |machine| put(out, context(device(machine, index)?)))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(index: i32) -> Status {
    driver("cuDevicePrimaryCtxRelease_v2", |machine| device(machine, index).map(|_| ()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(out: *mut *mut c_void) -> Status {
    driver("cuCtxGetCurrent", |machine| put(out, context(machine.current_device())))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: *mut c_void) -> Status {
    driver("cuCtxSetCurrent", |machine| {
        let index = (context as usize).checked_sub(1).ok_or(INVALID_HANDLE)?;
        machine.set_current_device(index as u32).map_err(|_| INVALID_HANDLE)
    })
}

// Pointers.

const MEMORY_TYPE_HOST: u32 = 1;
const MEMORY_TYPE_DEVICE: u32 = 2;

#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttribute(out: *mut c_void, number: i32, pointer: u64) -> Status {
    driver("cuPointerGetAttribute", |machine| {
        let found = machine.span(pointer, 1).map_err(status)?;
        let is_device = match found.place() {
            Place::Device(_) => true,
            Place::Pinned => false,
            Place::Pageable => return Err(INVALID_VALUE),
        };
        let ordinal = if let Place::Device(index) = found.place() { index } else { 0 };
        let allocation = || machine.allocation(pointer).map_err(status);
        match number {
            1 => put(out.cast(), context(ordinal)),
            2 if is_device => put(out.cast(), MEMORY_TYPE_DEVICE),
            2 => put(out.cast(), MEMORY_TYPE_HOST),
            // The pointer for the host; that for cards.
            4 if is_device => Err(INVALID_VALUE),
            3 | 4 => put(out.cast(), pointer),
            // Synchronising memory operations; managed.
            6 | 8 => put(out.cast(), 0_u32),
            9 => put(out.cast(), ordinal as i32),
            // Can be shared by cudaIpc; mapped.
            10 => put(out.cast(), u32::from(is_device)),
            13 => put(out.cast(), 1_u32),
            11 => put(out.cast(), if is_device { allocation()?.0 } else { pointer }),
            12 => put(out.cast(), allocation()?.1 as usize),
            // Handle types that may be exported: none.
            14 => put(out.cast(), 0_u64),
            // Can be registered with a network card.
            15 => put(out.cast(), u32::from(is_device && machine.settings().is_on("dma_buf"))),
            _ => Err(INVALID_VALUE),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuPointerSetAttribute(value: *const c_void, number: i32, pointer: u64) -> Status {
    driver("cuPointerSetAttribute", |machine| {
        let is_device =
            matches!(machine.span(pointer, 1).map_err(status)?.place(), Place::Device(_));
        let is_known = number == 6 && is_device && !value.is_null();
        if is_known { Ok(()) } else { Err(INVALID_VALUE) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAddressRange_v2(base: *mut u64, size: *mut usize, pointer: u64) -> Status {
    driver("cuMemGetAddressRange_v2", |machine| {
        let (start, bytes) = machine.allocation(pointer).map_err(status)?;
        if !base.is_null() {
            put(base, start)?;
        }
        if size.is_null() { Ok(()) } else { put(size, bytes as usize) }
    })
}

const DMA_BUF: i32 = 1;
const PAGE_BYTES: u64 = 4096;

/// Gives a descriptor by which the memory is mapped (no real dma-buf: no network card takes it). Refused
/// unless it is set so, and for ranges that don't start at an allocation's first byte.
#[unsafe(no_mangle)]
extern "C" fn cuMemGetHandleForAddressRange(
    out: *mut c_void,
    pointer: u64,
    bytes: usize,
    kind: i32,
    _flags: u64,
) -> Status {
    driver("cuMemGetHandleForAddressRange", |machine| {
        let is_aligned =
            pointer.is_multiple_of(PAGE_BYTES) && (bytes as u64).is_multiple_of(PAGE_BYTES);
        if out.is_null() || kind != DMA_BUF || bytes == 0 || !is_aligned {
            return Err(INVALID_VALUE);
        }
        let (start, length) = machine.allocation(pointer).map_err(status)?;
        if bytes as u64 > length.next_multiple_of(PAGE_BYTES) - (pointer - start) {
            return Err(INVALID_VALUE);
        }
        if start != pointer {
            return Err(NOT_SUPPORTED);
        }
        let file = machine.descriptor(pointer).map_err(status)?;
        put(out.cast(), file.into_raw_fd())
    })
}

// Waits for and writes of words in memory.

const WAIT_FLUSH: u32 = 1 << 30;

/// The value of a word as the card sees it.
fn load(word: &Span) -> u64 {
    if word.bytes() == 4 {
        return u64::from(
            // SAFETY: a word in memory that cards reach, aligned (checked before), kept by the span.
            unsafe { AtomicU32::from_ptr(word.view().cast()) }.load(Ordering::Acquire),
        );
    }
    // SAFETY: as above.
    unsafe { AtomicU64::from_ptr(word.view().cast()) }.load(Ordering::Acquire)
}

fn store(word: &Span, value: u64) {
    if word.bytes() == 4 {
        // SAFETY: as in `load`.
        unsafe { AtomicU32::from_ptr(word.view().cast()) }.store(value as u32, Ordering::Release);
        return;
    }
    // SAFETY: as above.
    unsafe { AtomicU64::from_ptr(word.view().cast()) }.store(value, Ordering::Release);
}

/// A word that streams can reach.
fn word(machine: &Machine, pointer: u64, bytes: usize) -> Result<Span, Status> {
    let found = span(machine, pointer as *const c_void, bytes)?;
    let is_aligned = pointer.is_multiple_of(bytes as u64);
    if found.place() == Place::Pageable || !is_aligned { Err(INVALID_VALUE) } else { Ok(found) }
}

fn wait_value(handle: *mut c_void, pointer: u64, value: u64, flags: u32, bytes: usize) -> Outcome {
    let machine = machine();
    let stream = stream(machine, handle)?;
    let word = word(machine, pointer, bytes)?;
    let holds: fn(u64, u64, usize) -> bool = match flags & !WAIT_FLUSH {
        // The difference counts, so that counters may wrap.
        0 => |is, value, bytes| match bytes {
            4 => (is as u32).wrapping_sub(value as u32).cast_signed() >= 0,
            _ => is.wrapping_sub(value).cast_signed() >= 0,
        },
        1 => |is, value, _| is == value,
        2 => |is, value, _| is & value != 0,
        // NOR, and what does not exist.
        3 => return Err(NOT_SUPPORTED),
        _ => return Err(INVALID_VALUE),
    };
    let device = stream.device();
    machine.enqueue_after(
        &stream,
        Vec::new(),
        Box::new(move || {
            while !holds(load(&word), value, bytes) && machine.health(device).is_ok() {
                std::thread::sleep(Duration::from_micros(20));
            }
        }),
    );
    Ok(())
}

fn write_value(handle: *mut c_void, pointer: u64, value: u64, flags: u32, bytes: usize) -> Outcome {
    let machine = machine();
    if flags > 1 {
        return Err(INVALID_VALUE);
    }
    let stream = stream(machine, handle)?;
    let word = word(machine, pointer, bytes)?;
    machine.enqueue(&stream, Box::new(move || store(&word, value)));
    Ok(())
}

/// Both generations of the interface have the same prototypes.
macro_rules! memory_operations {
    ($($wait:ident, $write:ident, $type:ty;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $wait(stream: *mut c_void, at: u64, value: $type, flags: u32) -> Status {
            driver(stringify!($wait), |_| {
                wait_value(stream, at, u64::from(value), flags, size_of::<$type>())
            })
        }

        #[unsafe(no_mangle)]
        extern "C" fn $write(stream: *mut c_void, at: u64, value: $type, flags: u32) -> Status {
            driver(stringify!($write), |_| {
                write_value(stream, at, u64::from(value), flags, size_of::<$type>())
            })
        }
    )*};
}

memory_operations! {
    cuStreamWaitValue32, cuStreamWriteValue32, u32;
    cuStreamWaitValue32_v2, cuStreamWriteValue32_v2, u32;
    cuStreamWaitValue64, cuStreamWriteValue64, u64;
    cuStreamWaitValue64_v2, cuStreamWriteValue64_v2, u64;
}

/// The host address of device memory, if the setting `host_alias` is on. Not part of CUDA.
#[unsafe(no_mangle)]
extern "C" fn iccl_sim_host_alias(pointer: u64, bytes: usize, out: *mut *mut c_void) -> Status {
    let alias = machine().host_alias(pointer, bytes as u64);
    let outcome = alias.map_err(status).and_then(|alias| put(out, alias.cast()));
    if outcome.is_err() {
        let _ = put(out, null_mut());
    }
    outcome.err().unwrap_or(0)
}
