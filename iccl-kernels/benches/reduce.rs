//! Throughput of the kernels in bytes of input, per level, element type, operation and number of
//! sources: `cargo bench -p iccl-kernels`, with a filter such as `cargo bench -p iccl-kernels f32`.

use divan::Bencher;
use divan::counter::BytesCount;
use iccl_kernels::{Finish, Level, reduce_at};
use iccl_plugin_api::{DataType, RedOp};

fn main() {
    divan::main();
}

/// Small enough that the sources stay in a second-level cache.
const IN_CACHE_BYTES: usize = 128 << 10;
/// Large enough that nothing stays in any cache of a usual machine.
const IN_MEMORY_BYTES: usize = 256 << 20;

const SUM: (RedOp, Finish) = (RedOp::Sum, Finish::None);
const MAX: (RedOp, Finish) = (RedOp::Max, Finish::None);

/// The mean over the number of sources.
fn avg(sources: usize) -> (RedOp, Finish) {
    (RedOp::Sum, Finish::DivideByRanks(sources as u32))
}

/// Ordinary values: integers count up, floats lie between 1 and 2.
fn source(dtype: DataType, bytes: usize) -> Vec<u8> {
    let one: u64 = match dtype {
        DataType::F16 => 0x3C00,
        DataType::Bf16 => 0x3F80,
        DataType::F32 => 0x3F80_0000,
        DataType::F64 => 0x3FF0 << 48,
        DataType::F8E4M3 => 0x38,
        DataType::F8E5M2 => 0x3C,
        _ => 0,
    };
    let low_bits = if one < 0x100 && one > 0 { 0x03 } else { 0x7F };
    (0..(bytes / dtype.size_bytes()) as u64)
        .flat_map(|index| {
            (one | (index & low_bits)).to_le_bytes().into_iter().take(dtype.size_bytes())
        })
        .collect()
}

fn measure(
    bencher: Bencher<'_, '_>,
    level: Level,
    dtype: DataType,
    (op, finish): (RedOp, Finish),
    sources: usize,
    bytes: usize,
) {
    let sources: Vec<Vec<u8>> = (0..sources).map(|_| source(dtype, bytes)).collect();
    let pointers: Vec<*const u8> = sources.iter().map(Vec::as_ptr).collect();
    let mut destination = vec![0_u8; bytes];
    let count = bytes / dtype.size_bytes();
    bencher.counter(BytesCount::new(bytes * sources.len())).bench_local(|| {
        let destination = divan::black_box(destination.as_mut_ptr());
        // SAFETY: All buffers have `count` elements, and the destination is one of its own.
        unsafe { reduce_at(level, dtype, op, finish, destination, &pointers, count) }
    });
}

/// The benchmarks of one element type.
macro_rules! element_type {
    ($name:ident, $dtype:ident) => {
        mod $name {
            use super::*;

            #[divan::bench(args = Level::available().to_vec(), consts = [2, 8])]
            fn sum<const SOURCES: usize>(bencher: Bencher<'_, '_>, level: Level) {
                measure(bencher, level, DataType::$dtype, SUM, SOURCES, IN_CACHE_BYTES);
            }

            // A power of two has faster ways to be divided by.
            #[divan::bench(args = Level::available().to_vec(), consts = [2, 3])]
            fn avg<const SOURCES: usize>(bencher: Bencher<'_, '_>, level: Level) {
                let reduction = super::avg(SOURCES);
                measure(bencher, level, DataType::$dtype, reduction, SOURCES, IN_CACHE_BYTES);
            }

            #[divan::bench(args = Level::available().to_vec(), consts = [2])]
            fn max<const SOURCES: usize>(bencher: Bencher<'_, '_>, level: Level) {
                measure(bencher, level, DataType::$dtype, MAX, SOURCES, IN_CACHE_BYTES);
            }
        }
    };
}

element_type!(i8, I8);
element_type!(i32, I32);
element_type!(i64, I64);
element_type!(f16, F16);
element_type!(bf16, Bf16);
element_type!(f8e4m3, F8E4M3);
element_type!(f8e5m2, F8E5M2);
element_type!(f32, F32);
element_type!(f64, F64);

#[divan::bench(args = Level::available().to_vec(), sample_count = 10)]
fn f32_sum_of_2_in_memory(bencher: Bencher<'_, '_>, level: Level) {
    measure(bencher, level, DataType::F32, SUM, 2, IN_MEMORY_BYTES);
}
