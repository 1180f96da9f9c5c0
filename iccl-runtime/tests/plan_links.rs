//! Which way links take, and the reasons.

mod plan_support;

use CostSource::{Calibration, Configuration, Probe, Table};
use iccl_plugin_api::MemoryKind;
use iccl_runtime::config::{Config, RuleAction, Sources};
use iccl_runtime::plan::{
    Access, CostEntry, CostSource, Evidence, InputDigests, LinkFact, PlanConfig, PlanError,
    RankFact, RankInputs, Tier, agreed_digest, diff, plan,
};
use iccl_runtime::topology::{NativeAbilities, NativeLibrary, TransportState, reach};
use iccl_runtime::{Error, ErrorKind};
use plan_support::{
    card, job, planned, rank, rdma, refused, rule, tier, transport, why_not, with_rules, without,
};
use semver::Version;

/// The tiers of all links as one line: `0-1 tcp, 0-2 shm, …`.
fn tiers(hosts: &str) -> String {
    let plan = planned(&job(hosts));
    let ranks = hosts.len() as u32;
    let pairs = (0..ranks).flat_map(|a| (a + 1..ranks).map(move |b| (a, b)));
    let links: Vec<String> = pairs.map(|(a, b)| format!("{a}-{b} {}", tier(&plan, a, b))).collect();
    links.join(", ")
}

#[test]
fn b029_interleaved_hosts_take_shm_inside_and_tcp_between() {
    assert_eq!(tiers("abab"), "0-1 tcp, 0-2 shm, 0-3 tcp, 1-2 tcp, 1-3 shm, 2-3 tcp");
    let plan = planned(&job("abababab"));
    for (a, b) in (0..8).flat_map(|a| (0..8).map(move |b| (a, b))) {
        let expected = match () {
            () if a == b => Tier::SelfCopy,
            () if a % 2 == b % 2 => Tier::Shm,
            () => Tier::Tcp,
        };
        assert_eq!(tier(&plan, a, b), expected, "{a}-{b}");
    }
}

#[test]
fn b041_uneven_hosts_take_shm_inside_and_tcp_between() {
    assert_eq!(tiers("aab"), "0-1 shm, 0-2 tcp, 1-2 tcp");
    assert_eq!(tiers("aaab"), "0-1 shm, 0-2 shm, 0-3 tcp, 1-2 shm, 1-3 tcp, 2-3 tcp");
    assert_eq!(tiers("abbb"), "0-1 tcp, 0-2 tcp, 0-3 tcp, 1-2 shm, 1-3 shm, 2-3 shm");
    let plan = planned(&job("aaabb"));
    let model = plan.cost_model(&[0, 1, 2, 3, 4]).unwrap();
    assert_eq!((model.hosts, model.fewest_ranks_per_host, model.most_ranks_per_host), (2, 2, 3));
}

#[test]
fn one_rank_alone_copies_to_itself() {
    let plan = planned(&job("a"));
    assert_eq!(tier(&plan, 0, 0), Tier::SelfCopy);
    assert_eq!(plan.link(0, 1), None);
    assert_eq!(plan.link_digest(0, 1), None);
    assert!(plan.cost_model(&[0]).is_some());
    assert!(plan.cost_model(&[]).is_none());
    assert!(plan.cost_model(&[0, 1]).is_none());
}

#[test]
fn b043_shm_absent_on_one_rank_moves_its_links_to_tcp_and_no_others() {
    let mut ranks = job("aaaa");
    without(&mut ranks[1], "shm");
    let plan = planned(&ranks);
    assert_eq!(tier(&plan, 0, 1), Tier::Tcp);
    assert_eq!(tier(&plan, 1, 3), Tier::Tcp);
    assert_eq!(tier(&plan, 0, 2), Tier::Shm);
    assert_eq!(tier(&plan, 2, 3), Tier::Shm);
    assert!(why_not(&plan, 0, 1).contains(&"shm: plugin-absent(dst)".to_owned()));
    assert!(why_not(&plan, 1, 0).contains(&"shm: plugin-absent(src)".to_owned()));
    let link = plan.link(0, 1).unwrap();
    let shm = link.refused.iter().find(|refusal| refusal.tier == Tier::Shm).unwrap();
    assert_eq!(shm.explain(0, 1), "no shm transport on rank 1");
}

