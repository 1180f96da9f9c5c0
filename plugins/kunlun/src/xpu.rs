//! The runtime, opened: by which face the cards are reached, and which cards there are.

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{DeviceFacts, PluginError, PluginResult};
use iccl_vendor_support::{Search, open, table};

use crate::cuda::Cuda;
use crate::error::check_xpu;
use crate::face::{Chip, Face};
use crate::native::Native;
use crate::{libraries, sys};

/// The cards of this machine.
#[derive(Debug)]
pub(crate) struct Cards {
    pub(crate) face: Arc<dyn Face>,
    pub(crate) facts: Vec<DeviceFacts>,
    /// The file of libxpurt.
    pub(crate) path: PathBuf,
}

impl Cards {
    /// Opens the libraries and looks for cards.
    ///
    /// # Errors
    /// `LibraryMissing`; `NoDevice` with the runtime's answer; what the driver says.
    pub(crate) fn open(search: &Search) -> PluginResult<Self> {
        let ((xpu, count), path) = open(libraries::XPURT, search, |library| {
            // SAFETY: the signatures are those of the header.
            let xpu = table(library, unsafe { sys::Xpu::resolve(library) })?;
            let count = device_count(&xpu)?;
            Ok((xpu, count))
        })?;
        let face: Arc<dyn Face> = match cudart_beside(&path, count) {
            Ok(cuda) => Arc::new(cuda),
            Err(why) => {
                tracing::info!(%why, "Kunlun cards are reached by libxpurt alone");
                Arc::new(Native::new(xpu))
            }
        };
        let facts = (0..count).map(|ordinal| {
            let chip = Chip { face: Arc::clone(&face), ordinal };
            let _current = chip.enter()?;
            face.facts(ordinal)
        });
        Ok(Self { facts: facts.collect::<PluginResult<_>>()?, face, path })
    }

    /// A card by its number.
    pub(crate) fn facts(&self, index: u32) -> PluginResult<&DeviceFacts> {
        self.facts.get(index as usize).ok_or_else(|| {
            let count = self.facts.len();
            PluginError::invalid(format!("there are {count} Kunlun cards, and no number {index}"))
        })
    }
}

/// How many cards there are; none is an error with the runtime's answer.
fn device_count(xpu: &sys::Xpu) -> PluginResult<c_int> {
    // An error leaves it as it is.
    let mut count = 0;
    // SAFETY: there is room for the number.
    let answer = unsafe { (xpu.xpu_device_count)(&raw mut count) };
    let version = version(xpu);
    check_xpu("xpu_device_count", answer).map_err(|error| PluginError {
        message: format!("{}; {version}", error.message),
        ..error
    })?;
    if count <= 0 {
        let text = format!("xpu_device_count: {count} devices; {version}");
        return Err(PluginError::new(Status::NoDevice, text));
    }
    tracing::info!(count, %version, "found Kunlun cards");
    Ok(count)
}

fn version(xpu: &sys::Xpu) -> String {
    let (mut major, mut minor) = (0, 0);
    let answer =
        // SAFETY: there is room for the numbers.
        xpu.xpu_get_runtime_version.map(|get| unsafe { get(&raw mut major, &raw mut minor) });
    if answer == Some(0) { format!("XRE {major}.{minor}") } else { "XRE of unknown version".into() }
}

/// P800's libcudart, from the folder of libxpurt and by its path. The loader's search would find NVIDIA's
/// on a machine that has both, and so would a folder into which both were put.
fn cudart_beside(xpurt: &Path, cards: c_int) -> PluginResult<Cuda> {
    let Some(folder) = xpurt.parent().filter(|folder| folder.is_absolute()) else {
        return Err(PluginError::invalid("the kernel does not tell where libxpurt lies"));
    };
    let beside = Search { named: vec![folder.to_owned()], usual: Vec::new() };
    let files = beside.candidates(libraries::CUDART, &[]);
    let Some(file) = files.iter().find(|file| speaks_of_xpu(&file.name)) else {
        let what = if files.is_empty() { "no libcudart" } else { "only another maker's libcudart" };
        let text = format!("{what} lies in {}", folder.display());
        return Err(PluginError::new(Status::LibraryMissing, text));
    };
    let name = file.name.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let (cuda, _) = open(&[name], &beside, |library| {
        // SAFETY: the signatures are NVIDIA's, which this library has by its makers' word.
        let cuda = table(library, unsafe { sys::Cuda::resolve(library) })?;
        Cuda::new(cuda, cards)
    })?;
    Ok(cuda)
}

/// Whether a library speaks of XPUs at all, by a name that it needs, calls or prints. NVIDIA's does not.
fn speaks_of_xpu(file: &Path) -> bool {
    let bytes = std::fs::read(file).unwrap_or_default();
    bytes.windows(3).any(|word| word == b"xpu")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_libcudart_that_does_not_speak_of_xpus_is_another_makers() {
        let folder = tempfile::tempdir().unwrap();
        let xpurt = folder.path().join("libxpurt.so.2");
        let why = |xpurt: &Path| cudart_beside(xpurt, 4).unwrap_err().message;
        assert!(why(&xpurt).starts_with("no libcudart lies in "), "{}", why(&xpurt));
        std::fs::write(folder.path().join("libcudart.so.12"), b"\x7fELF libcuda.so.1").unwrap();
        assert!(why(&xpurt).starts_with("only another maker's libcudart lies in "));
        std::fs::write(folder.path().join("libcudart.so"), b"\x7fELF libxpurt.so.2").unwrap();
        assert!(why(&xpurt).contains("libcudart.so: "), "{}", why(&xpurt));
        assert!(why(Path::new("libxpurt.so.2")).contains("does not tell where"));
    }
}
