//! What a user is told when a configuration is wrong: where, what, and what was meant.

use std::path::Path;

use iccl_runtime::ErrorKind;
use iccl_runtime::config::{Config, Environment, RuleAction, Secret, Selector, Sources};

/// What loading `text` as `iccl.toml` says; the folder's name is cut off.
fn load(text: impl AsRef<[u8]>) -> Result<Config, Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("iccl.toml"), text).unwrap();
    let sources = Sources { working_directory: folder.path().to_owned(), ..Sources::default() };
    lines(&sources, folder.path())
}

fn load_environment<const N: usize>(variables: [(&str, &str); N]) -> Result<Config, Vec<String>> {
    let environment = variables.into_iter().collect();
    lines(&Sources { environment, ..Sources::default() }, Path::new("/nowhere"))
}

fn lines(sources: &Sources, folder: &Path) -> Result<Config, Vec<String>> {
    Config::load(sources).map_err(|error| {
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        let text = error.to_string().replace(&format!("{}/", folder.display()), "");
        text.lines().map(str::to_owned).collect()
    })
}

/// The one line that `text` is refused with.
#[track_caller]
fn refusal(text: impl AsRef<[u8]>) -> String {
    let lines = load(text).expect_err("refused");
    assert_eq!(lines.len(), 1, "{lines:#?}");
    lines.concat()
}

#[test]
fn b096_unknown_key_names_the_nearest() {
    assert_eq!(
        refusal("[transport]\nenabld = [\"tcp\"]\n"),
        "iccl.toml:2:1: unknown key \"enabld\" in [transport]; did you mean \"enabled\"?"
    );
    assert_eq!(
        refusal("[engine]\n\n  Op-Timeout = \"1s\""),
        "iccl.toml:3:3: unknown key \"Op-Timeout\" in [engine]; did you mean \"op_timeout\"?"
    );
    assert_eq!(
        refusal("[numerics]\ncolour = 1"),
        "iccl.toml:2:1: unknown key \"colour\" in [numerics]; [numerics] has accumulate"
    );
}

#[test]
fn a_log_level_that_is_none_is_refused() {
    let load_level = |level: &str| load(format!("[log]\nlevel = \"{level}\"\n"));
    for right in
        ["off", "WARN", "info,iccl_runtime::plan=debug", "acme::driver, warn", "[span]=info"]
    {
        assert!(load_level(right).is_ok(), "{right}");
    }
    for wrong in ["loud", "wran", "info,iccl_runtime::plan=debg", "=debug", ""] {
        let lines = load_level(wrong).expect_err(wrong);
        let start =
            format!("iccl.toml:2:9: log.level = \"{wrong}\": expected a level (off, error, ");
        assert!(lines.concat().starts_with(&start), "{lines:?}");
    }
}

#[test]
fn b096_right_key_at_the_wrong_level_names_the_right_one() {
    assert_eq!(
        refusal("path = [\"/opt\"]"),
        "iccl.toml:1:1: unknown key \"path\" outside of any table; did you mean [plugins].path?"
    );
    assert_eq!(
        refusal("[plugin]\npath = [\"/opt\"]"),
        "iccl.toml:2:8: plugin: [plugin] holds tables [plugin.NAME], \"path\" is \
         none; did you mean [plugins].path?"
    );
    assert_eq!(
        refusal("[bootstrap]\nop_timeout = \"1s\""),
        "iccl.toml:2:1: unknown key \"op_timeout\" in [bootstrap]; did you mean [engine].op_timeout?"
    );
    assert_eq!(
        refusal("interface = \"eth0\""),
        "iccl.toml:1:1: unknown key \"interface\" outside of any table; did you mean \
         [transport].interface or [bootstrap].interface?"
    );
    assert_eq!(
        refusal("engine.transport.enabled = []"),
        "iccl.toml:1:8: unknown table [engine.transport]; did you mean [transport]?"
    );
}

