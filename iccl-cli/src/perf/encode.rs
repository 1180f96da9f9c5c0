//! Exact numbers as the bits of an element type. Written from the formats' definitions, in integers
//! only, so that it shares nothing with what it checks.

use iccl_plugin_api::DataType;

/// The bits of one element, in the low bytes.
pub(super) type Bits = u64;

/// A binary floating-point format of IEEE 754's kind. E4M3 alone has no infinities: the topmost
/// exponent is one like any other, but for its last code, which is NaN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    /// Bits of the significand, the leading one included.
    pub(super) precision: u32,
    /// The exponent of the largest finite numbers: they are below 2^(max + 1).
    pub(super) max_exponent: i32,
    width: u32,
    pub(super) has_infinity: bool,
}

impl Format {
    /// The format of a type; `None` for integers.
    pub(super) fn of(dtype: DataType) -> Option<Self> {
        let (precision, max_exponent, width) = match dtype {
            DataType::F16 => (11, 15, 16),
            DataType::Bf16 => (8, 127, 16),
            DataType::F32 => (24, 127, 32),
            DataType::F64 => (53, 1023, 64),
            DataType::F8E4M3 => (4, 8, 8),
            DataType::F8E5M2 => (3, 15, 8),
            _ => return None,
        };
        Some(Self { precision, max_exponent, width, has_infinity: dtype != DataType::F8E4M3 })
    }

    fn exponent_field(self) -> u64 {
        (1 << (self.width - self.precision)) - 1
    }

    /// The exponent of the smallest normal numbers.
    fn min_exponent(self) -> i32 {
        if self.has_infinity { 1 - self.max_exponent } else { 2 - self.max_exponent }
    }

    /// The quiet NaN with sign and payload zero.
    pub(super) fn nan(self) -> Bits {
        if self.has_infinity {
            self.infinity(false) | 1 << (self.precision - 2)
        } else {
            self.infinity(false)
        }
    }

    /// What is too large becomes this: where there is no infinity, NaN.
    pub(super) fn infinity(self, negative: bool) -> Bits {
        let fraction = if self.has_infinity { 0 } else { (1 << (self.precision - 1)) - 1 };
        self.zero(negative) | self.exponent_field() << (self.precision - 1) | fraction
    }

    pub(super) fn zero(self, negative: bool) -> Bits {
        u64::from(negative) << (self.width - 1)
    }

    /// `numerator / denominator × 2^exponent`, rounded once, to nearest, ties to even. Zero is +0.
    pub(super) fn round(self, numerator: i128, denominator: u32, exponent: i32) -> Bits {
        let sign = self.zero(numerator < 0);
        let magnitude = numerator.unsigned_abs();
        if magnitude == 0 {
            return self.zero(false);
        }
        // As many bits of the quotient as fit, and whether something is left over. A numerator of at
        // most 88 bits leaves at least 120 - 32 bits of quotient, more than any significand has.
        let bits = 128 - magnitude.leading_zeros();
        assert!(bits <= 88, "the oracle works with small numerators");
        let shift = 120 - bits;
        let scaled = magnitude << shift;
        let divisor = u128::from(denominator);
        let (quotient, rest) = (scaled / divisor, scaled % divisor);
        let exponent = exponent - shift as i32;
        // The value lies in [2^top, 2^(top + 1)).
        let top = exponent + 127 - quotient.leading_zeros() as i32;
        let min_exponent = self.min_exponent();
        // The exponent of the last bit that the format has there.
        let last = top.max(min_exponent) - (self.precision as i32 - 1);
        let drop = last - exponent;
        assert!(drop > 1, "the quotient has more bits than the format");
        let (kept, half, below) = if drop >= 128 {
            (0, 0, true)
        } else {
            let kept = quotient >> drop;
            let half = quotient >> (drop - 1) & 1;
            let below = quotient & ((1 << (drop - 1)) - 1) != 0;
            (kept, half, below)
        };
        let up = half == 1 && (below || rest != 0 || kept & 1 == 1);
        let significand = (kept + u128::from(up)) as u64;
        // Biased exponent and significand are one number, so that a carry goes where it belongs. For
        // subnormal numbers the leading bit is not there to be counted.
        let biased = (top.max(min_exponent) - min_exponent) as u64;
        let magnitude = (biased << (self.precision - 1)) + significand;
        sign | magnitude.min(self.infinity(false))
    }

