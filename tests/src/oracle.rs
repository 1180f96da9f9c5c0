//! What a collective must give, computed in integers and fractions. Shares no code with the kernels.
//!
//! Inputs are made so that the result does not depend on the order of reduction: integers wrap, floats
//! are quarters of small integers (sums) or powers of two (products), of which all partial results are
//! exact in f32. In a pre-multiplied sum each rank has the scalar that [`scalar`] gives.

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::comm::{Reduction, Scalar};

/// The element types.
pub const REDUCIBLE: [DataType; 14] = [
    DataType::I8,
    DataType::U8,
    DataType::I16,
    DataType::U16,
    DataType::I32,
    DataType::U32,
    DataType::I64,
    DataType::U64,
    DataType::F16,
    DataType::Bf16,
    DataType::F32,
    DataType::F64,
    DataType::F8E4M3,
    DataType::F8E5M2,
];

/// The reductions that a type has.
pub fn ops(dtype: DataType) -> &'static [RedOp] {
    const OPS: [RedOp; 9] = [
        RedOp::Sum,
        RedOp::Prod,
        RedOp::Min,
        RedOp::Max,
        RedOp::Avg,
        RedOp::PreMulSum,
        RedOp::BitAnd,
        RedOp::BitOr,
        RedOp::BitXor,
    ];
    if format(dtype).is_some() { &OPS[..6] } else { &OPS }
}

