//! A vector of known elements: written into buffers, and compared with them.
//!
//! Elements are computed for one period and repeated. Each repetition starts at another place of the
//! period, so that no two repetitions are alike for 16381² elements, and a piece that is missing,
//! moved or doubled shows.

use super::encode::{Bits, Format};

/// A prime, so that no power of two and no chunk is a multiple of it.
const PERIOD: usize = 16_381;

/// By how much each repetition starts further on.
const STEP: usize = 6_007;

/// The elements of a vector.
pub(super) struct Pattern {
    element_bytes: usize,
    /// One period twice, so that a repetition is in one piece wherever it starts.
    twice: Vec<u8>,
    period: usize,
    elements: usize,
}

impl Pattern {
    /// The vector of `elements` elements that `value` gives for each place of the period.
    pub(super) fn new(elements: usize, element_bytes: usize, value: impl Fn(u64) -> Bits) -> Self {
        let period = elements.clamp(1, PERIOD);
        let mut twice = Vec::with_capacity(2 * period * element_bytes);
        for place in 0..period as u64 {
            twice.extend_from_slice(&value(place).to_le_bytes()[..element_bytes]);
        }
        twice.extend_from_within(..);
        Self { element_bytes, twice, period, elements }
    }

    pub(super) fn element_bytes(&self) -> usize {
        self.element_bytes
    }

    /// `elements` elements from `first` on, in pieces: the offset of each from there in bytes, and its
    /// bytes.
    pub(super) fn pieces(
        &self,
        first: usize,
        elements: usize,
    ) -> impl Iterator<Item = (u64, &[u8])> {
        let end = first + elements;
        debug_assert!(end <= self.elements, "no more than there is");
        (first / self.period..end.div_ceil(self.period)).map(move |repetition| {
            let begins_at = repetition * self.period;
            let from = begins_at.max(first);
            let count = (begins_at + self.period).min(end) - from;
            let rotation = (repetition % self.period) * STEP % self.period;
            let start = (rotation + from - begins_at) * self.element_bytes;
            let bytes = &self.twice[start..start + count * self.element_bytes];
            (((from - first) * self.element_bytes) as u64, bytes)
        })
    }

    /// How many elements of `found` are not those of `expected`, a piece of this vector. Where `format`
    /// is given, one NaN is as good as another.
    pub(super) fn wrong(&self, expected: &[u8], found: &[u8], format: Option<Format>) -> u64 {
        if expected == found {
            return 0;
        }
        let bits = |element: &[u8]| {
            let mut bytes = [0; 8];
            bytes[..element.len()].copy_from_slice(element);
            Bits::from_le_bytes(bytes)
        };
        let elements = expected.chunks(self.element_bytes).zip(found.chunks(self.element_bytes));
        let is_wrong = |(expected, found): &(&[u8], &[u8])| {
            let both_nan =
                || format.is_some_and(|one| one.is_nan(bits(expected)) && one.is_nan(bits(found)));
            expected != found && !both_nan()
        };
        elements.filter(is_wrong).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iccl_plugin_api::DataType;

    fn vector(pattern: &Pattern) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (offset, piece) in pattern.pieces(0, pattern.elements) {
            assert_eq!(offset, bytes.len() as u64);
            bytes.extend_from_slice(piece);
        }
        bytes
    }

    fn wrong(pattern: &Pattern, found: &[u8]) -> u64 {
        pattern
            .pieces(0, pattern.elements)
            .map(|(offset, piece)| {
                let at = offset as usize;
                pattern.wrong(piece, &found[at..at + piece.len()], None)
            })
            .sum()
    }

    const ELEMENTS: usize = 100_000;

    fn pattern() -> Pattern {
        Pattern::new(ELEMENTS, 4, |place| (place * 0x9e37_79b9) ^ (place >> 3))
    }

    #[test]
    fn a_vector_is_as_long_as_it_says() {
        for elements in [0, 1, 7, PERIOD, PERIOD + 1, 3 * PERIOD - 1] {
            let pattern = Pattern::new(elements, 2, |place| place);
            assert_eq!(vector(&pattern).len(), elements * 2, "{elements}");
        }
    }

    #[test]
    fn a_slice_is_that_of_the_vector() {
        let pattern = pattern();
        let whole = vector(&pattern);
        let most = ELEMENTS - PERIOD;
        for (first, elements) in
            [(0, 0), (5, 0), (1, 3), (PERIOD - 1, 2), (PERIOD, PERIOD), (7, most), (ELEMENTS, 0)]
        {
            let mut bytes = Vec::new();
            for (offset, piece) in pattern.pieces(first, elements) {
                assert_eq!(offset, bytes.len() as u64);
                bytes.extend_from_slice(piece);
            }
            assert_eq!(bytes, whole[first * 4..(first + elements) * 4], "{first} {elements}");
        }
    }

    #[test]
    fn every_kind_of_damage_is_counted() {
        let pattern = pattern();
        let right = vector(&pattern);
        assert_eq!(wrong(&pattern, &right), 0);
        for element in [0, 1, PERIOD - 1, PERIOD, ELEMENTS - 1] {
            let mut one = right.clone();
            one[element * 4 + 3] ^= 0x80;
            assert_eq!(wrong(&pattern, &one), 1, "{element}");
        }
        // A chunk that never came, a chunk from elsewhere, also a whole number of periods away.
        let mut dropped = right.clone();
        dropped[4096..8192].fill(0xa5);
        assert!(wrong(&pattern, &dropped) >= 1000);
        for shift in [1, 64, 4096, PERIOD, 3 * PERIOD] {
            let mut moved = right.clone();
            moved.copy_within(shift * 4..shift * 4 + 4096, 0);
            assert!(wrong(&pattern, &moved) > 900, "{shift}");
        }
        let mut swapped = right.clone();
        swapped[..400_000 / 2].copy_from_slice(&right[400_000 / 2..]);
        assert!(wrong(&pattern, &swapped) > 49_000);
    }

    #[test]
    fn one_nan_is_as_good_as_another_only_where_something_was_computed() {
        let format = Format::of(DataType::F16);
        let pattern = Pattern::new(2, 2, |_| 0x7e00);
        let found = [0x01, 0xfe, 0x00, 0x7c];
        let (_, expected) = pattern.pieces(0, 2).next().expect("a piece");
        assert_eq!(pattern.wrong(expected, &found, format), 1, "infinity is no NaN");
        assert_eq!(pattern.wrong(expected, &found, None), 2);
    }
}