#[test]
fn shm_absent_everywhere_leaves_tcp_with_the_reason() {
    let mut ranks = job("aa");
    for rank in &mut ranks {
        without(rank, "shm");
    }
    let plan = planned(&ranks);
    assert_eq!(tier(&plan, 0, 1), Tier::Tcp);
    assert_eq!(
        why_not(&plan, 0, 1),
        [
            "ipc: no-device-memory(both)",
            "shm: plugin-absent(both)",
            "direct: plugin-absent(both)",
            "staged: plugin-absent(both)"
        ]
    );
}

#[test]
fn no_transport_at_all_is_an_error_that_names_link_reasons_and_plugins() {
    let mut ranks = job("aaab");
    for rank in &mut ranks {
        rank.transports.clear();
    }
    let error: Error = refused(&ranks, &PlanConfig::default()).into();
    assert_eq!(error.kind(), ErrorKind::PlanUnsatisfiable);
    assert_eq!(
        error.message(),
        "no way between rank 0 (host a) and rank 1 (host a): ipc: no-device-memory(both); \
         shm: plugin-absent(both); direct: plugin-absent(both); staged: plugin-absent(both); \
         tcp: plugin-absent(both); not loaded: libiccl_transport-shm.so on ranks 0-3, \
         libiccl_transport-tcp.so on ranks 0-3; 6 links in all have none"
    );
    assert!(error.hint().unwrap().contains("iccl plugins"));

    ranks.reverse();
    let other: Error = refused(&ranks, &PlanConfig::default()).into();
    assert_eq!(other.message(), error.message());
}

#[test]
fn only_links_without_a_way_count() {
    let mut ranks = job("aab");
    without(&mut ranks[1], "tcp");
    let PlanError::Unsatisfiable(link) = refused(&ranks, &PlanConfig::default()) else {
        panic!("another error")
    };
    assert_eq!((link.src.0, link.dst.0, link.links), (1, 2, 1));
    assert_eq!(link.missing.len(), 1, "{:?}", link.missing);
    assert_eq!(link.missing[0].1.to_string(), "1");
}

#[test]
fn a_transport_that_is_switched_off_or_quarantined_says_so() {
    let mut ranks = job("aaa");
    ranks[0].transports[1].state = TransportState::Disabled;
    ranks[1].transports[1].state = TransportState::Quarantined;
    let plan = planned(&ranks);
    assert!(why_not(&plan, 0, 2).contains(&"shm: transport-disabled(src)".to_owned()));
    assert!(why_not(&plan, 1, 2).contains(&"shm: quarantined(src)".to_owned()));
}

#[test]
fn versions_fabrics_reach_and_memory_kinds_are_compared() {
    let mut ranks = job("aa");
    ranks[1].transports[1].plugin_version = Version::new(0, 2, 0);
    let plan = planned(&ranks);
    assert!(why_not(&plan, 0, 1).contains(&"shm: version-incompatible(0.1.0, 0.2.0)".to_owned()));
    assert!(why_not(&plan, 1, 0).contains(&"shm: version-incompatible(0.2.0, 0.1.0)".to_owned()));

    let mut ranks = job("aa");
    ranks[0].transports[1].fabrics = vec!["netns:1".to_owned()];
    ranks[1].transports[1].fabrics = vec!["netns:2".to_owned()];
    assert!(why_not(&planned(&ranks), 0, 1).contains(&"shm: no-common-fabric".to_owned()));
    ranks[1].transports[1].fabrics = vec!["netns:3".to_owned(), "netns:1".to_owned()];
    assert_eq!(tier(&planned(&ranks), 0, 1), Tier::Shm);
    for (fabrics, other) in [(["c", "b", "a"], "c"), (["c", "b", "a"], "a"), (["a", "b", "c"], "a")]
    {
        ranks[0].transports[1].fabrics = vec![other.to_owned()];
        ranks[1].transports[1].fabrics = fabrics.map(ToOwned::to_owned).to_vec();
        assert_eq!(tier(&planned(&ranks), 0, 1), Tier::Shm, "{other} in {fabrics:?}");
    }
    ranks[1].transports[1].fabrics.clear();
    assert_eq!(tier(&planned(&ranks), 0, 1), Tier::Shm);

    // A network that reaches other hosts only is no way inside one.
    let mut ranks = job("aab");
    for rank in &mut ranks {
        rank.transports = vec![transport("far", reach::OTHER_HOSTS)];
    }
    let error = refused(&ranks, &PlanConfig::default()).to_string();
    assert!(error.starts_with("no way between rank 0 (host a) and rank 1 (host a)"), "{error}");
    assert!(error.contains("tcp over far: no-common-fabric"), "{error}");
    assert!(!error.contains("links in all"), "{error}");

    let mut ranks = job("aa");
    ranks[1].transports[1].memory_kinds = 0;
    let reason = "shm: memory-kind-unsupported(dst, host)".to_owned();
    assert!(why_not(&planned(&ranks), 0, 1).contains(&reason));

    let mut ranks = job("ab");
    ranks[0].transports[0].fabrics = vec!["ip4".to_owned()];
    ranks[1].transports[0].fabrics = vec!["ip6".to_owned()];
    let error = refused(&ranks, &PlanConfig::default()).to_string();
    assert!(error.contains("tcp: no-common-fabric"), "{error}");
}

