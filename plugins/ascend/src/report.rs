//! Functions of the host's on a stream.
//!
//! From CANN 9 on the runtime calls them by itself (`aclrtLaunchHostFunc`). Before, it calls them on a
//! thread of the program's that was subscribed to the stream and asks for reports: here, a thread for
//! each stream, so that one stream's function never waits for another's. Never both on one stream.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult, Progress};
use iccl_vendor_support::{Pace, wait_until_done};

use crate::context::CardContext;
use crate::sys;

/// How long a thread asks for a report before it looks whether it is still wanted, in milliseconds.
const REPORT_MS: i32 = 50;
/// How long it waits before it asks again after an error: no stream yet, or none any more.
const AFTER_AN_ERROR: Duration = Duration::from_millis(1);
/// How long the end of a thread is waited for. Past that it is left to itself: it keeps what it uses.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// What a stream calls.
type Function = Box<dyn FnOnce() + Send>;

/// The threads of a card's streams.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    threads: Mutex<HashMap<u64, ReportThread>>,
}

/// A thread that is subscribed to a stream. Ends when dropped.
#[derive(Debug)]
struct ReportThread {
    id: u64,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Calls what was boxed for it.
unsafe extern "C" fn call_back(user: *mut c_void) {
    // SAFETY: `enqueue` passes a box of this type, and the stream calls once.
    let function = unsafe { Box::from_raw(user.cast::<Function>()) };
    function();
}

impl Reports {
    /// Enqueues a function on a stream of the card, whose context is current.
    pub(crate) fn enqueue(
        &self,
        context: &Arc<CardContext>,
        stream: sys::Stream,
        function: Function,
    ) -> PluginResult<()> {
        let user = Box::into_raw(Box::new(function));
        let enqueued = self.launch(context, stream, user.cast());
        enqueued.inspect_err(|_| {
            // SAFETY: the stream did not take it, so nobody else has the box.
            drop(unsafe { Box::from_raw(user) });
        })
    }

    fn launch(
        &self,
        context: &Arc<CardContext>,
        stream: sys::Stream,
        user: *mut c_void,
    ) -> PluginResult<()> {
        let table = &context.acl.table;
        if let Some(launch) = table.aclrtLaunchHostFunc {
            // SAFETY: the function takes the box, which is its own from now on.
            let answer = unsafe { launch(stream, call_back, user) };
            return table.check("aclrtLaunchHostFunc", answer);
        }
        let number = stream.expose_provenance() as u64;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let launch = || {
            // SAFETY: as above.
            unsafe { (table.aclrtLaunchCallback)(call_back, user, sys::CALLBACK_BLOCK, stream) }
        };
        let mut answer = sys::ACL_ERROR_RT_STREAM_NO_CB_REG;
        if threads.contains_key(&number) {
            answer = launch();
        }
        // Also where the application destroyed its stream and made another with the same handle.
        if answer == sys::ACL_ERROR_RT_STREAM_NO_CB_REG {
            threads.remove(&number);
            threads.insert(number, ReportThread::start(context, stream)?);
            answer = launch();
        }
        table.check("aclrtLaunchCallback", answer)
    }

    /// Ends the thread of a stream that is idle and will be destroyed. The card's context is current.
    pub(crate) fn end(&self, context: &CardContext, stream: sys::Stream) -> PluginResult<()> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(thread) = threads.remove(&(stream.expose_provenance() as u64)) else {
            return Ok(());
        };
        let table = &context.acl.table;
        // SAFETY: the stream lives, and the thread was subscribed to it.
        let answer = unsafe { (table.aclrtUnSubscribeReport)(thread.id, stream) };
        table.check("aclrtUnSubscribeReport", answer)
    }
}

impl ReportThread {
    fn start(context: &Arc<CardContext>, stream: sys::Stream) -> PluginResult<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = channel();
        let (own_context, over) = (Arc::clone(context), Arc::clone(&is_over));
        let run = move || {
            // SAFETY: no arguments.
            let _ = sender.send(unsafe { libc::pthread_self() } as u64);
            report(&own_context, &over);
        };
        let failed = |error: String| PluginError::new(Status::OutOfResources, error);
        let thread =
            std::thread::Builder::new()
                .name("iccl-ascend-report".to_owned())
                .spawn(run)
                .map_err(|error| failed(format!("no thread for a stream's reports: {error}")))?;
        let id = receiver.recv().map_err(|error| failed(error.to_string()))?;
        let started = Self { id, is_over, thread: Some(thread) };
        let table = &context.acl.table;
        // SAFETY: the thread runs, and the stream lives.
        let answer = unsafe { (table.aclrtSubscribeReport)(id, stream) };
        table.check("aclrtSubscribeReport", answer)?;
        Ok(started)
    }
}

/// Calls what streams ask for, until it is over.
fn report(context: &CardContext, is_over: &AtomicBool) {
    let _current = match context.enter() {
        Ok(current) => current,
        Err(error) => {
            tracing::error!(%error, "a thread for reports has no card");
            return;
        }
    };
    while !is_over.load(Ordering::Acquire) {
        // SAFETY: a number.
        let answer = unsafe { (context.acl.table.aclrtProcessReport)(REPORT_MS) };
        // Nothing to report is an answer of its own, and not told apart from failures by every version.
        if answer != sys::ACL_SUCCESS {
            std::thread::sleep(AFTER_AN_ERROR);
        }
    }
}

impl Drop for ReportThread {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && !ends_within(thread, END_TIMEOUT)
        {
            tracing::warn!("a thread for reports does not come back, and is left behind");
        }
    }
}

/// Whether a thread has ended in time. It looks every few milliseconds; what it calls is short or lets go
/// first, unless the runtime is stuck.
fn ends_within(thread: JoinHandle<()>, timeout: Duration) -> bool {
    let is_over = || Ok(if thread.is_finished() { Progress::Done } else { Progress::Pending });
    let has_ended = wait_until_done(Pace::PEERS, Some(timeout), is_over) == Ok(true);
    if has_ended {
        // A panic in a function was told where it happened.
        let _ = thread.join();
    }
    has_ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_does_not_come_back_is_not_waited_for_for_ever() {
        let (end, told) = channel::<()>();
        let stuck = std::thread::spawn(move || assert!(told.recv().is_err()));
        assert!(!ends_within(stuck, Duration::from_millis(20)));
        drop(end);
        assert!(ends_within(std::thread::spawn(|| ()), Duration::from_secs(60)));
    }
}
