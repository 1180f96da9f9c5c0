//! `iccl devices`: the devices of this machine.

use clap::Args;
use iccl_plugin_api::tables::{host_to_stream, stream_to_host};
use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::config::Config;
use iccl_runtime::plugins::{CollectivesPlugin, DevicePlugin, PluginSet};
use serde::Serialize;

use crate::capabilities::{self, Capabilities};
use crate::context::Context;
use crate::failure::{Outcome, Result};
use crate::print;

pub(crate) const EXAMPLES: &str = "\
Examples:
  iccl devices
  iccl devices --capabilities              what they can do, and what iccl does where they cannot
  iccl devices --json | jq '.devices[].name'";

const NO_DEVICES: &str = "no devices; `iccl plugins` shows which plugins there are\n";

#[derive(Args)]
pub(crate) struct Arguments {
    /// Show what the devices and native libraries of each plugin can do, and what fills the gaps.
    #[arg(long)]
    capabilities: bool,
}

#[derive(Serialize)]
struct AllCapabilities {
    capabilities: Vec<Capabilities>,
}

#[derive(Serialize)]
struct Answer {
    devices: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    plugin: &'static str,
    index: u32,
    name: &'static str,
    memory_bytes: Option<u64>,
    pci_address: Option<&'static str>,
    numa_node: Option<u32>,
    /// Whether the host reads and writes its memory directly.
    host_accessible: bool,
    /// Whether enqueueing returns before the work is done.
    asynchronous: bool,
    reduce_dtypes: Vec<&'static str>,
    reduce_ops: Vec<&'static str>,
    /// How its memory can be given to a NIC.
    region_forms: Vec<&'static str>,
    /// The native collective library.
    native_library: Option<&'static str>,
}

pub(crate) fn show(context: &Context, arguments: &Arguments) -> Result {
    let runtime = context.runtime()?;
    let plugins = runtime.plugin_set();
    if arguments.capabilities {
        return show_capabilities(context, plugins, runtime.config());
    }
    let devices: Vec<Row> = plugins.devices().iter().map(|device| row(plugins, device)).collect();
    if context.is_json() {
        print::json(&Answer { devices })?;
        return Ok(Outcome::Right);
    }
    if devices.is_empty() {
        print::text(NO_DEVICES)?;
        return Ok(Outcome::CheckFailed);
    }
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let rows = devices.iter().map(|device| {
        vec![
            format!("{}:{}", device.plugin, device.index),
            device.name.to_owned(),
            or_dash(device.memory_bytes.map(print::bytes)),
            or_dash(device.pci_address.map(ToOwned::to_owned)),
            or_dash(device.numa_node.map(|node| node.to_string())),
            if device.host_accessible { "host".to_owned() } else { "device".to_owned() },
            or_dash(device.native_library.map(ToOwned::to_owned)),
        ]
    });
    let heads = ["device", "name", "memory", "pci", "numa", "memory kind", "native library"];
    print::text(&print::table(&heads, rows.collect()))?;
    if context.is_verbose() {
        for device in &devices {
            print::text(&format!(
                "\n{}:{}\n  own kernels  {}\n  streams      {}\n  nic regions  {}\n",
                device.plugin,
                device.index,
                match device.reduce_ops.as_slice() {
                    [] => "none; the host reduces".to_owned(),
                    ops => format!("{} of {}", ops.join(" "), device.reduce_dtypes.join(" ")),
                },
                if device.asynchronous { "asynchronous" } else { "enqueueing waits" },
                or_none(&device.region_forms),
            ))?;
        }
    }
    Ok(Outcome::Right)
}

fn show_capabilities(context: &Context, plugins: &PluginSet, config: &Config) -> Result {
    let capabilities = capabilities::all(plugins, config);
    let outcome = if capabilities.is_empty() { Outcome::CheckFailed } else { Outcome::Right };
    if context.is_json() {
        print::json(&AllCapabilities { capabilities })?;
    } else if capabilities.is_empty() {
        print::text(NO_DEVICES)?;
    } else {
        let texts: Vec<String> = capabilities.iter().map(Capabilities::text).collect();
        print::text(&texts.join("\n"))?;
    }
    Ok(outcome)
}

fn or_none(names: &[&str]) -> String {
    if names.is_empty() { "nothing".to_owned() } else { names.join(" ") }
}

fn row(plugins: &PluginSet, device: &DevicePlugin) -> Row {
    let facts = device.facts();
    let can = &facts.capabilities;
    let name = device.plugin().name();
    let reduces = can.has_reduce != 0;
    Row {
        plugin: name,
        index: device.index(),
        name: facts.name,
        memory_bytes: (facts.memory_bytes > 0).then_some(facts.memory_bytes),
        pci_address: (!facts.pci_address.is_empty()).then_some(facts.pci_address),
        numa_node: facts.numa_node,
        host_accessible: can.host_accessible != 0,
        asynchronous: can.host_to_stream & host_to_stream::WAIT_VALUE != 0
            && can.stream_to_host & stream_to_host::HOST_FUNCTION != 0,
        reduce_dtypes: DataType::ALL
            .iter()
            .filter(|one| reduces && can.reduce_dtypes & one.mask() != 0)
            .map(|one| one.name())
            .collect(),
        reduce_ops: RedOp::ALL
            .iter()
            .filter(|one| reduces && can.reduce_ops & one.mask() != 0)
            .map(|one| one.name())
            .collect(),
        region_forms: capabilities::regions(can),
        native_library: plugins.collectives_of(name).map(CollectivesPlugin::library),
    }
}
