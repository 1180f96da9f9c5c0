//! NCCL, opened: what it can do, unique ids, groups.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{CollectivesFacts, NativeCollectives, PluginError, PluginResult};
use iccl_vendor_support::plan::{Functions, Repertoire};
use iccl_vendor_support::{Search, open, table};

use crate::communicator::{Joined, NcclCommunicator};
use crate::device::Card;
use crate::support::{FLAGS, OLDEST_VERSION, SUPPORT, repertoire, version_text};
use crate::{NvidiaPlugin, libraries, sys};

/// NCCL and what is known of it.
#[derive(Debug)]
pub(crate) struct Nccl {
    pub(crate) table: sys::Nccl,
    /// What it is planned for.
    pub(crate) repertoire: Repertoire,
    /// `NCCL 2.32.3`: ranks of other versions are not of the same island.
    name: &'static str,
}

impl Nccl {
    /// Opens the library.
    ///
    /// # Errors
    /// `LibraryMissing`, with what is missing; what NCCL says.
    pub(crate) fn open(search: &Search) -> PluginResult<Self> {
        let (nccl, _): (Self, PathBuf) = open(libraries::NCCL, search, |library| {
            // SAFETY: the signatures are those of the headers of these versions.
            let table = table(library, unsafe { sys::Nccl::resolve(library) })?;
            let mut version = 0;
            // SAFETY: there is room for the number.
            let answer = unsafe { (table.ncclGetVersion)(&raw mut version) };
            table.check("ncclGetVersion", std::ptr::null_mut(), answer)?;
            let version = usable_version(version)?;
            let functions = Functions {
                gather: table.ncclGather.is_some(),
                scatter: table.ncclScatter.is_some(),
                roots_in_place: true,
                all_to_all: table.ncclAlltoAll.is_some(),
                ..Functions::default()
            };
            let repertoire = repertoire(functions);
            Ok(Self { table, repertoire, name: format!("NCCL {version}").leak() })
        })?;
        Ok(nccl)
    }
}

/// The version as text, if this plugin knows how to use it.
fn usable_version(number: i32) -> PluginResult<String> {
    let text = version_text(number);
    if number < OLDEST_VERSION {
        let oldest = version_text(OLDEST_VERSION);
        let text = format!("NCCL {text} is older than {oldest}");
        return Err(PluginError::new(Status::LibraryMissing, text));
    }
    Ok(text)
}

/// A group of calls of this thread.
#[derive(Default)]
struct Group {
    depth: u32,
    /// The communicators that were called in it.
    called: Vec<Arc<Joined>>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

impl Nccl {
    /// Begins a group of this thread, or one inside it.
    pub(crate) fn begin_group(&self) -> PluginResult<()> {
        // SAFETY: no arguments.
        let answer = unsafe { (self.table.ncclGroupStart)() };
        self.table.check("ncclGroupStart", std::ptr::null_mut(), answer)?;
        GROUP.with_borrow_mut(|group| group.depth += 1);
        Ok(())
    }

    /// Ends it. The end of the outermost returns when all its calls are on their streams.
    pub(crate) fn end_group(&self) -> PluginResult<()> {
        let called = GROUP.with_borrow_mut(|group| {
            group.depth = group.depth.checked_sub(1)?;
            Some(if group.depth == 0 { std::mem::take(&mut group.called) } else { Vec::new() })
        });
        let called = called
            .ok_or_else(|| PluginError::invalid("a group ends that this thread did not begin"))?;
        // SAFETY: no arguments.
        let answer = unsafe { (self.table.ncclGroupEnd)() };
        let mut ended = self.table.check("ncclGroupEnd", std::ptr::null_mut(), answer);
        for communicator in &called {
            ended = ended.and(communicator.settle("ncclGroupEnd", None));
        }
        ended
    }

    /// Whether this thread is in a group; then its calls are issued at the group's end, and the
    /// communicator is remembered until then.
    pub(crate) fn is_grouped(communicator: &Arc<Joined>) -> bool {
        GROUP.with_borrow_mut(|group| {
            let is_grouped = group.depth > 0;
            if is_grouped && !group.called.iter().any(|each| Arc::ptr_eq(each, communicator)) {
                group.called.push(Arc::clone(communicator));
            }
            is_grouped
        })
    }
}

impl NvidiaPlugin {
    /// NCCL, or why there is none.
    fn nccl(&self) -> PluginResult<&Arc<Nccl>> {
        self.nccl.as_ref().map_err(Clone::clone)
    }
}

impl NativeCollectives for NvidiaPlugin {
    type Backend = Self;
    type Communicator = NcclCommunicator;

    fn facts(&self) -> PluginResult<CollectivesFacts> {
        let (support, library) = match &self.nccl {
            Ok(nccl) => (&SUPPORT[..], nccl.name),
            // The cards are of use without it: iccl's own schedules do everything.
            Err(_) => (&[][..], "no NCCL"),
        };
        Ok(CollectivesFacts {
            unique_id_bytes: sys::UNIQUE_ID_BYTES as u64,
            support,
            flags: FLAGS,
            library,
        })
    }

    fn unique_id(&self) -> PluginResult<Vec<u8>> {
        let nccl = self.nccl()?;
        let mut id = sys::UniqueId { internal: [0; sys::UNIQUE_ID_BYTES] };
        // SAFETY: there is room for the id.
        let answer = unsafe { (nccl.table.ncclGetUniqueId)(&raw mut id) };
        nccl.table.check("ncclGetUniqueId", std::ptr::null_mut(), answer)?;
        Ok(id.internal.to_vec())
    }

    fn join(
        &self,
        device: &Card,
        unique_id: &[u8],
        ranks: u32,
        rank: u32,
    ) -> PluginResult<NcclCommunicator> {
        let timeout = self.join_timeout;
        NcclCommunicator::join(self.nccl()?, device, unique_id, (ranks, rank), timeout)
    }

    fn group_start(&self) -> PluginResult<()> {
        self.nccl()?.begin_group()
    }

    fn group_end(&self) -> PluginResult<()> {
        self.nccl()?.end_group()
    }
}

/// The default of the setting `join_timeout`.
pub(crate) const JOIN_TIMEOUT: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_library_is_refused_with_both_versions() {
        assert_eq!(usable_version(23203).unwrap(), "2.32.3");
        let error = usable_version(21_402).unwrap_err();
        assert_eq!(error.status, Status::LibraryMissing);
        assert_eq!(error.message, "NCCL 2.14.2 is older than 2.16.5");
    }
}
