//! The adaptors: generic `extern "C"` functions that turn the traits of [`sdk`](crate::sdk) into
//! tables.
//!
//! They own the handles (boxed objects as `u64`), check arguments as far as one can from inside,
//! catch panics, and carry errors across. A call that succeeds allocates nothing here. Nothing in
//! this folder knows what a device or a transport does, and nothing but
//! [`export_plugin!`](crate::export_plugin) names it.

mod collectives;
mod device;
mod plugin;
mod transport;

#[cfg(test)]
mod tests;

use std::any::Any;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use collectives::collectives_table;
pub use device::device_table;
pub use plugin::{Exported, PluginSlot, plugin_table};
pub use transport::transport_table;

use crate::sdk::{PluginError, PluginResult, Progress};
use crate::tables::{ErrorInfo, Growing};
use crate::{DataType, MemoryKind, RedOp, Status};

/// Runs the body of one call: a panic or an error is written to `error`, and the status number to
/// answer comes back.
fn guard(
    call: &'static str,
    error: *mut ErrorInfo,
    body: impl FnOnce() -> PluginResult<Status>,
) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status.code(),
        Ok(Err(failure)) => report(error, &failure),
        Err(payload) => report_panic(call, error, payload),
    }
}

/// Writes a panic's own words and answers [`Status::Panic`].
#[cold]
fn report_panic(call: &'static str, error: *mut ErrorInfo, payload: Box<dyn Any + Send>) -> i32 {
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without words");
    let failure = PluginError::new(Status::Panic, format!("panicked in {call}: {text}"));
    // A payload's own destructor may panic again; that one is the last.
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }
    report(error, &failure)
}

/// Writes a failure and answers its number.
#[cold]
fn report(error: *mut ErrorInfo, failure: &PluginError) -> i32 {
    if !error.is_null() && error.is_aligned() {
        // SAFETY: `error` is null (excluded) or, by the rules of the tables, a place for an
        // `ErrorInfo` that nobody else uses during the call.
        let place = unsafe { &mut *error };
        place.vendor_code = failure.vendor_code;
        place.set_message(&failure.message);
    }
    // A failure that calls itself a success would be taken for one.
    if failure.status.is_success() { Status::Internal.code() } else { failure.status.code() }
}

impl From<Progress> for Status {
    fn from(progress: Progress) -> Self {
        match progress {
            Progress::Done => Self::Ok,
            Progress::Pending => Self::Pending,
        }
    }
}

/// The answer of a call that is either done or failed.
fn done(result: PluginResult<()>) -> PluginResult<Status> {
    result.map(|()| Status::Ok)
}

/// Gives an object away as a handle.
fn into_handle<T>(object: T) -> u64 {
    Box::into_raw(Box::new(object)).expose_provenance() as u64
}

/// The pointer that a handle stands for, if it can be one.
fn handle_pointer<T>(handle: u64, what: &str) -> PluginResult<*mut T> {
    let pointer = std::ptr::with_exposed_provenance_mut::<T>(handle as usize);
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(PluginError::invalid(format!("{handle:#x} is no {what} handle")));
    }
    Ok(pointer)
}

/// Borrows what a handle stands for.
///
/// # Safety
/// `handle` came from [`into_handle`] with the same `T` and was not given to [`take_handle`].
unsafe fn borrow_handle<'a, T>(handle: u64, what: &str) -> PluginResult<&'a T> {
    let pointer = handle_pointer::<T>(handle, what)?;
    // SAFETY: the caller promises a live object; it is only ever borrowed shared.
    Ok(unsafe { &*pointer })
}

/// Takes back what a handle stands for.
///
/// # Safety
/// As for [`borrow_handle`], and nobody borrows it now or later.
unsafe fn take_handle<T>(handle: u64, what: &str) -> PluginResult<Box<T>> {
    let pointer = handle_pointer::<T>(handle, what)?;
    // SAFETY: the caller promises a live object that `into_handle` boxed, and hands it over.
    Ok(unsafe { Box::from_raw(pointer) })
}

/// A place where the caller wants a result, after a check that there is one.
///
/// # Safety
/// `pointer` is null, or points to room for a `T` that nobody else uses during the call.
unsafe fn place<'a, T>(pointer: *mut T, what: &str) -> PluginResult<&'a mut MaybeUninit<T>> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(PluginError::invalid(format!("no place for {what}")));
    }
    // SAFETY: checked for null and alignment; the caller promises the rest.
    Ok(unsafe { &mut *pointer.cast::<MaybeUninit<T>>() })
}

/// An argument that is passed by pointer.
///
/// # Safety
/// `pointer` is null, or points to a `T` that nobody changes during the call.
unsafe fn argument<'a, T>(pointer: *const T, what: &str) -> PluginResult<&'a T> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(PluginError::invalid(format!("{what} is null or misaligned")));
    }
    // SAFETY: checked for null and alignment; the caller promises the rest.
    Ok(unsafe { &*pointer })
}

/// An argument that is passed as pointer and number of elements.
///
/// # Safety
/// `pointer` is null, or points to `length` elements that nobody changes during the call.
unsafe fn array<'a, T>(pointer: *const T, length: u64, what: &str) -> PluginResult<&'a [T]> {
    if length == 0 {
        return Ok(&[]);
    }
    let fits = usize::try_from(length).is_ok_and(|length| {
        length.checked_mul(size_of::<T>()).is_some_and(|n| n < isize::MAX as usize)
    });
    if pointer.is_null() || !pointer.is_aligned() || !fits {
        return Err(PluginError::invalid(format!("{what} is null, misaligned or too long")));
    }
    // SAFETY: checked for null, alignment and size; the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length as usize) })
}

/// A struct that may grow, as far as the caller's version of it reaches.
///
/// # Safety
/// `pointer` is null, or points to `size` readable bytes.
unsafe fn growing_argument<T: Growing>(
    pointer: *const T,
    size: u64,
    what: &str,
) -> PluginResult<T> {
    if pointer.is_null() {
        return Err(PluginError::invalid(format!("{what} is null")));
    }
    // SAFETY: checked for null; the caller promises the rest.
    Ok(unsafe { T::read_prefix(pointer, size) })
}

/// Answers with a struct that may grow, as far as the caller has room for it.
///
/// # Safety
/// `pointer` is null, or points to `size` writable bytes.
unsafe fn answer_growing<T: Growing>(
    pointer: *mut T,
    size: u64,
    what: &str,
    value: T,
) -> PluginResult<Status> {
    if pointer.is_null() {
        return Err(PluginError::invalid(format!("no place for {what}")));
    }
    // SAFETY: checked for null; the caller promises the rest.
    unsafe { value.write_prefix(pointer, size) };
    Ok(Status::Ok)
}

/// The data type with this number.
fn data_type(code: u32) -> PluginResult<DataType> {
    DataType::from_code(code)
        .ok_or_else(|| PluginError::not_supported(format!("unknown data type number {code}")))
}

/// The reduction with this number.
fn reduction(code: u32) -> PluginResult<RedOp> {
    RedOp::from_code(code)
        .ok_or_else(|| PluginError::not_supported(format!("unknown reduction number {code}")))
}

/// The kind of memory with this number.
fn memory_kind(code: u32) -> PluginResult<MemoryKind> {
    MemoryKind::from_code(code)
        .ok_or_else(|| PluginError::not_supported(format!("unknown memory kind number {code}")))
}
