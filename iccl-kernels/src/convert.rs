//! f16, bf16 and both 8-bit floats to f32 and back by integer operations only, so that the compiler can vectorise
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

/// Distance of the exponent biases of f32 and E4M3, as f32 exponent bits.
const REBIAS_E4M3: u32 = (127 - 7) << 23;

/// The only magnitude of E4M3 that is NaN; there is no infinity.
pub(crate) const E4M3_NAN: u8 = 0x7F;
/// E5M2 is the upper half of an f16, with infinity at 0x7C; this is its quiet NaN without payload.
pub(crate) const E5M2_NAN: u8 = 0x7E;

#[inline(always)]
pub(crate) fn e4m3_to_f32(bits: u8) -> f32 {
    let sign = (u32::from(bits) & 0x80) << 24;
    let magnitude = (u32::from(bits) & 0x7F) << 20;
    // A subnormal counts in steps of 2^-9, as in `f16_to_f32`.
    let smallest_normal = REBIAS_E4M3 + (1 << 23);
    let subnormal = f32::from_bits(magnitude | smallest_normal) - f32::from_bits(smallest_normal);
    let unsigned = if magnitude < 1 << 23 {
        subnormal.to_bits()
    } else if magnitude == u32::from(E4M3_NAN) << 20 {
        f32::NAN.to_bits()
    } else {
        magnitude + REBIAS_E4M3
    };
    f32::from_bits(unsigned | sign)
}

#[inline(always)]
pub(crate) fn f32_to_e4m3(value: f32) -> u8 {
    let bits = value.to_bits();
    let sign = (bits >> 24) & 0x80;
    let magnitude = bits & F32_MAGNITUDE;
    // Nearest even as in `f32_to_bf16`. From above 464, which is half way between 448, the largest
    // value, and the next place, what comes is NaN.
    let normal =
        magnitude.wrapping_sub(REBIAS_E4M3).wrapping_add(0x7FFFF + ((magnitude >> 20) & 1)) >> 20;
    // Added to 2^14, whose last place is 2^-9, the value is rounded to whole steps of a subnormal.
    let subnormal =
        (f32::from_bits(magnitude) + 16384.0).to_bits().wrapping_sub(16384.0_f32.to_bits());
    let result = if magnitude > 464.0_f32.to_bits() {
        u32::from(E4M3_NAN)
    } else if magnitude < (127 - 6) << 23 {
        subnormal | sign
    } else {
        normal | sign
    };
    result as u8
}

#[inline(always)]
pub(crate) fn e5m2_to_f32(bits: u8) -> f32 {
    f16_to_f32(u16::from(bits) << 8)
}

