//! Reductions as a vendor's library does them: one contribution after the other, rounded to the type at
//! each step. Shares no code with what iccl reduces by.

use std::sync::OnceLock;

/// What the numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F16,
    Bf16,
    F32,
    F64,
    F8E4m3,
    F8E5m2,
}

/// How two become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    Sum,
    Product,
    Max,
    Min,
}

/// How each contribution is multiplied before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Factor {
    /// Not at all.
    One,
    /// By a number, which is rounded to the type first.
    Number(f64),
    /// By the integer or the float of the element type with these bits.
    Bits(u64),
}

/// A reduction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reduction {
    pub combine: Combine,
    pub factor: Factor,
    /// Integers: the result is divided by this, towards zero. Floats: nothing.
    pub divisor: u32,
}

impl Reduction {
    /// Without factor and divisor.
    pub fn plain(combine: Combine) -> Self {
        Self { combine, factor: Factor::One, divisor: 1 }
    }
}

impl Element {
    /// The length of one.
    pub fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8E4m3 | Self::F8E5m2 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Whether it is no integer.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32 | Self::F64 | Self::F8E4m3 | Self::F8E5m2)
    }
}

/// Reduces contributions of equal length into `out`, in their order.
///
/// # Panics
/// If the lengths differ or are not whole elements.
pub fn reduce(element: Element, reduction: Reduction, contributions: &[&[u8]], out: &mut [u8]) {
    assert!(contributions.iter().all(|one| one.len() == out.len()), "equal lengths");
    assert_eq!(out.len() % element.bytes(), 0, "whole elements");
    match element {
        Element::I8 => run::<i8>(reduction, contributions, out),
        Element::U8 => run::<u8>(reduction, contributions, out),
        Element::I16 => run::<i16>(reduction, contributions, out),
        Element::U16 => run::<u16>(reduction, contributions, out),
        Element::I32 => run::<i32>(reduction, contributions, out),
        Element::U32 => run::<u32>(reduction, contributions, out),
        Element::I64 => run::<i64>(reduction, contributions, out),
        Element::U64 => run::<u64>(reduction, contributions, out),
        Element::F16 => run::<Small<F16>>(reduction, contributions, out),
        Element::Bf16 => run::<Small<Bf16>>(reduction, contributions, out),
        Element::F32 => run::<f32>(reduction, contributions, out),
        Element::F64 => run::<f64>(reduction, contributions, out),
        Element::F8E4m3 => run::<Small<E4m3>>(reduction, contributions, out),
        Element::F8E5m2 => run::<Small<E5m2>>(reduction, contributions, out),
    }
}

trait Number: Copy {
    const BYTES: usize;
    fn load(bytes: &[u8]) -> Self;
    fn store(self, bytes: &mut [u8]);
    fn from_number(number: f64) -> Self;
    fn combine(self, other: Self, how: Combine) -> Self;
    fn divide(self, by: u32) -> Self;
}

fn run<T: Number>(reduction: Reduction, contributions: &[&[u8]], out: &mut [u8]) {
    let factor = match reduction.factor {
        Factor::One => None,
        Factor::Number(number) => Some(T::from_number(number)),
        Factor::Bits(bits) => Some(T::load(&bits.to_le_bytes()[..T::BYTES])),
    };
    let load = |from: &[u8]| {
        let value = T::load(from);
        factor.map_or(value, |factor| value.combine(factor, Combine::Product))
    };
    let mut at = 0;
    for result in out.chunks_exact_mut(T::BYTES) {
        let place = at..at + T::BYTES;
        let mut total = load(&contributions[0][place.clone()]);
        for contribution in &contributions[1..] {
            total = total.combine(load(&contribution[place.clone()]), reduction.combine);
        }
        if reduction.divisor > 1 {
            total = total.divide(reduction.divisor);
        }
        total.store(result);
        at += T::BYTES;
    }
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Number for $type {
            const BYTES: usize = size_of::<$type>();

            fn load(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$type>()];
                own.copy_from_slice(bytes);
                Self::from_le_bytes(own)
            }

            fn store(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }

            fn from_number(number: f64) -> Self {
                number as Self
            }

            fn combine(self, other: Self, how: Combine) -> Self {
                match how {
                    Combine::Sum => self.wrapping_add(other),
                    Combine::Product => self.wrapping_mul(other),
                    Combine::Max => self.max(other),
                    Combine::Min => self.min(other),
                }
            }

            fn divide(self, by: u32) -> Self {
                // More ranks than the type has numbers: every quotient is 0, or -1 for one of them.
                Self::try_from(by).map_or(0, |by| self.wrapping_div(by))
            }
        }
    )*};
}

integers!(i8 u8 i16 u16 i32 u32 i64 u64);

