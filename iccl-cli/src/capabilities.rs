//! What each plugin's devices and native library can do, and what iccl does where they cannot.

use std::sync::Arc;

use iccl_plugin_api::tables::{DeviceCapabilities, host_to_stream, region_form, stream_to_host};
use iccl_plugin_api::types::NATIVE_HABITS;
use iccl_plugin_api::{Collective, DataType, RedOp};
use iccl_runtime::config::Config;
use iccl_runtime::plugins::{CollectivesPlugin, DevicePlugin, PluginSet};
use iccl_runtime::schedule::{Algorithm, Island, Islands, NativeRules, Request};
use iccl_runtime::topology::NativeAbilities;
use serde::Serialize;

use crate::combinations::{Combination, dtypes_in, grouped, ops_in, wrapped};
use crate::print;

/// How wide a column of words is.
const WIDTH: usize = 32;

/// The capabilities of a device plugin. Its devices are alike; those of the first are shown.
#[derive(Serialize)]
pub(crate) struct Capabilities {
    plugin: &'static str,
    version: String,
    vendor: &'static str,
    devices: usize,
    memory: Vec<&'static str>,
    streams: Vec<&'static str>,
    own_kernels: Vec<String>,
    nic_regions: Vec<&'static str>,
    native_library: Option<&'static str>,
    native_habits: Vec<&'static str>,
    combinations: Vec<Row>,
}

/// Collectives, types and operations that are done alike.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Row {
    by: &'static str,
    collectives: Vec<&'static str>,
    dtypes: Vec<&'static str>,
    /// Empty where the collectives do not reduce.
    ops: Vec<&'static str>,
}

/// Who does a combination where one native library serves all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    /// The native library.
    Native,
    /// iccl's schedules; where they reduce, the processor's kernels do. The library may have it too, and
    /// is not asked.
    Schedules { reduce: bool, is_offered: bool },
}

impl By {
    fn text(self, is_host_memory: bool) -> &'static str {
        let Self::Schedules { reduce, is_offered } = self else { return "native library" };
        match (reduce, is_host_memory, is_offered) {
            (true, true, _) => "iccl: its schedules; the host's kernels reduce",
            (true, false, false) => {
                "iccl: its schedules over pinned host memory; the host's kernels reduce"
            }
            (true, false, true) => {
                "iccl: its schedules over pinned host memory; the host's kernels reduce \
                 (the library's own is not used)"
            }
            (false, true, _) => "iccl: its schedules move the bytes",
            (false, false, false) => "iccl: its schedules move the bytes over pinned host memory",
            (false, false, true) => {
                "iccl: its schedules move the bytes over pinned host memory (the library's own is not used)"
            }
        }
    }
}

/// A native library, and whether it is asked.
struct Native<'a> {
    plugin: &'a CollectivesPlugin,
    abilities: NativeAbilities,
    /// As if it served all of two ranks; nothing if settings or the kind of memory rule it out.
    islands: Option<Arc<Islands>>,
}

impl<'a> Native<'a> {
    fn new(plugin: &'a CollectivesPlugin, is_host_memory: bool, config: &Config) -> Self {
        let abilities = NativeAbilities::new(plugin.flags(), plugin.support());
        let island = Island {
            library: plugin.library().to_owned(),
            ranks: [0, 1].into(),
            abilities: abilities.clone(),
        };
        let is_asked = config.device.native && !is_host_memory;
        let islands =
            is_asked.then(|| Arc::new(Islands::new(2, [island], NativeRules::new(config))));
        Self { plugin, abilities, islands }
    }

    /// Who does it: the judgement of the runtime's own selection.
    fn judge(&self, collective: Collective, dtype: DataType, op: Option<RedOp>) -> By {
        let request = Request {
            collective,
            dtype,
            op: op.unwrap_or(RedOp::Sum),
            count: 1,
            root: 0,
            rank: 0,
            ranks: 2,
            in_place: false,
            algorithm: Algorithm::Native,
            chunk_bytes: 1,
            counts: None,
            islands: self.islands.clone(),
        };
        if self.islands.is_some() && Algorithm::Native.refusal(&request).is_none() {
            return By::Native;
        }
        let is_offered = self.abilities.offers(collective, dtype, op);
        By::Schedules { reduce: op.is_some(), is_offered }
    }
}

/// Of every active device plugin.
pub(crate) fn all(plugins: &PluginSet, config: &Config) -> Vec<Capabilities> {
    let mut found: Vec<Capabilities> = Vec::new();
    for device in plugins.devices() {
        let name = device.plugin().name();
        if found.iter().all(|known| known.plugin != name) {
            found.push(of(plugins, device, config));
        }
    }
    found
}

