//! Ascend's answers as errors, with Ascend's own words.

use std::fmt::Display;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::PluginResult;
use iccl_vendor_support::{failure, one_line, static_text};

use crate::sys;

impl sys::Acl {
    /// Right if the runtime answered success. `call` names the function and what matters of its
    /// arguments.
    pub(crate) fn check(&self, call: impl Display, answer: sys::AclError) -> PluginResult<()> {
        if answer == sys::ACL_SUCCESS {
            return Ok(());
        }
        // The runtime has no text for a number, only the story of this thread's last failure, which
        // reading forgets: it is ours, not the application's.
        // SAFETY: the text stays until this thread's next call.
        let words = one_line(&unsafe { static_text((self.aclGetRecentErrMsg)()) });
        let words = if words.is_empty() { words } else { format!(": {words}") };
        Err(failure(status(answer), format_args!("{call}: error {answer}{words}"), answer))
    }
}

impl sys::Hccl {
    /// Right if HCCL answered success.
    pub(crate) fn check(&self, call: impl Display, answer: sys::HcclResult) -> PluginResult<()> {
        if answer == sys::HCCL_SUCCESS {
            return Ok(());
        }
        // SAFETY: the library takes any number, and its texts are statics.
        let words = one_line(&unsafe { static_text((self.HcclGetErrorString)(answer)) });
        Err(failure(hccl_status(answer), format_args!("{call}: {words} ({answer})"), answer))
    }
}

/// A number of the runtime. What is not told apart is the device's.
fn status(answer: sys::AclError) -> Status {
    match answer {
        sys::ACL_ERROR_INVALID_PARAM
        | sys::ACL_ERROR_RT_PARAM_INVALID
        | sys::ACL_ERROR_RT_INVALID_DEVICEID
        | sys::ACL_ERROR_RT_INVALID_MEMORY_TYPE
        | sys::ACL_ERROR_RT_INVALID_HANDLE => Status::InvalidArgument,
        sys::ACL_ERROR_BAD_ALLOC
        | sys::ACL_ERROR_STORAGE_OVER_LIMIT
        | sys::ACL_ERROR_RT_MEMORY_ALLOCATION
        | sys::ACL_ERROR_RT_RESOURCE_ALLOC_FAIL
        | sys::ACL_ERROR_RT_NO_EVENT_RESOURCE
        | sys::ACL_ERROR_RT_NO_STREAM_RESOURCE
        | sys::ACL_ERROR_RT_OVER_LIMIT
        | sys::ACL_ERROR_RT_DEVICE_OOM => Status::OutOfResources,
        sys::ACL_ERROR_API_NOT_SUPPORT
        | sys::ACL_ERROR_FEATURE_UNSUPPORTED
        | sys::ACL_ERROR_RT_FEATURE_NOT_SUPPORT => Status::NotSupported,
        sys::ACL_ERROR_RT_NO_PERMISSION => Status::PermissionDenied,
        sys::ACL_ERROR_COMPILING_STUB_MODE | sys::ACL_ERROR_RT_NO_DEVICE => Status::NoDevice,
        sys::ACL_ERROR_RT_DEVICE_TASK_ABORT | sys::ACL_ERROR_RT_STREAM_ABORT => Status::Aborted,
        sys::ACL_ERROR_RT_WAIT_TIMEOUT
        | sys::ACL_ERROR_RT_TASK_TIMEOUT
        | sys::ACL_ERROR_RT_STREAM_SYNC_TIMEOUT
        | sys::ACL_ERROR_RT_EVENT_SYNC_TIMEOUT => Status::Timeout,
        _ => Status::DeviceError,
    }
}

/// A number of HCCL. Later versions have more; these are failures like the others.
fn hccl_status(answer: sys::HcclResult) -> Status {
    match answer {
        sys::HCCL_E_PARA | sys::HCCL_E_PTR => Status::InvalidArgument,
        sys::HCCL_E_MEMORY | sys::HCCL_E_OOM => Status::OutOfResources,
        sys::HCCL_E_NOT_SUPPORT => Status::NotSupported,
        sys::HCCL_E_TIMEOUT => Status::Timeout,
        sys::HCCL_E_TCP_CONNECT
        | sys::HCCL_E_ROCE_CONNECT
        | sys::HCCL_E_TCP_TRANSFER
        | sys::HCCL_E_ROCE_TRANSFER
        | sys::HCCL_E_NETWORK => Status::TransportError,
        sys::HCCL_E_REMOTE => Status::PeerLost,
        _ => Status::DeviceError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_apart_where_it_matters() {
        assert_eq!(status(207_001), Status::OutOfResources);
        assert_eq!(status(207_000), Status::NotSupported);
        assert_eq!(status(107_023), Status::Aborted);
        assert_eq!(status(507_046), Status::Timeout);
        assert_eq!(status(207_004), Status::NoDevice);
        for number in [107_003, 507_010, 507_015, 507_054, 999_999] {
            assert_eq!(status(number), Status::DeviceError, "{number}");
        }
    }

    #[test]
    fn every_number_of_hccl_is_a_failure_of_some_kind() {
        for number in (1..=24).chain([1041]) {
            assert!(!hccl_status(number).is_success(), "{number}");
        }
        assert_eq!(hccl_status(21), Status::PeerLost);
        assert_eq!(hccl_status(5), Status::NotSupported);
    }
}
