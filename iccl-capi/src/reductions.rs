//! How contributions are combined.

use iccl_runtime::comm::Reduction;

use crate::failure::{Failure, Refused};
use crate::types::{CommHandle, RedOpNumber, built_in_op};

/// The reduction that a number stands for.
pub(crate) fn reduction(op: RedOpNumber, _comm: CommHandle) -> Refused<Reduction> {
    built_in_op(op).map(Reduction::from).ok_or_else(|| {
        Failure::argument(format!("op: {op} is no icclRedOp_t of this communicator"))
    })
}
