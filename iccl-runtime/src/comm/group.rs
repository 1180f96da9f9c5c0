//! Grouped calls: checked one by one, enqueued together.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::{Arc, MutexGuard, OnceLock};
use std::thread::ThreadId;

use iccl_plugin_api::Collective;
use smallvec::smallvec;

use super::enqueue::{Begun, Entry, Few, enqueue};
use super::handle::Handle;
use super::order::{Numbers, Order};
use super::own_messages::{self, Joined};
use super::stream::Stream;
use super::turns::Turn;
use crate::engine::OperationRequest;
use crate::{Error, ErrorKind, Result};

thread_local! {
    /// Never destroyed: calls are made to the very end of a thread, by destructors of its other values
    /// and, on the first thread, by those of the program.
    static OPEN: RefCell<ManuallyDrop<Open>> = const { RefCell::new(ManuallyDrop::new(Open::NONE)) };
    /// Ends what is open when the thread ends.
    static AT_END: AtEnd = const { AtEnd };
}

struct AtEnd;

impl Drop for AtEnd {
    fn drop(&mut self) {
        drop(with_open(|open| std::mem::replace(open, Open::NONE)));
    }
}

/// Calls of this thread that take place together: collectives and messages, of one communicator or
/// several, on one stream or several, as between `ncclGroupStart` and `ncclGroupEnd`.
///
/// * A call between [`Group::start`] and [`Group::end`] is checked at once, and nothing is enqueued. At
///   the end all are; or none, if one was refused: then the end says which and why, no handle of the group
///   comes to anything, and every communicator is as if the group had not been.
/// * The calls of one stream begin together when the stream reaches them, and the stream goes on when all
///   of them are over. So messages that wait for each other do not wait for ever: a send and a receive
///   on one stream in one group complete, whatever their size and order, and every rank may send to
///   every other.
/// * A rank may send to itself, if it receives as much of the same type from itself in the same group.
///   The k-th such send meets the k-th receive.
/// * Collectives of one communicator take place in the order of the calls, which must be the same on all
///   ranks; the messages between two ranks in one direction likewise. Nothing else is ordered. Another
///   thread's calls on the same communicator come before the whole group or after it.
/// * Nothing waits inside a group: [`Handle::wait`] of a call of a group that has not ended is refused.
/// * An operation that fails ends its own communicator, as everywhere; those of other communicators in
///   the group go on.
///
/// Groups may be nested: only the end of the outermost one enqueues. A group without calls does nothing.
/// A group that is dropped without [`Group::end`], as by `?` or a panic, takes the outermost one with it:
/// nothing of that is enqueued.
///
/// ```
/// # use iccl_runtime::comm::{Buffer, Communicator, Group};
/// # use iccl_runtime::Result;
/// # use iccl_plugin_api::DataType;
/// # fn exchange(communicator: &Communicator, mine: &Buffer, theirs: &Buffer) -> Result<()> {
/// let (peer, stream) = (1 - communicator.rank(), communicator.stream());
/// let group = Group::start();
/// let sent = communicator.send(mine, 1000, DataType::F32, peer, stream)?;
/// let received = communicator.recv(theirs, 1000, DataType::F32, peer, stream)?;
/// group.end()?;
/// sent.wait()?;
/// received.wait()
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a group that is dropped without its end does nothing"]
pub struct Group {
    /// A group belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl Group {
    /// Starts a group on this thread.
    pub fn start() -> Self {
        group_start();
        Self { _thread: PhantomData }
    }

    /// Ends the group; the outermost one enqueues its calls. Returns at once, as a call does.
    ///
    /// # Errors
    /// That of the first call that was refused, with its place in the group; `InvalidArgument` for a
    /// message to this rank itself without its other half; `InvalidUsage` if a group inside was dropped
    /// without its end; what a driver says. Nothing is enqueued then.
    pub fn end(self) -> Result<()> {
        std::mem::forget(self);
        group_end()
    }

    /// Does `body` in a group, and ends it; a `body` that fails is a group that is dropped.
    ///
    /// # Errors
    /// What `body` says; as [`Group::end`].
    pub fn run<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
        let group = Self::start();
        let given = body()?;
        group.end()?;
        Ok(given)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let abandoned = Error::new(ErrorKind::InvalidUsage, "a group was left without its end")
            .with_hint("nothing of the outermost group was enqueued");
        with_open(|open| {
            open.refused.get_or_insert(abandoned);
        });
        // Says what is known already.
        let _ = group_end();
    }
}

