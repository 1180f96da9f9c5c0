//! Every kernel of every level against the oracle, bit for bit, over random and nasty inputs.

use iccl_kernels::{Finish, Level, reduce_at, reference, scale_at};
use iccl_plugin_api::{DataType, RedOp};
use proptest::prelude::*;
use proptest::sample::select;

use crate::common::agreed;

/// Every reduction of a type: AVG as a sum that is divided.
fn reductions(dtype: DataType) -> Vec<(RedOp, bool)> {
    let mut all = vec![
        (RedOp::Sum, false),
        (RedOp::Prod, false),
        (RedOp::Min, false),
        (RedOp::Max, false),
        (RedOp::Sum, true),
    ];
    if dtype.is_integer() {
        all.extend([(RedOp::BitAnd, false), (RedOp::BitOr, false), (RedOp::BitXor, false)]);
    }
    all
}

/// Any type with any reduction of it.
fn any_reduction() -> impl Strategy<Value = (DataType, (RedOp, bool))> {
    let all = DataType::ALL
        .iter()
        .flat_map(|&dtype| reductions(dtype).into_iter().map(move |one| (dtype, one)));
    select(all.collect::<Vec<_>>())
}

fn finish(divided: bool, ranks: usize) -> Finish {
    if divided { Finish::DivideByRanks(ranks as u32) } else { Finish::None }
}

/// Random bits as they are, or one of the values where floats and integers are special. Floats of
/// moderate size are among them, so that sums neither vanish nor overflow every time.
fn element(dtype: DataType, random: u64) -> u64 {
    let pick = random >> 56;
    let sign = random >> 55 & 1;
    let (exponent_bits, mantissa_bits) = match dtype {
        DataType::F16 => (5, 10),
        DataType::Bf16 => (8, 7),
        DataType::F32 => (8, 23),
        DataType::F64 => (11, 52),
        DataType::F8E4M3 => (4, 3),
        DataType::F8E5M2 => (5, 2),
        _ => {
            let bits = 8 * dtype.size_bytes() as u32;
            return match pick {
                0..16 => 0,
                16..32 => u64::MAX,
                32..48 => 1 << (bits - 1),
                48..64 => (1 << (bits - 1)) - 1,
                _ => random,
            };
        }
    };
    let infinity: u64 = ((1 << exponent_bits) - 1) << mantissa_bits;
    let mantissa = random & ((1 << mantissa_bits) - 1);
    let exponent = |biased: u64| (biased << mantissa_bits) | mantissa;
    let bias = (1_u64 << (exponent_bits - 1)) - 1;
    let magnitude = match pick {
        0..8 => 0,
        8..16 => infinity - 1,
        16..20 => infinity,
        20..24 => infinity + 1 + mantissa / 2,
        24..40 => mantissa,
        40..56 => exponent((1 << exponent_bits) - 2),
        56..64 => exponent(1),
        64..160 => exponent(bias - 2 + (random >> 52 & 3)),
        _ => return random,
    };
    magnitude | sign << (exponent_bits + mantissa_bits)
}

fn buffer(dtype: DataType, seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed;
    (0..count)
        .flat_map(|_| {
            // SplitMix64.
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut mixed = state;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            mixed ^= mixed >> 31;
            element(dtype, mixed).to_le_bytes().into_iter().take(dtype.size_bytes())
        })
        .collect()
}

/// Counts around the widths of vectors and of blocks.
fn counts() -> impl Strategy<Value = usize> {
    prop_oneof![
        8 => 0_usize..140,
        1 => select(vec![255, 256, 257, 511, 513]),
        1 => select(vec![2047, 2048, 2049, 4097]),
    ]
}

