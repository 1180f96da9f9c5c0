//! Lists and tables of simpler values.

use std::collections::BTreeMap;
use std::path::PathBuf;

use semver::VersionReq;

use super::codec::{Codec, FilePath, Shape, Text};
use super::node::{Node, Rejections, quoted};
use super::suggest::nearest;

/// A list of values, cut at `separator` where it comes as a word.
pub(super) struct List<C> {
    item: C,
    separator: char,
    accepted: &'static str,
}

/// A list of names; a comma parts them in the environment.
pub(super) const fn names(accepted: &'static str) -> List<Text> {
    List { item: Text(accepted), separator: ',', accepted }
}

/// A list of folders; a colon parts them in the environment.
pub(super) const fn folders() -> List<FilePath> {
    List { item: FilePath, separator: ':', accepted: "a list of folders" }
}

impl<C: Codec> Codec for List<C> {
    type Value = Vec<C::Value>;

    fn read(&self, node: &Node) -> Result<Self::Value, Rejections> {
        collect(node.list(self.separator, self.accepted)?.iter().map(|item| self.item.read(item)))
    }

    fn show(&self, value: &Self::Value) -> Option<String> {
        let items: Vec<String> = value.iter().filter_map(|item| self.item.toml(item)).collect();
        Some(format!("[{}]", items.join(", ")))
    }

    fn toml(&self, value: &Self::Value) -> Option<String> {
        self.show(value)
    }

    fn accepted(&self) -> String {
        self.accepted.to_owned()
    }
}

/// Every good value, or every bad one.
pub(super) fn collect<T>(
    results: impl Iterator<Item = Result<T, Rejections>>,
) -> Result<Vec<T>, Rejections> {
    let mut good = Vec::new();
    let mut bad = Vec::new();
    for result in results {
        match result {
            Ok(value) => good.push(value),
            Err(Rejections(more)) => bad.extend(more),
        }
    }
    if bad.is_empty() { Ok(good) } else { Err(Rejections(bad)) }
}

/// Named entries of one kind.
pub(super) struct Map<C> {
    value: C,
    /// The names there are; empty where any will do.
    names: fn() -> Vec<&'static str>,
    accepted: &'static str,
}

/// Named entries with names of the user's own.
pub(super) const fn map<C>(value: C, accepted: &'static str) -> Map<C> {
    Map { value, names: Vec::new, accepted }
}

/// Named entries with names out of a list.
pub(super) const fn map_of<C>(
    names: fn() -> Vec<&'static str>,
    value: C,
    accepted: &'static str,
) -> Map<C> {
    Map { value, names, accepted }
}

impl<C: Codec> Codec for Map<C> {
    type Value = BTreeMap<String, C::Value>;

    fn read(&self, node: &Node) -> Result<Self::Value, Rejections> {
        let names = (self.names)();
        let entries = node.entries(self.accepted)?;
        let read = entries.iter().map(|(key, value)| {
            let name = key.name.as_str();
            if name.is_empty() {
                return Err(key.complain("an entry without a name").into());
            }
            if !names.is_empty() && !names.contains(&name) {
                let hint = nearest(name, names.iter().copied()).map_or_else(
                    || format!("there are {}", names.join(", ")),
                    |near| format!("did you mean \"{near}\"?"),
                );
                return Err(key.complain(format!("unknown name \"{name}\"; {hint}")).into());
            }
            Ok((key.name.clone(), self.value.read(value)?))
        });
        collect(read).map(|entries| entries.into_iter().collect())
    }

    fn show(&self, value: &Self::Value) -> Option<String> {
        let entries: Vec<String> = value
            .iter()
            .filter_map(|(name, value)| {
                Some(format!("{} = {}", toml_key(name), self.value.toml(value)?))
            })
            .collect();
        Some(inline_table(&entries))
    }

    fn toml(&self, value: &Self::Value) -> Option<String> {
        self.show(value)
    }

    fn accepted(&self) -> String {
        self.accepted.to_owned()
    }

    fn shape(&self) -> Shape {
        Shape::Table
    }

    fn assign(&self, target: &mut Self::Value, node: &Node) -> Result<(), Rejections> {
        target.extend(self.read(node)?);
        Ok(())
    }

    fn entries(&self, value: &Self::Value) -> Vec<(String, String)> {
        value
            .iter()
            .filter_map(|(name, value)| Some((name.clone(), self.value.show(value)?)))
            .collect()
    }
}

pub(super) fn inline_table(entries: &[String]) -> String {
    if entries.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", entries.join(", ")) }
}

/// A key as TOML wants it: bare where that is allowed.
pub(super) fn toml_key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.chars().all(bare) { name.to_owned() } else { quoted(name) }
}

/// A semver requirement.
pub(super) struct Requirement;

impl Codec for Requirement {
    type Value = VersionReq;

    fn read(&self, node: &Node) -> Result<VersionReq, Rejections> {
        let text = node.text().ok_or_else(|| self.refuse(node))?;
        VersionReq::parse(text)
            .map_err(|error| node.reject(format!("expected {} ({error})", self.accepted())).into())
    }

    fn show(&self, value: &VersionReq) -> Option<String> {
        Some(value.to_string())
    }

    fn accepted(&self) -> String {
        "a version requirement such as \">=1.2, <2\" or \"*\"".to_owned()
    }
}

/// The sha256 of a file, in hexadecimal.
pub(super) struct Sha256;

impl Codec for Sha256 {
    type Value = String;

    fn read(&self, node: &Node) -> Result<String, Rejections> {
        node.text()
            .map(str::to_ascii_lowercase)
            .filter(|text| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .ok_or_else(|| self.refuse(node).into())
    }

    fn show(&self, value: &String) -> Option<String> {
        Some(value.clone())
    }

    fn accepted(&self) -> String {
        "64 hexadecimal digits, as sha256sum prints them".to_owned()
    }
}

/// The values of a list of folders, for the type column of the table.
pub(super) type Folders = Vec<PathBuf>;
