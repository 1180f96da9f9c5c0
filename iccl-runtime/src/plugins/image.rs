//! A plugin's file in this process: `dlopen`, and the door that opens.

use std::error::Error as _;
use std::path::Path;

use iccl_plugin_api::host::{
    CallError, DoorError, PluginDescription, PluginView, TableError, open_c_door, open_rust_door,
};
use iccl_plugin_api::note::NoteInfo;
use iccl_plugin_api::tables::{ENTRY_SYMBOL, ROOT_SYMBOL};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::error::panic_words;
use super::reason::{Reason, Refusal};
use super::record::{Door, one_line};

/// A plugin that is loaded for the life of the process.
#[derive(Clone, Debug)]
pub(super) struct Image {
    pub(super) view: PluginView,
    pub(super) door: Door,
    /// What should be known about how it was loaded.
    pub(super) note: Option<String>,
}

/// Loads a file that passed all checks. It is never unloaded: its threads, thread-local
/// destructors and tables live as long as the process.
pub(super) fn load(path: &Path) -> Result<Image, Refusal> {
    // SAFETY: loading runs the file's constructors. The file is a plugin by its note, belongs to
    // root or the caller, and was either run in a child process before or is trusted by the
    // configuration.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NODELETE) };
    let library = std::mem::ManuallyDrop::new(library.map_err(|error| load_refusal(path, &error))?);

    let mut not_understood = None;
    if let Some(symbol) = address_of(&library, ROOT_SYMBOL) {
        // SAFETY: the symbol is the Rust door's, and the library is never unloaded.
        match unsafe { open_rust_door(symbol) } {
            Ok(view) => return Ok(Image { view, door: Door::Rust, note: None }),
            Err(DoorError::NotUnderstood(why)) => not_understood = Some(why),
            Err(error) => return Err(door_refusal(&error)),
        }
    }
    let Some(symbol) = address_of(&library, ENTRY_SYMBOL) else {
        return Err(match not_understood {
            Some(why) => Refusal::new(Reason::LayoutDiffers, why),
            None => Refusal::new(Reason::NoEntry, "no entry symbol can be resolved"),
        });
    };
    // SAFETY: the symbol is the C door's, and the library is never unloaded.
    let view = unsafe { open_c_door(symbol) }.map_err(|error| door_refusal(&error))?;
    let note = not_understood.map(|why| one_line(&format!("the C door was used: {why}")));
    Ok(Image { view, door: Door::C, note })
}

/// The address of a symbol of the library.
fn address_of(library: &Library, name: &str) -> Option<*const std::ffi::c_void> {
    // SAFETY: only the address is taken; what lies there is for the doors to say.
    unsafe { library.get::<*const std::ffi::c_void>(name) }.ok().map(|symbol| *symbol)
}

/// Why the loader refused, in its own words: libloading keeps them in the error's source.
fn load_refusal(path: &Path, error: &libloading::Error) -> Refusal {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = inner.to_string();
        source = inner.source();
    }
    let path = path.to_string_lossy();
    // The path is told beside the reason already.
    let words =
        text.strip_prefix(&*path).map_or(text.as_str(), |rest| rest.trim_start_matches([':', ' ']));
    let reason = if words.contains("undefined symbol") {
        Reason::UndefinedSymbol
    } else if text.contains("cannot open shared object file") && !text.starts_with(&*path) {
        Reason::MissingDependency
    } else {
        Reason::LoadFailed
    };
    Refusal::new(reason, words)
}

fn door_refusal(error: &DoorError) -> Refusal {
    let reason = match error {
        DoorError::NotUnderstood(_) | DoorError::Layout(_) => Reason::LayoutDiffers,
        DoorError::Table(table) => table_reason(table),
    };
    Refusal::new(reason, error.to_string())
}

/// The reason for tables that can't be used.
pub(super) fn table_reason(error: &TableError) -> Reason {
    match error {
        TableError::AbiMajor { .. } => Reason::AbiMajor,
        TableError::MissingFunctions(_) => Reason::NullFunction,
        _ => Reason::BadTable,
    }
}

/// The refusal for a call that failed; a panic has a reason of its own, whatever the call.
pub(super) fn call_refusal(reason: Reason, error: &CallError) -> Refusal {
    if error.is_panic() {
        let detail = format!("panicked in {}: {}", error.call, panic_words(error));
        return Refusal::new(Reason::Panicked, detail);
    }
    Refusal::new(reason, error.to_string())
}

/// What the plugin says of itself, checked against its note if it has one.
pub(super) fn describe(
    view: PluginView,
    note: Option<&NoteInfo>,
) -> Result<(PluginDescription, semver::Version), Refusal> {
    let description =
        view.describe().map_err(|error| call_refusal(Reason::DescribeFailed, &error))?;
    let version = semver::Version::parse(description.version).map_err(|error| {
        let detail = format!("the version {:?} is no semver: {error}", description.version);
        Refusal::new(Reason::DescribeFailed, detail)
    })?;
    if let Some(note) = note {
        for (what, says, noted) in [
            ("name", description.name, &note.name),
            ("version", description.version, &note.version),
        ] {
            if says != noted {
                let detail = format!("its {what} is {says:?}, its note says {noted:?}");
                return Err(Refusal::new(Reason::NoteDiffers, detail));
            }
        }
        if view.families() != note.families {
            let (offers, noted) = (view.families(), note.families);
            let detail = format!("it offers the families {offers:#b}, its note says {noted:#b}");
            return Err(Refusal::new(Reason::NoteDiffers, detail));
        }
    }
    Ok((description, version))
}