#[test]
fn b057_equal_host_id_but_attach_fails_takes_tcp_with_one_warning() {
    let mut evidence = Evidence::default();
    evidence.add_link(2, 0, LinkFact::attach_failed("shm", 13, ""));
    let plan = plan(&job("aaaa"), &PlanConfig::default(), &evidence).unwrap();
    assert_eq!(tier(&plan, 0, 2), Tier::Tcp);
    assert_eq!(tier(&plan, 2, 0), Tier::Tcp);
    assert!(why_not(&plan, 0, 2).contains(&"shm: attach-failed(EACCES)".to_owned()));
    for (a, b) in [(0, 1), (0, 3), (1, 2), (1, 3), (2, 3)] {
        assert_eq!(tier(&plan, a, b), Tier::Shm, "{a}-{b}");
    }
    assert_eq!(plan.warnings(), ["shm: attach-failed(EACCES): 0-2 takes tcp"]);
}

#[test]
fn b057_names_cut_at_a_dot_and_one_name_for_all_do_not_make_one_host() {
    let plan = planned(&[rank(0, "n.a"), rank(1, "n.b")]);
    assert_eq!(tier(&plan, 0, 1), Tier::Tcp);
    let mut ranks = job("ab");
    for rank in &mut ranks {
        "localhost".clone_into(&mut rank.host.name);
    }
    assert_eq!(tier(&planned(&ranks), 0, 1), Tier::Tcp);
}

#[test]
fn a_connection_that_failed_everywhere_leaves_nothing() {
    let mut evidence = Evidence::default();
    evidence.add_link(0, 1, LinkFact::ConnectFailed { transport: "tcp".to_owned(), errno: 111 });
    let error = plan(&job("abb"), &PlanConfig::default(), &evidence).unwrap_err().to_string();
    assert!(error.contains("tcp: connect-failed(ECONNREFUSED)"), "{error}");
    assert!(error.starts_with("no way between rank 0 (host a) and rank 1 (host b)"), "{error}");
    evidence = Evidence::default();
    evidence.add_link(0, 9, LinkFact::ConnectFailed { transport: "tcp".to_owned(), errno: 111 });
    let error = plan(&job("ab"), &PlanConfig::default(), &evidence).unwrap_err();
    assert!(matches!(error, PlanError::BadEvidence { .. }), "{error}");
}

#[test]
fn rules_forbid_require_and_prefer() {
    let ranks = job("aaab");
    let config = with_rules([rule(RuleAction::Forbid, Tier::Shm, "rank:0", "*")]);
    let plan1 = plan(&ranks, &config, &Evidence::default()).unwrap();
    assert_eq!(tier(&plan1, 0, 1), Tier::Tcp);
    assert_eq!(tier(&plan1, 1, 0), Tier::Tcp);
    assert_eq!(tier(&plan1, 1, 2), Tier::Shm);
    let reason = "shm: denied-by-rule(forbid shm between rank:0 and * at iccl.toml:3)".to_owned();
    assert!(why_not(&plan1, 2, 0).contains(&reason), "{:?}", why_not(&plan1, 2, 0));

    let config = with_rules([rule(RuleAction::Prefer, Tier::Tcp, "host:a", "host:a")]);
    let plan2 = plan(&ranks, &config, &Evidence::default()).unwrap();
    let link = plan2.link(0, 1).unwrap();
    assert_eq!(link.chosen.tier, Tier::Tcp);
    assert_eq!(link.runners_up[0].tier, Tier::Shm);
    assert!(why_not(&plan2, 0, 1)[1].starts_with("shm: outranked-by-rule(prefer tcp"));

    let config = with_rules([rule(RuleAction::Require, Tier::Shm, "rank:0-2", "rank:0-2")]);
    let plan3 = plan(&ranks, &config, &Evidence::default()).unwrap();
    assert!(plan3.link(0, 1).unwrap().runners_up.is_empty());
    assert_eq!(plan3.link(0, 3).unwrap().chosen.tier, Tier::Tcp);
}

