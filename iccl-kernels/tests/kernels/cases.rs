//! Cases with answers that were worked out by hand: the mistakes that others have shipped.

use crate::common::{mean, mean_of_one, reduced, reduced_bits, reduced_one};
use half::{bf16, f16};
use iccl_kernels::{Finish, Reason, reduce, scale, supports};
use iccl_plugin_api::{DataType, RedOp};

const NONE: Finish = Finish::None;

#[test]
fn b003_the_mean_is_divided_once_at_every_count() {
    for count in (1..=64).chain([127, 128, 129, 2047, 2048, 2049, 4095, 4096, 4097]) {
        let ranks: Vec<Vec<f32>> = (1..=4_u8).map(|rank| vec![f32::from(rank); count]).collect();
        let ranks: Vec<&[f32]> = ranks.iter().map(Vec::as_slice).collect();
        assert_eq!(mean(&ranks), vec![2.5; count]);
        let ranks: Vec<Vec<bf16>> = (1..=4_u8).map(|rank| vec![bf16::from(rank); count]).collect();
        let ranks: Vec<&[bf16]> = ranks.iter().map(Vec::as_slice).collect();
        assert_eq!(mean(&ranks), vec![bf16::from_f32(2.5); count]);
    }
}

#[test]
fn b005_the_mean_of_integers_divides_a_widened_sum() {
    assert_eq!(mean(&[&[10_i32, 20], &[20, 40]]), [15, 30]);
    assert_eq!(mean_of_one(&[-3_i32, -4]), -3);
    assert_eq!(mean_of_one(&[3_i32, 4]), 3);
    assert_eq!(mean_of_one(&[1_i32; 25]), 1);
    assert_eq!(mean_of_one(&[1_i32; 49]), 1);
    assert_eq!(mean_of_one(&[1_u8; 49]), 1);
    assert_eq!(mean_of_one(&[1_i64; 49]), 1);
    assert_eq!(mean_of_one(&[(1_i64 << 53) + 1; 2]), (1 << 53) + 1);
    assert_eq!(mean_of_one(&[(1_u64 << 53) + 1; 2]), (1 << 53) + 1);
}

#[test]
fn the_mean_of_integers_does_not_wrap() {
    assert_eq!(mean_of_one(&[i8::MAX; 3]), i8::MAX);
    assert_eq!(mean_of_one(&[i8::MIN; 300]), i8::MIN);
    assert_eq!(mean_of_one(&[u8::MAX; 300]), u8::MAX);
    assert_eq!(mean_of_one(&[i16::MIN; 3]), i16::MIN);
    assert_eq!(mean_of_one(&[u16::MAX; 3]), u16::MAX);
    assert_eq!(mean_of_one(&[i32::MIN; 1024]), i32::MIN);
    assert_eq!(mean_of_one(&[u32::MAX; 1024]), u32::MAX);
    assert_eq!(mean_of_one(&[i64::MIN; 5]), i64::MIN);
    assert_eq!(mean_of_one(&[u64::MAX; 1024]), u64::MAX);
    assert_eq!(mean_of_one(&[i64::MAX, i64::MAX, i64::MIN]), (i64::MAX - 1) / 3);
}

#[test]
fn b006_the_mean_is_over_ranks_not_elements() {
    assert_eq!(mean(&[&[4.0_f32; 5], &[4.0; 5]]), [4.0; 5]);
    assert_eq!(mean(&[&[4_i64; 5], &[4; 5]]), [4; 5]);
}

fn placements<T: Copy>(values: [T; 4]) -> Vec<[T; 4]> {
    let mut all = Vec::new();
    for a in 0..4 {
        for b in (0..4).filter(|&b| b != a) {
            for c in (0..4).filter(|&c| c != a && c != b) {
                all.push([a, b, c, 6 - a - b - c].map(|place| values[place]));
            }
        }
    }
    assert_eq!(all.len(), 24);
    all
}