macro_rules! floats {
    ($($type:ty)*) => {$(
        impl Number for $type {
            const BYTES: usize = size_of::<$type>();

            fn load(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$type>()];
                own.copy_from_slice(bytes);
                Self::from_le_bytes(own)
            }

            fn store(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }

            fn from_number(number: f64) -> Self {
                number as Self
            }

            fn combine(self, other: Self, how: Combine) -> Self {
                match how {
                    Combine::Sum => self + other,
                    Combine::Product => self * other,
                    Combine::Max => self.max(other),
                    Combine::Min => self.min(other),
                }
            }

            fn divide(self, _by: u32) -> Self {
                self
            }
        }
    )*};
}

floats!(f32 f64);

/// A float of 8 or 16 bits: sign, exponent, fraction.
trait Format: Copy + 'static {
    const BITS: u32;
    const EXPONENT_BITS: u32;
    /// The largest exponent holds numbers too, and only all ones is no number; there is no infinity.
    const FINITE: bool;
    /// The values of all bit patterns.
    fn table() -> &'static OnceLock<Vec<f32>>;
}

macro_rules! formats {
    ($($name:ident $bits:literal $exponent:literal $finite:literal;)*) => {$(
        #[derive(Clone, Copy)]
        struct $name;

        impl Format for $name {
            const BITS: u32 = $bits;
            const EXPONENT_BITS: u32 = $exponent;
            const FINITE: bool = $finite;

            fn table() -> &'static OnceLock<Vec<f32>> {
                static TABLE: OnceLock<Vec<f32>> = OnceLock::new();
                &TABLE
            }
        }
    )*};
}

formats! {
    F16 16 5 false;
    Bf16 16 8 false;
    E4m3 8 4 true;
    E5m2 8 5 false;
}

#[derive(Clone, Copy)]
struct Small<F: Format> {
    bits: u32,
    format: std::marker::PhantomData<F>,
}

impl<F: Format> Small<F> {
    const FRACTION_BITS: u32 = F::BITS - 1 - F::EXPONENT_BITS;
    const BIAS: i32 = (1 << (F::EXPONENT_BITS - 1)) - 1;
    const LARGEST_EXPONENT: u32 = (1 << F::EXPONENT_BITS) - 1;
    const ONES: u32 = (1 << (F::BITS - 1)) - 1;

    fn value(self) -> f32 {
        let table = F::table().get_or_init(|| (0..1_u32 << F::BITS).map(Self::decode).collect());
        table[self.bits as usize]
    }

    /// By the definition of the format.
    fn decode(bits: u32) -> f32 {
        let fraction_ones = (1 << Self::FRACTION_BITS) - 1;
        let exponent = (bits >> Self::FRACTION_BITS) & Self::LARGEST_EXPONENT;
        let fraction = bits & fraction_ones;
        let sign = if bits >> (F::BITS - 1) == 1 { -1.0 } else { 1.0 };
        let unit = f64::from(1 << Self::FRACTION_BITS);
        let is_special = exponent == Self::LARGEST_EXPONENT;
        let size = if is_special && F::FINITE && fraction == fraction_ones {
            f64::NAN
        } else if is_special && !F::FINITE {
            if fraction == 0 { f64::INFINITY } else { f64::NAN }
        } else if exponent == 0 {
            f64::from(fraction) / unit * 2_f64.powi(1 - Self::BIAS)
        } else {
            (1.0 + f64::from(fraction) / unit) * 2_f64.powi(exponent as i32 - Self::BIAS)
        };
        (sign * size) as f32
    }

    /// To the nearest, ties to even; beyond the largest to infinity, or to the largest if there is none.
    fn encode(value: f32) -> Self {
        let sign = if value.is_sign_negative() { 1 << (F::BITS - 1) } else { 0 };
        let infinity = Self::LARGEST_EXPONENT << Self::FRACTION_BITS;
        let made = |size: u32| Self { bits: sign | size, format: std::marker::PhantomData };
        if value.is_nan() {
            return made(if F::FINITE {
                Self::ONES
            } else {
                infinity | (1 << (Self::FRACTION_BITS - 1))
            });
        }
        let largest = if F::FINITE { Self::ONES - 1 } else { infinity };
        let bits = value.to_bits() & 0x7fff_ffff;
        if bits == 0x7f80_0000 {
            return made(largest);
        }
        // As a whole number of this format's steps: 2^(exponent - fraction bits).
        let exponent = ((bits >> 23) as i32 - 127).max(1 - Self::BIAS);
        let mantissa = match bits >> 23 {
            0 => u64::from(bits) << 1,
            _ => u64::from((bits & 0x7f_ffff) | 0x80_0000),
        };
        let own = (bits >> 23).max(1) as i32 - 127;
        let own = if bits >> 23 == 0 { own - 1 } else { own };
        let drop = 23 - Self::FRACTION_BITS as i32 + (exponent - own);
        if drop > 40 {
            return made(0);
        }
        let (kept, lost) = (mantissa >> drop, mantissa & ((1 << drop) - 1));
        let half = 1_u64 << (drop - 1);
        let up = lost > half || (lost == half && kept & 1 == 1);
        let steps = kept as u32 + u32::from(up);
        // A carry runs into the exponent, as it should.
        let size = ((exponent + Self::BIAS - 1) as u32) << Self::FRACTION_BITS;
        made((size + steps).min(largest))
    }
}

