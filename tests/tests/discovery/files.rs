//! What is wrong with a file, seen before it is loaded.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use iccl_runtime::plugins::{PluginSet, ProbeMethod, State};
use sha2::{Digest, Sha256};

use crate::support::{Folder, compile_shared, config, good_plugins_work, mappings};

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// Changes the bytes at an offset.
fn patch(path: &Path, offset: usize, bytes: &[u8]) {
    let mut content = std::fs::read(path).unwrap();
    content[offset..offset + bytes.len()].copy_from_slice(bytes);
    std::fs::write(path, content).unwrap();
}

/// Where the description of the plugin's note begins.
fn note_description(path: &Path) -> usize {
    let content = std::fs::read(path).unwrap();
    let owner = b"iccl\0\0\0\0";
    let found = content.windows(owner.len()).position(|window| window == owner);
    found.expect("the plugin has a note") + owner.len()
}

#[test]
fn b070_junk_gets_a_line_each() {
    let folder = Folder::new();
    std::fs::write(folder.file("libiccl_text.so"), "this is no plugin\n").unwrap();
    std::fs::write(folder.file("libiccl_empty.so"), "").unwrap();
    std::fs::write(folder.file("libiccl_magic.so"), b"\x7fELF").unwrap();
    std::fs::create_dir(folder.file("libiccl_dir.so")).unwrap();
    std::fs::create_dir(folder.file("x.so")).unwrap();
    symlink("/nowhere/at/all.so", folder.file("libiccl_dangling.so")).unwrap();
    for name in ["a", "lib", "libiccl_.so", "libiccl_x.so.bak", "libiccl_x.so.1", "README"] {
        std::fs::write(folder.file(name), "junk").unwrap();
    }
    folder.refused("libiccl_text.so", "not-elf", "does not begin as ELF files do");
    folder.refused("libiccl_empty.so", "empty", "0 bytes");
    folder.refused("libiccl_magic.so", "truncated", "ends within its header, at 4 bytes");
    folder.refused("libiccl_dir.so", "not-a-file", "it is a folder");
    folder.refused("libiccl_dangling.so", "dangling-link", "/nowhere/at/all.so");
    folder.refused("x.so", "other-name", "not named libiccl_NAME.so");
    folder.refused("libiccl_.so", "other-name", "not named libiccl_NAME.so");
    let set = folder.discover();
    let about = |name: &str| set.records().iter().any(|record| record.path == folder.file(name));
    for name in ["a", "lib", "libiccl_x.so.bak", "libiccl_x.so.1", "README"] {
        assert!(!about(name), "{name} is no candidate");
    }
}

#[test]
fn a_pipe_does_not_make_discovery_wait() {
    let folder = Folder::new();
    iccl_tests::run(Command::new("mkfifo").arg(folder.file("libiccl_pipe.so")));
    folder.refused("libiccl_pipe.so", "not-a-file", "it is a pipe");
}

#[test]
fn truncated_anywhere_is_seen_before_the_loader_is_killed_by_it() {
    let folder = Folder::new();
    let whole = std::fs::read(folder.compile("whole", &[])).unwrap();
    let file = folder.file("libiccl_cut.so");
    std::fs::remove_file(folder.file("libiccl_whole.so")).unwrap();
    // In the header, in the program headers, in a segment, in the section headers.
    for length in [40, 100, whole.len() / 4, whole.len() / 2, whole.len() - 100] {
        std::fs::write(&file, &whole[..length]).unwrap();
        folder.refused("libiccl_cut.so", "truncated", &format!("{length} bytes"));
    }
}

#[test]
fn damage_of_any_byte_of_the_tables_is_survived() {
    let folder = Folder::new();
    let original = folder.compile("damaged", &[]);
    let whole = std::fs::read(&original).unwrap();
    std::fs::remove_file(&original).unwrap();
    let headers = 64 + 56 * 11;
    // Only what is read before loading: the rest is for the child process to die of.
    for offset in (4..headers).step_by(7).chain((whole.len() - 64 * 8..whole.len()).step_by(5)) {
        let mut content = whole.clone();
        content[offset] ^= 0xff;
        // Another file each time: one that was harmless is loaded here, and stays mapped.
        let name = format!("libiccl_damaged{offset}.so");
        std::fs::write(folder.file(&name), content).unwrap();
        let set = folder.discover();
        folder.record(&set, &name);
        std::fs::remove_file(folder.file(&name)).unwrap();
    }
}