/// Reduces in buffers at the given byte offsets from alignment, in place of source `in_place` if
/// there is one, and checks that nothing around the destination was touched.
fn reduce_in_place_unaligned(
    level: Level,
    dtype: DataType,
    (op, finish): (RedOp, Finish),
    sources: &[Vec<u8>],
    offsets: &[usize],
    in_place: &[usize],
) -> Vec<u8> {
    const GUARD: u8 = 0xC3;
    let bytes = sources[0].len();
    let place = |offset: usize, content: &[u8]| {
        let mut buffer = vec![GUARD; offset + bytes + 64];
        buffer[offset..offset + bytes].copy_from_slice(content);
        buffer
    };
    let buffers: Vec<Vec<u8>> =
        sources.iter().zip(offsets).map(|(source, &offset)| place(offset, source)).collect();
    let mut pointers: Vec<*const u8> =
        buffers.iter().zip(offsets).map(|(buffer, &offset)| buffer[offset..].as_ptr()).collect();
    let offset = offsets[sources.len()];
    let start = in_place.first().map_or_else(|| vec![0; bytes], |&first| sources[first].clone());
    let mut destination = place(offset, &start);
    let target = destination[offset..].as_mut_ptr();
    for &index in in_place {
        pointers[index] = target;
    }
    let count = bytes / dtype.size_bytes();
    // SAFETY: All have `count` elements; the destination is a source or a buffer of its own.
    unsafe { reduce_at(level, dtype, op, finish, target, &pointers, count) }
        .expect("a supported reduction");
    for (index, (buffer, &offset)) in buffers.iter().zip(offsets).enumerate() {
        assert!(buffer[offset..offset + bytes] == sources[index], "source {index} was written");
    }
    assert!(destination[..offset].iter().all(|&byte| byte == GUARD), "written before the start");
    assert!(
        destination[offset + bytes..].iter().all(|&byte| byte == GUARD),
        "written after the end"
    );
    destination[offset..offset + bytes].to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn every_level_gives_the_bits_of_the_oracle(
        (dtype, (op, divided)) in any_reduction(),
        count in counts(),
        seeds in prop::collection::vec(any::<u64>(), 1..=9),
        extra_ranks in prop_oneof![3 => Just(0_usize), 1 => 1_usize..9],
    ) {
        let sources: Vec<Vec<u8>> =
            seeds.iter().map(|&seed| buffer(dtype, seed, count)).collect();
        agreed(dtype, op, finish(divided, sources.len() + extra_ranks), &sources);
    }

    #[test]
    fn alignment_and_working_in_place_change_nothing(
        (dtype, (op, divided)) in any_reduction(),
        count in counts(),
        seeds in prop::collection::vec(any::<u64>(), 1..=9),
        offsets in prop::collection::vec(0_usize..64, 10),
        in_place in any::<prop::sample::Index>(),
        how_many in 0_usize..3,
    ) {
        let mut sources: Vec<Vec<u8>> =
            seeds.iter().map(|&seed| buffer(dtype, seed, count)).collect();
        // None, one, or two of the sources are the destination.
        let first = in_place.index(sources.len());
        let same: Vec<usize> = [first, (first + 1) % sources.len()]
            .into_iter()
            .take(how_many.min(sources.len()))
            .collect();
        if let [first, second] = same[..] {
            sources[second] = sources[first].clone();
        }
        let finish = finish(divided, sources.len());
        let expected = agreed(dtype, op, finish, &sources);
        for &level in Level::available() {
            let found = reduce_in_place_unaligned(
                level, dtype, (op, finish), &sources, &offsets, &same,
            );
            prop_assert!(found == expected, "{} {dtype} {op} {finish:?}", level.name());
        }
    }

    #[test]
    fn scaling_gives_the_bits_of_the_oracle_at_every_level(
        dtype in select(DataType::ALL),
        count in counts(),
        (seed, scalar) in (any::<u64>(), any::<u64>()),
        offset in 0_usize..64,
        in_place in any::<bool>(),
    ) {
        let source = buffer(dtype, seed, count);
        let scalar = buffer(dtype, scalar, 1);
        let mut expected = vec![0_u8; source.len()];
        // SAFETY: Both have `count` elements, and the scalar is one.
        unsafe {
            reference::scale(
                dtype, expected.as_mut_ptr(), source.as_ptr(), scalar.as_ptr(), count,
            );
        }
        for &level in Level::available() {
            const GUARD: u8 = 0xC3;
            let mut found = vec![GUARD; offset + source.len() + 64];
            found[offset..offset + source.len()].copy_from_slice(&source);
            let target = found[offset..].as_mut_ptr();
            let from = if in_place { target.cast_const() } else { source.as_ptr() };
            // SAFETY: As above; the source is the destination or a buffer of its own.
            unsafe { scale_at(level, dtype, target, from, scalar.as_ptr(), count) };
            prop_assert!(
                found[offset..offset + source.len()] == expected, "{} {dtype}", level.name()
            );
            prop_assert!(found[..offset].iter().all(|&byte| byte == GUARD));
            prop_assert!(found[offset + source.len()..].iter().all(|&byte| byte == GUARD));
        }
    }

    #[test]
    fn minimum_and_maximum_do_not_depend_on_the_order_of_sources(
        dtype in select(DataType::ALL),
        op in select(vec![RedOp::Min, RedOp::Max]),
        sources in prop::collection::vec(any::<u64>(), 2..=6)
            .prop_map(|mut seeds| { seeds.dedup(); seeds }),
        turn in 1_usize..6,
    ) {
        let sources: Vec<Vec<u8>> =
            sources.iter().map(|&seed| buffer(dtype, seed, 67)).collect();
        let mut turned = sources.clone();
        turned.rotate_left(turn % sources.len());
        turned.swap(0, sources.len() - 1);
        prop_assume!(sources.len() > 1);
        prop_assert_eq!(
            agreed(dtype, op, Finish::None, &sources),
            agreed(dtype, op, Finish::None, &turned)
        );
    }
}

