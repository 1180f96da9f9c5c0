//! Small whole numbers in all types of NCCL, encoded by the definition of each.

/// Number of the type, name, and bits of exponent and fraction; an integer has no exponent.
pub(crate) struct Type {
    pub(crate) number: i32,
    pub(crate) bytes: usize,
    exponent_bits: u32,
    fraction_bits: u32,
}

const fn of(number: i32, bytes: usize, exponent_bits: u32, fraction_bits: u32) -> Type {
    Type { number, bytes, exponent_bits, fraction_bits }
}

pub(crate) const TYPES: [Type; 12] = [
    of(0, 1, 0, 0),
    of(1, 1, 0, 0),
    of(2, 4, 0, 0),
    of(3, 4, 0, 0),
    of(4, 8, 0, 0),
    of(5, 8, 0, 0),
    of(6, 2, 5, 10),
    of(7, 4, 8, 23),
    of(8, 8, 11, 52),
    of(9, 2, 8, 7),
    of(10, 1, 4, 3),
    of(11, 1, 5, 2),
];
pub(crate) const F32: &Type = &TYPES[7];

impl Type {
    /// A number that the type holds exactly.
    pub(crate) fn encode(&self, value: u32) -> Vec<u8> {
        let bits = if self.exponent_bits == 0 || value == 0 {
            u64::from(value)
        } else {
            let exponent = value.ilog2();
            let bias = (1_u64 << (self.exponent_bits - 1)) - 1;
            let fraction = (u64::from(value) << self.fraction_bits >> exponent)
                & ((1 << self.fraction_bits) - 1);
            (u64::from(exponent) + bias) << self.fraction_bits | fraction
        };
        bits.to_le_bytes()[..self.bytes].to_vec()
    }

    pub(crate) fn all(&self, values: impl IntoIterator<Item = u32>) -> Vec<u8> {
        values.into_iter().flat_map(|value| self.encode(value)).collect()
    }
}