#[test]
fn a_file_that_was_replaced_under_this_process_is_refused() {
    let folder = Folder::new();
    let file = folder.compile("exchanged", &[]);
    let first = folder.discover();
    assert_eq!(folder.record(&first, "libiccl_exchanged.so").state, State::Active);
    // The same again is no other file.
    assert!(folder.discover().plugin("exchanged").is_some());
    let other = folder.compile("new", &["NAME=\"exchanged\""]);
    std::fs::rename(other, &file).unwrap();
    folder.refused("libiccl_exchanged.so", "file-replaced", "loaded from this path before");
    assert!(first.plugin("exchanged").is_some());
}

#[test]
fn another_machine_is_named() {
    let folder = Folder::new();
    let file = folder.compile("other", &[]);
    let (machine, name): (u16, _) =
        if cfg!(target_arch = "aarch64") { (62, "x86-64") } else { (183, "aarch64") };
    patch(&file, 18, &machine.to_le_bytes());
    folder.refused("libiccl_other.so", "wrong-machine", &format!("built for {name}"));
    let narrow = folder.compile("narrow", &[]);
    patch(&narrow, 4, &[1]);
    folder.refused("libiccl_narrow.so", "wrong-machine", "no 64-bit file");
    let program = folder.compile("program", &[]);
    patch(&program, 16, &2_u16.to_le_bytes());
    folder.refused("libiccl_program.so", "not-shared-object", "ELF type is 2");
}

#[test]
fn no_entry_and_no_note() {
    let folder = Folder::new();
    folder.compile("door", &["FAULT_NO_ENTRY"]);
    folder.refused("libiccl_door.so", "no-entry-symbol", "iccl_plugin_entry_v1");
    folder.compile("silent", &["FAULT_NO_NOTE"]);
    folder.refused("libiccl_silent.so", "no-note", ".note.iccl");
    let torn = folder.compile("torn", &[]);
    // The type of the note lies four bytes before its owner.
    let description = note_description(&torn);
    patch(&torn, description - 12, &[0xff]);
    folder.refused("libiccl_torn.so", "bad-note", "no note of owner iccl");
}

#[test]
fn b068_another_major_is_refused_before_it_is_loaded() {
    let folder = Folder::new();
    let marker = folder.file("loaded");
    let define = format!("MARKER=\"{}\"", marker.display());
    let file = folder.compile("future", &[&define]);
    let description = note_description(&file);
    patch(&file, description, &3_u32.to_le_bytes());
    let record =
        folder.refused("libiccl_future.so", "abi-major", "plugin future: ABI 3, host accepts 1");
    assert_eq!(record.abi.as_deref(), Some("3.0"));
    assert_eq!(record.name.as_deref(), Some("future"));

    patch(&file, description, &1_u32.to_le_bytes());
    patch(&file, description + 4, &9_u32.to_le_bytes());
    folder.refused("libiccl_future.so", "abi-minor", "needs ABI 1.9");
    assert!(!marker.exists(), "it was loaded, in this process or another");

    patch(&file, description + 4, &0_u32.to_le_bytes());
    let set = folder.discover();
    assert!(folder.record(&set, "libiccl_future.so").is_active());
    assert!(marker.exists(), "the marker works");
}

