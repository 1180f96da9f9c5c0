//! What holds for every plan, tried on imagined jobs.

mod plan_support;

use std::collections::BTreeMap;

use iccl_plugin_api::MemoryKind;
use iccl_runtime::config::RuleAction;
use iccl_runtime::plan::{
    Evidence, LinkDecision, LinkFact, Plan, PlanConfig, RankFact, RegionForm, Tier, Way, plan,
};
use iccl_runtime::topology::{RankDescriptor, TransportState};
use plan_support::{card, job, rank, rdma, rule, with_rules, without};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// What makes one imagined rank different from another.
#[derive(Clone, Debug)]
struct Traits {
    host: usize,
    vendor: &'static str,
    shm: u8,
    nic: u8,
    latency_ns: u32,
}

fn traits() -> impl Strategy<Value = Traits> {
    let vendor = select(vec!["host", "nvidia", "ascend"]);
    (0..4_usize, vendor, 0..4_u8, 0..3_u8, select(vec![0, 20_000, 40_000])).prop_map(
        |(host, vendor, shm, nic, latency_ns)| Traits { host, vendor, shm, nic, latency_ns },
    )
}

fn descriptor(number: u32, traits: &Traits) -> RankDescriptor {
    let host = ["a", "b", "c", "d"][traits.host];
    let mut descriptor = match traits.vendor {
        "host" => rank(number, host),
        vendor => card(number, host, vendor),
    };
    descriptor.transports[0].latency_ns = traits.latency_ns;
    match traits.shm {
        0 => without(&mut descriptor, "shm"),
        1 => descriptor.transports[1].state = TransportState::Disabled,
        2 => descriptor.transports[1].memory_kinds |= MemoryKind::Device.mask(),
        _ => {}
    }
    match traits.nic {
        0 => {}
        1 => descriptor.transports.push(rdma(&[MemoryKind::Host])),
        _ => descriptor.transports.push(rdma(MemoryKind::ALL)),
    }
    descriptor
}

fn descriptors(traits: &[Traits]) -> Vec<RankDescriptor> {
    traits.iter().enumerate().map(|(rank, traits)| descriptor(rank as u32, traits)).collect()
}

/// Failures of shared memory between pairs of ranks, and of device memory on ranks; on all others it was
/// registered, in one form or another.
fn evidence(world_size: u32, links: &[(u32, u32)], ranks: &[u32]) -> Evidence {
    let mut evidence = Evidence::default();
    for (a, b) in links.iter().map(|(a, b)| (a % world_size, b % world_size)) {
        if a != b {
            let transport = "shm".to_owned();
            evidence.add_link(a, b, LinkFact::attach_failed(&transport, 13, ""));
        }
    }
    for rank in ranks {
        evidence.add_rank(rank % world_size, RankFact::register_failed("rdma", 14, ""));
    }
    let is_lame = |rank: &u32| ranks.iter().any(|lame| lame % world_size == *rank);
    for rank in (0..world_size).filter(|rank| !is_lame(rank)) {
        let forms = [RegionForm::Address, RegionForm::DmaBuf, RegionForm::HostAlias];
        let (transport, form) = ("rdma".to_owned(), forms[rank as usize % 3]);
        evidence.add_rank(rank, RankFact::Registered { transport, form });
    }
    evidence
}

fn some_links() -> impl Strategy<Value = Vec<(u32, u32)>> {
    vec((0..12_u32, 0..12_u32), 0..5)
}

fn pairs(world_size: usize) -> impl Iterator<Item = (u32, u32)> {
    let ranks = world_size as u32;
    (0..ranks).flat_map(move |a| (a + 1..ranks).map(move |b| (a, b)))
}

fn made(descriptors: &[RankDescriptor], config: &PlanConfig, evidence: &Evidence) -> Plan {
    plan(descriptors, config, evidence).unwrap()
}

