//! Lists of what a library does right, and the tables that the documentation makes of them.

use std::fmt::Write as _;
use std::path::Path;

use iccl_plugin_api::tables::CollectiveSupport;
use iccl_plugin_api::types::NATIVE_HABITS;
use iccl_plugin_api::{Collective, DataType, RedOp};

/// Collectives that reduce. Reduce-scatter of different blocks is made of reduces.
pub const REDUCING: [Collective; 4] = [
    Collective::AllReduce,
    Collective::Reduce,
    Collective::ReduceScatter,
    Collective::ReduceScatterV,
];

/// Collectives that move: by functions of a library, or by sends and receives in a group.
pub const MOVING: [Collective; 11] = [
    Collective::Broadcast,
    Collective::AllGather,
    Collective::Gather,
    Collective::Scatter,
    Collective::AllToAll,
    Collective::AllGatherV,
    Collective::GatherV,
    Collective::ScatterV,
    Collective::AllToAllV,
    Collective::Send,
    Collective::Recv,
];

/// Types of elements, and the operations by which they are reduced.
pub type Reduced<'a> = (&'a [DataType], &'a [RedOp]);

/// The list of a library that reduces two kinds of types, each by operations of its own, and moves all.
pub const fn support_of(
    first: Reduced<'_>,
    second: Reduced<'_>,
) -> [CollectiveSupport; 2 * REDUCING.len() + MOVING.len()] {
    let mut list = [CollectiveSupport::new(Collective::AllReduce, &[], &[]);
        2 * REDUCING.len() + MOVING.len()];
    let mut index = 0;
    while index < REDUCING.len() {
        list[2 * index] = CollectiveSupport::new(REDUCING[index], first.0, first.1);
        list[2 * index + 1] = CollectiveSupport::new(REDUCING[index], second.0, second.1);
        index += 1;
    }
    index = 0;
    while index < MOVING.len() {
        list[2 * REDUCING.len() + index] =
            CollectiveSupport::new(MOVING[index], DataType::ALL, &[]);
        index += 1;
    }
    list
}

/// Adds to a list. Types with the same operations share an entry.
pub fn add_support(list: &mut Vec<CollectiveSupport>, fresh: CollectiveSupport) {
    let same = |known: &&mut CollectiveSupport| {
        known.collective == fresh.collective && known.ops == fresh.ops
    };
    match list.iter_mut().find(same) {
        Some(known) => known.dtypes |= fresh.dtypes,
        None => list.push(fresh),
    }
}

/// Whether a list has a combination.
pub fn is_offered(
    support: &[CollectiveSupport],
    collective: Collective,
    dtype: DataType,
    op: Option<RedOp>,
) -> bool {
    support.iter().any(|entry| {
        entry.collective == collective.code()
            && entry.dtypes & dtype.mask() != 0
            && op.is_none_or(|op| entry.ops & op.mask() != 0)
    })
}

/// What a library does, in Markdown: its name and what it declares of itself, then the list as a table.
/// `iccl plan --cluster` reads it again, for cards that are not there.
pub fn capability_table(name: &str, flags: u64, support: &[CollectiveSupport]) -> String {
    let habits: Vec<&str> =
        NATIVE_HABITS.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, habit)| *habit).collect();
    let head = format!("\n{name} ({}):\n\n", habits.join(", "));
    let mut rows: Vec<(Vec<&str>, u32, u32)> = Vec::new();
    for entry in support {
        let name = Collective::from_code(entry.collective).map_or("?", Collective::name);
        match rows.iter_mut().find(|row| (row.1, row.2) == (entry.dtypes, entry.ops)) {
            Some(row) => row.0.push(name),
            None => rows.push((vec![name], entry.dtypes, entry.ops)),
        }
    }
    let mut table = head + "| collectives | types | operations |\n|---|---|---|\n";
    for (collectives, dtypes, ops) in rows {
        let types = DataType::ALL.iter().filter(|dtype| dtypes & dtype.mask() != 0);
        let types: Vec<&str> = types.map(|dtype| dtype.name()).collect();
        let names: Vec<&str> =
            RedOp::ALL.iter().filter(|op| ops & op.mask() != 0).map(|op| op.name()).collect();
        let (collectives, types) = (collectives.join(", "), types.join(", "));
        // A text takes whatever is written.
        let _ = writeln!(table, "| {collectives} | {types} | {} |", names.join(", "));
    }
    table
}

/// The end of what is made in a document.
const END: &str = "<!-- end -->";

