//! The control plane: one thread per bootstrap that sleeps on the edges of the tree. It carries
//! all-gathers, floods notices of failures, and turns an edge that ends without a goodbye into the
//! news that a rank is lost, within milliseconds and on every rank.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::channel::Channel;
use super::gather::{Gatherer, Outcome};
use super::message::{CONTRIBUTION_LIMIT_BYTES, Notice, TreeMessage};
use super::net::{Waker, wait_for};
use super::wiring::Edge;
use super::{CANCEL_CHECK, fork, tree};
use crate::lock::lock;
use crate::{Error, ErrorKind, Result};

/// How much longer than its own deadline a rank waits for rank 0, which knows who is missing.
const NAMING_GRACE: Duration = Duration::from_millis(500);
/// How long a goodbye may take to leave.
const FLUSH_LIMIT: Duration = Duration::from_millis(200);
/// How long to sleep when nothing is due; anything else wakes the thread.
const LONG_SLEEP: Duration = Duration::from_secs(999);
/// Notices kept for callbacks that are registered later.
const KEPT_NOTICES: usize = 64;

pub(super) type Callback = Arc<dyn Fn(&Notice) + Send + Sync>;

/// The handle of the control thread.
pub(super) struct Control {
    rank: u32,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The number of the last all-gather; locked while one runs.
    round: Mutex<u64>,
    owner: fork::Owner,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    waker: Waker,
}

#[derive(Default)]
struct State {
    commands: VecDeque<Command>,
    outcome: Option<(u64, Outcome)>,
    /// Why the control plane is of no use any more.
    broken: Option<Error>,
    notices: Vec<Notice>,
    callbacks: Vec<Callback>,
}

enum Command {
    Contribute { sequence: u64, tag: u32, bytes: Vec<u8>, deadline: Instant },
    Notify(Notice),
    Close { linger_until: Instant },
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn command(&self, command: Command) {
        self.lock().commands.push_back(command);
        self.waker.wake();
    }
}

