//! Reductions that a communicator is given besides those that all have.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

use iccl_plugin_api::DataType;
use iccl_runtime::comm::{Reduction, Scalar};

use crate::entry;
use crate::failure::{Failure, Refused, guard};
use crate::numbers::Outcome;
use crate::types::{
    CommHandle, DataTypeNumber, RedOpNumber, ResidenceNumber, ResultNumber, answer, built_in_op,
    data_type, not_null,
};

/// The first number of a reduction that was made. Each has one of its own in the whole process, so that
/// one that was destroyed, or is another communicator's, is never taken for another.
const FIRST_MADE: RedOpNumber = 0x1000;

static NEXT: AtomicI32 = AtomicI32::new(FIRST_MADE);

/// The scalar is in the device's memory, and read by each operation when its stream reaches it.
const SCALAR_DEVICE: ResidenceNumber = 0;
/// The scalar is in the host's memory, and read during the call.
const SCALAR_HOST_IMMEDIATE: ResidenceNumber = 1;

/// The reductions that a communicator was given.
#[derive(Default)]
pub(crate) struct Made(BTreeMap<RedOpNumber, (DataType, Reduction)>);

/// The reduction that a number stands for.
pub(crate) fn reduction(op: RedOpNumber, dtype: DataType, comm: CommHandle) -> Refused<Reduction> {
    if let Some(op) = built_in_op(op) {
        return Ok(Reduction::from(op));
    }
    let entry = entry::find(comm)?;
    let made = entry.reductions();
    let (of, reduction) = made.0.get(&op).ok_or_else(|| no_such(op))?;
    if *of != dtype {
        return Err(Failure::argument(format!(
            "op: {op} was made for {of}, the elements are {dtype}"
        )));
    }
    Ok(reduction.clone())
}

fn no_such(op: RedOpNumber) -> Failure {
    Failure::argument(format!(
        "op: {op} is no icclRedOp_t of this communicator: it is none, another's, or was destroyed"
    ))
}

/// Makes an op for a sum of contributions that each rank multiplies by a scalar of its own first, for
/// this communicator and elements of datatype. scalar points to one element, in the host's memory, which
/// is read now (icclScalarHostImmediate), or in the device's, which is read by each operation when its
/// stream reaches it, and stays valid until they are over (icclScalarDevice). All ranks use such an op in
/// the same call; their numbers and scalars may differ.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn icclRedOpCreatePreMulSum(
    op: *mut RedOpNumber,
    scalar: *mut c_void,
    datatype: DataTypeNumber,
    residence: ResidenceNumber,
    comm: CommHandle,
) -> ResultNumber {
    guard("icclRedOpCreatePreMulSum", comm, || {
        not_null("op", op)?;
        not_null("scalar", scalar)?;
        let entry = entry::find(comm)?;
        entry.ready()?;
        let dtype = data_type(datatype)?;
        let scalar = match residence {
            SCALAR_HOST_IMMEDIATE => {
                let mut bytes = [0_u8; size_of::<u64>()];
                // SAFETY: the caller promises one element, which is at most 8 bytes long.
                unsafe {
                    scalar
                        .cast::<u8>()
                        .copy_to_nonoverlapping(bytes.as_mut_ptr(), dtype.size_bytes());
                }
                Scalar::from_bits(dtype, u64::from_le_bytes(bytes))
            }
            // SAFETY: the caller promises it, for each operation with this op.
            SCALAR_DEVICE => unsafe { Scalar::in_memory(scalar) },
            other => {
                let text = format!("residence: {other} is no icclScalarResidence_t");
                return Err(Failure::argument(text));
            }
        };
        let number = NEXT
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| next.checked_add(1))
            .map_err(|_| Failure::new(Outcome::OutOfResources, "there are no numbers left"))?;
        entry.reductions().0.insert(number, (dtype, Reduction::pre_mul_sum(scalar)));
        // SAFETY: the caller promises it.
        unsafe { answer("op", op, number)? };
        Ok(Outcome::Success)
    })
}

/// Ends an op that icclRedOpCreatePreMulSum made. Operations that were called with it go on.
#[unsafe(no_mangle)]
pub extern "C" fn icclRedOpDestroy(op: RedOpNumber, comm: CommHandle) -> ResultNumber {
    guard("icclRedOpDestroy", comm, || {
        if built_in_op(op).is_some() {
            let text = format!("op: {op} is one that all communicators have");
            return Err(Failure::argument(text));
        }
        let removed = entry::find(comm)?.reductions().0.remove(&op);
        removed.map(|_| Outcome::Success).ok_or_else(|| no_such(op))
    })
}

/// Names and numbers of where a scalar may be.
pub fn residences() -> [(&'static str, c_int); 2] {
    [("icclScalarDevice", SCALAR_DEVICE), ("icclScalarHostImmediate", SCALAR_HOST_IMMEDIATE)]
}
