//! Cambricon's answers as errors, with Cambricon's own words.

use std::fmt::Display;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginResult, Progress};
use iccl_vendor_support::{failure, one_line, static_text};

use crate::sys;

impl sys::Runtime {
    /// Right if CNRT or `CNDrv`, which share their numbers, answered success. `call` names the function and
    /// what matters of its arguments.
    pub(crate) fn check(&self, call: impl Display, answer: sys::CnrtReturn) -> PluginResult<()> {
        if answer == sys::SUCCESS {
            return Ok(());
        }
        // SAFETY: the library takes any number, and its texts are statics.
        let (name, words) = unsafe {
            let words = static_text((self.cnrtGetErrorStr)(answer));
            let name = static_text((self.cnrtGetErrorName)(answer));
            // The library remembers a failure for the thread; it is ours, not the application's.
            (self.cnrtGetLastError)();
            (name, one_line(&words))
        };
        Err(failure(status(answer), format_args!("{call}: {words} ({name}, {answer})"), answer))
    }

    /// `Pending` for the answers that say so: the header has one number, the guide another.
    pub(crate) fn progress(
        &self,
        call: &'static str,
        answer: sys::CnrtReturn,
    ) -> PluginResult<Progress> {
        if matches!(answer, sys::ERROR_NOT_READY | sys::ERROR_BUSY) {
            // It is remembered as a failure of the thread, which it is not.
            // SAFETY: no arguments.
            unsafe { (self.cnrtGetLastError)() };
            return Ok(Progress::Pending);
        }
        self.check(call, answer).map(|()| Progress::Done)
    }
}

impl sys::Cncl {
    /// Right if CNCL answered success.
    pub(crate) fn check(&self, call: impl Display, answer: sys::CnclResult) -> PluginResult<()> {
        if answer == sys::CNCL_SUCCESS {
            return Ok(());
        }
        // SAFETY: the library takes any number, and its texts are statics.
        let words = one_line(&unsafe { static_text((self.cnclGetErrorStr)(answer)) });
        let text = format!("{call}: {words} ({answer:#04x})");
        Err(failure(cncl_status(answer), text, answer))
    }
}

/// A number of CNRT or `CNDrv`. What is not told apart is the device's.
fn status(answer: sys::CnrtReturn) -> Status {
    match answer {
        sys::ERROR_NO_MEM | sys::ERROR_SYS_NO_MEM | sys::ERROR_OVER_PROCESS_MEMORY => {
            Status::OutOfResources
        }
        sys::ERROR_ARGS_INVALID | sys::ERROR_DEVICE_INVALID => Status::InvalidArgument,
        sys::ERROR_OPS_NOT_PERMITTED => Status::PermissionDenied,
        sys::ERROR_NOT_SUPPORT => Status::NotSupported,
        // A driver that is not there, or too old for the runtime.
        sys::ERROR_INIT | sys::ERROR_NO_DEVICE | sys::ERROR_CNDRV_FUNC_NOT_FOUND => {
            Status::NoDevice
        }
        _ => Status::DeviceError,
    }
}

/// A number of CNCL. Later versions may have more; these are failures like the others.
fn cncl_status(answer: sys::CnclResult) -> Status {
    match (answer, answer & sys::CNCL_CLASS) {
        (sys::CNCL_UNSUPPORTED, _) => Status::NotSupported,
        (sys::CNCL_SYS_MALLOC | sys::CNCL_CNRT_MALLOC | sys::CNCL_MLU_ALLOCATE, _) => {
            Status::OutOfResources
        }
        (sys::CNCL_NULL_POINTER, _) | (_, sys::CNCL_CLASS_ARGUMENTS) => Status::InvalidArgument,
        (_, sys::CNCL_CLASS_SYSTEM) => Status::TransportError,
        _ => Status::DeviceError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_mean_no_card_are_told_from_failures() {
        for number in [100_002, 100_004, 632_020] {
            assert_eq!(status(number), Status::NoDevice, "{number}");
        }
        for number in [100_007, 100_016, 100_132, 100_201, 632_006, 632_015, 999_991] {
            assert_eq!(status(number), Status::DeviceError, "{number}");
        }
        assert_eq!(status(100_100), Status::OutOfResources);
        assert_eq!(status(100_050), Status::NotSupported);
    }

    #[test]
    fn every_number_of_cncl_is_a_failure_of_some_kind() {
        let known = [
            0x01, 0x11, 0x21, 0x31, 0x41, 0x51, 0x61, 0x71, 0x81, 0x91, 0x02, 0x12, 0x22, 0x32,
            0x03, 0x13, 0x23, 0x33, 0x04, 0x14, 0x24, 0x05, 0x15, 0x25, 0x35, 0x16, 0x26, 0x07,
            0x08, 0x18, 0x09, 0x7777,
        ];
        for number in known {
            assert!(!cncl_status(number).is_success(), "{number:#x}");
        }
        assert_eq!(cncl_status(0x11), Status::NotSupported);
        assert_eq!(cncl_status(0x21), Status::InvalidArgument);
        assert_eq!(cncl_status(0x22), Status::TransportError);
        assert_eq!(cncl_status(0x16), Status::DeviceError);
    }
}
