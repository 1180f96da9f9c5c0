//! The table of cases in docs/testing.md: every test that it names is there, and no case is left out.

use std::fs;
use std::path::{Path, PathBuf};

use iccl_tests::workspace;

/// The cases of the tiers "wrong results" and "hangs, deadlocks, crashes", and of "path selection" what is a
/// runtime's.
const CASES: &[u32] = &[
    1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 14, 15, 16, 18, 19, 20, 21, 22, 23, 25, 26, 28, 29, 30, 31, 33,
    34, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 48, 49, 50, 51, 52, 54, 56, 57, 58, 60, 61, 62,
    82, 83, 84, 85, 87, 88, 98,
];

/// All code of the workspace.
fn code(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
        let path: PathBuf = entry.path();
        let name = entry.file_name();
        if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
            code(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path).expect("a source file"));
        }
    }
}

#[test]
fn every_case_has_its_row_and_every_test_of_a_row_is_there() {
    let mut all = String::new();
    code(workspace(), &mut all);
    let page = fs::read_to_string(workspace().join("docs/testing.md")).expect("the page");
    for case in CASES {
        let start = format!("| B{case:03} |");
        let row = page.lines().find(|line| line.starts_with(&start));
        let row = row.unwrap_or_else(|| panic!("B{case:03} has no row in docs/testing.md"));
        let tests: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        assert!(
            !tests.is_empty() || row.contains("waits: "),
            "B{case:03} has neither test nor reason"
        );
        for test in tests {
            assert!(test.contains(&format!("b{case:03}")), "{test} is not named after B{case:03}");
            assert!(all.contains(&format!("fn {test}(")), "{test}, of B{case:03}, is not there");
        }
    }
}
