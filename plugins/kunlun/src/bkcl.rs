//! BKCL, opened: its functions under whatever names, its numbers, unique ids.

use std::ffi::c_int;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{
    CollectivesFacts, NativeCollectives, PluginError, PluginResult, Settings,
};
use iccl_vendor_support::plan::{Functions as Offered, Repertoire};
use iccl_vendor_support::{Library, Search, failure, open};

use crate::communicator::BkclCommunicator;
use crate::constants::{Constants, headers_beside};
use crate::device::Card;
use crate::group;
use crate::mangled::Functions;
use crate::region::Mapping;
use crate::support::{FLAGS, repertoire, support};
use crate::xpu::Cards;
use crate::{KunlunPlugin, libraries, sys};

/// The settings by which the operator gives BKCL's numbers.
pub(crate) const HEADER: &str = "bkcl_header";
pub(crate) const CONSTANTS: &str = "bkcl_constants";
pub(crate) const SHIM: &str = "bkcl_shim";

/// The default of the setting `join_timeout`.
pub(crate) const JOIN_TIMEOUT: Duration = Duration::from_secs(600);

/// BKCL and what is known of it.
#[derive(Debug)]
pub(crate) struct Bkcl {
    pub(crate) table: sys::Bkcl,
    pub(crate) constants: Constants,
    /// What it is planned for.
    pub(crate) repertoire: Repertoire,
    /// Ranks with another library are not of the same island.
    name: &'static str,
}

/// What became of the library: NICs may use it where collectives do not.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) bkcl: PluginResult<Bkcl>,
    pub(crate) mapping: Option<Mapping>,
}

/// Opens the library.
pub(crate) fn open_bkcl(cards: &Cards, search: &Search, settings: &Settings<'_>) -> Opened {
    if let Err(error) = is_safe() {
        return Opened { bkcl: Err(error), mapping: None };
    }
    open_what_it_needs(&cards.path);
    let search = libraries::bkcl_search(search, &cards.path);
    let opened = open(libraries::BKCL, &search, |library| {
        let mut functions = Functions::of(library);
        let mapping = if Mapping::is_enabled() { mapping(&mut functions) } else { None };
        Ok(Opened { bkcl: Bkcl::new(library, functions, settings), mapping })
    });
    opened.map_or_else(|error| Opened { bkcl: Err(error), mapping: None }, |(opened, _)| opened)
}

/// BKCL reads `BKCL_DEBUG` as a number and throws a C++ exception if it is none, which would end the process.
fn is_safe() -> PluginResult<()> {
    let Some(level) = std::env::var_os("BKCL_DEBUG") else { return Ok(()) };
    if level.to_str().is_some_and(|level| level.parse::<i32>().is_ok()) {
        return Ok(());
    }
    let level = level.display();
    let text = format!("BKCL_DEBUG={level} is no number, and BKCL would end the process for it");
    Err(PluginError::invalid(text))
}

/// The libraries that P800's BKCL names as its needs lie with the runtime, where the loader may not look.
fn open_what_it_needs(runtime: &Path) {
    let Some(folder) = runtime.parent().filter(|folder| folder.is_absolute()) else { return };
    for file in libraries::NEEDED_BY_BKCL.iter().map(|name| folder.join(name)) {
        if !file.exists() {
            continue;
        }
        // SAFETY: it lies where the runtime does, which is trusted.
        match unsafe { Library::open(&file) } {
            Ok(library) => {
                tracing::info!(path = %library.path().display(), "opens what BKCL needs");
            }
            Err(error) => tracing::warn!(%error, "what BKCL needs cannot be opened"),
        }
    }
}

fn mapping(functions: &mut Functions<'_>) -> Option<Mapping> {
    // SAFETY: the signatures are those of FlagCX's declarations, and mangled names are compared.
    let resolved = unsafe { sys::Mapping::resolve_by(|name| functions.find(name)) };
    match resolved {
        Ok(mapping) => Some(Mapping(mapping)),
        Err(missing) => {
            tracing::info!(%missing, "BKCL gives no address for a NIC");
            None
        }
    }
}

