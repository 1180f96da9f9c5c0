//! How jobs are made out of a job: what a rank keeps for it, and where the ranks of the new one meet.
//!
//! Every rank of a job goes on listening, and everyone knows where. Ranks that are to form a new job
//! meet at the one that is first in it, on its listener, with a key derived from their job's: nobody has
//! to be told an address, and nothing else of the old job is needed, so that it works when that is in
//! pieces. One listener serves one rendezvous after the other; whoever comes early waits in the
//! kernel's queue.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use iccl_wire::Key;

use super::fork;
use super::message::{Failure, LEFT_OUT_LIMIT};
use super::net::{Endpoint, Listener};
use super::rendezvous::{Rendezvous, Target};
use super::root::Root;
use super::roster::Members;
use crate::lock::lock;
use crate::{Error, ErrorKind, Result};

/// What a rank keeps of its job so that others can be made out of it.
pub struct Lineage {
    rank: u32,
    key: Key,
    /// Tells the rendezvous of this job's children from those of others; not a secret.
    job: Vec<u8>,
    /// `None` in a job of one rank.
    listener: Option<Arc<Listener>>,
    /// Where each rank listens.
    addresses: Vec<Option<SocketAddr>>,
    /// The root of the last attempt, if that failed here: it tells late ranks why.
    lingering: Mutex<Option<Root>>,
    /// Ranks that others have left out where this one did not.
    left_out: Mutex<BTreeSet<u32>>,
    owner: fork::Owner,
}

impl Lineage {
    pub(super) fn new(
        rank: u32,
        key: &Key,
        listener: Option<Arc<Listener>>,
        addresses: Vec<Option<SocketAddr>>,
    ) -> Self {
        Self {
            rank,
            job: key.derive("iccl child job", &[]).expose()[..16].to_vec(),
            key: key.derive("iccl child", &[]),
            listener,
            addresses,
            lingering: Mutex::new(None),
            left_out: Mutex::default(),
            owner: fork::Owner::current(),
        }
    }

    /// Where the ranks `members` of this job, in the order of their new ranks, meet to form a job of
    /// their own. `call` says in at most 256 bytes what they were asked to do: if they differ in
    /// it, the error names both. `left_out` are ranks that have failed; those that others gave are
    /// known after an attempt that failed because of it. One at a time.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`: this rank is not among them, or one that there is not. `Forked`.
    pub fn child(
        self: &Arc<Self>,
        members: &[u32],
        call: &str,
        left_out: &[u32],
    ) -> Result<Rendezvous> {
        self.owner.check("bootstrap")?;
        let invalid = |text: String| Err(Error::new(ErrorKind::InvalidArgument, text));
        if let Some(rank) = members.iter().find(|rank| **rank as usize >= self.addresses.len()) {
            let ranks = self.addresses.len();
            return invalid(format!("{call}: there is no rank {rank} among {ranks}"));
        }
        if !members.contains(&self.rank) {
            return invalid(format!("{call}: rank {} is not part of it", self.rank));
        }
        if members.len() == 1 {
            return Ok(Rendezvous::Alone);
        }
        Ok(Rendezvous::Child(Child {
            lineage: Arc::clone(self),
            members: members.into(),
            call: call.to_owned(),
            left_out: left_out.iter().copied().take(LEFT_OUT_LIMIT).collect(),
        }))
    }

    /// Ranks that another rank has left out of an attempt that failed because this one did not.
    pub fn left_out_by_others(&self) -> BTreeSet<u32> {
        lock(&self.left_out).clone()
    }

    /// Ends the root that still tells late ranks of the last attempt, if there is one: the listener is
    /// needed for the next.
    pub(super) fn end_lingering(&self) {
        let lingering = lock(&self.lingering).take();
        drop(lingering);
    }

    pub(super) fn linger(&self, root: Root) {
        *lock(&self.lingering) = Some(root);
    }
}

impl std::fmt::Debug for Lineage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lineage(rank {} of {})", self.rank, self.addresses.len())
    }
}

/// Ranks of a job that form a new one.
#[derive(Clone, Debug)]
pub struct Child {
    pub(super) lineage: Arc<Lineage>,
    /// The members, by their ranks in the new job.
    pub(super) members: Arc<[u32]>,
    /// What they were asked to do.
    pub(super) call: String,
    /// Those who have failed, as far as this rank knows.
    pub(super) left_out: Arc<[u32]>,
}

impl Child {
    /// This rank's number in the old job.
    pub(super) fn own(&self) -> u32 {
        self.lineage.rank
    }

    /// The member that runs the root: the one that is first in the new job.
    pub(super) fn first(&self) -> u32 {
        self.members[0]
    }

