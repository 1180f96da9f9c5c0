//! The plugins that are linked into this image.
//!
//! [`export_plugin!`](crate::export_plugin) registers a plugin here instead of defining the doors'
//! symbols itself. The doors are defined once, in this crate, and open to the plugin of the image;
//! so the same plugin crate serves as a `.so` and, linked with others, as part of a host
//! application, without a feature or a second crate. See `docs/decisions/0002-static-plugins.md`.

use crate::tables::PluginTable;

/// A plugin that is linked into this image.
#[derive(Debug)]
pub struct StaticPlugin {
    /// Its name.
    pub name: &'static str,
    /// Its root table.
    pub table: fn() -> *const PluginTable,
}

inventory::collect!(StaticPlugin);

/// Every plugin that is linked into this image, in no particular order.
pub fn static_plugins() -> impl Iterator<Item = &'static StaticPlugin> {
    inventory::iter::<StaticPlugin>.into_iter()
}

/// The root table of this image's plugin; null unless there is exactly one.
pub(crate) fn only_table() -> *const PluginTable {
    let mut plugins = static_plugins();
    match (plugins.next(), plugins.next()) {
        (Some(plugin), None) => (plugin.table)(),
        _ => std::ptr::null(),
    }
}
