//! A card's context: current on a thread for the time of a call, and then as it was.

use std::sync::{Arc, Mutex};

use iccl_plugin_api::sdk::PluginResult;
use iccl_vendor_support::{Entered, ThreadState};

use crate::acl::Acl;
use crate::sys;

/// The default context of a card, which applications that choose a card by `aclrtSetDevice` use too: a
/// stream of theirs is good in it. It is never reset, which older versions would do for everybody in
/// the process.
#[derive(Debug)]
pub(crate) struct CardContext {
    pub(crate) acl: Arc<Acl>,
    pub(crate) ordinal: i32,
    context: sys::Context,
    /// HCCL wants one communicator at a time to be made on a card.
    pub(crate) joining: Mutex<()>,
}

// SAFETY: a context may be entered by any thread, by several at a time.
unsafe impl Send for CardContext {}
// SAFETY: as above.
unsafe impl Sync for CardContext {}

impl CardContext {
    /// Makes the context, or takes part in the one that is there.
    pub(crate) fn new(acl: &Arc<Acl>, ordinal: i32) -> PluginResult<Self> {
        let table = &acl.table;
        let before = current(table)?;
        // SAFETY: a number.
        let answer = unsafe { (table.aclrtSetDevice)(ordinal) };
        table.check(format_args!("aclrtSetDevice({ordinal})"), answer)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: there is room for the context.
        let answer = unsafe { (table.aclrtGetCurrentContext)(&raw mut context) };
        let made = table.check("aclrtGetCurrentContext", answer);
        let made_context =
            Self { acl: Arc::clone(acl), ordinal, context, joining: Mutex::default() };
        made_context.leave(before);
        made.map(|()| made_context)
    }

    /// Enters the context on this thread until the answer is dropped.
    pub(crate) fn enter(&self) -> PluginResult<Entered<'_, Self>> {
        Entered::new(self)
    }
}

/// What a thread has; null if it never chose a card.
fn current(table: &sys::Acl) -> PluginResult<sys::Context> {
    let mut context = std::ptr::null_mut();
    // SAFETY: there is room for the context.
    let answer = unsafe { (table.aclrtGetCurrentContext)(&raw mut context) };
    if answer == sys::ACL_ERROR_RT_CONTEXT_NULL {
        return Ok(std::ptr::null_mut());
    }
    table.check("aclrtGetCurrentContext", answer).map(|()| context)
}

impl ThreadState for CardContext {
    type Saved = sys::Context;

    fn enter(&self) -> PluginResult<sys::Context> {
        let table = &self.acl.table;
        let before = current(table)?;
        if before != self.context {
            // SAFETY: the context lives as long as the process.
            let answer = unsafe { (table.aclrtSetCurrentContext)(self.context) };
            table.check("aclrtSetCurrentContext", answer)?;
        }
        Ok(before)
    }

    fn leave(&self, before: sys::Context) {
        // Nothing takes a context away from a thread: one that had none keeps this.
        if before.is_null() || before == self.context {
            return;
        }
        // SAFETY: the thread had it.
        let answer = unsafe { (self.acl.table.aclrtSetCurrentContext)(before) };
        if let Err(error) = self.acl.table.check("aclrtSetCurrentContext", answer) {
            tracing::error!(%error, "a thread's context could not be restored");
        }
    }
}