/// A decision without what only its numbering says.
fn content(link: LinkDecision) -> (Way, Vec<Way>, Vec<String>) {
    let refused = link.refused.iter().map(ToString::to_string).collect();
    (link.chosen, link.runners_up, refused)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_link_is_the_same_from_both_ends(
        traits in vec(traits(), 2..12), links in some_links(), lame in vec(0..12_u32, 0..3),
    ) {
        let ranks = descriptors(&traits);
        let evidence = evidence(ranks.len() as u32, &links, &lame);
        let plan = made(&ranks, &PlanConfig::default(), &evidence);
        for (a, b) in pairs(ranks.len()) {
            let (there, back) = (plan.link(a, b).unwrap(), plan.link(b, a).unwrap());
            prop_assert_eq!(&there.chosen, &back.chosen.flipped());
            prop_assert_eq!(there.runners_up.len(), back.runners_up.len());
            for (way, other) in there.runners_up.iter().zip(&back.runners_up) {
                prop_assert_eq!(way, &other.flipped());
            }
            for (refusal, other) in there.refused.iter().zip(&back.refused) {
                prop_assert_eq!(refusal, &other.flipped());
            }
            prop_assert_eq!(plan.link_digest(a, b), plan.link_digest(b, a));
        }
    }

    #[test]
    fn the_order_of_the_inputs_does_not_matter(
        traits in vec(traits(), 1..12), links in some_links(), order in any::<prop::sample::Index>(),
    ) {
        let ranks = descriptors(&traits);
        let facts = evidence(ranks.len() as u32, &links, &[]);
        let turned_links: Vec<(u32, u32)> = links.iter().rev().map(|(a, b)| (*b, *a)).collect();
        let turned_facts = evidence(ranks.len() as u32, &turned_links, &[]);
        let mut turned = ranks.clone();
        turned.rotate_left(order.index(ranks.len()));
        turned.reverse();
        let reordered = made(&turned, &PlanConfig::default(), &turned_facts);
        for rank in &mut turned {
            rank.transports.reverse();
        }
        let one = made(&ranks, &PlanConfig::default(), &facts);
        let again = made(&ranks, &PlanConfig::default(), &facts);
        prop_assert_eq!(one.report(), again.report());
        prop_assert_eq!(one.report(), reordered.report());
        let other = made(&turned, &PlanConfig::default(), &turned_facts);
        for (a, b) in pairs(ranks.len()) {
            prop_assert_eq!(one.link(a, b), other.link(a, b));
            prop_assert_eq!(one.link_digest(a, b), other.link_digest(a, b));
        }
    }

    #[test]
    fn each_link_is_decided_as_if_it_were_alone(traits in vec(traits(), 2..12)) {
        let ranks = descriptors(&traits);
        let plan = made(&ranks, &PlanConfig::default(), &Evidence::default());
        for (a, b) in pairs(ranks.len()) {
            let mut alone = [ranks[a as usize].clone(), ranks[b as usize].clone()];
            (alone[0].rank, alone[1].rank) = (0, 1);
            let alone = made(&alone, &PlanConfig::default(), &Evidence::default());
            let (in_job, alone) = (plan.link(a, b).unwrap(), alone.link(0, 1).unwrap());
            prop_assert_eq!(content(in_job), content(alone));
        }
    }

    #[test]
    fn a_failure_touches_its_own_links_only(
        traits in vec(traits(), 2..12), links in some_links(), lame in 0..12_u32,
    ) {
        let ranks = descriptors(&traits);
        let size = ranks.len() as u32;
        let before = made(&ranks, &PlanConfig::default(), &evidence(size, &[], &[]));
        let after = made(&ranks, &PlanConfig::default(), &evidence(size, &links, &[lame]));
        let failed = |a: u32, b: u32| {
            links.iter().any(|(x, y)| {
                let (x, y) = (x % size, y % size);
                (x.min(y), x.max(y)) == (a, b)
            })
        };
        for (a, b) in pairs(ranks.len()) {
            let (old, new) = (before.link(a, b).unwrap(), after.link(a, b).unwrap());
            if failed(a, b) {
                prop_assert!(!matches!(new.chosen.transport.as_deref(), Some("shm")));
            } else if a == lame % size || b == lame % size {
                // Device memory that cannot be registered is staged: no link falls to TCP for it.
                prop_assert_eq!(old.chosen.tier == Tier::Tcp, new.chosen.tier == Tier::Tcp);
            } else {
                prop_assert_eq!(before.link_digest(a, b), after.link_digest(a, b));
                prop_assert_eq!(content(old), content(new));
            }
        }
    }

    #[test]
    fn rules_hold_or_there_is_no_plan(
        traits in vec(traits(), 2..10),
        wanted in select(Tier::ALL[1..].to_vec()),
        unwanted in select(Tier::ALL[1..].to_vec()),
        host in select(vec!["host:a", "host:b", "vendor:nvidia", "rank:0-2", "*"]),
    ) {
        let ranks = descriptors(&traits);
        let action = |action, tier| rule(action, tier, host, "*");
        let selected = |rank: u32| {
            let traits = &traits[rank as usize];
            match host {
                "host:a" => traits.host == 0,
                "host:b" => traits.host == 1,
                "vendor:nvidia" => traits.vendor == "nvidia",
                "rank:0-2" => rank <= 2,
                _ => true,
            }
        };
        let free = made(&ranks, &PlanConfig::default(), &Evidence::default());
        let possible = |a, b, tier| {
            let link = free.link(a, b).unwrap();
            link.chosen.tier == tier || link.runners_up.iter().any(|way| way.tier == tier)
        };

        let config = with_rules([
            action(RuleAction::Require, wanted),
            action(RuleAction::Forbid, unwanted),
            action(RuleAction::Prefer, unwanted),
        ]);
        match plan(&ranks, &config, &Evidence::default()) {
            Ok(plan) => for (a, b) in pairs(ranks.len()) {
                let tier = plan.link(a, b).unwrap().chosen.tier;
                if selected(a) || selected(b) {
                    prop_assert_eq!(tier, wanted);
                    prop_assert_ne!(tier, unwanted);
                } else {
                    prop_assert_eq!(tier, free.link(a, b).unwrap().chosen.tier);
                }
            },
            Err(error) => {
                let text = error.to_string();
                prop_assert!(text.contains(&format!("require {wanted} between {host}")), "{}", text);
                let cannot = |(a, b)| {
                    (selected(a) || selected(b)) && (wanted == unwanted || !possible(a, b, wanted))
                };
                prop_assert!(pairs(ranks.len()).any(cannot), "{}", text);
            }
        }

        let config = with_rules([action(RuleAction::Prefer, wanted)]);
        let plan = made(&ranks, &config, &Evidence::default());
        for (a, b) in pairs(ranks.len()) {
            let tier = plan.link(a, b).unwrap().chosen.tier;
            if (selected(a) || selected(b)) && possible(a, b, wanted) {
                prop_assert_eq!(tier, wanted);
            } else {
                prop_assert_eq!(tier, free.link(a, b).unwrap().chosen.tier);
            }
        }
    }

    #[test]
    fn the_classes_count_every_link_once_and_show_the_first(
        traits in vec(traits(), 1..12), links in some_links(),
    ) {
        let ranks = descriptors(&traits);
        let evidence = evidence(ranks.len() as u32, &links, &[]);
        let plan = made(&ranks, &PlanConfig::default(), &evidence);
        let mut expected: BTreeMap<u32, (u64, u32, u32)> = BTreeMap::new();
        for (a, b) in pairs(ranks.len()) {
            let class = plan.link(a, b).unwrap().class.unwrap();
            expected.entry(class).or_insert((0, a, b)).0 += 1;
        }
        let report = plan.report();
        let found: BTreeMap<u32, (u64, u32, u32)> =
            report.classes.iter().map(|row| (row.class, (row.links, row.src, row.dst))).collect();
        prop_assert_eq!(found, expected);
        let links: u64 = report.tiers.values().sum();
        prop_assert_eq!(links as usize, ranks.len() + pairs(ranks.len()).count());
    }

    #[test]
    fn the_cost_model_of_some_ranks_is_the_worst_of_their_links(
        traits in vec(traits(), 2..10), links in some_links(), chosen in any::<u16>(),
    ) {
        let ranks = descriptors(&traits);
        let evidence = evidence(ranks.len() as u32, &links, &[]);
        let plan = made(&ranks, &PlanConfig::default(), &evidence);
        let members: Vec<u32> =
            (0..ranks.len() as u32).filter(|rank| chosen >> rank & 1 == 1).collect();
        let costs: Vec<(u64, u64)> = pairs(ranks.len())
            .filter(|(a, b)| members.contains(a) && members.contains(b))
            .map(|(a, b)| {
                let cost = plan.link(a, b).unwrap().chosen.cost;
                (cost.alpha_ns, cost.bytes_per_us)
            })
            .collect();
        if let (Some(alpha), Some(beta)) =
            (costs.iter().map(|cost| cost.0).max(), costs.iter().map(|cost| cost.1).min())
        {
            let model = plan.cost_model(&members).unwrap();
            prop_assert_eq!((model.alpha_ns, model.bytes_per_us), (alpha, beta));
        }
    }

    #[test]
    fn every_byte_of_every_input_is_in_the_hash(
        traits in vec(traits(), 1..6), place in any::<prop::sample::Index>(),
    ) {
        let ranks = descriptors(&traits);
        let hash = |ranks: &[RankDescriptor]| {
            made(ranks, &PlanConfig::default(), &Evidence::default()).hash()
        };
        let changed = place.index(ranks.len());
        let changes: [fn(&mut RankDescriptor); 5] = [
            |rank| rank.pid += 1,
            |rank| rank.device.index += 1,
            |rank| rank.host.numa_node = Some(3),
            |rank| rank.transports[0].address.push(1),
            |rank| rank.later_fields.push(1),
        ];
        for change in changes {
            let mut other = ranks.clone();
            change(&mut other[changed]);
            prop_assert_ne!(hash(&ranks), hash(&other));
        }
    }
}

