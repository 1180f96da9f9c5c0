//! Ascend cards: libascendcl for memory, streams and events, HCCL for native collectives.
//!
//! Built without CANN: `probe` opens the libraries and takes all their functions by name (`sys.rs`).
//! What may be called on which thread, what blocks, and what an abort can do is told in
//! `docs/vendors.md`.

mod acl;
mod calls;
mod communicator;
mod context;
mod device;
mod error;
mod hccl;
mod libraries;
mod memory;
mod report;
mod scratch;
mod support;
mod sys;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use iccl_plugin_api::sdk::{DeviceBackend, Plugin, PluginError, PluginResult, Settings};
use iccl_plugin_api::tables::SettingSpec;
use iccl_vendor_support::self_test;

pub use communicator::HcclCommunicator;
pub use device::Card;

use acl::Acl;
use context::CardContext;
use hccl::Hccl;

/// The plugin.
#[derive(Debug)]
pub struct AscendPlugin {
    acl: Arc<Acl>,
    /// HCCL, or why there is none.
    hccl: Result<Arc<Hccl>, PluginError>,
    /// The contexts of cards that were used, which stay as long as the process.
    contexts: Mutex<BTreeMap<u32, Arc<CardContext>>>,
}

impl Plugin for AscendPlugin {
    const NAME: &'static str = "ascend";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "iccl";
    const DESCRIPTION: &'static str = "Ascend cards, with HCCL for native collectives";
    const SETTINGS: &'static [SettingSpec] = &[SettingSpec::new(
        libraries::LIBRARY_DIR,
        "string",
        "",
        "folders with libascendcl and libhccl, parted by colons; if set, these are not looked for elsewhere",
    )];

    fn probe(settings: &Settings<'_>) -> PluginResult<Self> {
        let search = libraries::search(settings)?;
        let acl = Arc::new(Acl::open(&search)?);
        let hccl = Hccl::open(&search, &acl).map(Arc::new).inspect_err(|error| {
            tracing::warn!(%error, "no native collectives on Ascend cards");
        });
        Ok(Self { acl, hccl, contexts: Mutex::default() })
    }

    fn self_test(&self) -> PluginResult<()> {
        let promises = self.acl.card(0)?.capabilities;
        self_test(&self.open(0)?, &promises)
    }
}

impl AscendPlugin {
    /// A card's context, made when it is first asked for.
    fn context(&self, index: u32) -> PluginResult<Arc<CardContext>> {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = contexts.get(&index) {
            return Ok(Arc::clone(context));
        }
        let context = Arc::new(CardContext::new(&self.acl, index as i32)?);
        contexts.insert(index, Arc::clone(&context));
        Ok(context)
    }

    /// The context of the lowest card that is in use, or of the first one.
    fn any_context(&self) -> PluginResult<Arc<CardContext>> {
        let used = {
            let contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
            contexts.first_key_value().map(|(_, context)| Arc::clone(context))
        };
        used.map_or_else(|| self.context(0), Ok)
    }
}

iccl_plugin_api::export_plugin! {
    plugin: AscendPlugin,
    device: AscendPlugin,
    collectives: AscendPlugin,
}
