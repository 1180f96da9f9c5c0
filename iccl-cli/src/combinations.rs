//! Every collective with every type and operation, grouped where the answer is the same.

use std::collections::BTreeMap;

use iccl_plugin_api::{Collective, DataType, RedOp};

/// Combinations with the same answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Combination<A> {
    pub(crate) answer: A,
    pub(crate) collectives: Vec<Collective>,
    pub(crate) dtypes: Vec<DataType>,
    /// Empty where the collectives do not reduce.
    pub(crate) ops: Vec<RedOp>,
}

/// Every combination that there is (bitwise operations are for integers) with its answer: operations of
/// a collective with the same types in one row, then collectives with the same rows in one.
pub(crate) fn grouped<A: Ord + Clone>(
    mut answer: impl FnMut(Collective, DataType, Option<RedOp>) -> A,
) -> Vec<Combination<A>> {
    // Answer, types, operations; then the collectives of which that is so.
    let mut rows: BTreeMap<(A, u32, u32), Vec<Collective>> = BTreeMap::new();
    for collective in Collective::ALL {
        let mut ops: BTreeMap<(A, u32), u32> = BTreeMap::new();
        let choices: Vec<Option<RedOp>> = if collective.reduces() {
            RedOp::ALL.iter().copied().map(Some).collect()
        } else {
            vec![None]
        };
        for op in choices {
            let mut dtypes: BTreeMap<A, u32> = BTreeMap::new();
            for dtype in DataType::ALL {
                if op.is_some_and(RedOp::is_bitwise) && !dtype.is_integer() {
                    continue;
                }
                *dtypes.entry(answer(*collective, *dtype, op)).or_default() |= dtype.mask();
            }
            for (answer, dtypes) in dtypes {
                *ops.entry((answer, dtypes)).or_default() |= op.map_or(0, RedOp::mask);
            }
        }
        for ((answer, dtypes), ops) in ops {
            rows.entry((answer, dtypes, ops)).or_default().push(*collective);
        }
    }
    rows.into_iter()
        .map(|((answer, dtypes, ops), collectives)| Combination {
            answer,
            collectives,
            dtypes: dtypes_in(dtypes).collect(),
            ops: ops_in(ops).collect(),
        })
        .collect()
}

/// The types whose bits are set.
pub(crate) fn dtypes_in(mask: u32) -> impl Iterator<Item = DataType> {
    DataType::ALL.iter().copied().filter(move |one| mask & one.mask() != 0)
}

/// The operations whose bits are set.
pub(crate) fn ops_in(mask: u32) -> impl Iterator<Item = RedOp> {
    RedOp::ALL.iter().copied().filter(move |one| mask & one.mask() != 0)
}

impl<A> Combination<A> {
    pub(crate) fn collective_names(&self) -> Vec<&'static str> {
        self.collectives.iter().map(|one| one.name()).collect()
    }

    pub(crate) fn dtype_names(&self) -> Vec<&'static str> {
        self.dtypes.iter().map(|one| one.name()).collect()
    }

    pub(crate) fn op_names(&self) -> Vec<&'static str> {
        self.ops.iter().map(|one| one.name()).collect()
    }
}

/// Words in lines that leave room for other columns.
pub(crate) fn wrapped(words: &str, width: usize) -> String {
    let mut lines = vec![String::new()];
    for word in words.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_is_in_one_row_with_its_answer() {
        let answer = |collective: Collective, dtype: DataType, op: Option<RedOp>| {
            let is_sum = dtype == DataType::F32 && op == Some(RedOp::Sum);
            (collective == Collective::AllReduce && is_sum, op.is_some())
        };
        let rows = grouped(answer);
        let special: Vec<_> = rows.iter().filter(|row| row.answer.0).collect();
        assert_eq!(special.len(), 1);
        assert_eq!(
            (special[0].collective_names(), special[0].dtype_names(), special[0].op_names()),
            (vec!["all_reduce"], vec!["f32"], vec!["sum"])
        );
        for collective in Collective::ALL {
            for dtype in DataType::ALL {
                let found = |op: Option<RedOp>| {
                    let rows = rows.iter().filter(|row| {
                        row.collectives.contains(collective)
                            && row.dtypes.contains(dtype)
                            && op.map_or(row.ops.is_empty(), |op| row.ops.contains(&op))
                    });
                    rows.map(|row| row.answer).collect::<Vec<_>>()
                };
                if !collective.reduces() {
                    assert_eq!(found(None), [answer(*collective, *dtype, None)]);
                    continue;
                }
                for op in RedOp::ALL {
                    let exists = !op.is_bitwise() || dtype.is_integer();
                    let expected = exists.then(|| answer(*collective, *dtype, Some(*op)));
                    let expected: Vec<_> = expected.into_iter().collect();
                    assert_eq!(found(Some(*op)), expected, "{collective} {dtype} {op}");
                }
            }
        }
    }

    #[test]
    fn words_that_do_not_fit_begin_a_line() {
        assert_eq!(wrapped("one two three", 7), "one two\nthree");
        assert_eq!(wrapped("longer", 2), "longer");
    }
}
