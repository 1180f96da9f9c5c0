//! What can be told about a file and its folder before a byte of it is run.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use iccl_plugin_api::note::NoteInfo;
use sha2::{Digest, Sha256};

use super::elf;
use super::reason::{Reason, Refusal};

/// Device and inode: which file it is, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

/// A file that passed all checks that need not run it.
#[derive(Clone, Debug)]
pub(super) struct CheckedFile {
    /// Without symbolic links.
    pub(super) path: PathBuf,
    pub(super) id: FileId,
    pub(super) note: NoteInfo,
    /// Whether the configuration pins its sha256, and it is the right one.
    pub(super) pinned: bool,
}

/// The file or folder at a path, if there is one.
pub(super) fn id_of(path: &Path) -> Option<FileId> {
    let metadata = std::fs::metadata(path).ok()?;
    Some(FileId { device: metadata.dev(), inode: metadata.ino() })
}

/// Why a file goes no further, and what its note says if it could be read.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) refusal: Refusal,
    pub(super) note: Option<NoteInfo>,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, note: None }
    }
}

/// An opened candidate, of which the inode is known and nothing else.
pub(super) struct Opened {
    file: File,
    metadata: Metadata,
    path: PathBuf,
}

/// Opens a candidate, and refuses what is no regular, readable file.
pub(super) fn open(path: &Path) -> Result<Opened, Refusal> {
    let real = std::fs::canonicalize(path).map_err(|error| {
        let target = std::fs::read_link(path);
        match (error.kind(), target) {
            (std::io::ErrorKind::NotFound, Ok(target)) => {
                Refusal::new(Reason::DanglingLink, format!("points to {}", target.display()))
            }
            _ => Refusal::new(Reason::Unreadable, error.to_string()),
        }
    })?;
    let kind = std::fs::metadata(&real)
        .map_err(|error| Refusal::new(Reason::Unreadable, error.to_string()))?
        .file_type();
    let what = if kind.is_file() {
        None
    } else if kind.is_dir() {
        Some("a folder")
    } else if kind.is_fifo() {
        Some("a pipe")
    } else if kind.is_socket() {
        Some("a socket")
    } else {
        Some("a device")
    };
    if let Some(what) = what {
        return Err(Refusal::new(Reason::NotAFile, format!("it is {what}")));
    }
    // Should the file be exchanged for a pipe just now, opening must not wait for a writer.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(&real)
        .map_err(|error| Refusal::new(Reason::Unreadable, error.to_string()))?;
    let metadata =
        file.metadata().map_err(|error| Refusal::new(Reason::Unreadable, error.to_string()))?;
    if !metadata.is_file() {
        return Err(Refusal::new(Reason::NotAFile, "it is no regular file"));
    }
    Ok(Opened { file, metadata, path: real })
}

impl Opened {
    /// Which file it is.
    pub(super) fn id(&self) -> FileId {
        FileId { device: self.metadata.dev(), inode: self.metadata.ino() }
    }

    /// Checks whose file it is only, and gives its path.
    pub(super) fn check_trust(self, allow_insecure: bool) -> Result<PathBuf, Refusal> {
        if !allow_insecure {
            check_owner_and_mode(&self.metadata, Reason::InsecureFile, "the file")?;
        }
        if let Some(folder) = self.path.parent() {
            check_folder(folder, allow_insecure)?;
        }
        Ok(self.path)
    }

    /// Checks everything else: whose it is, the pinned sum, the ELF structure, the note.
    pub(super) fn check(
        mut self,
        pin: Option<&str>,
        allow_insecure: bool,
    ) -> Result<CheckedFile, Failure> {
        if !allow_insecure {
            check_owner_and_mode(&self.metadata, Reason::InsecureFile, "the file")?;
        }
        if let Some(folder) = self.path.parent() {
            check_folder(folder, allow_insecure)?;
        }
        if self.metadata.len() == 0 {
            return Err(Refusal::new(Reason::Empty, "it has 0 bytes").into());
        }
        if let Some(pin) = pin {
            check_sum(&mut self.file, pin)?;
        }
        let id = self.id();
        let note = elf::check(&self.file, self.metadata.len())?;
        Ok(CheckedFile { path: self.path, id, note, pinned: pin.is_some() })
    }
}

/// Refuses a folder in which others could exchange files.
pub(super) fn check_folder(folder: &Path, allow_insecure: bool) -> Result<(), Refusal> {
    if allow_insecure {
        return Ok(());
    }
    let metadata = std::fs::metadata(folder)
        .map_err(|error| Refusal::new(Reason::FolderUnreadable, error.to_string()))?;
    check_owner_and_mode(
        &metadata,
        Reason::InsecureFolder,
        format_args!("the folder {}", folder.display()),
    )
}

/// Refuses what belongs to another user than root and this one, or what others can write.
fn check_owner_and_mode(
    metadata: &Metadata,
    reason: Reason,
    what: impl std::fmt::Display,
) -> Result<(), Refusal> {
    let caller = rustix::process::geteuid().as_raw();
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if owner != 0 && owner != caller {
        return Err(Refusal::new(
            reason,
            format!("{what} belongs to user {owner}, not to root or user {caller}"),
        ));
    }
    let who = match mode & 0o022 {
        0 => return Ok(()),
        0o020 => "its group",
        _ => "every user",
    };
    Err(Refusal::new(reason, format!("{what} can be written by {who} (mode {mode:04o})")))
}

/// Compares the file's sha256 with the pinned one.
fn check_sum(file: &mut File, pin: &str) -> Result<(), Refusal> {
    let unreadable = |error: std::io::Error| Refusal::new(Reason::Unreadable, error.to_string());
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let count = file.read(&mut buffer).map_err(unreadable)?;
        if count == 0 {
            break;
        }
        hash.update(&buffer[..count]);
    }
    let sum = format!("{:x}", hash.finalize());
    if sum.eq_ignore_ascii_case(pin) {
        Ok(())
    } else {
        Err(Refusal::new(Reason::Sha256Mismatch, format!("it is {sum}, pinned is {pin}")))
    }
}