impl Bkcl {
    fn new(
        library: &Library,
        mut functions: Functions<'_>,
        settings: &Settings<'_>,
    ) -> PluginResult<Self> {
        let path = library.path();
        let shim = shim(settings)?;
        let find = |name: &'static str| match &shim {
            Some(shim) => shim.symbol(&format!("iccl_shim_{name}")),
            None => functions.find(name),
        };
        // SAFETY: the order of arguments is that of programs that are compiled against the library, and is
        // compared where the names tell it; the shim's source declares it so.
        let resolved = unsafe { sys::Bkcl::resolve_by(find) };
        let table = resolved.map_err(|missing| {
            let all = missing.0.join(", ");
            tracing::info!(path = %path.display(), lacks = %all, "a library is not usable");
            let refused = functions.refused.join("; ");
            let refused = if refused.is_empty() { refused } else { format!("; {refused}") };
            let text = format!("{}: {missing}{refused}", path.display());
            PluginError::new(Status::LibraryMissing, text)
        })?;
        for refused in &functions.refused {
            tracing::warn!(%refused, "a function of BKCL is not used");
        }
        let fingerprint = fingerprint(path).map_err(refused)?;
        let constants = constants(path, shim.as_ref(), settings)?;
        tracing::info!(source = %constants.source, "takes BKCL's numbers");
        let offered = Offered {
            all_to_all: table.bkcl_all_to_all.is_some(),
            all_to_all_v: table.bkcl_all_to_all_v.is_some(),
            ..Offered::default()
        };
        let repertoire = repertoire(support(&constants).leak(), offered);
        let name = format!("BKCL {fingerprint:016x}").leak();
        Ok(Self { table, constants, repertoire, name })
    }

    /// Right if BKCL answered success. `more` is what the runtime says.
    pub(crate) fn check(
        &self,
        call: impl Display,
        answer: sys::BkclResult,
        more: impl FnOnce() -> Option<String>,
    ) -> PluginResult<()> {
        if answer == sys::BKCL_SUCCESS {
            return Ok(());
        }
        let (status, words) = match self.constants.result(answer) {
            Some((0, name)) => (Status::InvalidArgument, name.to_owned()),
            Some((1, name)) => {
                let more = more().map(|more| format!(": {more}"));
                (Status::DeviceError, format!("{name}{}", more.unwrap_or_default()))
            }
            Some((2, name)) => (Status::TransportError, name.to_owned()),
            Some((_, name)) => (Status::DeviceError, name.to_owned()),
            None => (Status::DeviceError, "unknown result".to_owned()),
        };
        Err(failure(status, format_args!("{call}: {words} ({answer})"), answer))
    }
}

fn refused(why: impl Display) -> PluginError {
    PluginError::new(Status::LibraryMissing, why.to_string())
}

/// The shim that the operator names.
fn shim(settings: &Settings<'_>) -> PluginResult<Option<Library>> {
    let Some(path) = settings.text(SHIM).filter(|path| !path.is_empty()).map(PathBuf::from) else {
        return Ok(None);
    };
    if !path.is_absolute() {
        return Err(PluginError::invalid(format!("{SHIM}: {} is not absolute", path.display())));
    }
    // SAFETY: the operator names it.
    let shim = unsafe { Library::open(&path) }.map_err(|why| refused(format!("{SHIM}: {why}")))?;
    Ok(Some(shim))
}

