//! The oracle: the rules of the crate's documentation written down once more, as plainly as
//! possible, one element at a time. It shares no code with the kernels and is not made to be fast.

use half::{bf16, f16};
use iccl_plugin_api::{DataType, RedOp};

use crate::{Finish, Unsupported};

/// [`crate::reduce`] by the oracle.
///
/// # Errors
///
/// As [`crate::reduce`].
///
/// # Panics
///
/// As [`crate::reduce`].
///
/// # Safety
///
/// As [`crate::reduce`].
pub unsafe fn reduce(
    dtype: DataType,
    op: RedOp,
    finish: Finish,
    destination: *mut u8,
    sources: &[*const u8],
    count: usize,
) -> Result<(), Unsupported> {
    crate::check(dtype, op, finish)?;
    let is_bitwise = [RedOp::BitAnd, RedOp::BitOr, RedOp::BitXor].contains(&op);
    if is_bitwise && !dtype.is_integer() {
        return Err(Unsupported { dtype, op, reason: crate::Reason::BitsOfFloats });
    }
    assert!(!sources.is_empty(), "a reduction needs at least one source");
    let ranks = match finish {
        Finish::None => None,
        Finish::DivideByRanks(ranks) => Some(ranks),
    };
    let size = dtype.size_bytes();
    for index in 0..count {
        let contributions: Vec<u64> = sources
            .iter()
            .map(|source| {
                let mut bytes = [0; 8];
                let element =
                    // SAFETY: The caller vouches for `count` elements of each source.
                    unsafe { core::slice::from_raw_parts(source.add(index * size), size) };
                bytes[..size].copy_from_slice(element);
                u64::from_le_bytes(bytes)
            })
            .collect();
        let result = element(dtype, op, ranks, &contributions).to_le_bytes();
        // SAFETY: The caller vouches for `count` elements of the destination, and this element's
        // sources have been read.
        unsafe {
            core::ptr::copy_nonoverlapping(result.as_ptr(), destination.add(index * size), size);
        }
    }
    Ok(())
}

/// [`crate::scale`] by the oracle.
///
/// # Safety
///
/// As [`crate::scale`].
pub unsafe fn scale(
    dtype: DataType,
    destination: *mut u8,
    source: *const u8,
    scalar: *const u8,
    count: usize,
) {
    let size = dtype.size_bytes();
    let read = |element: *const u8| {
        let mut bytes = [0; 8];
        // SAFETY: The caller vouches for the elements of the source and for the scalar.
        bytes[..size].copy_from_slice(unsafe { core::slice::from_raw_parts(element, size) });
        u64::from_le_bytes(bytes)
    };
    for index in 0..count {
        let factors = [read(source.wrapping_add(index * size)), read(scalar)];
        let product = element(dtype, RedOp::Prod, None, &factors).to_le_bytes();
        // SAFETY: The caller vouches for `count` elements of the destination.
        unsafe {
            core::ptr::copy_nonoverlapping(product.as_ptr(), destination.add(index * size), size);
        }
    }
}

