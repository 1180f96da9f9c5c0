//! The types that cross to C, and how they are checked.

use std::ffi::{c_char, c_int, c_void};

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::bootstrap::UniqueId;

use crate::failure::{Failure, Refused};

/// `icclResult_t`.
pub type ResultNumber = c_int;
/// `icclDataType_t`, as a number: C lets any be passed.
pub type DataTypeNumber = c_int;
/// `icclRedOp_t`, as a number.
pub type RedOpNumber = c_int;
/// `icclScalarResidence_t`, as a number.
pub type ResidenceNumber = c_int;
/// `icclComm_t`: a handle, never followed.
pub type CommHandle = *mut c_void;
/// `icclStream_t`: a handle, never followed.
pub type StreamHandle = *mut c_void;

/// What a new communicator's ranks have in common: where they meet, and the job's secret. One rank
/// gets it from icclGetUniqueId and gives its bytes to the others, over a way that strangers cannot
/// read.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)] // C's name.
pub struct icclUniqueId {
    /// The bytes, to be copied as they are.
    pub internal: [c_char; 128],
}

impl icclUniqueId {
    pub(crate) fn of(id: &UniqueId) -> Self {
        Self { internal: id.to_bytes().map(|byte| byte as c_char) }
    }

    pub(crate) fn read(&self) -> Refused<UniqueId> {
        Ok(UniqueId::from_bytes(&self.internal.map(|byte| byte as u8))?)
    }
}

const _: () = assert!(UniqueId::BYTES == size_of::<icclUniqueId>());

/// An element type.
pub(crate) fn data_type(number: DataTypeNumber) -> Refused<DataType> {
    u32::try_from(number).ok().and_then(DataType::from_code).ok_or_else(|| {
        Failure::argument(format!("datatype: {number} is no icclDataType_t of this libiccl"))
    })
}

/// A reduction that every communicator has; a pre-multiplied sum is none, as it needs a scalar.
pub(crate) fn built_in_op(number: RedOpNumber) -> Option<RedOp> {
    u32::try_from(number).ok().and_then(RedOp::from_code).filter(|op| *op != RedOp::PreMulSum)
}

/// A rank that is an argument.
pub(crate) fn rank(name: &str, number: c_int, ranks: u32) -> Refused<u32> {
    u32::try_from(number).ok().filter(|rank| *rank < ranks).ok_or_else(|| {
        Failure::argument(format!("{name}: {number} is no rank; there are 0 to {}", ranks - 1))
    })
}

/// Writes an answer where the caller wants it.
///
/// # Safety
/// `place` is null or may be written.
pub(crate) unsafe fn answer<T>(name: &str, place: *mut T, value: T) -> Refused<()> {
    not_null(name, place)?;
    // SAFETY: the caller promises it; C may have put it anywhere.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

/// Refuses a pointer that is null.
pub(crate) fn not_null<T>(name: &str, pointer: *const T) -> Refused<()> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    Ok(())
}
