//! What BKCL does right: collective by element type by operation.
//!
//! A combination is offered only if its result is what iccl promises, and only if the number of its type
//! and operation is known. Not offered, and done by iccl's own schedules:
//!
//! * MAX and MIN of floats: nobody has said what becomes of a NaN.
//! * AVG of integers, and of floats where the library's header has no `BKCL_AVG`.
//! * Reductions of types that BKCL does not have: `i8`, `u32` and `u64` could be passed off as others, which
//!   is right for sums only.
//! * Bitwise operations, pre-multiplied sums and barrier, which BKCL does not have.
//!
//! `f64` and `u8` are offered though nobody has confirmed their reductions: iccl tries every reduction
//! before it counts. What only moves elements moves any type, as one of the same bits. 64-bit elements are
//! moved as pairs of `i32`, since older libraries broadcast no `i64`.

use std::ffi::c_int;

use iccl_plugin_api::tables::{CollectiveSupport, collectives_flag};
use iccl_plugin_api::{DataType, RedOp};
use iccl_vendor_support::plan::{AllGatherV, Functions, Repertoire};
use iccl_vendor_support::{MOVING, REDUCING, add_support};

use crate::constants::{Constants, Op, Type};

/// What BKCL declares of itself. Nobody has said that a buffer may be both sides of a call.
pub(crate) const FLAGS: u64 =
    collectives_flag::GROUPS | collectives_flag::ONE_SEND_PER_PEER_AND_GROUP;

/// BKCL's type of an element that it reduces.
fn reduced(dtype: DataType) -> Option<Type> {
    match dtype {
        DataType::U8 => Some(Type::Uint8),
        DataType::I32 => Some(Type::Int32),
        DataType::I64 => Some(Type::Int64),
        DataType::F16 => Some(Type::Float16),
        DataType::F32 => Some(Type::Float),
        DataType::F64 => Some(Type::Float64),
        DataType::Bf16 => Some(Type::Bfloat16),
        DataType::I8
        | DataType::I16
        | DataType::U16
        | DataType::U32
        | DataType::U64
        | DataType::F8E4M3
        | DataType::F8E5M2 => None,
    }
}

/// BKCL's type as which elements are moved, and how many of these an element is.
fn moved(dtype: DataType) -> (Type, usize) {
    match dtype {
        DataType::I8 | DataType::U8 | DataType::F8E4M3 | DataType::F8E5M2 => (Type::Uint8, 1),
        DataType::I16 | DataType::U16 => (Type::Uint8, 2),
        DataType::F16 => (Type::Float16, 1),
        DataType::Bf16 => (Type::Bfloat16, 1),
        DataType::F32 => (Type::Float, 1),
        DataType::I32 | DataType::U32 => (Type::Int32, 1),
        DataType::I64 | DataType::U64 | DataType::F64 => (Type::Int32, 2),
    }
}

/// BKCL's operation, if its result on this type is what iccl promises.
fn operation(dtype: DataType, op: RedOp) -> Option<Op> {
    match op {
        RedOp::Sum => Some(Op::Add),
        RedOp::Prod => Some(Op::Product),
        RedOp::Max if dtype.is_integer() => Some(Op::Max),
        RedOp::Min if dtype.is_integer() => Some(Op::Min),
        RedOp::Avg if !dtype.is_integer() => Some(Op::Avg),
        // The rest of Max, Min and Avg may be something else than iccl's.
        RedOp::Max
        | RedOp::Min
        | RedOp::Avg
        | RedOp::BitAnd
        | RedOp::BitOr
        | RedOp::BitXor
        | RedOp::PreMulSum => None,
    }
}

/// The combinations of which all numbers are known.
pub(crate) fn support(constants: &Constants) -> Vec<CollectiveSupport> {
    let mut list: Vec<CollectiveSupport> = Vec::new();
    for collective in REDUCING {
        for &dtype in DataType::ALL {
            let has_number = reduced(dtype).is_some_and(|known| constants.dtype(known).is_some());
            let is_known = |op: &&RedOp| {
                operation(dtype, **op).is_some_and(|known| constants.op(known).is_some())
            };
            let ops: Vec<RedOp> = RedOp::ALL.iter().filter(is_known).copied().collect();
            if has_number && !ops.is_empty() {
                add_support(&mut list, CollectiveSupport::new(collective, &[dtype], &ops));
            }
        }
    }
    for collective in MOVING {
        let has_number = |dtype: &&DataType| constants.dtype(moved(**dtype).0).is_some();
        let dtypes: Vec<DataType> = DataType::ALL.iter().filter(has_number).copied().collect();
        list.push(CollectiveSupport::new(collective, &dtypes, &[]));
    }
    list
}

