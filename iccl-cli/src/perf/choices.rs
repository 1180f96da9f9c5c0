//! What the command line asks for, as cases and sizes.

use std::str::FromStr;

use iccl_plugin_api::{DataType, RedOp};

use super::benchmark::{Case, Operation};
use crate::failure::{Failure, Result};

/// A size in bytes: `8`, `64K`, `1MiB`, `2G`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size(pub(super) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            _ => return Err("expected a size such as 8, 64K, 1M or 2G".to_owned()),
        };
        let number: u64 =
            digits.parse().map_err(|_| "expected a size such as 8, 64K, 1M or 2G".to_owned())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(|| "the size is too large".to_owned())
    }
}

/// From the smallest size to the largest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) smallest: u64,
    pub(super) largest: u64,
    pub(super) step: Step,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Times(u64),
    Plus(u64),
}

impl Sizes {
    /// The counts, ascending, none twice, where each one of the count takes `unit_bytes`: an element,
    /// or one in each block.
    pub(super) fn counts(&self, unit_bytes: u64) -> Vec<u64> {
        let mut counts: Vec<u64> = Vec::new();
        let mut size = self.smallest;
        loop {
            let count = size / unit_bytes;
            if counts.last() != Some(&count) {
                counts.push(count);
            }
            let next = match self.step {
                Step::Times(factor) => size.checked_mul(factor),
                Step::Plus(bytes) => size.checked_add(bytes),
            };
            match next.filter(|next| *next > size && *next <= self.largest) {
                Some(next) => size = next,
                None => return counts,
            }
        }
    }
}

/// One of a closed set, `all` of them, or a list.
pub(super) fn choose<T: Copy>(
    what: &str,
    asked: &[String],
    all: &[T],
    name: impl Fn(T) -> &'static str,
    otherwise: &[T],
) -> Result<Vec<T>> {
    if asked.is_empty() {
        return Ok(otherwise.to_vec());
    }
    let mut chosen = Vec::new();
    for word in asked {
        if word == "all" {
            chosen.extend_from_slice(all);
            continue;
        }
        let found = all.iter().copied().find(|one| name(*one) == also_called(word));
        chosen.push(found.ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|one| name(*one)).collect();
            Failure::usage(format!("there is no {what} {word}"))
                .with_hint(format!("one of {}, or all", names.join(", ")))
        })?);
    }
    Ok(chosen)
}

/// The names that nccl-tests has for types.
fn also_called(word: &str) -> &str {
    match word {
        "int8" => "i8",
        "uint8" => "u8",
        "int16" => "i16",
        "uint16" => "u16",
        "int32" | "int" => "i32",
        "uint32" => "u32",
        "int64" => "i64",
        "uint64" => "u64",
        "half" | "float16" => "f16",
        "bfloat16" => "bf16",
        "float" | "float32" => "f32",
        "double" | "float64" => "f64",
        "fp8_e4m3" | "float8_e4m3" => "f8e4m3",
        "fp8_e5m2" | "float8_e5m2" => "f8e5m2",
        other => other,
    }
}

/// Which rank is the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Root {
    Rank(u32),
    All,
}

impl FromStr for Root {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        text.parse().map(Self::Rank).map_err(|_| "expected a rank or all".to_owned())
    }
}

/// Every case, in the order of the tables. Who asks for all operations means those that a type has.
pub(super) fn cases(
    operations: &[Operation],
    dtypes: &[DataType],
    ops: &[RedOp],
    root: Root,
    ranks: u32,
) -> Vec<Case> {
    let all_ops = ops.len() == RedOp::ALL.len();
    let is_left_out = |dtype: DataType, op: Option<RedOp>| {
        all_ops && !dtype.is_integer() && op.is_some_and(RedOp::is_bitwise)
    };
    let mut cases = Vec::new();
    for operation in operations.iter().copied() {
        let dtypes = if operation.moves_elements() { dtypes } else { &[DataType::U8] };
        let ops: Vec<Option<RedOp>> =
            if operation.reduces() { ops.iter().copied().map(Some).collect() } else { vec![None] };
        let roots: Vec<Option<u32>> = match root {
            _ if !operation.has_root() => vec![None],
            Root::Rank(rank) => vec![Some(rank)],
            Root::All => (0..ranks).map(Some).collect(),
        };
        for dtype in dtypes.iter().copied() {
            for op in ops.iter().copied().filter(|op| !is_left_out(dtype, *op)) {
                cases.extend(roots.iter().map(|root| Case { operation, dtype, op, root: *root }));
            }
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        let size = |text: &str| text.parse::<Size>().map(|size| size.0);
        assert_eq!(size("8"), Ok(8));
        assert_eq!(size("64K"), Ok(65_536));
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert_eq!(size("2g"), Ok(2 << 30));
        for bad in ["", "x", "8X", "-8", "1.5M", "99999999999G"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn counts_ascend_and_none_comes_twice() {
        let sizes = |smallest, largest, step| Sizes { smallest, largest, step };
        assert_eq!(sizes(8, 64, Step::Times(2)).counts(4), [2, 4, 8, 16]);
        assert_eq!(sizes(1, 9, Step::Plus(1)).counts(4), [0, 1, 2]);
        assert_eq!(sizes(8, 8, Step::Times(2)).counts(8), [1]);
        assert_eq!(sizes(0, 100, Step::Times(2)).counts(1), [0]);
        assert_eq!(sizes(u64::MAX - 1, u64::MAX, Step::Times(2)).counts(1), [u64::MAX - 1]);
    }

    #[test]
    fn cases_cover_what_the_operation_has() {
        let dtypes = [DataType::F32, DataType::I8];
        let ops = [RedOp::Sum, RedOp::Avg];
        let count = |operation, root| cases(&[operation], &dtypes, &ops, root, 3).len();
        assert_eq!(count(Operation::AllReduce, Root::All), 4);
        assert_eq!(count(Operation::Broadcast, Root::All), 6);
        assert_eq!(count(Operation::Broadcast, Root::Rank(2)), 2);
        assert_eq!(count(Operation::Reduce, Root::All), 12);
        assert_eq!(count(Operation::ReduceScatter, Root::All), 4);
        assert_eq!(count(Operation::AllToAll, Root::All), 2);
        assert_eq!(count(Operation::Barrier, Root::All), 1);
        assert_eq!(count(Operation::Sendrecv, Root::All), 2);
        let all = |dtype| cases(&[Operation::AllReduce], &[dtype], RedOp::ALL, Root::All, 3).len();
        assert_eq!((all(DataType::I8), all(DataType::F8E4M3)), (9, 6));
        let asked = cases(&[Operation::AllReduce], &dtypes, &[RedOp::BitOr], Root::All, 3);
        assert_eq!(asked.len(), 2, "what is asked for by name is refused aloud");
    }

    #[test]
    fn names_of_nccl_tests_are_understood_and_others_refused() {
        let chosen = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            choose("type", &words, DataType::ALL, DataType::name, &[DataType::F32]).ok()
        };
        assert_eq!(chosen(&["float", "bfloat16"]), Some(vec![DataType::F32, DataType::Bf16]));
        assert_eq!(chosen(&[]), Some(vec![DataType::F32]));
        assert_eq!(chosen(&["all"]).map(|all| all.len()), Some(14));
        assert_eq!(chosen(&["f31"]), None);
    }
}
