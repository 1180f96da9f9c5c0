//! Descriptors of imagined ranks, for the tests of the plan.
#![allow(dead_code, reason = "each test binary uses its own part")]

use iccl_plugin_api::MemoryKind;
use iccl_runtime::config::{RuleAction, Selector};
use iccl_runtime::plan::{Evidence, Plan, PlanConfig, PlanError, Rule, Tier, plan};
use iccl_runtime::topology::{
    DeviceFacts, HostFacts, HostIdentity, RankDescriptor, TransportFacts, TransportState, reach,
};
use semver::Version;

/// A rank on the host with this id that works on host memory and has TCP and shared memory.
pub(crate) fn rank(rank: u32, host: &str) -> RankDescriptor {
    let identity = HostIdentity::detect(Some(host)).expect("a given one");
    RankDescriptor {
        rank,
        wire_version: 1,
        iccl_version: Version::new(0, 1, 0),
        host: HostFacts { key: identity.key, name: identity.name, numa_node: None },
        pid: 1000 + rank,
        agreed_digest: 7,
        device: DeviceFacts {
            vendor: "host".to_owned(),
            plugin: "host".to_owned(),
            plugin_version: Version::new(0, 1, 0),
            index: rank,
            pci: None,
            memory_kinds: MemoryKind::Host.mask(),
            later_fields: Vec::new(),
        },
        native_library: None,
        transports: vec![
            transport("tcp", reach::SAME_HOST | reach::OTHER_HOSTS),
            transport("shm", reach::SAME_HOST),
        ],
        later_fields: Vec::new(),
    }
}

pub(crate) fn transport(name: &str, reaches: u32) -> TransportFacts {
    TransportFacts {
        name: name.to_owned(),
        plugin_version: Version::new(0, 1, 0),
        abi: (1, 0),
        state: TransportState::Active,
        reach: reaches,
        memory_kinds: MemoryKind::Host.mask() | MemoryKind::PinnedHost.mask(),
        latency_ns: 0,
        bytes_per_us: 0,
        fabrics: Vec::new(),
        address: Vec::new(),
        later_fields: Vec::new(),
    }
}

/// A transport with a NIC that reads and writes memory of these kinds.
pub(crate) fn rdma(kinds: &[MemoryKind]) -> TransportFacts {
    TransportFacts {
        memory_kinds: kinds.iter().fold(0, |mask, kind| mask | kind.mask()),
        ..transport("rdma", reach::SAME_HOST | reach::OTHER_HOSTS | reach::FABRIC)
    }
}

/// A rank with a card of this vendor that has memory of its own.
pub(crate) fn card(number: u32, host: &str, vendor: &str) -> RankDescriptor {
    let mut descriptor = rank(number, host);
    vendor.clone_into(&mut descriptor.device.vendor);
    vendor.clone_into(&mut descriptor.device.plugin);
    descriptor.device.memory_kinds = MemoryKind::Device.mask() | MemoryKind::PinnedHost.mask();
    descriptor
}

/// One rank per letter: `job("abab")` puts ranks 0 and 2 on host a, 1 and 3 on host b.
pub(crate) fn job(hosts: &str) -> Vec<RankDescriptor> {
    let ranks = hosts.chars().enumerate();
    ranks.map(|(number, host)| rank(number as u32, &host.to_string())).collect()
}

pub(crate) fn without(descriptor: &mut RankDescriptor, transport: &str) {
    descriptor.transports.retain(|found| found.name != transport);
}

pub(crate) fn rule(action: RuleAction, tier: Tier, a: &str, b: &str) -> Rule {
    Rule {
        action,
        tier,
        a: Selector::parse(a).unwrap(),
        b: Selector::parse(b).unwrap(),
        origin: "iccl.toml:3".to_owned(),
    }
}

pub(crate) fn with_rules(rules: impl IntoIterator<Item = Rule>) -> PlanConfig {
    PlanConfig { rules: rules.into_iter().collect(), ..PlanConfig::default() }
}

pub(crate) fn planned(descriptors: &[RankDescriptor]) -> Plan {
    plan(descriptors, &PlanConfig::default(), &Evidence::default()).unwrap()
}

pub(crate) fn refused(descriptors: &[RankDescriptor], config: &PlanConfig) -> PlanError {
    plan(descriptors, config, &Evidence::default()).unwrap_err()
}

pub(crate) fn tier(plan: &Plan, src: u32, dst: u32) -> Tier {
    plan.link(src, dst).unwrap().chosen.tier
}

/// Why a link does not take the tiers before its own, as text.
pub(crate) fn why_not(plan: &Plan, src: u32, dst: u32) -> Vec<String> {
    let link = plan.link(src, dst).unwrap();
    link.refused_better().iter().map(ToString::to_string).collect()
}