/// Starts a group without a guard, for bindings of other languages: one [`group_end`] must follow on the
/// same thread. In Rust, use [`Group`].
pub fn group_start() {
    // A thread that has come to that already has nothing to be ended.
    let _ = AT_END.try_with(|_| ());
    with_open(|open| open.depth += 1);
}

/// Ends a group that [`group_start`] has started.
///
/// # Errors
/// As [`Group::end`]; `InvalidUsage` if this thread has no group.
pub fn group_end() -> Result<()> {
    let ended = with_open(|open| match open.depth {
        0 => Err(Error::new(ErrorKind::InvalidUsage, "a group was ended that was not started")),
        1 => Ok(Some(std::mem::replace(open, Open::NONE))),
        _ => {
            open.depth -= 1;
            Ok(None)
        }
    })?;
    ended.map_or(Ok(()), Open::commit)
}

/// How many groups are open on this thread, one inside the other.
pub fn group_depth() -> u32 {
    with_open(|open| open.depth)
}

/// A call that has passed its checks and waits for its number.
pub(super) struct Checked {
    pub(super) order: Arc<Order>,
    pub(super) collective: Collective,
    /// Root or peer.
    pub(super) root: u32,
    /// What is asked of the engine; the number in its fingerprint means nothing yet.
    pub(super) request: OperationRequest,
    pub(super) stream: Stream,
    /// Queues when the call has its number: what it begins takes place in that order too.
    pub(super) turn: Option<Arc<Turn>>,
}

/// Enqueues a call, now or at the end of the group that is open on this thread.
///
/// # Safety
/// The buffers of the request are valid until the operation is over, see `Engine::submit`.
pub(super) unsafe fn take(call: Checked) -> Result<Handle> {
    if group_depth() > 0 {
        return Ok(Handle::promised(with_open(|open| open.add(call))));
    }
    // SAFETY: the caller promises it.
    if let Some(sequence) = unsafe { at_once(&call) }? {
        return Ok(Handle::done(sequence));
    }
    // SAFETY: the caller promises it.
    let mut begun = unsafe { begin(smallvec![call]) }?;
    let begun = begun.pop();
    Ok(Handle::begun(begun.unwrap_or_else(|| unreachable!("every call has its operation"))))
}

/// Numbers a call and does it on this thread, if it is so short that this takes no longer than to enqueue it,
/// and all that comes before it is over. Gives its number if it did.
///
/// # Safety
/// As [`take`].
unsafe fn at_once(call: &Checked) -> Result<Option<u64>> {
    if !call.request.program.is_short() || call.turn.is_some() {
        return Ok(None);
    }
    let Order { engine, .. } = &*call.order;
    let mut numbers = call.order.numbers();
    engine.check()?;
    // Nobody else enqueues there as long as it is held.
    let Some(_place) = call.stream.idle_place() else { return Ok(None) };
    // SAFETY: the caller promises it. Whoever submits has the numbers.
    if unsafe { engine.do_at_once(&call.request) } {
        return Ok(Some(numbers.take(call.collective, call.root)));
    }
    Ok(None)
}

