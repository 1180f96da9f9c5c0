//! A simulated `libxpurt.so.1`: XRE 4, for R300 cards. It owns the machine, as the driver's library does.

#[path = "../../xpurt/mod.rs"]
mod runtime;

use iccl_sim_core::own_machine;
use iccl_sim_kunlun::VENDOR;

own_machine!(VENDOR);

/// XRE's version.
const VERSION: (u32, u32) = (4, 33);
/// R300.
const MODEL: u64 = 3;