#[test]
fn b009_a_nan_on_any_rank_gives_nan_in_all_24_placements() {
    for nan in [f32::NAN, -f32::NAN, f32::from_bits(0x7F80_0001), f32::from_bits(0xFFFF_FFFF)] {
        for ranks in placements([1.0, nan, 3.0, 4.0]) {
            for op in [RedOp::Min, RedOp::Max, RedOp::Sum, RedOp::Prod] {
                let result = reduced_one(op, NONE, &ranks);
                assert_eq!(result.to_bits(), 0x7FC0_0000, "{op} of {ranks:?}");
            }
        }
    }
    for ranks in placements([1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY]) {
        for op in [RedOp::Min, RedOp::Max] {
            assert_eq!(reduced_one(op, NONE, &ranks).to_bits(), 0x7FF8_0000_0000_0000);
        }
    }
    for ranks in placements([f16::ONE, -f16::NAN, f16::INFINITY, f16::NEG_INFINITY]) {
        assert_eq!(reduced_one(RedOp::Max, NONE, &ranks).to_bits(), 0x7E00);
        assert_eq!(reduced_one(RedOp::Min, NONE, &ranks).to_bits(), 0x7E00);
    }
    for ranks in placements([bf16::ONE, -bf16::NAN, bf16::INFINITY, bf16::NEG_INFINITY]) {
        assert_eq!(reduced_one(RedOp::Max, NONE, &ranks).to_bits(), 0x7FC0);
        assert_eq!(reduced_one(RedOp::Min, NONE, &ranks).to_bits(), 0x7FC0);
    }
    assert!(reduced_one(RedOp::Min, NONE, &[f32::NAN; 4]).is_nan());
    assert!(reduced_one(RedOp::Max, NONE, &[f32::NAN; 4]).is_nan());
}

#[test]
fn b009_negative_zero_is_below_positive_zero_in_all_24_placements() {
    for ranks in placements([0.0_f32, -0.0, 0.0, -0.0]) {
        assert_eq!(reduced_one(RedOp::Min, NONE, &ranks).to_bits(), (-0.0_f32).to_bits());
        assert_eq!(reduced_one(RedOp::Max, NONE, &ranks).to_bits(), 0.0_f32.to_bits());
    }
    for ranks in placements([f32::NEG_INFINITY, -1.0e-45, 0.0, f32::INFINITY]) {
        assert_eq!(reduced_one(RedOp::Min, NONE, &ranks), f32::NEG_INFINITY);
        assert_eq!(reduced_one(RedOp::Max, NONE, &ranks), f32::INFINITY);
    }
}

#[test]
fn b011_narrow_floats_are_summed_in_f32_and_rounded_once() {
    let sum = |values: &[f32]| {
        let values: Vec<bf16> = values.iter().copied().map(bf16::from_f32).collect();
        reduced_one(RedOp::Sum, NONE, &values).to_f32()
    };
    assert_eq!(sum(&[256.0, 1.0, 1.0]), 258.0);
    // 257 lies between 256 and 258: the tie goes to the even 256.
    assert_eq!(sum(&[256.0, 1.0]), 256.0);
    // 259 lies between 258 and 260: the tie goes to the even 260.
    assert_eq!(sum(&[256.0, 1.0, 1.0, 1.0]), 260.0);

    let sum = |values: &[f32]| {
        let values: Vec<f16> = values.iter().copied().map(f16::from_f32).collect();
        reduced_one(RedOp::Sum, NONE, &values).to_f32()
    };
    // 2051 lies between 2050 and 2052: the tie goes to the even 2052.
    assert_eq!(sum(&[2048.0, 1.0, 1.0, 1.0]), 2052.0);
    assert_eq!(sum(&[2048.0, 1.0, 1.0]), 2050.0);
    assert_eq!(sum(&[2048.0, 1.0]), 2048.0);
    // Past the largest f16 in between, back within it at the end.
    assert_eq!(sum(&[65504.0, 65504.0, -65504.0]), 65504.0);
    assert_eq!(sum(&[65504.0, 16.0]), f32::INFINITY);
    assert_eq!(sum(&[65504.0, 15.0]), 65504.0);
}

#[test]
fn the_mean_of_finite_values_never_overflows() {
    for ranks in [2, 3, 5, 7, 9, 16, 17, 31, 1000, 1024] {
        assert_eq!(mean_of_one(&vec![f32::MAX; ranks]), f32::MAX, "{ranks}");
        assert_eq!(mean_of_one(&vec![f32::MIN; ranks]), f32::MIN, "{ranks}");
        // f64 has no wider type to sum in: the sum is rounded as any sum is, and stays in range.
        let few_places_below = f64::MAX * (1.0 - ranks as f64 * f64::EPSILON);
        let mean = mean_of_one(&vec![f64::MAX; ranks]);
        assert!((few_places_below..=f64::MAX).contains(&mean), "{ranks}: {mean:e}");
        assert_eq!(mean_of_one(&vec![f64::MIN; ranks]), -mean, "{ranks}");
        assert_eq!(mean_of_one(&vec![f16::MAX; ranks]), f16::MAX, "{ranks}");
        assert_eq!(mean_of_one(&vec![bf16::MAX; ranks]), bf16::MAX, "{ranks}");
        assert_eq!(mean_of_one(&vec![bf16::MIN; ranks]), bf16::MIN, "{ranks}");
    }
    for ranks in [2, 4, 1024] {
        assert_eq!(mean_of_one(&vec![f64::MAX; ranks]), f64::MAX, "{ranks}");
    }
    // The sum overflows on the way and would have come back.
    let there_and_back = [f32::MAX, f32::MAX, f32::MIN, f32::MIN];
    assert_eq!(mean_of_one(&there_and_back), 0.0);
    assert_eq!(mean_of_one(&[f64::MAX, f64::MAX, f64::MIN, f64::MIN]), 0.0);
    assert_eq!(mean_of_one(&[f64::MAX, f64::MAX, f64::MIN]), f64::MAX / 3.0);
}