#[test]
fn b067_a_file_or_folder_that_others_can_write_is_refused() {
    let folder = Folder::new();
    let file = folder.compile("open", &[]);
    set_mode(&file, 0o666);
    folder.refused("libiccl_open.so", "insecure-file", "every user (mode 0666)");
    set_mode(&file, 0o664);
    folder.refused("libiccl_open.so", "insecure-file", "its group (mode 0664)");
    let allow = [("plugins.allow_insecure_plugins", "true")];
    let set = folder.discover_with(&allow).unwrap();
    assert!(folder.record(&set, "libiccl_open.so").is_active());

    set_mode(&file, 0o644);
    set_mode(folder.path(), 0o777);
    let set = folder.discover();
    good_plugins_work(&set);
    let record = set.records().iter().find(|record| record.path == folder.path()).unwrap();
    assert_eq!(record.reason.unwrap().code(), "insecure-folder", "{record}");
    assert!(set.plugin("open").is_none());
    assert!(folder.discover_with(&allow).unwrap().plugin("open").is_some());

    // A link from a folder that is in order into one that is not.
    let safe = Folder::new();
    symlink(&file, safe.file("libiccl_open.so")).unwrap();
    safe.refused("libiccl_open.so", "insecure-folder", folder.path().to_str().unwrap());
}

#[test]
fn b067_a_file_of_another_user_is_refused() {
    let folder = Folder::new();
    let file = folder.compile("foreign", &[]);
    if chown(&file, Some(12345), None).is_err() {
        assert_ne!(iccl_tests::effective_user(), 0, "root can give files away");
        return;
    }
    folder.refused("libiccl_foreign.so", "insecure-file", "belongs to user 12345");
}

/// Says to the test below that it runs as an ordinary user.
const FOLDER_VARIABLE: &str = "ICCL_TEST_UNREADABLE_FOLDER";

#[test]
fn b070_an_unreadable_file() {
    if let Some(path) = std::env::var_os(FOLDER_VARIABLE) {
        let config = config(&[Path::new(&path)], &[("plugins.probe", "inline")]);
        let set = PluginSet::discover(&config).unwrap();
        for record in set.records() {
            println!("{record}");
        }
        return;
    }
    let folder = Folder::new();
    let file = folder.compile("locked", &[]);
    folder.compile("readable", &[]);
    set_mode(&file, 0o000);
    // Root reads everything, so the test runs itself again as nobody, from where nobody can.
    set_mode(folder.path(), 0o755);
    let own = folder.file("test");
    std::fs::copy(std::env::current_exe().unwrap(), &own).unwrap();
    set_mode(&own, 0o755);
    let mut command = Command::new(&own);
    command
        .args(["--exact", "files::b070_an_unreadable_file", "--nocapture"])
        .env(FOLDER_VARIABLE, folder.path())
        .current_dir("/");
    if iccl_tests::effective_user() == 0 {
        use std::os::unix::process::CommandExt;
        command.uid(65534).gid(65534);
    }
    let lines = iccl_tests::run(&mut command);
    let line = lines.lines().find(|line| line.contains("libiccl_locked.so")).expect(&lines);
    assert!(line.contains("rejected (unreadable): Permission denied"), "{line}");
    let line = lines.lines().find(|line| line.contains("libiccl_readable.so")).expect(&lines);
    assert!(line.contains("active"), "{line}");
}

#[test]
fn a_pinned_file_must_have_its_sum() {
    let folder = Folder::new();
    let file = folder.compile("pinned", &[]);
    let sum = format!("{:x}", Sha256::digest(std::fs::read(&file).unwrap()));
    let pin = |sum: &str| format!("{{ \"libiccl_pinned.so\" = \"{sum}\" }}");
    let wrong = pin(&"0".repeat(64));
    folder.refused_with(
        "libiccl_pinned.so",
        "sha256-mismatch",
        &sum,
        &[("plugins.sha256", &wrong)],
    );
    let set = folder.discover_with(&[("plugins.sha256", &pin(&sum))]).unwrap();
    let record = folder.record(&set, "libiccl_pinned.so");
    assert!(record.is_active());
    assert_eq!(record.probe, Some(ProbeMethod::Inline), "a pin is trust");
}

