//! Opening the two doors of a loaded `.so`.

use core::ffi::c_void;

use abi_stable::StableAbi;
use abi_stable::abi_stability::abi_checking::{
    AbiInstabilityErrors, CheckingGlobals, check_layout_compatibility_with_globals,
};
use abi_stable::library::{AbiHeaderRef, LibHeader};
use abi_stable::type_layout::TLFieldOrFunction;

use super::{PluginView, TableError};
use crate::door::RootRef;
use crate::tables::{EntryFunction, whole_characters};

/// Why a door did not open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DoorError {
    /// The Rust door was made by another `abi_stable`. The C door may still open.
    #[error("the Rust door is not understood: {0}")]
    NotUnderstood(String),
    /// The plugin was built from sources whose tables differ. It must not be used, by either door.
    #[error("the plugin's tables differ from the host's: {0}")]
    Layout(String),
    /// The door opened, and what lies behind it can't be used.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// Opens the C door.
///
/// # Safety
/// `symbol` is the address of [`ENTRY_SYMBOL`](crate::tables::ENTRY_SYMBOL) in a plugin that stays
/// loaded for the life of the process.
///
/// # Errors
/// [`DoorError::Table`].
pub unsafe fn open_c_door(symbol: *const c_void) -> Result<PluginView, DoorError> {
    if symbol.is_null() {
        return Err(TableError::Null.into());
    }
    // SAFETY: the caller promises that this symbol is such a function.
    let entry = unsafe { std::mem::transmute::<*const c_void, EntryFunction>(symbol) };
    // SAFETY: the function takes nothing and gives a table; the plugin stays loaded.
    Ok(unsafe { PluginView::new(entry()) }?)
}

/// Opens the Rust door, after comparing the layouts of all tables with this host's.
///
/// `abi_stable` allows the plugin to have more than the host; comparing with the sides exchanged
/// allows the host to have more than the plugin. Either is right, since every reader takes what is
/// not there as absent.
///
/// # Safety
/// `symbol` is the address of [`ROOT_SYMBOL`](crate::tables::ROOT_SYMBOL) in a plugin that stays
/// loaded for the life of the process.
///
/// # Errors
/// [`DoorError::NotUnderstood`] if the C door should be tried; [`DoorError::Layout`] if the plugin
/// has to be refused; [`DoorError::Table`].
pub unsafe fn open_rust_door(symbol: *const c_void) -> Result<PluginView, DoorError> {
    if symbol.is_null() || !symbol.cast::<LibHeader>().is_aligned() {
        return Err(DoorError::NotUnderstood("the symbol is null or misaligned".to_owned()));
    }
    // SAFETY: `AbiHeaderRef` is a transparent, non-null reference to the header's beginning, which
    // the caller promises to be there.
    let header = unsafe { std::mem::transmute::<*const c_void, AbiHeaderRef>(symbol) };
    let header = header.upgrade().map_err(|error| DoorError::NotUnderstood(one_line(&error)))?;
    check_both_ways(header)?;
    // SAFETY: the layouts were compared.
    let root = unsafe { header.init_root_module_with_unchecked_layout::<RootRef>() }
        .map_err(|error| DoorError::Layout(one_line(&error)))?;
    // SAFETY: the plugin stays loaded, and its tables have the layout of ours.
    Ok(unsafe { PluginView::new(root.table()()) }?)
}

/// Compares the layouts with the host as the older side, and if that fails as the newer one.
fn check_both_ways(header: &'static LibHeader) -> Result<(), DoorError> {
    let ours = <RootRef as StableAbi>::LAYOUT;
    let Some(theirs) = header.layout() else {
        return Err(DoorError::NotUnderstood("the plugin hides its layout".to_owned()));
    };
    // With the process's globals, `abi_stable` would also compare plugins with each other, and once
    // an older one was accepted refuse those that are as new as the host.
    let check = |interface, implementation| {
        let globals = CheckingGlobals::new();
        check_layout_compatibility_with_globals(interface, implementation, &globals)
    };
    let Err(as_newer) = check(ours, theirs) else { return Ok(()) };
    let Err(as_older) = check(theirs, ours) else { return Ok(()) };
    // The direction that fits better has fewer complaints, all of which are to the point.
    let (errors, what) = if as_older.errors.len() < as_newer.errors.len() {
        (as_older, ("the plugin's", "ours"))
    } else {
        (as_newer, ("ours", "the plugin's"))
    };
    Err(DoorError::Layout(summary(&errors, what)))
}

/// The first difference, as one line: `Segment.length: mismatched type, ours: u64, the plugin's:
/// u32`. In full these errors are pages long.
fn summary(errors: &AbiInstabilityErrors, (expected, found): (&str, &str)) -> String {
    let Some(first) = errors.errors.iter().find(|error| !error.errs.is_empty()) else {
        return "a difference that is not named".to_owned();
    };
    // Names of structs come as the target of a pointer, which `abi_stable` calls field 0.
    let (mut place, mut member) = ("Root", None);
    for step in &first.stack_trace {
        if let TLFieldOrFunction::Field(field) = step.expected {
            match field.name() {
                "0" if field.layout().name() == "PrefixRef" => {}
                "0" => (place, member) = (field.layout().name(), None),
                name => member = member.or(Some(name)),
            }
        }
    }
    let text = first.to_string();
    let reason = text.split("\nError:").nth(1).unwrap_or("differs").to_owned();
    let reason = reason
        .replace("\nExpected:\n", &format!(", {expected}: "))
        .replace("\nFound:\n", &format!(", {found}: "));
    let member = member.map(|name| format!(".{name}")).unwrap_or_default();
    one_line(&format!("{place}{member}: {reason}"))
}

/// Most bytes of a reason.
const LONGEST_REASON: usize = 300;

/// A text without line ends, cut where it becomes too long.
fn one_line(text: &impl ToString) -> String {
    let mut line = text.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let end = whole_characters(&line, LONGEST_REASON);
    if end < line.len() {
        line.truncate(end);
        line.push('…');
    }
    line.replace(" ,", ",")
}
