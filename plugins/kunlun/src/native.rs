//! libxpurt alone: all generations have it, and it is the only way to cards older than P800.
//!
//! It has no way to ask whether something is over, so that is found out by waiting on a thread
//! ([`Waits`]). XRE 5 has `xpu_event_query`, but nobody has said by which number it answers "not yet".
//! Copies are synchronous before XRE 5, and know no stream: the stream is waited for first.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::sdk::{DeviceFacts, HostCallback, PluginError, PluginResult, Progress};
use iccl_plugin_api::tables::{DeviceCapabilities, stream_to_host};
use iccl_vendor_support::{Direction, numa_node};

use crate::error::check_xpu;
use crate::face::{Copy, Face, Handle};
use crate::readable::is_readable;
use crate::sys;
use crate::waits::{Wait, Waits};

/// libxpurt.
#[derive(Debug)]
pub(crate) struct Native {
    xpu: sys::Xpu,
    waits: Arc<Waits>,
}

impl Native {
    pub(crate) fn new(xpu: sys::Xpu) -> Self {
        Self { xpu, waits: Arc::default() }
    }

    /// A wait on another thread, which has to choose the card first.
    fn wait(
        &self,
        ordinal: i32,
        wait: impl FnOnce(&sys::Xpu) -> PluginResult<()> + Send + 'static,
    ) -> Wait {
        let xpu = self.xpu;
        Box::new(move || {
            // SAFETY: no pointers.
            check_xpu("xpu_set_device", unsafe { (xpu.xpu_set_device)(ordinal) })?;
            wait(&xpu)
        })
    }
}

/// Asks for an attribute of a card.
fn attribute(xpu: &sys::Xpu, number: c_int, ordinal: i32) -> PluginResult<u64> {
    let mut value = 0;
    // SAFETY: there is room for the number.
    let answer = unsafe { (xpu.xpu_device_get_attr)(&raw mut value, number, ordinal) };
    check_xpu(format_args!("xpu_device_get_attr({number}, {ordinal})"), answer)?;
    Ok(value)
}

/// A PCI address out of the attribute: 16 bits of domain, 8 of bus, 5 of device, 3 of function.
fn pci_address(value: u64) -> String {
    let [domain, bus] = [value >> 16 & 0xffff, value >> 8 & 0xff];
    format!("{domain:04x}:{bus:02x}:{:02x}.{:x}", value >> 3 & 0x1f, value & 7)
}

fn model(number: u64) -> String {
    let known = sys::MODELS.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| format!("Kunlun model {number}"), |(_, name)| (*name).to_owned())
}

/// The unit of the capacity is not said: what can only be bytes is taken, else it stays unknown.
fn memory_bytes(capacity: u64) -> u64 {
    if capacity >= 1 << 30 { capacity } else { 0 }
}

/// What a card of Kunlun's can do. Nothing lets a stream wait for the host: enqueueing blocks.
pub(crate) fn capabilities(stream_to_host: u32) -> DeviceCapabilities {
    DeviceCapabilities {
        stream_to_host,
        host_to_stream: 0,
        host_accessible: 0,
        has_reduce: 0,
        reduce_dtypes: 0,
        reduce_ops: 0,
        region_forms: 0,
        region_alignment: 1,
    }
}

impl Face for Native {
    fn chosen(&self) -> PluginResult<i32> {
        let mut device = 0;
        // SAFETY: there is room for the number.
        let answer = unsafe { (self.xpu.xpu_current_device)(&raw mut device) };
        check_xpu("xpu_current_device", answer)?;
        Ok(device)
    }

    fn choose(&self, ordinal: i32) -> PluginResult<()> {
        // SAFETY: no pointers.
        let answer = unsafe { (self.xpu.xpu_set_device)(ordinal) };
        check_xpu(format_args!("xpu_set_device({ordinal})"), answer)
    }

