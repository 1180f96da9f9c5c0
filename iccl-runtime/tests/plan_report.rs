//! The report's keys and the plain text, against golden files: what a script reads does not change
//! by accident. `UPDATE_GOLDEN=1 cargo test -p iccl-runtime --test plan_report` writes them anew.

mod plan_support;

use std::collections::BTreeSet;
use std::path::Path;

use iccl_plugin_api::MemoryKind;
use iccl_runtime::config::RuleAction;
use iccl_runtime::plan::{
    Evidence, LinkFact, PlanConfig, RankFact, RegionForm, Tier, plan, text_table,
};
use iccl_runtime::topology::RankDescriptor;
use plan_support::{card, job, planned, rdma, rule, with_rules};

fn compare(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plan_golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert_eq!(actual, expected, "{} has changed", path.display());
}

fn golden(name: &str, ranks: &[RankDescriptor], config: &PlanConfig, evidence: &Evidence) {
    let report = plan(ranks, config, evidence).unwrap().report();
    let json = serde_json::to_string_pretty(&report).unwrap();
    compare(&format!("{name}.json"), &format!("{json}\n"));
    compare(&format!("{name}.txt"), &report.to_string());
}

#[test]
fn b098_shm_on() {
    golden("shm_on", &job("aab"), &PlanConfig::default(), &Evidence::default());
}

#[test]
fn b098_shm_off_by_a_rule_and_one_link_that_failed() {
    let config = with_rules([rule(RuleAction::Forbid, Tier::Shm, "rank:0", "*")]);
    let mut evidence = Evidence::of_epoch(1);
    evidence.add_link(1, 2, LinkFact::attach_failed("shm", 13, ""));
    golden("shm_off", &job("aaaa"), &config, &evidence);
}

#[test]
fn b098_rdma() {
    let mut ranks = [card(0, "a", "nvidia"), card(1, "b", "ascend"), card(2, "c", "kunlun")];
    ranks[0].transports.push(rdma(MemoryKind::ALL));
    ranks[1].transports.push(rdma(&[MemoryKind::Host, MemoryKind::PinnedHost]));
    golden("rdma", &ranks, &PlanConfig::default(), &Evidence::default());
}

/// What was tried: two of three cards give their memory to the NIC, each in its own form, one does not.
#[test]
fn b098_b082_rdma_tried() {
    let mut ranks = [card(0, "a", "nvidia"), card(1, "b", "cambricon"), card(2, "c", "kunlun")];
    let mut evidence = Evidence::of_epoch(1);
    for rank in &mut ranks {
        rank.transports.push(rdma(MemoryKind::ALL));
    }
    for (rank, form) in [(0, RegionForm::DmaBuf), (2, RegionForm::HostAlias)] {
        evidence.add_rank(rank, RankFact::Registered { transport: "rdma".to_owned(), form });
    }
    evidence.add_rank(1, RankFact::register_failed("rdma", libc::EFAULT, ""));
    golden("rdma_tried", &ranks, &PlanConfig::default(), &evidence);
}

#[test]
fn the_summary_is_one_line() {
    assert_eq!(planned(&job("aabb")).report().summary(), "4 ranks on 2 hosts: shm 2, tcp 4");
    assert_eq!(planned(&job("a")).report().summary(), "1 rank on 1 host: self 1");
}

#[test]
fn above_32_ranks_the_report_has_classes_only() {
    let small = planned(&job(&"ab".repeat(16))).report();
    assert!(small.matrix.is_some() && small.links.unwrap().len() == 32 * 31 / 2);
    let large = planned(&job(&"ab".repeat(17))).report();
    assert!(large.matrix.is_none() && large.links.is_none());
    assert_eq!(large.table().len(), 1 + large.classes.len());
    assert_eq!(large.table()[2][0], "272 links like 0-2");
    assert!(large.matrix_table().is_empty());
}

#[test]
fn columns_are_aligned_and_cells_may_have_lines() {
    let rows = [["a", "b", "c"], ["long", "two\nlines", "end"]]
        .map(|row| row.map(ToOwned::to_owned).to_vec());
    assert_eq!(text_table(&rows), "a     b      c\nlong  two    end\n      lines\n");
}

/// Every key that appears anywhere in a JSON value, map keys that are tiers aside.
fn keys(value: &serde_json::Value, found: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(object) => {
            for (key, value) in object {
                if Tier::from_name(key).is_none() {
                    found.insert(key.clone());
                }
                keys(value, found);
            }
        }
        serde_json::Value::Array(list) => list.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

const PAGE: &str = include_str!("../../docs/plan.md");

#[test]
fn every_key_and_every_tier_is_on_the_page() {
    let report = planned(&job("aab")).report();
    let mut found = BTreeSet::new();
    keys(&serde_json::to_value(&report).unwrap(), &mut found);
    assert!(found.len() > 25, "{found:?}");
    for word in found.iter().map(String::as_str).chain(Tier::ALL.map(Tier::name)) {
        assert!(PAGE.contains(&format!("`{word}`")), "{word} is not in docs/plan.md");
    }
}
