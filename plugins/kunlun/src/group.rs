//! Groups of calls. BKCL's are not known to be a thread's own, so that one thread at a time is in BKCL with a
//! group or a call: others wait until it is out. BKCL sees one group at a time: nobody says that groups may be
//! nested.

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult};

use crate::bkcl::Bkcl;
use crate::communicator::Joined;
use crate::face::Handle;
use crate::scratch::Scratch;

/// How often a thread that waits for another looks whether it still should, and how long until it says so.
const LOOK_UP: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(10);

/// Who is in BKCL.
static INSIDE: Mutex<Option<(ThreadId, String)>> = Mutex::new(None);
static OUT: Condvar = Condvar::new();

/// A group of calls of this thread.
#[derive(Default)]
struct Group {
    depth: u32,
    /// To whom something was sent, by communicator.
    sent: Vec<(usize, u32)>,
    /// Memory that the calls of the group use, and on which stream.
    scratch: Vec<(Arc<Joined>, Scratch, Handle)>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// This thread is in BKCL as long as this lives.
pub(crate) struct Turn {
    /// A turn inside a group of the thread's own ends with the group.
    ends: bool,
}

/// Waits until no other thread is in BKCL, or until `is_aborted`.
pub(crate) fn enter(is_aborted: impl Fn() -> bool) -> PluginResult<Turn> {
    let thread = std::thread::current();
    let begin = Instant::now();
    let mut is_told = false;
    let mut inside = INSIDE.lock().unwrap_or_else(PoisonError::into_inner);
    while let Some((owner, name)) = inside.as_ref() {
        if *owner == thread.id() {
            return Ok(Turn { ends: false });
        }
        if is_aborted() {
            return Err(PluginError::new(Status::Aborted, "the communicator was aborted"));
        }
        if begin.elapsed() >= PATIENCE && !is_told {
            tracing::warn!(thread = %name, "a thread has been in BKCL for long, and another waits");
            is_told = true;
        }
        let waited = OUT.wait_timeout(inside, LOOK_UP);
        inside = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    *inside = Some((thread.id(), thread.name().unwrap_or("without a name").to_owned()));
    Ok(Turn { ends: true })
}

fn leave() {
    *INSIDE.lock().unwrap_or_else(PoisonError::into_inner) = None;
    OUT.notify_one();
}

impl Turn {
    /// It goes on after this: a group has begun.
    fn stay(mut self) {
        self.ends = false;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.ends {
            leave();
        }
    }
}

/// Begins a group of this thread, or one inside it. What waits for other threads gives up if `is_aborted`.
pub(crate) fn begin(bkcl: &Bkcl, is_aborted: impl Fn() -> bool) -> PluginResult<()> {
    let turn = enter(is_aborted)?;
    if !is_open() {
        // SAFETY: no arguments.
        bkcl.check("bkcl_group_start", unsafe { (bkcl.table.bkcl_group_start)() }, || None)?;
    }
    GROUP.with_borrow_mut(|group| group.depth += 1);
    turn.stay();
    Ok(())
}

/// Ends it. The end of the outermost issues its calls.
pub(crate) fn end(bkcl: &Bkcl) -> PluginResult<()> {
    let depth = GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.checked_sub(1)?;
        Some(group.depth)
    });
    let Some(depth) = depth else {
        return Err(PluginError::invalid("a group ends that this thread did not begin"));
    };
    if depth > 0 {
        return Ok(());
    }
    // SAFETY: no arguments.
    let answer = unsafe { (bkcl.table.bkcl_group_end)() };
    let ended = bkcl.check("bkcl_group_end", answer, || None);
    let group = GROUP.take();
    leave();
    group.scratch.into_iter().fold(ended, |ended, (joined, scratch, stream)| {
        ended.and(joined.scratch.give_back(&joined.chip, scratch, stream))
    })
}

/// Whether this thread is in a group.
pub(crate) fn is_open() -> bool {
    GROUP.with_borrow(|group| group.depth > 0)
}

/// A group takes one send to each peer; BKCL refuses a second one, and the whole group with it.
pub(crate) fn note_send(joined: &Arc<Joined>, peer: u32) -> PluginResult<()> {
    GROUP.with_borrow_mut(|group| {
        let pair = (Arc::as_ptr(joined).addr(), peer);
        if group.depth > 0 && group.sent.contains(&pair) {
            let text = format!(
                "BKCL takes one send to each peer in a group, and to rank {peer} there are two"
            );
            return Err(PluginError::invalid(text));
        }
        if group.depth > 0 {
            group.sent.push(pair);
        }
        Ok(())
    })
}

/// Memory that is in use until the group's calls are past it.
pub(crate) fn keep(joined: &Arc<Joined>, scratch: Scratch, stream: Handle) {
    GROUP.with_borrow_mut(|group| group.scratch.push((Arc::clone(joined), scratch, stream)));
}
