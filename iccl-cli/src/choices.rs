//! `iccl plan --collectives`: who does which collective, type and operation at which size, how long it
//! should take, and why no native library does it alone. The answers are the runtime's own choice.

use std::collections::HashMap;

use iccl_plugin_api::{Collective, DataType, RedOp};
use iccl_runtime::comm::{Carried, Choices};
use iccl_runtime::plan::{Access, Plan};
use iccl_runtime::schedule::{Algorithm, Verdict};
use serde::Serialize;

use crate::combinations::{Combination, grouped, wrapped};
use crate::print;

/// The version of the keys: grows when one is removed or changes its meaning.
const SCHEMA: u32 = 1;

/// Lengths of the longer buffer that are asked for.
const SIZES: [u64; 3] = [8, 64 << 10, 16 << 20];

/// How wide columns of words are.
const NARROW: usize = 20;
const WIDE: usize = 44;

/// The whole table. The keys are documented in `docs/plan.md`.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    schema: u32,
    ranks: usize,
    /// Whether what iccl moves and combines goes through pinned host memory, on some rank.
    staged: bool,
    sizes_bytes: [u64; SIZES.len()],
    rows: Vec<Row>,
}

/// Combinations that are done alike at every size.
#[derive(Debug, Serialize)]
struct Row {
    collectives: Vec<&'static str>,
    dtypes: Vec<&'static str>,
    ops: Vec<&'static str>,
    at: Vec<Cell>,
}

/// What is done at one size.
#[derive(Debug, Serialize)]
struct Cell {
    size_bytes: u64,
    /// Why it cannot be done; null if it can.
    refused: Option<String>,
    #[serde(flatten)]
    way: Option<Way>,
    /// The shortest and the longest among the row's combinations.
    expected_ns: Option<[u64; 2]>,
    /// What one native call would take, where that is possible and not chosen.
    native_ns: Option<[u64; 2]>,
}

/// Who does what.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Way {
    algorithm: &'static str,
    native: Vec<NativeCall>,
    /// What iccl itself does: `moves`, `combines`, `divides`, `multiplies`.
    iccl: Vec<&'static str>,
    /// Why no native library does it alone; null where one does.
    not_native: Option<String>,
}

/// What a native library is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct NativeCall {
    library: String,
    collective: &'static str,
    /// The type that it is asked to work on; null if it is the one of the collective.
    dtype: Option<&'static str>,
    /// The operation that it is asked for; null if it is the collective's.
    op: Option<&'static str>,
}

type Answer = Vec<Result<Way, String>>;

/// Expected times at one size: the chosen way's, and those of one native call where it is another.
type Times = (Option<u64>, Option<u64>);

impl Table {
    pub(crate) fn new(choices: &Choices, plan: &Plan) -> Self {
        let mut times: HashMap<(Collective, DataType, Option<RedOp>), Vec<Times>> = HashMap::new();
        let mut rows = grouped(|collective, dtype, op| {
            let asked: Vec<_> =
                SIZES.iter().map(|bytes| choices.of(collective, dtype, op, *bytes)).collect();
            let of = asked.iter().map(|one| one.as_ref().map_or((None, None), times_of)).collect();
            times.insert((collective, dtype, op), of);
            let way = |carried: &Carried| Way::new(carried, collective, dtype, op);
            let refused =
                |error: &iccl_runtime::Error| generic(error.message(), collective, dtype, op);
            asked.iter().map(|one| one.as_ref().map(way).map_err(refused)).collect::<Answer>()
        });
        rows.sort_by_key(|row| (row.collectives[0], row.ops.clone(), row.dtypes[0]));
        let staged = |access| access == Access::Staged;
        let classes = plan.report().classes;
        Self {
            schema: SCHEMA,
            ranks: plan.world_size(),
            staged: classes
                .iter()
                .any(|class| staged(class.chosen.src_access) || staged(class.chosen.dst_access)),
            sizes_bytes: SIZES,
            rows: rows.iter().map(|row| Row::new(row, &times)).collect(),
        }
    }

    pub(crate) fn text(&self) -> String {
        let mut heads = vec!["collectives".to_owned(), "types".to_owned(), "operations".to_owned()];
        heads.extend(self.sizes_bytes.iter().map(|bytes| print::bytes(*bytes)));
        heads.extend(["who does it".to_owned(), "why no native library alone".to_owned()]);
        let rows = self.rows.iter().map(|row| row.cells(self.staged));
        let all: Vec<Vec<String>> = std::iter::once(heads).chain(rows).collect();
        iccl_runtime::plan::text_table(&all)
    }
}

