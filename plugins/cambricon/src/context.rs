//! A card, chosen for a thread for the time of a call; then the thread has again what it had.

use std::sync::Arc;

use iccl_plugin_api::sdk::PluginResult;
use iccl_vendor_support::{Entered, ThreadState};

use crate::neuware::Neuware;

/// A card of CNRT, which chooses one for each thread by its number.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) neuware: Arc<Neuware>,
    pub(crate) ordinal: i32,
}

impl Current {
    /// Chooses the card on this thread until the answer is dropped.
    pub(crate) fn enter(&self) -> PluginResult<Entered<'_, Self>> {
        Entered::new(self)
    }
}

impl ThreadState for Current {
    /// The card that the thread had, if it was another.
    type Saved = Option<i32>;

    fn enter(&self) -> PluginResult<Option<i32>> {
        self.neuware.check_process()?;
        let runtime = &self.neuware.runtime;
        let mut before = -1;
        // SAFETY: there is room for the number.
        let answer = unsafe { (runtime.cnrtGetDevice)(&raw mut before) };
        runtime.check("cnrtGetDevice", answer)?;
        if before == self.ordinal {
            return Ok(None);
        }
        // SAFETY: a plain number.
        let answer = unsafe { (runtime.cnrtSetDevice)(self.ordinal) };
        runtime.check(format_args!("cnrtSetDevice({})", self.ordinal), answer)?;
        Ok(Some(before))
    }

    fn leave(&self, saved: Option<i32>) {
        let Some(before) = saved else { return };
        let runtime = &self.neuware.runtime;
        // SAFETY: the thread had this card.
        let answer = unsafe { (runtime.cnrtSetDevice)(before) };
        if let Err(error) = runtime.check(format_args!("cnrtSetDevice({before})"), answer) {
            tracing::error!(%error, "a thread's card could not be restored");
        }
    }
}