/// BKCL's numbers: what the operator says, else the shim, else the vendor's header.
fn constants(
    library: &Path,
    shim: Option<&Library>,
    settings: &Settings<'_>,
) -> PluginResult<Constants> {
    let named = |key: &str| settings.text(key).filter(|value| !value.is_empty());
    if let Some(text) = named(CONSTANTS) {
        return Constants::from_text(CONSTANTS, text).map_err(PluginError::invalid);
    }
    if let Some(shim) = shim {
        return Constants::from_shim(shim).map_err(refused);
    }
    if let Some(path) = named(HEADER) {
        return Constants::from_header(Path::new(path)).map_err(PluginError::invalid);
    }
    let mut places = headers_beside(library);
    places.extend(libraries::usual_headers());
    let Some(header) = places.iter().find(|place| place.is_file()) else {
        let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        return Err(refused(format!(
            "BKCL's numbers are not public, and no bkcl.h tells them: looked for {}; {HEADER}, \
             {CONSTANTS} or {SHIM} in [plugin.kunlun] gives them",
            looked.join(", ")
        )));
    };
    Constants::from_header(header).map_err(refused)
}

/// What tells one build of a library from another, which has no version: its bytes.
///
/// # Errors
/// That it cannot be read: two builds would look like one.
fn fingerprint(library: &Path) -> Result<u64, String> {
    // FNV-1a, over words: a library is long.
    let read = std::fs::read(library);
    let bytes = read.map_err(|error| format!("{}: {error}", library.display()))?;
    let (words, rest) = bytes.as_chunks::<8>();
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = words.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, word| {
        step(hash, u64::from_le_bytes(*word)).rotate_left(29)
    });
    Ok(rest.iter().fold(hash, |hash, byte| step(hash, u64::from(*byte))))
}

impl KunlunPlugin {
    /// BKCL, or why there is none.
    fn bkcl(&self) -> PluginResult<&Arc<Bkcl>> {
        self.bkcl.as_ref().map_err(Clone::clone)
    }
}

impl NativeCollectives for KunlunPlugin {
    type Backend = Self;
    type Communicator = BkclCommunicator;

    fn facts(&self) -> PluginResult<CollectivesFacts> {
        let (unique_id_bytes, support, library) = match &self.bkcl {
            Ok(bkcl) => (bkcl.constants.unique_id_bytes, bkcl.repertoire.support, bkcl.name),
            // The cards are of use without it: iccl's own schedules do everything.
            Err(_) => (sys::MOST_UNIQUE_ID_BYTES, &[][..], "no BKCL"),
        };
        Ok(CollectivesFacts {
            unique_id_bytes: unique_id_bytes as u64,
            support,
            flags: FLAGS,
            library,
        })
    }

    fn unique_id(&self) -> PluginResult<Vec<u8>> {
        let bkcl = self.bkcl()?;
        let mut id = vec![0_u8; sys::MOST_UNIQUE_ID_BYTES];
        // SAFETY: there is room for the longest id.
        let answer = unsafe { (bkcl.table.bkcl_get_unique_id)(id.as_mut_ptr().cast()) };
        bkcl.check("bkcl_get_unique_id", answer, || self.cards.face.last_words())?;
        id.truncate(bkcl.constants.unique_id_bytes);
        Ok(id)
    }

    fn join(
        &self,
        device: &Card,
        unique_id: &[u8],
        ranks: u32,
        rank: u32,
    ) -> PluginResult<BkclCommunicator> {
        BkclCommunicator::join(self.bkcl()?, device, unique_id, (ranks, rank), self.join_timeout)
    }

    fn group_start(&self) -> PluginResult<()> {
        group::begin(self.bkcl()?, || false)
    }

    fn group_end(&self) -> PluginResult<()> {
        group::end(self.bkcl()?)
    }
}

/// A number of a rank as C has it.
pub(crate) fn rank_number(rank: u32) -> PluginResult<c_int> {
    c_int::try_from(rank).map_err(|_| PluginError::invalid(format!("rank {rank}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_are_told_apart_by_their_bytes_or_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libbkcl.so");
        let why = fingerprint(&path).unwrap_err();
        assert!(why.contains("libbkcl.so: No such file"), "{why}");
        let of = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            fingerprint(&path).unwrap()
        };
        assert_eq!(of(b"one build"), of(b"one build"));
        assert_ne!(of(b"one build"), of(b"one built"));
    }
}