#[test]
fn a_prefer_rule_that_cannot_be_met_gives_way_and_the_first_of_two_wins() {
    let config = with_rules([
        rule(RuleAction::Prefer, Tier::Ipc, "*", "*"),
        rule(RuleAction::Prefer, Tier::Tcp, "rank:0", "rank:1"),
        rule(RuleAction::Prefer, Tier::Shm, "*", "*"),
    ]);
    let plan = plan(&job("aaa"), &config, &Evidence::default()).unwrap();
    assert_eq!(tier(&plan, 0, 1), Tier::Tcp);
    assert_eq!(tier(&plan, 0, 2), Tier::Shm);
}

#[test]
fn b043_a_rule_that_cannot_be_met_names_the_rule_and_the_link() {
    let config = with_rules([rule(RuleAction::Require, Tier::Shm, "*", "*")]);
    let error: Error = refused(&job("ab"), &config).into();
    assert_eq!(error.kind(), ErrorKind::PlanUnsatisfiable);
    let message = error.message();
    assert!(
        message.starts_with(
            "rule `require shm between * and * at iccl.toml:3` cannot be met: \
             no way between rank 0 (host a) and rank 1 (host b): "
        ),
        "{message}"
    );
    assert!(message.contains("shm: not-same-host"), "{message}");
    assert!(message.contains("tcp: denied-by-rule(require shm"), "{message}");

    let config = with_rules([
        rule(RuleAction::Require, Tier::Shm, "*", "*"),
        rule(RuleAction::Forbid, Tier::Shm, "rank:1", "vendor:host"),
    ]);
    let error = refused(&job("aa"), &config).to_string();
    assert!(error.contains("require shm between * and *"), "{error}");
    assert!(error.contains("shm: denied-by-rule(forbid shm between rank:1"), "{error}");

    let config = with_rules([rule(RuleAction::Forbid, Tier::SelfCopy, "*", "*")]);
    let error: Error = refused(&job("aa"), &config).into();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
}

#[test]
fn rules_by_vendor_match_in_either_orientation() {
    let ranks = [card(0, "a", "nvidia"), card(1, "a", "ascend"), card(2, "a", "nvidia")];
    let config =
        with_rules([rule(RuleAction::Forbid, Tier::Shm, "vendor:nvidia", "vendor:ascend")]);
    let plan = plan(&ranks, &config, &Evidence::default()).unwrap();
    assert_eq!(tier(&plan, 0, 1), Tier::Tcp);
    assert_eq!(tier(&plan, 1, 2), Tier::Tcp);
    assert_eq!(tier(&plan, 0, 2), Tier::Shm);
    assert!(plan.warnings().is_empty());
}

#[test]
fn a_rule_that_matches_nothing_is_a_warning() {
    let config = with_rules([rule(RuleAction::Forbid, Tier::Shm, "vendor:nvidai", "*")]);
    let plan = plan(&job("aa"), &config, &Evidence::default()).unwrap();
    assert_eq!(
        plan.warnings(),
        ["the rule `forbid shm between vendor:nvidai and * at iccl.toml:3` matches no link"]
    );
}

