//! What a step computes, by the kernels of host memory. Where its operands lie is for others to know.

use iccl_kernels::Finish as KernelFinish;

use super::operation::Operation;
use crate::schedule::Finish;
use crate::{Error, ErrorKind, Result};

/// Combines elements of `sources` as the operation does.
///
/// # Safety
/// As [`iccl_kernels::reduce`], for `bytes` of whole elements.
pub(super) unsafe fn reduce(
    operation: &Operation,
    finish: Finish,
    destination: *mut u8,
    sources: &[*const u8],
    bytes: u64,
) -> Result<()> {
    let schedule = operation.program.schedule();
    let elements = bytes as usize / schedule.dtype.size_bytes();
    let finish = match finish {
        Finish::None => KernelFinish::None,
        Finish::DivideByRanks(ranks) => KernelFinish::DivideByRanks(ranks),
    };
    // SAFETY: the caller promises it.
    unsafe {
        iccl_kernels::reduce(
            schedule.dtype,
            schedule.combine_op(),
            finish,
            destination,
            sources,
            elements,
        )
    }
    .map_err(|unsupported| {
        Error::new(ErrorKind::NotSupported, format!("{operation}")).with_source(unsupported)
    })
}

/// Multiplies elements of `source` by the scalar.
///
/// # Safety
/// As [`iccl_kernels::scale`], for `bytes` of whole elements.
pub(super) unsafe fn scale(
    operation: &Operation,
    destination: *mut u8,
    source: *const u8,
    scalar: *const u8,
    bytes: u64,
) {
    let dtype = operation.program.schedule().dtype;
    let elements = bytes as usize / dtype.size_bytes();
    // SAFETY: the caller promises it.
    unsafe { iccl_kernels::scale(dtype, destination, source, scalar, elements) }
}
