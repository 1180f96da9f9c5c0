//! Device memory at an address of the host's, for NICs.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use crate::bkcl::{INVALID_ARGUMENT, RUNTIME_ERROR, Status, call, fail, put};

/// What is mapped: host address and length.
static MAPPED: Mutex<BTreeMap<u64, usize>> = Mutex::new(BTreeMap::new());

/// `xccl_mmap`.
pub(crate) fn mmap(out: *mut *mut c_void, pointer: *mut c_void, bytes: usize) -> Status {
    call("xccl_mmap", |machine, _| {
        if std::env::var("BKCL_USE_PEERMEM_XDR").as_deref() != Ok("1") {
            return Err(fail(RUNTIME_ERROR, "BKCL_USE_PEERMEM_XDR is not set"));
        }
        let alias = machine.host_alias(pointer as u64, bytes as u64).map_err(|_| RUNTIME_ERROR)?;
        MAPPED.lock().unwrap_or_else(PoisonError::into_inner).insert(alias as u64, bytes);
        put(out, alias.cast())
    })
}

/// `xccl_munmap`: address and length of one mapping.
pub(crate) fn munmap(alias: *mut c_void, bytes: usize) -> Status {
    call("xccl_munmap", |_, _| {
        let mut mapped = MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
        if mapped.get(&(alias as u64)) != Some(&bytes) {
            return Err(INVALID_ARGUMENT);
        }
        mapped.remove(&(alias as u64));
        Ok(())
    })
}
