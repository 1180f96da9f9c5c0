//! A library that was opened at run time.

use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Opened, RTLD_LOCAL, RTLD_NOW};

use crate::loaded::loaded_libraries;

/// A maker's library. It is never closed: its threads and callbacks outlive any owner.
#[derive(Debug)]
pub struct Library {
    opened: std::mem::ManuallyDrop<Opened>,
    path: PathBuf,
}

impl Library {
    /// Opens a library by path, or by name where the loader looks.
    ///
    /// # Safety
    /// Its initialisers run in this process; the caller trusts the place that it comes from.
    ///
    /// # Errors
    /// What the loader says, one line.
    pub unsafe fn open(name: &Path) -> Result<Self, String> {
        // SAFETY: the caller answers for the library.
        let opened = unsafe { Opened::open(Some(name), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| deepest(&error))?;
        let path = if name.is_absolute() { name.to_owned() } else { mapped(name) };
        Ok(Self { opened: std::mem::ManuallyDrop::new(opened), path })
    }

    /// The file, or the name by which the loader found it if the kernel does not tell.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The address of a symbol, if the library has it.
    pub fn symbol(&self, name: &str) -> Option<*const c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the symbol is only asked for its address.
        let symbol = unsafe { self.opened.get::<*const c_void>(name.as_c_str()) }.ok()?;
        let address = symbol.into_raw().cast_const();
        (!address.is_null()).then_some(address.cast())
    }
}

/// Where the kernel says that a library that was opened by name lies.
fn mapped(name: &Path) -> PathBuf {
    let wanted = name.to_string_lossy();
    loaded_libraries()
        .into_iter()
        .find(|path| crate::loaded::is_called(path, &wanted))
        .unwrap_or_else(|| name.to_owned())
}

/// The words of the loader, which an error of `libloading` keeps inside.
fn deepest(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string().replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_gives_its_path_and_symbols() {
        // SAFETY: the C library is loaded already.
        let library = unsafe { Library::open(Path::new("libc.so.6")) }.unwrap();
        assert!(library.path().is_absolute(), "{}", library.path().display());
        assert!(library.symbol("malloc").is_some());
        assert!(library.symbol("no_such_function").is_none());
    }

    #[test]
    fn the_loaders_words_are_kept() {
        // SAFETY: there is none.
        let error = unsafe { Library::open(Path::new("libnone-of-that-name.so")) }.unwrap_err();
        assert!(error.contains("libnone-of-that-name.so"), "{error}");
    }
}