#[test]
fn b096_unknown_table_names_the_nearest() {
    assert_eq!(
        refusal("[transports]\nenabled = []"),
        "iccl.toml:1:2: unknown table [transports]; did you mean [transport]?"
    );
    assert_eq!(
        refusal("[plugins.requires]\nnvidia = \"1\""),
        "iccl.toml:1:10: unknown table [plugins.requires]; did you mean [plugins.require]?"
    );
    assert_eq!(
        refusal("[transport.tcp]\nsockets = 4"),
        "iccl.toml:1:12: unknown table [transport.tcp]; did you mean [plugin.tcp]?"
    );
    assert_eq!(refusal("engine = 4"), "iccl.toml:1:10: [engine] is a table, not 4");
}

#[test]
fn b096_wrong_type_says_what_is_accepted() {
    assert_eq!(
        refusal("[engine]\nop_timeout = 30"),
        "iccl.toml:2:14: engine.op_timeout = 30: expected a number and a unit (ns, us, ms, s, min, \
         h), such as \"500ms\", from 1ms to 720h"
    );
    assert_eq!(
        refusal("engine.deterministic = \"true\""),
        "iccl.toml:1:24: engine.deterministic = \"true\": expected true or false"
    );
    assert_eq!(
        refusal("engine.chunk_bytes = 17"),
        "iccl.toml:1:22: engine.chunk_bytes = 17: expected a size such as 256KiB, 64M or a plain \
         number of bytes, from 4KiB to 1GiB"
    );
    assert_eq!(
        refusal("bootstrap.rank = 99999999999999999999999999999999999999999999"),
        "iccl.toml:1:18: bootstrap.rank = 99999999999999999999999999999999999999999999: expected a \
         whole number from 0 to 4294967294"
    );
    assert_eq!(
        refusal("transport.enabled = [\"tcp\", 3]"),
        "iccl.toml:1:29: transport.enabled = 3: expected a list of transport names"
    );
    assert_eq!(
        refusal("plugins.probe = \"kid\""),
        "iccl.toml:1:17: plugins.probe = \"kid\": expected \"child\" or \"inline\""
    );
    assert!(
        refusal("[plugins.require]\nnvidia = \"1.x.y.z\"").starts_with(
            "iccl.toml:2:10: plugins.require.nvidia = \"1.x.y.z\": expected a version"
        )
    );
    assert_eq!(
        refusal("plugins.sha256 = { \"libiccl_a.so\" = \"abc\" }"),
        "iccl.toml:1:37: plugins.sha256.libiccl_a.so = \"abc\": expected 64 hexadecimal digits, as \
         sha256sum prints them"
    );
}

#[test]
fn b096_duplicate_key_and_syntax_are_located() {
    assert_eq!(
        refusal("[engine]\nspin = \"1us\"\nspin = \"2us\""),
        "iccl.toml:3:1: duplicate key spin: it is set above already"
    );
    assert_eq!(
        refusal("[engine]\n[log]\n[engine]\n"),
        "iccl.toml:3:2: duplicate key engine: it is set above already"
    );
    let syntax = refusal("[engine]\nspin = \n");
    assert!(syntax.starts_with("iccl.toml:2:"), "{syntax}");
}

#[test]
fn b096_byte_order_mark_and_carriage_returns_do_not_shift_places() {
    let config = load("\u{feff}[engine]\r\nspin = \"1us\"\r\n").unwrap();
    assert_eq!(config.engine.spin.as_micros(), 1);
    let lines = load("\u{feff}colour = 1\r\n[engine]\r\n# é\r\n\"é\" = 1\r\nspim = \"1us\"\r\n");
    assert_eq!(
        lines.unwrap_err()[1..],
        [
            "iccl.toml:1:1: unknown key \"colour\" outside of any table; the tables are \
             plugins, transport, bootstrap, device, plan, engine, numerics, log, observe, algorithm, plugin",
            "iccl.toml:4:1: unknown key \"é\" in [engine]; [engine] has op_timeout, stall_warn, \
             chunk_bytes, staging_bytes, spin, deterministic",
            "iccl.toml:5:1: unknown key \"spim\" in [engine]; did you mean \"spin\"?",
        ]
    );
    let column = refusal("transport.enabled = [\"é\", 3]");
    assert!(column.starts_with("iccl.toml:1:27: "), "columns are characters: {column}");
    assert!(refusal(b"[engine]\nspin = \"\xff\"").starts_with("iccl.toml:2:9: not UTF-8"));
    assert!(load("").is_ok());
    assert!(load("\u{feff}").is_ok());
}