fn times_of(carried: &Carried) -> Times {
    let native = native_verdict(carried).and_then(|verdict| match verdict {
        Verdict::Costs(ns) if carried.choice.algorithm != Algorithm::Native => Some(*ns),
        _ => None,
    });
    (Some(carried.expected_ns), native)
}

fn native_verdict(carried: &Carried) -> Option<&Verdict> {
    let mut considered = carried.choice.considered.iter();
    considered.find(|(one, _)| *one == Algorithm::Native).map(|(_, verdict)| verdict)
}

impl Row {
    fn new(
        row: &Combination<Answer>,
        times: &HashMap<(Collective, DataType, Option<RedOp>), Vec<Times>>,
    ) -> Self {
        let ops: Vec<Option<RedOp>> = match row.ops.as_slice() {
            [] => vec![None],
            ops => ops.iter().copied().map(Some).collect(),
        };
        let mut members: Vec<&Vec<Times>> = Vec::new();
        for collective in &row.collectives {
            for dtype in &row.dtypes {
                members.extend(ops.iter().filter_map(|op| times.get(&(*collective, *dtype, *op))));
            }
        }
        let range = |of: &dyn Fn(&Vec<Times>) -> Option<u64>| {
            let all = || members.iter().filter_map(|times| of(times));
            Some([all().min()?, all().max()?])
        };
        let at = row.answer.iter().enumerate().map(|(at, answer)| Cell {
            size_bytes: SIZES[at],
            refused: answer.as_ref().err().cloned(),
            way: answer.as_ref().ok().cloned(),
            expected_ns: range(&|times| times[at].0),
            native_ns: range(&|times| times[at].1),
        });
        Self {
            collectives: row.collective_names(),
            dtypes: row.dtype_names(),
            ops: row.op_names(),
            at: at.collect(),
        }
    }

    fn cells(&self, staged: bool) -> Vec<String> {
        let ops = if self.ops.is_empty() { "-".to_owned() } else { self.ops.join(" ") };
        let dtypes = if self.dtypes.len() == DataType::ALL.len() {
            "all".to_owned()
        } else {
            self.dtypes.join(" ")
        };
        let mut cells = vec![
            wrapped(&self.collectives.join(" "), NARROW),
            wrapped(&dtypes, NARROW),
            wrapped(&ops, NARROW),
        ];
        cells.extend(self.at.iter().map(|cell| match (&cell.way, cell.expected_ns) {
            (Some(way), Some(range)) => format!("{}\n{}", way.algorithm, microseconds(range)),
            _ => "-".to_owned(),
        }));
        let mut who: Vec<String> = Vec::new();
        let mut why: Vec<String> = Vec::new();
        for cell in &self.at {
            let add = |list: &mut Vec<String>, text: String| {
                let text = wrapped(&text, WIDE);
                if !list.contains(&text) {
                    list.push(text);
                }
            };
            match (&cell.refused, &cell.way) {
                (Some(refused), _) => add(&mut why, refused.clone()),
                (None, Some(way)) => {
                    add(&mut who, way.who(staged));
                    if let Some(reason) = &way.not_native {
                        let at = print::bytes(cell.size_bytes);
                        add(
                            &mut why,
                            match cell.native_ns {
                                Some(range) => {
                                    format!("{reason} at {at}: {}", microseconds(range))
                                }
                                None => reason.clone(),
                            },
                        );
                    }
                }
                (None, None) => {}
            }
        }
        cells.extend([who.join("\n"), why.join("\n")]);
        cells
    }
}

