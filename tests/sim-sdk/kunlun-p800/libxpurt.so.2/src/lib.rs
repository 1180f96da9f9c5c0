//! A simulated `libxpurt.so.2`: XRE 5, for P800 cards. It owns the machine, as the driver's library does.

#[path = "../../../kunlun/xpurt/mod.rs"]
mod runtime;

use std::ffi::c_void;

use iccl_sim_core::{Pace, own_machine};
use iccl_sim_kunlun::{Status, VENDOR, call, status, stream};

own_machine!(VENDOR);

/// XRE's version.
const VERSION: (u32, u32) = (5, 37);
/// KL3, the P800's chip.
const MODEL: u64 = 300;

/// New in XRE 5.
#[unsafe(no_mangle)]
extern "C" fn xpu_memcpy_async(
    to: *mut c_void,
    from: *const c_void,
    bytes: u64,
    kind: i32,
    handle: *mut c_void,
) -> Status {
    call(machine(), "xpu_memcpy_async", |machine| {
        let stream = stream(machine, handle)?;
        if bytes == 0 {
            return Ok(());
        }
        let (to, from) = runtime::sides(machine, to, from, bytes, kind)?;
        machine.copy(&stream, to, from, Pace::Enqueued);
        machine.health(stream.device()).map_err(status)
    })
}
