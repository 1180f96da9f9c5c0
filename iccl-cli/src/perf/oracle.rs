//! Inputs, and what has to come out: exact for any order of reduction, computed in integers.
//!
//! An element's input depends on its place, the rank and the round, so that swapped slices, dropped
//! pieces, results of the round before and a wrong root show. Inputs are made so that the exact result
//! is known however a right implementation goes about it:
//!
//! * integers: any bits, since they wrap; AVG divides the widened sum and truncates towards zero;
//! * sums of floats: integers times a power of two that all ranks share, small enough for every
//!   partial sum to be exact in what iccl accumulates in. For 8- and 16-bit floats that is f32, so
//!   their sums have more bits than the type, and the one rounding at the end is checked as well;
//! * pre-multiplied sums: the same, with a small odd multiple of 1/2 for each rank, so that products
//!   of narrow floats need their own rounding;
//! * means: the same, divided exactly and rounded once; among them numbers so large that their sum
//!   is none of the type any more, while their mean is;
//! * products: powers of two, and on one rank a full significand;
//! * minimum and maximum: any values, infinities, zeros of both signs, and NaN on one rank.

use iccl_plugin_api::{DataType, RedOp};

use super::encode::{Bits, Format, widen, wrap};

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// The reduction of all ranks' elements.
    Reduce(RedOp),
    /// Nothing: elements arrive as they are.
    Move,
}

/// Makes inputs and results.
#[derive(Clone, Copy, Debug)]
pub(super) struct Oracle {
    pub(super) dtype: DataType,
    pub(super) task: Task,
    pub(super) ranks: u32,
    /// Different in each round.
    pub(super) round: u64,
    /// Whether 8- and 16-bit floats are summed in f32, as iccl does; native libraries may not.
    pub(super) wide_sums: bool,
}

/// An input, exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Integer(i128),
    /// `significand × 2^exponent`.
    Finite {
        significand: i64,
        exponent: i32,
    },
    Zero {
        negative: bool,
    },
    Infinity {
        negative: bool,
    },
    Nan,
}

/// Bits that look random, by a bijective mixing function (splitmix64's).
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// ⌈log₂ n⌉.
fn log2_up(n: u32) -> i32 {
    n.next_power_of_two().trailing_zeros() as i32
}

/// What a rank multiplies its input by in a pre-multiplied sum of floats, in halves: an odd number.
fn halves(rank: u32) -> i64 {
    let random = mix(u64::from(rank) | 0xfac7 << 32);
    let odd = 2 * (random % 4) as i64 + 1;
    if random & 0x100 == 0 { odd } else { -odd }
}

/// How many bits [`halves`] has at most.
const HALVES_BITS: u32 = 3;

/// What a rank multiplies its input by in a pre-multiplied sum.
pub(super) fn scalar(dtype: DataType, rank: u32) -> Bits {
    match Format::of(dtype) {
        Some(format) => format.round(i128::from(halves(rank)), 1, -1),
        None => wrap(dtype, i128::from(mix(u64::from(rank) | 0xfac7 << 32))),
    }
}

impl Oracle {
    /// The input of `rank` at a place.
    pub(super) fn input(&self, rank: u32, place: u64) -> Bits {
        match self.task {
            Task::Move => wrap(self.dtype, i128::from(self.random(rank, place))),
            Task::Reduce(op) => self.bits(self.number(op, rank, place)),
        }
    }

    /// What the inputs of all ranks at a place are reduced to, if the task reduces.
    pub(super) fn reduction(&self, place: u64) -> Bits {
        let Task::Reduce(op) = self.task else { return 0 };
        let numbers = (0..self.ranks).map(|rank| self.contribution(op, rank, place));
        if self.ranks == 1 {
            return numbers.map(|number| self.bits(number)).next().unwrap_or_default();
        }
        match Format::of(self.dtype) {
            Some(format) => float_result(format, op, numbers, self.ranks),
            None => integer_result(self.dtype, op, numbers, self.ranks),
        }
    }

