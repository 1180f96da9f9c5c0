//! How one kind of value is read, written and described.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use zeroize::Zeroizing;

use super::node::{Node, Raw, Rejection, Rejections, quoted};
use super::units;

/// What a setting looks like in a file, which decides how a key below it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One value, replaced as a whole.
    Value,
    /// Named entries; a later source replaces single entries.
    Table,
    /// Tables of named entries.
    TableOfTables,
}

/// How one kind of value is read, written and described.
pub(super) trait Codec {
    type Value;

    /// The typed value, or why not.
    fn read(&self, node: &Node) -> Result<Self::Value, Rejections>;

    /// The text that [`Codec::read`] reads back from the environment; `None` where it is not set.
    fn show(&self, value: &Self::Value) -> Option<String>;

    /// What is accepted, to follow "expected".
    fn accepted(&self) -> String;

    /// The value in a TOML file.
    fn toml(&self, value: &Self::Value) -> Option<String> {
        self.show(value).map(|text| quoted(&text))
    }

    fn shape(&self) -> Shape {
        Shape::Value
    }

    /// Takes over what a source says.
    fn assign(&self, target: &mut Self::Value, node: &Node) -> Result<(), Rejections> {
        *target = self.read(node)?;
        Ok(())
    }

    /// Name and text of every entry of a table.
    fn entries(&self, _value: &Self::Value) -> Vec<(String, String)> {
        Vec::new()
    }

    fn refuse(&self, node: &Node) -> Rejection {
        node.reject(format!("expected {}", self.accepted()))
    }
}

/// `true` or `false`.
pub(super) struct Boolean;

impl Codec for Boolean {
    type Value = bool;

    fn read(&self, node: &Node) -> Result<bool, Rejections> {
        match &node.raw {
            Raw::Boolean(value) => Ok(*value),
            Raw::Word(word) => match word.trim().to_ascii_lowercase().as_str() {
                "true" | "1" | "yes" | "on" => Ok(true),
                "false" | "0" | "no" | "off" => Ok(false),
                _ => Err(self.refuse(node).into()),
            },
            _ => Err(self.refuse(node).into()),
        }
    }

    fn show(&self, value: &bool) -> Option<String> {
        Some(value.to_string())
    }

    fn toml(&self, value: &bool) -> Option<String> {
        self.show(value)
    }

    fn accepted(&self) -> String {
        "true or false".to_owned()
    }
}

/// A whole number in a range.
pub(super) struct Integer(pub(super) RangeInclusive<u32>);

impl Codec for Integer {
    type Value = u32;

    fn read(&self, node: &Node) -> Result<u32, Rejections> {
        let value = match &node.raw {
            Raw::Integer { value, .. } => value.and_then(|value| u32::try_from(value).ok()),
            Raw::Word(word) => word.trim().parse().ok(),
            _ => None,
        };
        value.filter(|value| self.0.contains(value)).ok_or_else(|| self.refuse(node).into())
    }

    fn show(&self, value: &u32) -> Option<String> {
        Some(value.to_string())
    }

    fn toml(&self, value: &u32) -> Option<String> {
        self.show(value)
    }

    fn accepted(&self) -> String {
        format!("a whole number from {} to {}", self.0.start(), self.0.end())
    }
}

/// A number of bytes in a range.
pub(super) struct Bytes(pub(super) RangeInclusive<u64>);

impl Codec for Bytes {
    type Value = u64;

    fn read(&self, node: &Node) -> Result<u64, Rejections> {
        let value = match &node.raw {
            Raw::Integer { value, .. } => value.and_then(|value| u64::try_from(value).ok()),
            _ => node.text().and_then(units::parse_bytes),
        };
        value.filter(|value| self.0.contains(value)).ok_or_else(|| self.refuse(node).into())
    }

    fn show(&self, value: &u64) -> Option<String> {
        Some(units::show_bytes(*value))
    }

    fn accepted(&self) -> String {
        format!(
            "a size such as 256KiB, 64M or a plain number of bytes, from {} to {}",
            units::show_bytes(*self.0.start()),
            units::show_bytes(*self.0.end())
        )
    }
}

/// A span of time in a range.
pub(super) struct Span(pub(super) RangeInclusive<Duration>);

impl Codec for Span {
    type Value = Duration;

    fn read(&self, node: &Node) -> Result<Duration, Rejections> {
        node.text()
            .and_then(units::parse_duration)
            .filter(|value| self.0.contains(value))
            .ok_or_else(|| self.refuse(node).into())
    }

    fn show(&self, value: &Duration) -> Option<String> {
        Some(units::show_duration(*value))
    }

    fn accepted(&self) -> String {
        format!(
            "a number and a unit (ns, us, ms, s, min, h), such as \"500ms\", from {} to {}",
            units::show_duration(*self.0.start()),
            units::show_duration(*self.0.end())
        )
    }
}

/// A bandwidth, in bytes per second.
pub(super) struct Bandwidth;

impl Codec for Bandwidth {
    type Value = u64;

    fn read(&self, node: &Node) -> Result<u64, Rejections> {
        node.text()
            .and_then(units::parse_bandwidth)
            .filter(|value| *value > 0)
            .ok_or_else(|| self.refuse(node).into())
    }

    fn show(&self, value: &u64) -> Option<String> {
        Some(units::show_bandwidth(*value))
    }

