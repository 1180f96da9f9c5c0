//! Clusters out of files: planned without devices, and played on this machine with simulated cards.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use iccl_tests::cluster::{file, iccl, sdks};
use iccl_tests::command::{Ran, end_of, run_to_end};
use rustix::process::{Pid, Signal, kill_process};

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// A call of `iccl` that plays a cluster of NVIDIA's cards.
fn played(command: &str, cluster: &Path, arguments: &[&str]) -> Command {
    let sdks = sdks(&["nvidia"]);
    let mut all = vec![command];
    // What follows `--` is the ranks' command.
    all.extend(["--cluster", text(cluster), "--sim-sdk", text(&sdks)]);
    all.extend(arguments);
    iccl(&all)
}

fn perf(cluster: &Path, collective: &str, arguments: &[&str]) -> Ran {
    let mut all = vec![collective, "-b", "1K", "-e", "64K", "-f", "64", "--iters", "2"];
    all.extend(arguments);
    run_to_end(&mut played("perf", cluster, &all))
}

/// Compares with a golden file; `UPDATE_GOLDEN=1` writes it anew.
fn golden(name: &str, actual: &str) {
    let path = file(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, actual).expect("written");
    }
    let expected = std::fs::read_to_string(&path).expect("a golden file");
    assert_eq!(actual, expected, "{} has changed", path.display());
}

/// What follows in the table of cards where the library has something that a communicator would not ask it for.
const UNUSED: &str = "(the library's own is not used)";

#[test]
fn a_cluster_is_planned_without_its_devices() {
    let cluster = file("four-vendors.toml");
    let ran = run_to_end(&mut iccl(&["plan", "--cluster", text(&cluster)]));
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    // The hash covers versions and settings, which are not what is looked at here.
    let (head, rest) = ran.out.split_once("\nplan ").expect("a line with the hash");
    let (hash, rest) = rest.split_once(' ').expect("more of it");
    assert_eq!(hash.len(), 16, "{hash}");
    // Nor are the costs, which come from the plugins.
    let (rest, links) = rest.split_once("\n\nlink ").expect("a table of links");
    assert!(links.contains("not-same-host"), "{links}");
    golden("four-vendors.plan.txt", &format!("{head}\nplan HASH {rest}\n"));
}

#[test]
fn a_clusters_plan_is_json_too_and_the_same_on_every_call() {
    let plan = |name: &str| {
        let ran = run_to_end(&mut iccl(&["plan", "--json", "--cluster", text(&file(name))]));
        assert_eq!(ran.code(), Some(0), "{}", ran.all());
        ran.json()
    };
    let uneven = plan("uneven.toml");
    assert_eq!(uneven["hosts"][2]["name"], "none");
    assert_eq!(uneven["hosts"][2]["ranks"], serde_json::json!([4, 5]));
    assert_eq!((&uneven["tiers"]["shm"], &uneven["tiers"]["tcp"]), (&4.into(), &11.into()));
    assert_eq!(uneven, plan("uneven.toml"));
    let interleaved = plan("interleaved.toml");
    assert_eq!(interleaved["hosts"][1]["ranks"], serde_json::json!([1, 3, 4]));
    // What the slower NIC carries is what the link carries; of two NICs the faster is used.
    let slow = plan("two-nodes-nvidia.toml");
    assert_eq!(
        (&slow["matrix"][0][2], &slow["links"][1]["bytes_per_us"]),
        (&"tcp".into(), &125.into())
    );
    let between = |plan: &serde_json::Value, src: u32, dst: u32| {
        let links = plan["links"].as_array().expect("links").clone();
        let link = links.into_iter().find(|link| link["src"] == src && link["dst"] == dst);
        link.expect("a link")["bytes_per_us"].clone()
    };
    assert_eq!(between(&uneven, 0, 4), 1250);
}

