//! One operation of the matrix, and how it is written.

use std::fmt;
use std::str::FromStr;

use iccl_plugin_api::{Collective, DataType, RedOp};

use crate::oracle::scramble;

/// Where a buffer starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Alignment {
    /// At a multiple of 64 bytes.
    Line,
    /// At an element's alignment, and at no multiple of 64 bytes.
    Element,
    /// Three bytes after a multiple of 64.
    Odd,
    /// Wherever it must so that it ends at a page that nobody may touch.
    Guard,
}

impl Alignment {
    /// Every way.
    pub const ALL: [Self; 4] = [Self::Line, Self::Element, Self::Odd, Self::Guard];

    fn name(self) -> &'static str {
        match self {
            Self::Line => "line",
            Self::Element => "element",
            Self::Odd => "odd",
            Self::Guard => "guard",
        }
    }
}

/// One operation: what every rank calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    /// The operation. [`Collective::Send`] stands for a ring: every rank sends to the next one and
    /// receives from the one before.
    pub collective: Collective,
    /// The type of the elements.
    pub dtype: DataType,
    /// How contributions are combined; sum where nothing is.
    pub op: RedOp,
    /// Whether the buffers lie in one memory.
    pub in_place: bool,
    /// Elements, as the call takes them; in the vector forms the length of the longest block.
    pub count: u64,
    /// The root, where there is one, else 0.
    pub root: u32,
    /// Where buffers start.
    pub alignment: Alignment,
    /// Whether the call is one of a group, with others beside it on the same stream.
    pub grouped: bool,
}

impl Cell {
    /// A number that differs from cell to cell.
    pub fn hash(&self) -> u64 {
        let numbers = [
            u64::from(self.collective.code()),
            u64::from(self.dtype.code()),
            u64::from(self.op.code()),
            u64::from(self.in_place),
            self.count,
            u64::from(self.root),
            self.alignment as u64,
            u64::from(self.grouped),
        ];
        numbers.iter().fold(0, |hash, number| scramble(hash ^ number))
    }
}

/// `all_reduce/f32/sum/out/1000/0/line/single`.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.in_place { "in" } else { "out" };
        let form = if self.grouped { "group" } else { "single" };
        let Self { collective, dtype, op, count, root, alignment, .. } = self;
        write!(f, "{collective}/{dtype}/{op}/{place}/{count}/{root}/{}/{form}", alignment.name())
    }
}

impl FromStr for Cell {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split('/').collect();
        let [collective, dtype, op, place, count, root, alignment, form] = words[..] else {
            return Err(format!(
                "{text}: a cell is collective/dtype/op/in or out/count/root/alignment/single or group"
            ));
        };
        let no = |what: &str| format!("{text}: there is no {what}");
        Ok(Self {
            collective: Collective::from_name(collective).ok_or_else(|| no(collective))?,
            dtype: DataType::from_name(dtype).ok_or_else(|| no(dtype))?,
            op: RedOp::from_name(op).ok_or_else(|| no(op))?,
            in_place: match place {
                "in" => true,
                "out" => false,
                _ => return Err(no(place)),
            },
            count: count.parse().map_err(|_| no(count))?,
            root: root.parse().map_err(|_| no(root))?,
            alignment: Alignment::ALL
                .into_iter()
                .find(|one| one.name() == alignment)
                .ok_or_else(|| no(alignment))?,
            grouped: match form {
                "group" => true,
                "single" => false,
                _ => return Err(no(form)),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let cell: Cell = "reduce_scatter_v/bf16/avg/in/33/0/odd/group".parse().expect("a cell");
        assert_eq!(cell.collective, Collective::ReduceScatterV);
        assert_eq!((cell.count, cell.in_place, cell.grouped), (33, true, true));
        assert_eq!(cell.to_string(), "reduce_scatter_v/bf16/avg/in/33/0/odd/group");
        assert!("all_reduce/f32/sum/out/1".parse::<Cell>().is_err());
        assert!("all_reduce/f33/sum/out/1/0/odd/single".parse::<Cell>().is_err());
    }
}
