//! What must hold for every setting: these tests run over the whole table, so that a new line of
//! the table is covered without a new test.

use std::fmt::Write as _;

use iccl_runtime::ErrorKind;
use iccl_runtime::config::{Config, Provenance, SETTINGS, Setting, Sources, reference_markdown};
use proptest::prelude::*;

/// A working directory; it holds `iccl.toml` if there is text for one.
fn folder(file: Option<&str>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    if let Some(text) = file {
        std::fs::write(folder.path().join("iccl.toml"), text).unwrap();
    }
    folder
}

fn sources(folder: &tempfile::TempDir) -> Sources {
    Sources { working_directory: folder.path().to_owned(), ..Sources::default() }
}

fn load_file(text: &str) -> iccl_runtime::Result<Config> {
    Config::load(&sources(&folder(Some(text))))
}

fn load_api(key: &str, value: &str) -> iccl_runtime::Result<Config> {
    Config::load(&Sources::default().with(key, value))
}

/// The example as the environment would give it: a TOML string loses its quotes.
fn example_word(setting: &Setting) -> &str {
    let example = setting.example;
    example.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(example)
}

fn value_is_the_example(setting: &Setting, config: &Config, from: &str) {
    let default = setting.value(&Config::default());
    let value = setting.value(config);
    assert_ne!(value, default, "{} by {from}: the example changes nothing", setting.key);
    if setting.key != "bootstrap.unique_id" {
        let again = load_api(setting.key, &value.clone().unwrap()).unwrap();
        assert_eq!(setting.value(&again), value, "{}: its text reads back", setting.key);
    }
}

/// Where the setting, or for a table its entries, came from.
fn provenances(setting: &Setting, config: &Config) -> Vec<Provenance> {
    let below = format!("{}.", setting.key);
    let found: Vec<Provenance> = config
        .entries()
        .into_iter()
        .filter(|entry| entry.key == setting.key || entry.key.starts_with(&below))
        .map(|entry| entry.provenance)
        .collect();
    assert!(!found.is_empty(), "{} is not listed", setting.key);
    found
}

#[test]
fn every_setting_is_set_by_file() {
    for setting in SETTINGS {
        let loaded = load_file(&format!("{} = {}\n", setting.key, setting.example));
        if !setting.reach.file {
            let error = loaded.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(error.to_string().contains("is not read from files"), "{error}");
            continue;
        }
        let config = loaded.unwrap();
        value_is_the_example(setting, &config, "file");
        for provenance in provenances(setting, &config) {
            let Provenance::File { line: 1, column, .. } = provenance else {
                panic!("{}: {provenance:?}", setting.key);
            };
            assert!(column > setting.key.len(), "{}: column {column}", setting.key);
        }
    }
}

#[test]
fn every_variable_is_read_over_the_file() {
    for setting in SETTINGS {
        let Some(variable) = setting.reach.environment else { continue };
        // The file says the default, the environment the example.
        let default = setting.toml(&Config::default()).filter(|_| setting.reach.file);
        let text = default.map_or_else(String::new, |value| format!("{} = {value}", setting.key));
        let folder = folder(Some(&text));
        let mut from = sources(&folder);
        from.environment = [(variable, example_word(setting))].into_iter().collect();
        let config = Config::load(&from).unwrap();
        value_is_the_example(setting, &config, "environment");
        let expected = Provenance::Environment { variable: variable.to_owned() };
        assert!(provenances(setting, &config).iter().all(|from| *from == expected));
        assert!(config.warnings().is_empty(), "{:?}", config.warnings());
    }
}

#[test]
fn every_setting_is_set_by_api_over_all() {
    for setting in SETTINGS {
        let mut from = Sources::default().with(setting.key, example_word(setting));
        if let (Some(variable), Some(default)) =
            (setting.reach.environment, setting.value(&Config::default()))
        {
            from.environment = [(variable, default)].into_iter().collect();
        }
        let config = Config::load(&from).unwrap();
        value_is_the_example(setting, &config, "API");
        assert!(provenances(setting, &config).iter().all(|from| *from == Provenance::Api));
    }
}

#[test]
fn every_default_reads_back_to_itself() {
    for setting in SETTINGS {
        let Some(default) = setting.value(&Config::default()) else { continue };
        let by_api = load_api(setting.key, &default).unwrap();
        assert_eq!(setting.value(&by_api).as_ref(), Some(&default), "{}", setting.key);
        if let Some(toml) = setting.toml(&Config::default()).filter(|_| setting.reach.file) {
            let by_file = load_file(&format!("{} = {toml}", setting.key)).unwrap();
            assert_eq!(setting.value(&by_file), Some(default), "{}", setting.key);
        }
    }
}

#[test]
fn a_file_of_all_examples_loads_and_ranks_see_every_difference() {
    let mut text = String::new();
    for setting in SETTINGS.iter().filter(|setting| setting.reach.file) {
        writeln!(text, "{} = {}", setting.key, setting.example).unwrap();
    }
    let config = load_file(&text).unwrap();
    for setting in SETTINGS.iter().filter(|setting| setting.reach.file) {
        assert_ne!(setting.value(&config), setting.value(&Config::default()), "{}", setting.key);
    }
    let defaults = Config::default().agreed();
    assert_eq!(defaults.len(), SETTINGS.iter().filter(|setting| setting.reach.agreed).count());
    for ((key, value), (_, default)) in config.agreed().iter().zip(&defaults) {
        assert_ne!(value, default, "{key}: what ranks compare does not show the change");
    }
}

