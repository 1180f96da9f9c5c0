//! The device table of a plugin that offers a [`DeviceBackend`].

use core::ffi::c_void;
use std::borrow::Borrow;
use std::time::Duration;

use super::plugin::{Exported, object};
use super::{
    answer_growing, argument, array, borrow_handle, data_type, done, guard, into_handle,
    memory_kind, place, reduction, take_handle,
};
use crate::sdk::{Device, DeviceBackend, HostCallback, PluginError, PluginResult};
use crate::tables::{
    Bytes, DeviceCapabilities, DeviceInfo, DeviceTable, ErrorInfo, HostFunction, MemoryRegion,
};
use crate::{Status, log};

/// The table.
pub const fn device_table<P, B>() -> DeviceTable
where
    P: Exported + Borrow<B>,
    B: DeviceBackend,
{
    DeviceTable {
        struct_size: size_of::<DeviceTable>() as u32,
        reserved: 0,
        count: Some(count::<P, B>),
        info: Some(info::<P, B>),
        capabilities: Some(capabilities::<P, B>),
        open: Some(open::<P, B>),
        close: Some(close::<B::Device>),
        allocate: Some(allocate::<B::Device>),
        free: Some(free::<B::Device>),
        memory_kind: Some(kind_of::<B::Device>),
        copy: Some(copy::<B::Device>),
        stream_create: Some(stream_create::<B::Device>),
        stream_destroy: Some(stream_destroy::<B::Device>),
        stream_query: Some(stream_query::<B::Device>),
        stream_synchronize: Some(stream_synchronize::<B::Device>),
        host_function: Some(host_function::<B::Device>),
        stream_wait_value: Some(stream_wait_value::<B::Device>),
        write_value: Some(write_value::<B::Device>),
        event_create: Some(event_create::<B::Device>),
        event_destroy: Some(event_destroy::<B::Device>),
        event_record: Some(event_record::<B::Device>),
        event_query: Some(event_query::<B::Device>),
        flush: Some(flush::<B::Device>),
        export_region: Some(export_region::<B::Device>),
        release_region: Some(release_region::<B::Device>),
        reduce: Some(reduce::<B::Device>),
        async_error: Some(async_error::<B::Device>),
    }
}

/// The plugin's device family.
fn backend<P: Exported + Borrow<B>, B: DeviceBackend>() -> PluginResult<&'static B> {
    object::<P>().map(Borrow::borrow)
}

/// The device behind a handle.
///
/// # Safety
/// `handle` came from [`open`] with the same `D` and was not closed.
pub(super) unsafe fn device<'a, D: Device>(handle: u64) -> PluginResult<&'a D> {
    // SAFETY: the caller promises it.
    unsafe { borrow_handle::<D>(handle, "device") }
}

unsafe extern "C" fn count<P: Exported + Borrow<B>, B: DeviceBackend>(
    count: *mut u32,
    error: *mut ErrorInfo,
) -> i32 {
    guard("device.count", error, || {
        // SAFETY: the caller passes null or room for the result.
        let count = unsafe { place(count, "the number of devices") }?;
        count.write(backend::<P, B>()?.count()?);
        Ok(Status::Ok)
    })
}

unsafe extern "C" fn info<P: Exported + Borrow<B>, B: DeviceBackend>(
    index: u32,
    info: *mut DeviceInfo,
    size: u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("device.info", error, || {
        let facts = backend::<P, B>()?.facts(index)?;
        let value = DeviceInfo {
            name: Bytes::from_static(facts.name),
            pci_address: Bytes::from_static(facts.pci_address),
            numa_node: facts.numa_node.and_then(|node| i32::try_from(node).ok()).unwrap_or(-1),
            reserved: 0,
            memory_bytes: facts.memory_bytes,
        };
        // SAFETY: the caller passes null or room for `size` bytes.
        unsafe { answer_growing(info, size, "the facts", value) }
    })
}

unsafe extern "C" fn capabilities<P: Exported + Borrow<B>, B: DeviceBackend>(
    index: u32,
    capabilities: *mut DeviceCapabilities,
    size: u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("device.capabilities", error, || {
        let facts = backend::<P, B>()?.facts(index)?;
        // SAFETY: the caller passes null or room for `size` bytes.
        unsafe { answer_growing(capabilities, size, "the capabilities", facts.capabilities) }
    })
}

