//! What HCCL does right: by the kind of card, by the version of CANN, collective by element type by
//! operation, and the number of each.
//!
//! A combination is offered only if HCCL's documents list it for the kind of card, and its result is what
//! iccl promises. Not offered, and done by iccl's own schedules:
//!
//! * MAX and MIN of floats: nobody says what HCCL does with a NaN, and with zeros of both signs.
//! * AVG, bitwise operations, pre-multiplied sums, unsigned integers (but for 64 bits on the 950), 8-bit
//!   floats: HCCL does not reduce these.
//! * Where an operation asks for a layout that a plugin cannot see: all-to-all on the 910A (its cards 0
//!   to 3 and 4 to 7), all-gather and reduce-scatter on the 310P (one server).
//! * On a kind of card that is not known by its name, everything.
//!
//! What only moves elements moves any type, as bytes if HCCL has no type of that size for it.

use std::ffi::c_int;

use iccl_plugin_api::tables::{CollectiveSupport, collectives_flag};
use iccl_plugin_api::{Collective, DataType, RedOp};
use iccl_vendor_support::add_support;
use iccl_vendor_support::plan::{AllGatherV, Functions, Repertoire};

use crate::sys;

/// What HCCL declares of itself.
pub(crate) const FLAGS: u64 = collectives_flag::GROUPS | collectives_flag::IN_PLACE;

/// A kind of card, of which HCCL's documents tell apart what it supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Product {
    /// Atlas A2: 910B1 to 910B4.
    A2,
    /// Atlas A3: `910_93xx`.
    A3,
    /// The 910 of the first generation, which is also called 910B, without a digit.
    First910,
    /// 310P, as on the 300I Duo.
    P310,
    /// 950.
    A950,
}

/// The interface's version in CANN 8.1, the oldest whose header is known.
const ACL_8_1: (i32, i32) = (1, 13);
/// And in CANN 9, whose documents list more.
const ACL_9: (i32, i32) = (1, 17);

impl Product {
    /// By the chip's name, as `aclrtGetSocName` gives it.
    pub(crate) fn of(chip: &str) -> Option<Self> {
        let name = chip.strip_prefix("Ascend")?;
        match name {
            "910" | "910A" | "910B" | "910ProA" | "910ProB" | "910PremiumA" => Some(Self::First910),
            "910B1" | "910B2" | "910B2C" | "910B3" | "910B4" | "910B4-1" => Some(Self::A2),
            _ if name.starts_with("910_93") => Some(Self::A3),
            _ if name.starts_with("310P") => Some(Self::P310),
            _ if name.starts_with("950") => Some(Self::A950),
            _ => None,
        }
    }

    /// What it is called in messages and documents.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::A2 => "A2",
            Self::A3 => "A3",
            Self::First910 => "910A",
            Self::P310 => "310P",
            Self::A950 => "950",
        }
    }

    fn is_newer(self) -> bool {
        matches!(self, Self::A2 | Self::A3 | Self::A950)
    }

    /// Types that are reduced, by the documents of CANN 9.
    fn reduced(self) -> &'static [DataType] {
        use DataType::{Bf16, F16, F32, F64, I8, I16, I32, I64, U64};
        match self {
            Self::A2 | Self::A3 => &[I8, I16, I32, I64, F16, F32, Bf16],
            Self::First910 => &[I8, I32, I64, F16, F32],
            Self::P310 => &[I8, I16, I32, F16, F32],
            Self::A950 => &[I8, I16, I32, I64, U64, F16, F32, F64, Bf16],
        }
    }

    /// Collectives that reduce.
    fn reducing(self) -> &'static [Collective] {
        use Collective::{AllReduce, Reduce, ReduceScatter, ReduceScatterV};
        match self {
            Self::P310 => &[AllReduce],
            _ => &[AllReduce, Reduce, ReduceScatter, ReduceScatterV],
        }
    }

    /// Collectives that move.
    fn moving(self) -> &'static [Collective] {
        use Collective::{
            AllGather, AllGatherV, AllToAll, AllToAllV, Barrier, Broadcast, Gather, GatherV, Recv,
            Scatter, ScatterV, Send,
        };
        match self {
            Self::A2 | Self::A3 | Self::A950 => &[
                Broadcast, AllGather, Gather, Scatter, AllToAll, AllGatherV, GatherV, ScatterV,
                AllToAllV, Barrier, Send, Recv,
            ],
            Self::First910 => &[Broadcast, AllGather, Scatter, Barrier],
            Self::P310 => &[AllToAll, AllToAllV],
        }
    }

    /// Operations on a type whose result is iccl's.
    fn operations(self, dtype: DataType) -> &'static [RedOp] {
        use RedOp::{Max, Min, Prod, Sum};
        match (self, dtype) {
            (Self::P310, DataType::I16) | (_, DataType::Bf16) => &[Sum],
            (_, DataType::I16) => &[Sum, Max, Min],
            (_, dtype) if dtype.is_integer() => &[Sum, Prod, Max, Min],
            _ => &[Sum, Prod],
        }
    }
}