    fn facts(&self, ordinal: i32) -> PluginResult<DeviceFacts> {
        let address = pci_address(attribute(&self.xpu, sys::XPUATTR_PCI_ADDRESS, ordinal)?);
        let capacity = attribute(&self.xpu, sys::XPUATTR_MEM_MAIN_CAPACITY, ordinal).unwrap_or(0);
        let numa_node = numa_node(&address);
        Ok(DeviceFacts {
            name: model(attribute(&self.xpu, sys::XPUATTR_MODEL, ordinal)?).leak(),
            pci_address: address.leak(),
            numa_node,
            memory_bytes: memory_bytes(capacity),
            capabilities: capabilities(stream_to_host::EVENT),
        })
    }

    fn allocate(&self, bytes: usize, kind: MemoryKind) -> PluginResult<*mut c_void> {
        let mut pointer = std::ptr::null_mut();
        let length = bytes as u64;
        // SAFETY: there is room for the pointer.
        let (call, answer) = unsafe {
            if kind == MemoryKind::Device {
                let main = sys::XPU_MEM_MAIN;
                ("xpu_malloc", (self.xpu.xpu_malloc)(&raw mut pointer, length, main))
            } else {
                ("xpu_host_alloc", (self.xpu.xpu_host_alloc)(&raw mut pointer, length, 0))
            }
        };
        check_xpu(format_args!("{call}({bytes})"), answer)?;
        Ok(pointer)
    }

    unsafe fn free(&self, pointer: *mut c_void, kind: MemoryKind) -> PluginResult<()> {
        if kind == MemoryKind::Device {
            // SAFETY: the caller promises it.
            check_xpu("xpu_free", unsafe { (self.xpu.xpu_free)(pointer) })
        } else {
            // SAFETY: as above.
            check_xpu("xpu_host_free", unsafe { (self.xpu.xpu_host_free)(pointer) })
        }
    }

    /// libxpurt tells nothing of a pointer. What the process can read is the host's.
    fn foreign_kind(&self, _ordinal: i32, pointer: *const c_void) -> PluginResult<MemoryKind> {
        Ok(if is_readable(pointer)? { MemoryKind::Host } else { MemoryKind::Device })
    }

    unsafe fn copy(&self, stream: sys::Stream, copy: Copy) -> PluginResult<()> {
        let Copy { to, from, bytes, direction } = copy;
        let call = || format!("xpu_memcpy({bytes} bytes, {direction:?})");
        let handle = Handle(stream).number();
        let kind = match direction {
            Direction::HostToDevice => Some(sys::XPU_HOST_TO_DEVICE),
            Direction::DeviceToHost => Some(sys::XPU_DEVICE_TO_HOST),
            Direction::DeviceToDevice => Some(sys::XPU_DEVICE_TO_DEVICE),
            Direction::HostToHost => None,
        };
        if let (Some(kind), Some(copy)) = (kind, self.xpu.xpu_memcpy_async) {
            self.waits.given(handle);
            // SAFETY: the caller promises both sides until the stream is past the copy.
            let answer = unsafe { copy(to, from, bytes as u64, kind, stream) };
            return check_xpu(call(), answer);
        }
        // What is in the stream before comes first.
        let given = self.waits.count(handle);
        // SAFETY: the caller passes a stream.
        check_xpu("xpu_wait", unsafe { (self.xpu.xpu_wait)(stream) })?;
        self.waits.passed(handle, given);
        let Some(kind) = kind else {
            // Within the host there is no number for it.
            // SAFETY: the caller promises both sides, which do not overlap.
            unsafe { from.cast::<u8>().copy_to_nonoverlapping(to.cast(), bytes) };
            return Ok(());
        };
        // SAFETY: the caller promises both sides.
        check_xpu(call(), unsafe { (self.xpu.xpu_memcpy)(to, from, bytes as u64, kind) })
    }