/// Spreads the bits of a number.
pub fn scramble(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Exponent and mantissa bits of a float.
fn format(dtype: DataType) -> Option<(u32, u32)> {
    match dtype {
        DataType::F8E4M3 => Some((4, 3)),
        DataType::F8E5M2 => Some((5, 2)),
        DataType::F16 => Some((5, 10)),
        DataType::Bf16 => Some((8, 7)),
        DataType::F32 => Some((8, 23)),
        DataType::F64 => Some((11, 52)),
        _ => None,
    }
}

fn is_signed(dtype: DataType) -> bool {
    matches!(dtype, DataType::I8 | DataType::I16 | DataType::I32 | DataType::I64)
}

/// A vector of `count` elements: the contribution of `rank` to the call with this `seed`.
pub fn contribution(dtype: DataType, op: RedOp, rank: u32, count: usize, seed: u64) -> Vec<u8> {
    let size = dtype.size_bytes();
    let mut bytes = Vec::with_capacity(count * size);
    for index in 0..count as u64 {
        let random = scramble(scramble(seed ^ (u64::from(rank) << 48)) ^ index);
        let bits = match (format(dtype), op) {
            (None, _) => random,
            (Some((_, mantissa_bits)), RedOp::Prod) => {
                let sign = if random.is_multiple_of(2) { 1 } else { -1 };
                // 8-bit floats hold products of few factors only.
                if mantissa_bits < 4 {
                    encode(dtype, sign << ((random >> 8) % 2), 1)
                } else {
                    encode(dtype, sign << ((random >> 8) % 3), 2)
                }
            }
            (Some(_), RedOp::PreMulSum) => {
                // Not zero: of that, a product may be -0.
                let odd = i128::from(random % 8) * 2 + 1;
                encode(dtype, if random & 8 == 0 { odd } else { -odd }, 2)
            }
            (Some((_, mantissa_bits)), _) => {
                let largest = 128.min((2 << mantissa_bits) - 1);
                encode(dtype, i128::from(random % (2 * largest + 1)) - i128::from(largest), 4)
            }
        };
        bytes.extend_from_slice(&bits.to_le_bytes()[..size]);
    }
    bytes
}

/// What a rank multiplies its contribution by in a pre-multiplied sum: the bits of an element. Of
/// floats, ±1/2 or ±3/2.
pub fn scalar(dtype: DataType, rank: u32) -> u64 {
    let random = scramble(u64::from(rank) ^ 0x5ca1_a500);
    let size = dtype.size_bytes();
    if format(dtype).is_none() {
        return random << (64 - 8 * size) >> (64 - 8 * size);
    }
    let halves = if random & 2 == 0 { 1 } else { 3 };
    encode(dtype, if random & 1 == 0 { halves } else { -halves }, 2)
}

/// What a rank calls for the op: with its scalar, where it takes one.
pub fn reduction(dtype: DataType, op: RedOp, rank: u32) -> Reduction {
    match op {
        RedOp::PreMulSum => Reduction::pre_mul_sum(Scalar::from_bits(dtype, scalar(dtype, rank))),
        op => op.into(),
    }
}

/// The reduction of all ranks' contributions.
///
/// # Panics
/// If the contributions are not of one length, or not such as [`contribution`] makes.
pub fn reduced(dtype: DataType, op: RedOp, contributions: &[Vec<u8>]) -> Vec<u8> {
    let size = dtype.size_bytes();
    let ranks = contributions.len() as i128;
    let mut result = Vec::with_capacity(contributions[0].len());
    for at in (0..contributions[0].len()).step_by(size) {
        let bits = contributions.iter().zip(0..).map(|(one, rank)| {
            let mut bits = [0; 8];
            bits[..size].copy_from_slice(&one[at..at + size]);
            let bits = u64::from_le_bytes(bits);
            if op == RedOp::PreMulSum { product(dtype, bits, scalar(dtype, rank)) } else { bits }
        });
        let bits = if format(dtype).is_some() {
            reduced_floats(dtype, op, &bits.map(|bits| decode(dtype, bits)).collect::<Vec<_>>())
        } else {
            let integers: Vec<i128> = bits.map(|bits| integer(dtype, bits)).collect();
            let combined = match op {
                RedOp::Sum | RedOp::PreMulSum => integers.iter().sum(),
                RedOp::BitAnd => integers.iter().fold(-1, |a, b| a & b),
                RedOp::BitOr => integers.iter().fold(0, |a, b| a | b),
                RedOp::BitXor => integers.iter().fold(0, |a, b| a ^ b),
                RedOp::Prod => integers.iter().fold(1, |a: i128, b| a.wrapping_mul(*b)),
                RedOp::Min => *integers.iter().min().expect("a rank"),
                RedOp::Max => *integers.iter().max().expect("a rank"),
                // Rust divides towards zero.
                RedOp::Avg => integers.iter().sum::<i128>() / ranks,
            };
            combined as u64
        };
        result.extend_from_slice(&bits.to_le_bytes()[..size]);
    }
    result
}

/// The product of two elements, rounded to their type.
fn product(dtype: DataType, left: u64, right: u64) -> u64 {
    if format(dtype).is_none() {
        return integer(dtype, left).wrapping_mul(integer(dtype, right)) as u64;
    }
    let (left, right) = (decode(dtype, left), decode(dtype, right));
    encode(dtype, left.numerator * right.numerator, left.denominator * right.denominator)
}

fn reduced_floats(dtype: DataType, op: RedOp, values: &[Fraction]) -> u64 {
    let ranks = values.len() as i128;
    // A common denominator: all are powers of two.
    let denominator = values.iter().map(|one| one.denominator).max().expect("a rank");
    let numerators = || values.iter().map(|one| one.numerator * (denominator / one.denominator));
    match op {
        RedOp::Sum | RedOp::PreMulSum => encode(dtype, numerators().sum(), denominator),
        RedOp::Avg => encode(dtype, numerators().sum(), denominator * ranks),
        RedOp::Min => encode(dtype, numerators().min().expect("a rank"), denominator),
        RedOp::Max => encode(dtype, numerators().max().expect("a rank"), denominator),
        RedOp::Prod => {
            let numerator = values.iter().map(|one| one.numerator).product();
            encode(dtype, numerator, values.iter().map(|one| one.denominator).product())
        }
        RedOp::BitAnd | RedOp::BitOr | RedOp::BitXor => panic!("bits of floats"),
    }
}

fn integer(dtype: DataType, bits: u64) -> i128 {
    let unused = 64 - 8 * dtype.size_bytes() as u32;
    if is_signed(dtype) {
        i128::from((bits << unused) as i64 >> unused)
    } else {
        i128::from(bits << unused >> unused)
    }
}

/// A value: numerator over a positive denominator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fraction {
    numerator: i128,
    denominator: i128,
}

