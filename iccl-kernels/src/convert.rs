//! f16 and bf16 to f32 and back by integer operations only, so that the compiler can vectorise
//! loops over them. Exact for every input, subnormals included; rounding is to nearest even.

const F32_INFINITY: u32 = 0x7F80_0000;
const F32_MAGNITUDE: u32 = 0x7FFF_FFFF;

/// Distance of the exponent biases of f32 and f16, as f32 exponent bits.
const REBIAS: u32 = (127 - 15) << 23;

#[inline(always)]
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    // Adding just under half of the last kept place, and its last bit, carries exactly when
    // nearest-even rounds up; the carry out of the largest finite value gives infinity.
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16;
    let is_nan = bits & F32_MAGNITUDE > F32_INFINITY;
    (if is_nan { 0x7FC0 } else { rounded }) as u16
}

#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = (u32::from(bits) & 0x8000) << 16;
    let magnitude = (u32::from(bits) & 0x7FFF) << 13;
    // Twice the distance of the biases brings the largest exponent, that of infinity and NaN, to
    // the largest of f32, where the product with 2^-112 leaves it; all others it brings home.
    let normal = f32::from_bits(magnitude + 2 * REBIAS) * f32::from_bits((127 - 112) << 23);
    // A subnormal counts in steps of 2^-24: put the steps below a leading 2^-14, and take it off.
    // (A product would do here as well, but processors are slow at multiplying subnormals.)
    let smallest_normal = REBIAS + (1 << 23);
    let subnormal = f32::from_bits(magnitude | smallest_normal) - f32::from_bits(smallest_normal);
    let is_subnormal = bits & 0x7C00 == 0;
    let unsigned = if is_subnormal { subnormal } else { normal };
    f32::from_bits(unsigned.to_bits() | sign)
}

#[inline(always)]
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & F32_MAGNITUDE;
    // Nearest even as in `f32_to_bf16`; from 65520 the carry reaches the exponent of infinity.
    let normal = magnitude.wrapping_sub(REBIAS).wrapping_add(0xFFF + ((magnitude >> 13) & 1)) >> 13;
    // Added to 0.5, whose last place is 2^-24, the value is rounded to whole steps of a subnormal.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let result = if magnitude > F32_INFINITY {
        0x7E00
    } else if magnitude >= (127 + 16) << 23 {
        0x7C00 | sign
    } else if magnitude < (127 - 14) << 23 {
        subnormal | sign
    } else {
        normal | sign
    };
    result as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_narrow_value_widens_exactly() {
        for bits in 0..=u16::MAX {
            let f16 = half::f16::from_bits(bits).to_f32();
            assert_eq!(f16_to_f32(bits).is_nan(), f16.is_nan());
            if !f16.is_nan() {
                assert_eq!(f16_to_f32(bits).to_bits(), f16.to_bits(), "{bits:#06x}");
            }
            let bf16 = half::bf16::from_bits(bits).to_f32();
            assert_eq!(bf16_to_f32(bits).is_nan(), bf16.is_nan());
            if !bf16.is_nan() {
                assert_eq!(bf16_to_f32(bits).to_bits(), bf16.to_bits(), "{bits:#06x}");
            }
        }
    }

    /// Around each narrow value: itself, the tie to its neighbour, and both sides of the tie.
    #[test]
    fn narrowing_rounds_to_nearest_even_at_every_tie() {
        let check = |value: f32| {
            let f16 = half::f16::from_f32(value);
            let f16 = if f16.is_nan() { 0x7E00 } else { f16.to_bits() };
            assert_eq!(f32_to_f16(value), f16, "{value:e}");
            let bf16 = half::bf16::from_f32(value);
            let bf16 = if bf16.is_nan() { 0x7FC0 } else { bf16.to_bits() };
            assert_eq!(f32_to_bf16(value), bf16, "{value:e}");
        };
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
                check(f32::from_bits(u32::from(high) << 16 | low));
            }
            let here = f16_to_f32(high);
            let next = f16_to_f32(high ^ 1);
            let tie = f32::midpoint(here, next);
            for value in [here, tie, tie.next_up(), tie.next_down()] {
                check(value);
            }
        }
        for value in [65504.0, 65519.99, 65520.0, 65535.9, 65536.0, f32::MAX, f32::INFINITY] {
            check(value);
            check(-value);
        }
    }
}