/// One element: the bits of each contribution to the bits of the result.
fn element(dtype: DataType, op: RedOp, ranks: Option<u32>, contributions: &[u64]) -> u64 {
    if let ([only], None | Some(1)) = (contributions, ranks) {
        return *only;
    }
    match dtype {
        DataType::I8 => integer(op, ranks, contributions, |bits| i128::from(bits as i8)),
        DataType::U8 => integer(op, ranks, contributions, |bits| i128::from(bits as u8)),
        DataType::I16 => integer(op, ranks, contributions, |bits| i128::from(bits as i16)),
        DataType::U16 => integer(op, ranks, contributions, |bits| i128::from(bits as u16)),
        DataType::I32 => integer(op, ranks, contributions, |bits| i128::from(bits as i32)),
        DataType::U32 => integer(op, ranks, contributions, |bits| i128::from(bits as u32)),
        DataType::I64 => integer(op, ranks, contributions, |bits| i128::from(bits as i64)),
        DataType::U64 => integer(op, ranks, contributions, i128::from),
        DataType::F16 => {
            let values = values(contributions, |bits| f16::from_bits(bits as u16).to_f64());
            let result = single(op, ranks, &values);
            let narrow = f16::from_f32(result);
            u64::from(if result.is_nan() { 0x7E00 } else { narrow.to_bits() })
        }
        DataType::Bf16 => {
            let values = values(contributions, |bits| bf16::from_bits(bits as u16).to_f64());
            let result = single(op, ranks, &values);
            let narrow = bf16::from_f32(result);
            u64::from(if result.is_nan() { 0x7FC0 } else { narrow.to_bits() })
        }
        DataType::F32 => {
            let values = values(contributions, |bits| f64::from(f32::from_bits(bits as u32)));
            let result = single(op, ranks, &values);
            u64::from(if result.is_nan() { 0x7FC0_0000 } else { result.to_bits() })
        }
        DataType::F64 => {
            let result = double(op, ranks, &values(contributions, f64::from_bits));
            if result.is_nan() { 0x7FF8_0000_0000_0000 } else { result.to_bits() }
        }
        DataType::F8E4M3 => {
            let value = |bits| Small::E4M3.value(bits);
            u64::from(Small::E4M3.nearest(single(op, ranks, &values(contributions, value))))
        }
        DataType::F8E5M2 => {
            let value = |bits| Small::E5M2.value(bits);
            u64::from(Small::E5M2.nearest(single(op, ranks, &values(contributions, value))))
        }
    }
}

/// An 8-bit float, by the table of the OCP document.
struct Small {
    exponent_bits: u32,
    mantissa_bits: u32,
    /// The largest finite magnitude.
    largest: u8,
    /// What is too large, by its sign.
    beyond: [u8; 2],
    nan: u8,
}

impl Small {
    const E4M3: Self =
        Self { exponent_bits: 4, mantissa_bits: 3, largest: 0x7E, beyond: [0x7F; 2], nan: 0x7F };
    const E5M2: Self =
        Self { exponent_bits: 5, mantissa_bits: 2, largest: 0x7B, beyond: [0x7C, 0xFC], nan: 0x7E };

    fn value(&self, bits: u64) -> f64 {
        let magnitude = bits as u8 & 0x7F;
        let value = if magnitude <= self.largest {
            self.finite(magnitude)
        } else if magnitude == self.beyond[0] && self.beyond[0] != self.nan {
            f64::INFINITY
        } else {
            f64::NAN
        };
        if bits & 0x80 == 0 { value } else { -value }
    }

    /// The formula, which the code above the largest one follows too when it comes to rounding.
    fn finite(&self, magnitude: u8) -> f64 {
        let bias = (1 << (self.exponent_bits - 1)) - 1;
        let exponent = i32::from(magnitude >> self.mantissa_bits);
        let steps = f64::from(1 << self.mantissa_bits);
        let fraction = f64::from(magnitude % (1 << self.mantissa_bits)) / steps;
        match exponent {
            0 => fraction * 2.0_f64.powi(1 - bias),
            _ => (1.0 + fraction) * 2.0_f64.powi(exponent - bias),
        }
    }

    /// The nearest code, found by looking at all of them; of two as near, the even one.
    fn nearest(&self, value: f32) -> u8 {
        if value.is_nan() {
            return self.nan;
        }
        let magnitude = f64::from(value.abs());
        let distance = |code: &u8| (self.finite(*code) - magnitude).abs();
        let mut best = 0;
        for code in 1..=self.largest + 1 {
            let closer = distance(&code) < distance(&best);
            let as_close = distance(&code) <= distance(&best);
            if closer || (as_close && code % 2 == 0) {
                best = code;
            }
        }
        let is_negative = value.is_sign_negative();
        // So far out, all are equally far as f64 counts.
        let is_beyond = magnitude >= self.finite(self.largest + 1);
        if best > self.largest || is_beyond {
            return self.beyond[usize::from(is_negative)];
        }
        if is_negative { best | 0x80 } else { best }
    }
}