#[test]
fn only_the_overflowed_element_of_a_block_is_summed_again() {
    let mut first = vec![1.0_f32; 5000];
    first[17] = f32::MAX;
    first[4999] = f32::INFINITY;
    let mut second = vec![2.0_f32; 5000];
    second[17] = f32::MAX;
    let mut expected = vec![1.5_f32; 5000];
    expected[17] = f32::MAX;
    expected[4999] = f32::INFINITY;
    assert_eq!(mean(&[&first, &second]), expected);
}

#[test]
fn infinities_and_nans_keep_their_meaning_in_a_mean() {
    assert_eq!(mean_of_one(&[f32::INFINITY, 1.0]), f32::INFINITY);
    assert_eq!(mean_of_one(&[f32::MAX, f32::MAX, f32::NEG_INFINITY]).to_bits(), 0x7FC0_0000);
    assert_eq!(mean_of_one(&[f64::INFINITY, f64::NEG_INFINITY]).to_bits(), 0x7FF8 << 48);
    assert_eq!(mean_of_one(&[1.0, -f32::NAN]).to_bits(), 0x7FC0_0000);
}

#[test]
fn integers_wrap() {
    assert_eq!(reduced_one(RedOp::Sum, NONE, &[i8::MAX, 1]), i8::MIN);
    assert_eq!(reduced_one(RedOp::Sum, NONE, &[u8::MAX, 2]), 1);
    assert_eq!(reduced_one(RedOp::Sum, NONE, &[i16::MIN, -1]), i16::MAX);
    assert_eq!(reduced_one(RedOp::Sum, NONE, &[i32::MAX, 1]), i32::MIN);
    assert_eq!(reduced_one(RedOp::Sum, NONE, &[u64::MAX, 3]), 2);
    assert_eq!(reduced_one(RedOp::Prod, NONE, &[i8::MIN, -1]), i8::MIN);
    assert_eq!(reduced_one(RedOp::Prod, NONE, &[u16::MAX, u16::MAX]), 1);
    assert_eq!(reduced_one(RedOp::Prod, NONE, &[i32::MAX, 2]), -2);
    assert_eq!(reduced_one(RedOp::Prod, NONE, &[u64::MAX, u64::MAX]), 1);
    assert_eq!(reduced_one(RedOp::Prod, NONE, &[i64::MAX, i64::MAX, 3]), 3);
}

#[test]
fn minimum_and_maximum_heed_the_sign() {
    assert_eq!(reduced_one(RedOp::Max, NONE, &[-1_i8, 1, 0]), 1);
    assert_eq!(reduced_one(RedOp::Min, NONE, &[u8::MAX, 1]), 1);
    assert_eq!(reduced_one(RedOp::Min, NONE, &[i64::MIN, i64::MAX]), i64::MIN);
    assert_eq!(reduced_one(RedOp::Max, NONE, &[u64::MAX, 1]), u64::MAX);
    assert_eq!(reduced_one(RedOp::Max, NONE, &[-2.0_f64, -1.0, -3.0]), -1.0);
}

#[test]
fn one_source_is_copied_bit_by_bit() {
    let signalling = f32::from_bits(0xFF80_0001);
    assert_eq!(reduced_one(RedOp::Sum, NONE, &[signalling]).to_bits(), 0xFF80_0001);
    assert_eq!(mean_of_one(&[signalling]).to_bits(), 0xFF80_0001);
    assert_eq!(reduced(RedOp::Max, NONE, &[&[-0.0_f64]])[0].to_bits(), 1 << 63);
    // A sum over one source of several ranks is divided all the same.
    assert_eq!(reduced_one(RedOp::Sum, Finish::DivideByRanks(4), &[10.0_f32]), 2.5);
    assert_eq!(reduced_one(RedOp::Sum, Finish::DivideByRanks(4), &[-7_i16]), -1);
}

