//! Streams, events and host functions as C knows them: an address.

use std::ffi::c_void;

use iccl_plugin_api::sdk::{HostCallback, PluginError, PluginResult};

/// A stream's or an event's handle. Makers' default streams, which are null, are none of iccl's.
///
/// # Errors
/// `InvalidArgument` for 0.
pub fn handle(number: u64) -> PluginResult<*mut c_void> {
    if number == 0 {
        return Err(PluginError::invalid("0 is no stream or event of a card"));
    }
    Ok(std::ptr::with_exposed_provenance_mut(number as usize))
}

/// Gives a callback to a maker's stream: `enqueue` gets the function and the argument to enqueue.
///
/// # Errors
/// That of `enqueue`, which then must not have taken the function.
pub fn enqueue_callback(
    callback: HostCallback,
    enqueue: impl FnOnce(unsafe extern "C" fn(*mut c_void), *mut c_void) -> PluginResult<()>,
) -> PluginResult<()> {
    let user = Box::into_raw(Box::new(callback));
    enqueue(call_back, user.cast()).inspect_err(|_| {
        // SAFETY: the function was not taken, so nobody else has the box.
        drop(unsafe { Box::from_raw(user) });
    })
}

/// What a stream calls: the callback that was boxed for it.
unsafe extern "C" fn call_back(user: *mut c_void) {
    // SAFETY: `enqueue_callback` passes a box, and the stream calls once.
    unsafe { Box::from_raw(user.cast::<HostCallback>()) }.call();
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use iccl_plugin_api::tables::HostFunction;

    use super::*;

    unsafe extern "C" fn count(user: *mut c_void) {
        // SAFETY: the test passes a counter that outlives the call.
        unsafe { &*user.cast::<AtomicU32>() }.fetch_add(1, Ordering::AcqRel);
    }

    #[test]
    fn a_callback_is_called_once_or_given_back() {
        let calls = AtomicU32::new(0);
        let user = (&raw const calls).cast_mut().cast();
        // SAFETY: the counter outlives both.
        let callback = || unsafe { HostCallback::new(HostFunction(count), user) };
        enqueue_callback(callback(), |function, user| {
            // SAFETY: once, as a stream does.
            unsafe { function(user) };
            Ok(())
        })
        .unwrap();
        assert_eq!(calls.load(Ordering::Acquire), 1);
        enqueue_callback(callback(), |_, _| Err(PluginError::invalid("full"))).unwrap_err();
        assert_eq!(calls.load(Ordering::Acquire), 1);
        assert!(handle(0).is_err() && handle(8).is_ok());
    }
}