unsafe extern "C" fn open<P: Exported + Borrow<B>, B: DeviceBackend>(
    index: u32,
    device: *mut u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("device.open", error, || {
        log::refresh();
        // SAFETY: the caller passes null or room for the handle.
        let place = unsafe { place(device, "the device handle") }?;
        place.write(into_handle(backend::<P, B>()?.open(index)?));
        Ok(Status::Ok)
    })
}

unsafe extern "C" fn close<D: Device>(handle: u64, error: *mut ErrorInfo) -> i32 {
    guard("device.close", error, || {
        // SAFETY: the caller closes a handle of `open` once, and uses it no more.
        drop(unsafe { take_handle::<D>(handle, "device") }?);
        Ok(Status::Ok)
    })
}

unsafe extern "C" fn allocate<D: Device>(
    handle: u64,
    bytes: u64,
    kind: u32,
    pointer: *mut *mut c_void,
    error: *mut ErrorInfo,
) -> i32 {
    guard("device.allocate", error, || {
        // SAFETY: the caller passes an open device, and null or room for the pointer.
        let (device, place) = unsafe { (device::<D>(handle)?, place(pointer, "the pointer")?) };
        place.write(device.allocate(bytes, memory_kind(kind)?)?);
        Ok(Status::Ok)
    })
}

unsafe extern "C" fn free<D: Device>(
    handle: u64,
    pointer: *mut c_void,
    error: *mut ErrorInfo,
) -> i32 {
    // SAFETY: the caller passes an open device and a pointer of its `allocate`.
    guard("device.free", error, || done(unsafe { device::<D>(handle)?.free(pointer) }))
}

unsafe extern "C" fn kind_of<D: Device>(
    handle: u64,
    pointer: *const c_void,
    kind: *mut u32,
    error: *mut ErrorInfo,
) -> i32 {
    guard("device.memory_kind", error, || {
        // SAFETY: the caller passes an open device, and null or room for the kind.
        let (device, place) = unsafe { (device::<D>(handle)?, place(kind, "the kind")?) };
        place.write(device.memory_kind(pointer)?.code());
        Ok(Status::Ok)
    })
}

unsafe extern "C" fn copy<D: Device>(
    handle: u64,
    stream: u64,
    destination: *mut c_void,
    destination_kind: u32,
    source: *const c_void,
    source_kind: u32,
    bytes: u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("device.copy", error, || {
        let destination = (destination, memory_kind(destination_kind)?);
        let source = (source, memory_kind(source_kind)?);
        // SAFETY: the caller passes an open device and memory as the table's `copy` asks for.
        done(unsafe { device::<D>(handle)?.copy(stream, destination, source, bytes) })
    })
}

unsafe extern "C" fn stream_create<D: Device>(
    handle: u64,
    stream: *mut u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("device.stream_create", error, || {
        // SAFETY: the caller passes an open device, and null or room for the stream.
        let (device, place) = unsafe { (device::<D>(handle)?, place(stream, "the stream")?) };
        place.write(device.stream_create()?);
        Ok(Status::Ok)
    })
}

unsafe extern "C" fn stream_destroy<D: Device>(
    handle: u64,
    stream: u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("device.stream_destroy", error, || {
        // SAFETY: the caller passes an open device.
        done(unsafe { device::<D>(handle) }?.stream_destroy(stream))
    })
}

unsafe extern "C" fn stream_query<D: Device>(
    handle: u64,
    stream: u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("device.stream_query", error, || {
        // SAFETY: the caller passes an open device.
        unsafe { device::<D>(handle) }?.stream_query(stream).map(Status::from)
    })
}

unsafe extern "C" fn stream_synchronize<D: Device>(
    handle: u64,
    stream: u64,
    timeout_us: u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("device.stream_synchronize", error, || {
        let timeout = Duration::from_micros(timeout_us);
        // SAFETY: the caller passes an open device.
        done(unsafe { device::<D>(handle) }?.stream_synchronize(stream, timeout))
    })
}

unsafe extern "C" fn host_function<D: Device>(
    handle: u64,
    stream: u64,
    function: Option<HostFunction>,
    user: *mut c_void,
    error: *mut ErrorInfo,
) -> i32 {
    guard("device.host_function", error, || {
        let function = function.ok_or_else(|| PluginError::invalid("the host function is null"))?;
        // SAFETY: the caller allows one call of `function(user)` on any thread.
        let callback = unsafe { HostCallback::new(function, user) };
        // SAFETY: the caller passes an open device.
        done(unsafe { device::<D>(handle) }?.host_function(stream, callback))
    })
}

