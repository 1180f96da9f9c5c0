//! The transport table of a plugin that offers a [`Transport`].

use std::borrow::Borrow;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use super::plugin::{Exported, object};
use super::{
    answer_growing, argument, array, borrow_handle, done, growing_argument, guard, into_handle,
    place, report, report_panic, take_handle,
};
use crate::sdk::{
    ChannelRequest, CompletionSink, DomainRequest, PluginError, PluginResult, PostedMessage,
    Transport, TransportDomain, Waker,
};
use crate::tables::{
    Bytes, ChannelOptions, Completion, DomainOptions, ErrorInfo, MAX_SEGMENTS, MemoryRegion,
    Message, TransportCapabilities, TransportTable,
};
use crate::{Status, log};

/// The table.
pub const fn transport_table<P, T>() -> TransportTable
where
    P: Exported + Borrow<T>,
    T: Transport,
{
    TransportTable {
        struct_size: size_of::<TransportTable>() as u32,
        reserved: 0,
        capabilities: Some(capabilities::<P, T>),
        open: Some(open::<P, T>),
        address: Some(address::<T::Domain>),
        channel_open: Some(channel_open::<T::Domain>),
        channel_state: Some(channel_state::<T::Domain>),
        post_send: Some(post_send::<T::Domain>),
        post_receive: Some(post_receive::<T::Domain>),
        progress: Some(progress::<T::Domain>),
        arm: Some(arm::<T::Domain>),
        event_descriptor: Some(event_descriptor::<T::Domain>),
        wait: Some(wait::<T::Domain>),
        wake: Some(wake::<T::Domain>),
        register_region: Some(register::<T::Domain>),
        deregister_region: Some(deregister::<T::Domain>),
        quiesce: Some(quiesce::<T::Domain>),
        channel_close: Some(channel_close::<T::Domain>),
        close: Some(close::<T::Domain>),
    }
}

/// A domain with the waker that may be used beside it.
struct DomainObject<D: TransportDomain> {
    /// Who may enter `domain`: [`FREE`], [`BUSY`] or [`POISONED`].
    state: AtomicU8,
    waker: D::Waker,
    domain: UnsafeCell<D>,
}

/// Nobody is inside.
const FREE: u8 = 0;
/// A thread is inside.
const BUSY: u8 = 1;
/// A call panicked halfway, so the domain's own invariants may not hold any more.
const POISONED: u8 = 2;

impl<D: TransportDomain> DomainObject<D> {
    /// Takes the domain for one call, or says why it can't be had.
    ///
    /// That calls come one at a time is what the caller of the table promises. This finds out a call
    /// from inside another one, and most calls from two threads; a read-modify-write would find all,
    /// and cost more than the rest of a call.
    fn enter(&self) -> PluginResult<()> {
        match self.state.load(Ordering::Relaxed) {
            FREE => {
                self.state.store(BUSY, Ordering::Relaxed);
                Ok(())
            }
            POISONED => Err(PluginError::new(
                Status::Panic,
                "the domain is unusable since a call of it panicked",
            )),
            _ => Err(PluginError::invalid("two calls of one transport domain at the same time")),
        }
    }
}

/// Runs one call of a domain; none after a panic in one.
///
/// # Safety
/// `handle` came from [`open`] with the same `D` and was not closed, and no other thread is in a call
/// of this domain other than [`wake`].
pub(super) unsafe fn domain_call<D: TransportDomain>(
    call: &'static str,
    handle: u64,
    error: *mut ErrorInfo,
    body: impl FnOnce(&mut D) -> PluginResult<Status>,
) -> i32 {
    // SAFETY: the caller promises an open domain.
    let object = match unsafe { borrow_handle::<DomainObject<D>>(handle, "domain") }
        .and_then(|object| object.enter().map(|()| object))
    {
        Ok(object) => object,
        Err(failure) => return report(error, &failure),
    };
    // SAFETY: the caller promises that no other thread is inside, and `enter` that this one is not.
    let domain = unsafe { &mut *object.domain.get() };
    match catch_unwind(AssertUnwindSafe(|| body(domain))) {
        Ok(result) => {
            object.state.store(FREE, Ordering::Relaxed);
            match result {
                Ok(status) => status.code(),
                Err(failure) => report(error, &failure),
            }
        }
        Err(payload) => {
            object.state.store(POISONED, Ordering::Relaxed);
            report_panic(call, error, payload)
        }
    }
}