    fn accepted(&self) -> String {
        "a bandwidth above zero, such as \"12GB/s\" or \"25Gbit/s\"".to_owned()
    }
}

/// Text that is not empty, described to the user by the given words.
pub(super) struct Text(pub(super) &'static str);

impl Codec for Text {
    type Value = String;

    fn read(&self, node: &Node) -> Result<String, Rejections> {
        match node.text() {
            Some(text) if !text.trim().is_empty() => Ok(text.to_owned()),
            _ => Err(self.refuse(node).into()),
        }
    }

    fn show(&self, value: &String) -> Option<String> {
        Some(value.clone())
    }

    fn accepted(&self) -> String {
        self.0.to_owned()
    }
}

/// What is logged: levels, and targets with levels. A word alone that is no level would be taken for a
/// target, and all else would fall silent.
pub(super) struct LogFilter;

impl LogFilter {
    fn is_level(word: &str) -> bool {
        const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
        LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word))
    }

    fn is_directive(part: &str) -> bool {
        match part.rsplit_once('=') {
            Some((target, level)) => !target.is_empty() && Self::is_level(level),
            None => Self::is_level(part) || part.contains("::"),
        }
    }
}

impl Codec for LogFilter {
    type Value = String;

    fn read(&self, node: &Node) -> Result<String, Rejections> {
        match node.text() {
            // Spans and fields are left to the reader of the filter.
            Some(text)
                if text.contains('[')
                    || text.split(',').all(|part| Self::is_directive(part.trim())) =>
            {
                Ok(text.to_owned())
            }
            _ => Err(self.refuse(node).into()),
        }
    }

    fn show(&self, value: &String) -> Option<String> {
        Some(value.clone())
    }

    fn accepted(&self) -> String {
        "a level (off, error, warn, info, debug, trace), or a filter of TARGET=LEVEL and levels"
            .to_owned()
    }
}

/// A file or folder; relative ones start at the configuration file's folder, or at the working
/// directory where they come from the environment or the API.
pub(super) struct FilePath;

impl Codec for FilePath {
    type Value = PathBuf;

    fn read(&self, node: &Node) -> Result<PathBuf, Rejections> {
        match node.text() {
            Some(text) if !text.trim().is_empty() && !text.contains('\0') => {
                Ok(node.folder.join(text))
            }
            _ => Err(self.refuse(node).into()),
        }
    }

    fn show(&self, value: &PathBuf) -> Option<String> {
        Some(value.display().to_string())
    }

    fn accepted(&self) -> String {
        "a path".to_owned()
    }
}

/// Text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// What stands for a secret wherever it would be printed.
    pub const REDACTED: &'static str = "<redacted>";

    /// Keeps `text`; its memory is cleared when it is dropped.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// The secret itself. Never put it into a message.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::REDACTED)
    }
}

/// A secret, described to the user by the given words.
pub(super) struct Hidden(pub(super) &'static str);

impl Codec for Hidden {
    type Value = Secret;

    fn read(&self, node: &Node) -> Result<Secret, Rejections> {
        match node.text() {
            Some(text) if !text.is_empty() => Ok(Secret::new(text)),
            _ => Err(self.refuse(node).into()),
        }
    }

    fn show(&self, _value: &Secret) -> Option<String> {
        Some(Secret::REDACTED.to_owned())
    }

    fn accepted(&self) -> String {
        self.0.to_owned()
    }

    fn refuse(&self, node: &Node) -> Rejection {
        let mut rejection = node.reject(format!("expected {}", self.accepted()));
        rejection.found = Some(Secret::REDACTED.to_owned());
        rejection
    }
}

/// A value that may be left open.
pub(super) struct Optional<C>(pub(super) C);

impl<C: Codec> Codec for Optional<C> {
    type Value = Option<C::Value>;

    fn read(&self, node: &Node) -> Result<Self::Value, Rejections> {
        self.0.read(node).map(Some)
    }

    fn show(&self, value: &Self::Value) -> Option<String> {
        value.as_ref().and_then(|value| self.0.show(value))
    }

    fn toml(&self, value: &Self::Value) -> Option<String> {
        value.as_ref().and_then(|value| self.0.toml(value))
    }

    fn accepted(&self) -> String {
        self.0.accepted()
    }
}

/// An enumeration whose variants have names.
pub(super) trait Named: Copy + PartialEq + 'static {
    const ALL: &'static [(Self, &'static str)];
}

/// One of the names of `T`.
pub(super) struct Choice<T>(pub(super) std::marker::PhantomData<T>);

/// One of the names of `T`.
pub(super) const fn choice<T: Named>() -> Choice<T> {
    Choice(std::marker::PhantomData)
}

impl<T: Named> Codec for Choice<T> {
    type Value = T;

    fn read(&self, node: &Node) -> Result<T, Rejections> {
        node.text()
            .and_then(|text| T::ALL.iter().find(|(_, name)| *name == text))
            .map(|(value, _)| *value)
            .ok_or_else(|| self.refuse(node).into())
    }

    fn show(&self, value: &T) -> Option<String> {
        T::ALL.iter().find(|(candidate, _)| candidate == value).map(|(_, name)| (*name).to_owned())
    }

    fn accepted(&self) -> String {
        alternatives(T::ALL.iter().map(|(_, name)| *name))
    }
}

/// `"a", "b" or "c"`.
pub(super) fn alternatives<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| format!("\"{name}\"")).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    }
}
