//! A simulated `libcudart.so.13`: the runtime that all versions share, and what only this one has.

#[path = "../../cudart/mod.rs"]
mod runtime;

use std::ffi::c_void;

use iccl_sim_nvidia::Status;
use runtime::properties::{Layout, write};

/// The runtime's version: 1000 × major + 10 × minor.
const VERSION: i32 = 13050;
/// sizeof(cudaPointerAttributes).
const POINTER_ATTRIBUTES_BYTES: usize = 88;

/// Layout of the structure of `driver_types.h` 13.5.
const LAYOUT: Layout = Layout { bytes: 1008, multiprocessors: 384, pci: 568, rdma: Some(724) };

#[unsafe(no_mangle)]
extern "C" fn cudaGetDeviceProperties(out: *mut c_void, index: i32) -> Status {
    write("cudaGetDeviceProperties", &LAYOUT, out, index)
}
