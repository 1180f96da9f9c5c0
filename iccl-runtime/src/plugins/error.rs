//! From a plugin's answer to the runtime's error.

use iccl_plugin_api::Status;
use iccl_plugin_api::host::CallError;

use crate::{Error, ErrorKind};

/// The error of the runtime for a failed call of `plugin`. The one place where they are matched.
#[allow(clippy::needless_pass_by_value, reason = "an error is turned into another")]
pub fn call_error(plugin: &str, error: CallError) -> Error {
    let kind = match error.status {
        Status::NotSupported => ErrorKind::NotSupported,
        Status::InvalidArgument => ErrorKind::InvalidArgument,
        Status::TransportError => ErrorKind::TransportError,
        Status::PermissionDenied if error.call.starts_with("transport.") => {
            ErrorKind::TransportError
        }
        Status::NoDevice
        | Status::LibraryMissing
        | Status::DeviceError
        | Status::PermissionDenied => ErrorKind::DeviceError,
        Status::Timeout => ErrorKind::Timeout,
        Status::PeerLost => ErrorKind::PeerLost,
        Status::Aborted => ErrorKind::Aborted,
        Status::OutOfResources => ErrorKind::OutOfResources,
        Status::Mismatch => ErrorKind::Mismatch,
        Status::Unauthenticated => ErrorKind::Authentication,
        Status::Panic => ErrorKind::PluginPanic,
        Status::Ok | Status::Pending | Status::Internal => ErrorKind::Internal,
    };
    let text = if error.is_panic() {
        format!("plugin {plugin} panicked in {}: {}", error.call, panic_words(&error))
    } else {
        format!("plugin {plugin}: {}: {}: {}", error.call, error.status, error.message)
    };
    let result = Error::new(kind, text).with("plugin", plugin).with("call", error.call);
    if error.vendor_code == 0 { result } else { result.with("code", error.vendor_code) }
}

/// What a panic said, without the words that the SDK puts before it.
pub(super) fn panic_words(error: &CallError) -> &str {
    let before = format!("panicked in {}: ", error.call);
    error.message.strip_prefix(&before).unwrap_or(&error.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(status: Status) -> Error {
        let call = "device.copy";
        call_error("acme", CallError { call, status, vendor_code: 7, message: "boom".into() })
    }

    #[test]
    fn b078_a_panic_names_plugin_call_and_message() {
        let error = call(Status::Panic);
        assert_eq!(error.kind(), ErrorKind::PluginPanic);
        assert_eq!(
            error.to_string(),
            "plugin acme panicked in device.copy: boom (plugin=acme, call=device.copy, code=7)"
        );
    }

    #[test]
    fn b080_not_supported_and_device_error_differ() {
        assert_eq!(call(Status::NotSupported).kind(), ErrorKind::NotSupported);
        let error = call(Status::DeviceError);
        assert_eq!(error.kind(), ErrorKind::DeviceError);
        assert!(error.context().any(|(key, value)| key == "code" && value == "7"));
    }
}