/// The value of a normal float, or zero.
fn decode(dtype: DataType, bits: u64) -> Fraction {
    let (exponent_bits, mantissa_bits) = format(dtype).expect("a float");
    let mantissa = i128::from(bits & ((1 << mantissa_bits) - 1));
    let exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    let negative = bits >> (exponent_bits + mantissa_bits) & 1 == 1;
    if exponent == 0 {
        assert_eq!(mantissa, 0, "no denormals here");
        return Fraction { numerator: 0, denominator: 1 };
    }
    let bias = (1 << (exponent_bits - 1)) - 1;
    let scale = exponent as i32 - bias - mantissa_bits as i32;
    let significand = mantissa | 1 << mantissa_bits;
    let significand = if negative { -significand } else { significand };
    // In lowest terms, so that denominators stay small.
    let spare = significand.trailing_zeros().min((-scale).max(0) as u32);
    let (significand, scale) = (significand >> spare, scale + spare as i32);
    if scale >= 0 {
        Fraction { numerator: significand << scale, denominator: 1 }
    } else {
        Fraction { numerator: significand, denominator: 1 << -scale }
    }
}

/// The float nearest to a fraction, ties to even.
fn encode(dtype: DataType, numerator: i128, denominator: i128) -> u64 {
    let (exponent_bits, mantissa_bits) = format(dtype).expect("a float");
    if numerator == 0 {
        return 0;
    }
    let sign = u64::from(numerator < 0) << (exponent_bits + mantissa_bits);
    let magnitude = numerator.unsigned_abs();
    let denominator = denominator.unsigned_abs();
    // The power of two below the value.
    let mut power = magnitude.ilog2() as i32 - denominator.ilog2() as i32;
    let is_below = |power: i32| {
        if power >= 0 {
            denominator << power <= magnitude
        } else {
            denominator <= magnitude << -power
        }
    };
    if !is_below(power) {
        power -= 1;
    }
    // The value in units of the last place.
    let shift = mantissa_bits as i32 - power;
    let (over, under) = if shift >= 0 {
        (magnitude << shift, denominator)
    } else {
        (magnitude, denominator << -shift)
    };
    let (mut units, rest) = (over / under, over % under);
    if rest * 2 > under || (rest * 2 == under && units % 2 == 1) {
        units += 1;
    }
    if units >> (mantissa_bits + 1) != 0 {
        units >>= 1;
        power += 1;
    }
    let bias = (1 << (exponent_bits - 1)) - 1;
    let exponent = u64::try_from(power + bias).expect("no denormals here");
    // E4M3 has no infinity: its largest exponent is one of numbers, all bits set a NaN.
    let largest = if dtype == DataType::F8E4M3 { 15 } else { (1 << exponent_bits) - 2 };
    assert!(exponent > 0 && exponent <= largest, "a normal float");
    sign | exponent << mantissa_bits | (units as u64 & ((1 << mantissa_bits) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_as_the_processor_has_them() {
        for (numerator, denominator) in [(1, 3), (-7, 5), (257, 1), (1 << 24 | 1, 1), (1, 4096)] {
            let value = numerator as f64 / denominator as f64;
            assert_eq!(encode(DataType::F64, numerator, denominator), value.to_bits());
            let single = u64::from((value as f32).to_bits());
            assert_eq!(encode(DataType::F32, numerator, denominator), single);
        }
        let half = decode(DataType::F32, u64::from(0.5_f32.to_bits()));
        assert_eq!(half, Fraction { numerator: 1, denominator: 2 });
        // 257 lies between the bf16 neighbours 256 and 258, and 256 is even.
        assert_eq!(encode(DataType::Bf16, 257, 1), u64::from(256_f32.to_bits() >> 16));
        assert_eq!(encode(DataType::F16, 1, 1), 0x3c00);
    }

    #[test]
    fn integers_wrap_and_averages_are_cut_towards_zero() {
        let two = |a: i8, b: i8| [vec![a as u8], vec![b as u8]];
        assert_eq!(reduced(DataType::I8, RedOp::Sum, &two(100, 100)), [200]);
        assert_eq!(reduced(DataType::I8, RedOp::Avg, &two(-3, -4)), [-3_i8 as u8]);
        assert_eq!(reduced(DataType::I8, RedOp::Avg, &two(100, 100)), [100]);
    }
}
