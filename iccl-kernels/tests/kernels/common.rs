//! Typed slices around the untyped interface.

use iccl_kernels::{Finish, Level, Unsupported, reduce_at, reference};
use iccl_plugin_api::{DataType, RedOp};

/// Reduces byte buffers of equal length with one level's kernels into a fresh buffer.
pub(crate) fn reduce_bytes(
    level: Level,
    dtype: DataType,
    op: RedOp,
    finish: Finish,
    sources: &[Vec<u8>],
) -> Result<Vec<u8>, Unsupported> {
    let mut destination = vec![0xA5; sources[0].len()];
    let pointers: Vec<*const u8> = sources.iter().map(Vec::as_ptr).collect();
    let count = destination.len() / dtype.size_bytes();
    // SAFETY: All buffers have `count` elements, and the destination is a buffer of its own.
    unsafe { reduce_at(level, dtype, op, finish, destination.as_mut_ptr(), &pointers, count)? };
    Ok(destination)
}

/// The same by the oracle.
pub(crate) fn reference_bytes(
    dtype: DataType,
    op: RedOp,
    finish: Finish,
    sources: &[Vec<u8>],
) -> Result<Vec<u8>, Unsupported> {
    let mut destination = vec![0x5A; sources[0].len()];
    let pointers: Vec<*const u8> = sources.iter().map(Vec::as_ptr).collect();
    let count = destination.len() / dtype.size_bytes();
    // SAFETY: As above.
    unsafe { reference::reduce(dtype, op, finish, destination.as_mut_ptr(), &pointers, count)? };
    Ok(destination)
}

/// Every level and the oracle must agree; gives what they agree on.
pub(crate) fn agreed(dtype: DataType, op: RedOp, finish: Finish, sources: &[Vec<u8>]) -> Vec<u8> {
    let expected = reference_bytes(dtype, op, finish, sources).expect("a supported reduction");
    for &level in Level::available() {
        let found = reduce_bytes(level, dtype, op, finish, sources).expect("a supported reduction");
        assert!(
            found == expected,
            "{dtype} {op} {finish:?} on {}: {found:02x?} instead of {expected:02x?}",
            level.name()
        );
    }
    expected
}

/// An element type that tests write in Rust.
pub(crate) trait Element: Copy {
    const DTYPE: DataType;
    fn bytes(self) -> Vec<u8>;
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! element {
    ($($type:ty: $dtype:ident),+ $(,)?) => { $(
        impl Element for $type {
            const DTYPE: DataType = DataType::$dtype;

            fn bytes(self) -> Vec<u8> {
                self.to_ne_bytes().to_vec()
            }

            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_ne_bytes(bytes.try_into().expect("the size of the type"))
            }
        }
    )+ };
}

element!(i8: I8, u8: U8, i16: I16, u16: U16, i32: I32, u32: U32, i64: I64, u64: U64);
element!(half::f16: F16, half::bf16: Bf16, f32: F32, f64: F64);

/// Reduces one slice per rank at every level; gives what all agree on.
pub(crate) fn reduced<T: Element>(op: RedOp, finish: Finish, ranks: &[&[T]]) -> Vec<T> {
    let sources: Vec<Vec<u8>> = ranks
        .iter()
        .map(|values| values.iter().flat_map(|&value| value.bytes()).collect())
        .collect();
    agreed(T::DTYPE, op, finish, &sources)
        .chunks(T::DTYPE.size_bytes())
        .map(T::from_bytes)
        .collect()
}

/// One element per rank.
pub(crate) fn reduced_one<T: Element>(op: RedOp, finish: Finish, contributions: &[T]) -> T {
    let ranks: Vec<&[T]> = contributions.chunks(1).collect();
    reduced(op, finish, &ranks)[0]
}

/// The mean over all of these ranks.
pub(crate) fn mean<T: Element>(ranks: &[&[T]]) -> Vec<T> {
    reduced(RedOp::Sum, Finish::DivideByRanks(ranks.len() as u32), ranks)
}

/// The mean of one element per rank.
pub(crate) fn mean_of_one<T: Element>(contributions: &[T]) -> T {
    reduced_one(RedOp::Sum, Finish::DivideByRanks(contributions.len() as u32), contributions)
}

/// One element per rank of a type of 8 bits, as bit patterns.
pub(crate) fn reduced_bits(dtype: DataType, op: RedOp, finish: Finish, contributions: &[u8]) -> u8 {
    let sources: Vec<Vec<u8>> = contributions.iter().map(|&bits| vec![bits]).collect();
    agreed(dtype, op, finish, &sources)[0]
}