    /// The float format in which any NaN is as good as another, if the task computes.
    pub(super) fn computed_format(&self) -> Option<Format> {
        match self.task {
            Task::Reduce(_) => Format::of(self.dtype),
            Task::Move => None,
        }
    }

    /// Bits of a rank at a place.
    fn random(&self, rank: u32, place: u64) -> u64 {
        mix(self.shared(place) ^ mix(u64::from(rank) << 32 | 0x5eed))
    }

    /// Bits that all ranks have in common at a place.
    fn shared(&self, place: u64) -> u64 {
        mix(place ^ mix(self.round))
    }

    fn bits(&self, number: Number) -> Bits {
        let Some(format) = Format::of(self.dtype) else {
            return match number {
                Number::Integer(value) => wrap(self.dtype, value),
                _ => 0,
            };
        };
        match number {
            Number::Integer(value) => format.round(value, 1, 0),
            Number::Finite { significand, exponent } => {
                format.round(i128::from(significand), 1, exponent)
            }
            Number::Zero { negative } => format.zero(negative),
            Number::Infinity { negative } => format.infinity(negative),
            Number::Nan => format.nan(),
        }
    }

    /// What a rank's input counts for.
    fn contribution(&self, op: RedOp, rank: u32, place: u64) -> Number {
        let number = self.number(op, rank, place);
        match (op, number, Format::of(self.dtype)) {
            (RedOp::PreMulSum, Number::Integer(value), _) => {
                let scalar = widen(self.dtype, scalar(self.dtype, rank));
                Number::Integer(widen(self.dtype, wrap(self.dtype, value.wrapping_mul(scalar))))
            }
            (RedOp::PreMulSum, Number::Finite { significand, exponent }, Some(format)) => {
                // No product is so small that it has fewer bits than others.
                let product = i128::from(significand) * i128::from(halves(rank));
                let significand = format.to_precision(product) as i64;
                Number::Finite { significand, exponent: exponent - 1 }
            }
            _ => number,
        }
    }

    fn number(&self, op: RedOp, rank: u32, place: u64) -> Number {
        let random = self.random(rank, place);
        let Some(format) = Format::of(self.dtype) else {
            // An even factor would leave nothing but zeros of a product.
            let odd = u64::from(op == RedOp::Prod);
            return Number::Integer(widen(self.dtype, wrap(self.dtype, i128::from(random | odd))));
        };
        match op {
            RedOp::Sum | RedOp::Avg | RedOp::PreMulSum => self.addend(format, op, random, place),
            RedOp::Prod => self.factor(format, rank, random, place),
            RedOp::Min | RedOp::Max => self.any_value(format, rank, random, place),
            RedOp::BitAnd | RedOp::BitOr | RedOp::BitXor => Number::Nan,
        }
    }

    fn addend(&self, format: Format, op: RedOp, random: u64, place: u64) -> Number {
        let own = format.precision;
        let sums = if self.wide_sums { own.max(24) } else { own };
        let is_scaled = op == RedOp::PreMulSum;
        let factor_bits = if is_scaled { HALVES_BITS } else { 0 };
        let largest =
            ((1_i64 << own) - 1).min((1_i64 << (sums - factor_bits)) / i64::from(self.ranks));
        let significand = (random % (2 * largest as u64 + 1)) as i64 - largest;
        // A product of zero has the sign of the scalar, and what a sum of those has is not told here.
        let significand = if is_scaled && significand == 0 { 1 } else { significand };
        // All partial sums are below 2^top × 2^exponent, and so finite; no quotient is subnormal.
        let bits = 64 - largest.leading_zeros() as i32;
        let top = bits + factor_bits as i32 + log2_up(self.ranks);
        let highest = (format.max_exponent - top).min(3);
        let lowest = (log2_up(self.ranks) - 8).max(-8).min(highest);
        let shared = self.shared(place);
        let is_large = op == RedOp::Avg && self.wide_sums && shared.is_multiple_of(16);
        let exponent = if is_large {
            // Of the topmost exponent of E4M3 there are not all.
            format.max_exponent + i32::from(format.has_infinity) - bits
        } else {
            lowest + ((shared >> 8) % (highest - lowest + 1) as u64) as i32
        };
        Number::Finite { significand, exponent }
    }

