//! What plugins of makers of cards have in common: finding a maker's libraries without having been
//! linked to them, taking their symbols by name, entering a thread's current device and leaving it
//! as it was, and what the kernel says of a PCI device.
//!
//! Nothing of any one maker may live here.

mod current;
mod kernel;
mod library;
mod loaded;
mod search;
#[macro_use]
mod symbols;

pub use current::{Entered, ThreadState};
pub use kernel::{numa_node, page_bytes, pci_address};
pub use library::Library;
pub use loaded::{loaded_libraries, other_versions};
pub use search::{Candidate, Place, Search, python_folders, variable_folders};
pub use symbols::MissingSymbols;
