//! The two doors of a plugin's `.so`, and what lies behind the Rust one.
//!
//! The symbols are defined here once for each image and open to the image's only plugin; see
//! [`registry`]. A host application has them too, where nobody looks for them.

use abi_stable::StableAbi;
use abi_stable::library::{CheckTypeLayout, LibHeader, RootModule, RootModuleResult};
use abi_stable::prefix_type::{PrefixRefTrait, WithMetadata};
use abi_stable::sabi_types::VersionStrings;
use abi_stable::std_types::ROk;

use crate::tables::PluginTable;
use crate::{log, registry};

/// What lies behind the Rust door: the way to the same tables that the C door gives. The type of
/// the function names every table, struct and function of the ABI, so that comparing the layouts of
/// this struct compares them all.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = RootRef, prefix_fields = RootPrefix)))]
#[sabi(missing_field(option))]
pub struct Root {
    /// The root table, or null.
    #[sabi(last_prefix_field)]
    pub table: extern "C" fn() -> *const PluginTable,
}

impl RootModule for RootRef {
    abi_stable::declare_root_module_statics! {RootRef}
    const BASE_NAME: &'static str = "iccl_plugin";
    const NAME: &'static str = "iccl_plugin";
    const VERSION_STRINGS: VersionStrings = abi_stable::package_version_strings!();
}

/// The C door, [`ENTRY_SYMBOL`](crate::tables::ENTRY_SYMBOL). Null if this image has no plugin, or
/// more than one.
#[unsafe(no_mangle)]
pub extern "C" fn iccl_plugin_entry_v1() -> *const PluginTable {
    log::entered_through_a_door();
    registry::only_table()
}

/// The Rust door, [`ROOT_SYMBOL`](crate::tables::ROOT_SYMBOL).
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is the symbol's")]
pub static iccl_plugin_root_v1: LibHeader =
    // SAFETY: `construct_root` makes its reference from a `RootRef`.
    unsafe { LibHeader::from_constructor::<RootRef>(construct_root, CheckTypeLayout::Yes) };

/// Gives the root module to the header.
extern "C" fn construct_root() -> RootModuleResult {
    const ROOT: &WithMetadata<Root> = &WithMetadata::new(Root { table: iccl_plugin_entry_v1 });
    let root = RootRef(ROOT.static_as_prefix());
    // SAFETY: erasing is what the header asks for; it is cast back to `RootRef` only after the
    // layout check.
    ROk(unsafe { root.to_prefix_ref().cast() })
}
