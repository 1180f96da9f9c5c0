//! The rules of the house, checked on its source: which way imports point, how long a file is, and that
//! what is unsafe says why it is sound.

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

/// All Rust files of the house, and what is in them.
fn all_sources() -> Vec<(PathBuf, String)> {
    let mut sources = Vec::new();
    for folder in fs::read_dir(workspace()).expect("the workspace") {
        let folder = folder.expect("an entry").path();
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !folder.is_dir() || name.starts_with('.') || name == "target" {
            continue;
        }
        for file in rust_files(&folder) {
            let text = fs::read_to_string(&file).expect("a source file");
            sources.push((file, text));
        }
    }
    sources
}

#[test]
fn no_file_is_too_long_to_be_one_story() {
    let mut long = Vec::new();
    for (file, text) in all_sources() {
        let lines = text.lines().count();
        if lines > LONGEST_FILE_LINES {
            long.push(format!("{}: {lines} lines", file.display()));
        }
    }
    assert!(long.is_empty(), "files of more than {LONGEST_FILE_LINES} lines:\n{}", long.join("\n"));
}

/// How long the string, character or comment is that `text` starts with; 0 if it starts with none.
fn no_code(text: &str) -> usize {
    let until = |start: usize, end: &str| {
        text[start..].find(end).map_or(text.len(), |at| start + at + end.len())
    };
    let quoted = |start: usize, quote: char| {
        let mut escaped = false;
        let is_end = |(_, one): &(usize, char)| {
            let ends = *one == quote && !escaped;
            escaped = *one == '\\' && !escaped;
            ends
        };
        text[start..].char_indices().find(is_end).map_or(text.len(), |(at, _)| start + at + 1)
    };
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return until(2, "*/");
    }
    if let Some(raw) = text.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let is_string = raw[hashes..].starts_with('"');
        return if is_string { until(hashes + 2, &format!("\"{}", &raw[..hashes])) } else { 0 };
    }
    if text.starts_with('"') {
        return quoted(1, '"');
    }
    let mut after = text.chars();
    match (after.next(), after.next(), after.next()) {
        // Else it is a lifetime.
        (Some('\''), Some('\\'), _) | (Some('\''), Some(_), Some('\'')) => quoted(1, '\''),
        _ => 0,
    }
}

/// A source, line by line as it is, without what is no code.
fn code_lines(text: &str) -> Vec<String> {
    let mut code = String::new();
    let mut at = 0;
    while let Some(one) = text[at..].chars().next() {
        let in_word = code.ends_with(|last: char| last.is_alphanumeric() || last == '_');
        let skipped = if in_word && one == 'r' { 0 } else { no_code(&text[at..]) };
        if skipped == 0 {
            code.push(one);
            at += one.len_utf8();
        } else {
            code.extend(text[at..at + skipped].chars().filter(|one| *one == '\n'));
            at += skipped;
        }
    }
    code.lines().map(str::to_owned).collect()
}

/// The lines, from 1, with an unsafe block or implementation that no `SAFETY` comment stands right above
/// of, attributes between them aside.
fn unexplained(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let is_unsafe = |code: &String| {
        code.match_indices("unsafe").any(|(at, word)| {
            let after = code[at + word.len()..].trim_start();
            let is_word = !code[..at].ends_with(|one: char| one.is_alphanumeric() || one == '_');
            is_word && (after.starts_with('{') || after.starts_with("impl"))
        })
    };
    let explained = |above: &[&str]| {
        let above = above.iter().rev().skip_while(|line| line.starts_with("#["));
        above.take_while(|line| line.starts_with("//")).any(|line| line.contains("SAFETY:"))
    };
    let code = code_lines(text);
    let places = code.iter().enumerate().filter(|(_, code)| is_unsafe(code));
    places.filter(|(at, _)| !explained(&lines[..*at])).map(|(at, _)| at + 1).collect()
}

#[test]
fn what_is_unsafe_is_found_in_code_only() {
    let explained = "// SAFETY: it is.\n// It is.\n#[cold]\nlet x = unsafe { y() };\n\
                     // SAFETY: so.\nunsafe impl<'a> Send for X<'a> {}\n\
                     // unsafe { z() }\nunsafe fn z() {}\nunsafe extern \"C\" fn r() {}\n\
                     let text = ['\\'', '\"'].map(|_| \"\\\" unsafe {\");\n\
                     let raw = r#\"\" unsafe {\"#; /* unsafe { */ let b = br\"\\\"; not_unsafe! {}";
    assert_eq!(unexplained(explained), Vec::<usize>::new());
    let text = "let a = \"\n\";\n// SAFETY: it is.\nlet x =\n    unsafe { y() };\n\
                unsafe impl Send for X {}\n// Because.\nlist.map(|one| unsafe { z(one) });";
    assert_eq!(unexplained(text), [5, 6, 8]);
}

#[test]
fn what_is_unsafe_says_right_above_why_it_is_sound() {
    let mut silent = Vec::new();
    for (file, text) in all_sources() {
        let lines = unexplained(&text).into_iter();
        silent.extend(lines.map(|line| format!("{}:{line}", file.display())));
    }
    assert!(silent.is_empty(), "no `// SAFETY:` on the line above:\n{}", silent.join("\n"));
}
