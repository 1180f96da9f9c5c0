//! What is known of a candidate in the end.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use iccl_plugin_api::note::NoteInfo;
use iccl_plugin_api::tables::family;
use serde::{Serialize, Serializer};

use super::reason::{Reason, Refusal, State};

/// What stands for the path of a plugin that is linked into the program.
pub(super) const LINKED: &str = "(linked into the program)";

/// Most bytes of a detail.
const LONGEST_DETAIL: usize = 600;

/// One candidate: what it is, and what became of it.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// Where it was found.
    pub path: PathBuf,
    /// What became of it.
    pub state: State,
    /// Why, if it is not simply active.
    pub reason: Option<Reason>,
    /// The reason in words, one line; empty if there is none.
    pub detail: String,
    /// What an operator can do; empty if there is nothing to do.
    pub hint: String,
    /// The plugin's name, if it is known.
    pub name: Option<String>,
    /// The plugin's version, if it is known.
    pub version: Option<String>,
    /// What it offers, as far as it is known: `device`, `collectives`, `transport`.
    pub kinds: Vec<&'static str>,
    /// The ABI that it was built with, as `major.minor`, if it is known.
    pub abi: Option<String>,
    /// The door through which it was loaded.
    pub door: Option<Door>,
    /// Where it was probed first.
    pub probe: Option<ProbeMethod>,
    /// How long the checks, loading and probing took, in microseconds.
    #[serde(rename = "probe_time_us", serialize_with = "microseconds")]
    pub probe_time: Option<Duration>,
    /// What the self-test found.
    pub self_test: SelfTest,
    /// What should be known although the plugin is active.
    pub notes: Vec<String>,
}

/// The way into a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Door {
    /// The `abi_stable` root module.
    Rust,
    /// The C entry function.
    C,
    /// The table of a plugin that is linked into the program.
    Linked,
}

/// Where a plugin was probed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeMethod {
    /// In a child process.
    Child,
    /// In this process: it is trusted, or the configuration says so.
    Inline,
    /// In this process, because the child's program was not found.
    InlineWithoutHelper,
}

/// What a self-test found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "result", content = "detail")]
pub enum SelfTest {
    /// There was none: the plugin never got that far, or the configuration says so.
    NotRun,
    /// Everything was right.
    Passed,
    /// Some combinations of native collectives were wrong and are not used.
    Struck(Vec<String>),
    /// The plugin is not used.
    Failed,
}

// Serde hands out a reference.
#[allow(clippy::ref_option)]
fn microseconds<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => serializer.serialize_some(&(time.as_micros() as u64)),
        None => serializer.serialize_none(),
    }
}

impl Record {
    /// The record of something of which only the path is known.
    pub(super) fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            state: State::Active,
            reason: None,
            detail: String::new(),
            hint: String::new(),
            name: None,
            version: None,
            kinds: Vec::new(),
            abi: None,
            door: None,
            probe: None,
            probe_time: None,
            self_test: SelfTest::NotRun,
            notes: Vec::new(),
        }
    }

    /// The record of something that goes no further.
    pub(super) fn refused(path: impl Into<PathBuf>, refusal: Refusal) -> Self {
        let mut record = Self::new(path);
        record.refuse(refusal);
        record
    }

    /// Writes down that the candidate goes no further.
    pub(super) fn refuse(&mut self, refusal: Refusal) {
        self.state = refusal.reason.state();
        self.reason = Some(refusal.reason);
        self.detail = refusal.detail;
        refusal.reason.hint().clone_into(&mut self.hint);
    }

    /// Writes down what the ELF note says.
    pub(super) fn take_note(&mut self, note: &NoteInfo) {
        self.name = Some(note.name.clone());
        self.version = Some(note.version.clone());
        self.kinds = kinds(note.families);
        self.abi = Some(format!("{}.{}", note.abi_major, note.abi_minor));
    }

    /// Whether the plugin is used.
    pub fn is_active(&self) -> bool {
        self.state == State::Active
    }
}

/// One line: what it is and what became of it.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, &self.version) {
            (Some(name), Some(version)) => write!(f, "plugin {name} {version}: ")?,
            _ => f.write_str("plugin candidate: ")?,
        }
        f.write_str(self.state.name())?;
        match self.reason {
            None => write!(f, " ({})", self.kinds.join(", "))?,
            Some(reason) if reason.code() == self.state.name() => write!(f, ": {}", self.detail)?,
            Some(reason) => write!(f, " ({}): {}", reason.code(), self.detail)?,
        }
        for note in &self.notes {
            write!(f, "; {note}")?;
        }
        write!(f, "; {}", self.path.display())
    }
}

/// The names of the families in a mask.
pub(super) fn kinds(families: u32) -> Vec<&'static str> {
    [
        (family::DEVICE, "device"),
        (family::COLLECTIVES, "collectives"),
        (family::TRANSPORT, "transport"),
    ]
    .into_iter()
    .filter(|(bit, _)| families & bit != 0)
    .map(|(_, name)| name)
    .collect()
}

/// A text of any origin as one line of bounded length.
pub(super) fn one_line(text: &str) -> String {
    let mut line = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    if line.len() > LONGEST_DETAIL {
        let end = (0..=LONGEST_DETAIL).rev().find(|&end| line.is_char_boundary(end)).unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_line_and_json_has_stable_names() {
        let refusal = Refusal::new(Reason::Truncated, "ends at\n 10 of 20\tbytes");
        let record = Record::refused("/p/libiccl_x.so", refusal);
        assert_eq!(
            record.to_string(),
            "plugin candidate: rejected (truncated): ends at 10 of 20 bytes; /p/libiccl_x.so"
        );
        let json = serde_json::to_value(&record).unwrap();
        assert_eq!(json["state"], "rejected");
        assert_eq!(json["reason"], "truncated");
        assert_eq!(json["self_test"]["result"], "not-run");
        assert_eq!(json["probe_time_us"], serde_json::Value::Null);
    }

    #[test]
    fn a_detail_is_cut_between_characters() {
        let line = one_line(&"ä".repeat(1000));
        assert!(line.len() <= LONGEST_DETAIL + '…'.len_utf8() && line.ends_with('…'));
    }
}