unsafe extern "C" fn stream_wait_value<D: Device>(
    handle: u64,
    stream: u64,
    word: *const u64,
    value: u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("device.stream_wait_value", error, || {
        // SAFETY: the caller passes an open device and a word as the table's function asks for.
        done(unsafe { device::<D>(handle)?.stream_wait_value(stream, word, value) })
    })
}

unsafe extern "C" fn write_value<D: Device>(
    handle: u64,
    word: *mut u64,
    value: u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("device.write_value", error, || {
        // SAFETY: the caller passes an open device and a word as the table's function asks for.
        done(unsafe { device::<D>(handle)?.write_value(word, value) })
    })
}

unsafe extern "C" fn event_create<D: Device>(
    handle: u64,
    event: *mut u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("device.event_create", error, || {
        // SAFETY: the caller passes an open device, and null or room for the event.
        let (device, place) = unsafe { (device::<D>(handle)?, place(event, "the event")?) };
        place.write(device.event_create()?);
        Ok(Status::Ok)
    })
}

unsafe extern "C" fn event_destroy<D: Device>(
    handle: u64,
    event: u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("device.event_destroy", error, || {
        // SAFETY: the caller passes an open device.
        done(unsafe { device::<D>(handle) }?.event_destroy(event))
    })
}

unsafe extern "C" fn event_record<D: Device>(
    handle: u64,
    event: u64,
    stream: u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("device.event_record", error, || {
        // SAFETY: the caller passes an open device.
        done(unsafe { device::<D>(handle) }?.event_record(event, stream))
    })
}

unsafe extern "C" fn event_query<D: Device>(handle: u64, event: u64, error: *mut ErrorInfo) -> i32 {
    guard("device.event_query", error, || {
        // SAFETY: the caller passes an open device.
        unsafe { device::<D>(handle) }?.event_query(event).map(Status::from)
    })
}

unsafe extern "C" fn flush<D: Device>(
    handle: u64,
    pointer: *mut c_void,
    bytes: u64,
    error: *mut ErrorInfo,
) -> i32 {
    // SAFETY: the caller passes an open device.
    guard("device.flush", error, || done(unsafe { device::<D>(handle) }?.flush(pointer, bytes)))
}

unsafe extern "C" fn export_region<D: Device>(
    handle: u64,
    pointer: *mut c_void,
    bytes: u64,
    region: *mut MemoryRegion,
    size: u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("device.export_region", error, || {
        // SAFETY: the caller passes an open device.
        let value = unsafe { device::<D>(handle) }?.export_region(pointer, bytes)?;
        // SAFETY: the caller passes null or room for `size` bytes.
        unsafe { answer_growing(region, size, "the region", value) }
    })
}

unsafe extern "C" fn release_region<D: Device>(
    handle: u64,
    region: *const MemoryRegion,
    error: *mut ErrorInfo,
) -> i32 {
    guard("device.release_region", error, || {
        // SAFETY: the caller passes an open device and a region as `export_region` gave it.
        let (device, region) = unsafe { (device::<D>(handle)?, argument(region, "the region")?) };
        done(device.release_region(region))
    })
}

unsafe extern "C" fn reduce<D: Device>(
    handle: u64,
    stream: u64,
    destination: *mut c_void,
    sources: *const *const c_void,
    source_count: u64,
    element_count: u64,
    dtype: u32,
    op: u32,
    divisor: u32,
    error: *mut ErrorInfo,
) -> i32 {
    guard("device.reduce", error, || {
        let (device, sources) =
            // SAFETY: the caller passes an open device and `source_count` pointers.
            unsafe { (device::<D>(handle)?, array(sources, source_count, "the sources")?) };
        let (dtype, op) = (data_type(dtype)?, reduction(op)?);
        // SAFETY: the caller passes memory as the table's `reduce` asks for.
        done(unsafe {
            device.reduce(stream, destination, sources, element_count, dtype, op, divisor)
        })
    })
}

unsafe extern "C" fn async_error<D: Device>(handle: u64, error: *mut ErrorInfo) -> i32 {
    // SAFETY: the caller passes an open device.
    guard("device.async_error", error, || done(unsafe { device::<D>(handle) }?.async_error()))
}
