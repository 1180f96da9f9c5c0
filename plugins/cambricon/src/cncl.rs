//! CNCL, opened: what it can do, clique ids, who joins.

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::Arc;

use iccl_plugin_api::sdk::{CollectivesFacts, NativeCollectives, PluginError, PluginResult};
use iccl_vendor_support::plan::Repertoire;
use iccl_vendor_support::{Search, open, table};

use crate::clique::CnclCommunicator;
use crate::device::Card;
use crate::meeting::{Arrival, Meetings};
use crate::neuware::{text_of, version};
use crate::support::{FLAGS, SUPPORT, repertoire};
use crate::{CambriconPlugin, group, libraries, sys};

/// CNCL and what is known of it.
#[derive(Debug)]
pub(crate) struct Cncl {
    pub(crate) table: sys::Cncl,
    /// What it is planned for.
    pub(crate) repertoire: Repertoire,
    /// `CNCL 1.25.0`: ranks of other versions are not of the same island.
    name: &'static str,
    meetings: Meetings,
}

impl Cncl {
    /// Opens the library.
    ///
    /// # Errors
    /// `LibraryMissing`, with what is missing.
    pub(crate) fn open(search: &Search) -> PluginResult<Self> {
        let (cncl, _): (Self, PathBuf) = open(libraries::CNCL, search, |library| {
            // SAFETY: the signatures are those of the header.
            let table = table(library, unsafe { sys::Cncl::resolve(library) })?;
            let version = version(table.cnclGetLibVersion);
            let version = version.map_or("of unknown version".to_owned(), text_of);
            Ok(Self {
                table,
                repertoire: repertoire(&table),
                name: format!("CNCL {version}").leak(),
                meetings: Meetings::default(),
            })
        })?;
        Ok(cncl)
    }
}

impl CambriconPlugin {
    /// CNCL, or why there is none.
    fn cncl(&self) -> PluginResult<&Arc<Cncl>> {
        self.neuware.check_process()?;
        self.cncl.as_ref().map_err(Clone::clone)
    }
}

impl NativeCollectives for CambriconPlugin {
    type Backend = Self;
    type Communicator = CnclCommunicator;

    fn facts(&self) -> PluginResult<CollectivesFacts> {
        let (support, library) = match &self.cncl {
            Ok(cncl) => (&SUPPORT[..], cncl.name),
            // The cards are of use without it: iccl's own schedules do everything.
            Err(_) => (&[][..], "no CNCL"),
        };
        Ok(CollectivesFacts {
            unique_id_bytes: sys::CLIQUE_ID_BYTES as u64,
            support,
            flags: FLAGS,
            library,
        })
    }

    fn unique_id(&self) -> PluginResult<Vec<u8>> {
        let cncl = self.cncl()?;
        let mut id = sys::CliqueId { data: [0; 128], hash: 0 };
        // SAFETY: there is room for the id.
        let answer = unsafe { (cncl.table.cnclGetCliqueId)(&raw mut id) };
        cncl.table.check("cnclGetCliqueId", answer)?;
        Ok([&id.data[..], &id.hash.to_ne_bytes()].concat())
    }

    fn join(
        &self,
        device: &Card,
        unique_id: &[u8],
        ranks: u32,
        rank: u32,
    ) -> PluginResult<CnclCommunicator> {
        let cncl = self.cncl()?;
        let id = clique_id(unique_id)?;
        if c_int::try_from(ranks).is_err() {
            return Err(PluginError::invalid(format!("rank {rank} of {ranks}")));
        }
        let arrival = Arrival { rank, current: Arc::clone(&device.current) };
        let clique =
            cncl.meetings.join(cncl, id, ranks, arrival, &self.open_cards, self.patience)?;
        CnclCommunicator::new(clique, rank)
    }

    fn group_start(&self) -> PluginResult<()> {
        group::begin(&self.cncl()?.table)
    }

    fn group_end(&self) -> PluginResult<()> {
        group::end(&self.cncl()?.table)
    }
}

fn clique_id(bytes: &[u8]) -> PluginResult<sys::CliqueId> {
    let wrong = || {
        let (expected, length) = (sys::CLIQUE_ID_BYTES, bytes.len());
        PluginError::invalid(format!("CNCL's clique ids have {expected} bytes, not {length}"))
    };
    let (data, hash) = bytes.split_first_chunk::<128>().ok_or_else(wrong)?;
    let hash = u64::from_ne_bytes(hash.try_into().map_err(|_| wrong())?);
    Ok(sys::CliqueId { data: *data, hash })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clique_id_is_136_bytes_and_all_of_them_count() {
        let bytes: Vec<u8> = (0..136).collect();
        let id = clique_id(&bytes).unwrap();
        assert_eq!([&id.data[..], &id.hash.to_ne_bytes()].concat(), bytes);
        for wrong in [&bytes[..128], &bytes[..135], &[bytes.clone(), vec![0]].concat()] {
            let error = clique_id(wrong).unwrap_err();
            assert!(error.message.contains("have 136 bytes"), "{error}");
        }
    }
}