/// A table of `iccl plan --collectives`.
fn collectives(cluster: &Path, arguments: &[&str]) -> serde_json::Value {
    let mut all = vec!["plan", "--collectives", "--json", "--cluster", text(cluster)];
    all.extend(arguments);
    let ran = run_to_end(&mut iccl(&all));
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    ran.json()
}

/// The way of a combination at the `at`-th size; it is in one row.
fn way<'a>(
    table: &'a serde_json::Value,
    collective: &str,
    dtype: &str,
    op: &str,
    at: usize,
) -> &'a serde_json::Value {
    let has = |row: &serde_json::Value, key: &str, word: &str| {
        let list = row[key].as_array().expect("a list");
        list.iter().any(|one| one == word) || (word.is_empty() && list.is_empty())
    };
    let mut rows = table["rows"].as_array().expect("rows").iter().filter(|row| {
        has(row, "collectives", collective) && has(row, "dtypes", dtype) && has(row, "ops", op)
    });
    let row = rows.next().unwrap_or_else(|| panic!("{collective} {dtype} {op}"));
    assert!(rows.next().is_none(), "{collective} {dtype} {op} is in several rows");
    &row["at"][at]
}

/// One maker: who does what at which size, why the library does not, and how long it should take. The
/// table itself is kept but for the times, which come from the transports' plugins.
#[test]
fn who_does_which_collective_is_shown_for_cards_that_are_not_here() {
    let cluster = file("two-nodes-nvidia.toml");
    let shown = run_to_end(&mut iccl(&["plan", "--collectives", "--cluster", text(&cluster)]));
    assert_eq!(shown.code(), Some(0), "{}", shown.all());
    let mut lines = shown.out.lines();
    lines.next();
    // Every line has its columns where the heads are.
    let heads = lines.next().expect("heads");
    for head in ["types", "operations", "8 B", "64 KiB", "16 MiB", "who does it", "why no native"] {
        let column = heads.find(head).unwrap_or_else(|| panic!("{head} in {heads}"));
        for line in shown.out.lines().skip(2).filter(|line| line.len() > column) {
            assert_eq!(line.as_bytes()[column - 1], b' ', "{head}: {line}");
        }
    }
    let no_times = |line: &str| {
        let words = line.split_whitespace();
        let is_time =
            |word: &str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
        let kept: Vec<&str> = words.map(|word| if is_time(word) { "TIME" } else { word }).collect();
        kept.join(" ")
    };
    let kept: Vec<String> = shown.out.lines().map(no_times).collect();
    golden("two-nodes-nvidia.collectives.txt", &(kept.join("\n") + "\n"));

    let table = collectives(&cluster, &[]);
    assert_eq!(
        (&table["schema"], &table["ranks"], &table["staged"]),
        (&1.into(), &4.into(), &true.into())
    );
    assert_eq!(table["sizes_bytes"], serde_json::json!([8, 65536, 16 << 20]));
    let sum = way(&table, "all_reduce", "f32", "sum", 2);
    assert_eq!(sum["algorithm"], "native");
    assert_eq!(sum["native"][0]["library"], "NCCL");
    assert_eq!((&sum["not_native"], &sum["iccl"]), (&().into(), &serde_json::json!([])));
    let small = way(&table, "all_reduce", "f32", "sum", 0);
    assert!(
        small["not_native"].as_str().is_some_and(|why| why.contains("native: slower")),
        "{small}"
    );
    assert!(small["native_ns"][0].as_u64() > small["expected_ns"][1].as_u64(), "{small}");
    let max = way(&table, "all_reduce", "f32", "max", 2);
    assert!(
        max["not_native"].as_str().is_some_and(|why| why.contains("NCCL does not offer it")),
        "{max}"
    );
    assert_eq!(max["iccl"], serde_json::json!(["moves", "combines"]));
    // What NCCL has no type for moves as bytes; what it cannot multiply is multiplied before.
    let moved = way(&table, "all_gather", "i16", "", 2);
    assert_eq!(moved["algorithm"], "native", "{moved}");
    let scaled = way(&table, "all_reduce", "f32", "premulsum", 2);
    assert_eq!(
        (&scaled["native"][0]["op"], &scaled["iccl"]),
        (&"sum".into(), &serde_json::json!(["multiplies"]))
    );

    // It is the runtime's own choice, so settings change it.
    let forced = collectives(&cluster, &["--set", "algorithm.all_reduce=ring"]);
    assert_eq!(way(&forced, "all_reduce", "f32", "sum", 2)["algorithm"], "ring");
    let refused = way(&forced, "all_reduce", "f32", "avg", 2);
    assert!(refused["refused"].as_str().is_some_and(|why| why.contains("ring")), "{refused}");
    let without = collectives(&cluster, &["--set", "device.native=false"]);
    assert_ne!(way(&without, "all_reduce", "f32", "sum", 2)["algorithm"], "native");
}