    fn stream_create(&self) -> PluginResult<sys::Stream> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: there is room for the handle.
        let answer = unsafe { (self.xpu.xpu_stream_create)(&raw mut stream) };
        check_xpu("xpu_stream_create", answer)?;
        self.waits.adopt(Handle(stream).number());
        Ok(stream)
    }

    fn stream_destroy(&self, stream: sys::Stream) -> PluginResult<()> {
        // SAFETY: the caller passes a stream of `stream_create`, once.
        let done = check_xpu("xpu_wait", unsafe { (self.xpu.xpu_wait)(stream) });
        self.waits.forget(Handle(stream).number());
        // SAFETY: as above; no wait uses it any more.
        let answer = unsafe { (self.xpu.xpu_stream_destroy)(stream) };
        done.and(check_xpu("xpu_stream_destroy", answer))
    }

    fn enqueue_on(&self, stream: sys::Stream) -> PluginResult<()> {
        self.waits.given(Handle(stream).number());
        Ok(())
    }

    fn stream_query(&self, ordinal: i32, stream: sys::Stream) -> PluginResult<Progress> {
        let handle = Handle(stream);
        let wait = self.wait(ordinal, move |xpu| {
            // SAFETY: a stream is not destroyed while it is waited for.
            check_xpu("xpu_wait", unsafe { (xpu.xpu_wait)(handle.pointer()) })
        });
        self.waits.ask_stream(handle.number(), wait)
    }

    fn host_function(&self, _stream: sys::Stream, _callback: HostCallback) -> PluginResult<()> {
        Err(PluginError::not_supported("libxpurt has no host functions"))
    }

    fn event_create(&self) -> PluginResult<sys::Event> {
        let mut event = std::ptr::null_mut();
        // SAFETY: there is room for the handle.
        let answer = unsafe { (self.xpu.xpu_event_create)(&raw mut event) };
        check_xpu("xpu_event_create", answer)?;
        Ok(event)
    }

    fn event_destroy(&self, event: sys::Event) -> PluginResult<()> {
        let (xpu, event) = (self.xpu, Handle(event));
        let destroy = move || {
            // SAFETY: the caller passes an event of `event_create`, once; no wait uses it any more.
            check_xpu("xpu_event_destroy", unsafe { (xpu.xpu_event_destroy)(event.pointer()) })
        };
        self.waits.retire(event.number(), Box::new(destroy))
    }

    fn event_record(&self, event: sys::Event, stream: sys::Stream) -> PluginResult<()> {
        // SAFETY: the caller passes an event and a stream of this card.
        let answer = unsafe { (self.xpu.xpu_event_record)(event, stream) };
        check_xpu("xpu_event_record", answer)?;
        self.waits.recorded(Handle(event).number(), Handle(stream).number());
        Ok(())
    }

    fn event_query(&self, ordinal: i32, event: sys::Event) -> PluginResult<Progress> {
        let handle = Handle(event);
        let wait = self.wait(ordinal, move |xpu| {
            // SAFETY: an event is not destroyed while it is waited for.
            check_xpu("xpu_event_wait", unsafe { (xpu.xpu_event_wait)(handle.pointer()) })
        });
        self.waits.ask_event(handle.number(), wait)
    }

    fn health(&self, idle: sys::Stream) -> PluginResult<()> {
        // SAFETY: a stream of `stream_create` on which there is nothing.
        check_xpu("xpu_wait", unsafe { (self.xpu.xpu_wait)(idle) })
    }

    fn last_words(&self) -> Option<String> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_apart_as_the_header_says() {
        assert_eq!(pci_address(0x0000_5300), "0000:53:00.0");
        assert_eq!(pci_address(0x0001_00ff), "0001:00:1f.7");
    }

    #[test]
    fn models_have_names_and_a_capacity_is_bytes_or_unknown() {
        assert_eq!(model(0), "Kunlun K200");
        assert_eq!(model(300), "Kunlun P800");
        assert_eq!(model(77), "Kunlun model 77");
        assert_eq!([32, 32768, 32 << 30].map(memory_bytes), [0, 0, 32 << 30]);
    }
}
