//! States and reason codes. `docs/plugins.md` lists them; a test compares.

use serde::{Serialize, Serializer};

/// What became of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// It is loaded, was probed, and is used.
    Active,
    /// It is in order, and what it drives is not on this machine.
    NoDevice,
    /// It was left alone, as the configuration or its place asks.
    Skipped,
    /// It is not in order.
    Rejected,
}

impl State {
    /// Its stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::NoDevice => "no-device",
            Self::Skipped => "skipped",
            Self::Rejected => "rejected",
        }
    }
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Defines the reasons: each with its state, its stable code, and what an operator can do.
macro_rules! reasons {
    ($( $(#[doc = $doc:literal])+ $variant:ident = $state:ident, $code:literal, $hint:literal; )+) => {
        /// Why a candidate is not simply active.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Reason {
            $( $(#[doc = $doc])+ $variant, )+
        }

        impl Reason {
            /// Every reason.
            pub const ALL: &'static [Self] = &[ $( Self::$variant, )+ ];

            /// Its stable code, in kebab case.
            pub const fn code(self) -> &'static str {
                match self { $( Self::$variant => $code, )+ }
            }

            /// The reason with this code.
            pub fn from_code(code: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|reason| reason.code() == code)
            }

            /// The state that goes with it.
            pub const fn state(self) -> State {
                match self { $( Self::$variant => State::$state, )+ }
            }

            /// What it means, in a line.
            pub const fn meaning(self) -> &'static str {
                match self { $( Self::$variant => concat!($($doc),+).trim_ascii(), )+ }
            }

            /// What an operator can do about it.
            pub const fn hint(self) -> &'static str {
                match self { $( Self::$variant => $hint, )+ }
            }
        }
    };
}

