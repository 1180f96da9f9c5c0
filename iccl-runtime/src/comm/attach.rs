//! Tries, before the plan is final, what only trying can tell: whether two ranks that say they are on
//! one host can really share memory. (Containers with the same boot id may not.)

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use iccl_plugin_api::sdk::{ChannelRequest, Progress};

use crate::engine::domain::Domain;
use crate::engine::envelope::Lane;
use crate::plan::{Evidence, LinkFact, Plan, Tier};
use crate::topology::RankDescriptor;
use crate::{Error, ErrorKind, Result};

/// How long a dialer tries. Ranks on one host are there or they are not.
const PATIENCE: Duration = Duration::from_secs(5);

/// Channels that stand: (peer, domain) → channel.
pub(super) type Attached = BTreeMap<(u32, usize), u64>;

/// What is to be tried.
pub(super) struct Attempt<'a> {
    pub(super) rank: u32,
    pub(super) plan: &'a Plan,
    pub(super) descriptors: &'a [RankDescriptor],
    pub(super) deadline: Instant,
    /// Set from another thread to give up.
    pub(super) cancel: &'a AtomicBool,
}

/// Opens the channels of this rank's `shm` links and waits for those that it dials. Says which
/// failed.
pub(super) fn attach(
    attempt: &Attempt<'_>,
    domains: &mut [Box<dyn Domain>],
) -> Result<(Attached, Evidence)> {
    let &Attempt { rank, plan, descriptors, deadline, cancel } = attempt;
    let mut attached = Attached::new();
    let mut evidence = Evidence::default();
    let mut dialled = Vec::new();
    for peer in descriptors {
        let Some(link) = plan.link(rank, peer.rank) else { continue };
        if link.chosen.tier != Tier::Shm {
            continue;
        }
        let Some(transport) = link.chosen.transport.as_deref() else { continue };
        let Some(domain) = domains.iter().position(|domain| domain.name() == transport) else {
            continue;
        };
        let address = peer.transport(transport).map_or(&[][..], |facts| &facts.address);
        let opened = domains[domain].channel_open(&ChannelRequest {
            peer: peer.rank,
            dial: rank < peer.rank,
            channel: Lane::Collective.channel(),
            link_digest: plan.link_digest(rank, peer.rank).unwrap_or_default(),
            address,
        });
        match opened {
            Ok(channel) => {
                attached.insert((peer.rank, domain), channel);
                if rank < peer.rank {
                    dialled.push((peer.rank, domain, channel));
                }
            }
            Err(error) => {
                tracing::debug!(peer = peer.rank, %error, "shared memory cannot be attached");
                let transport = transport.to_owned();
                evidence.add_link(rank, peer.rank, LinkFact::AttachFailed { transport, errno: 0 });
            }
        }
    }
    let give_up = deadline.min(Instant::now() + PATIENCE);
    while !dialled.is_empty() {
        progress(domains)?;
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Aborted, "the initialisation was given up"));
        }
        let late = Instant::now() >= give_up;
        dialled.retain(|(peer, domain, channel)| {
            let domain = &mut domains[*domain];
            let failed = match domain.channel_state(*channel) {
                Ok(Progress::Done) => return false,
                Ok(Progress::Pending) if !late => return true,
                Ok(Progress::Pending) => "no answer".to_owned(),
                Err(error) => error.to_string(),
            };
            tracing::debug!(peer, failed, "shared memory cannot be attached");
            let transport = domain.name().to_owned();
            evidence.add_link(rank, *peer, LinkFact::AttachFailed { transport, errno: 0 });
            false
        });
        std::thread::yield_now();
    }
    Ok((attached, evidence))
}

/// Answers those who dial, without waiting.
pub(super) fn progress(domains: &mut [Box<dyn Domain>]) -> Result<()> {
    let mut completions = Vec::new();
    for domain in domains {
        domain.progress(&mut completions)?;
    }
    Ok(())
}
