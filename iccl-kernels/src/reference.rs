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
    if !dtype.is_integer()
        && !matches!(dtype, DataType::F16 | DataType::Bf16 | DataType::F32 | DataType::F64)
    {
        return Err(Unsupported { dtype, op, reason: crate::Reason::ElementType });
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
                // SAFETY: The caller vouches for `count` elements of each source.
                let element =
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
        DataType::F8E4M3 | DataType::F8E5M2 => unreachable!("refused before"),
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
        RedOp::Avg => unreachable!("refused before"),
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
        RedOp::Avg => unreachable!("refused before"),
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
        RedOp::Avg => unreachable!("refused before"),
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