impl Control {
    /// Takes the edges over and starts the thread. Without edges (one rank) there is none.
    pub(super) fn start(rank: u32, world_size: u32, edges: BTreeMap<u32, Edge>) -> Result<Self> {
        let resources = |error: std::io::Error| {
            Error::new(ErrorKind::OutOfResources, "bootstrap: the control thread cannot start")
                .with_source(error)
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            waker: Waker::new().map_err(resources)?,
        });
        let thread = if edges.is_empty() {
            None
        } else {
            let plane = Plane {
                rank,
                edges: BTreeMap::new(),
                gatherer: Gatherer::new(world_size),
                shared: Arc::clone(&shared),
                linger_until: None,
            };
            let thread = std::thread::Builder::new().name("iccl-control".into());
            Some(thread.spawn(move || plane.run(edges)).map_err(resources)?)
        };
        let owner = fork::Owner::current();
        Ok(Self { rank, shared, thread, round: Mutex::new(0), owner })
    }

    pub(super) fn check_process(&self) -> Result<()> {
        self.owner.check("bootstrap")
    }

    pub(super) fn all_gather(
        &self,
        tag: u32,
        bytes: &[u8],
        timeout: Duration,
        cancel: Option<&AtomicBool>,
    ) -> Result<Vec<Vec<u8>>> {
        self.check_process()?;
        if bytes.len() > CONTRIBUTION_LIMIT_BYTES {
            let (is, limit) = (bytes.len(), CONTRIBUTION_LIMIT_BYTES);
            let message = format!("all-gather: {is} bytes per rank, at most {limit} are allowed");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let Ok(mut round) = self.round.try_lock() else {
            let message = "all-gather: another thread is in one";
            return Err(Error::new(ErrorKind::ConcurrentUse, message));
        };
        if self.thread.is_none() {
            return Ok(vec![bytes.to_vec()]);
        }
        *round += 1;
        let sequence = *round;
        let deadline = Instant::now() + timeout;
        let bytes = bytes.to_vec();
        self.shared.command(Command::Contribute { sequence, tag, bytes, deadline });
        self.await_outcome(sequence, tag, deadline + NAMING_GRACE, cancel)
    }

    fn await_outcome(
        &self,
        sequence: u64,
        tag: u32,
        deadline: Instant,
        cancel: Option<&AtomicBool>,
    ) -> Result<Vec<Vec<u8>>> {
        let mut state = self.shared.lock();
        loop {
            if let Some((_, outcome)) = state.outcome.take_if(|(ended, _)| *ended == sequence) {
                return outcome.map_err(|failure| {
                    let error = failure.to_error();
                    // That a rank has left says less than what it said before it did.
                    let known =
                        state.broken.clone().filter(|_| error.kind() == ErrorKind::PeerLost);
                    known.unwrap_or(error)
                });
            }
            if let Some(error) = &state.broken {
                return Err(error.clone());
            }
            if cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
                return Err(super::cancelled());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let rank = self.rank;
                let message = format!(
                    "all-gather (tag {tag:#x}): rank {rank} heard nothing from rank 0, which \
                     knows who is missing"
                );
                return Err(Error::new(ErrorKind::Timeout, message).with_rank(0));
            }
            let pause = if cancel.is_some() { left.min(CANCEL_CHECK) } else { left };
            let waited = self.shared.changed.wait_timeout(state, pause);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    pub(super) fn notify(&self, notice: Notice) -> Result<()> {
        self.check_process()?;
        self.shared.command(Command::Notify(notice));
        Ok(())
    }

    pub(super) fn on_notice(&self, callback: &Callback) {
        let earlier = {
            let mut state = self.shared.lock();
            state.callbacks.push(Arc::clone(callback));
            state.notices.clone()
        };
        for notice in &earlier {
            callback(notice);
        }
    }

    pub(super) fn notices(&self) -> Vec<Notice> {
        self.shared.lock().notices.clone()
    }

    /// Leaves: waits until the ranks below have left as well, at most `linger`, so that news still
    /// passes through here, then says goodbye and ends the thread.
    pub(super) fn close(&mut self, linger: Duration) {
        let Some(thread) = self.thread.take() else { return };
        if self.owner.is_current() {
            self.shared.command(Command::Close { linger_until: Instant::now() + linger });
            // A callback that drops the last handle runs on the thread itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        } else {
            // After a fork it is the parent's; its number may be that of a thread of this process.
            std::mem::forget(thread);
        }
    }
}

/// What the thread owns.
struct Plane {
    rank: u32,
    edges: BTreeMap<u32, Channel>,
    /// Used by rank 0 only.
    gatherer: Gatherer,
    shared: Arc<Shared>,
    linger_until: Option<Instant>,
}

impl Plane {
    fn run(mut self, edges: BTreeMap<u32, Edge>) {
        for (neighbour, edge) in edges {
            self.edges.insert(neighbour, edge.channel);
            for frame in edge.early_frames {
                self.take_frame(neighbour, &frame);
            }
        }
        loop {
            self.obey();
            let ended = self.gatherer.expire(Instant::now());
            self.end_rounds(ended);
            if self.may_leave() {
                break;
            }
            if let Err(error) = self.wait() {
                tracing::error!(%error, "bootstrap: the control thread cannot wait");
                self.break_down(
                    &Error::new(ErrorKind::Internal, "control plane").with_source(error),
                );
                break;
            }
        }
        self.say_goodbye();
    }

    fn parent(&self) -> Option<u32> {
        tree::parent(self.rank)
    }

    fn wait(&mut self) -> std::io::Result<()> {
        let mut fds = vec![(None, self.shared.waker.as_fd(), PollFlags::IN)];
        for (neighbour, channel) in &self.edges {
            fds.push((Some(*neighbour), channel.as_fd(), channel.interest()));
        }
        let now = Instant::now();
        let due = [self.gatherer.deadline(), self.linger_until].into_iter().flatten().min();
        let timeout = due.map_or(LONG_SLEEP, |due| due.saturating_duration_since(now));
        for ready in wait_for(&fds, timeout)? {
            match ready {
                None => self.shared.waker.clear(),
                Some(neighbour) => self.serve(neighbour),
            }
        }
        Ok(())
    }

    fn serve(&mut self, neighbour: u32) {
        let Some(channel) = self.edges.get_mut(&neighbour) else { return };
        let mut frames = Vec::new();
        let outcome = channel.pump(&mut frames);
        for frame in frames {
            self.take_frame(neighbour, &frame);
        }
        if let Err(error) = outcome
            && self.edges.remove(&neighbour).is_some()
        {
            let rank = self.rank;
            let message =
                format!("rank {neighbour} is gone: its control connection to rank {rank}: {error}");
            self.flood(
                &Notice {
                    communicator: 0,
                    origin: rank,
                    culprit: Some(neighbour),
                    kind: ErrorKind::PeerLost,
                    message,
                },
                None,
            );
        }
    }

    fn take_frame(&mut self, from: u32, frame: &[u8]) {
        match TreeMessage::decode(frame) {
            Ok(TreeMessage::Up { sequence, tag, rank, bytes }) => {
                self.contribute(sequence, tag, rank, bytes, None);
            }
            Ok(TreeMessage::Down { sequence, outcome }) => self.end_round(sequence, outcome),
            Ok(TreeMessage::Notice(notice)) => self.flood(&notice, Some(from)),
            Ok(TreeMessage::Goodbye) => {
                self.edges.remove(&from);
                if Some(from) == self.parent() {
                    let message = format!("bootstrap: rank {from} has left the job");
                    self.break_down(&Error::new(ErrorKind::PeerLost, message).with_rank(from));
                } else {
                    self.note_left(from);
                }
            }
            Ok(TreeMessage::Left { rank }) => self.note_left(rank),
            Ok(TreeMessage::Welcome) => {}
            Err(error) => {
                // The peer has proved itself: a fault of iccl, and the stream is beyond repair.
                tracing::error!(rank = from, %error, "bootstrap: unreadable message");
                self.edges.remove(&from);
                let message = format!("rank {from} sent a message that cannot be read: {error}");
                self.flood(
                    &Notice {
                        communicator: 0,
                        origin: self.rank,
                        culprit: Some(from),
                        kind: ErrorKind::PeerLost,
                        message,
                    },
                    None,
                );
            }
        }
    }

    fn send(&mut self, to: u32, message: &TreeMessage) {
        let Some(channel) = self.edges.get_mut(&to) else { return };
        if let Err(error) = channel.send(&message.encode()) {
            tracing::error!(rank = to, %error, "bootstrap: cannot queue a message");
        }
    }

    fn contribute(
        &mut self,
        sequence: u64,
        tag: u32,
        rank: u32,
        bytes: Vec<u8>,
        deadline: Option<Instant>,
    ) {
        if let Some(parent) = self.parent() {
            self.send(parent, &TreeMessage::Up { sequence, tag, rank, bytes });
        } else if let Some(outcome) = self.gatherer.contribute(sequence, tag, rank, bytes, deadline)
        {
            self.end_round(sequence, outcome);
        }
    }

    fn end_rounds(&mut self, ended: Vec<(u64, Outcome)>) {
        for (sequence, outcome) in ended {
            self.end_round(sequence, outcome);
        }
    }

    /// Passes the outcome on to those below and to the caller here.
    fn end_round(&mut self, sequence: u64, outcome: Outcome) {
        let message = TreeMessage::Down { sequence, outcome };
        let encoded = message.encode();
        let parent = self.parent();
        for (neighbour, channel) in &mut self.edges {
            if Some(*neighbour) != parent
                && let Err(error) = channel.send(&encoded)
            {
                tracing::error!(rank = neighbour, %error, "bootstrap: cannot queue a message");
            }
        }
        if let TreeMessage::Down { outcome, .. } = message {
            self.shared.lock().outcome = Some((sequence, outcome));
            self.shared.changed.notify_all();
        }
    }

    fn note_left(&mut self, rank: u32) {
        if let Some(parent) = self.parent() {
            self.send(parent, &TreeMessage::Left { rank });
        } else {
            let ended = self.gatherer.leave(rank);
            self.end_rounds(ended);
        }
    }

    /// Passes a notice on to everyone but its sender, and to the callbacks here.
    fn flood(&mut self, notice: &Notice, from: Option<u32>) {
        let encoded = TreeMessage::Notice(notice.clone()).encode();
        for (neighbour, channel) in &mut self.edges {
            if Some(*neighbour) != from
                && let Err(error) = channel.send(&encoded)
            {
                tracing::error!(rank = neighbour, %error, "bootstrap: cannot queue a message");
            }
        }
        if notice.origin == self.rank && from.is_none() && notice.communicator != 0 {
            // Its author knows.
            return;
        }
        if self.linger_until.is_none() {
            tracing::debug!(?notice, "bootstrap: notice");
        }
        let callbacks = {
            let mut state = self.shared.lock();
            if notice.communicator == 0 || notice.kind == ErrorKind::PeerLost {
                state.broken.get_or_insert_with(|| notice.to_error());
            }
            if state.notices.len() < KEPT_NOTICES {
                state.notices.push(notice.clone());
            }
            state.callbacks.clone()
        };
        self.shared.changed.notify_all();
        for callback in &callbacks {
            callback(notice);
        }
    }

    fn break_down(&mut self, error: &Error) {
        self.shared.lock().broken.get_or_insert_with(|| error.clone());
        self.shared.changed.notify_all();
    }

    fn obey(&mut self) {
        loop {
            let Some(command) = self.shared.lock().commands.pop_front() else { return };
            match command {
                Command::Contribute { sequence, tag, bytes, deadline } => {
                    self.contribute(sequence, tag, self.rank, bytes, Some(deadline));
                }
                Command::Notify(notice) => self.flood(&notice, None),
                Command::Close { linger_until } => self.linger_until = Some(linger_until),
            }
        }
    }

    fn may_leave(&self) -> bool {
        let Some(until) = self.linger_until else { return false };
        let parent = self.parent();
        let has_children = self.edges.keys().any(|neighbour| Some(*neighbour) != parent);
        !has_children || Instant::now() >= until || self.shared.lock().broken.is_some()
    }

    fn say_goodbye(mut self) {
        let goodbye = TreeMessage::Goodbye.encode();
        for channel in self.edges.values_mut() {
            let _ = channel.send(&goodbye);
        }
        let limit = Instant::now() + FLUSH_LIMIT;
        loop {
            self.edges.retain(|_, channel| channel.flush().is_ok() && channel.has_output());
            let left = limit.saturating_duration_since(Instant::now());
            if self.edges.is_empty() || left.is_zero() {
                return;
            }
            let fds: Vec<_> =
                self.edges.values().map(|c| ((), c.as_fd(), PollFlags::OUT)).collect();
            if wait_for(&fds, left).is_err() {
                return;
            }
        }
    }
}