impl Way {
    fn new(carried: &Carried, collective: Collective, dtype: DataType, op: Option<RedOp>) -> Self {
        let algorithm = carried.choice.algorithm;
        let native = carried.native.iter().map(|(library, call)| NativeCall {
            library: library.clone(),
            collective: call.collective.name(),
            dtype: (call.dtype != dtype).then(|| call.dtype.name()),
            op: call.op.filter(|one| Some(*one) != op).map(RedOp::name),
        });
        let not_native = (algorithm != Algorithm::Native).then(|| {
            let mut reasons = Vec::new();
            let considered = carried.choice.considered.iter();
            for (one, verdict) in considered.filter(|(one, _)| one.facts().needs_islands) {
                if let Verdict::Refused(why) = verdict {
                    reasons.push(format!("{one}: {}", generic(why, collective, dtype, op)));
                }
            }
            // The last one: what it would take is told behind it.
            if matches!(native_verdict(carried), Some(Verdict::Costs(_))) {
                reasons.push(format!("{}: slower", Algorithm::Native));
            }
            if reasons.is_empty() {
                "iccl asks no library for it".to_owned()
            } else {
                reasons.join("; ")
            }
        });
        Self {
            algorithm: algorithm.name(),
            native: native.collect(),
            iccl: carried.own.iter().map(|one| one.name()).collect(),
            not_native,
        }
    }

    /// `islands: NCCL reduce_scatter all_gather; iccl moves, combines in pinned host memory`.
    fn who(&self, staged: bool) -> String {
        let mut parts: Vec<String> = Vec::new();
        for call in &self.native {
            let of = call.dtype.map_or_else(String::new, |dtype| format!(" of {dtype}"));
            let by = call.op.map_or_else(String::new, |op| format!(" ({op})"));
            let text = format!(" {}{of}{by}", call.collective);
            match parts.iter_mut().find(|part| part.starts_with(&format!("{} ", call.library))) {
                Some(part) => part.push_str(&text),
                None => parts.push(format!("{}{text}", call.library)),
            }
        }
        if !self.iccl.is_empty() {
            let place = if staged { " in pinned host memory" } else { "" };
            parts.push(format!("iccl {}{place}", self.iccl.join(", ")));
        }
        if parts.is_empty() {
            return self.algorithm.to_owned();
        }
        format!("{}: {}", self.algorithm, parts.join("; "))
    }
}

/// A reason that says "it" where it speaks of the combination itself, so that it is the same for others.
fn generic(why: &str, collective: Collective, dtype: DataType, op: Option<RedOp>) -> String {
    // A library is asked for sums of what was multiplied before.
    let mut whole = why.to_owned();
    for op in [op.map_or("", RedOp::name), RedOp::Sum.name()] {
        whole = whole.replace(&format!("{collective} {dtype} {op}"), "it");
        // Of a part of the collective.
        whole = whole.replace(&format!(" {dtype} {op}"), " of it");
    }
    let whole = whole.replace(&format!("{collective} {dtype}"), "it");
    let words = whole.split(' ').map(|word| if word == dtype.name() { "the type" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

fn microseconds([least, most]: [u64; 2]) -> String {
    let text = |ns: u64| format!("{}.{}", ns / 1000, ns % 1000 / 100);
    if text(least) == text(most) {
        format!("{} us", text(least))
    } else {
        format!("{}-{} us", text(least), text(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_the_same_for_all_of_which_it_holds() {
        let reason = |dtype: DataType, op: RedOp| {
            let why = format!("XCCL does not offer all_reduce {dtype} {op}");
            generic(&why, Collective::AllReduce, dtype, Some(op))
        };
        assert_eq!(reason(DataType::I8, RedOp::Max), "XCCL does not offer it");
        assert_eq!(reason(DataType::F32, RedOp::Avg), "XCCL does not offer it");
        let sum = "XCCL does not offer all_reduce f32 sum";
        let asked = generic(sum, Collective::AllReduce, DataType::F32, Some(RedOp::PreMulSum));
        assert_eq!(asked, "XCCL does not offer it");
        let part = "XCCL does not offer reduce_scatter i8 prod";
        assert_eq!(
            generic(part, Collective::AllReduce, DataType::I8, Some(RedOp::Prod)),
            "XCCL does not offer reduce_scatter of it"
        );
        let setting = "numerics.accumulate is \"f32\", and XCCL does not sum f32 so";
        assert_eq!(
            generic(setting, Collective::Reduce, DataType::F32, Some(RedOp::Sum)),
            "numerics.accumulate is \"f32\", and XCCL does not sum the type so"
        );
    }

    #[test]
    fn times_are_a_range_where_they_differ() {
        assert_eq!(microseconds([1_234, 1_299]), "1.2 us");
        assert_eq!(microseconds([1_234, 20_000]), "1.2-20.0 us");
    }
}