/// Numbers calls and enqueues them, all or none. Gives the operation of each.
///
/// # Safety
/// As [`take`], for each call.
unsafe fn begin(calls: Few<Checked>) -> Result<Few<Begun>> {
    let Joined { entries, entry_of } = own_messages::join(calls)?;
    let mut orders: Few<Arc<Order>> =
        entries.iter().map(|(call, _)| Arc::clone(&call.order)).collect();
    // Everyone who locks several communicators does so in this order.
    orders.sort_by_key(address);
    orders.dedup_by_key(|order| address(order));
    let mut numbers: Few<MutexGuard<'_, Numbers>> =
        orders.iter().map(|order| order.numbers()).collect();
    orders.iter().try_for_each(|order| order.engine.check())?;
    let whose = |order: &Arc<Order>| {
        orders
            .binary_search_by_key(&address(order), address)
            .unwrap_or_else(|_| unreachable!("the communicator of every entry is locked"))
    };
    let numbered: Few<_> =
        entries.iter().map(|(call, _)| (whose(&call.order), call.collective, call.root)).collect();
    let entries: Few<_> = entries
        .into_iter()
        .zip(&numbered)
        .map(|((mut call, also), (whose, collective, root))| {
            call.request.fingerprint.sequence = numbers[*whose].take(*collective, *root);
            call.turn.iter().for_each(|turn| turn.queue());
            let engine = Arc::clone(&call.order.engine);
            Entry { engine, request: call.request, stream: call.stream, also }
        })
        .collect();
    // SAFETY: the caller promises it; each request was made for this engine.
    let begun = unsafe { enqueue(entries) }.inspect_err(|_| {
        // They did not take place, so the next calls have their numbers.
        for (whose, collective, root) in &numbered {
            numbers[*whose].give_back(*collective, *root);
        }
    })?;
    Ok(entry_of.into_iter().map(|at| begun[at].clone()).collect())
}

fn address(order: &Arc<Order>) -> usize {
    Arc::as_ptr(order) as usize
}

/// Remembers that a call was refused, if a group is open on this thread. Gives the error back.
pub(super) fn refuse(collective: Collective, error: Error) -> Error {
    with_open(|open| {
        if open.depth > 0 {
            open.seen += 1;
            let which = format!("call {} of the group ({collective})", open.seen);
            open.refused.get_or_insert_with(|| error.clone().within(&which));
        }
    });
    error
}

fn with_open<T>(body: impl FnOnce(&mut Open) -> T) -> T {
    OPEN.with_borrow_mut(|open| body(open))
}

/// The open group of a thread, nested ones included.
struct Open {
    depth: u32,
    /// Calls so far, refused ones included.
    seen: usize,
    members: Vec<Member>,
    /// Why nothing of the group will be enqueued.
    refused: Option<Error>,
}

/// A call of a group, and what its handle waits for.
struct Member {
    call: Checked,
    promise: Arc<Promise>,
}

/// An operation that will be enqueued when its group ends.
pub(super) struct Promise {
    pub(super) collective: Collective,
    thread: ThreadId,
    kept: OnceLock<Result<Begun>>,
}

impl Promise {
    /// The operation; `None` as long as the group is open.
    pub(super) fn kept(&self) -> Option<Result<&Begun>> {
        self.kept.get().map(|kept| kept.as_ref().map_err(Clone::clone))
    }

    /// The operation, when the group has ended.
    pub(super) fn wait_kept(&self) -> Result<&Begun> {
        self.kept.wait().as_ref().map_err(Clone::clone)
    }

    /// Whether the group is this thread's.
    pub(super) fn is_of_this_thread(&self) -> bool {
        self.thread == std::thread::current().id()
    }
}

impl Open {
    const NONE: Self = Self { depth: 0, seen: 0, members: Vec::new(), refused: None };

    fn add(&mut self, call: Checked) -> Arc<Promise> {
        self.seen += 1;
        let promise = Arc::new(Promise {
            collective: call.collective,
            thread: std::thread::current().id(),
            kept: OnceLock::new(),
        });
        self.members.push(Member { call, promise: Arc::clone(&promise) });
        promise
    }

    /// Enqueues all calls, or none, and tells the handles.
    fn commit(mut self) -> Result<()> {
        let members = std::mem::take(&mut self.members);
        let (promises, calls): (Vec<_>, Few<_>) =
            members.into_iter().map(|member| (member.promise, member.call)).unzip();
        let begun = match self.refused.take() {
            Some(error) => Err(error),
            // SAFETY: who called each of them has promised it.
            None => unsafe { begin(calls) },
        };
        let kept = |at: usize| begun.as_ref().map(|begun| begun[at].clone()).map_err(Clone::clone);
        for (at, promise) in promises.iter().enumerate() {
            let _ = promise.kept.set(kept(at));
        }
        begun.map(drop)
    }
}

impl Drop for Open {
    /// A thread that ends in an open group.
    fn drop(&mut self) {
        for member in self.members.drain(..) {
            let ended = Error::new(ErrorKind::InvalidUsage, "the thread ended inside its group");
            let _ = member.promise.kept.set(Err(ended));
        }
    }
}