#[test]
fn names_are_unique_and_regular() {
    for (index, setting) in SETTINGS.iter().enumerate() {
        assert!(!setting.doc.trim().is_empty());
        for other in &SETTINGS[index + 1..] {
            assert_ne!(setting.key, other.key);
            if setting.reach.environment.is_some() {
                assert_ne!(setting.reach.environment, other.reach.environment, "{}", other.key);
            }
        }
        if let Some(variable) = setting.reach.environment {
            assert!(variable.starts_with("ICCL_") && variable != "ICCL_CONFIG", "{variable}");
        }
    }
}

#[test]
fn entries_serialise_with_stable_names() {
    let config = load_api("plugins.require.nvidia", ">=1.2, <2").unwrap();
    let json = serde_json::to_value(config.entries()).unwrap();
    let find = |key: &str| {
        json.as_array().unwrap().iter().find(|entry| entry["key"] == key).unwrap().clone()
    };
    let timeout = find("engine.op_timeout");
    assert_eq!(timeout["value"], "10min");
    assert_eq!(timeout["default"], "10min");
    assert_eq!(timeout["provenance"]["source"], "default");
    assert_eq!(timeout["environment"], "ICCL_OP_TIMEOUT");
    assert_eq!(timeout["agreed"], false);
    let require = find("plugins.require.nvidia");
    assert_eq!(require["value"], ">=1.2, <2");
    assert_eq!(require["provenance"]["source"], "api");
}

#[test]
fn the_reference_in_docs_is_the_generated_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == reference_markdown(),
        "docs/configuration.md is stale; run: \
         cargo run -p iccl-runtime --example configuration_reference > docs/configuration.md"
    );
}

#[test]
fn every_example_of_the_reference_loads_and_means_the_same_as_in_the_table() {
    let page = reference_markdown();
    let examples: Vec<&str> =
        page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let in_files = SETTINGS.iter().filter(|setting| setting.reach.file);
    assert_eq!(examples.len(), in_files.clone().count());
    for (setting, example) in in_files.zip(examples) {
        let spelled_out = load_file(example).unwrap();
        let inline = load_file(&format!("{} = {}", setting.key, setting.example)).unwrap();
        assert_eq!(setting.value(&spelled_out), setting.value(&inline), "{example}");
    }
}

/// Text that looks enough like a configuration to get past the first line of defence.
fn plausible_text() -> impl Strategy<Value = String> {
    let junk = [
        "[",
        "]",
        "[[plan.rule]]",
        "{",
        "}",
        "=",
        "\n",
        "\r\n",
        ".",
        ",",
        "\"",
        "-1",
        "1e9",
        "0x10",
        "true",
        "\u{feff}",
        "é",
        "[plugin.x]",
        "1979-05-27",
        "'",
        "#",
        " ",
        "[plugin]\n",
        ";",
    ];
    let fragments: Vec<&str> =
        SETTINGS.iter().flat_map(|setting| [setting.key, setting.example]).chain(junk).collect();
    let fragments = prop::collection::vec(prop::sample::select(fragments), 0..24);
    fragments.prop_map(|all| all.concat())
}

/// Nothing panics, and every line of an error names its source.
fn loads_or_explains(sources: &Sources) {
    let Err(error) = Config::load(sources) else { return };
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let mut lines: Vec<&str> = error.message().lines().collect();
    if lines.len() > 1 {
        assert!(lines[0].ends_with("problems in the configuration:"), "{error}");
        lines.remove(0);
    }
    for line in lines {
        let named = ["iccl.toml:", "environment variable ", "API: ", "… and "];
        assert!(named.iter().any(|source| line.contains(source)), "{line}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_file_loads_or_is_explained(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let folder = folder(None);
        std::fs::write(folder.path().join("iccl.toml"), bytes).unwrap();
        loads_or_explains(&sources(&folder));
    }

    #[test]
    fn any_plausible_file_loads_or_is_explained(text in plausible_text()) {
        let folder = folder(Some(&text));
        loads_or_explains(&sources(&folder));
    }

    #[test]
    fn any_value_loads_or_is_explained(
        index in 0..SETTINGS.len(),
        text in prop_oneof![any::<String>(), "(?s).{0,200}", plausible_text()],
    ) {
        let setting = &SETTINGS[index];
        let mut from = Sources::default().with(setting.key, &text);
        loads_or_explains(&from);
        if let Some(variable) = setting.reach.environment {
            from.api.clear();
            from.environment = [(variable, text)].into_iter().collect();
            loads_or_explains(&from);
        }
    }

    #[test]
    fn any_api_key_is_taken_or_explained(key in prop_oneof![any::<String>(), plausible_text()], value in any::<String>()) {
        loads_or_explains(&Sources::default().with(key, value));
    }
}

#[test]
fn text_of_the_api_comes_over_file_and_environment_and_single_values_over_it() {
    let folder = folder(Some("[engine]\nop_timeout = \"1s\"\nspin = \"1us\"\n"));
    let mut sources = sources(&folder)
        .with_text("the text", "[engine]\nop_timeout = \"3s\"\nstall_warn = \"4s\"\n")
        .with("engine.stall_warn", "5s");
    sources.environment = [("ICCL_OP_TIMEOUT", "2s")].into_iter().collect();
    let config = Config::load(&sources).unwrap();
    let engine = &config.engine;
    let seconds = |time: std::time::Duration| time.as_secs();
    assert_eq!((seconds(engine.op_timeout), seconds(engine.stall_warn)), (3, 5));
    assert_eq!(engine.spin.as_micros(), 1);
    let from = config.provenance("engine.op_timeout");
    assert_eq!(from, Provenance::File { path: "the text".into(), line: 2, column: 14 });
    let wrong = Config::load(&sources.with_text("the text", "[engine]\nop_timeuot = 1\n"));
    let said = wrong.unwrap_err().to_string();
    assert!(said.contains("the text:2:1") && said.contains("op_timeout"), "{said}");
}