reasons! {
    /// The plugin found no device of its kind.
    NoDevice = NoDevice, "no-device", "normal on a machine without such a card";
    /// A library that the plugin drives its devices with is not installed, or too old.
    LibraryMissing = NoDevice, "library-missing", "install the vendor's library if the card is there";

    /// The name is not `libiccl_NAME.so`.
    OtherName = Skipped, "other-name", "a plugin is named libiccl_NAME.so; move other libraries elsewhere";
    /// The same file was seen before, by this or another name.
    SameFile = Skipped, "same-file", "nothing to do: it is used once";
    /// A plugin of this name is linked into the program.
    LinkedIn = Skipped, "linked-in", "nothing to do: the program's own is used";
    /// `plugins.disable` names the plugin.
    Disabled = Skipped, "disabled", "take it out of plugins.disable to use it";
    /// It is a transport that `transport.enabled` does not list.
    TransportNotEnabled = Skipped, "transport-not-enabled", "list it in transport.enabled to use it";

    /// A folder that the configuration names is not there.
    FolderMissing = Rejected, "folder-missing", "correct plugins.path or ICCL_PLUGIN_PATH";
    /// The folder can't be listed.
    FolderUnreadable = Rejected, "folder-unreadable", "let this user read the folder";
    /// Others can write to the folder, or it belongs to another user.
    InsecureFolder = Rejected, "insecure-folder", "chown it to root or this user and chmod go-w, or set plugins.allow_insecure_plugins";
    /// Others can write to the file, or it belongs to another user.
    InsecureFile = Rejected, "insecure-file", "chown it to root or this user and chmod go-w, or set plugins.allow_insecure_plugins";
    /// It is a folder, a socket or the like.
    NotAFile = Rejected, "not-a-file", "only regular files can be plugins";
    /// It is a symbolic link that leads nowhere.
    DanglingLink = Rejected, "dangling-link", "remove the link or restore what it points to";
    /// The file can't be read.
    Unreadable = Rejected, "unreadable", "let this user read the file";
    /// The file holds nothing.
    Empty = Rejected, "empty", "copy the plugin again";
    /// The file is no ELF file.
    NotElf = Rejected, "not-elf", "only shared objects can be plugins";
    /// It is an ELF file for another machine.
    WrongMachine = Rejected, "wrong-machine", "use the plugin's build for this machine";
    /// It is an ELF file, but no shared object.
    NotSharedObject = Rejected, "not-shared-object", "only shared objects can be plugins";
    /// A part of the file is missing.
    Truncated = Rejected, "truncated", "copy the plugin again";
    /// The ELF file's tables make no sense.
    DamagedElf = Rejected, "damaged-elf", "copy the plugin again";
    /// No entry symbol is exported.
    NoEntry = Rejected, "no-entry-symbol", "it is no plugin, or was stripped of its dynamic symbols";
    /// There is no plugin note in it.
    NoNote = Rejected, "no-note", "export_plugin! and ICCL_PLUGIN_NOTE write .note.iccl; keep it when stripping";
    /// The plugin note can't be read.
    BadNote = Rejected, "bad-note", "rebuild it with the SDK of ABI 1";
    /// It was built for another major version of the ABI.
    AbiMajor = Rejected, "abi-major", "use a build of the plugin for this version of iccl";
    /// It needs a newer minor version of the ABI.
    AbiMinor = Rejected, "abi-minor", "use a newer iccl or an older build of the plugin";
    /// The file's sha256 is not the pinned one.
    Sha256Mismatch = Rejected, "sha256-mismatch", "restore the file, or correct plugins.sha256";
    /// Another file claims the same plugin name.
    NameClash = Rejected, "name-clash", "remove one of the two files";

    /// It crashed when it was first run, in a child process.
    ProbeCrashed = Rejected, "probe-crashed", "report it to the plugin's maker";
    /// It did not answer when it was first run, in a child process.
    ProbeHung = Rejected, "probe-hung", "look at the vendor's driver; plugins.probe_timeout is the limit";
    /// The child process could not be run.
    ProbeChildFailed = Rejected, "probe-child-failed", "check iccl-plugin-probe, or set plugins.probe = \"inline\"";

    /// A library that the file needs was not found.
    MissingDependency = Rejected, "missing-dependency", "install the library or add its folder to LD_LIBRARY_PATH";
    /// A symbol that the file needs was not found.
    UndefinedSymbol = Rejected, "undefined-symbol", "the library that should define it is missing or too old";
    /// The loader refused the file.
    LoadFailed = Rejected, "load-failed", "see the loader's text";
    /// Another file was loaded from this path before, and a process keeps what it has loaded.
    FileReplaced = Rejected, "file-replaced", "start the process anew to use the new file";
    /// The plugin's tables are laid out differently from this iccl's.
    LayoutDiffers = Rejected, "layout-differs", "rebuild it with the released SDK";
    /// A mandatory function is null.
    NullFunction = Rejected, "null-function", "report it to the plugin's maker";
    /// The plugin's tables make no sense.
    BadTable = Rejected, "bad-table", "report it to the plugin's maker";
    /// `describe` failed or answered nonsense.
    DescribeFailed = Rejected, "describe-failed", "report it to the plugin's maker";
    /// The plugin says something else of itself than its note.
    NoteDiffers = Rejected, "note-differs", "rebuild it: note and code are of different builds";
    /// `probe` failed.
    ProbeFailed = Rejected, "probe-failed", "see the plugin's own text";
    /// The plugin panicked or threw.
    Panicked = Rejected, "panicked", "report it to the plugin's maker";
    /// What the plugin says of its devices or transport makes no sense.
    BadFacts = Rejected, "bad-facts", "report it to the plugin's maker";
    /// The plugin failed its own self-test.
    SelfTestFailed = Rejected, "self-test-failed", "do not use this machine's card before its maker was asked";
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code())
    }
}

/// Why a candidate goes no further, and the words for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: Reason,
    /// One line, without the path.
    pub(super) detail: String,
}

impl Refusal {
    pub(super) fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: super::record::one_line(&detail.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_kebab_case_and_unique() {
        let mut codes: Vec<&str> = Reason::ALL.iter().map(|reason| reason.code()).collect();
        for code in &codes {
            assert!(
                code.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'),
                "{code}"
            );
        }
        codes.sort_unstable();
        let all = codes.len();
        codes.dedup();
        assert_eq!(codes.len(), all);
    }
    #[test]
    fn the_operators_page_lists_them() {
        let page = include_str!("../../../docs/plugins.md");
        for reason in Reason::ALL {
            let row = format!(
                "| `{}` | {} | {} | {} |",
                reason.code(),
                reason.state().name(),
                reason.meaning(),
                reason.hint()
            );
            assert!(page.contains(&row), "docs/plugins.md lacks the row\n{row}");
        }
        let rows = page.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(rows, Reason::ALL.len(), "docs/plugins.md has rows of no reason");
    }
}