fn values(contributions: &[u64], value: impl Fn(u64) -> f64) -> Vec<f64> {
    contributions.iter().map(|&bits| value(bits)).collect()
}

/// Wrapping is keeping the low bits of the exact result, which the caller does by storing them.
fn integer(
    op: RedOp,
    ranks: Option<u32>,
    contributions: &[u64],
    value: impl Fn(u64) -> i128,
) -> u64 {
    let values = contributions.iter().map(|&bits| value(bits));
    let exact = match op {
        RedOp::Sum => values.sum::<i128>() / i128::from(ranks.unwrap_or(1)),
        // The low 64 bits of a product depend on the low 64 bits of its factors only.
        RedOp::Prod => values.fold(1, |product, value| i128::from((product * value) as i64)),
        RedOp::Max => values.max().unwrap_or_default(),
        RedOp::Min => values.min().unwrap_or_default(),
        RedOp::BitAnd => values.fold(-1, |bits, value| bits & value),
        RedOp::BitOr => values.fold(0, |bits, value| bits | value),
        RedOp::BitXor => values.fold(0, |bits, value| bits ^ value),
        RedOp::Avg | RedOp::PreMulSum => unreachable!("refused before"),
    };
    exact as u64
}

/// In f32 arithmetic. (The contributions are f32 values that came through f64 unharmed.)
fn single(op: RedOp, ranks: Option<u32>, values: &[f64]) -> f32 {
    let fold = |combine: fn(f32, f32) -> f32| {
        values.iter().map(|&value| value as f32).reduce(combine).unwrap_or_default()
    };
    match op {
        RedOp::Sum => {
            let sum = fold(|sum, value| sum + value);
            let Some(ranks) = ranks else { return sum };
            if !sum.is_finite() && values.iter().all(|value| value.is_finite()) {
                let mut wide = 0.0_f64;
                for value in values {
                    wide += value;
                }
                return (wide / f64::from(ranks)) as f32;
            }
            sum / ranks as f32
        }
        RedOp::Prod => fold(|product, value| product * value),
        RedOp::Max | RedOp::Min => extreme(op, values) as f32,
        _ => unreachable!("refused before"),
    }
}

/// In f64 arithmetic.
fn double(op: RedOp, ranks: Option<u32>, values: &[f64]) -> f64 {
    let fold =
        |combine: fn(f64, f64) -> f64| values.iter().copied().reduce(combine).unwrap_or_default();
    match op {
        RedOp::Sum => {
            let sum = fold(|sum, value| sum + value);
            let Some(ranks) = ranks else { return sum };
            if !sum.is_finite() && values.iter().all(|value| value.is_finite()) {
                let mut exponent = 0;
                while (1_u64 << exponent) < values.len() as u64 {
                    exponent += 1;
                }
                let mut scaled = 0.0;
                for value in values {
                    scaled += value * 0.5_f64.powi(exponent);
                }
                return scaled / f64::from(ranks) * 2.0_f64.powi(exponent);
            }
            sum / f64::from(ranks)
        }
        RedOp::Prod => fold(|product, value| product * value),
        RedOp::Max | RedOp::Min => extreme(op, values),
        _ => unreachable!("refused before"),
    }
}

// Equal values differ at most in the sign of zero, which is what is asked here.
#[allow(clippy::float_cmp)]
fn extreme(op: RedOp, values: &[f64]) -> f64 {
    let mut result = values[0];
    for &value in values {
        if value.is_nan() {
            return value;
        }
        let wins = match op {
            RedOp::Max => value > result || (value == result && result.is_sign_negative()),
            _ => value < result || (value == result && value.is_sign_negative()),
        };
        if wins {
            result = value;
        }
    }
    result
}
