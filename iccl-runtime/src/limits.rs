//! Limits of the process and of the system, told where they are reached.

use std::io;

use rustix::process::{Resource, getrlimit};

use crate::{Error, ErrorKind};

/// What the system said, as an error of `kind`; as `OutOfResources`, with what to do, where a limit was
/// reached.
pub(crate) fn system_error(kind: ErrorKind, message: impl Into<String>, error: io::Error) -> Error {
    match open_files_hint(&error) {
        Some(hint) => {
            Error::new(ErrorKind::OutOfResources, message).with_source(error).with_hint(hint)
        }
        None => Error::new(kind, message).with_source(error),
    }
}

/// What to do where descriptors have run out; `None` for other errors.
pub(crate) fn open_files_hint(error: &io::Error) -> Option<String> {
    match error.raw_os_error() {
        Some(libc::EMFILE) => Some(match getrlimit(Resource::Nofile).current {
            Some(limit) => format!("this process may have {limit} files open: raise `ulimit -n`"),
            None => "this process may have no more files open".to_owned(),
        }),
        Some(libc::ENFILE) => {
            Some("the system may have no more files open: raise `fs.file-max`".to_owned())
        }
        _ => None,
    }
}