/// The message that a pointer stands for, with its segments borrowed where they are.
///
/// # Safety
/// `message` is null, or a message whose segments are readable during the call.
unsafe fn posted<'a>(message: *const Message) -> PluginResult<PostedMessage<'a>> {
    // SAFETY: the caller promises it.
    let message = unsafe { argument(message, "the message") }?;
    if message.segment_count > MAX_SEGMENTS {
        return Err(PluginError::invalid(format!(
            "a message of {} segments; at most {MAX_SEGMENTS} are allowed",
            message.segment_count
        )));
    }
    // SAFETY: the caller promises readable segments.
    let segments = unsafe { array(message.segments, message.segment_count, "the segments") }?;
    Ok(PostedMessage { token: message.token, segments, envelope: &message.envelope })
}

unsafe extern "C" fn capabilities<P: Exported + Borrow<T>, T: Transport>(
    capabilities: *mut TransportCapabilities,
    size: u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("transport.capabilities", error, || {
        let facts = Borrow::<T>::borrow(object::<P>()?).facts();
        let value = TransportCapabilities {
            name: Bytes::from_static(facts.name),
            reach: facts.reach,
            memory_kinds: facts.memory_kinds,
            latency_ns: u64::try_from(facts.latency.as_nanos()).unwrap_or(u64::MAX),
            bytes_per_us: facts.bytes_per_us,
            largest_message: facts.largest_message.unwrap_or(0),
        };
        // SAFETY: the caller passes null or room for `size` bytes.
        unsafe { answer_growing(capabilities, size, "the capabilities", value) }
    })
}

unsafe extern "C" fn open<P: Exported + Borrow<T>, T: Transport>(
    options: *const DomainOptions,
    size: u64,
    domain: *mut u64,
    error: *mut ErrorInfo,
) -> i32 {
    guard("transport.open", error, || {
        log::refresh();
        // SAFETY: the caller passes `size` bytes of options, and null or room for the handle.
        let (options, place) = unsafe {
            (growing_argument(options, size, "the options")?, place(domain, "the domain handle")?)
        };
        let (job_key, interface) =
            // SAFETY: the caller's bytes live during the call.
            unsafe { (options.job_key.as_slice(), options.interface.as_text()) };
        let request = DomainRequest {
            communicator: options.communicator,
            rank: options.rank,
            ranks: options.ranks,
            local_ranks: options.local_ranks,
            job_key: job_key.try_into().map_err(|_| {
                PluginError::invalid(format!("a job key of {} bytes, not 32", job_key.len()))
            })?,
            interface: interface.ok_or_else(|| PluginError::invalid("interface is not UTF-8"))?,
            handshake_timeout: Duration::from_micros(options.handshake_timeout_us),
            connect_timeout: Duration::from_micros(options.connect_timeout_us),
        };
        let domain = Borrow::<T>::borrow(object::<P>()?).open(&request)?;
        place.write(into_handle(DomainObject {
            state: AtomicU8::new(FREE),
            waker: domain.waker(),
            domain: UnsafeCell::new(domain),
        }));
        Ok(Status::Ok)
    })
}

unsafe extern "C" fn address<D: TransportDomain>(
    handle: u64,
    address: *mut u8,
    capacity: u64,
    length: *mut u64,
    error: *mut ErrorInfo,
) -> i32 {
    let body = |domain: &mut D| {
        // SAFETY: the caller passes null or room for the length.
        let length = unsafe { place(length, "the length of the address") }?;
        let bytes = domain.address()?;
        if bytes.len() as u64 > capacity || address.is_null() {
            return Err(PluginError::invalid(format!(
                "an address of {} bytes does not fit into {capacity}",
                bytes.len()
            )));
        }
        // SAFETY: the caller passes room for `capacity` bytes, and there are no more.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address, bytes.len()) };
        length.write(bytes.len() as u64);
        Ok(Status::Ok)
    };
    // SAFETY: the caller passes an open domain.
    unsafe { domain_call("transport.address", handle, error, body) }
}

