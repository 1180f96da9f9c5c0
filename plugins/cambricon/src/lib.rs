//! Cambricon cards: CNRT and `CNDrv` for memory, queues and notifiers, CNCL for native collectives.
//!
//! Built without Neuware: `probe` opens the libraries and takes all their functions by name
//! (`sys.rs`). What may be called on which thread, what blocks, and what an abort can do is told in
//! `docs/vendors.md`.

mod calls;
mod clique;
mod cncl;
mod context;
mod device;
mod error;
mod group;
mod libraries;
mod meeting;
mod memory;
mod neuware;
mod open_cards;
mod region;
mod support;
mod sys;

use std::sync::Arc;
use std::time::Duration;

use iccl_plugin_api::sdk::{DeviceBackend, Plugin, PluginError, PluginResult, Settings};
use iccl_plugin_api::tables::SettingSpec;
use iccl_vendor_support::self_test;

pub use clique::CnclCommunicator;
pub use device::Card;

use cncl::Cncl;
use meeting::Patience;
use neuware::Neuware;
use open_cards::OpenCards;

/// The setting that bounds how long a communicator waits for its ranks.
const JOIN_TIMEOUT: &str = "join_timeout";
/// The setting that bounds how long ranks of one process wait for each other before they join.
const GATHER_TIME: &str = "gather_time";
/// The setting that says that NICs take plain addresses of cards.
const PEER_MEMORY: &str = "peer_memory";

/// The plugin.
#[derive(Debug)]
pub struct CambriconPlugin {
    neuware: Arc<Neuware>,
    open_cards: OpenCards,
    /// CNCL, or why there is none.
    cncl: Result<Arc<Cncl>, PluginError>,
    patience: Patience,
}

impl Plugin for CambriconPlugin {
    const NAME: &'static str = "cambricon";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "iccl";
    const DESCRIPTION: &'static str = "Cambricon cards, with CNCL for native collectives";
    const SETTINGS: &'static [SettingSpec] = &[
        SettingSpec::new(
            libraries::LIBRARY_DIR,
            "string",
            "",
            "folders with libcnrt and libcncl, parted by colons; if set, these are not looked for elsewhere",
        ),
        SettingSpec::new(
            JOIN_TIMEOUT,
            "duration",
            "10m",
            "how long a communicator of CNCL waits for all its ranks",
        ),
        SettingSpec::new(
            GATHER_TIME,
            "duration",
            "2s",
            "how long ranks wait for others whose cards this process has opened: CNCL takes all at once",
        ),
        SettingSpec::new(
            PEER_MEMORY,
            "bool",
            "false",
            "that the kernel has Cambricon's module by which NICs take plain addresses of cards",
        ),
    ];

    fn probe(settings: &Settings<'_>) -> PluginResult<Self> {
        let search = libraries::search(settings)?;
        let duration = |key, default| -> PluginResult<Duration> {
            Ok(settings.number(key)?.map_or(default, Duration::from_micros))
        };
        let patience = Patience {
            join: duration(JOIN_TIMEOUT, meeting::JOIN_TIMEOUT)?,
            gather: duration(GATHER_TIME, meeting::GATHER_TIME)?,
        };
        let peer_memory = settings.text(PEER_MEMORY) == Some("true");
        let neuware = Arc::new(Neuware::open(&search, peer_memory)?);
        let cncl = Cncl::open(&search).map(Arc::new).inspect_err(|error| {
            tracing::warn!(%error, "no native collectives on Cambricon cards");
        });
        Ok(Self { neuware, open_cards: OpenCards::default(), cncl, patience })
    }

    fn self_test(&self) -> PluginResult<()> {
        let promises = self.neuware.card(0)?.facts.capabilities;
        self_test(&self.open(0)?, &promises)
    }
}

iccl_plugin_api::export_plugin! {
    plugin: CambriconPlugin,
    device: CambriconPlugin,
    collectives: CambriconPlugin,
}