/// Compares what stands between `mark` and `<!-- end -->` of a document with what it should be; with
/// `ICCL_BLESS` set, writes it instead. For tests.
///
/// # Errors
/// That it differs, that the mark is missing, or what the file system says.
pub fn keep_documented(document: &Path, mark: &str, fresh: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", document.display());
    let text = std::fs::read_to_string(document).map_err(failed)?;
    let missing = || format!("{} has no place marked {mark}", document.display());
    let (before, rest) = text.split_once(mark).ok_or_else(missing)?;
    let (found, after) = rest.split_once(END).ok_or_else(missing)?;
    if found == fresh {
        return Ok(());
    }
    if std::env::var_os("ICCL_BLESS").is_none() {
        return Err(format!("run with ICCL_BLESS=1; {mark} should be followed by\n{fresh}"));
    }
    std::fs::write(document, format!("{before}{mark}{fresh}{END}{after}")).map_err(failed)
}

#[cfg(test)]
mod tests {
    use iccl_plugin_api::tables::collectives_flag;

    use super::*;

    const SUPPORT: &[CollectiveSupport] = &[
        CollectiveSupport::new(Collective::AllReduce, &[DataType::F32], &[RedOp::Sum]),
        CollectiveSupport::new(Collective::Reduce, &[DataType::F32], &[RedOp::Sum]),
        CollectiveSupport::new(Collective::Send, &[DataType::U8, DataType::F32], &[]),
    ];

    #[test]
    fn what_is_listed_is_offered_and_nothing_else() {
        let offered = |collective, dtype, op| is_offered(SUPPORT, collective, dtype, op);
        assert!(offered(Collective::Reduce, DataType::F32, Some(RedOp::Sum)));
        assert!(!offered(Collective::Reduce, DataType::F32, Some(RedOp::Max)));
        assert!(!offered(Collective::Reduce, DataType::U8, Some(RedOp::Sum)));
        assert!(offered(Collective::Send, DataType::U8, None));
        assert!(!offered(Collective::Recv, DataType::U8, None));
    }

    #[test]
    fn a_list_has_all_that_reduces_twice_and_all_that_moves() {
        let integers: Reduced<'_> = (&[DataType::I32], &[RedOp::Sum, RedOp::Max]);
        let floats: Reduced<'_> = (&[DataType::F32], &[RedOp::Sum]);
        let list = support_of(integers, floats);
        for &collective in Collective::ALL {
            let offered = |dtype, op| is_offered(&list, collective, dtype, op);
            if collective.reduces() {
                assert!(offered(DataType::I32, Some(RedOp::Max)), "{collective}");
                assert!(offered(DataType::F32, Some(RedOp::Sum)), "{collective}");
                assert!(!offered(DataType::F32, Some(RedOp::Max)), "{collective}");
            } else {
                let moves = collective != Collective::Barrier;
                assert_eq!(offered(DataType::F8E4M3, None), moves, "{collective}");
            }
        }
    }

    #[test]
    fn types_with_the_same_operations_share_an_entry() {
        let mut list = Vec::new();
        for (dtype, op) in
            [(DataType::F32, RedOp::Sum), (DataType::U8, RedOp::Max), (DataType::F64, RedOp::Sum)]
        {
            add_support(&mut list, CollectiveSupport::new(Collective::Reduce, &[dtype], &[op]));
        }
        assert_eq!(list.len(), 2);
        assert_eq!(list[0].dtypes, DataType::F32.mask() | DataType::F64.mask());
    }

    #[test]
    fn a_row_has_all_that_do_the_same() {
        let expected = "\nXCCL (groups, in place):\n\n| collectives | types | operations |\n|---|---|---|\n\
            | all_reduce, reduce | f32 | sum |\n| send | u8, f32 |  |\n";
        let flags = collectives_flag::GROUPS | collectives_flag::IN_PLACE;
        assert_eq!(capability_table("XCCL", flags, SUPPORT), expected);
    }

    #[test]
    fn a_document_that_says_something_else_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let document = folder.path().join("a.md");
        std::fs::write(&document, "before\n<!-- a -->\nold\n<!-- end -->\nafter\n").unwrap();
        assert_eq!(keep_documented(&document, "<!-- a -->\n", "old\n"), Ok(()));
        assert!(keep_documented(&document, "<!-- b -->\n", "old\n").is_err());
        if std::env::var_os("ICCL_BLESS").is_none() {
            assert!(keep_documented(&document, "<!-- a -->\n", "new\n").is_err());
        }
    }
}
