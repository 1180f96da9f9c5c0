//! What makers' libraries of collectives can do, for cards that are not there: read from the tables of
//! `docs/vendors.md`, which the plugins' own tests make of the lists that the plugins work by.

use iccl_plugin_api::tables::CollectiveSupport;
use iccl_plugin_api::types::NATIVE_HABITS;
use iccl_plugin_api::{Collective, DataType, RedOp};
use iccl_runtime::topology::{NativeAbilities, NativeLibrary, reach};

const DOCUMENT: &str = include_str!("../../../docs/vendors.md");

/// The libraries of a maker, as documented: the first is the usual one.
pub(crate) fn libraries(vendor: &str) -> Vec<NativeLibrary> {
    let mark = format!("<!-- {vendor} capabilities: ");
    let tables = DOCUMENT.split_once(&mark).and_then(|(_, rest)| rest.split_once("<!-- end -->"));
    let mut found: Vec<(String, u64, Vec<CollectiveSupport>)> = Vec::new();
    for line in tables.map_or("", |(tables, _)| tables).lines() {
        if let Some((name, habits)) = head(line) {
            found.push((name.to_owned(), habits, Vec::new()));
        } else if let (Some((_, _, support)), Some(row)) = (found.last_mut(), row(line)) {
            support.extend(row);
        }
    }
    found
        .into_iter()
        .map(|(id, habits, support)| NativeLibrary {
            id,
            reach: reach::SAME_HOST | reach::OTHER_HOSTS,
            abilities: NativeAbilities::new(habits, &support),
            is_given_up: false,
            later_fields: Vec::new(),
        })
        .collect()
}

/// `NCCL (groups, in place):`.
fn head(line: &str) -> Option<(&str, u64)> {
    let (name, habits) = line.strip_suffix("):")?.rsplit_once(" (")?;
    let bits = habits.split(", ").filter_map(|habit| {
        NATIVE_HABITS.iter().find(|(_, name)| *name == habit).map(|(bit, _)| *bit)
    });
    Some((name, bits.fold(0, |all, bit| all | bit)))
}

/// `| all_reduce, reduce | f32, f64 | sum, max |`.
fn row(line: &str) -> Option<Vec<CollectiveSupport>> {
    fn words(cell: &str) -> impl Iterator<Item = &str> {
        cell.split(',').map(str::trim)
    }
    let cells: Vec<&str> = line.strip_prefix('|')?.strip_suffix('|')?.split('|').collect();
    let [collectives, dtypes, ops] = cells[..] else { return None };
    let dtypes: Vec<DataType> = words(dtypes).filter_map(DataType::from_name).collect();
    let ops: Vec<RedOp> = words(ops).filter_map(RedOp::from_name).collect();
    let collectives = words(collectives).filter_map(Collective::from_name);
    Some(collectives.map(|one| CollectiveSupport::new(one, &dtypes, &ops)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{HOST, VENDORS};

    #[test]
    fn every_makers_tables_are_read() {
        for vendor in VENDORS.iter().filter(|vendor| **vendor != HOST) {
            let found = libraries(vendor);
            assert!(!found.is_empty(), "{vendor}");
            for NativeLibrary { id, abilities, .. } in &found {
                // What every card does that any table speaks of.
                let sum = abilities.offers(Collective::AllReduce, DataType::F32, Some(RedOp::Sum));
                assert!(sum, "{id}");
                let xor = Some(RedOp::BitXor);
                assert!(!abilities.offers(Collective::AllReduce, DataType::I32, xor), "{id}");
            }
        }
        assert!(libraries(HOST).is_empty());
    }

    #[test]
    fn what_a_table_says_is_what_is_taken_for_so() {
        let names = |vendor| libraries(vendor).into_iter().map(|one| one.id).collect::<Vec<_>>();
        assert_eq!(names("nvidia"), ["NCCL"]);
        let ascend = names("ascend");
        assert_eq!(ascend[0], "HCCL, A2 with CANN 9");
        assert!(ascend.contains(&"HCCL, 310P with CANN 9".to_owned()), "{ascend:?}");
        let nccl = &libraries("nvidia")[0].abilities;
        assert!(nccl.works_in_place() && !nccl.is_deterministic());
        assert!(nccl.offers(Collective::Reduce, DataType::F16, Some(RedOp::Avg)));
        assert!(!nccl.offers(Collective::Reduce, DataType::F16, Some(RedOp::Max)));
        assert!(nccl.offers(Collective::AllGather, DataType::F8E5M2, None));
        assert!(!nccl.offers(Collective::Barrier, DataType::U8, None));
        assert!(!libraries("kunlun")[0].abilities.works_in_place());
    }
}
