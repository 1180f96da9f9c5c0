//! Events: those that may be recorded again and again (`Ex`), and the older ones, whose functions refuse
//! the former.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use iccl_sim_ascend::{PARAM_INVALID, Status, chosen, put, status, stream};
use iccl_sim_core::EventKind;

use super::call;

/// Which events were made by the function with `Ex`.
static RENEWABLE: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// Flags: for streams to wait for, of a stream's progress, with time, for the card only, of others, of
/// other processes.
const KNOWN_FLAGS: u32 = 0x7b;
const WITH_TIME: u32 = 8;
const ALL_FLAGS: u32 = 9;

fn create(symbol: &'static str, out: *mut *mut c_void, flags: u32, is_renewable: bool) -> Status {
    call(symbol, |machine| {
        if out.is_null() || flags == 0 || flags & !KNOWN_FLAGS != 0 {
            return Err(PARAM_INVALID);
        }
        let kind = EventKind { without_time: flags & WITH_TIME == 0, shared: false };
        let handle = machine.create_event(chosen(machine)?, kind).map_err(status)?;
        if is_renewable {
            RENEWABLE.lock().unwrap_or_else(PoisonError::into_inner).insert(handle);
        }
        put(out, handle as *mut c_void)
    })
}

fn is_renewable(event: *mut c_void) -> bool {
    RENEWABLE.lock().unwrap_or_else(PoisonError::into_inner).contains(&(event as u64))
}

#[unsafe(no_mangle)]
extern "C" fn aclrtCreateEvent(out: *mut *mut c_void) -> Status {
    create("aclrtCreateEvent", out, ALL_FLAGS, false)
}

#[unsafe(no_mangle)]
extern "C" fn aclrtCreateEventWithFlag(out: *mut *mut c_void, flags: u32) -> Status {
    create("aclrtCreateEventWithFlag", out, flags, false)
}

#[unsafe(no_mangle)]
extern "C" fn aclrtCreateEventExWithFlag(out: *mut *mut c_void, flags: u32) -> Status {
    create("aclrtCreateEventExWithFlag", out, flags, true)
}

#[unsafe(no_mangle)]
extern "C" fn aclrtDestroyEvent(event: *mut c_void) -> Status {
    call("aclrtDestroyEvent", |machine| {
        machine.destroy_event(event as u64).map_err(status)?;
        RENEWABLE.lock().unwrap_or_else(PoisonError::into_inner).remove(&(event as u64));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn aclrtRecordEvent(event: *mut c_void, handle: *mut c_void) -> Status {
    call("aclrtRecordEvent", |machine| {
        let event = machine.event(event as u64).map_err(status)?;
        machine.record(&event, &stream(machine, handle)?).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn aclrtResetEvent(event: *mut c_void, handle: *mut c_void) -> Status {
    call("aclrtResetEvent", |machine| {
        machine.event(event as u64).map_err(status)?;
        stream(machine, handle)?;
        if is_renewable(event) { Err(PARAM_INVALID) } else { Ok(()) }
    })
}

/// 0 is not ready, 1 is complete.
#[unsafe(no_mangle)]
extern "C" fn aclrtQueryEventStatus(event: *mut c_void, out: *mut i32) -> Status {
    call("aclrtQueryEventStatus", |machine| {
        let event = machine.event(event as u64).map_err(status)?;
        put(out, i32::from(event.is_reached()))
    })
}

/// The older function, which says it the other way round: 0 is complete, 1 is not ready.
#[unsafe(no_mangle)]
extern "C" fn aclrtQueryEvent(event: *mut c_void, out: *mut i32) -> Status {
    call("aclrtQueryEvent", |machine| {
        if is_renewable(event) {
            return Err(PARAM_INVALID);
        }
        let event = machine.event(event as u64).map_err(status)?;
        put(out, i32::from(!event.is_reached()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn aclrtSynchronizeEvent(event: *mut c_void) -> Status {
    call("aclrtSynchronizeEvent", |machine| {
        let event = machine.event(event as u64).map_err(status)?;
        machine.synchronize_event(&event).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn aclrtEventElapsedTime(out: *mut f32, from: *mut c_void, to: *mut c_void) -> Status {
    call("aclrtEventElapsedTime", |machine| {
        let from = machine.event(from as u64).map_err(status)?;
        let to = machine.event(to as u64).map_err(status)?;
        put(out, machine.elapsed(&from, &to).map_err(status)?)
    })
}
