//! Whether the process itself can read some memory.

use std::ffi::c_void;
use std::io::{PipeReader, PipeWriter, Read};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult};

static PIPE: Mutex<Option<(PipeReader, PipeWriter)>> = Mutex::new(None);

/// Whether a byte can be read. The kernel is asked to read it into a pipe: it answers where a load would
/// end the process.
pub(crate) fn is_readable(pointer: *const c_void) -> PluginResult<bool> {
    let failed =
        |error: std::io::Error| PluginError::new(Status::OutOfResources, error.to_string());
    // A pipe holds nothing between two questions.
    let mut pipe = PIPE.lock().unwrap_or_else(PoisonError::into_inner);
    if pipe.is_none() {
        *pipe = Some(std::io::pipe().map_err(failed)?);
    }
    let Some((reader, writer)) = pipe.as_mut() else { return Ok(false) };
    // SAFETY: the kernel looks whether the byte can be read.
    let written = unsafe { libc::write(writer.as_raw_fd(), pointer, 1) };
    if written == 1 {
        reader.read_exact(&mut [0]).map_err(failed)?;
        return Ok(true);
    }
    let error = std::io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::EFAULT) { Ok(false) } else { Err(failed(error)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_read_is_told_from_what_cannot() {
        let byte = 7_u8;
        for _ in 0..2 {
            assert_eq!(is_readable((&raw const byte).cast()), Ok(true));
            assert_eq!(is_readable(std::ptr::without_provenance(64)), Ok(false));
        }
        // SAFETY: a new mapping to which no access is allowed.
        let hidden = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_NONE, flags, -1, 0)
        };
        assert_ne!(hidden, libc::MAP_FAILED);
        assert_eq!(is_readable(hidden), Ok(false));
    }
}
