//! The rules of the house, checked on its source: which way imports point, and how long a file is.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use iccl_tests::workspace;

/// The rooms of the runtime, from left to right.
const ROOMS: &[&str] =
    &["config", "plugins", "bootstrap", "topology", "plan", "schedule", "engine", "comm"];
/// Called by all, calls none.
const OBSERVE: &str = "observe";
/// Longer than this, a file tells more than one story.
const LONGEST_FILE_LINES: usize = 800;

/// All Rust files below a folder.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
        let path = entry.path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// The names that follow `crate::` in a text: `crate::plan::x` and `crate::{plan::x, engine}` give
/// the same. Comments and doc links count too: a room that explains itself by a later one leans on it.
fn named_after_crate(text: &str) -> BTreeSet<String> {
    let code: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n");
    let word = |text: &str| -> String {
        text.chars().take_while(|one| one.is_alphanumeric() || *one == '_').collect()
    };
    let mut names = BTreeSet::new();
    for (at, found) in code.match_indices("crate::") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|one| one.is_alphanumeric() || one == '_' || one == '$') {
            continue;
        }
        let rest = &code[at + found.len()..];
        let Some(group) = rest.strip_prefix('{') else {
            names.insert(word(rest));
            continue;
        };
        let mut depth = 0;
        let mut start = true;
        for (index, one) in group.char_indices() {
            match one {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => start = true,
                _ if one.is_whitespace() => {}
                _ if start => {
                    names.insert(word(&group[index..]));
                    start = false;
                }
                _ => {}
            }
        }
    }
    names
}

#[test]
fn names_after_crate_are_found_in_every_form() {
    let text = "use crate::plan::Plan;\nuse crate::{Error, engine::{a, b}, comm};\n// crate::no\n\
                let x = crate::schedule::y(); $crate::macro_only; mycrate::no2";
    let found = named_after_crate(text);
    let expected = ["Error", "comm", "engine", "plan", "schedule"].map(str::to_owned);
    assert_eq!(found, BTreeSet::from(expected));
}

#[test]
fn imports_between_rooms_point_to_the_left() {
    let source = workspace().join("iccl-runtime/src");
    let mut wrong = Vec::new();
    for room in ROOMS.iter().chain([&OBSERVE]) {
        let place = ROOMS.iter().position(|one| one == room);
        let files = rust_files(&source.join(room));
        assert!(!files.is_empty(), "the room {room} is empty");
        for file in files {
            let text = fs::read_to_string(&file).expect("a source file");
            for name in named_after_crate(&text) {
                let Some(other) = ROOMS.iter().position(|one| *one == name) else { continue };
                if place.is_none_or(|place| other > place) {
                    wrong.push(format!("{}: {room} imports {name}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "arrows that point the wrong way:\n{}", wrong.join("\n"));
}

#[test]
fn no_file_is_too_long_to_be_one_story() {
    let mut long = Vec::new();
    for folder in fs::read_dir(workspace()).expect("the workspace") {
        let folder = folder.expect("an entry").path();
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !folder.is_dir() || name.starts_with('.') || name == "target" {
            continue;
        }
        for file in rust_files(&folder) {
            let lines = fs::read_to_string(&file).expect("a source file").lines().count();
            if lines > LONGEST_FILE_LINES {
                long.push(format!("{}: {lines} lines", file.display()));
            }
        }
    }
    assert!(long.is_empty(), "files of more than {LONGEST_FILE_LINES} lines:\n{}", long.join("\n"));
}