#[test]
fn all_sources_report_all_problems_at_once() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("iccl.toml"), "a = 1\n[log]\nformat = \"xml\"\n").unwrap();
    let sources = Sources {
        working_directory: folder.path().to_owned(),
        environment: [("ICCL_RANK", "one")].into_iter().collect(),
        ..Sources::default()
    };
    let found = lines(&sources.with("engine.spinn", "1us"), folder.path()).unwrap_err();
    assert_eq!(found[0], "4 problems in the configuration:");
    assert!(found[1].starts_with("iccl.toml:1:1: unknown key \"a\""), "{found:#?}");
    assert_eq!(found[2], "iccl.toml:3:10: log.format = \"xml\": expected \"text\" or \"json\"");
    assert_eq!(
        found[3],
        "environment variable ICCL_RANK: bootstrap.rank = \"one\": expected a whole number from 0 \
         to 4294967294"
    );
    assert_eq!(found[4], "API: unknown key \"spinn\" in [engine]; did you mean \"spin\"?");
    assert_eq!(found.len(), 5);
}

#[test]
fn a_thousand_problems_are_summed_up() {
    let lines: Vec<String> = (0..1000).map(|n| format!("key{n} = 1")).collect();
    let found = load(lines.join("\n")).unwrap_err();
    assert_eq!(found[0], "1000 problems in the configuration:");
    assert_eq!(found.last().unwrap(), "… and 975 more");
}

