//! The macro that makes a plugin.

/// Makes a plugin of types that implement the traits of [`sdk`](crate::sdk).
///
/// ```
/// # use iccl_plugin_api::sdk::*;
/// struct Quiet;
///
/// impl Plugin for Quiet {
///     const NAME: &'static str = "quiet";
///     const VERSION: &'static str = env!("CARGO_PKG_VERSION");
///     const VENDOR: &'static str = "nobody";
///     const DESCRIPTION: &'static str = "finds no device";
///
///     fn probe(_: &Settings<'_>) -> PluginResult<Self> {
///         Err(PluginError::new(iccl_plugin_api::Status::NoDevice, "there never is one"))
///     }
/// }
///
/// iccl_plugin_api::export_plugin! { plugin: Quiet }
/// # fn main() {}
/// ```
///
/// The families follow the plugin, in this order and each only if it is offered:
/// `device: Type`, `collectives: Type`, `transport: Type`. A family's type is the plugin's own type,
/// or a type `F` for which the plugin implements [`Borrow<F>`](std::borrow::Borrow).
///
/// The crate is built as `crate-type = ["cdylib", "rlib"]`. As a `.so` it has both doors and an ELF
/// note; linked into a host application (name the crate in a `use … as _;`, or the linker leaves it
/// out) it registers itself among the [`static_plugins`](crate::registry::static_plugins). An image
/// holds any number of these, but a `.so` opens its doors only if it holds exactly one: a plugin
/// crate must not depend on another plugin crate.
#[macro_export]
macro_rules! export_plugin {
    (
        plugin: $plugin:ty
        $(, device: $device:ty)?
        $(, collectives: $collectives:ty)?
        $(, transport: $transport:ty)?
        $(,)?
    ) => {
        const _: () = {
            use $crate::adaptor;
            use $crate::tables::{self, family};

            impl adaptor::Exported for $plugin {
                fn slot() -> &'static adaptor::PluginSlot<Self> {
                    static SLOT: adaptor::PluginSlot<$plugin> = adaptor::PluginSlot::new();
                    &SLOT
                }
            }

            #[allow(unused_mut, unused_assignments, reason = "depends on the families offered")]
            const FAMILIES: u32 = 0
                $( | { let _: Option<$device> = None; family::DEVICE } )?
                $( | { let _: Option<$collectives> = None; family::COLLECTIVES } )?
                $( | { let _: Option<$transport> = None; family::TRANSPORT } )?;

            $(
                static DEVICE: tables::DeviceTable =
                    adaptor::device_table::<$plugin, $device>();
            )?
            $(
                static COLLECTIVES: tables::CollectivesTable =
                    adaptor::collectives_table::<$plugin, $collectives>();
            )?
            $(
                static TRANSPORT: tables::TransportTable =
                    adaptor::transport_table::<$plugin, $transport>();
            )?

            static TABLE: tables::PluginTable = {
                #[allow(unused_mut, reason = "depends on the families offered")]
                let mut table = adaptor::plugin_table::<$plugin>();
                $(
                    let _: Option<$device> = None;
                    table.device = &raw const DEVICE;
                )?
                $(
                    let _: Option<$collectives> = None;
                    table.collectives = &raw const COLLECTIVES;
                )?
                $(
                    let _: Option<$transport> = None;
                    table.transport = &raw const TRANSPORT;
                )?
                table
            };

            #[used]
            #[unsafe(link_section = ".note.iccl")]
            static NOTE: $crate::note::PluginNote = $crate::note::PluginNote::new(
                <$plugin as $crate::sdk::Plugin>::NAME,
                <$plugin as $crate::sdk::Plugin>::VERSION,
                FAMILIES,
            );

            $crate::inventory::submit! {
                $crate::registry::StaticPlugin {
                    name: <$plugin as $crate::sdk::Plugin>::NAME,
                    table: || &raw const TABLE,
                }
            }
        };
    };
}
