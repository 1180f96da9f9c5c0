//! Values before they are typed: a tree out of a TOML file, or a word out of the environment or
//! the API. Every node knows where it came from.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use super::provenance::Provenance;

/// A value and where it came from.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) raw: Raw,
    pub(super) origin: Provenance,
    /// The folder that relative paths start from.
    pub(super) folder: Arc<Path>,
}

#[derive(Clone, Debug)]
pub(super) enum Raw {
    /// Text from the environment or the API; what it is depends on the setting.
    Word(String),
    Text(String),
    Integer {
        /// `None` where it leaves 128 bits.
        value: Option<i128>,
        text: String,
    },
    Float(String),
    Boolean(bool),
    DateTime(String),
    List(Vec<Node>),
    Table(Vec<(Key, Node)>),
}

#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) name: String,
    pub(super) origin: Provenance,
}

/// Why a value is refused, and which one.
#[derive(Clone, Debug)]
pub(super) struct Rejection {
    pub(super) origin: Provenance,
    /// The refused value; `None` where the reason says it all.
    pub(super) found: Option<String>,
    pub(super) reason: String,
}

/// All that is wrong with one setting.
#[derive(Clone, Debug)]
pub(super) struct Rejections(pub(super) Vec<Rejection>);

impl From<Rejection> for Rejections {
    fn from(rejection: Rejection) -> Self {
        Self(vec![rejection])
    }
}

impl Key {
    pub(super) fn complain(&self, reason: impl Into<String>) -> Rejection {
        Rejection { origin: self.origin.clone(), found: None, reason: reason.into() }
    }
}

impl Node {
    pub(super) fn with_raw(&self, raw: Raw) -> Self {
        Self { raw, origin: self.origin.clone(), folder: self.folder.clone() }
    }

    pub(super) fn reject(&self, reason: impl Into<String>) -> Rejection {
        Rejection {
            origin: self.origin.clone(),
            found: Some(self.describe()),
            reason: reason.into(),
        }
    }

    /// A refusal of the place rather than of the value.
    pub(super) fn complain(&self, reason: impl Into<String>) -> Rejection {
        Rejection { origin: self.origin.clone(), found: None, reason: reason.into() }
    }

    /// The value as a user would recognise it.
    pub(super) fn describe(&self) -> String {
        match &self.raw {
            Raw::Word(text) | Raw::Text(text) => quoted(&shortened(text)),
            Raw::Integer { text, .. } | Raw::Float(text) | Raw::DateTime(text) => text.clone(),
            Raw::Boolean(value) => value.to_string(),
            Raw::List(items) => format!("a list of {}", items.len()),
            Raw::Table(_) => "a table".to_owned(),
        }
    }

    /// The text of a string; nothing else counts as one.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.raw {
            Raw::Word(text) => Some(text.trim()),
            Raw::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The items of a list. A word is a TOML list if it starts with `[`, else it is cut at
    /// `separator`.
    pub(super) fn list(&self, separator: char, accepted: &str) -> Result<Vec<Self>, Rejection> {
        match &self.raw {
            Raw::List(items) => Ok(items.clone()),
            Raw::Word(word) if word.trim_start().starts_with('[') => {
                self.reparsed(word)?.list(separator, accepted)
            }
            Raw::Word(word) => Ok(word
                .split(separator)
                .map(str::trim)
                .filter(|item| !item.is_empty())
                .map(|item| self.with_raw(Raw::Word(item.to_owned())))
                .collect()),
            _ => Err(self.reject(format!("expected {accepted}"))),
        }
    }

    /// The entries of a table. A word is a TOML table if it starts with `{`, else it is
    /// `name=value; name=value`.
    pub(super) fn entries(&self, accepted: &str) -> Result<Vec<(Key, Self)>, Rejection> {
        match &self.raw {
            Raw::Table(entries) => Ok(entries.clone()),
            Raw::Word(word) if word.trim_start().starts_with('{') => {
                self.reparsed(word)?.entries(accepted)
            }
            Raw::Word(word) => word
                .split(';')
                .map(str::trim)
                .filter(|item| !item.is_empty())
                .map(|item| {
                    let (name, value) = item
                        .split_once('=')
                        .ok_or_else(|| self.reject(format!("expected {accepted}")))?;
                    let key = Key { name: name.trim().to_owned(), origin: self.origin.clone() };
                    Ok((key, self.with_raw(Raw::Word(value.trim().to_owned()))))
                })
                .collect(),
            _ => Err(self.reject(format!("expected {accepted}"))),
        }
    }