unsafe extern "C" fn channel_open<D: TransportDomain>(
    handle: u64,
    options: *const ChannelOptions,
    size: u64,
    channel: *mut u64,
    error: *mut ErrorInfo,
) -> i32 {
    let body = |domain: &mut D| {
        log::refresh();
        // SAFETY: the caller passes `size` bytes of options, and null or room for the handle.
        let (options, place) = unsafe {
            (growing_argument(options, size, "the options")?, place(channel, "the channel")?)
        };
        let request = ChannelRequest {
            peer: options.peer,
            dial: options.dial != 0,
            channel: options.channel,
            link_digest: options.link_digest,
            // SAFETY: the caller's bytes live during the call.
            address: unsafe { options.address.as_slice() },
        };
        place.write(domain.channel_open(&request)?);
        Ok(Status::Ok)
    };
    // SAFETY: the caller passes an open domain.
    unsafe { domain_call("transport.channel_open", handle, error, body) }
}

unsafe extern "C" fn channel_state<D: TransportDomain>(
    handle: u64,
    channel: u64,
    error: *mut ErrorInfo,
) -> i32 {
    let body = |domain: &mut D| domain.channel_state(channel).map(Status::from);
    // SAFETY: the caller passes an open domain.
    unsafe { domain_call("transport.channel_state", handle, error, body) }
}

unsafe extern "C" fn post_send<D: TransportDomain>(
    handle: u64,
    channel: u64,
    message: *const Message,
    error: *mut ErrorInfo,
) -> i32 {
    // SAFETY: the caller passes a message whose memory stays as the table asks for.
    let body = |domain: &mut D| done(unsafe { domain.post_send(channel, posted(message)?) });
    // SAFETY: the caller passes an open domain.
    unsafe { domain_call("transport.post_send", handle, error, body) }
}

unsafe extern "C" fn post_receive<D: TransportDomain>(
    handle: u64,
    channel: u64,
    message: *const Message,
    error: *mut ErrorInfo,
) -> i32 {
    // SAFETY: the caller passes a message whose memory stays as the table asks for.
    let body = |domain: &mut D| done(unsafe { domain.post_receive(channel, posted(message)?) });
    // SAFETY: the caller passes an open domain.
    unsafe { domain_call("transport.post_receive", handle, error, body) }
}

unsafe extern "C" fn progress<D: TransportDomain>(
    handle: u64,
    completions: *mut Completion,
    capacity: u32,
    count: *mut u32,
    error: *mut ErrorInfo,
) -> i32 {
    let body = |domain: &mut D| {
        // SAFETY: the caller passes null or room for the count.
        let count = unsafe { place(count, "the number of completions") }?;
        count.write(0);
        if capacity > 0 && (completions.is_null() || !completions.is_aligned()) {
            return Err(PluginError::invalid("no place for completions"));
        }
        let room: &mut [MaybeUninit<Completion>] = if capacity == 0 {
            &mut []
        } else {
            // SAFETY: checked for null and alignment; the caller passes room for `capacity`.
            unsafe { std::slice::from_raw_parts_mut(completions.cast(), capacity as usize) }
        };
        let mut sink = CompletionSink::new(room);
        let result = domain.progress(&mut sink);
        // What was put before a failure counts too.
        count.write(sink.used() as u32);
        done(result)
    };
    // SAFETY: the caller passes an open domain.
    unsafe { domain_call("transport.progress", handle, error, body) }
}