#[inline(always)]
pub(crate) fn f32_to_e5m2(value: f32) -> u8 {
    let bits = value.to_bits();
    let sign = (bits >> 24) & 0x80;
    let magnitude = bits & F32_MAGNITUDE;
    // As in `f32_to_f16`, eight places shorter; from 61440 the carry reaches the exponent of infinity.
    let normal =
        magnitude.wrapping_sub(REBIAS).wrapping_add(0xFFFFF + ((magnitude >> 21) & 1)) >> 21;
    let subnormal = (f32::from_bits(magnitude) + 128.0).to_bits().wrapping_sub(128.0_f32.to_bits());
    let result = if magnitude > F32_INFINITY {
        u32::from(E5M2_NAN)
    } else if magnitude >= (127 + 16) << 23 {
        0x7C | sign
    } else if magnitude < (127 - 14) << 23 {
        subnormal | sign
    } else {
        normal | sign
    };
    result as u8
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

    /// What the OCP document says of each bit pattern of `exponent_bits` and `mantissa_bits`.
    fn small(bits: u8, exponent_bits: u32, mantissa_bits: u32) -> f64 {
        let bias = (1 << (exponent_bits - 1)) - 1;
        let exponent = i32::from(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
        let mantissa = f64::from(bits & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
        let magnitude = match exponent {
            0 => mantissa * 2_f64.powi(1 - bias),
            _ => (1.0 + mantissa) * 2_f64.powi(exponent - bias),
        };
        if bits & 0x80 == 0 { magnitude } else { -magnitude }
    }

    #[test]
    fn every_8_bit_value_widens_exactly_and_comes_back() {
        for bits in 0..=u8::MAX {
            let wide = e4m3_to_f32(bits);
            if bits & 0x7F == 0x7F {
                assert!(wide.is_nan());
                assert_eq!(f32_to_e4m3(wide), 0x7F);
            } else {
                assert_eq!(f64::from(wide).to_bits(), small(bits, 4, 3).to_bits(), "{bits:#04x}");
                assert_eq!(f32_to_e4m3(wide), bits);
            }
            let wide = e5m2_to_f32(bits);
            match bits & 0x7F {
                0x7D..=0x7F => {
                    assert!(wide.is_nan());
                    assert_eq!(f32_to_e5m2(wide), 0x7E);
                }
                0x7C => {
                    assert!(wide.is_infinite());
                    assert_eq!(f32_to_e5m2(wide), bits);
                }
                _ => {
                    let exact = small(bits, 5, 2);
                    assert_eq!(f64::from(wide).to_bits(), exact.to_bits(), "{bits:#04x}");
                    assert_eq!(f32_to_e5m2(wide), bits);
                }
            }
        }
    }

    /// Between any two neighbours: the tie goes to the even one, and what is beside it to the nearer.
    #[test]
    fn narrowing_to_8_bits_rounds_to_nearest_even_at_every_tie() {
        let check = |widen: fn(u8) -> f32, narrow: fn(f32) -> u8, largest: u8| {
            for low in 0..largest {
                let (here, next) = (widen(low), widen(low + 1));
                let tie = f32::midpoint(here, next);
                for (sign, negative) in [(0, 1.0), (0x80, -1.0)] {
                    let even = low + (low & 1);
                    assert_eq!(narrow(negative * tie), sign | even, "{tie:e}");
                    assert_eq!(narrow(negative * tie.next_down()), sign | low, "{tie:e}");
                    assert_eq!(narrow(negative * tie.next_up()), sign | (low + 1), "{tie:e}");
                }
            }
        };
        check(e4m3_to_f32, f32_to_e4m3, 0x7E);
        check(e5m2_to_f32, f32_to_e5m2, 0x7B);
    }

    #[test]
    fn what_is_too_large_for_8_bits_becomes_nan_or_infinity() {
        for (value, e4m3, e5m2) in [
            (448.0, 0x7E, 0x5F),
            (464.0, 0x7E, 0x5F),
            (464.000_03, 0x7F, 0x5F),
            (480.0, 0x7F, 0x60),
            (57344.0, 0x7F, 0x7B),
            (61439.996, 0x7F, 0x7B),
            (61440.0, 0x7F, 0x7C),
            (65536.0, 0x7F, 0x7C),
            (f32::MAX, 0x7F, 0x7C),
            (f32::INFINITY, 0x7F, 0x7C),
        ] {
            assert_eq!(f32_to_e4m3(value), e4m3, "{value}");
            assert_eq!(f32_to_e5m2(value), e5m2, "{value}");
            let negative = if e4m3 == 0x7F { e4m3 } else { e4m3 | 0x80 };
            assert_eq!(f32_to_e4m3(-value), negative, "-{value}");
            assert_eq!(f32_to_e5m2(-value), e5m2 | 0x80, "-{value}");
        }
        for tiny in [f32::from_bits(1), f32::MIN_POSITIVE, 2_f32.powi(-17)] {
            assert_eq!((f32_to_e4m3(tiny), f32_to_e5m2(tiny)), (0, 0));
            assert_eq!((f32_to_e4m3(-tiny), f32_to_e5m2(-tiny)), (0x80, 0x80));
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
