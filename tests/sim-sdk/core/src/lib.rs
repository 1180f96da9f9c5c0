//! What all simulated vendor SDKs share: a [`Machine`] of one maker's cards, and [`group`], the
//! processes that form a communicator through the maker's library.
//!
//! Nothing of one vendor lives here: no symbol, no status code, no order of arguments. A vendor's shared
//! objects translate their C calls into calls of this crate, and [`Refusal`] into their own numbers.
//!
//! The objects of one vendor share one machine in a process, as the real ones share the driver's
//! context: the lowest (the driver) owns it, the others ask it for it ([`share`]).

// `Refusal` says each time why something is refused.
#![allow(clippy::missing_errors_doc)]

mod copy;
mod device;
pub mod entry;
mod event;
pub mod faults;
pub mod group;
mod machine;
mod memory;
mod peer;
pub mod reduce;
mod settings;
pub mod share;
mod stream;

pub use copy::Pace;
pub use device::Device;
pub use entry::User;
pub use event::{Event, EventHandle, EventKind};
pub use faults::{Fault, Faults};
pub use machine::{Machine, ThreadState, Vendor};
pub use memory::{MemoryHandle, Place, Span};
pub use settings::Settings;
pub use stream::{Action, Point, Stream, StreamKind};

/// Why the machine does not do what it was asked. Each vendor has its own number for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// An argument is wrong.
    InvalidValue,
    /// The card's memory is used up.
    OutOfMemory,
    /// No such card.
    InvalidDevice,
    /// No such stream, event or handle; or it belongs to another card.
    InvalidHandle,
    /// Not yet.
    NotReady,
    /// The memory is registered already.
    AlreadyRegistered,
    /// The memory is not registered.
    NotRegistered,
    /// The card or a setting does not allow it.
    NotSupported,
    /// A handle was opened in the process that exported it.
    OwnHandle,
    /// A system call failed.
    System,
    /// The card is in error; the vendor's number.
    Broken(i32),
}