#[test]
fn gdr_is_judged_per_side() {
    let all = [MemoryKind::Host, MemoryKind::PinnedHost, MemoryKind::Device];
    let mut ranks =
        [card(0, "a", "nvidia"), card(1, "b", "ascend"), card(2, "c", "kunlun"), rank(3, "d")];
    ranks[0].transports.push(rdma(&all));
    ranks[1].transports.push(rdma(&all));
    ranks[2].transports.push(rdma(&all[..2]));
    ranks[3].transports.push(rdma(&all[..1]));
    let plan1 = planned(&ranks);
    let sides = |plan: &iccl_runtime::plan::Plan, a, b| {
        let way = plan.link(a, b).unwrap().chosen;
        (way.tier, way.src, way.dst)
    };
    assert_eq!(sides(&plan1, 0, 1), (Tier::Direct, Access::Direct, Access::Direct));
    assert_eq!(sides(&plan1, 0, 2), (Tier::Staged, Access::Direct, Access::Staged));
    assert_eq!(sides(&plan1, 2, 0), (Tier::Staged, Access::Staged, Access::Direct));
    assert_eq!(sides(&plan1, 0, 3), (Tier::Direct, Access::Direct, Access::Direct));
    assert!(why_not(&plan1, 0, 2).contains(&"direct over rdma: no-gdr-dst".to_owned()));
    assert!(why_not(&plan1, 2, 0).contains(&"direct over rdma: no-gdr-src".to_owned()));
    let fallback = &plan1.link(0, 1).unwrap().runners_up[0];
    assert_eq!(
        (fallback.tier, fallback.src, fallback.dst),
        (Tier::Staged, Access::Staged, Access::Staged)
    );
    assert_eq!(plan1.link(0, 1).unwrap().runners_up[1].tier, Tier::Tcp);

    // Registration fails on one card: its links are staged on its side, nothing goes to TCP.
    let mut evidence = Evidence::default();
    evidence.add_rank(1, RankFact::register_failed("rdma", 14, ""));
    let plan2 = plan(&ranks, &PlanConfig::default(), &evidence).unwrap();
    assert_eq!(sides(&plan2, 0, 1), (Tier::Staged, Access::Direct, Access::Staged));
    assert_eq!(sides(&plan2, 1, 3), (Tier::Staged, Access::Staged, Access::Direct));
    assert_eq!(sides(&plan2, 0, 3), sides(&plan1, 0, 3));
    assert_eq!(sides(&plan2, 0, 2), sides(&plan1, 0, 2));
    let reason = "direct over rdma: register-failed(dst, EFAULT)".to_owned();
    assert!(why_not(&plan2, 0, 1).contains(&reason));
    assert_eq!(plan2.warnings(), ["rdma: registering device memory failed (EFAULT) on rank 1"]);

    // And on the other: which of the two is decided first must not matter.
    let mut evidence = Evidence::default();
    evidence.add_rank(0, RankFact::register_failed("rdma", 12, ""));
    let plan3 = plan(&ranks, &PlanConfig::default(), &evidence).unwrap();
    assert_eq!(sides(&plan3, 0, 1), (Tier::Staged, Access::Staged, Access::Direct));
    let reason = "direct over rdma: register-failed(src, ENOMEM)".to_owned();
    assert!(why_not(&plan3, 0, 1).contains(&reason));
}

#[test]
fn b043_rdma_on_one_side_only_takes_tcp() {
    let mut ranks = [card(0, "a", "nvidia"), card(1, "b", "nvidia")];
    ranks[0].transports.push(rdma(MemoryKind::ALL));
    let plan1 = planned(&ranks);
    assert_eq!(tier(&plan1, 0, 1), Tier::Tcp);
    assert!(why_not(&plan1, 0, 1).contains(&"direct over rdma: plugin-absent(dst)".to_owned()));
    let config = with_rules([rule(RuleAction::Require, Tier::Direct, "*", "*")]);
    let error = refused(&ranks, &config).to_string();
    assert!(error.contains("direct over rdma: plugin-absent(dst)"), "{error}");
    assert!(error.contains("libiccl_transport-rdma.so on rank 1"), "{error}");
}

#[test]
fn ipc_needs_one_vendor_one_host_and_a_transport_for_device_memory() {
    let mut ranks = [card(0, "a", "nvidia"), card(1, "a", "nvidia"), card(2, "a", "ascend")];
    let plan1 = planned(&ranks);
    let reason = "ipc over shm: memory-kind-unsupported(both, device)".to_owned();
    assert!(why_not(&plan1, 0, 1).contains(&reason));
    assert_eq!(plan1.link(0, 1).unwrap().chosen.src, Access::Staged);
    for rank in &mut ranks {
        rank.transports[1].memory_kinds |= MemoryKind::Device.mask();
    }
    let plan2 = planned(&ranks);
    assert_eq!(tier(&plan2, 0, 1), Tier::Ipc);
    assert_eq!(why_not(&plan2, 0, 2), ["ipc: vendors-differ"]);
}