#[test]
fn b088_a_plugins_own_settings_are_checked_against_what_it_declares() {
    let text = "[plugin.tcp]\nsockets = 4\nsocket = 5\nzero_copy = true\n";
    let config = load(text).unwrap();
    let declared = ["sockets", "zero_copy", "socket"];
    let settings = config.plugin_settings("tcp", declared).unwrap();
    assert_eq!(settings, [("socket", "5"), ("sockets", "4"), ("zero_copy", "true")]);

    let error = config.plugin_settings("tcp", ["sockets", "zero_copy"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(
        error.message().ends_with(
            "iccl.toml:3:10: plugin tcp has no setting \"socket\"; did you mean \"sockets\"?"
        ),
        "{error}"
    );
    let error = config.plugin_settings("tcp", []).unwrap_err();
    assert_eq!(error.message().lines().count(), 3, "{error}");
    assert!(config.plugin_settings("shm", []).unwrap().is_empty());
    assert_eq!(
        config.tables_without_plugin(["shm", "tpc"]),
        ["[plugin.tcp] has no effect: there is no plugin tcp; did you mean [plugin.tpc]?"]
    );
    assert!(config.tables_without_plugin(["tcp"]).is_empty());
}

#[test]
fn tables_merge_entry_by_entry_and_lists_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[plugins]\ndisable = [\"a\", \"b\"]\n[plugins.require]\nhost = \"*\"\nnvidia = \
                \"1\"\n[plugin.tcp]\nsockets = 4\nrate = 1.5\n";
    std::fs::write(folder.path().join("iccl.toml"), text).unwrap();
    let sources = Sources {
        working_directory: folder.path().to_owned(),
        environment: [
            ("ICCL_PLUGINS_REQUIRE", "nvidia = >=1.2, <2; ascend=*"),
            ("ICCL_PLUGINS_DISABLE", "c"),
            ("ICCL_PLUGIN_SETTINGS", "tcp.sockets=8; nvidia.library_dir=/opt/nccl"),
        ]
        .into_iter()
        .collect(),
        ..Sources::default()
    };
    let config = Config::load(&sources.with("plugin.tcp.rate", "2")).unwrap();
    assert_eq!(config.plugins.disable, ["c"]);
    let require: Vec<String> =
        config.plugins.require.iter().map(|(name, version)| format!("{name} {version}")).collect();
    assert_eq!(require, ["ascend *", "host *", "nvidia >=1.2, <2"]);
    let tcp: Vec<_> = config.plugin.of("tcp").collect();
    assert_eq!(tcp, [("rate", "2"), ("sockets", "8")]);
    assert_eq!(config.plugin.plugins().collect::<Vec<_>>(), ["nvidia", "tcp"]);
    let whole = Config::load(&Sources::default().with("plugin.tcp", "sockets=8; rate=2")).unwrap();
    assert_eq!(whole.plugin.of("tcp").collect::<Vec<_>>(), tcp);
    let origin = |key: &str| config.provenance(key).to_string();
    assert_eq!(origin("plugin.tcp.rate"), "API");
    assert_eq!(origin("plugin.tcp.sockets"), "environment variable ICCL_PLUGIN_SETTINGS");
    assert!(origin("plugins.require.host").ends_with("iccl.toml:4:8"));
    assert_eq!(origin("plugins.require.nvidia"), "environment variable ICCL_PLUGINS_REQUIRE");
    assert_eq!(origin("engine.spin"), "default");
}

#[test]
fn a_pre_release_satisfies_only_a_requirement_that_names_one() {
    let config = load("plugins.require = { a = \"*\", b = \">=1.2.0-rc.1\" }").unwrap();
    let release_candidate = semver::Version::parse("1.2.0-rc.2").unwrap();
    assert!(!config.plugins.require["a"].matches(&release_candidate));
    assert!(config.plugins.require["b"].matches(&release_candidate));
}

#[test]
fn relative_paths_start_where_they_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let etc = folder.path().join("etc");
    std::fs::create_dir(&etc).unwrap();
    std::fs::write(etc.join("job.toml"), "plugins.path = [\"plugins\", \"/abs\"]\n").unwrap();
    let sources = Sources {
        working_directory: folder.path().to_owned(),
        environment: [("ICCL_CONFIG", "etc/job.toml"), ("ICCL_PLUGIN_PATH", "more::/other:")]
            .into_iter()
            .collect(),
        ..Sources::default()
    };
    let config = Config::load(&sources).unwrap();
    assert_eq!(config.file(), Some(etc.join("job.toml").as_path()));
    assert_eq!(config.plugins.path, [etc.join("plugins"), "/abs".into()]);
    assert_eq!(config.plugins.environment_path, [folder.path().join("more"), "/other".into()]);
}

#[test]
fn the_named_file_beats_the_variable_beats_the_working_directory() {
    let folder = tempfile::tempdir().unwrap();
    for (name, rank) in [("iccl.toml", 1), ("variable.toml", 2), ("named.toml", 3)] {
        std::fs::write(folder.path().join(name), format!("bootstrap.rank = {rank}")).unwrap();
    }
    let mut sources = Sources { working_directory: folder.path().to_owned(), ..Sources::default() };
    let rank = |sources: &Sources| Config::load(sources).unwrap().bootstrap.rank;
    assert_eq!(rank(&sources), Some(1));
    sources.environment = [("ICCL_CONFIG", "variable.toml")].into_iter().collect();
    assert_eq!(rank(&sources), Some(2));
    sources.file = Some("named.toml".into());
    assert_eq!(rank(&sources), Some(3));
}

#[test]
fn a_named_file_that_cannot_be_read_says_who_named_it() {
    let missing = load_environment([("ICCL_CONFIG", "/nowhere/x.toml")]).unwrap_err().concat();
    assert!(
        missing.contains("named by environment variable ICCL_CONFIG cannot be read: No such file"),
        "{missing}"
    );
    let folder = Sources::default().with_file("/");
    let is_folder = lines(&folder, Path::new("/nowhere")).unwrap_err().concat();
    assert!(is_folder.contains("directory"), "{is_folder}");
    let endless = Sources::default().with_file("/dev/zero");
    let endless = lines(&endless, Path::new("/nowhere")).unwrap_err().concat();
    assert!(endless.starts_with("/dev/zero: longer than"), "{endless}");
}

#[test]
fn unknown_variables_are_warned_of_and_empty_ones_are_not_set() {
    let config = load_environment([
        ("ICCL_FOO", "1"),
        ("ICCL_OP_TIMEOT", "1s"),
        ("ICCL_SOMETHING_ELSE", "1"),
        ("ICCL_RANK", ""),
        ("RANK", "7"),
        ("ICCL_CONFIG", ""),
    ])
    .unwrap();
    assert_eq!(
        config.warnings(),
        [
            "environment variable ICCL_FOO is not known and has no effect",
            "environment variable ICCL_OP_TIMEOT is not known and has no effect; did you mean \
             ICCL_OP_TIMEOUT?",
            "environment variable ICCL_SOMETHING_ELSE is not known and has no effect",
        ]
    );
    assert_eq!(config.bootstrap.rank, None);
    assert_eq!(config.environment().get("RANK"), Some("7"));
    assert_eq!(config.environment().get("ICCL_RANK"), None);
}

#[test]
fn b067_raised_privileges_ignore_what_chooses_code() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("iccl.toml"), "plugins.path = [\"/evil\"]").unwrap();
    let sources = Sources {
        working_directory: folder.path().to_owned(),
        environment: [("ICCL_PLUGIN_PATH", "/evil"), ("ICCL_OP_TIMEOUT", "5s")]
            .into_iter()
            .collect(),
        raised_privileges: true,
        ..Sources::default()
    };
    let config = Config::load(&sources).unwrap();
    assert!(config.plugins.path.is_empty() && config.plugins.environment_path.is_empty());
    assert_eq!(config.engine.op_timeout.as_secs(), 5);
    assert_eq!(config.warnings().len(), 2, "{:?}", config.warnings());
    assert!(config.warnings()[1].contains("ICCL_PLUGIN_PATH"));

    let mut plain = sources;
    plain.raised_privileges = false;
    assert!(!Config::load(&plain).unwrap().plugins.environment_path.is_empty());
}

