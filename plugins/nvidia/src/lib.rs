//! NVIDIA cards: libcudart and libcuda for memory, streams and events, NCCL for native collectives.
//!
//! Built without NVIDIA's SDK: `probe` opens the libraries and takes all their functions by name
//! (`sys.rs`). What may be called on which thread, what blocks, and what an abort can do is told in
//! `docs/vendors.md`.

mod calls;
mod communicator;
mod context;
mod cuda;
mod device;
mod error;
mod libraries;
mod memory;
mod nccl;
mod region;
mod support;
mod sys;

use std::sync::Arc;
use std::time::Duration;

use iccl_plugin_api::sdk::{DeviceBackend, Plugin, PluginError, PluginResult, Settings};
use iccl_plugin_api::tables::SettingSpec;
use iccl_vendor_support::self_test;

pub use communicator::NcclCommunicator;
pub use device::Card;

use cuda::Cuda;
use nccl::Nccl;

/// The setting that bounds how long a communicator waits for its ranks.
const JOIN_TIMEOUT: &str = "join_timeout";

/// The plugin.
#[derive(Debug)]
pub struct NvidiaPlugin {
    cuda: Arc<Cuda>,
    /// NCCL, or why there is none.
    nccl: Result<Arc<Nccl>, PluginError>,
    join_timeout: Duration,
}

impl Plugin for NvidiaPlugin {
    const NAME: &'static str = "nvidia";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "iccl";
    const DESCRIPTION: &'static str = "NVIDIA cards, with NCCL for native collectives";
    const SETTINGS: &'static [SettingSpec] = &[
        SettingSpec::new(
            libraries::LIBRARY_DIR,
            "string",
            "",
            "folders with libcudart and libnccl, parted by colons; if set, these are not looked for elsewhere",
        ),
        SettingSpec::new(
            JOIN_TIMEOUT,
            "duration",
            "10m",
            "how long a communicator of NCCL waits for all its ranks",
        ),
    ];

    fn probe(settings: &Settings<'_>) -> PluginResult<Self> {
        let search = libraries::search(settings)?;
        let join_timeout =
            settings.number(JOIN_TIMEOUT)?.map_or(nccl::JOIN_TIMEOUT, Duration::from_micros);
        let cuda = Arc::new(Cuda::open(&search)?);
        let nccl = Nccl::open(&search).map(Arc::new).inspect_err(|error| {
            tracing::warn!(%error, "no native collectives on NVIDIA cards");
        });
        Ok(Self { cuda, nccl, join_timeout })
    }

    fn self_test(&self) -> PluginResult<()> {
        let promises = self.cuda.card(0)?.facts.capabilities;
        self_test(&self.open(0)?, &promises)
    }
}

iccl_plugin_api::export_plugin! {
    plugin: NvidiaPlugin,
    device: NvidiaPlugin,
    collectives: NvidiaPlugin,
}
