//! Which ranks of a communicator a native library serves together, and what it can do there.

use std::sync::Arc;

use iccl_plugin_api::types::{Collective, DataType, RedOp};

use crate::config::{Accumulate, Config};
use crate::topology::{NativeAbilities, RankSet};

/// The islands of a communicator, the same on all its ranks. A rank that no native library serves
/// together with another is an island of its own, in no list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Islands {
    list: Vec<Island>,
    /// The island of each rank, as a place in `list`.
    of_rank: Vec<Option<u32>>,
    rules: NativeRules,
}

/// What the job's settings ask of native reductions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NativeRules {
    /// Native libraries may round sums of 8- and 16-bit floats as they like.
    pub library_rounds: bool,
    /// The same inputs must give the same bits on every run.
    pub deterministic: bool,
}

impl NativeRules {
    /// What the settings say.
    pub fn new(config: &Config) -> Self {
        Self {
            library_rounds: config.numerics.accumulate == Accumulate::Library,
            deterministic: config.engine.deterministic,
        }
    }
}

/// Two ranks or more that one native library serves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Island {
    /// Name and version of the library.
    pub library: String,
    /// Its ranks, ascending.
    pub ranks: Arc<[u32]>,
    /// What the library can do.
    pub abilities: NativeAbilities,
}

impl Islands {
    /// The islands of `ranks` ranks; those of a single rank are left out.
    pub fn new(ranks: u32, islands: impl IntoIterator<Item = Island>, rules: NativeRules) -> Self {
        let list: Vec<Island> =
            islands.into_iter().filter(|island| island.ranks.len() > 1).collect();
        let mut of_rank = vec![None; ranks as usize];
        for (number, island) in (0..).zip(&list) {
            for rank in island.ranks.iter() {
                of_rank[*rank as usize] = Some(number);
            }
        }
        Self { list, of_rank, rules }
    }

    /// The islands of two ranks or more.
    pub fn list(&self) -> &[Island] {
        &self.list
    }

    /// The island that a rank is on, if a native library serves it together with others.
    pub fn of(&self, rank: u32) -> Option<&Island> {
        let number = (*self.of_rank.get(rank as usize)?)?;
        self.list.get(number as usize)
    }

    /// What the job's settings ask of native reductions.
    pub(super) const fn rules(&self) -> NativeRules {
        self.rules
    }

    /// The one island of all ranks, or why there is none.
    pub(super) fn whole(&self) -> Result<&Island, String> {
        if let [island] = &self.list[..]
            && island.ranks.len() == self.of_rank.len()
        {
            return Ok(island);
        }
        let alone = |rank: &u32| self.of(*rank).is_none();
        let alone: RankSet = (0..self.of_rank.len() as u32).filter(alone).collect();
        Err(if alone.is_empty() {
            format!("the ranks are on {} islands", self.list.len())
        } else {
            format!("no native library serves {} together with the others", alone.phrase())
        })
    }

    /// Why an island's library must not reduce so, or `None` if it may.
    pub(super) fn refusal_to_reduce(
        &self,
        island: &Island,
        collective: Collective,
        dtype: DataType,
        op: RedOp,
    ) -> Option<String> {
        let Island { library, abilities, .. } = island;
        if !abilities.offers(collective, dtype, Some(op)) {
            return Some(format!("{library} does not offer {collective} {dtype} {op}"));
        }
        let rounds = !matches!(op, RedOp::Min | RedOp::Max) && dtype.is_narrow_float();
        if rounds && !self.rules.library_rounds && !abilities.accumulates_in_f32() {
            return Some(format!(
                "numerics.accumulate is \"f32\", and {library} does not declare that it sums {dtype} so"
            ));
        }
        if self.rules.deterministic && !abilities.is_deterministic() {
            return Some(format!("{library} does not declare the same bits on every run"));
        }
        None
    }

    /// As which type, and how many of it for each element, the library moves elements: as they are, or
    /// as bytes. Says why not, if it cannot.
    pub(super) fn moves_as(
        island: &Island,
        collective: Collective,
        dtype: DataType,
    ) -> Result<(DataType, u64), String> {
        let offers = |dtype| island.abilities.offers(collective, dtype, None);
        if offers(dtype) {
            Ok((dtype, 1))
        } else if offers(DataType::U8) {
            Ok((DataType::U8, dtype.size_bytes() as u64))
        } else {
            Err(format!("{} does not offer {collective} {dtype}", island.library))
        }
    }
}