#[test]
fn secrets_are_never_printed() {
    let environment: Environment =
        [("ICCL_UNIQUE_ID", "hush-hush"), ("ICCL_RANK", "x")].into_iter().collect();
    let mut sources = Sources { environment, ..Sources::default() };
    let refused = Config::load(&sources).unwrap_err();
    sources.environment = [("ICCL_UNIQUE_ID", "hush-hush")].into_iter().collect();
    let config = Config::load(&sources).unwrap();
    assert_eq!(config.bootstrap.unique_id.as_ref().map(Secret::expose), Some("hush-hush"));
    let by_api = Sources::default().with("bootstrap.unique_id", "hush").with("bootstrap.rank", "x");
    for text in [
        format!("{refused} {refused:?}"),
        format!("{config:?}"),
        format!("{:?}", sources.environment),
        serde_json::to_string(&config.entries()).unwrap(),
        format!("{:?}", config.agreed()),
        format!("{by_api:?} {}", Config::load(&by_api).unwrap_err()),
    ] {
        assert!(!text.contains("hush"), "{text}");
    }
    assert_eq!(
        refusal("bootstrap.unique_id = \"hush\""),
        "iccl.toml:1:11: bootstrap.unique_id is not read from files; set the environment variable \
         ICCL_UNIQUE_ID, or use the API"
    );
}

