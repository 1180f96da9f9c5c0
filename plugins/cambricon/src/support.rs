//! What CNCL does right: collective by element type by operation, and the number of each.
//!
//! The header has the types and the operations, and does not say which pairs a reduction takes: CNCL answers
//! "unsupported" (0x11) to others. What is listed here is what would be right; iccl tries each pair on the
//! cards that are there, and strikes off what is refused or differs from the host.
//!
//! Not offered, and done by iccl's own schedules:
//!
//! * MAX and MIN of floats: whether CNCL keeps a NaN, as iccl does, is not known.
//! * AVG, pre-multiplied sums, bitwise operations, barrier: CNCL has none.
//! * Reductions of 64-bit and 8-bit floats, for which CNCL has no type.
//!
//! What only moves elements moves any type, as integers of a kind that other frameworks use.

use std::ffi::c_int;

use iccl_plugin_api::tables::{CollectiveSupport, collectives_flag};
use iccl_plugin_api::{DataType, RedOp};
use iccl_vendor_support::plan::{AllGatherV, Functions, Repertoire};
use iccl_vendor_support::support_of;

use crate::sys;

/// What CNCL declares of itself.
pub(crate) const FLAGS: u64 = collectives_flag::GROUPS | collectives_flag::IN_PLACE;

const INTEGERS: &[DataType] = &[
    DataType::I8,
    DataType::U8,
    DataType::I16,
    DataType::U16,
    DataType::I32,
    DataType::U32,
    DataType::I64,
    DataType::U64,
];
const FLOATS: &[DataType] = &[DataType::F16, DataType::F32, DataType::Bf16];

/// The combinations that are right if CNCL takes them.
pub(crate) static SUPPORT: [CollectiveSupport; 19] = support_of(
    (INTEGERS, &[RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min]),
    (FLOATS, &[RedOp::Sum, RedOp::Prod]),
);

/// CNCL's number of a type that it reduces.
pub(crate) fn reduced_type(dtype: DataType) -> Option<c_int> {
    match dtype {
        DataType::I8 => Some(sys::CNCL_INT8),
        DataType::U8 => Some(sys::CNCL_UINT8),
        DataType::I16 => Some(sys::CNCL_INT16),
        DataType::U16 => Some(sys::CNCL_UINT16),
        DataType::I32 => Some(sys::CNCL_INT32),
        DataType::U32 => Some(sys::CNCL_UINT32),
        DataType::I64 => Some(sys::CNCL_INT64),
        DataType::U64 => Some(sys::CNCL_UINT64),
        DataType::F16 => Some(sys::CNCL_FLOAT16),
        DataType::F32 => Some(sys::CNCL_FLOAT32),
        DataType::Bf16 => Some(sys::CNCL_BFLOAT16),
        DataType::F64 | DataType::F8E4M3 | DataType::F8E5M2 => None,
    }
}

/// CNCL's number of the type as which elements are moved, and how many of these an element is. Three types
/// carry all, since nobody says of every type that every card moves it.
pub(crate) fn moved_type(dtype: DataType) -> (c_int, usize) {
    match dtype.size_bytes() {
        8 => (sys::CNCL_INT64, 1),
        4 => (sys::CNCL_INT32, 1),
        bytes => (sys::CNCL_UINT8, bytes),
    }
}

/// The length of one element of a type by which elements are moved.
pub(crate) fn moved_bytes(number: c_int) -> Option<usize> {
    match number {
        sys::CNCL_UINT8 => Some(1),
        sys::CNCL_INT32 => Some(4),
        sys::CNCL_INT64 => Some(8),
        _ => None,
    }
}

/// CNCL's number of an operation, if its result on this type is what iccl promises.
pub(crate) fn reduction(dtype: DataType, op: RedOp) -> Option<c_int> {
    match op {
        RedOp::Sum => Some(sys::CNCL_SUM),
        RedOp::Prod => Some(sys::CNCL_PROD),
        RedOp::Max if dtype.is_integer() => Some(sys::CNCL_MAX),
        RedOp::Min if dtype.is_integer() => Some(sys::CNCL_MIN),
        // Of floats it is not known what becomes of a NaN; the rest CNCL does not have.
        RedOp::Max
        | RedOp::Min
        | RedOp::Avg
        | RedOp::BitAnd
        | RedOp::BitOr
        | RedOp::BitXor
        | RedOp::PreMulSum => None,
    }
}

/// CNCL as what it is planned for.
pub(crate) fn repertoire(table: &sys::Cncl) -> Repertoire {
    Repertoire {
        library: "CNCL",
        support: &SUPPORT,
        reduced_type,
        moved_type,
        reduction,
        functions: Functions {
            all_to_all: table.cnclAlltoAll.is_some(),
            all_to_all_v: table.cnclAlltoAllv.is_some(),
            ..Functions::default()
        },
        broadcasts_in_one_buffer: table.cnclBroadcast.is_none(),
        // Nobody says that a rank may send to itself.
        sends_to_itself: false,
        // Nobody says that collectives of one communicator may share a group; messages do.
        all_gather_v: AllGatherV::Messages,
    }
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
                    let offered = is_offered(&SUPPORT, collective, dtype, None);
                    assert_eq!(offered, expected, "{collective}");
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
    fn what_is_not_known_to_be_iccls_promise_is_not_offered() {
        let all_reduce = |dtype, op| is_offered(&SUPPORT, Collective::AllReduce, dtype, Some(op));
        assert!(all_reduce(DataType::F32, RedOp::Sum) && all_reduce(DataType::U16, RedOp::Min));
        assert!(!all_reduce(DataType::F32, RedOp::Max), "what becomes of a NaN is not known");
        assert!(!all_reduce(DataType::F32, RedOp::Avg) && !all_reduce(DataType::I32, RedOp::Avg));
        assert!(!all_reduce(DataType::F64, RedOp::Sum), "there is no type of 64 bits for floats");
    }

    #[test]
    fn moved_elements_keep_their_size() {
        for &dtype in DataType::ALL {
            let (number, factor) = moved_type(dtype);
            assert_eq!(moved_bytes(number).unwrap() * factor, dtype.size_bytes(), "{dtype}");
        }
    }

    #[test]
    fn the_documentation_has_this_table() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/vendors.md"));
        let mark = "<!-- cambricon capabilities: made by `ICCL_BLESS=1 cargo test -p iccl-plugin-cambricon` -->\n";
        assert_eq!(keep_documented(path, mark, &capability_table("CNCL", FLAGS, &SUPPORT)), Ok(()));
    }
}
