//! Queues, and functions of the host's in them.

use std::ffi::c_void;

use iccl_sim_cambricon::{
    ARGS_INVALID, INVALID_RESOURCE_HANDLE, Outcome, Status, put, queue, status,
};
use iccl_sim_core::{Machine, StreamKind, User};

use super::{pending, runtime};

const LEAST_PRIORITY: i32 = 0;
const GREATEST_PRIORITY: i32 = 7;

fn create(machine: &Machine, out: *mut *mut c_void) -> Outcome {
    if out.is_null() {
        return Err(ARGS_INVALID);
    }
    // Ordered with the default queue: the harsher of what the header leaves open.
    let device = machine.current_device();
    put(out, machine.create_stream(device, StreamKind::Blocking).map_err(status)? as *mut c_void)
}

#[unsafe(no_mangle)]
extern "C" fn cnrtQueueCreate(out: *mut *mut c_void) -> Status {
    runtime("cnrtQueueCreate", |machine| create(machine, out))
}

/// Any priority is taken, and brought into the range, which has no meaning here.
#[unsafe(no_mangle)]
extern "C" fn cnrtQueueCreateWithPriority(
    out: *mut *mut c_void,
    flags: u32,
    _priority: i32,
) -> Status {
    runtime("cnrtQueueCreateWithPriority", |machine| {
        if flags == 0 { create(machine, out) } else { Err(ARGS_INVALID) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtDeviceGetQueuePriorityRange(least: *mut i32, greatest: *mut i32) -> Status {
    runtime("cnrtDeviceGetQueuePriorityRange", |_| {
        put(least, LEAST_PRIORITY)?;
        put(greatest, GREATEST_PRIORITY)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtQueueGetPriority(handle: *mut c_void, out: *mut i32) -> Status {
    runtime("cnrtQueueGetPriority", |machine| {
        queue(machine, handle)?;
        put(out, LEAST_PRIORITY)
    })
}

/// Returns at once; what is in the queue is still done.
#[unsafe(no_mangle)]
extern "C" fn cnrtQueueDestroy(handle: *mut c_void) -> Status {
    runtime("cnrtQueueDestroy", |machine| match handle as u64 {
        0..=2 => Err(INVALID_RESOURCE_HANDLE),
        handle => machine.destroy_stream(handle).map_err(status),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtQueueSync(handle: *mut c_void) -> Status {
    runtime("cnrtQueueSync", |machine| {
        machine.synchronize(&queue(machine, handle)?).map_err(status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtQueueQuery(handle: *mut c_void) -> Status {
    runtime("cnrtQueueQuery", |machine| {
        let queue = queue(machine, handle)?;
        machine.health(queue.device()).map_err(status)?;
        if machine.is_idle(&queue) { Ok(()) } else { Err(pending(machine)) }
    })
}

/// The notifier comes first.
#[unsafe(no_mangle)]
extern "C" fn cnrtQueueWaitNotifier(
    notifier: *mut c_void,
    handle: *mut c_void,
    flags: u32,
) -> Status {
    runtime("cnrtQueueWaitNotifier", |machine| {
        if flags != 0 {
            return Err(ARGS_INVALID);
        }
        let notifier = machine.event(notifier as u64).map_err(status)?;
        machine.wait_for_event(&queue(machine, handle)?, &notifier);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnrtInvokeHostFunc(
    handle: *mut c_void,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    user: *mut c_void,
) -> Status {
    runtime("cnrtInvokeHostFunc", |machine| {
        let function = function.ok_or(ARGS_INVALID)?;
        let queue = queue(machine, handle)?;
        let user = User::new(user);
        // SAFETY: the caller's function with the caller's argument, called once.
        machine.call_host(&queue, Box::new(move || unsafe { function(user.pointer()) }));
        Ok(())
    })
}
