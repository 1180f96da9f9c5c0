//! A card's memory at an address of the host's, as a NIC registers it.
//!
//! BKCL maps it (`xccl_mmap`), if the variable `BKCL_USE_PEERMEM_XDR` is 1. What is registered begins and
//! ends at 2 MiB. It is unmapped after the NIC has let it go and before the memory is freed.

use std::ffi::c_void;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult};
use iccl_plugin_api::tables::{DeviceCapabilities, MemoryRegion, region_form};
use iccl_vendor_support::failure;

use crate::device::Card;
use crate::face::Handle;
use crate::sys;

/// At which addresses a region begins and ends.
const ALIGNMENT: usize = 2 << 20;

/// The variable without which BKCL maps nothing.
const ENABLED_BY: &str = "BKCL_USE_PEERMEM_XDR";

/// BKCL's functions that map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping(pub(crate) sys::Mapping);

/// What was given out.
#[derive(Debug)]
pub(crate) struct Alias {
    /// Where it lies on the card.
    begin: usize,
    /// Where it lies for the host.
    host: Handle,
    bytes: usize,
}

impl Mapping {
    /// Whether the operator has allowed it.
    pub(crate) fn is_enabled() -> bool {
        std::env::var_os(ENABLED_BY).is_some_and(|value| value == "1")
    }

    /// A card of a BKCL with it can do this too.
    pub(crate) fn add_to(capabilities: &mut DeviceCapabilities) {
        capabilities.region_forms |= region_form::HOST_ALIAS;
        capabilities.region_alignment = ALIGNMENT as u32;
    }
}

fn check(call: &str, answer: std::ffi::c_int) -> PluginResult<()> {
    if answer == 0 {
        return Ok(());
    }
    Err(failure(Status::DeviceError, format_args!("{call} answered {answer}"), answer))
}

impl Card {
    /// Maps memory.
    pub(crate) fn export(&self, pointer: *mut c_void, bytes: u64) -> PluginResult<MemoryRegion> {
        let Some(Mapping(mapping)) = self.mapping else {
            let text = format!(
                "BKCL gives no address for a NIC: it lacks xccl_mmap, or {ENABLED_BY} is not 1"
            );
            return Err(PluginError::not_supported(text));
        };
        let length = bytes as usize;
        if self.allocations.holds(pointer.addr(), length) != Some(MemoryKind::Device) {
            let text = format!("{bytes} bytes at {pointer:p} are no memory of this card");
            return Err(PluginError::invalid(text));
        }
        if !pointer.addr().is_multiple_of(ALIGNMENT) || !length.is_multiple_of(ALIGNMENT) {
            let text = format!("{bytes} bytes at {pointer:p} do not begin and end at 2 MiB");
            return Err(PluginError::invalid(text));
        }
        let _current = self.chip.enter()?;
        let mut host = std::ptr::null_mut();
        // SAFETY: there is room for the address; the memory is this card's.
        let answer = unsafe { (mapping.xccl_mmap)(&raw mut host, pointer, length) };
        check("xccl_mmap", answer)?;
        let host = Handle(host);
        let alias = Alias { begin: pointer.addr(), host, bytes: length };
        let cookie = self.last_region.fetch_add(1, Ordering::Relaxed) + 1;
        self.aliases.lock().unwrap_or_else(PoisonError::into_inner).insert(cookie, alias);
        Ok(MemoryRegion {
            form: region_form::HOST_ALIAS,
            descriptor: -1,
            address: host.number(),
            offset: 0,
            length: bytes,
            cookie,
        })
    }

    /// Takes back what `export` gave, once.
    pub(crate) fn release(&self, region: &MemoryRegion) -> PluginResult<()> {
        let mut aliases = self.aliases.lock().unwrap_or_else(PoisonError::into_inner);
        let alias = aliases.remove(&region.cookie);
        let (Some(alias), Some(Mapping(mapping))) = (alias, self.mapping) else {
            let text = format!("there is no region {} of this card", region.cookie);
            return Err(PluginError::invalid(text));
        };
        let _current = self.chip.enter()?;
        // SAFETY: it was mapped with this length, and the caller says that no NIC has it any more.
        check("xccl_munmap", unsafe { (mapping.xccl_munmap)(alias.host.0, alias.bytes) })
    }

    /// Memory may be freed only when no NIC has it any more.
    pub(crate) fn is_not_exported(&self, pointer: *mut c_void) -> PluginResult<()> {
        let aliases = self.aliases.lock().unwrap_or_else(PoisonError::into_inner);
        let is_inside = |alias: &Alias| {
            let offset = alias.begin.checked_sub(pointer.addr());
            offset
                .is_some_and(|offset| self.allocations.holds(pointer.addr(), offset + 1).is_some())
        };
        if aliases.values().any(is_inside) {
            return Err(PluginError::invalid(format!("{pointer:p} is still given to a NIC")));
        }
        Ok(())
    }
}