/// What the header of CANN 8.1 lists, which is less than the documents of 9.
fn listed_in_8_1(collective: Collective, dtype: DataType) -> bool {
    use DataType::{Bf16, F16, F32, I8, I16, I32};
    match collective {
        // A reduce-scatter of different blocks is reduces.
        Collective::AllReduce | Collective::Reduce | Collective::ReduceScatterV => {
            matches!(dtype, I8 | I16 | I32 | F16 | F32 | Bf16)
        }
        _ => matches!(dtype, I8 | I32 | F16 | F32 | Bf16),
    }
}

/// All that is offered on a kind of card with a version of the interface.
pub(crate) fn support(product: Product, acl: (i32, i32)) -> Vec<CollectiveSupport> {
    let is_known = acl >= ACL_8_1 && (acl >= ACL_9 || product != Product::A950);
    if !is_known {
        return Vec::new();
    }
    let mut list: Vec<CollectiveSupport> = Vec::new();
    for &collective in product.reducing() {
        for &dtype in product.reduced() {
            if acl < ACL_9 && !listed_in_8_1(collective, dtype) {
                continue;
            }
            let fresh = CollectiveSupport::new(collective, &[dtype], product.operations(dtype));
            add_support(&mut list, fresh);
        }
    }
    let moving = product.moving().iter();
    list.extend(moving.map(|moved| CollectiveSupport::new(*moved, DataType::ALL, &[])));
    list
}

/// HCCL as what it is planned for.
pub(crate) fn repertoire(product: Product, support: &'static [CollectiveSupport]) -> Repertoire {
    Repertoire {
        library: "HCCL",
        support,
        reduced_type,
        moved_type: if product.is_newer() { moved_type } else { moved_type_without_bf16 },
        reduction,
        functions: Functions {
            gather: false,
            scatter: true,
            roots_in_place: false,
            all_to_all: true,
            all_to_all_v: true,
            barrier: true,
        },
        broadcasts_in_one_buffer: true,
        sends_to_itself: false,
        all_gather_v: AllGatherV::Messages,
    }
}

/// HCCL's number of a type that it knows, but for 8-bit floats.
fn reduced_type(dtype: DataType) -> Option<c_int> {
    match dtype {
        DataType::I8 => Some(sys::HCCL_DATA_TYPE_INT8),
        DataType::U8 => Some(sys::HCCL_DATA_TYPE_UINT8),
        DataType::I16 => Some(sys::HCCL_DATA_TYPE_INT16),
        DataType::U16 => Some(sys::HCCL_DATA_TYPE_UINT16),
        DataType::I32 => Some(sys::HCCL_DATA_TYPE_INT32),
        DataType::U32 => Some(sys::HCCL_DATA_TYPE_UINT32),
        DataType::I64 => Some(sys::HCCL_DATA_TYPE_INT64),
        DataType::U64 => Some(sys::HCCL_DATA_TYPE_UINT64),
        DataType::F16 => Some(sys::HCCL_DATA_TYPE_FP16),
        DataType::F32 => Some(sys::HCCL_DATA_TYPE_FP32),
        DataType::F64 => Some(sys::HCCL_DATA_TYPE_FP64),
        DataType::Bf16 => Some(sys::HCCL_DATA_TYPE_BFP16),
        DataType::F8E4M3 | DataType::F8E5M2 => None,
    }
}

/// HCCL's number of the type as which elements are moved, and how many of these an element is.
fn moved_type(dtype: DataType) -> (c_int, usize) {
    match reduced_type(dtype) {
        Some(number) => (number, 1),
        None => (sys::HCCL_DATA_TYPE_UINT8, dtype.size_bytes()),
    }
}

/// The same where bf16 is not moved as such.
fn moved_type_without_bf16(dtype: DataType) -> (c_int, usize) {
    match dtype {
        DataType::Bf16 => (sys::HCCL_DATA_TYPE_UINT8, dtype.size_bytes()),
        _ => moved_type(dtype),
    }
}

/// The length of an element of one of HCCL's types.
pub(crate) fn element_bytes(number: c_int) -> usize {
    match number {
        sys::HCCL_DATA_TYPE_INT8 | sys::HCCL_DATA_TYPE_UINT8 => 1,
        sys::HCCL_DATA_TYPE_INT16
        | sys::HCCL_DATA_TYPE_UINT16
        | sys::HCCL_DATA_TYPE_FP16
        | sys::HCCL_DATA_TYPE_BFP16 => 2,
        sys::HCCL_DATA_TYPE_INT32 | sys::HCCL_DATA_TYPE_UINT32 | sys::HCCL_DATA_TYPE_FP32 => 4,
        _ => 8,
    }
}

