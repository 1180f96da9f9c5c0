//! `cudaDeviceProp`, whose layout differs between versions.

use std::ffi::c_void;

use iccl_sim_nvidia::{INVALID_DEVICE, Status, attribute, put_bytes, status, uuid};

use super::runtime;

/// Where the fields lie that moved. Those before them did not.
pub(crate) struct Layout {
    pub(crate) bytes: usize,
    pub(crate) multiprocessors: usize,
    /// Bus, device, domain.
    pub(crate) pci: usize,
    pub(crate) rdma: Option<usize>,
}

/// Fills in the whole structure: what has no meaning here is 0.
pub(crate) fn write(symbol: &'static str, layout: &Layout, out: *mut c_void, index: i32) -> Status {
    runtime(symbol, |machine| {
        let card = u32::try_from(index).map_err(|_| INVALID_DEVICE)?;
        machine.device(card).map_err(status)?;
        let mut bytes = vec![0_u8; layout.bytes];
        let mut set = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        set(0, b"NVIDIA Simulated");
        set(256, &uuid(machine, card)?);
        set(288, &machine.room(card).1.to_ne_bytes());
        let mut number = |at: usize, which: i32| {
            attribute(machine, which, index).map(|value| set(at, &value.to_ne_bytes()))
        };
        number(360, 75)?;
        number(364, 76)?;
        number(layout.multiprocessors, 16)?;
        number(layout.pci, 33)?;
        number(layout.pci + 4, 34)?;
        number(layout.pci + 8, 50)?;
        if let Some(at) = layout.rdma {
            number(at, 116)?;
        }
        put_bytes(out, &bytes)
    })
}