#[test]
fn b019_no_elements_and_null_pointers_are_fine() {
    let null = core::ptr::null();
    let result =
        // SAFETY: With no elements the pointers may be anything.
        unsafe { reduce(DataType::F32, RedOp::Sum, NONE, core::ptr::null_mut(), &[null, null], 0) };
    assert_eq!(result, Ok(()));
}

#[test]
fn what_has_no_meaning_is_refused_and_nothing_is_written() {
    let refused = |dtype, op, finish| {
        let source = [1_u8; 16];
        let mut destination = [7_u8; 16];
        // SAFETY: Two elements of at most 8 bytes.
        let result = unsafe {
            reduce(dtype, op, finish, destination.as_mut_ptr(), &[source.as_ptr(); 2], 2)
        };
        assert_eq!(destination, [7; 16]);
        result.expect_err("a refusal")
    };
    let message = refused(DataType::F8E4M3, RedOp::BitOr, NONE).to_string();
    assert_eq!(
        message,
        "cannot reduce f8e4m3 with bor on the host: bitwise operations are for integers"
    );
    let reason = |op, finish| refused(DataType::F32, op, finish).reason;
    assert_eq!(reason(RedOp::Avg, NONE), Reason::AverageAsOperation);
    assert_eq!(reason(RedOp::PreMulSum, NONE), Reason::ScalingAsOperation);
    for op in [RedOp::BitAnd, RedOp::BitOr, RedOp::BitXor] {
        assert_eq!(reason(op, NONE), Reason::BitsOfFloats);
        assert_eq!(reason(op, Finish::DivideByRanks(2)), Reason::DivisionOfOtherThanSum);
    }
    assert_eq!(reason(RedOp::Max, Finish::DivideByRanks(2)), Reason::DivisionOfOtherThanSum);
    assert_eq!(reason(RedOp::Sum, Finish::DivideByRanks(0)), Reason::DivisionByZeroRanks);
}

#[test]
fn every_type_supports_every_operation_but_bits_of_floats() {
    for &dtype in DataType::ALL {
        let is_float = !dtype.is_integer();
        for &op in RedOp::ALL {
            let of_bits = [RedOp::BitAnd, RedOp::BitOr, RedOp::BitXor].contains(&op);
            assert_eq!(supports(dtype, op), !(is_float && of_bits), "{dtype} {op}");
            let (as_asked, finish) = match op {
                RedOp::Avg => (RedOp::Sum, Finish::DivideByRanks(2)),
                RedOp::PreMulSum => (RedOp::Sum, NONE),
                other => (other, NONE),
            };
            let source = [1_u8; 16];
            let mut destination = [7_u8; 16];
            let (to, from) = (destination.as_mut_ptr(), source.as_ptr());
            // SAFETY: Two elements of at most 8 bytes.
            let done = unsafe { reduce(dtype, as_asked, finish, to, &[from; 2], 2) }.is_ok();
            assert_eq!(done, supports(dtype, op), "{dtype} {op}");
        }
    }
}

/// E4M3 as a bit pattern: 0x38 is 1, 0x40 is 2, 0x7E is 448, 0x7F is NaN, 0x01 is 2^-9.
#[test]
fn sums_of_e4m3_are_rounded_once_and_become_nan_beyond_464() {
    let sum = |codes: &[u8]| reduced_bits(DataType::F8E4M3, RedOp::Sum, NONE, codes);
    // 16 + 1: the tie between 16 and 18 goes to the even 16; three of them are 18, exactly.
    assert_eq!(sum(&[0x58, 0x38]), 0x58);
    assert_eq!(sum(&[0x58, 0x38, 0x38]), 0x59);
    // 448 + 16 = 464 is the last that rounds to 448; with 2^-9 more it is beyond.
    assert_eq!(sum(&[0x7E, 0x58]), 0x7E);
    assert_eq!(sum(&[0x7E, 0x58, 0x01]), 0x7F);
    assert_eq!(sum(&[0xFE, 0xD8, 0x81]), 0x7F);
    // Beyond in between, back within at the end.
    assert_eq!(sum(&[0x7E, 0x7E, 0xFE]), 0x7E);
    let mean = |codes: &[u8]| {
        let finish = Finish::DivideByRanks(codes.len() as u32);
        reduced_bits(DataType::F8E4M3, RedOp::Sum, finish, codes)
    };
    assert_eq!(mean(&[0x7E; 1000]), 0x7E);
    assert_eq!(mean(&[0x38, 0x40]), 0x3C);
}

