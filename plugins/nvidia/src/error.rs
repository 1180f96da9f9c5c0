//! NVIDIA's answers as errors, with NVIDIA's own words.

use std::fmt::Display;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::PluginResult;
use iccl_vendor_support::{failure, one_line, static_text};

use crate::sys;

impl sys::Runtime {
    /// Right if libcudart answered success. `call` names the function and what matters of its
    /// arguments.
    pub(crate) fn check(&self, call: impl Display, answer: sys::CudaError) -> PluginResult<()> {
        if answer == sys::CUDA_SUCCESS {
            return Ok(());
        }
        // SAFETY: the library takes any number, and its texts are statics.
        let (name, words) = unsafe {
            let text = (self.cudaGetErrorString)(answer);
            let name = (self.cudaGetErrorName)(answer);
            // The library remembers a failure for the thread; it is ours, not the application's.
            (self.cudaGetLastError)();
            (static_text(name), static_text(text))
        };
        Err(failure(status(answer), format_args!("{call}: {words} ({name}, {answer})"), answer))
    }
}

impl sys::Driver {
    /// Right if libcuda answered success.
    pub(crate) fn check(&self, call: impl Display, answer: sys::DriverResult) -> PluginResult<()> {
        if answer == sys::CUDA_SUCCESS {
            return Ok(());
        }
        let mut words = std::ptr::null();
        // SAFETY: there is room for the pointer, and the library's texts are statics.
        let words = unsafe {
            (self.cuGetErrorString)(answer, &raw mut words);
            static_text(words)
        };
        Err(failure(status(answer), format_args!("{call}: {words} ({answer})"), answer))
    }
}

impl sys::Nccl {
    /// Right if NCCL answered success, or that it is still at it.
    pub(crate) fn check(
        &self,
        call: impl Display,
        communicator: sys::Communicator,
        answer: sys::NcclResult,
    ) -> PluginResult<()> {
        if matches!(answer, sys::NCCL_SUCCESS | sys::NCCL_IN_PROGRESS) {
            return Ok(());
        }
        // SAFETY: the library takes any number, and null or a communicator of its own.
        let (words, more) = unsafe {
            (
                static_text((self.ncclGetErrorString)(answer)),
                static_text((self.ncclGetLastError)(communicator)),
            )
        };
        let more = if more.is_empty() { more } else { format!(": {}", one_line(&more)) };
        let text = format!("{call}: {} ({answer}){more}", one_line(&words));
        Err(failure(nccl_status(answer), text, answer))
    }
}

/// A number of libcudart or libcuda, which agree in these. What is not told apart is the device's.
fn status(answer: i32) -> Status {
    match answer {
        sys::CUDA_ERROR_MEMORY_ALLOCATION => Status::OutOfResources,
        sys::CUDA_ERROR_INVALID_VALUE => Status::InvalidArgument,
        sys::CUDA_ERROR_NOT_PERMITTED => Status::PermissionDenied,
        sys::CUDA_ERROR_NOT_SUPPORTED => Status::NotSupported,
        sys::CUDA_ERROR_INSUFFICIENT_DRIVER
        | sys::CUDA_ERROR_NO_DEVICE
        | sys::CUDA_ERROR_STUB_LIBRARY => Status::NoDevice,
        _ => Status::DeviceError,
    }
}

/// A number of NCCL. Later versions have more; these are failures like the others.
fn nccl_status(answer: sys::NcclResult) -> Status {
    match answer {
        sys::NCCL_INVALID_ARGUMENT | sys::NCCL_INVALID_USAGE => Status::InvalidArgument,
        sys::NCCL_SYSTEM_ERROR => Status::TransportError,
        sys::NCCL_REMOTE_ERROR => Status::PeerLost,
        _ => Status::DeviceError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_mean_no_card_are_told_from_failures() {
        for number in [34, 35, 100] {
            assert_eq!(status(number), Status::NoDevice, "{number}");
        }
        for number in [3, 46, 700, 719, 802, 803, 999] {
            assert_eq!(status(number), Status::DeviceError, "{number}");
        }
        assert_eq!(status(2), Status::OutOfResources);
    }

    #[test]
    fn every_number_of_nccl_is_a_failure_of_some_kind() {
        for number in [1, 2, 3, 4, 5, 6, 8, 1000] {
            assert!(!nccl_status(number).is_success(), "{number}");
        }
        assert_eq!(nccl_status(6), Status::PeerLost);
    }
}
