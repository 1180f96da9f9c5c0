//! A simulated `libcudart.so.12`: the runtime that all versions share, and what only this one has.

#[path = "../../cudart/mod.rs"]
mod runtime;

use std::ffi::c_void;

use iccl_sim_nvidia::Status;
use runtime::properties::{Layout, write};

/// The runtime's version: 1000 × major + 10 × minor.
const VERSION: i32 = 12090;
/// sizeof(cudaPointerAttributes).
const POINTER_ATTRIBUTES_BYTES: usize = 24;

/// Layout of the structure of `driver_types.h` 12.9.
const LAYOUT: Layout = Layout { bytes: 1032, multiprocessors: 388, pci: 584, rdma: Some(748) };
/// What the name without suffix still writes: CUDA 11's, whose later fields nobody here confirmed.
const OLD_LAYOUT: Layout = Layout { bytes: 712, multiprocessors: 388, pci: 584, rdma: None };

#[unsafe(no_mangle)]
extern "C" fn cudaGetDeviceProperties_v2(out: *mut c_void, index: i32) -> Status {
    write("cudaGetDeviceProperties_v2", &LAYOUT, out, index)
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetDeviceProperties(out: *mut c_void, index: i32) -> Status {
    write("cudaGetDeviceProperties", &OLD_LAYOUT, out, index)
}