#[test]
fn the_hash_tells_rules_and_evidence_apart_but_not_where_rules_are_written() {
    let ranks = job("aab");
    let hash = |config: &PlanConfig, evidence: &Evidence| made(&ranks, config, evidence).hash();
    let none = Evidence::default();
    let forbid = with_rules([rule(RuleAction::Forbid, Tier::Shm, "rank:0", "*")]);
    let mut elsewhere = forbid.clone();
    "other.toml:9".clone_into(&mut elsewhere.rules[0].origin);
    assert_eq!(hash(&forbid, &none), hash(&elsewhere, &none));
    assert_ne!(hash(&forbid, &none), hash(&PlanConfig::default(), &none));
    let later = Evidence::of_epoch(1);
    assert_ne!(hash(&forbid, &none), hash(&forbid, &later));
}

#[test]
fn link_digests_tell_links_epochs_and_decisions_apart() {
    let ranks = job("aaa");
    let config = PlanConfig::default();
    let first = made(&ranks, &config, &Evidence::default());
    let mut digests: Vec<u64> =
        pairs(3).chain([(0, 0), (1, 1)]).map(|(a, b)| first.link_digest(a, b).unwrap()).collect();
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), 5);
    let later = made(&ranks, &config, &Evidence::of_epoch(1));
    assert_ne!(first.link_digest(0, 1), later.link_digest(0, 1));
    let forbid = with_rules([rule(RuleAction::Forbid, Tier::Shm, "rank:0", "rank:1")]);
    let other = made(&ranks, &forbid, &Evidence::default());
    assert_ne!(first.link_digest(0, 1), other.link_digest(0, 1));
}

