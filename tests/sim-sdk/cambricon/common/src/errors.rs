//! Names of those errors that the simulated libraries give, as cnrt.h has them. The texts are written here:
//! nobody here has seen those of the real library.

use std::ffi::CStr;

use crate::Status;

const ERRORS: &[(Status, &CStr, &CStr)] = &[
    (0, c"cnrtSuccess", c"no error"),
    (1, c"cnrtErrorNotReady", c"operations are not complete yet"),
    (100_002, c"cnrtErrorInit", c"the driver could not be initialized"),
    (100_004, c"cnrtErrorNoDevice", c"no MLU device is available"),
    (100_005, c"cnrtErrorDeviceInvalid", c"invalid device ordinal"),
    (100_006, c"cnrtErrorArgsInvalid", c"invalid argument"),
    (100_007, c"cnrtErrorSys", c"a system call failed"),
    (100_010, c"cnrtErrorSysNoMem", c"no host memory is left"),
    (100_014, c"cnrtErrorInvalidResourceHandle", c"invalid resource handle"),
    (100_015, c"cnrtErrorIllegalState", c"the call is illegal in this state"),
    (100_016, c"", c"uncorrectable ECC error"),
    (100_050, c"cnrtErrorNotSupport", c"the operation is not supported"),
    (100_051, c"cnrtErrorOpsNotPermitted", c"the operation is not permitted"),
    (100_060, c"cnrtErrorQueue", c"queue error"),
    (100_100, c"cnrtErrorNoMem", c"no device memory is left"),
    (100_102, c"", c"invalid device address"),
    (100_132, c"cnrtErrorKernelTrap", c"a kernel met a trap"),
    (632_009, c"cnrtErrorNoAttribute", c"there is no such attribute"),
    (632_013, c"cnrtErrorMemcpyDirectionInvalid", c"invalid direction of a copy"),
    (632_014, c"cnrtErrorBusy", c"the resource is busy"),
    (632_020, c"cnrtErrorCndrvFuncNotFound", c"the driver lacks a function"),
    (999_991, c"cnrtErrorUnknown", c"unknown error"),
];

fn find(code: Status) -> Option<&'static (Status, &'static CStr, &'static CStr)> {
    ERRORS.iter().find(|(number, ..)| *number == code)
}

/// What an error says.
pub fn description(code: Status) -> &'static CStr {
    find(code).map_or(c"unknown error", |(_, _, text)| *text)
}

/// What an error is called.
pub fn name(code: Status) -> &'static CStr {
    find(code).map_or(c"cnrtErrorUnknown", |(_, name, _)| *name)
}