/// Several makers, and a library that the file names.
#[test]
fn islands_of_cards_that_are_not_here_are_planned() {
    let plan = |cluster: &Path| {
        let ran = run_to_end(&mut iccl(&["plan", "--json", "--cluster", text(cluster)]));
        assert_eq!(ran.code(), Some(0), "{}", ran.all());
        let islands = ran.json()["islands"].clone();
        let of = |island: &serde_json::Value| {
            format!("{} {} {}", island["library"], island["ranks"], island["used"])
        };
        islands.as_array().expect("islands").iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(
        plan(&file("four-vendors.toml")),
        [
            "\"NCCL\" [0,1] true",
            "\"HCCL, A2 with CANN 9\" [2,3] true",
            "\"CNCL\" [4,5] true",
            "\"BKCL\" [6,7] true"
        ]
    );
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = folder.path().join("c.toml");
    let write = |library: &str| {
        let node = |name: &str, library: &str| {
            format!("[[node]]\nname = \"{name}\"\nvendor = \"ascend\"\ncards = 2\n{library}")
        };
        let text = node("a", "") + &node("b", &format!("library = \"{library}\"\n"));
        std::fs::write(&cluster, text).expect("written");
    };
    write("HCCL, 310P with CANN 9");
    assert_eq!(
        plan(&cluster),
        ["\"HCCL, A2 with CANN 9\" [0,1] true", "\"HCCL, 310P with CANN 9\" [2,3] true"]
    );
    let table = collectives(&cluster, &[]);
    let bf16 = way(&table, "all_reduce", "bf16", "sum", 2);
    assert!(bf16["not_native"].as_str().is_some_and(|why| why.contains("2 islands")), "{bf16}");
    write("none");
    assert_eq!(plan(&cluster), ["\"HCCL, A2 with CANN 9\" [0,1] true"]);
    write("HCCL, A2 with CANN 7");
    let ran = run_to_end(&mut iccl(&["plan", "--cluster", text(&cluster)]));
    assert_eq!(ran.code(), Some(2), "{}", ran.all());
    assert!(ran.err.contains("c.toml:9:11: node.library"), "{}", ran.err);
    assert!(ran.err.contains("did you mean \"HCCL, A2 with CANN"), "{}", ran.err);
}

#[test]
fn a_wrong_cluster_file_is_told_by_line_with_what_was_meant() {
    let folder = tempfile::tempdir().expect("a folder");
    let wrong = folder.path().join("wrong.toml");
    std::fs::write(&wrong, "[[node]]\nname = \"a\"\nvendor = \"nvida\"\ncard = 2\n")
        .expect("written");
    for command in [&["plan"][..], &["perf", "all_reduce"], &["run"]] {
        let mut all = command.to_vec();
        all.extend(["--cluster", text(&wrong)]);
        if command == ["run"] {
            all.extend(["--", "true"]);
        }
        let ran = run_to_end(&mut iccl(&all));
        assert_eq!(ran.code(), Some(2), "{}", ran.all());
        let lines: Vec<&str> = ran.err.lines().collect();
        let place = |line: usize, column: usize| format!("{}:{line}:{column}: ", text(&wrong));
        assert_eq!(lines[0], "error: 2 problems in the cluster file:");
        let key =
            format!("{}unknown key \"card\" in [[node]]; did you mean \"cards\"?", place(4, 1));
        assert_eq!(lines[1], key);
        assert!(
            lines[2].starts_with(&place(3, 10)) && lines[2].ends_with("did you mean \"nvidia\"?")
        );
    }
    let ran = run_to_end(&mut iccl(&["plan", "--cluster", "/no/such.toml"]));
    assert_eq!(ran.code(), Some(2), "{}", ran.all());
    assert!(ran.err.contains("/no/such.toml cannot be read"), "{}", ran.err);
    let ran = run_to_end(&mut iccl(&["plan", "-n", "2", "--cluster", text(&wrong)]));
    assert_eq!(ran.code(), Some(2), "{}", ran.all());
}

#[test]
fn simulated_cards_are_there_only_for_a_cluster() {
    let devices = run_to_end(&mut iccl(&["devices", "--json"]));
    assert!(
        devices.out.contains("\"host\"") && !devices.out.contains("imulated"),
        "{}",
        devices.all()
    );
    let nowhere = tempfile::tempdir().expect("a folder");
    let cluster = file("two-nodes-nvidia.toml");
    let folder = text(nowhere.path());
    let ran = run_to_end(&mut iccl(&[
        "perf",
        "all_reduce",
        "--cluster",
        text(&cluster),
        "--sim-sdk",
        folder,
    ]));
    assert_eq!(ran.code(), Some(2), "{}", ran.all());
    assert!(ran.err.contains(&format!("there is no simulated SDK {folder}/nvidia")), "{}", ran.err);
    let without = run_to_end(&mut iccl(&["perf", "all_reduce", "--sim-sdk", folder]));
    assert_eq!(without.code(), Some(2), "{}", without.all());
}

#[test]
fn each_rank_has_its_nodes_host_id_and_its_makers_card() {
    let script =
        "echo $ICCL_RANK $ICCL_HOST_ID $ICCL_LOCAL_RANK/$ICCL_LOCAL_WORLD_SIZE $ICCL_DEVICE";
    let said = |name: &str| {
        let arguments = ["--no-prefix", "--", "sh", "-c", script];
        let ran = run_to_end(&mut played("run", &file(name), &arguments));
        assert_eq!(ran.code(), Some(0), "{}", ran.all());
        let lines: BTreeMap<String, String> = ran
            .out
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(rank, rest)| (rank.to_owned(), rest.to_owned()))
            .collect();
        lines.into_values().collect::<Vec<_>>().join(", ")
    };
    assert_eq!(
        said("interleaved.toml"),
        "a 0/2 nvidia, b 0/3 host, a 1/2 nvidia, b 1/3 host, b 2/3 host"
    );
    assert_eq!(said("one-card.toml"), "c 0/1 host, a 0/1 nvidia, b 0/1 nvidia");
}