/// HCCL's number of an operation, if its result on this type is what iccl promises.
fn reduction(dtype: DataType, op: RedOp) -> Option<c_int> {
    match op {
        RedOp::Sum => Some(sys::HCCL_REDUCE_SUM),
        RedOp::Prod => Some(sys::HCCL_REDUCE_PROD),
        RedOp::Max if dtype.is_integer() => Some(sys::HCCL_REDUCE_MAX),
        RedOp::Min if dtype.is_integer() => Some(sys::HCCL_REDUCE_MIN),
        RedOp::Max
        | RedOp::Min
        | RedOp::Avg
        | RedOp::BitAnd
        | RedOp::BitOr
        | RedOp::BitXor
        | RedOp::PreMulSum => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use iccl_vendor_support::{capability_table, is_offered, keep_documented};

    use super::*;

    const PRODUCTS: [Product; 5] =
        [Product::A2, Product::A3, Product::First910, Product::P310, Product::A950];

    #[test]
    fn chips_are_known_by_their_names() {
        let expected = [
            ("Ascend910B3", Some(Product::A2)),
            ("Ascend910B4-1", Some(Product::A2)),
            ("Ascend910B", Some(Product::First910)),
            ("Ascend910ProB", Some(Product::First910)),
            ("Ascend910_9392", Some(Product::A3)),
            ("Ascend310P3", Some(Product::P310)),
            ("Ascend950PR_958b", Some(Product::A950)),
            ("Ascend310B1", None),
            ("Ascend910B5", None),
            ("Ascend910_9591", None),
            ("", None),
        ];
        for (chip, product) in expected {
            assert_eq!(Product::of(chip), product, "{chip}");
        }
    }

    #[test]
    fn every_reduction_that_is_offered_has_its_numbers() {
        for product in PRODUCTS {
            for acl in [ACL_8_1, ACL_9] {
                let support = support(product, acl);
                for &collective in Collective::ALL {
                    for (&dtype, &op) in DataType::ALL
                        .iter()
                        .flat_map(|one| RedOp::ALL.iter().map(move |op| (one, op)))
                    {
                        let offered = is_offered(&support, collective, dtype, Some(op));
                        let numbers = reduced_type(dtype).zip(reduction(dtype, op));
                        assert!(!offered || numbers.is_some(), "{product:?} {dtype} {op}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_confirmed_is_not_offered() {
        use Collective::{AllGather, AllReduce, AllToAll, Barrier, Broadcast, ReduceScatter, Send};
        use DataType::{Bf16, F32, F64, I16, I64, U8, U64};
        let offered = |product, acl, collective, dtype, op| {
            is_offered(&support(product, acl), collective, dtype, op)
        };
        let sum = |product, acl, collective, dtype| {
            offered(product, acl, collective, dtype, Some(RedOp::Sum))
        };
        assert!(sum(Product::A2, ACL_9, AllReduce, I64));
        assert!(!sum(Product::A2, ACL_8_1, AllReduce, I64), "8.1 does not list it");
        assert!(sum(Product::A2, ACL_8_1, AllReduce, I16));
        assert!(!sum(Product::A2, ACL_8_1, ReduceScatter, I16), "nor this");
        assert!(!sum(Product::A2, (1, 12), AllReduce, F32), "older than any known header");
        assert!(!sum(Product::First910, ACL_9, AllReduce, Bf16));
        for dtype in [U8, U64, F64] {
            assert!(!sum(Product::A3, ACL_9, AllReduce, dtype), "{dtype}");
        }
        assert!(
            sum(Product::A950, ACL_9, AllReduce, U64)
                && !sum(Product::A950, ACL_8_1, AllReduce, F32)
        );
        for dtype in [I16, Bf16] {
            assert!(!offered(Product::A2, ACL_9, AllReduce, dtype, Some(RedOp::Prod)), "{dtype}");
        }
        assert!(!offered(Product::A2, ACL_9, AllReduce, F32, Some(RedOp::Max)), "NaN");
        assert!(!offered(Product::A2, ACL_9, AllReduce, F32, Some(RedOp::Avg)), "HCCL has none");
        for missing in [Broadcast, AllGather, Send, Barrier] {
            assert!(!offered(Product::P310, ACL_9, missing, F32, None), "{missing}");
        }
        assert!(offered(Product::P310, ACL_9, AllToAll, F32, None));
        assert!(!offered(Product::First910, ACL_9, AllToAll, F32, None), "cards 0-3 and 4-7");
    }

    #[test]
    fn moved_elements_keep_their_size() {
        for &dtype in DataType::ALL {
            for moved in [moved_type, moved_type_without_bf16] {
                let (number, factor) = moved(dtype);
                assert_eq!(element_bytes(number) * factor, dtype.size_bytes(), "{dtype}");
            }
        }
        assert_eq!(moved_type_without_bf16(DataType::Bf16), (sys::HCCL_DATA_TYPE_UINT8, 2));
    }

    #[test]
    fn the_documentation_has_these_tables() {
        let mut text = String::new();
        for product in PRODUCTS {
            for (version, acl) in [("9", ACL_9), ("8", ACL_8_1)] {
                let support = support(product, acl);
                if !support.is_empty() {
                    let name = format!("HCCL, {} with CANN {version}", product.name());
                    text.push_str(&capability_table(&name, FLAGS, &support));
                }
            }
        }
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/vendors.md"));
        let mark = "<!-- ascend capabilities: made by `ICCL_BLESS=1 cargo test -p iccl-plugin-ascend` -->\n";
        assert_eq!(keep_documented(path, mark, &text), Ok(()));
    }
}
