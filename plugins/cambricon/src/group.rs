//! Groups of calls of a thread. CNCL sees one group at a time: nobody says that groups may be nested.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Arc;

use iccl_plugin_api::sdk::{PluginError, PluginResult};

use crate::context::Current;
use crate::sys;

/// A group of calls of this thread.
#[derive(Default)]
struct Group {
    depth: u32,
    /// What CNCL was given addresses of, until the queue is past the call.
    kept: Vec<Kept>,
    /// The card of the last communicator that was called.
    current: Option<Arc<Current>>,
}

/// Arrays of the host that a call on a queue may still read.
pub(crate) struct Kept {
    pub(crate) arrays: Box<dyn Send>,
    pub(crate) current: Arc<Current>,
    pub(crate) queue: sys::Queue,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Begins a group of this thread, or one inside it.
pub(crate) fn begin(table: &sys::Cncl) -> PluginResult<()> {
    if GROUP.with_borrow(|group| group.depth) == 0 {
        // SAFETY: no arguments.
        table.check("cnclGroupStart", unsafe { (table.cnclGroupStart)() })?;
    }
    GROUP.with_borrow_mut(|group| group.depth += 1);
    Ok(())
}

/// Ends it. The end of the outermost returns when all its calls are on their queues.
pub(crate) fn end(table: &sys::Cncl) -> PluginResult<()> {
    let ended = GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.checked_sub(1)?;
        Some((group.depth == 0).then(|| std::mem::take(group)))
    });
    let ended =
        ended.ok_or_else(|| PluginError::invalid("a group ends that this thread did not begin"))?;
    let Some(Group { kept, current, .. }) = ended else { return Ok(()) };
    // Also where the card cannot be chosen any more: the next group would be part of this one.
    let entered = current.as_ref().map(|current| current.enter()).transpose();
    // SAFETY: no arguments.
    let answer = unsafe { (table.cnclGroupEnd)() };
    let checked = entered.and_then(|_current| table.check("cnclGroupEnd", answer));
    if checked.is_err() {
        // Nobody says what CNCL still reads then.
        std::mem::forget(kept);
        return checked;
    }
    kept.into_iter().for_each(free_behind);
    Ok(())
}

/// A call of a communicator on this card was made.
pub(crate) fn called(current: &Arc<Current>) {
    GROUP.with_borrow_mut(|group| {
        if group.depth > 0 {
            group.current = Some(Arc::clone(current));
        }
    });
}

/// Frees arrays when the queue is past the call that was just made with them, or is made at the group's
/// end.
pub(crate) fn keep(kept: Kept) {
    let now = GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return Some(kept);
        }
        group.kept.push(kept);
        None
    });
    now.into_iter().for_each(free_behind);
}

fn free_behind(kept: Kept) {
    unsafe extern "C" fn free(arrays: *mut c_void) {
        // SAFETY: the box that was given to the queue, which calls once.
        drop(unsafe { Box::from_raw(arrays.cast::<Box<dyn Send>>()) });
    }
    let Kept { arrays, current, queue } = kept;
    let runtime = &current.neuware.runtime;
    let user = Box::into_raw(Box::new(arrays)).cast();
    let enqueued = current.enter().and_then(|_current| {
        // SAFETY: the queue took the call just before; it calls the function with its argument, once.
        let answer = unsafe { (runtime.cnrtInvokeHostFunc)(queue, free, user) };
        runtime.check("cnrtInvokeHostFunc", answer)
    });
    if let Err(error) = enqueued {
        // The arrays are never freed: the call may still read them.
        tracing::warn!(%error, "arrays of a call are kept for ever");
    }
}
