//! Tries, before the plan is final, what only trying can tell: whether two ranks that say they are on
//! one host can really share memory (containers with the same boot id may not), and whether NICs take
//! memory of this rank's card.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use iccl_plugin_api::MemoryKind;
use iccl_plugin_api::sdk::{ChannelRequest, Progress};

use super::device::Device;
use crate::engine::domain::Domain;
use crate::engine::envelope::Lane;
use crate::plan::{Evidence, LinkFact, Plan, RankFact, RegionForm, Tier};
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
                evidence.add_link(rank, peer.rank, attach_failed(transport, &error));
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
            let error = match domain.channel_state(*channel) {
                Ok(Progress::Done) => return false,
                Ok(Progress::Pending) if !late => return true,
                Ok(Progress::Pending) => Error::new(ErrorKind::Timeout, "no answer"),
                Err(error) => error,
            };
            tracing::debug!(peer, %error, "shared memory cannot be attached");
            evidence.add_link(rank, *peer, attach_failed(domain.name(), &error));
            false
        });
        std::thread::yield_now();
    }
    Ok((attached, evidence))
}

/// Registers a piece of the card's memory with each transport that asks for it, and takes it back. Says which
/// took it in which form, and why others did not. A card that gives its memory to no NIC has said so already.
pub(super) fn register(
    rank: u32,
    device: &Device,
    descriptors: &[RankDescriptor],
    domains: &mut [Box<dyn Domain>],
) -> Evidence {
    let mut evidence = Evidence::default();
    let own = descriptors.iter().find(|descriptor| descriptor.rank == rank);
    for domain in domains.iter_mut().filter(|domain| domain.registers()) {
        let name = domain.name().to_owned();
        let facts = own.and_then(|own| own.transport(&name));
        if facts.is_none_or(|facts| facts.memory_kinds & MemoryKind::Device.mask() == 0) {
            continue;
        }
        let fact = match device.try_region(&mut **domain) {
            None => continue,
            Some(Ok(bit)) => RegionForm::from_bit(bit).map_or_else(
                || RankFact::register_failed(&name, 0, "a form that this iccl does not know"),
                |form| RankFact::Registered { transport: name.clone(), form },
            ),
            Some(Err(error)) => {
                tracing::debug!(rank, transport = name, %error, "the card's memory is not for its NIC");
                let (errno, words) = said(&error, "transport.");
                RankFact::register_failed(&name, errno, words)
            }
        };
        evidence.add_rank(rank, fact);
    }
    evidence
}

/// What the transport said of an attempt that failed, for the plan's reasons.
fn attach_failed(transport: &str, error: &Error) -> LinkFact {
    let (errno, words) = said(error, "");
    // The code has said so.
    LinkFact::attach_failed(transport, errno, &words.replace("attach failed: ", ""))
}

/// The system's error number, as those give it whose calls begin so, or 0; and the plugin's own words.
fn said<'a>(error: &'a Error, calls: &str) -> (i32, &'a str) {
    let said = |name| error.context().find(|(key, _)| *key == name).map(|(_, value)| value);
    let (plugin, call) = (said("plugin"), said("call"));
    let code = said("code").filter(|_| call.is_none_or(|call| call.starts_with(calls)));
    let words = plugin.zip(call).and_then(|(plugin, call)| {
        error.message().strip_prefix(&format!("plugin {plugin}: {call}: "))
    });
    (code.and_then(|code| code.parse().ok()).unwrap_or(0), words.unwrap_or(error.message()))
}

/// Answers those who dial, without waiting.
pub(super) fn progress(domains: &mut [Box<dyn Domain>]) -> Result<()> {
    let mut completions = Vec::new();
    for domain in domains {
        domain.progress(&mut completions)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_number_or_the_words_of_the_transport() {
        let error = |message: &str| {
            Error::new(ErrorKind::Authentication, message)
                .with("plugin", "transport-shm")
                .with("call", "transport.channel_state")
        };
        let words = "plugin transport-shm: transport.channel_state: not authenticated: attach \
                     failed: the peer runs as user 7, this rank as 0";
        let cause = |error: &Error| match attach_failed("shm", error) {
            LinkFact::AttachFailed { cause, .. } => cause,
            other @ LinkFact::ConnectFailed { .. } => panic!("{other:?}"),
        };
        assert_eq!(
            cause(&error(words)),
            "not authenticated: the peer runs as user 7, this rank as 0"
        );
        assert_eq!(cause(&error(words).with("code", 24)), "EMFILE");
        assert_eq!(cause(&Error::new(ErrorKind::Timeout, "no answer")), "no answer");
    }
}