fn of(plugins: &PluginSet, device: &DevicePlugin, config: &Config) -> Capabilities {
    let can = &device.facts().capabilities;
    let plugin = device.plugin();
    let is_host_memory = can.host_accessible != 0;
    let native = plugins
        .collectives_of(plugin.name())
        .map(|native| Native::new(native, is_host_memory, config));
    let library = native.as_ref().map(|native| native.plugin);
    Capabilities {
        plugin: plugin.name(),
        version: plugin.version().to_string(),
        vendor: plugin.vendor(),
        devices: plugins.devices_of(plugin.name()).count(),
        memory: vec![if is_host_memory {
            "the host reads and writes it"
        } else {
            "the device's own; the host reaches it by copies"
        }],
        streams: streams(can),
        own_kernels: own_kernels(can),
        nic_regions: regions(can),
        native_library: library.map(CollectivesPlugin::library),
        native_habits: library.map(|library| habits(library.flags())).unwrap_or_default(),
        combinations: combinations(is_host_memory, |collective, dtype, op| {
            let without = By::Schedules { reduce: op.is_some(), is_offered: false };
            native.as_ref().map_or(without, |native| native.judge(collective, dtype, op))
        }),
    }
}

/// The texts of the bits that are set.
fn named(bits: u64, names: &[(u64, &'static str)]) -> Vec<&'static str> {
    names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect()
}

fn streams(can: &DeviceCapabilities) -> Vec<&'static str> {
    let mut texts = named(
        u64::from(can.stream_to_host),
        &[
            (u64::from(stream_to_host::EVENT), "events"),
            (u64::from(stream_to_host::HOST_FUNCTION), "host functions"),
        ],
    );
    texts.extend(named(
        u64::from(can.host_to_stream),
        &[
            (u64::from(host_to_stream::WAIT_VALUE), "wait for a value"),
            (u64::from(host_to_stream::BLOCKING_HOST_FUNCTION), "host functions that may block"),
        ],
    ));
    if can.host_to_stream == 0 {
        texts.push("enqueueing an operation of iccl waits until it is done");
    }
    texts
}

pub(crate) fn regions(can: &DeviceCapabilities) -> Vec<&'static str> {
    named(
        u64::from(can.region_forms),
        &[
            (u64::from(region_form::ADDRESS), "address"),
            (u64::from(region_form::DMA_BUF), "dma-buf"),
            (u64::from(region_form::HOST_ALIAS), "host-alias"),
        ],
    )
}

/// What the device's own kernels reduce, if they do.
fn own_kernels(can: &DeviceCapabilities) -> Vec<String> {
    if can.has_reduce == 0 {
        return Vec::new();
    }
    let ops: Vec<&str> = ops_in(can.reduce_ops).map(RedOp::name).collect();
    let dtypes: Vec<&str> = dtypes_in(can.reduce_dtypes).map(DataType::name).collect();
    vec![format!("{} of {}", ops.join(" "), dtypes.join(" "))]
}

fn habits(flags: u64) -> Vec<&'static str> {
    named(flags, &NATIVE_HABITS)
}

fn combinations(
    is_host_memory: bool,
    who: impl Fn(Collective, DataType, Option<RedOp>) -> By,
) -> Vec<Row> {
    let row = |row: Combination<By>| Row {
        by: row.answer.text(is_host_memory),
        collectives: row.collective_names(),
        dtypes: row.dtype_names(),
        ops: row.op_names(),
    };
    grouped(who).into_iter().map(row).collect()
}

impl Capabilities {
    pub(crate) fn plugin(&self) -> &'static str {
        self.plugin
    }

    pub(crate) fn text(&self) -> String {
        let list = |texts: &[&str]| {
            if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
        };
        let devices = if self.devices == 1 { "device" } else { "devices" };
        let kernels = match self.own_kernels.as_slice() {
            [] => "none; the host reduces".to_owned(),
            kernels => kernels.join(", "),
        };
        let native = match self.native_library {
            None => "none".to_owned(),
            Some(library) if self.native_habits.is_empty() => library.to_owned(),
            Some(library) => format!("{library} ({})", self.native_habits.join(", ")),
        };
        let facts = vec![
            vec!["memory".to_owned(), list(&self.memory)],
            vec!["streams".to_owned(), list(&self.streams)],
            vec!["own kernels".to_owned(), kernels],
            vec!["nic regions".to_owned(), list(&self.nic_regions)],
            vec!["native library".to_owned(), native],
        ];
        let rows = self.combinations.iter().map(|row| {
            let ops = if row.ops.is_empty() { "-".to_owned() } else { row.ops.join(" ") };
            vec![
                wrapped(&row.collectives.join(" "), WIDTH),
                wrapped(&row.dtypes.join(" "), WIDTH),
                ops,
                row.by.to_owned(),
            ]
        });
        let heads = ["collectives", "types", "operations", "done by"];
        format!(
            "{} {} ({}), {} {devices}\n{}\n{}",
            self.plugin,
            self.version,
            self.vendor,
            self.devices,
            iccl_runtime::plan::text_table(&facts),
            print::table(&heads, rows.collect())
        )
    }
}