/// Proptest draws the combinations at random; this leaves none out.
#[test]
fn every_type_operation_and_number_of_sources_around_every_width() {
    for dtype in DataType::ALL.iter().copied() {
        for (op, divided) in reductions(dtype) {
            for number in [1, 2, 3, 4, 5, 6, 7, 8, 9, 17] {
                for count in [1, 15, 16, 17, 31, 33, 65, 130] {
                    let sources: Vec<Vec<u8>> = (0..number)
                        .map(|source| buffer(dtype, source as u64 * 977 + count as u64, count))
                        .collect();
                    agreed(dtype, op, finish(divided, number), &sources);
                }
            }
        }
    }
}

#[test]
fn a_thousand_sources() {
    for dtype in DataType::ALL.iter().copied() {
        for (op, divided) in reductions(dtype) {
            let sources: Vec<Vec<u8>> = (0..1025).map(|seed| buffer(dtype, seed, 5)).collect();
            agreed(dtype, op, finish(divided, 1025), &sources);
        }
    }
}

/// All pairs of 8-bit floats, and so every sum, product and mean of two; a third source takes the result
/// out of the range of pairs.
#[test]
fn every_pair_of_8_bit_floats() {
    let first: Vec<u8> = (0..=u16::MAX).map(|pair| pair as u8).collect();
    let second: Vec<u8> = (0..=u16::MAX).map(|pair| (pair >> 8) as u8).collect();
    for dtype in [DataType::F8E4M3, DataType::F8E5M2] {
        for (op, divided) in reductions(dtype) {
            agreed(dtype, op, finish(divided, 2), &[first.clone(), second.clone()]);
            for third in [0x38, 0x81, 0x7B, 0x7E] {
                let sources = [first.clone(), second.clone(), vec![third; first.len()]];
                agreed(dtype, op, finish(divided, 3), &sources);
            }
        }
    }
}

/// All 65,536 values of a 16-bit float, each with partners that bring out ties, signs and specials.
#[test]
fn every_value_of_a_16_bit_float_against_chosen_partners() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let partners: [u16; 7] = [0x8000, 0x8001, 0x3C00, 0xBF81, 0x7BFF, 0x7F7F, 0xFC01];
    for dtype in [DataType::F16, DataType::Bf16] {
        for (op, divided) in reductions(dtype) {
            for partner in partners {
                let partner = partner.to_le_bytes().repeat(1 << 16);
                let finish = finish(divided, 2);
                let sources = [all.as_ptr(), partner.as_ptr()];
                let mut expected = vec![0; all.len()];
                // SAFETY: All have 65,536 elements of two bytes.
                unsafe {
                    reference::reduce(dtype, op, finish, expected.as_mut_ptr(), &sources, 1 << 16)
                }
                .expect("a supported reduction");
                for &level in Level::available() {
                    let mut found = vec![0; all.len()];
                    // SAFETY: As above.
                    unsafe {
                        reduce_at(level, dtype, op, finish, found.as_mut_ptr(), &sources, 1 << 16)
                    }
                    .expect("a supported reduction");
                    assert!(found == expected, "{dtype} {op} {finish:?} at {}", level.name());
                }
            }
        }
    }
}