/// BKCL as what it is planned for. Types and operations are planned as [`Type`] and [`Op`], and get their
/// numbers when they are called.
pub(crate) fn repertoire(
    support: &'static [CollectiveSupport],
    functions: Functions,
) -> Repertoire {
    Repertoire {
        library: "BKCL",
        support,
        reduced_type: |dtype| reduced(dtype).map(|known| known as c_int),
        moved_type: |dtype| {
            let (known, factor) = moved(dtype);
            (known as c_int, factor)
        },
        reduction: |dtype, op| operation(dtype, op).map(|known| known as c_int),
        functions,
        broadcasts_in_one_buffer: false,
        // Nobody has said that a rank may send to itself.
        sends_to_itself: false,
        all_gather_v: AllGatherV::Broadcasts,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use iccl_plugin_api::Collective;
    use iccl_vendor_support::{capability_table, is_offered, keep_documented};

    use super::*;

    const ALL: &str = "BKCL_UNIQUE_ID_BYTES=128 BKCL_FLOAT=0 BKCL_FLOAT16=1 BKCL_BFLOAT16=2 \
        BKCL_FLOAT64=3 BKCL_UINT8=4 BKCL_INT32=5 BKCL_INT64=6 BKCL_ADD=0 BKCL_PRODUCT=1 BKCL_MAX=2 \
        BKCL_MIN=3 BKCL_AVG=4";

    fn with(text: &str) -> Vec<CollectiveSupport> {
        support(&Constants::from_text("test", text).unwrap())
    }

    #[test]
    fn every_combination_that_is_offered_has_its_numbers_and_no_other_does() {
        let offered = with(ALL);
        for &collective in Collective::ALL {
            for &dtype in DataType::ALL {
                if !collective.reduces() {
                    let expected = collective != Collective::Barrier;
                    assert_eq!(is_offered(&offered, collective, dtype, None), expected);
                    continue;
                }
                for &op in RedOp::ALL {
                    let known = reduced(dtype).zip(operation(dtype, op)).is_some();
                    let is = is_offered(&offered, collective, dtype, Some(op));
                    assert_eq!(is, known, "{collective} {dtype} {op}");
                }
            }
        }
        let all_reduce = |dtype, op| is_offered(&offered, Collective::AllReduce, dtype, Some(op));
        assert!(all_reduce(DataType::F32, RedOp::Avg) && all_reduce(DataType::I64, RedOp::Min));
        assert!(!all_reduce(DataType::F32, RedOp::Max), "nobody knows what becomes of a NaN");
        assert!(!all_reduce(DataType::U32, RedOp::Sum), "BKCL has no such type");
    }

    #[test]
    fn what_has_no_number_is_not_offered() {
        let some = with("BKCL_UNIQUE_ID_BYTES=128 BKCL_FLOAT=0 BKCL_INT32=1 BKCL_ADD=0 BKCL_MAX=1");
        let offered = |collective, dtype, op| is_offered(&some, collective, dtype, op);
        assert!(offered(Collective::Reduce, DataType::F32, Some(RedOp::Sum)));
        assert!(offered(Collective::Reduce, DataType::I32, Some(RedOp::Max)));
        for (dtype, op) in [
            (DataType::F32, RedOp::Prod),
            (DataType::F32, RedOp::Avg),
            (DataType::I64, RedOp::Sum),
            (DataType::I32, RedOp::Min),
        ] {
            assert!(!offered(Collective::Reduce, dtype, Some(op)), "{dtype} {op}");
        }
        assert!(offered(Collective::Send, DataType::F64, None), "as pairs of i32");
        assert!(!offered(Collective::Send, DataType::U8, None));
    }

    #[test]
    fn moved_elements_keep_their_size() {
        for &dtype in DataType::ALL {
            let (known, factor) = moved(dtype);
            let bytes = match known {
                Type::Uint8 => 1,
                Type::Float16 | Type::Bfloat16 => 2,
                Type::Float | Type::Int32 => 4,
                Type::Float64 | Type::Int64 => 8,
            };
            assert_eq!(bytes * factor, dtype.size_bytes(), "{dtype}");
        }
    }

    #[test]
    fn the_documentation_has_this_table() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/vendors.md"));
        let mark = "<!-- kunlun capabilities: made by `ICCL_BLESS=1 cargo test -p iccl-plugin-kunlun` -->\n";
        assert_eq!(
            keep_documented(path, mark, &capability_table("BKCL", FLAGS, &with(ALL))),
            Ok(())
        );
    }
}
