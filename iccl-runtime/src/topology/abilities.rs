//! What a native collective library can do, as ranks tell each other: compact, since a descriptor
//! has 256 bytes to live in.

use std::collections::BTreeMap;

use iccl_plugin_api::tables::{CollectiveSupport, collectives_flag};
use iccl_plugin_api::{Collective, DataType, RedOp};
use iccl_wire::{Reader, Writer};

use super::codec::{DecodeError, check_limit, read_number, write_number};

/// The most different combinations that a library may have.
pub const MAX_ABILITIES: usize = 64;

/// What a library can do: combinations of collectives, types and operations, and its habits.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NativeAbilities {
    /// Bits of [`collectives_flag`].
    flags: u32,
    /// Which types and operations; each collective in one of them at most.
    rows: Vec<Ability>,
}

/// Collectives that the library offers alike: a mask of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Ability {
    collectives: u32,
    dtypes: u32,
    /// 0 where the collectives do not reduce.
    ops: u32,
}

impl NativeAbilities {
    /// The abilities that a library lists. Several entries of a collective add up only where they
    /// can be told apart again: types are kept per operation.
    pub fn new(flags: u64, support: &[CollectiveSupport]) -> Self {
        let mut dtypes: BTreeMap<(u32, Option<RedOp>), u32> = BTreeMap::new();
        for entry in support {
            let Some(collective) = Collective::from_code(entry.collective) else { continue };
            if !collective.reduces() {
                *dtypes.entry((collective.code(), None)).or_default() |= entry.dtypes;
                continue;
            }
            for op in RedOp::ALL.iter().filter(|op| entry.ops & op.mask() != 0) {
                *dtypes.entry((collective.code(), Some(*op))).or_default() |= entry.dtypes;
            }
        }
        // Operations of a collective with the same types in one row, then collectives with the same
        // rows in one.
        let mut ops: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        for ((collective, op), dtypes) in dtypes {
            *ops.entry((collective, dtypes)).or_default() |= op.map_or(0, RedOp::mask);
        }
        let mut rows: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        for ((collective, dtypes), ops) in ops {
            *rows.entry((dtypes, ops)).or_default() |= 1 << collective;
        }
        let rows = rows
            .into_iter()
            .map(|((dtypes, ops), collectives)| Ability { collectives, dtypes, ops })
            .collect();
        Self { flags: flags as u32, rows }
    }

    /// Whether the library offers the collective for elements of this type, with this operation if it
    /// reduces.
    pub fn offers(&self, collective: Collective, dtype: DataType, op: Option<RedOp>) -> bool {
        self.rows.iter().any(|row| {
            row.collectives & collective.mask() != 0
                && row.dtypes & dtype.mask() != 0
                && op.is_none_or(|op| row.ops & op.mask() != 0)
        })
    }

    /// Whether it sums 8- and 16-bit floats in f32 and rounds once.
    pub fn accumulates_in_f32(&self) -> bool {
        self.has(collectives_flag::ACCUMULATES_IN_F32)
    }

    /// Whether the same inputs give the same bits on every run.
    pub fn is_deterministic(&self) -> bool {
        self.has(collectives_flag::DETERMINISTIC)
    }

    /// Whether what is sent and what is received may be one memory.
    pub fn works_in_place(&self) -> bool {
        self.has(collectives_flag::IN_PLACE)
    }

    fn has(&self, flag: u64) -> bool {
        u64::from(self.flags) & flag != 0
    }

    pub(super) fn encode(&self, out: &mut Writer) -> Result<(), DecodeError> {
        write_number(out, self.flags);
        check_limit("native abilities", self.rows.len(), MAX_ABILITIES)?;
        write_number(out, self.rows.len() as u32);
        for row in &self.rows {
            write_number(out, row.collectives);
            write_number(out, row.dtypes);
            write_number(out, row.ops);
        }
        Ok(())
    }

    pub(super) fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let flags = read_number(input, "native flags")?;
        let count = read_number(input, "native abilities")? as usize;
        check_limit("native abilities", count, MAX_ABILITIES)?;
        let mut rows = Vec::with_capacity(count);
        for _ in 0..count {
            rows.push(Ability {
                collectives: read_number(input, "native collectives")?,
                dtypes: read_number(input, "native types")?,
                ops: read_number(input, "native operations")?,
            });
        }
        Ok(Self { flags, rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_library_lists_is_what_is_offered_and_nothing_between() {
        use Collective::{AllGather, AllReduce, ReduceScatter};
        use DataType::{F32, I32};
        use RedOp::{Avg, Max, Sum};
        let support = [
            CollectiveSupport::new(AllReduce, &[F32], &[Sum, Avg]),
            CollectiveSupport::new(AllReduce, &[I32], &[Sum, Max]),
            CollectiveSupport::new(ReduceScatter, &[F32], &[Avg]),
            CollectiveSupport::new(AllGather, &[F32, I32], &[]),
        ];
        let abilities = NativeAbilities::new(collectives_flag::IN_PLACE, &support);
        for entry in support {
            let collective = Collective::from_code(entry.collective).unwrap();
            for dtype in DataType::ALL {
                for op in RedOp::ALL {
                    let listed = support.iter().any(|one| {
                        one.collective == entry.collective
                            && one.dtypes & dtype.mask() != 0
                            && (one.ops & op.mask() != 0 || !collective.reduces())
                    });
                    let op = collective.reduces().then_some(*op);
                    assert_eq!(abilities.offers(collective, *dtype, op), listed, "{collective}");
                }
            }
        }
        assert!(!abilities.offers(Collective::Gather, F32, None));
        assert!(abilities.works_in_place() && !abilities.is_deterministic());
        let mut out = Writer::new();
        abilities.encode(&mut out).unwrap();
        let bytes = out.finish();
        assert_eq!(NativeAbilities::decode(&mut Reader::new(&bytes)).unwrap(), abilities);
    }
}