unsafe extern "C" fn arm<D: TransportDomain>(handle: u64, error: *mut ErrorInfo) -> i32 {
    let body = |domain: &mut D| domain.arm().map(Status::from);
    // SAFETY: the caller passes an open domain.
    unsafe { domain_call("transport.arm", handle, error, body) }
}

unsafe extern "C" fn event_descriptor<D: TransportDomain>(
    handle: u64,
    descriptor: *mut i32,
    error: *mut ErrorInfo,
) -> i32 {
    let body = |domain: &mut D| {
        // SAFETY: the caller passes null or room for the descriptor.
        unsafe { place(descriptor, "the descriptor") }?.write(domain.event_descriptor());
        Ok(Status::Ok)
    };
    // SAFETY: the caller passes an open domain.
    unsafe { domain_call("transport.event_descriptor", handle, error, body) }
}

unsafe extern "C" fn wait<D: TransportDomain>(
    handle: u64,
    timeout_us: u64,
    error: *mut ErrorInfo,
) -> i32 {
    let body = |domain: &mut D| done(domain.wait(Duration::from_micros(timeout_us)));
    // SAFETY: the caller passes an open domain.
    unsafe { domain_call("transport.wait", handle, error, body) }
}

unsafe extern "C" fn wake<D: TransportDomain>(handle: u64, error: *mut ErrorInfo) -> i32 {
    guard("transport.wake", error, || {
        // SAFETY: the caller passes an open domain. Only the waker is touched, which is `Sync`, so
        // that a call inside the domain may run at the same time.
        unsafe { borrow_handle::<DomainObject<D>>(handle, "domain") }?.waker.wake();
        Ok(Status::Ok)
    })
}

unsafe extern "C" fn register<D: TransportDomain>(
    handle: u64,
    region: *const MemoryRegion,
    size: u64,
    key: *mut u64,
    error: *mut ErrorInfo,
) -> i32 {
    let body = |domain: &mut D| {
        let (region, place) =
            // SAFETY: the caller passes `size` bytes of region, and null or room for the key.
            unsafe { (growing_argument(region, size, "the region")?, place(key, "the key")?) };
        place.write(domain.register(&region)?);
        Ok(Status::Ok)
    };
    // SAFETY: the caller passes an open domain.
    unsafe { domain_call("transport.register_region", handle, error, body) }
}

unsafe extern "C" fn deregister<D: TransportDomain>(
    handle: u64,
    key: u64,
    error: *mut ErrorInfo,
) -> i32 {
    let body = |domain: &mut D| done(domain.deregister(key));
    // SAFETY: the caller passes an open domain.
    unsafe { domain_call("transport.deregister_region", handle, error, body) }
}

unsafe extern "C" fn quiesce<D: TransportDomain>(
    handle: u64,
    channel: u64,
    timeout_us: u64,
    error: *mut ErrorInfo,
) -> i32 {
    let body = |domain: &mut D| done(domain.quiesce(channel, Duration::from_micros(timeout_us)));
    // SAFETY: the caller passes an open domain.
    unsafe { domain_call("transport.quiesce", handle, error, body) }
}

unsafe extern "C" fn channel_close<D: TransportDomain>(
    handle: u64,
    channel: u64,
    error: *mut ErrorInfo,
) -> i32 {
    let body = |domain: &mut D| done(domain.channel_close(channel));
    // SAFETY: the caller passes an open domain.
    unsafe { domain_call("transport.channel_close", handle, error, body) }
}

unsafe extern "C" fn close<D: TransportDomain>(handle: u64, error: *mut ErrorInfo) -> i32 {
    guard("transport.close", error, || {
        // SAFETY: the caller passes an open domain.
        let object = unsafe { borrow_handle::<DomainObject<D>>(handle, "domain") }?;
        if object.state.load(Ordering::Relaxed) == BUSY {
            return Err(PluginError::invalid("close while another call of the domain runs"));
        }
        // SAFETY: nobody is inside, and the caller uses the handle no more. `object` is not used
        // any more.
        drop(unsafe { take_handle::<DomainObject<D>>(handle, "domain") }?);
        Ok(Status::Ok)
    })
}
