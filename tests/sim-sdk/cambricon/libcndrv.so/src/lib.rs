//! A simulated `libcndrv.so`. It owns the machine that CNRT and CNCL work on.
//!
//! Prototypes: `cn_api.h` 2.15.5.

use std::ffi::{c_char, c_void};
use std::os::fd::IntoRawFd;

use iccl_sim_cambricon::{
    ARGS_INVALID, DEVICE_INVALID, DRIVER_VERSION, INIT, INVALID_DEVICE_ADDRESS, NOT_SUPPORT,
    Outcome, Status, VENDOR, attribute, call, device, has_peer_access, put, put_bytes, put_text,
    put_version, status,
};
use iccl_sim_core::{Machine, MemoryHandle, Place, own_machine};

own_machine!(VENDOR);

/// Everything but `cnInit` and the version fails before `cnInit`.
fn driver(symbol: &'static str, body: impl FnOnce(&'static Machine) -> Outcome) -> Status {
    call(machine(), symbol, |machine| {
        if !machine.is_initialised() {
            return Err(INIT);
        }
        body(machine)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnInit(flags: u32) -> Status {
    call(machine(), "cnInit", |machine| {
        if flags != 0 {
            return Err(ARGS_INVALID);
        }
        machine.initialise();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnGetLibVersion(major: *mut i32, minor: *mut i32, patch: *mut i32) -> Status {
    put_version([major, minor, patch], DRIVER_VERSION).err().unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn cnDriverGetVersion(major: *mut i32, minor: *mut i32, patch: *mut i32) -> Status {
    put_version([major, minor, patch], DRIVER_VERSION).err().unwrap_or(0)
}

// Devices: a CNdev is no number of a card.

const FIRST_DEVICE: u64 = 0x4d00;

fn ordinal(machine: &Machine, handle: u64) -> Result<u32, Status> {
    let index = handle.checked_sub(FIRST_DEVICE).ok_or(DEVICE_INVALID)?;
    device(machine, i32::try_from(index).map_err(|_| DEVICE_INVALID)?)
}

#[unsafe(no_mangle)]
extern "C" fn cnDeviceGet(out: *mut u64, index: i32) -> Status {
    driver("cnDeviceGet", |machine| put(out, FIRST_DEVICE + u64::from(device(machine, index)?)))
}

#[unsafe(no_mangle)]
extern "C" fn cnDeviceGetName(out: *mut c_char, length: u32, handle: u64) -> Status {
    driver("cnDeviceGetName", |machine| {
        ordinal(machine, handle)?;
        let name = machine.settings().text("name").unwrap_or_else(|| "MLU Simulated".to_owned());
        put_text(out.cast(), length as i32, &name)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnDeviceGetUuid(out: *mut c_void, handle: u64) -> Status {
    driver("cnDeviceGetUuid", |machine| {
        let identity = machine.identity(ordinal(machine, handle)?).map_err(status)?;
        let mut bytes = [0x4d; 16];
        bytes[8..].copy_from_slice(&identity.to_be_bytes());
        put_bytes(out, &bytes)
    })
}

const DMA_BUF_SUPPORTED: i32 = 0x313;

#[unsafe(no_mangle)]
extern "C" fn cnDeviceGetAttribute(out: *mut i32, number: i32, handle: u64) -> Status {
    driver("cnDeviceGetAttribute", |machine| {
        let index = ordinal(machine, handle)?;
        let value = match number {
            DMA_BUF_SUPPORTED => i32::from(machine.settings().is_on("dma_buf")),
            number => attribute(machine, number, index)?,
        };
        put(out, value)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnDeviceCanPeerAble(out: *mut i32, one: u64, other: u64) -> Status {
    driver("cnDeviceCanPeerAble", |machine| {
        let is_pair = ordinal(machine, one)? != ordinal(machine, other)?;
        put(out, i32::from(is_pair && has_peer_access(machine)))
    })
}

// Memory.

#[unsafe(no_mangle)]
extern "C" fn cnMallocPeerAble(out: *mut u64, bytes: u64) -> Status {
    driver("cnMallocPeerAble", |machine| {
        put(out, machine.allocate(machine.current_device(), bytes).map_err(status)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnMallocHost(out: *mut *mut c_void, bytes: u64) -> Status {
    driver("cnMallocHost", |machine| {
        put(out, machine.allocate_pinned(bytes).map_err(status)? as *mut c_void)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnFreeHost(pointer: *mut c_void) -> Status {
    driver("cnFreeHost", |machine| machine.free_pinned(pointer as u64).map_err(status))
}

fn allocation(machine: &Machine, address: u64) -> Result<(u64, u64), Status> {
    machine.allocation(address).map_err(|_| INVALID_DEVICE_ADDRESS)
}

#[unsafe(no_mangle)]
extern "C" fn cnMemGetAddressRange(base: *mut u64, bytes: *mut u64, address: u64) -> Status {
    driver("cnMemGetAddressRange", |machine| {
        let (start, length) = allocation(machine, address)?;
        put(base, start)?;
        put(bytes, length)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnGetMemAttribute(out: *mut c_void, number: i32, address: u64) -> Status {
    driver("cnGetMemAttribute", |machine| {
        let (start, bytes) = allocation(machine, address)?;
        let Place::Device(index) = machine.span(address, 1).map_err(status)?.place() else {
            return Err(INVALID_DEVICE_ADDRESS);
        };
        match number {
            // Type, of which 2 is the card's; the card; the range; whether it may be shared by IPC.
            1 => put(out.cast(), 2_i32),
            7 => put(out.cast(), index as i32),
            0x11 => put(out.cast(), start),
            0x12 => put(out.cast(), bytes),
            0x19 => put(out.cast(), 1_i32),
            _ => Err(ARGS_INVALID),
        }
    })
}

const DMA_BUF_FD: i32 = 1;
const PAGE_BYTES: u64 = 4096;

/// Gives a descriptor by which the memory is mapped (no real dma-buf: no network card takes it). Refused
/// unless it is set so, and for ranges that don't start at an allocation's first byte.
#[unsafe(no_mangle)]
extern "C" fn cnMemGetHandleForAddressRange(
    out: *mut c_void,
    address: u64,
    bytes: usize,
    kind: i32,
    flags: u64,
) -> Status {
    driver("cnMemGetHandleForAddressRange", |machine| {
        if out.is_null() || kind != DMA_BUF_FD || bytes == 0 || flags != 0 {
            return Err(ARGS_INVALID);
        }
        let (start, length) = allocation(machine, address)?;
        if bytes as u64 > length.next_multiple_of(PAGE_BYTES) - (address - start) {
            return Err(ARGS_INVALID);
        }
        if start != address {
            return Err(NOT_SUPPORT);
        }
        let file = machine.descriptor(address).map_err(status)?;
        put(out.cast(), file.into_raw_fd())
    })
}

// Sharing with other processes: a handle is 8 bytes.

#[unsafe(no_mangle)]
extern "C" fn cnIpcGetMemHandle(out: *mut u64, address: u64) -> Status {
    driver("cnIpcGetMemHandle", |machine| {
        let (start, _) = allocation(machine, address)?;
        if start != address {
            return Err(INVALID_DEVICE_ADDRESS);
        }
        let handle = machine.export(address).map_err(status)?;
        put(out, handle.to_word().map_err(status)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnIpcOpenMemHandle(out: *mut u64, handle: u64, flags: u32) -> Status {
    driver("cnIpcOpenMemHandle", |machine| {
        if !matches!(flags, 0 | 2) {
            return Err(ARGS_INVALID);
        }
        let handle = MemoryHandle::from_word(handle).map_err(status)?;
        put(out, machine.open(handle).map_err(status)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnIpcCloseMemHandle(address: u64) -> Status {
    driver("cnIpcCloseMemHandle", |machine| machine.close(address).map_err(status))
}
