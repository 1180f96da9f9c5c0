//! Kunlun cards: libxpurt, and on P800 the maker's own libcudart over it, for memory, streams and events;
//! BKCL for native collectives.
//!
//! Built without Kunlun's SDK: `probe` opens the libraries and takes all their functions by name (`sys.rs`).
//! What may be called on which thread, what blocks, and what an abort can do is told in
//! `docs/vendors.md`.

mod bkcl;
mod calls;
mod communicator;
mod constants;
mod cuda;
mod device;
mod error;
mod face;
mod group;
mod header;
mod libraries;
mod mangled;
mod native;
mod readable;
mod region;
mod scratch;
mod support;
mod sys;
mod waits;
mod xpu;

use std::sync::Arc;
use std::time::Duration;

use iccl_plugin_api::sdk::{DeviceBackend, Plugin, PluginResult, Settings};
use iccl_plugin_api::tables::SettingSpec;
use iccl_vendor_support::self_test;

pub use communicator::BkclCommunicator;
pub use device::Card;

use bkcl::Bkcl;
use region::Mapping;
use xpu::Cards;

/// The setting that bounds how long a communicator waits for its ranks.
const JOIN_TIMEOUT: &str = "join_timeout";

/// The plugin.
#[derive(Debug)]
pub struct KunlunPlugin {
    cards: Cards,
    /// BKCL, or why there is none.
    bkcl: PluginResult<Arc<Bkcl>>,
    /// How BKCL gives memory to NICs, if it does.
    mapping: Option<Mapping>,
    join_timeout: Duration,
}

impl Plugin for KunlunPlugin {
    const NAME: &'static str = "kunlun";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const VENDOR: &'static str = "iccl";
    const DESCRIPTION: &'static str = "Kunlun cards, with BKCL for native collectives";
    const SETTINGS: &'static [SettingSpec] = &[
        SettingSpec::new(
            libraries::LIBRARY_DIR,
            "string",
            "",
            "folders with libxpurt, libcudart and libbkcl, parted by colons; if set, these are not looked for elsewhere",
        ),
        SettingSpec::new(
            bkcl::HEADER,
            "string",
            "",
            "path of the maker's bkcl.h, which tells BKCL's numbers, if it does not lie beside the library",
        ),
        SettingSpec::new(
            bkcl::CONSTANTS,
            "string",
            "",
            "BKCL's numbers as NAME=NUMBER, parted by blanks: BKCL_UNIQUE_ID_BYTES, BKCL_FLOAT, BKCL_ADD and so on",
        ),
        SettingSpec::new(
            bkcl::SHIM,
            "string",
            "",
            "path of a library that was built with shim/iccl_bkcl_shim.cc against the maker's bkcl.h",
        ),
        SettingSpec::new(
            JOIN_TIMEOUT,
            "duration",
            "10m",
            "how long a communicator of BKCL waits for all its ranks",
        ),
    ];

    fn probe(settings: &Settings<'_>) -> PluginResult<Self> {
        let search = libraries::search(settings)?;
        let join_timeout =
            settings.number(JOIN_TIMEOUT)?.map_or(bkcl::JOIN_TIMEOUT, Duration::from_micros);
        let cards = Cards::open(&search)?;
        let opened = bkcl::open_bkcl(&cards, &search, settings);
        let bkcl = opened.bkcl.map(Arc::new).inspect_err(|error| {
            tracing::warn!(%error, "no native collectives on Kunlun cards");
        });
        Ok(Self { cards, bkcl, mapping: opened.mapping, join_timeout })
    }

    fn self_test(&self) -> PluginResult<()> {
        let promises = self.facts(0)?.capabilities;
        self_test(&self.open(0)?, &promises)
    }
}

iccl_plugin_api::export_plugin! {
    plugin: KunlunPlugin,
    device: KunlunPlugin,
    collectives: KunlunPlugin,
}