#[test]
fn figures_come_from_configuration_calibration_probe_and_table_in_this_order() {
    let mut ranks = job("ab");
    let entry = |alpha_ns, bytes_per_us| CostEntry {
        tier: Tier::Tcp,
        transport: None,
        alpha_ns,
        bytes_per_us,
    };
    let mut config = PlanConfig::default();
    let mut evidence = Evidence::default();
    let cost = |ranks: &[_], config: &PlanConfig, evidence: &Evidence| {
        let cost = plan(ranks, config, evidence).unwrap().link(1, 0).unwrap().chosen.cost;
        ((cost.alpha_ns, cost.alpha_source), (cost.bytes_per_us, cost.beta_source))
    };
    assert_eq!(cost(&ranks, &config, &evidence), ((25_000, Table), (2_500, Table)));
    // What the plugins say of themselves; the slower side decides.
    (ranks[0].transports[0].latency_ns, ranks[0].transports[0].bytes_per_us) = (10_000, 9_000);
    (ranks[1].transports[0].latency_ns, ranks[1].transports[0].bytes_per_us) = (12_000, 8_000);
    assert_eq!(cost(&ranks, &config, &evidence), ((12_000, Table), (8_000, Table)));
    evidence.add_rank(0, RankFact::speed(Tier::Tcp, "tcp", 14_336, 1_024));
    assert_eq!(cost(&ranks, &config, &evidence), ((14_336, Probe), (1_024, Probe)));
    config.calibration = vec![entry(Some(5), None)];
    assert_eq!(cost(&ranks, &config, &evidence), ((5, Calibration), (1_024, Probe)));
    config.costs = vec![entry(None, Some(77))];
    assert_eq!(cost(&ranks, &config, &evidence), ((5, Calibration), (77, Configuration)));
    // Deterministic: nothing that was measured counts.
    config.deterministic = true;
    assert_eq!(cost(&ranks, &config, &evidence), ((12_000, Table), (77, Configuration)));
}

#[test]
fn a_slow_better_tier_loses_by_its_score_and_says_so() {
    let mut config = PlanConfig::default();
    config.costs.push(CostEntry {
        tier: Tier::Shm,
        transport: None,
        alpha_ns: None,
        bytes_per_us: Some(100),
    });
    let plan = plan(&job("aa"), &config, &Evidence::default()).unwrap();
    assert_eq!(tier(&plan, 0, 1), Tier::Tcp);
    let reasons = why_not(&plan, 0, 1);
    assert!(reasons.iter().any(|reason| reason.starts_with("shm: slower(")), "{reasons:?}");
}

#[test]
fn two_transports_of_one_tier_are_two_candidates() {
    let mut ranks = job("ab");
    for rank in &mut ranks {
        rank.transports.push(transport("ucx", reach::SAME_HOST | reach::OTHER_HOSTS));
        rank.transports[2].latency_ns = 1_000;
    }
    let mut evidence = Evidence::default();
    let plan1 = plan(&ranks, &PlanConfig::default(), &evidence).unwrap();
    assert_eq!(plan1.link(0, 1).unwrap().chosen.transport.as_deref(), Some("ucx"));
    evidence.add_rank(1, RankFact::Quarantined { transport: "ucx".to_owned() });
    let plan2 = plan(&ranks, &PlanConfig::default(), &evidence).unwrap();
    let link = plan2.link(0, 1).unwrap();
    assert_eq!(link.chosen.transport.as_deref(), Some("tcp"));
    assert!(link.refused.iter().any(|r| r.to_string() == "tcp over ucx: quarantined(dst)"));
    assert_eq!(plan2.warnings(), ["ucx: quarantined on rank 1"]);
    assert_ne!(plan1.link_digest(0, 1), plan2.link_digest(0, 1));
}

#[test]
fn the_cost_model_is_that_of_the_slowest_link_among_the_ranks() {
    let plan = planned(&job("aabb"));
    let inside = plan.cost_model(&[0, 1]).unwrap();
    assert_eq!((inside.alpha_ns, inside.bytes_per_us), (3_000, 14_000));
    assert_eq!((inside.hosts, inside.between_hosts), (1, None));
    let across = plan.cost_model(&[3, 1, 2, 1]).unwrap();
    assert_eq!((across.alpha_ns, across.bytes_per_us), (25_000, 2_500));
    assert_eq!(across.inside_hosts, Some((3_000, 14_000)));
    assert_eq!(across.between_hosts, Some((25_000, 2_500)));
    assert_eq!((across.fewest_ranks_per_host, across.most_ranks_per_host), (1, 2));
}

