//! The collectives table of a plugin that offers [`NativeCollectives`].

use std::borrow::Borrow;

use super::device::device;
use super::plugin::{Exported, object};
use super::{
    answer_growing, argument, array, borrow_handle, data_type, done, guard, into_handle, place,
    reduction, take_handle,
};
use crate::sdk::{
    DeviceOf, NativeCall, NativeCollectives, NativeCommunicator, PluginError, PluginResult,
};
use crate::tables::{Bytes, CollectiveCall, CollectivesCapabilities, CollectivesTable, ErrorInfo};
use crate::{Collective, Status, log};

/// The table.
pub const fn collectives_table<P, C>() -> CollectivesTable
where
    P: Exported + Borrow<C>,
    C: NativeCollectives,
{
    CollectivesTable {
        struct_size: size_of::<CollectivesTable>() as u32,
        reserved: 0,
        capabilities: Some(capabilities::<P, C>),
        unique_id: Some(unique_id::<P, C>),
        communicator_create: Some(communicator_create::<P, C>),
        communicator_destroy: Some(communicator_destroy::<C::Communicator>),
        communicator_abort: Some(communicator_abort::<C::Communicator>),
        async_error: Some(async_error::<C::Communicator>),
        call: Some(call::<C::Communicator>),
        group_start: Some(group_start::<P, C>),
        group_end: Some(group_end::<P, C>),
    }
}

/// A communicator, and the number of its ranks, which is the length of a call's arrays.
struct CommunicatorObject<M> {
    communicator: M,
    ranks: u32,
}

/// The plugin's collectives family.
fn library<P: Exported + Borrow<C>, C: NativeCollectives>() -> PluginResult<&'static C> {
    object::<P>().map(Borrow::borrow)
}

/// The communicator behind a handle.
///
/// # Safety
/// `handle` came from [`communicator_create`] with the same `M` and was not destroyed.
unsafe fn communicator<'a, M: NativeCommunicator>(
    handle: u64,
) -> PluginResult<&'a CommunicatorObject<M>> {
    // SAFETY: the caller promises it.
    unsafe { borrow_handle(handle, "communicator") }
}

unsafe extern "C" fn capabilities<P: Exported + Borrow<C>, C: NativeCollectives>(
    capabilities: *mut CollectivesCapabilities,
    size: u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("collectives.capabilities", error, || {
        let facts = library::<P, C>()?.facts()?;
        let value = CollectivesCapabilities {
            unique_id_bytes: facts.unique_id_bytes,
            support: facts.support.as_ptr(),
            support_count: facts.support.len() as u64,
            flags: facts.flags,
            library: Bytes::from_static(facts.library),
        };
        // SAFETY: the caller passes null or room for `size` bytes.
        unsafe { answer_growing(capabilities, size, "the capabilities", value) }
    })
}

unsafe extern "C" fn unique_id<P: Exported + Borrow<C>, C: NativeCollectives>(
    id: *mut u8,
    capacity: u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("collectives.unique_id", error, || {
        let library = library::<P, C>()?;
        let expected = library.facts()?.unique_id_bytes;
        if id.is_null() || capacity < expected {
            return Err(PluginError::invalid(format!(
                "a unique id of {expected} bytes does not fit into {capacity}"
            )));
        }
        let bytes = library.unique_id()?;
        if bytes.len() as u64 != expected {
            return Err(PluginError::new(
                Status::Internal,
                format!("a unique id of {} bytes where {expected} were said", bytes.len()),
            ));
        }
        // SAFETY: the caller passes room for `capacity` bytes, and there are no more.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), id, bytes.len()) };
        Ok(Status::Ok)
    })
}

unsafe extern "C" fn communicator_create<P: Exported + Borrow<C>, C: NativeCollectives>(
    device_handle: u64,
    id: *const u8,
    id_bytes: u64,
    ranks: u32,
    rank: u32,
    communicator: *mut u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("collectives.communicator_create", error, || {
        log::refresh();
        if rank >= ranks {
            return Err(PluginError::invalid(format!("rank {rank} of {ranks}")));
        }
        // SAFETY: the caller passes an open device of this plugin, `id_bytes` readable bytes, and
        // null or room for the handle.
        let (device, id, place) = unsafe {
            (
                device::<DeviceOf<C>>(device_handle)?,
                array(id, id_bytes, "the unique id")?,
                place(communicator, "the communicator handle")?,
            )
        };
        let communicator = library::<P, C>()?.join(device, id, ranks, rank)?;
        place.write(into_handle(CommunicatorObject { communicator, ranks }));
        Ok(Status::Ok)
    })
}

unsafe extern "C" fn communicator_destroy<M: NativeCommunicator>(
    handle: u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("collectives.communicator_destroy", error, || {
        // SAFETY: the caller destroys a handle of `communicator_create` once, and uses it no more.
        let object = unsafe { take_handle::<CommunicatorObject<M>>(handle, "communicator") }?;
        done(object.communicator.leave())
    })
}

unsafe extern "C" fn communicator_abort<M: NativeCommunicator>(
    handle: u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("collectives.communicator_abort", error, || {
        // SAFETY: the caller passes a live communicator.
        done(unsafe { communicator::<M>(handle) }?.communicator.abort())
    })
}

unsafe extern "C" fn async_error<M: NativeCommunicator>(handle: u64, error: *mut ErrorInfo) -> i32 {
    guard("collectives.async_error", error, || {
        // SAFETY: the caller passes a live communicator.
        unsafe { communicator::<M>(handle) }?.communicator.async_error().map(Status::from)
    })
}

unsafe extern "C" fn call<M: NativeCommunicator>(
    handle: u64,
    call: *const CollectiveCall,
    stream: u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("collectives.call", error, || {
        // SAFETY: the caller passes a live communicator and a call.
        let (object, call) = unsafe { (communicator::<M>(handle)?, argument(call, "the call")?) };
        let collective = Collective::from_code(call.collective).ok_or_else(|| {
            PluginError::not_supported(format!("unknown collective number {}", call.collective))
        })?;
        // SAFETY: the caller passes null or one entry for each rank.
        let per_rank = |pointer: *const u64, what| unsafe {
            if pointer.is_null() { Ok(&[][..]) } else { array(pointer, object.ranks.into(), what) }
        };
        let native = NativeCall {
            collective,
            dtype: data_type(call.dtype)?,
            op: if collective.reduces() { Some(reduction(call.op)?) } else { None },
            root: call.root,
            count: call.count,
            send: call.send,
            receive: call.receive,
            send_counts: per_rank(call.send_counts, "send_counts")?,
            send_displacements: per_rank(call.send_displacements, "send_displacements")?,
            receive_counts: per_rank(call.receive_counts, "receive_counts")?,
            receive_displacements: per_rank(call.receive_displacements, "receive_displacements")?,
        };
        // SAFETY: the caller passes buffers as the table's `call` asks for.
        done(unsafe { object.communicator.call(&native, stream) })
    })
}

unsafe extern "C" fn group_start<P: Exported + Borrow<C>, C: NativeCollectives>(
    error: *mut ErrorInfo,
) -> i32 {
    guard("collectives.group_start", error, || done(library::<P, C>()?.group_start()))
}

unsafe extern "C" fn group_end<P: Exported + Borrow<C>, C: NativeCollectives>(
    error: *mut ErrorInfo,
) -> i32 {
    guard("collectives.group_end", error, || done(library::<P, C>()?.group_end()))
}
