//! Cards and contexts. A card's context here is the default one, which choosing the card makes.

use std::ffi::{CString, c_char, c_void};
use std::sync::OnceLock;

use iccl_sim_ascend::{
    CONTEXT_NULL, INVALID_DEVICEID, PARAM_INVALID, Status, chip, chosen, put, status,
};
use iccl_sim_core::{Machine, entry};

use super::{call, machine};

/// The first card's context; the others follow.
const FIRST_CONTEXT: u64 = 0xac10_0000_0000;
const CONTEXT_STEP: u64 = 0x100;

fn device(machine: &Machine, index: i32) -> Result<u32, Status> {
    let index = u32::try_from(index).map_err(|_| INVALID_DEVICEID)?;
    machine.device(index).map(|_| index).map_err(status)
}

#[unsafe(no_mangle)]
extern "C" fn aclrtGetDeviceCount(count: *mut u32) -> Status {
    call("aclrtGetDeviceCount", |machine| put(count, machine.devices().len() as u32))
}

#[unsafe(no_mangle)]
extern "C" fn aclrtSetDevice(index: i32) -> Status {
    call("aclrtSetDevice", |machine| {
        machine.set_current_device(device(machine, index)?).map_err(status)
    })
}

/// What was made on the card stays, as for one that others have chosen too.
#[unsafe(no_mangle)]
extern "C" fn aclrtResetDevice(index: i32) -> Status {
    call("aclrtResetDevice", |machine| device(machine, index).map(|_| ()))
}

#[unsafe(no_mangle)]
extern "C" fn aclrtGetDevice(out: *mut i32) -> Status {
    call("aclrtGetDevice", |machine| put(out, chosen(machine)? as i32))
}

#[unsafe(no_mangle)]
extern "C" fn aclrtGetCurrentContext(out: *mut *mut c_void) -> Status {
    call("aclrtGetCurrentContext", |machine| {
        let context = FIRST_CONTEXT + u64::from(chosen(machine)?) * CONTEXT_STEP;
        put(out, context as *mut c_void)
    })
}

#[unsafe(no_mangle)]
extern "C" fn aclrtSetCurrentContext(context: *mut c_void) -> Status {
    // Also on a card in error, whose thread must be able to go back to its own.
    let outcome = || {
        if let Err(code) = entry::enter(machine(), "aclrtSetCurrentContext") {
            return if code == 0 { Ok(()) } else { Err(code) };
        }
        let place = (context as u64).checked_sub(FIRST_CONTEXT).ok_or(CONTEXT_NULL)?;
        let index = u32::try_from(place / CONTEXT_STEP).map_err(|_| PARAM_INVALID)?;
        machine().set_current_device(index).map_err(|_| PARAM_INVALID)
    };
    super::tell("aclrtSetCurrentContext", outcome().err().unwrap_or(0))
}

#[unsafe(no_mangle)]
extern "C" fn aclrtSynchronizeDevice() -> Status {
    call("aclrtSynchronizeDevice", |machine| {
        machine.synchronize_device(chosen(machine)?).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn aclrtGetSocName() -> *const c_char {
    static NAME: OnceLock<CString> = OnceLock::new();
    NAME.get_or_init(|| CString::new(chip(machine())).unwrap_or_default()).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn aclrtGetDeviceInfo(index: u32, attribute: i32, out: *mut i64) -> Status {
    call("aclrtGetDeviceInfo", |machine| {
        let physical = machine.device(index).map_err(status)?.physical();
        match attribute {
            // AI cores, memory, number of the chip in the host.
            101 => put(out, 20),
            301 => put(out, machine.room(index).1 as i64),
            402 => put(out, i64::from(physical)),
            _ => Err(PARAM_INVALID),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn aclrtDeviceGetPCIBusId(index: i32, out: *mut c_char, bytes: i32) -> Status {
    call("aclrtDeviceGetPCIBusId", |machine| {
        let index = device(machine, index)?;
        let physical = machine.device(index).map_err(status)?.physical();
        let text = format!("0000:{:02X}:00.0", 0xc1 + physical);
        entry::put_text(out.cast(), bytes, &text).map_err(status)
    })
}

/// HBM (1) of the card that the thread has chosen.
#[unsafe(no_mangle)]
extern "C" fn aclrtGetMemInfo(attribute: i32, free: *mut usize, total: *mut usize) -> Status {
    call("aclrtGetMemInfo", |machine| {
        if attribute != 1 {
            return Err(PARAM_INVALID);
        }
        let room = machine.room(chosen(machine)?);
        put(free, room.0 as usize)?;
        put(total, room.1 as usize)
    })
}

#[unsafe(no_mangle)]
extern "C" fn aclrtDeviceCanAccessPeer(out: *mut i32, index: i32, peer: i32) -> Status {
    call("aclrtDeviceCanAccessPeer", |machine| {
        let (index, peer) = (device(machine, index)?, device(machine, peer)?);
        put(out, i32::from(index != peer))
    })
}

#[unsafe(no_mangle)]
extern "C" fn aclrtDeviceEnablePeerAccess(peer: i32, flags: u32) -> Status {
    call("aclrtDeviceEnablePeerAccess", |machine| {
        if flags != 0 {
            return Err(PARAM_INVALID);
        }
        let peer = device(machine, peer)?;
        machine.enable_peer(chosen(machine)?, peer).map(|_| ()).map_err(status)
    })
}