/// 12,500 hosts with eight cards each of two vendors, one card of which has lost its NIC, and two
/// ranks whose shared memory failed.
#[test]
fn a_plan_for_100_000_ranks_holds_a_handful_of_decisions() {
    let ranks: Vec<RankDescriptor> = (0..100_000_u32)
        .map(|number| {
            let vendor = if number % 8 < 4 { "nvidia" } else { "ascend" };
            let mut descriptor = card(number, &format!("node-{}", number / 8), vendor);
            descriptor.transports.push(rdma(MemoryKind::ALL));
            descriptor
        })
        .collect();
    let errno = 14;
    let mut evidence = Evidence::default();
    evidence.add_rank(77_777, RankFact::register_failed("rdma", errno, ""));
    evidence.add_link(8, 9, LinkFact::attach_failed("shm", errno, ""));
    let config = with_rules([rule(RuleAction::Forbid, Tier::Direct, "host:node-5", "*")]);
    let plan = made(&ranks, &config, &evidence);
    // Five kinds of ranks (two vendors, the same two on the ruled host, the lame one): at most 15
    // pairs of kinds, on one host or on two, and the link of its own.
    assert!(plan.class_count() <= 31, "{}", plan.class_count());
    let tier = |a, b| plan.link(a, b).unwrap().chosen.tier;
    // The NIC reaches both cards, which shared memory does not: copies before and after it cost more.
    assert_eq!(tier(0, 1), Tier::Direct);
    // On the host that may not use it so.
    assert_eq!(tier(40, 41), Tier::Shm);
    assert_eq!(tier(8, 9), Tier::Direct);
    assert_eq!(tier(0, 99_999), Tier::Direct);
    assert_eq!(tier(40, 99_999), Tier::Staged);
    assert_eq!(tier(77_777, 3), Tier::Staged);
    let report = plan.report();
    assert_eq!(report.tiers.values().sum::<u64>(), 100_000 * 100_001 / 2);
    assert!(report.matrix.is_none() && report.links.is_none());
    let text = report.to_string();
    assert!(text.lines().count() < 300, "{}", text.lines().count());
    let everyone: Vec<u32> = (0..100_000).collect();
    let model = plan.cost_model(&everyone).unwrap();
    assert_eq!((model.hosts, model.most_ranks_per_host), (12_500, 8));
}
