//! The answers of Kunlun's libraries as errors, with the maker's own words as far as there are any.

use std::fmt::Display;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::PluginResult;
use iccl_vendor_support::{failure, static_text};

use crate::sys;

/// Right if libxpurt answered success. Failures are negative; the sign is not relied on.
pub(crate) fn check_xpu(call: impl Display, answer: sys::XpuError) -> PluginResult<()> {
    if answer == 0 {
        return Ok(());
    }
    let text = format_args!("{call}: {} ({answer})", xpu_words(answer));
    Err(failure(xpu_status(answer), text, answer))
}

/// The name of a number: the text of an error is not exported.
fn xpu_words(answer: sys::XpuError) -> String {
    let number = answer.saturating_abs();
    if number < sys::XPUERR_FIRST {
        return std::io::Error::from_raw_os_error(number).to_string();
    }
    let known = sys::XPU_ERRORS.iter().find(|(known, _)| *known == number);
    known.map_or("unknown error", |(_, name)| name).to_owned()
}

fn xpu_status(answer: sys::XpuError) -> Status {
    match answer.saturating_abs() {
        sys::XPUERR_NODEV | sys::XPUERR_UNINIT | libc::ENODEV | libc::ENXIO => Status::NoDevice,
        sys::XPUERR_NOMEM | sys::XPUERR_NOCPUMEM | libc::ENOMEM => Status::OutOfResources,
        sys::XPUERR_INVALID_PARAM | sys::XPUERR_INVALID_DEVICE | libc::EINVAL => {
            Status::InvalidArgument
        }
        sys::XPUERR_NOSUPPORT => Status::NotSupported,
        libc::EACCES | libc::EPERM => Status::PermissionDenied,
        _ => Status::DeviceError,
    }
}

impl sys::Cuda {
    /// Right if P800's libcudart answered success.
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
        let text = format_args!("{call}: {words} ({name}, {answer})");
        Err(failure(cuda_status(answer), text, answer))
    }
}

fn cuda_status(answer: sys::CudaError) -> Status {
    match answer {
        sys::CUDA_ERROR_MEMORY_ALLOCATION => Status::OutOfResources,
        sys::CUDA_ERROR_INVALID_VALUE => Status::InvalidArgument,
        sys::CUDA_ERROR_NOT_SUPPORTED => Status::NotSupported,
        sys::CUDA_ERROR_INSUFFICIENT_DRIVER | sys::CUDA_ERROR_NO_DEVICE => Status::NoDevice,
        _ => Status::DeviceError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_with_either_sign_and_small_ones_are_the_systems() {
        for (number, status, words) in [
            (-703, Status::NoDevice, "XPUERR_NODEV (-703)"),
            (703, Status::NoDevice, "XPUERR_NODEV (703)"),
            (-705, Status::OutOfResources, "XPUERR_NOMEM (-705)"),
            (-713, Status::DeviceError, "XPUERR_ABNORMAL (-713)"),
            (-13, Status::PermissionDenied, "Permission denied (os error 13) (-13)"),
            (-999, Status::DeviceError, "unknown error (-999)"),
        ] {
            let error = check_xpu("xpu_malloc", number).unwrap_err();
            assert_eq!(error.message, format!("xpu_malloc: {words}"));
            assert_eq!((error.status, error.vendor_code), (status, i64::from(number)));
        }
        assert_eq!(check_xpu("xpu_malloc", 0), Ok(()));
    }
}