#[test]
fn b074_the_same_file_is_used_once() {
    let folder = Folder::new();
    let file = folder.compile("one", &[]);
    std::fs::hard_link(&file, folder.file("libiccl_two.so")).unwrap();
    symlink(&file, folder.file("libiccl_three.so")).unwrap();
    let set = folder.discover();
    assert!(folder.record(&set, "libiccl_one.so").is_active());
    for name in ["libiccl_two.so", "libiccl_three.so"] {
        let record = folder.record(&set, name);
        assert_eq!(record.reason.unwrap().code(), "same-file");
        assert!(record.detail.contains("libiccl_one.so"), "{record}");
    }
    assert_eq!(set.devices_of("one").count(), 1);
    let mapped = mappings(&file);

    // The same folder by two names, and by the same name twice.
    let other = Folder::new();
    symlink(folder.path(), other.file("link")).unwrap();
    let link = other.file("link");
    let set = PluginSet::discover(&config(&[folder.path(), &link, folder.path()], &[])).unwrap();
    assert_eq!(set.devices_of("one").count(), 1);
    assert_eq!(mappings(&file), mapped, "it was loaded again");
}

#[test]
fn b074_two_files_that_claim_one_name() {
    let folder = Folder::new();
    folder.compile("left", &["NAME=\"twin\""]);
    folder.compile("right", &["NAME=\"twin\"", "VERSION=\"2.0.0\""]);
    for _ in 0..2 {
        folder.refused("libiccl_left.so", "name-clash", "libiccl_right.so");
        folder.refused("libiccl_right.so", "name-clash", "libiccl_left.so");
    }

    // A name that differs by case only is the same; it is judged by the note, before loading.
    let folder = Folder::new();
    folder.compile("lower", &["NAME=\"acme\""]);
    folder.compile("upper", &["NAME=\"acme\"", "NOTE_NAME=\"ACME\""]);
    folder.refused("libiccl_lower.so", "name-clash", "libiccl_upper.so");
    folder.refused("libiccl_upper.so", "name-clash", "libiccl_lower.so");

    // In two folders, the first of the search order is used, and the other file is an error still.
    let (first, second) = (Folder::new(), Folder::new());
    first.compile("brand", &[]);
    second.compile("brand", &["VERSION=\"2.0.0\""]);
    let set = PluginSet::discover(&config(
        &[first.path(), second.path(), iccl_tests::plugin_folder()],
        &[],
    ))
    .unwrap();
    assert!(first.record(&set, "libiccl_brand.so").is_active());
    let record = second.record(&set, "libiccl_brand.so");
    assert_eq!(record.reason.unwrap().code(), "name-clash");
    assert!(record.detail.contains(first.path().to_str().unwrap()), "{record}");
}

#[test]
fn a_configured_folder_has_to_be_there() {
    let folder = Folder::new();
    let gone = folder.file("gone");
    let set = PluginSet::discover(&config(&[&gone, iccl_tests::plugin_folder()], &[])).unwrap();
    good_plugins_work(&set);
    let record = set.records().iter().find(|record| record.path == gone).unwrap();
    assert_eq!(record.reason.unwrap().code(), "folder-missing");
    // Default folders may be missing: there is no record of them.
    assert!(set.searched().iter().any(|folder| folder == Path::new("/usr/lib/iccl/plugins")));
    if !Path::new("/usr/lib/iccl").exists() {
        assert!(!set.records().iter().any(|record| record.path.starts_with("/usr/lib/iccl")));
    }
}

#[test]
fn a_missing_dependency_is_named() {
    let folder = Folder::new();
    let library = folder.file("libacme_gone.so");
    let source = folder.file("acme_gone.c");
    std::fs::write(&source, "int acme_gone(void) { return 7; }\n").unwrap();
    let mut compiler = Command::new("gcc");
    compiler.args(["-shared", "-fPIC", "-Wl,-soname,libacme_gone.so.7", "-o"]);
    iccl_tests::run(compiler.arg(&library).arg(&source));
    let plugin = folder.file("libiccl_needy.so");
    let link = format!("-Wl,--no-as-needed,{}", library.display());
    let mut compiler = Command::new("gcc");
    compile_shared(
        compiler.args(["-DNAME=\"needy\"", "-DFAULT_MISSING_DEPENDENCY"]),
        &plugin,
        &[&link],
    );
    std::fs::remove_file(&library).unwrap();
    folder.refused("libiccl_needy.so", "missing-dependency", "libacme_gone.so.7");
}
