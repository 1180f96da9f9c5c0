//! `[algorithm]`: which algorithm a collective uses, for all sizes or by size.

use iccl_plugin_api::Collective;

use super::codec::{Bytes, Codec, Text};
use super::collections::{collect, inline_table};
use super::node::{Node, Raw, Rejections, quoted};
use super::suggest::nearest;
use super::units;

/// An algorithm and the sizes it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlgorithmRange {
    /// The largest message it is used for, in bytes; `None` for any.
    pub max_bytes: Option<u64>,
    /// Its name; whether there is one of this name is for `schedule` to say.
    pub algorithm: String,
}

/// The user's choice for one collective: ranges in rising order of size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlgorithmChoice {
    /// Ranges in rising order of `max_bytes`; only the last may be without.
    pub ranges: Vec<AlgorithmRange>,
}

impl AlgorithmChoice {
    /// The algorithm for a message of `bytes`, or `None` where the choice is left to iccl.
    pub fn for_bytes(&self, bytes: u64) -> Option<&str> {
        self.ranges
            .iter()
            .find(|range| range.max_bytes.is_none_or(|max| bytes <= max))
            .map(|range| range.algorithm.as_str())
    }
}

/// The collectives whose algorithm can be chosen.
pub(super) fn collectives() -> Vec<&'static str> {
    Collective::ALL
        .iter()
        .filter(|collective| !matches!(collective, Collective::Send | Collective::Recv))
        .map(|collective| collective.name())
        .collect()
}

/// A name, or a list of `{ max_bytes, use }`.
pub(super) struct Algorithm;

impl Algorithm {
    const NAME: Text = Text("the name of an algorithm");
    const SIZE: Bytes = Bytes(0..=u64::MAX);

    fn range(node: &Node) -> Result<AlgorithmRange, Rejections> {
        let mut max_bytes = None;
        let mut algorithm = None;
        for (key, value) in node.entries("a table { max_bytes = …, use = … }")? {
            match key.name.as_str() {
                "max_bytes" => max_bytes = Some(Self::SIZE.read(&value)?),
                "use" => algorithm = Some(Self::NAME.read(&value)?),
                name => {
                    let near = nearest(name, ["max_bytes", "use"]);
                    let hint = near.map_or_else(
                        || "there are \"max_bytes\" and \"use\"".to_owned(),
                        |near| format!("did you mean \"{near}\"?"),
                    );
                    return Err(key.complain(format!("unknown key \"{name}\"; {hint}")).into());
                }
            }
        }
        let algorithm =
            algorithm.ok_or_else(|| node.complain("a range of sizes lacks `use = \"…\"`"))?;
        Ok(AlgorithmRange { max_bytes, algorithm })
    }
}

impl Codec for Algorithm {
    type Value = AlgorithmChoice;

    fn read(&self, node: &Node) -> Result<AlgorithmChoice, Rejections> {
        let is_list = match &node.raw {
            Raw::List(_) => true,
            Raw::Word(word) => word.trim_start().starts_with('['),
            _ => false,
        };
        if !is_list {
            node.text().ok_or_else(|| self.refuse(node))?;
            let algorithm = Self::NAME.read(node)?;
            return Ok(AlgorithmChoice {
                ranges: vec![AlgorithmRange { max_bytes: None, algorithm }],
            });
        }
        let items = node.list(',', &self.accepted())?;
        let ranges = collect(items.iter().map(Self::range))?;
        // What comes after "any size" or after a larger size would never be used.
        let rising = ranges.windows(2).all(|pair| match (pair[0].max_bytes, pair[1].max_bytes) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(first), Some(second)) => first < second,
        });
        if ranges.is_empty() || !rising {
            return Err(node
                .complain(
                    "ranges must rise by max_bytes, and only the last may be without max_bytes",
                )
                .into());
        }
        Ok(AlgorithmChoice { ranges })
    }

    fn show(&self, value: &AlgorithmChoice) -> Option<String> {
        if let [AlgorithmRange { max_bytes: None, algorithm }] = value.ranges.as_slice() {
            return Some(algorithm.clone());
        }
        let ranges: Vec<String> = value
            .ranges
            .iter()
            .map(|range| {
                let size = range
                    .max_bytes
                    .map(|bytes| format!("max_bytes = {}", quoted(&units::show_bytes(bytes))));
                let algorithm = format!("use = {}", quoted(&range.algorithm));
                inline_table(&size.into_iter().chain([algorithm]).collect::<Vec<_>>())
            })
            .collect();
        Some(format!("[{}]", ranges.join(", ")))
    }

    fn toml(&self, value: &AlgorithmChoice) -> Option<String> {
        let text = self.show(value)?;
        Some(if text.starts_with('[') { text } else { quoted(&text) })
    }

    fn accepted(&self) -> String {
        "the name of an algorithm, or [{ max_bytes = \"64KiB\", use = \"…\" }, { use = \"…\" }]"
            .to_owned()
    }
}
