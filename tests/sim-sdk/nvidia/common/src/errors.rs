//! Names and texts of those errors that the simulated libraries give, as the real runtime prints them.

use std::ffi::CStr;

use crate::Status;

/// Number, name in the runtime, name in the driver (empty if it has none), text.
const ERRORS: &[(Status, &CStr, &CStr, &CStr)] = &[
    (0, c"cudaSuccess", c"CUDA_SUCCESS", c"no error"),
    (1, c"cudaErrorInvalidValue", c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"cudaErrorMemoryAllocation", c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"cudaErrorInitializationError", c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (21, c"cudaErrorInvalidMemcpyDirection", c"", c"invalid copy direction for memcpy"),
    (
        35,
        c"cudaErrorInsufficientDriver",
        c"",
        c"CUDA driver version is insufficient for CUDA runtime version",
    ),
    (
        46,
        c"cudaErrorDevicesUnavailable",
        c"CUDA_ERROR_DEVICE_UNAVAILABLE",
        c"CUDA-capable device(s) is/are busy or unavailable",
    ),
    (100, c"cudaErrorNoDevice", c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    (101, c"cudaErrorInvalidDevice", c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (
        201,
        c"cudaErrorDeviceUninitialized",
        c"CUDA_ERROR_INVALID_CONTEXT",
        c"invalid device context",
    ),
    (
        205,
        c"cudaErrorMapBufferObjectFailed",
        c"CUDA_ERROR_MAP_FAILED",
        c"mapping of buffer object failed",
    ),
    (
        214,
        c"cudaErrorECCUncorrectable",
        c"CUDA_ERROR_ECC_UNCORRECTABLE",
        c"uncorrectable ECC error encountered",
    ),
    (
        217,
        c"cudaErrorPeerAccessUnsupported",
        c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        c"peer access is not supported between these two devices",
    ),
    (
        304,
        c"cudaErrorOperatingSystem",
        c"CUDA_ERROR_OPERATING_SYSTEM",
        c"OS call failed or operation not supported on this OS",
    ),
    (
        400,
        c"cudaErrorInvalidResourceHandle",
        c"CUDA_ERROR_INVALID_HANDLE",
        c"invalid resource handle",
    ),
    (600, c"cudaErrorNotReady", c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (
        700,
        c"cudaErrorIllegalAddress",
        c"CUDA_ERROR_ILLEGAL_ADDRESS",
        c"an illegal memory access was encountered",
    ),
    (
        702,
        c"cudaErrorLaunchTimeout",
        c"CUDA_ERROR_LAUNCH_TIMEOUT",
        c"the launch timed out and was terminated",
    ),
    (
        704,
        c"cudaErrorPeerAccessAlreadyEnabled",
        c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
        c"peer access is already enabled",
    ),
    (
        705,
        c"cudaErrorPeerAccessNotEnabled",
        c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
        c"peer access has not been enabled",
    ),
    (
        709,
        c"cudaErrorContextIsDestroyed",
        c"CUDA_ERROR_CONTEXT_IS_DESTROYED",
        c"context is destroyed",
    ),
    (
        712,
        c"cudaErrorHostMemoryAlreadyRegistered",
        c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        c"part or all of the requested memory range is already mapped",
    ),
    (
        713,
        c"cudaErrorHostMemoryNotRegistered",
        c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        c"pointer does not correspond to a registered memory region",
    ),
    (716, c"cudaErrorMisalignedAddress", c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address"),
    (719, c"cudaErrorLaunchFailure", c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
    (800, c"cudaErrorNotPermitted", c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted"),
    (801, c"cudaErrorNotSupported", c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
    (
        802,
        c"cudaErrorSystemNotReady",
        c"CUDA_ERROR_SYSTEM_NOT_READY",
        c"system not yet initialized",
    ),
    (
        900,
        c"cudaErrorStreamCaptureUnsupported",
        c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        c"operation not permitted when stream is capturing",
    ),
    (999, c"cudaErrorUnknown", c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];

fn find(code: Status) -> Option<&'static (Status, &'static CStr, &'static CStr, &'static CStr)> {
    ERRORS.iter().find(|(number, ..)| *number == code)
}

/// What an error says.
pub fn description(code: Status) -> Option<&'static CStr> {
    find(code).map(|(_, _, _, text)| *text)
}

/// What an error is called, in the runtime or in the driver.
pub fn name(code: Status, in_driver: bool) -> Option<&'static CStr> {
    let found =
        find(code).map(|(_, runtime, driver, _)| if in_driver { *driver } else { *runtime });
    found.filter(|name| !name.is_empty())
}