#[test]
fn b028_islands_and_local_ranks_keep_interleaved_ranks_apart() {
    let mut ranks = job("abab");
    for rank in &mut ranks {
        let id = "host-collectives 0.1.0".to_owned();
        let library = NativeLibrary {
            is_given_up: false,
            id,
            reach: reach::SAME_HOST,
            abilities: NativeAbilities::default(),
            later_fields: Vec::new(),
        };
        rank.native_library = Some(library);
    }
    let plan = planned(&ranks);
    let topology = plan.topology();
    let islands: Vec<&[u32]> =
        topology.islands().iter().map(|island| island.ranks.as_slice()).collect();
    assert_eq!(islands, [&[0, 2][..], &[1, 3]]);
    assert_eq!(topology.local_rank(3), Some(1));
    assert_eq!(topology.island_of(3), Some(1));
    assert_eq!(topology.hosts()[1].ranks, [1, 3]);
    // A library that reaches other hosts makes one island of all.
    for rank in &mut ranks {
        rank.native_library.as_mut().unwrap().reach |= reach::OTHER_HOSTS;
    }
    assert_eq!(planned(&ranks).topology().islands().len(), 1);
    ranks[2].native_library = None;
    let plan = planned(&ranks);
    assert_eq!(plan.topology().islands()[0].ranks, [0, 1, 3]);
    assert_eq!(plan.topology().island_of(2), None);
}

#[test]
fn b061_wire_versions_that_differ_are_refused_by_rank() {
    let mut ranks = job("aa");
    ranks[1].wire_version = 2;
    let error: Error = refused(&ranks, &PlanConfig::default()).into();
    assert_eq!(error.kind(), ErrorKind::VersionMismatch);
    assert!(error.message().contains("1 on rank 0; 2 on rank 1"), "{error}");
}

#[test]
fn ranks_missing_or_twice_are_named() {
    let mut ranks = job("aaaa");
    ranks.remove(1);
    let error: Error = refused(&ranks, &PlanConfig::default()).into();
    assert_eq!(error.kind(), ErrorKind::Rendezvous);
    assert_eq!(error.message(), "rank 1 of 4 published no descriptor");
    ranks.push(rank(3, "a"));
    let error = refused(&ranks, &PlanConfig::default()).to_string();
    assert_eq!(error, "rank 3 came twice");
    ranks[0].rank = u32::MAX;
    ranks[2].rank = 7;
    assert!(refused(&ranks, &PlanConfig::default()).to_string().contains("published no"));
    assert!(refused(&[], &PlanConfig::default()).to_string().contains("no rank"));
}

#[test]
fn b042_settings_that_differ_end_the_plan_on_the_rank_that_differs() {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let ring = [pair("engine.algorithm", "ring"), pair("engine.chunk", "64K")];
    let direct = [pair("engine.algorithm", "direct"), pair("engine.chunk", "1M")];
    let mut ranks = job("aaa");
    for (rank, settings) in ranks.iter_mut().zip([&ring, &direct, &ring]) {
        rank.agreed_digest = agreed_digest(settings);
    }
    let error: Error = refused(&ranks, &PlanConfig::default()).into();
    assert_eq!((error.kind(), error.rank()), (ErrorKind::PlanDiverged, Some(1)));
    let turned = [ring[1].clone(), ring[0].clone()];
    assert_eq!(agreed_digest(&ring), agreed_digest(&turned));
}

/// What a rank sends so that a difference can be named, after the passage.
fn inputs(
    rank: u32,
    ranks: &[iccl_runtime::topology::RankDescriptor],
    config: &PlanConfig,
    evidence: &Evidence,
) -> RankInputs {
    let digests = InputDigests::of(ranks, config, evidence).unwrap();
    let sent = RankInputs { rank, digests, settings: config.agreed.clone() };
    RankInputs::decode(&sent.encode().unwrap()).unwrap()
}