    /// Refuses a place that is not this rank's.
    pub(super) fn check(&self, rank: u32, world_size: u32) -> Result<()> {
        let place = self.members.iter().position(|member| *member == self.own());
        if place == Some(rank as usize) && self.members.len() == world_size as usize {
            return Ok(());
        }
        let message = format!(
            "{}: rank {} is not rank {rank} of {world_size} in the new job",
            self.call,
            self.own()
        );
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// Remembers what a failed attempt tells of ranks that others leave out.
    pub(super) fn note(&self, failure: &Failure) {
        let known = self.lineage.addresses.len();
        let ranks = failure.left_out.iter().copied().filter(|rank| (*rank as usize) < known);
        lock(&self.lineage.left_out).extend(ranks.filter(|rank| *rank != self.own()));
    }

    /// Where the members meet, and what they prove there.
    pub(super) fn target(&self) -> Result<Target> {
        let address = self.address_of(self.first()).ok_or_else(|| {
            let message = format!("{}: rank {} told no address", self.call, self.first());
            Error::new(ErrorKind::Internal, message).with_rank(self.first())
        })?;
        let Lineage { key, job, .. } = &*self.lineage;
        Ok(Target { endpoint: Endpoint::Tcp(address), key: key.clone(), job: job.clone() })
    }

    pub(super) fn address_of(&self, rank: u32) -> Option<SocketAddr> {
        self.lineage.addresses.get(rank as usize).copied().flatten()
    }

    /// For the root, which runs on the first member.
    pub(super) fn venue(&self) -> Result<Venue> {
        let listener = self.lineage.listener.clone().ok_or_else(|| {
            Error::new(ErrorKind::Internal, format!("{}: this rank does not listen", self.call))
        })?;
        let others = self.members.iter().skip(1);
        Ok(Venue {
            listener,
            members: Members {
                ranks: Arc::clone(&self.members),
                call: self.call.clone(),
                left_out: self.left_out.to_vec(),
            },
            others: others.filter_map(|rank| Some((*rank, self.address_of(*rank)?))).collect(),
        })
    }
}

/// Where and for whom the root of a new job works.
#[derive(Clone, Debug)]
pub(super) struct Venue {
    pub(super) listener: Arc<Listener>,
    pub(super) members: Members,
    /// The members but the first, and where they listen.
    pub(super) others: Vec<(u32, SocketAddr)>,
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use super::super::message::{CheckIn, FromRoot, ToRoot};
    use super::super::root_link::RootDialer;
    use super::super::{Bootstrap, JoinOptions};
    use super::*;

    #[test]
    fn who_is_connected_when_all_others_are_there_hears_that_it_has_no_part() {
        let key = Key::from_bytes([7; 32]);
        let any = Endpoint::Tcp("127.0.0.1:0".parse().unwrap());
        let listener = Arc::new(Listener::bind(&any).unwrap());
        let Endpoint::Tcp(address) = *listener.endpoint() else { unreachable!() };
        let child = |rank: u32, members: &[u32], call: &str| {
            let own = (rank == 0).then(|| Arc::clone(&listener));
            let lineage = Arc::new(Lineage::new(rank, &key, own, vec![Some(address); 3]));
            lineage.child(members, call, &[]).unwrap()
        };
        let join = |rank| {
            let rendezvous = child(rank, &[0, 1], "shrink without [2]");
            Bootstrap::join(JoinOptions::new(rendezvous, rank, 2)).unwrap()
        };
        let (proved, has_proved) = channel();
        let (joined, have_joined) = channel();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| join(0));
            let left_out = scope.spawn(move || {
                let mut check_in = |_: Option<std::net::IpAddr>| {
                    proved.send(()).unwrap();
                    have_joined.recv().unwrap();
                    Ok(ToRoot::CheckIn(CheckIn {
                        rank: 2,
                        world_size: 2,
                        instance: 2,
                        protocol_version: 0,
                        software: String::new(),
                        process: "pid 2".into(),
                        patience_milliseconds: 1000,
                        listener: None,
                        call: "shrink without [1]".into(),
                        left_out: vec![1],
                    }))
                };
                let deadline = Instant::now() + Duration::from_secs(60);
                let mut dialer = RootDialer {
                    rank: 2,
                    root_rank: 0,
                    is_kept: true,
                    wire_version: iccl_wire::WIRE_VERSION,
                    deadline,
                    cancel: None,
                    check_in: &mut check_in,
                };
                let rendezvous = child(2, &[0, 2], "shrink without [1]");
                let (mut link, _) = dialer.connect(&rendezvous, true).unwrap();
                link.receive(deadline, None).unwrap()
            });
            has_proved.recv().unwrap();
            let second = join(1);
            let first = first.join().unwrap();
            joined.send(()).unwrap();
            let FromRoot::Failed(failure) = left_out.join().unwrap() else {
                panic!("it was let in")
            };
            assert_eq!((failure.kind, failure.rank), (ErrorKind::Mismatch, Some(2)));
            drop((first, second));
        });
    }
}
