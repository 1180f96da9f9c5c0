//! What NCCL does right: collective by element type by operation, and the number of each.
//!
//! A combination is offered only if its result is what iccl promises. Not offered, and done by
//! iccl's own schedules:
//!
//! * MAX and MIN of floats: NCCL drops a NaN where iccl keeps it, and does not order zeros by sign.
//! * AVG of integers: NCCL divides a sum that has wrapped; iccl the whole sum.
//! * Reductions of 16-bit integers, for which NCCL has no type, and of 8-bit floats, which depend on
//!   the card and are not confirmed.
//! * Bitwise operations and barrier, which NCCL does not have.
//! * Pre-multiplied sums: NCCL has them, and a call of the ABI has no place for their scalars.
//!
//! What only moves elements moves any type, as bytes if NCCL has no type of that size.

use std::ffi::c_int;

use iccl_plugin_api::tables::{CollectiveSupport, collectives_flag};
use iccl_plugin_api::{DataType, RedOp};
use iccl_vendor_support::plan::{AllGatherV, Functions, Repertoire};
use iccl_vendor_support::support_of;

use crate::sys;

/// What NCCL declares of itself.
pub(crate) const FLAGS: u64 = collectives_flag::GROUPS | collectives_flag::IN_PLACE;

/// The oldest NCCL whose functions are all known, as [`sys::Nccl`] takes them.
pub(crate) const OLDEST_VERSION: i32 = 21605;

const INTEGERS: &[DataType] =
    &[DataType::I8, DataType::U8, DataType::I32, DataType::U32, DataType::I64, DataType::U64];
const FLOATS: &[DataType] = &[DataType::F16, DataType::F32, DataType::F64, DataType::Bf16];

/// The combinations that NCCL does right: the same from 2.16 on, since what later versions added
/// (8-bit floats, functions for gather, scatter and all-to-all) is not offered or done by groups.
pub(crate) static SUPPORT: [CollectiveSupport; 19] = support_of(
    (INTEGERS, &[RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min]),
    (FLOATS, &[RedOp::Sum, RedOp::Prod, RedOp::Avg]),
);

/// NCCL's number of a type that it reduces.
pub(crate) fn reduced_type(dtype: DataType) -> Option<c_int> {
    match dtype {
        DataType::I8 => Some(sys::NCCL_INT8),
        DataType::U8 => Some(sys::NCCL_UINT8),
        DataType::I32 => Some(sys::NCCL_INT32),
        DataType::U32 => Some(sys::NCCL_UINT32),
        DataType::I64 => Some(sys::NCCL_INT64),
        DataType::U64 => Some(sys::NCCL_UINT64),
        DataType::F16 => Some(sys::NCCL_FLOAT16),
        DataType::F32 => Some(sys::NCCL_FLOAT32),
        DataType::F64 => Some(sys::NCCL_FLOAT64),
        DataType::Bf16 => Some(sys::NCCL_BFLOAT16),
        DataType::F8E4M3 | DataType::F8E5M2 | DataType::I16 | DataType::U16 => None,
    }
}

/// NCCL's number of the type as which elements are moved, and how many of these an element is.
pub(crate) fn moved_type(dtype: DataType) -> (c_int, usize) {
    match reduced_type(dtype) {
        Some(number) => (number, 1),
        None => (sys::NCCL_UINT8, dtype.size_bytes()),
    }
}

/// NCCL's number of an operation, if its result on this type is what iccl promises.
pub(crate) fn reduction(dtype: DataType, op: RedOp) -> Option<c_int> {
    match op {
        RedOp::Sum => Some(sys::NCCL_SUM),
        RedOp::Prod => Some(sys::NCCL_PROD),
        RedOp::Max if dtype.is_integer() => Some(sys::NCCL_MAX),
        RedOp::Min if dtype.is_integer() => Some(sys::NCCL_MIN),
        RedOp::Avg if !dtype.is_integer() => Some(sys::NCCL_AVG),
        // The rest of Max, Min and Avg promises something else. NCCL has no bitwise operations. It has
        // PreMulSum, but a call of the ABI has no place for the scalars.
        RedOp::Max
        | RedOp::Min
        | RedOp::Avg
        | RedOp::BitAnd
        | RedOp::BitOr
        | RedOp::BitXor
        | RedOp::PreMulSum => None,
    }
}

/// NCCL as what it is planned for: with which functions depends on its version.
pub(crate) fn repertoire(functions: Functions) -> Repertoire {
    Repertoire {
        library: "NCCL",
        support: &SUPPORT,
        reduced_type,
        moved_type,
        reduction,
        functions,
        broadcasts_in_one_buffer: false,
        sends_to_itself: true,
        all_gather_v: AllGatherV::Broadcasts,
    }
}

/// NCCL's version as people write it; numbers before 2.9 had another form and are too old anyway.
pub(crate) fn version_text(number: i32) -> String {
    format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use iccl_plugin_api::Collective;
    use iccl_vendor_support::{capability_table, is_offered, keep_documented};

    use super::*;

    #[test]
    fn every_combination_that_is_offered_has_its_numbers_and_no_other_does() {
        for &collective in Collective::ALL {
            for &dtype in DataType::ALL {
                if !collective.reduces() {
                    let expected = collective != Collective::Barrier;
                    assert_eq!(
                        is_offered(&SUPPORT, collective, dtype, None),
                        expected,
                        "{collective}"
                    );
                    continue;
                }
                for &op in RedOp::ALL {
                    let numbers = reduced_type(dtype).zip(reduction(dtype, op));
                    let offered = is_offered(&SUPPORT, collective, dtype, Some(op));
                    assert_eq!(offered, numbers.is_some(), "{collective} {dtype} {op}");
                }
            }
        }
    }

    #[test]
    fn what_differs_from_iccls_promise_is_not_offered() {
        let all_reduce = |dtype, op| is_offered(&SUPPORT, Collective::AllReduce, dtype, Some(op));
        assert!(all_reduce(DataType::F32, RedOp::Avg) && all_reduce(DataType::I8, RedOp::Min));
        assert!(!all_reduce(DataType::F32, RedOp::Max), "a NaN is dropped");
        assert!(!all_reduce(DataType::I32, RedOp::Avg), "the sum wraps before it is divided");
        assert!(
            !all_reduce(DataType::I16, RedOp::Sum) && !all_reduce(DataType::F8E4M3, RedOp::Sum)
        );
    }

    #[test]
    fn moved_elements_keep_their_size_and_nccls_numbers_are_iccls() {
        for &dtype in DataType::ALL {
            let (number, factor) = moved_type(dtype);
            let moved = DataType::from_code(number as u32).unwrap();
            assert_eq!(moved.size_bytes() * factor, dtype.size_bytes(), "{dtype}");
            if let Some(reduced) = reduced_type(dtype) {
                assert_eq!(reduced as u32, dtype.code(), "{dtype}");
            }
        }
        for &op in RedOp::ALL {
            for dtype in [DataType::I32, DataType::F32] {
                assert!(reduction(dtype, op).is_none_or(|number| number as u32 == op.code()));
            }
        }
    }

    #[test]
    fn the_documentation_has_this_table() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/vendors.md"));
        let mark = "<!-- nvidia capabilities: made by `ICCL_BLESS=1 cargo test -p iccl-plugin-nvidia` -->\n";
        assert_eq!(keep_documented(path, mark, &capability_table("NCCL", FLAGS, &SUPPORT)), Ok(()));
    }

    #[test]
    fn versions_are_read_as_nccl_writes_them() {
        assert_eq!(version_text(21605), "2.16.5");
        assert_eq!(version_text(23203), "2.32.3");
    }
}