#[test]
fn rules_are_typed_and_keep_their_place() {
    let text = r#"
[[plan.rule]]
require = "tcp"
between = ["vendor:nvidia", "host:b"]

[[plan.rule]]
forbid = "shm"
from = "rank:0-3"

[[plan.rule]]
prefer = "staged"
"#;
    let config = load(text).unwrap();
    let [first, second, third] = config.plan.rule.as_slice() else { panic!("three rules") };
    assert_eq!((first.action, first.tier.as_str()), (RuleAction::Require, "tcp"));
    assert_eq!(first.from, Selector::Vendor("nvidia".into()));
    assert_eq!(first.to, Selector::Host("b".into()));
    assert!(first.both_directions);
    assert!(first.origin.to_string().ends_with("iccl.toml:2:1"), "{}", first.origin);
    assert_eq!((second.action, second.both_directions), (RuleAction::Forbid, false));
    assert_eq!(second.from, Selector::Ranks { first: 0, last: 3 });
    assert_eq!(second.to, Selector::Any);
    assert_eq!((third.action, third.both_directions), (RuleAction::Prefer, true));
    assert!(first.from.matches(9, "nvidia", "x") && !first.from.matches(9, "ascend", "x"));
    assert!(first.to.matches(9, "x", "b") && !first.to.matches(9, "x", "a"));
    assert!(second.from.matches(3, "x", "x") && !second.from.matches(4, "x", "x"));
    assert_eq!(second.to_string(), r#"{ forbid = "shm", from = "rank:0-3", to = "*" }"#);
}

#[test]
fn bad_rules_say_what_a_rule_is() {
    let rule = |body: &str| refusal(format!("[[plan.rule]]\n{body}"));
    assert_eq!(
        rule("require = \"warp\""),
        "iccl.toml:2:11: plan.rule = \"warp\": expected \"self\", \"ipc\", \"shm\", \"direct\", \
         \"staged\" or \"tcp\""
    );
    let exactly_one = "iccl.toml:1:1: plan.rule: a rule says exactly one of \"require\", \
                       \"prefer\" and \"forbid\"";
    assert_eq!(rule("require = \"shm\"\nforbid = \"tcp\""), exactly_one);
    assert_eq!(rule("from = \"*\""), exactly_one);
    assert_eq!(
        rule("forbid = \"shm\"\nbetwen = [\"*\", \"*\"]"),
        "iccl.toml:3:1: plan.rule: unknown key \"betwen\"; did you mean \"between\"?"
    );
    assert_eq!(
        rule("forbid = \"shm\"\nbetween = [\"*\", \"nvidia\"]"),
        "iccl.toml:3:17: plan.rule = \"nvidia\": expected \"*\", \"vendor:NAME\", \"host:NAME\", \
         \"rank:3\" or \"rank:0-3\""
    );
    assert!(rule("forbid = \"shm\"\nfrom = \"rank:3-1\"").contains("iccl.toml:3:8: "));
    assert!(rule("forbid = \"shm\"\nbetween = [\"*\"]").contains("a list of two"));
    assert!(rule("forbid = \"shm\"\nbetween = [\"*\", \"*\"]\nto = \"*\"").contains("or \"from\""));
    let two = load("[[plan.rule]]\nforbid = \"x\"\n[[plan.rule]]\nforbid = \"y\"\n").unwrap_err();
    assert_eq!(two.len(), 3, "both rules are reported: {two:#?}");
    assert!(load_environment([("ICCL_PLAN_RULE", "shm")]).is_err());
}

#[test]
fn algorithms_by_size() {
    let config = load(
        "[algorithm]\nall_reduce = [{ max_bytes = \"64KiB\", use = \"direct\" }, { use = \"owner\" \
         }]\nbroadcast = \"tree\"\nreduce = [{ max_bytes = 10, use = \"flat\" }]",
    )
    .unwrap();
    let all_reduce = &config.algorithm["all_reduce"];
    assert_eq!(all_reduce.for_bytes(64 << 10), Some("direct"));
    assert_eq!(all_reduce.for_bytes((64 << 10) + 1), Some("owner"));
    assert_eq!(config.algorithm["broadcast"].for_bytes(1), Some("tree"));
    assert_eq!(config.algorithm["reduce"].for_bytes(11), None);
    assert_eq!(
        refusal("[algorithm]\nall_redcue = \"ring\""),
        "iccl.toml:2:1: algorithm.all_redcue: unknown name \"all_redcue\"; did you mean \
         \"all_reduce\"?"
    );
    for useless in [
        "[{ use = \"a\" }, { use = \"b\" }]",
        "[{ max_bytes = 8, use = \"a\" }, { max_bytes = 8, use = \"b\" }]",
        "[]",
    ] {
        let line = refusal(format!("algorithm.all_reduce = {useless}"));
        assert!(line.contains("ranges must rise by max_bytes"), "{line}");
    }
    assert!(refusal("algorithm.all_reduce = [{ max_bytes = 8 }]").contains("lacks `use"));
    assert!(refusal("algorithm.all_reduce = [{ usee = \"a\" }]").contains("did you mean \"use\"?"));
}

#[test]
fn sources_of_this_process_see_its_environment() {
    let sources = Sources::of_process();
    assert!(sources.environment.get("PATH").is_some_and(|path| !path.is_empty()));
    assert_eq!(sources.working_directory, std::env::current_dir().unwrap());
    assert!(!sources.raised_privileges);
}