    fn factor(&self, format: Format, rank: u32, random: u64, place: u64) -> Number {
        let sign = if random & 1 == 0 { 1 } else { -1 };
        // Few enough that the product stays in the range of every type.
        let exponent = if rank < 8 { (random >> 1) as i32 % 2 } else { 0 };
        let has_significand = self.shared(place) % u64::from(self.ranks) == u64::from(rank);
        if !has_significand {
            return Number::Finite { significand: sign, exponent };
        }
        let high = 1_i64 << (format.precision - 1);
        let low = (random >> 8) as i64 & (high - 1);
        let significand = sign * (high | low);
        Number::Finite { significand, exponent: exponent + 1 - format.precision as i32 }
    }

    fn any_value(&self, format: Format, rank: u32, random: u64, place: u64) -> Number {
        let shared = self.shared(place);
        let negative = random & 1 == 0;
        match shared % 64 {
            0 if (shared >> 8) % u64::from(self.ranks) == u64::from(rank) => Number::Nan,
            1 => Number::Zero { negative },
            2 if random & 2 == 0 && format.has_infinity => Number::Infinity { negative },
            _ => {
                let significand = (random >> 8) as i64 & ((1 << format.precision) - 1);
                let significand = if negative { -significand - 1 } else { significand + 1 };
                let exponent = (random >> 2 & 3) as i32 + 1 - format.precision as i32;
                // 2^precision is a power of two, so that even "+ 1" needs no more bits than there are.
                Number::Finite { significand, exponent }
            }
        }
    }
}

fn integer_result(
    dtype: DataType,
    op: RedOp,
    numbers: impl Iterator<Item = Number>,
    ranks: u32,
) -> Bits {
    let values = numbers.map(|number| match number {
        Number::Integer(value) => value,
        _ => 0,
    });
    let result = match op {
        RedOp::Sum | RedOp::PreMulSum => values.sum(),
        // Division of Rust's integers truncates towards zero.
        RedOp::Avg => values.sum::<i128>() / i128::from(ranks),
        RedOp::Prod => values.fold(1, i128::wrapping_mul),
        RedOp::Min => values.min().unwrap_or_default(),
        RedOp::Max => values.max().unwrap_or_default(),
        RedOp::BitAnd => values.fold(-1, |bits, value| bits & value),
        RedOp::BitOr => values.fold(0, |bits, value| bits | value),
        RedOp::BitXor => values.fold(0, |bits, value| bits ^ value),
    };
    wrap(dtype, result)
}

fn float_result(
    format: Format,
    op: RedOp,
    numbers: impl Iterator<Item = Number>,
    ranks: u32,
) -> Bits {
    match op {
        RedOp::Sum | RedOp::Avg | RedOp::PreMulSum => {
            // All exponents are the same.
            let (sum, exponent) = numbers.fold((0_i128, 0), |(sum, _), number| match number {
                Number::Finite { significand, exponent } => {
                    (sum + i128::from(significand), exponent)
                }
                _ => (sum, 0),
            });
            format.round(sum, if op == RedOp::Avg { ranks } else { 1 }, exponent)
        }
        RedOp::Prod => {
            let (product, exponent) =
                numbers.fold((1_i128, 0), |(product, sum), number| match number {
                    Number::Finite { significand, exponent } => {
                        (product * i128::from(significand), sum + exponent)
                    }
                    _ => (product, sum),
                });
            format.round(product, 1, exponent)
        }
        RedOp::Min | RedOp::Max => {
            let order = |number: &Number| order(format, *number);
            let all: Vec<Number> = numbers.collect();
            if all.contains(&Number::Nan) {
                return format.nan();
            }
            let found = if op == RedOp::Min {
                all.iter().min_by_key(|number| order(number))
            } else {
                all.iter().max_by_key(|number| order(number))
            };
            match found.copied() {
                Some(Number::Finite { significand, exponent }) => {
                    format.round(i128::from(significand), 1, exponent)
                }
                Some(Number::Zero { negative }) => format.zero(negative),
                Some(Number::Infinity { negative }) => format.infinity(negative),
                _ => format.nan(),
            }
        }
        // Refused before anything is computed.
        RedOp::BitAnd | RedOp::BitOr | RedOp::BitXor => format.nan(),
    }
}

