//! What plugins of makers of cards have in common: finding a maker's libraries without having been
//! linked to them, taking their symbols by name, entering a thread's current device and leaving it
//! as it was, what the kernel says of a PCI device, waits with deadlines, planning an operation into
//! calls of a library, and a test of what a card promises.
//!
//! Nothing of any one maker may live here.

mod callbacks;
mod capabilities;
mod current;
mod errors;
mod kernel;
mod library;
mod loaded;
mod memory;
mod opening;
pub mod plan;
mod process;
mod regions;
mod search;
mod self_test;
#[macro_use]
mod symbols;
mod waiting;

pub use callbacks::{enqueue_callback, handle};
pub use capabilities::{
    MOVING, REDUCING, Reduced, add_support, capability_table, is_offered, keep_documented,
    support_of,
};
pub use current::{Entered, ThreadState};
pub use errors::{failure, one_line, static_text, written_text};
pub use kernel::{numa_node, page_bytes, pci_address};
pub use library::Library;
pub use loaded::{loaded_libraries, other_versions};
pub use memory::{Allocation, Allocations, Direction, allocation_bytes, pages};
pub use opening::{named_folders, open, table};
pub use process::OwnProcess;
pub use regions::Regions;
pub use search::{Candidate, Place, Search, python_folders, variable_folders};
pub use self_test::self_test;
pub use symbols::MissingSymbols;
pub use waiting::{Pace, synchronize, wait_until_done};