/// E5M2 as a bit pattern: 0x3C is 1, 0x7B is 57344, 0x7C is infinity, 0x7E is NaN.
#[test]
fn sums_of_e5m2_become_infinite_from_61440_on() {
    let sum = |codes: &[u8]| reduced_bits(DataType::F8E5M2, RedOp::Sum, NONE, codes);
    assert_eq!(sum(&[0x7B, 0x6C]), 0x7C); // 57344 + 4096
    assert_eq!(sum(&[0xFB, 0xEC]), 0xFC);
    assert_eq!(sum(&[0x7B, 0x6B]), 0x7B); // 57344 + 3584
    assert_eq!(sum(&[0x7C, 0xFC]), 0x7E);
    assert_eq!(sum(&[0x7C, 0x3C]), 0x7C);
    // 8 + 1 = 9 is the tie between 8 and 10; two ones are 10, exactly.
    assert_eq!(sum(&[0x48, 0x3C]), 0x48);
    assert_eq!(sum(&[0x48, 0x3C, 0x3C]), 0x49);
    let mean = reduced_bits(DataType::F8E5M2, RedOp::Sum, Finish::DivideByRanks(3), &[0x7B; 3]);
    assert_eq!(mean, 0x7B);
}

#[test]
fn b009_8_bit_floats_with_nan_and_signed_zero_in_all_24_placements() {
    for (dtype, nans, nan) in [
        (DataType::F8E4M3, &[0x7F, 0xFF][..], 0x7F),
        (DataType::F8E5M2, &[0x7D, 0x7E, 0x7F, 0xFD, 0xFF][..], 0x7E),
    ] {
        for op in [RedOp::Min, RedOp::Max, RedOp::Sum, RedOp::Prod] {
            for &contributed in nans {
                for ranks in placements([0x38, contributed, 0xB8, 0x7B]) {
                    assert_eq!(reduced_bits(dtype, op, NONE, &ranks), nan, "{dtype} {op}");
                }
            }
        }
        for ranks in placements([0x00, 0x80, 0x00, 0x80]) {
            assert_eq!(reduced_bits(dtype, RedOp::Min, NONE, &ranks), 0x80);
            assert_eq!(reduced_bits(dtype, RedOp::Max, NONE, &ranks), 0x00);
        }
    }
    assert_eq!(reduced_bits(DataType::F8E5M2, RedOp::Max, NONE, &[0xFC, 0x7C, 0x7B]), 0x7C);
    assert_eq!(reduced_bits(DataType::F8E4M3, RedOp::Min, NONE, &[0xFE, 0x7E, 0x81]), 0xFE);
}

#[test]
fn bits_of_integers_are_combined() {
    assert_eq!(reduced_one(RedOp::BitAnd, NONE, &[0b1110_u8, 0b0111, 0b0110]), 0b0110);
    assert_eq!(reduced_one(RedOp::BitOr, NONE, &[1_i64 << 63, 1, 0]), i64::MIN | 1);
    assert_eq!(reduced_one(RedOp::BitXor, NONE, &[-1_i32, 1, 1]), -1);
    assert_eq!(reduced_one(RedOp::BitXor, NONE, &[u16::MAX, 0xFF]), 0xFF00);
}

#[test]
fn b034_products_with_a_scalar_are_rounded_to_the_type() {
    let scaled = |dtype: DataType, element: u64, scalar: u64| {
        let (element, scalar) = (element.to_le_bytes(), scalar.to_le_bytes());
        let mut product = [0_u8; 8];
        // SAFETY: One element of at most 8 bytes.
        unsafe { scale(dtype, product.as_mut_ptr(), element.as_ptr(), scalar.as_ptr(), 1) };
        u64::from_le_bytes(product)
    };
    let f16 = |value: f32| u64::from(f16::from_f32(value).to_bits());
    assert_eq!(scaled(DataType::F16, f16(2.0), f16(0.5)), f16(1.0));
    // 2049 has no f16: 683 · 3 is a tie, and goes to the even 2048.
    assert_eq!(scaled(DataType::F16, f16(683.0), f16(3.0)), f16(2048.0));
    assert_eq!(scaled(DataType::F16, f16(65504.0), f16(2.0)), f16(f32::INFINITY));
    assert_eq!(scaled(DataType::F8E4M3, 0x7E, 0x40), 0x7F);
    assert_eq!(scaled(DataType::I8, 100, 3), 300 - 256);
    assert_eq!(scaled(DataType::U64, u64::MAX, 2), u64::MAX - 1);
}