#[test]
fn a_small_cluster_computes_what_it_should() {
    let ran = perf(&file("two-nodes-nvidia.toml"), "all_reduce", &["--json"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    let rows = ran.json();
    assert_eq!(rows.as_array().map(Vec::len), Some(2));
    for row in rows.as_array().expect("rows") {
        assert_eq!(row["ranks"], 4);
        assert_eq!(
            (&row["out_of_place"]["wrong"], &row["in_place"]["wrong"]),
            (&0.into(), &0.into())
        );
    }
    let ran = perf(&file("uneven.toml"), "sendrecv", &[]);
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    assert!(ran.out.contains("device nvidia:0 (NVIDIA Simulated)"), "{}", ran.out);
    assert!(ran.out.contains("6 ranks on 3 hosts: shm 4, tcp 11"), "{}", ran.out);
}

#[test]
fn a_cluster_is_not_started_by_ranks_of_a_launcher() {
    let path = iccl_tests::command::command_path().to_str().expect("a path");
    let cluster = file("two-nodes-nvidia.toml");
    for collective in ["all_reduce", "matrix"] {
        let perf = [path, "perf", collective, "--cluster", text(&cluster)];
        let mut arguments = vec!["run", "-n", "2", "--"];
        arguments.extend(perf);
        let ran = run_to_end(&mut iccl(&arguments));
        assert_eq!(ran.code(), Some(2), "{}", ran.all());
        assert!(ran.err.contains("--cluster starts the ranks itself"), "{}", ran.err);
    }
}

/// Whether this machine lets the test make namespaces; says why not.
fn may_make_networks() -> bool {
    let tools = ["unshare", "ip", "tc"];
    let lacking = tools.iter().find(|tool| {
        let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
        !found.is_ok_and(|output| output.status.success())
    });
    let mut attempt = Command::new("unshare");
    attempt.args(["--net", "--", "sh", "-c"]);
    attempt.arg("ip link add a type veth peer name b && tc qdisc add dev a root tbf rate 1mbit burst 9000 latency 1ms");
    let why = match lacking {
        Some(tool) => format!("there is no {tool}"),
        None if iccl_tests::effective_user() != 0 => "this is not root".to_owned(),
        None => match attempt.output() {
            Ok(output) if output.status.success() => return true,
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => error.to_string(),
        },
    };
    eprintln!("skipped, since this machine does not let us make network namespaces: {why}");
    false
}

/// The processes that hold the namespaces of an `iccl`.
fn holders_of(command: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{command}/task/{command}/children"));
    let children = children.unwrap_or_default();
    let is_holder = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("node-of-run")
    };
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(is_holder).collect()
}

#[test]
fn nodes_have_networks_of_their_own_of_the_files_speed() {
    if !may_make_networks() {
        return;
    }
    let cluster = file("two-nodes-nvidia.toml");
    let script = "cat /proc/self/net/dev | grep -c eth0; tc qdisc show dev eth0";
    let arguments = ["--netns", "--", "sh", "-c", script];
    let ran = run_to_end(&mut played("run", &cluster, &arguments));
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    assert_eq!(ran.out.matches("rate 1Gbit").count(), 4, "{}", ran.out);
    // 16 MiB between two nodes of two cards need at least 0.12 s at 1 Gbit/s, whatever the machine.
    let sizes = ["all_reduce", "-b", "16M", "-e", "16M", "--iters", "1", "-w", "0", "--json"];
    let mut arguments = sizes.to_vec();
    arguments.push("--netns");
    let ran = run_to_end(&mut played("perf", &cluster, &arguments));
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    let row = &ran.json()[0];
    assert_eq!(row["out_of_place"]["wrong"], 0);
    let time_us = row["out_of_place"]["time_us"].as_f64().expect("a time");
    assert!(time_us > 120_000.0, "{time_us} us is faster than the links");
}

#[test]
fn networks_are_gone_when_the_command_is_interrupted_or_killed() {
    if !may_make_networks() {
        return;
    }
    for signal in [Signal::INT, Signal::KILL] {
        let arguments = ["--netns", "--", "sh", "-c", "echo here; exec sleep 100"];
        let mut command = played("run", &file("two-nodes-nvidia.toml"), &arguments);
        let child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("iccl starts");
        let give_up = Instant::now() + Duration::from_secs(60);
        let holders = loop {
            let holders = holders_of(child.id());
            // Two nodes and the switch.
            if holders.len() == 3 {
                break holders;
            }
            assert!(Instant::now() < give_up, "only {holders:?} hold namespaces");
            std::thread::sleep(Duration::from_millis(5));
        };
        let pid = Pid::from_raw(child.id().cast_signed()).expect("a process id");
        kill_process(pid, signal).expect("the command is there");
        end_of(child, "iccl run");
        let is_there = |pid: &u32| Path::new(&format!("/proc/{pid}/ns/net")).exists();
        while holders.iter().any(is_there) {
            assert!(Instant::now() < give_up, "holders are left");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn networks_without_rights_or_nics_are_refused() {
    let ran = run_to_end(&mut played("run", &file("one-card.toml"), &["--netns", "--", "true"]));
    assert_eq!(ran.code(), Some(2), "{}", ran.all());
    if iccl_tests::effective_user() != 0 {
        assert!(ran.err.contains("only root may make network namespaces"), "{}", ran.err);
        return;
    }
    assert!(ran.err.contains("node a has no nics"), "{}", ran.err);
    let nowhere = tempfile::tempdir().expect("a folder");
    let mut command = played("run", &file("uneven.toml"), &["--netns", "--", "true"]);
    let ran = run_to_end(command.env("PATH", nowhere.path()));
    assert_eq!(ran.code(), Some(2), "{}", ran.all());
    assert!(ran.err.contains("--netns needs unshare, ip, tc"), "{}", ran.err);
}

/// What `iccl` says of NVIDIA's simulated cards.
fn on_cards(arguments: &[&str]) -> Ran {
    let sdk = sdks(&["nvidia"]).join("nvidia");
    let setting = format!("nvidia.library_dir={}", text(&sdk));
    run_to_end(iccl(arguments).env("ICCL_PLUGIN_SETTINGS", setting))
}

#[test]
fn capabilities_are_shown_with_what_fills_the_gaps() {
    let ran = on_cards(&["devices", "--capabilities", "--json"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    let answer = ran.json();
    let all = answer["capabilities"].as_array().expect("plugins");
    let of = |plugin: &str| all.iter().find(|one| one["plugin"] == plugin).expect("a plugin");
    let nvidia = of("nvidia");
    assert!(nvidia["native_library"].as_str().expect("NCCL").starts_with("NCCL 2."), "{nvidia}");
    assert_eq!(nvidia["devices"], 4);
    let done_by = |collective: &str, dtype: &str, op: Option<&str>| {
        let rows = nvidia["combinations"].as_array().expect("rows");
        let has = |row: &serde_json::Value, key: &str, word: &str| {
            row[key].as_array().expect("a list").iter().any(|one| one == word)
        };
        let found = rows.iter().filter(|row| {
            has(row, "collectives", collective)
                && has(row, "dtypes", dtype)
                && op.is_none_or(|op| has(row, "ops", op))
        });
        let by: Vec<&str> = found.map(|row| row["by"].as_str().expect("a text")).collect();
        assert_eq!(by.len(), 1, "{collective} {dtype} {op:?}: {by:?}");
        by[0].to_owned()
    };
    assert_eq!(done_by("all_reduce", "f32", Some("sum")), "native library");
    assert_eq!(done_by("all_gather", "i16", None), "native library");
    assert!(done_by("all_reduce", "f32", Some("max")).contains("the host's kernels reduce"));
    assert!(done_by("barrier", "f32", None).contains("iccl"));
    // What the library has, and a communicator of such cards would not ask it for.
    assert!(done_by("all_reduce", "bf16", Some("sum")).ends_with(UNUSED));
    assert!(done_by("all_to_all_v", "f32", None).ends_with(UNUSED));
    assert_eq!(done_by("all_gather_v", "f32", None), "native library");
    assert_eq!(of("host")["nic_regions"], serde_json::json!(["address"]));
    let ran = on_cards(&["devices", "--capabilities"]);
    assert!(ran.out.contains("\nnvidia ") && ran.out.contains("done by"), "{}", ran.out);
    // As in the documentation: what it lists as native is native here.
    let document = std::fs::read_to_string(iccl_tests::workspace().join("docs/vendors.md"));
    let document = document.expect("docs/vendors.md");
    let (_, table) = document.split_once("<!-- nvidia capabilities").expect("a table");
    let (table, _) = table.split_once("<!-- end -->").expect("its end");
    for row in table.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let columns: Vec<Vec<&str>> = row
            .trim_matches('|')
            .split('|')
            .map(|cell| cell.split(',').map(str::trim).filter(|word| !word.is_empty()).collect())
            .collect();
        for (collective, dtype) in
            columns[0].iter().flat_map(|one| columns[1].iter().map(move |d| (one, d)))
        {
            let ops: Vec<Option<&str>> = match columns[2].as_slice() {
                [] => vec![None],
                ops => ops.iter().copied().map(Some).collect(),
            };
            for op in ops {
                let by = done_by(collective, dtype, op);
                assert!(
                    by == "native library" || by.ends_with(UNUSED),
                    "{collective} {dtype} {by}"
                );
            }
        }
    }
}

#[test]
fn capabilities_follow_the_settings_of_native_libraries() {
    let bf16_sum = |setting: &str| {
        let ran = on_cards(&["devices", "--capabilities", "--set", setting]);
        assert_eq!(ran.code(), Some(0), "{}", ran.all());
        let (_, nvidia) = ran.out.split_once("\nnvidia ").expect("the cards");
        nvidia.lines().filter(|line| line.ends_with(" native library")).count()
    };
    let usual = bf16_sum("device.native=true");
    assert!(usual > 0);
    assert_eq!(bf16_sum("device.native=false"), 0);
    assert_eq!(bf16_sum("engine.deterministic=true"), 1, "what is only moved");
}

#[test]
fn a_library_that_is_not_there_is_not_said_to_be() {
    let all = sdks(&["nvidia"]).join("nvidia");
    let without = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(&all).expect("the SDK").filter_map(Result::ok) {
        if !entry.file_name().to_string_lossy().starts_with("libnccl") {
            std::fs::copy(entry.path(), without.path().join(entry.file_name())).expect("copied");
        }
    }
    let said = |arguments: &[&str]| {
        let setting = format!("nvidia.library_dir={}", text(without.path()));
        let ran = run_to_end(iccl(arguments).env("ICCL_PLUGIN_SETTINGS", setting));
        assert_eq!(ran.code(), Some(0), "{}", ran.all());
        ran.json()
    };
    let devices = said(&["devices", "--json"]);
    let card = devices["devices"].as_array().and_then(|all| all.last()).expect("a card");
    assert_eq!((&card["plugin"], &card["native_library"]), (&"nvidia".into(), &().into()));
    let doctor = said(&["doctor", "--json"]);
    let nccl = |answer: &serde_json::Value, key: &str| {
        let mut checks = answer[key].as_array().expect("checks").iter();
        checks.find(|check| check["name"] == "NCCL").expect("NCCL")["result"].clone()
    };
    assert_eq!(nccl(&doctor, "checks"), "warn");
    assert_eq!(nccl(&said(&["doctor", "--vendor", "nvidia", "--json"]), "libraries"), "warn");
    let driver = on_cards(&["doctor", "--vendor", "nvidia", "--json"]).json();
    assert_eq!(nccl(&driver, "libraries"), "ok", "found where the setting says");
}

#[test]
fn the_doctor_writes_a_report_on_a_makers_cards() {
    let ran = on_cards(&["doctor", "--vendor", "nvidia"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.all());
    for part in [
        "# nvidia: send all of this back",
        "plugin.nvidia.library_dir",
        "NVIDIA Simulated",
        "done by",
    ] {
        assert!(ran.out.contains(part), "{part} in\n{}", ran.out);
    }
    assert!(
        ran.out.lines().filter(|line| line.contains("not confirmed")).count() >= 1,
        "{}",
        ran.out
    );
    let without = run_to_end(&mut iccl(&["doctor", "--vendor", "nvidia", "--json"]));
    assert_eq!(without.code(), Some(0), "{}", without.all());
    let answer = without.json();
    assert_eq!(
        (&answer["vendor"], &answer["capabilities"]),
        (&"nvidia".into(), &serde_json::Value::Null)
    );
    assert_ne!(answer["plugin"]["state"], "active", "{answer}");
    let ran = run_to_end(&mut iccl(&["doctor", "--vendor", "nvida"]));
    assert_eq!(ran.code(), Some(2), "{}", ran.all());
    assert!(ran.err.contains("did you mean nvidia?"), "{}", ran.err);
}