/// A number that orders as the values do; −0 comes before +0.
fn order(format: Format, number: Number) -> (i128, bool) {
    match number {
        // `any_value` gives no smaller exponent than 1 - precision.
        Number::Finite { significand, exponent } => {
            let shift = exponent + format.precision as i32 - 1;
            (i128::from(significand) << shift.clamp(0, 8), false)
        }
        Number::Zero { negative } => (0, !negative),
        Number::Infinity { negative: true } => (i128::MIN, false),
        Number::Infinity { negative: false } => (i128::MAX, false),
        Number::Integer(value) => (value, false),
        Number::Nan => (0, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: u64 = 512;

    fn oracle(dtype: DataType, op: RedOp, ranks: u32) -> Oracle {
        Oracle { dtype, task: Task::Reduce(op), ranks, round: 7, wide_sums: true }
    }

    fn f32_of(bits: Bits) -> f32 {
        f32::from_bits(bits as u32)
    }

    /// The processor's own sum in any order is what the oracle says.
    #[test]
    fn sums_and_means_of_f32_and_f64_are_the_same_in_any_order() {
        for ranks in [1, 2, 3, 4, 7, 17] {
            for place in 0..PLACES {
                let sum = oracle(DataType::F32, RedOp::Sum, ranks);
                let inputs: Vec<f32> =
                    (0..ranks).map(|rank| f32_of(sum.input(rank, place))).collect();
                for order in [inputs.clone(), inputs.iter().rev().copied().collect()] {
                    let total = order.iter().fold(0.0, |total, value| total + value);
                    assert_eq!(
                        u64::from((total + 0.0_f32).to_bits()),
                        sum.reduction(place),
                        "{inputs:?}"
                    );
                }
                let mean = oracle(DataType::F32, RedOp::Avg, ranks);
                let wide: f64 =
                    (0..ranks).map(|rank| f64::from(f32_of(mean.input(rank, place)))).sum();
                let expected = (wide / f64::from(ranks)) as f32 + 0.0;
                assert_eq!(u64::from(expected.to_bits()), mean.reduction(place));
                assert!(expected.is_finite());
                let sum = oracle(DataType::F64, RedOp::Sum, ranks);
                let total: f64 =
                    (0..ranks).rev().map(|rank| f64::from_bits(sum.input(rank, place))).sum();
                assert_eq!((total + 0.0).to_bits(), sum.reduction(place));
            }
        }
    }

    #[test]
    fn products_minima_and_maxima_of_f32_are_the_processors() {
        for ranks in [2, 4, 9] {
            for place in 0..PLACES {
                let inputs = |op| {
                    let oracle = oracle(DataType::F32, op, ranks);
                    (0..ranks).map(move |rank| f32_of(oracle.input(rank, place)))
                };
                let product: f32 = inputs(RedOp::Prod).product();
                assert_eq!(
                    u64::from(product.to_bits()),
                    oracle(DataType::F32, RedOp::Prod, ranks).reduction(place)
                );
                let values: Vec<f32> = inputs(RedOp::Min).collect();
                let expected = f32_of(oracle(DataType::F32, RedOp::Min, ranks).reduction(place));
                if values.iter().any(|value| value.is_nan()) {
                    assert!(expected.is_nan(), "{values:?}");
                } else {
                    let smallest = values.iter().copied().min_by(f32::total_cmp);
                    assert_eq!(smallest.map(f32::to_bits), Some(expected.to_bits()), "{values:?}");
                }
                let values: Vec<f32> = inputs(RedOp::Max).collect();
                let expected = f32_of(oracle(DataType::F32, RedOp::Max, ranks).reduction(place));
                if values.iter().all(|value| !value.is_nan()) {
                    let largest = values.iter().copied().max_by(f32::total_cmp);
                    assert_eq!(largest.map(f32::to_bits), Some(expected.to_bits()), "{values:?}");
                }
            }
        }
    }

    #[test]
    fn integers_wrap_and_their_mean_truncates_towards_zero() {
        let sum = oracle(DataType::I8, RedOp::Sum, 4);
        let mean = oracle(DataType::I8, RedOp::Avg, 4);
        let mut saw_negative_fraction = false;
        for place in 0..PLACES {
            let bytes: Vec<i8> = (0..4).map(|rank| sum.input(rank, place) as i8).collect();
            let wrapped = bytes.iter().fold(0_i8, |total, value| total.wrapping_add(*value));
            assert_eq!(sum.reduction(place) as i8, wrapped);
            let total: i32 = bytes.iter().map(|value| i32::from(*value)).sum();
            assert_eq!(i32::from(mean.reduction(place) as i8), total / 4);
            saw_negative_fraction |= total < 0 && total % 4 != 0;
        }
        assert!(saw_negative_fraction, "truncation was not put to the test");
    }

    /// The processor's own products and sums, in any order.
    #[test]
    fn pre_multiplied_sums_are_the_processors() {
        for ranks in [1, 2, 3, 4, 7] {
            let of_ranks = |dtype, place: u64| {
                let sum = oracle(dtype, RedOp::PreMulSum, ranks);
                let inputs = move |rank| (sum.input(rank, place), scalar(dtype, rank));
                ((0..ranks).rev().map(inputs).collect::<Vec<_>>(), sum.reduction(place))
            };
            for place in 0..PLACES {
                let (inputs, expected) = of_ranks(DataType::F32, place);
                let products = inputs.iter().map(|(input, by)| f32_of(*input) * f32_of(*by));
                let sum = products.reduce(|sum, product| sum + product).expect("a rank");
                assert_eq!(u64::from(sum.to_bits()), expected, "{inputs:?}");
                let (inputs, expected) = of_ranks(DataType::F16, place);
                let f16 = |bits: Bits| half::f16::from_bits(bits as u16).to_f32();
                let rounded = |value: f32| half::f16::from_f32(value);
                let products =
                    inputs.iter().map(|(input, by)| rounded(f16(*input) * f16(*by)).to_f32());
                let sum = products.reduce(|sum, product| sum + product).expect("a rank");
                assert_eq!(u64::from(rounded(sum).to_bits()), expected, "{inputs:?}");
                let (inputs, expected) = of_ranks(DataType::I16, place);
                let products =
                    inputs.iter().map(|(input, by)| (*input as i16).wrapping_mul(*by as i16));
                let sum = products.reduce(i16::wrapping_add).expect("a rank");
                assert_eq!(sum as u16, expected as u16, "{inputs:?}");
            }
        }
    }

    #[test]
    fn products_of_narrow_floats_need_a_rounding() {
        for dtype in [DataType::F16, DataType::Bf16, DataType::F8E4M3, DataType::F8E5M2] {
            let sum = oracle(dtype, RedOp::PreMulSum, 4);
            let is_rounded = |place: &u64| {
                let input = sum.number(RedOp::PreMulSum, 1, *place);
                let product = sum.contribution(RedOp::PreMulSum, 1, *place);
                let (Number::Finite { significand, .. }, Number::Finite { significand: other, .. }) =
                    (input, product)
                else {
                    return false;
                };
                significand * halves(1) != other
            };
            assert!(halves(1).abs() > 1, "rank 1 has a scalar that makes products longer");
            let rounded = (0..PLACES).filter(is_rounded).count();
            assert!(rounded > 50, "{dtype}: {rounded}");
        }
    }

    #[test]
    fn bits_of_integers_are_the_processors() {
        for (op, fold) in [
            (RedOp::BitAnd, (|a, b| a & b) as fn(i32, i32) -> i32),
            (RedOp::BitOr, |a, b| a | b),
            (RedOp::BitXor, |a, b| a ^ b),
        ] {
            let oracle = oracle(DataType::I32, op, 3);
            for place in 0..PLACES {
                let inputs = (0..3).map(|rank| oracle.input(rank, place) as i32);
                let expected = inputs.reduce(fold).expect("a rank");
                assert_eq!(oracle.reduction(place), u64::from(expected as u32));
            }
        }
    }

    #[test]
    fn the_round_at_the_end_and_overflow_are_put_to_the_test() {
        // 16-bit sums that need a rounding, means whose sum is not finite in the type.
        let narrow = [DataType::F16, DataType::Bf16, DataType::F8E4M3, DataType::F8E5M2];
        for dtype in narrow {
            let format = Format::of(dtype).expect("a float");
            let sum = oracle(dtype, RedOp::Sum, 4);
            let exact = |place| {
                let numbers = (0..4).map(|rank| sum.number(RedOp::Sum, rank, place));
                let total: i64 = numbers
                    .map(|number| match number {
                        Number::Finite { significand, .. } => significand,
                        _ => 0,
                    })
                    .sum();
                total.unsigned_abs()
            };
            let rounded = (0..PLACES)
                .filter(|place| {
                    let total = exact(*place);
                    total != 0
                        && 64 - total.leading_zeros() - total.trailing_zeros() > format.precision
                })
                .count();
            assert!(rounded > 50, "{dtype}: {rounded}");
        }
        for dtype in narrow.into_iter().chain([DataType::F32, DataType::F64]) {
            let format = Format::of(dtype).expect("a float");
            let mean = oracle(dtype, RedOp::Avg, 4);
            let mut overflowing = 0;
            for place in 0..PLACES {
                assert!(!format.is_nan(mean.reduction(place)), "{dtype} {place}");
                assert_ne!(mean.reduction(place) & !format.zero(true), format.infinity(false));
                let sum = (0..4).fold((0_i128, 0), |(sum, _), rank| {
                    match mean.number(RedOp::Avg, rank, place) {
                        Number::Finite { significand, exponent } => {
                            (sum + i128::from(significand), exponent)
                        }
                        _ => (sum, 0),
                    }
                });
                let rounded = format.round(sum.0, 1, sum.1) & !format.zero(true);
                overflowing += u32::from(rounded == format.infinity(false));
            }
            assert!(overflowing > 0, "{dtype}: no sum overflowed");
        }
    }

    #[test]
    fn inputs_differ_by_rank_place_and_round() {
        for dtype in DataType::ALL {
            let here =
                Oracle { dtype: *dtype, task: Task::Move, ranks: 4, round: 1, wide_sums: true };
            let later = Oracle { round: 2, ..here };
            let same = |a: &dyn Fn(u64) -> Bits, b: &dyn Fn(u64) -> Bits| {
                (0..PLACES).filter(|place| a(*place) == b(*place)).count()
            };
            assert!(same(&|place| here.input(0, place), &|place| here.input(1, place)) < 16);
            assert!(same(&|place| here.input(0, place), &|place| here.input(0, place + 1)) < 16);
            assert!(same(&|place| here.input(0, place), &|place| later.input(0, place)) < 16);
        }
    }
}