    /// An integer in units of the last place or larger, rounded to as many bits as a significand has,
    /// to nearest, ties to even.
    pub(super) fn to_precision(self, value: i128) -> i128 {
        let magnitude = value.unsigned_abs();
        let drop = (128 - magnitude.leading_zeros()).saturating_sub(self.precision);
        if drop == 0 {
            return value;
        }
        let (kept, rest) = (magnitude >> drop, magnitude & ((1 << drop) - 1));
        let half = 1 << (drop - 1);
        let up = rest > half || (rest == half && kept & 1 == 1);
        let rounded = ((kept + u128::from(up)) << drop) as i128;
        if value < 0 { -rounded } else { rounded }
    }

    pub(super) fn is_nan(self, bits: Bits) -> bool {
        let magnitude = bits & !self.zero(true);
        magnitude > self.infinity(false) || magnitude == self.nan()
    }
}

/// An integer as the bits of an integer type; higher bits are cut off, as integers wrap.
pub(super) fn wrap(dtype: DataType, value: i128) -> Bits {
    let bits = 8 * dtype.size_bytes() as u32;
    (value as u128 & (u128::MAX >> (128 - bits))) as u64
}

/// The value of an element of an integer type.
pub(super) fn widen(dtype: DataType, bits: Bits) -> i128 {
    let unused = 128 - 8 * dtype.size_bytes() as u32;
    let is_signed = matches!(dtype, DataType::I8 | DataType::I16 | DataType::I32 | DataType::I64);
    let high = u128::from(bits) << unused;
    if is_signed { high as i128 >> unused } else { (high >> unused) as i128 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn format(dtype: DataType) -> Format {
        Format::of(dtype).expect("a float")
    }

    proptest! {
        #[test]
        fn f32_and_f64_agree_with_the_processor(
            numerator in -(1_i64 << 53)..1 << 53,
            denominator in 1_u32..1000,
            exponent in -60_i32..60,
        ) {
            // Both operands are exact, so the processor's quotient is rounded once.
            let quotient = numerator as f64 / f64::from(denominator);
            let expected = quotient.to_bits();
            prop_assert_eq!(format(DataType::F64).round(i128::from(numerator), denominator, 0), expected);
            let scaled = quotient * 2_f64.powi(exponent);
            prop_assert_eq!(
                format(DataType::F64).round(i128::from(numerator), denominator, exponent),
                scaled.to_bits()
            );
            let small = numerator >> 29;
            let quotient = small as f32 / denominator as f32;
            prop_assert_eq!(
                format(DataType::F32).round(i128::from(small), denominator, 0),
                u64::from(quotient.to_bits())
            );
        }

        #[test]
        fn f32_agrees_with_the_processor_among_subnormals(numerator in -(1_i64 << 40)..1 << 40, down in 100_i32..190) {
            // An exact f64, narrowed once.
            let exact = numerator as f64 * 2_f64.powi(-down);
            prop_assert_eq!(
                format(DataType::F32).round(i128::from(numerator), 1, -down),
                u64::from((exact as f32).to_bits())
            );
        }

        #[test]
        fn integers_wrap_and_widen(value in any::<i64>()) {
            let wide = i128::from(value);
            prop_assert_eq!(wrap(DataType::I8, wide), u64::from(value as u8));
            prop_assert_eq!(widen(DataType::I8, wrap(DataType::I8, wide)), i128::from(value as i8));
            prop_assert_eq!(widen(DataType::U16, wrap(DataType::U16, wide)), i128::from(value as u16));
            prop_assert_eq!(widen(DataType::I64, wrap(DataType::I64, wide)), wide);
            prop_assert_eq!(widen(DataType::U64, wrap(DataType::U64, wide)), i128::from(value as u64));
        }
    }

    #[test]
    fn known_bits_of_the_narrow_formats() {
        let (f16, bf16) = (format(DataType::F16), format(DataType::Bf16));
        assert_eq!(f16.round(1, 1, 0), 0x3c00);
        assert_eq!(f16.round(-2, 1, 0), 0xc000);
        assert_eq!(f16.round(65504, 1, 0), 0x7bff);
        assert_eq!(f16.round(65519, 1, 0), 0x7bff);
        assert_eq!(f16.round(65520, 1, 0), 0x7c00, "ties go to even, which is infinity");
        assert_eq!(f16.round(1, 3, 0), 0x3555);
        assert_eq!(f16.round(2049, 1, 0), 0x6800, "a tie goes down to even");
        assert_eq!(f16.round(2051, 1, 0), 0x6802, "a tie goes up to even");
        assert_eq!(f16.round(1, 1, -24), 0x0001, "the smallest subnormal number");
        assert_eq!(f16.round(1, 1, -25), 0x0000, "half of it is a tie");
        assert_eq!(f16.round(3, 1, -26), 0x0001);
        assert_eq!(f16.round(1, 1, -14), 0x0400, "the smallest normal number");
        assert_eq!(f16.round(2047, 1, -25), 0x0400, "rounded up to it");
        assert_eq!(f16.nan(), 0x7e00);
        assert_eq!(bf16.round(1, 1, 0), 0x3f80);
        assert_eq!(bf16.round(257, 1, 0), 0x4380);
        assert_eq!(bf16.round(259, 1, 0), 0x4382);
        assert_eq!(bf16.round(1, 1, 200), 0x7f80);
        assert_eq!(bf16.nan(), 0x7fc0);
        let (e4m3, e5m2) = (format(DataType::F8E4M3), format(DataType::F8E5M2));
        assert_eq!(e4m3.round(1, 1, 0), 0x38);
        assert_eq!(e4m3.round(448, 1, 0), 0x7e);
        assert_eq!(e4m3.round(464, 1, 0), 0x7e, "ties go to even, which is 448");
        assert_eq!(e4m3.round(-465, 1, 0), 0xff, "what is too large is NaN");
        assert_eq!(e4m3.round(1, 1, -6), 0x08, "the smallest normal number");
        assert_eq!(e4m3.round(1, 1, -9), 0x01, "the smallest subnormal number");
        assert_eq!(e4m3.round(1, 1, -10), 0x00);
        assert_eq!(e4m3.round(3, 1, -11), 0x01);
        assert!(e4m3.is_nan(0x7f) && e4m3.is_nan(0xff) && !e4m3.is_nan(0x7e));
        assert_eq!(e5m2.round(1, 1, 0), 0x3c);
        assert_eq!(e5m2.round(57344, 1, 0), 0x7b);
        assert_eq!(e5m2.round(61439, 1, 0), 0x7b);
        assert_eq!(e5m2.round(-61440, 1, 0), 0xfc);
        assert_eq!(e5m2.round(1, 1, -16), 0x01);
        assert!(e5m2.is_nan(e5m2.nan()) && e5m2.is_nan(0xfd) && !e5m2.is_nan(0x7c));
        assert_eq!(e4m3.to_precision(-105), -104);
        assert_eq!(e4m3.to_precision(27), 28, "a tie goes to even");
        assert_eq!(e4m3.to_precision(25), 24, "a tie goes to even");
        assert_eq!(e4m3.to_precision(31), 32);
        assert_eq!(e4m3.to_precision(15), 15);
        assert_eq!(format(DataType::F64).nan(), f64::NAN.to_bits() & !(1 << 63));
        assert!(f16.is_nan(0xfe01) && !f16.is_nan(0x7c00) && !f16.is_nan(0xfc00));
    }
}