impl<F: Format> Number for Small<F> {
    const BYTES: usize = F::BITS as usize / 8;

    fn load(bytes: &[u8]) -> Self {
        let bits = bytes.iter().rev().fold(0, |bits, byte| bits << 8 | u32::from(*byte));
        Self { bits, format: std::marker::PhantomData }
    }

    fn store(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.bits.to_le_bytes()[..Self::BYTES]);
    }

    fn from_number(number: f64) -> Self {
        Self::encode(number as f32)
    }

    fn combine(self, other: Self, how: Combine) -> Self {
        Self::encode(self.value().combine(other.value(), how))
    }

    fn divide(self, _by: u32) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one<F: Format>() {
        // What is decoded encodes to itself, and what lies between goes to the nearer.
        let mut last: Option<(u32, f32)> = None;
        for bits in 0..1_u32 << (F::BITS - 1) {
            let value = Small::<F>::decode(bits);
            if value.is_nan() {
                assert!(Small::<F>::decode(Small::<F>::encode(value).bits).is_nan());
                continue;
            }
            assert_eq!(Small::<F>::encode(value).bits, bits, "{value}");
            assert_eq!(Small::<F>::encode(-value).bits, bits | 1 << (F::BITS - 1));
            if let Some((below, smaller)) = last
                && value.is_finite()
            {
                let middle = f64::midpoint(f64::from(smaller), f64::from(value)) as f32;
                let even = if below & 1 == 0 { below } else { bits };
                assert_eq!(Small::<F>::encode(middle).bits, even, "{middle}");
                assert_eq!(Small::<F>::encode(middle.next_up()).bits, bits, "{middle}");
                if middle > 0.0 {
                    assert_eq!(Small::<F>::encode(middle.next_down()).bits, below, "{middle}");
                }
            }
            last = Some((bits, value));
        }
    }

    #[test]
    fn small_floats_round_to_the_nearest() {
        one::<F16>();
        one::<Bf16>();
        one::<E4m3>();
        one::<E5m2>();
        assert!((Small::<F16>::decode(0x7bff) - 65504.0).abs() < f32::EPSILON);
        assert_eq!(Small::<F16>::encode(65519.0).bits, 0x7bff);
        assert_eq!(Small::<F16>::encode(65520.0).bits, 0x7c00);
        assert!((Small::<E4m3>::decode(0x7e) - 448.0).abs() < f32::EPSILON);
        assert_eq!(Small::<E4m3>::encode(1e9).bits, 0x7e);
        assert_eq!(Small::<Bf16>::encode(1.0).bits, 0x3f80);
    }

    #[test]
    fn each_step_rounds_to_the_type() {
        // 2048 + 1 is 2048 in f16, again and again.
        let (big, small) = (0x6800_u16.to_le_bytes(), 0x3c00_u16.to_le_bytes());
        let mut out = [0; 2];
        let sum = Reduction::plain(Combine::Sum);
        reduce(Element::F16, sum, &[&big, &small, &small], &mut out);
        assert_eq!(out, big);
        reduce(Element::F16, sum, &[&small, &small, &big], &mut out);
        assert_eq!(u16::from_le_bytes(out), 0x6801);
    }

    #[test]
    fn integers_wrap_and_their_mean_is_cut() {
        let ints =
            |values: &[i32]| -> Vec<[u8; 4]> { values.iter().map(|v| v.to_le_bytes()).collect() };
        let result = |reduction, values: &[i32]| {
            let bytes = ints(values);
            let slices: Vec<&[u8]> = bytes.iter().map(<[u8; 4]>::as_slice).collect();
            let mut out = [0; 4];
            reduce(Element::I32, reduction, &slices, &mut out);
            i32::from_le_bytes(out)
        };
        assert_eq!(result(Reduction::plain(Combine::Sum), &[i32::MAX, 1]), i32::MIN);
        assert_eq!(result(Reduction::plain(Combine::Product), &[-3, 5]), -15);
        assert_eq!(result(Reduction::plain(Combine::Max), &[-3, 5]), 5);
        assert_eq!(result(Reduction::plain(Combine::Min), &[-3, 5]), -3);
        let mean = Reduction { divisor: 2, ..Reduction::plain(Combine::Sum) };
        assert_eq!(result(mean, &[-3, 0]), -1);
        let scaled = Reduction { factor: Factor::Bits(7), ..Reduction::plain(Combine::Sum) };
        assert_eq!(result(scaled, &[1, 2]), 21);
    }
}