#[test]
fn b042_a_setting_that_differs_is_named_with_its_values_and_ranks() {
    let with = |algorithm: &str, chunk: &str| {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let agreed = vec![pair("engine.algorithm", algorithm), pair("engine.chunk", chunk)];
        PlanConfig { agreed, ..PlanConfig::default() }
    };
    let (ranks, none) = (job("aaa"), Evidence::default());
    let ring = with("ring", "64K");
    let direct = with("direct", "1M");
    let all = [&ring, &direct, &ring].into_iter().zip(0..);
    let all: Vec<_> = all.map(|(config, rank)| inputs(rank, &ranks, config, &none)).collect();
    assert_eq!(
        diff(&all).unwrap().to_string(),
        "ranks disagree on the setting `engine.algorithm`: `ring` on ranks 0, 2; `direct` on rank 1"
    );
    let absent = inputs(1, &ranks, &PlanConfig::default(), &none);
    let text = diff(&[all[0].clone(), absent]).unwrap().to_string();
    assert!(text.ends_with("`ring` on rank 0; unset on rank 1"), "{text}");
    // A value too long to send differs by its digest at least.
    let (long, longer) = ("é".repeat(200), "é".repeat(201));
    let cut = |rank, chunk: &str| inputs(rank, &ranks, &with("ring", chunk), &none);
    assert_eq!(diff(&[cut(0, &long), cut(1, &longer)]).unwrap().input, "agreed settings");
}

#[test]
fn b042_the_first_input_that_differs_is_named_with_its_ranks() {
    let (ranks, config, evidence) = (job("aaa"), PlanConfig::default(), Evidence::default());
    let same = |rank| inputs(rank, &ranks, &config, &evidence);
    assert_eq!(diff(&[same(0), same(1)]), None);

    let mut other_ranks = ranks.clone();
    other_ranks[2].pid += 1;
    let mut other_evidence = evidence.clone();
    other_evidence.add_rank(0, RankFact::Quarantined { transport: "shm".to_owned() });
    let rules = with_rules([rule(RuleAction::Forbid, Tier::Shm, "*", "*")]);
    let deterministic = PlanConfig { deterministic: true, ..config.clone() };
    let cases = [
        ("rules", inputs(1, &ranks, &rules, &other_evidence)),
        ("costs", inputs(1, &ranks, &deterministic, &evidence)),
        ("descriptors", inputs(1, &other_ranks, &config, &other_evidence)),
        ("evidence", inputs(1, &ranks, &config, &other_evidence)),
    ];
    for (section, different) in cases {
        let divergence = diff(&[same(0), different, same(2)]).unwrap();
        assert_eq!(divergence.input, section);
        assert_eq!(divergence.odd_one_out(), Some(1));
        let text = divergence.to_string();
        assert!(text.contains("on ranks 0, 2; ") && text.ends_with(" on rank 1"), "{text}");
        let error: Error = PlanError::from(divergence).into();
        assert_eq!((error.kind(), error.rank()), (ErrorKind::PlanDiverged, Some(1)));
    }
    let bytes = same(0).encode().unwrap();
    for length in 0..bytes.len() {
        assert!(RankInputs::decode(&bytes[..length]).is_err(), "cut at {length}");
    }
}

#[test]
fn the_settings_of_a_file_reach_the_plan() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("iccl.toml");
    let text = r#"
        [plan]
        latency = { tcp = "7us" }
        bandwidth = { tcp = "3GB/s" }
        [[plan.rule]]
        forbid = "shm"
        between = ["rank:0", "*"]
        [engine]
        deterministic = true
    "#;
    std::fs::write(&file, text).unwrap();
    let settings = Config::load(&Sources::default().with_file(&file)).unwrap();
    let config = PlanConfig::from_settings(&settings);
    assert!(config.deterministic);
    assert_eq!(config.agreed, settings.agreed());
    let plan = plan(&job("aaa"), &config, &Evidence::default()).unwrap();
    let link = plan.link(0, 1).unwrap();
    assert_eq!((link.chosen.cost.alpha_ns, link.chosen.cost.bytes_per_us), (7_000, 3_000));
    assert_eq!(tier(&plan, 1, 2), Tier::Shm);
    let reason = why_not(&plan, 0, 1)[1].clone();
    assert!(reason.starts_with("shm: denied-by-rule(forbid shm between rank:0 and * at "));
    assert!(reason.contains("iccl.toml:5:"), "{reason}");
}