    /// Reads a word as a TOML value; the whole value keeps the word's origin.
    fn reparsed(&self, word: &str) -> Result<Self, Rejection> {
        let value = DeValue::parse(word.trim())
            .map_err(|error| self.reject(format!("not a TOML value: {}", error.message())))?;
        Ok(convert(value.get_ref(), &self.folder, &|_| self.origin.clone(), value.span().start))
    }
}

/// Enough of a text to recognise it.
fn shortened(text: &str) -> String {
    const SHOWN: usize = 100;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A TOML string literal on one line.
pub(super) fn quoted(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('"');
    for c in text.chars() {
        match c {
            '"' => literal.push_str("\\\""),
            '\\' => literal.push_str("\\\\"),
            '\n' => literal.push_str("\\n"),
            '\t' => literal.push_str("\\t"),
            '\r' => literal.push_str("\\r"),
            c if c.is_control() => {
                let _ = write!(literal, "\\u{:04X}", u32::from(c));
            }
            c => literal.push(c),
        }
    }
    literal.push('"');
    literal
}

/// The tree of a document and what is wrong with its syntax.
pub(super) struct Document {
    pub(super) entries: Vec<(Key, Node)>,
    pub(super) problems: Vec<(Provenance, String)>,
}

/// Reads a document as far as its syntax goes.
pub(super) fn parse_document(text: &str, path: &Path, folder: &Arc<Path>) -> Document {
    // A byte order mark is no part of the first line, so columns are counted without it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let origin = |offset: usize| position(text, path, offset);
    let (document, errors) = DeTable::parse_recoverable(text);
    let problems = errors
        .iter()
        .map(|error| {
            let span = error.span().unwrap_or(text.len()..text.len());
            let mut message = error.message().replace('\n', " ");
            if message == "duplicate key"
                && let Some(key) = text.get(span.clone())
            {
                message = format!("duplicate key {key}: it is set above already");
            }
            (origin(span.start), message)
        })
        .collect();
    Document { entries: table(document.get_ref(), folder, &origin), problems }
}

fn table(
    table: &DeTable<'_>,
    folder: &Arc<Path>,
    origin: &dyn Fn(usize) -> Provenance,
) -> Vec<(Key, Node)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
        .into_iter()
        .map(|(key, value)| {
            let name = key.get_ref().to_string();
            let key = Key { name, origin: origin(key.span().start) };
            (key, convert(value.get_ref(), folder, origin, value.span().start))
        })
        .collect()
}

fn convert(
    value: &DeValue<'_>,
    folder: &Arc<Path>,
    origin: &dyn Fn(usize) -> Provenance,
    start: usize,
) -> Node {
    let raw = match value {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Integer(integer) => Raw::Integer {
            value: i128::from_str_radix(integer.as_str(), integer.radix()).ok(),
            text: integer.to_string(),
        },
        DeValue::Float(float) => Raw::Float(float.to_string()),
        DeValue::Boolean(value) => Raw::Boolean(*value),
        DeValue::Datetime(value) => Raw::DateTime(value.to_string()),
        DeValue::Array(items) => Raw::List(
            items
                .iter()
                .map(|item| convert(item.get_ref(), folder, origin, item.span().start))
                .collect(),
        ),
        DeValue::Table(inner) => Raw::Table(table(inner, folder, origin)),
    };
    Node { raw, origin: origin(start), folder: folder.clone() }
}

/// Line and column of a byte offset.
pub(super) fn position(text: &str, path: &Path, offset: usize) -> Provenance {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    let before = &text[..offset];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    Provenance::File {
        path: path.to_owned(),
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
    }
}
