//! The host's side: safe views of a plugin's tables.
//!
//! A view reads a table's `struct_size` once and keeps a copy in which everything that the plugin
//! lacks is absent; so presence is checked everywhere, and no caller needs to think of versions.
//! Every call turns the plugin's answer into a `Result`; a status number that this version does not
//! know is a failure, never a success. A call that succeeds builds no text.
//!
//! * [`open_rust_door`] and [`open_c_door`] give a [`PluginView`] from a symbol;
//!   [`PluginView::new`] from a statically linked plugin's table.
//! * [`DeviceView`], [`CollectivesView`] and [`TransportView`] are its families, free to copy.
//! * [`OpenDevice`], [`OpenCommunicator`] and [`OpenDomain`] own what was opened and close it when
//!   they are dropped.
//!
//! What a view can't check is the plugin's own honesty: its code runs in this process. That is the
//! promise that the `unsafe` constructors ask for; everything after them is safe except where memory
//! is handed over.

mod collectives;
mod device;
mod door;
mod error;
mod log;
mod plugin;
mod transport;

pub use collectives::{CollectivesView, OpenCommunicator};
pub use device::{DeviceView, OpenDevice};
pub use door::{DoorError, open_c_door, open_rust_door};
pub use error::{CallError, TableError};
pub use log::{LogSink, host_table};
pub use plugin::{PluginDescription, PluginView, SettingDescription};
pub use transport::{DomainWaker, OpenDomain, TransportView};

#[cfg(test)]
mod tests;

use error::outcome;

/// Calls a function of a table if it is there. The answer is `Done`, `Pending` or a [`CallError`].
///
/// The views' constructors promise that the functions of a table keep the ABI's rules; the caller of
/// this macro sees to the rules on arguments.
macro_rules! call {
    ($table:expr, $error:expr, $family:literal, $function:ident($($argument:expr),* $(,)?)) => {{
        const CALL: &str = concat!($family, stringify!($function));
        match $table.$function {
            Some(function) => {
                let error: &mut $crate::tables::ErrorInfo = $error;
                // SAFETY: see the macro's own words.
                let code = unsafe { function($($argument,)* error) };
                $crate::host::outcome(CALL, code, error)
            }
            None => Err($crate::host::CallError::absent(CALL)),
        }
    }};
}
use call;

/// The names of the functions among `$function`s that `$table` lacks, with the family before them.
macro_rules! missing {
    ($table:expr, $family:literal, [$($function:ident),* $(,)?]) => {{
        let mut missing: Vec<&'static str> = Vec::new();
        $(
            if $table.$function.is_none() {
                missing.push(concat!($family, stringify!($function)));
            }
        )*
        missing
    }};
}
use missing;
