//! The table of settings. Whatever is known about a setting is written here and nowhere else.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use semver::VersionReq;

use super::algorithm::{Algorithm, AlgorithmChoice, collectives};
use super::codec::{
    Bandwidth, Boolean, Bytes, Codec, FilePath, Hidden, Integer, LogFilter, Named, Optional,
    Secret, Span, Text, choice,
};
use super::collections::{Folders, Requirement, Sha256, folders, map, map_of, names};
use super::plugin_tables::{PerPlugin, PluginTables};
use super::rules::{LEGS, PlanRule, Rules};
use super::table::{Setting, no_variable, settings, variable};

const MILLISECOND: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_hours(24);
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Where a plugin that is not trusted yet is asked for its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeMode {
    /// In a child process, which may hang or crash.
    Child,
    /// In this process.
    Inline,
}

impl Named for ProbeMode {
    const ALL: &'static [(Self, &'static str)] =
        &[(Self::Child, "child"), (Self::Inline, "inline")];
}

/// What happens where something slower is used than was there to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDegrade {
    /// A warning.
    Warn,
    /// Initialisation fails.
    Fail,
}

impl Named for OnDegrade {
    const ALL: &'static [(Self, &'static str)] = &[(Self::Warn, "warn"), (Self::Fail, "fail")];
}

/// What sums of 8- and 16-bit floats are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulate {
    /// f32, rounded once.
    F32,
    /// Whatever a native library does.
    Library,
}

impl Named for Accumulate {
    const ALL: &'static [(Self, &'static str)] = &[(Self::F32, "f32"), (Self::Library, "library")];
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Named for LogFormat {
    const ALL: &'static [(Self, &'static str)] = &[(Self::Text, "text"), (Self::Json, "json")];
}

settings! {
    sections {
        /// Where plugins are found, and which are trusted.
        plugins: Plugins {
            /// Folders that are searched for plugins first. Then come those of `ICCL_PLUGIN_PATH`,
            /// then `plugins/` beside the executable or beside `libiccl.so`, or `lib/iccl/plugins` where
            /// they are installed, then `/usr/lib/iccl/plugins`.
            path: Folders = Vec::new(); folders(); r#"["/opt/iccl/plugins"]"#; no_variable();
            /// Folders that are searched for plugins second.
            environment_path: Folders = Vec::new(); folders(); r#"["/opt/more/plugins"]"#;
                variable("ICCL_PLUGIN_PATH").not_in_file().guarded();
            /// Where a plugin that is neither listed in `plugins.allow` nor pinned by
            /// `plugins.sha256` is probed first: in a child process, since a hang or a crash cannot
            /// be undone, or in this process.
            probe: ProbeMode = ProbeMode::Child; choice::<ProbeMode>(); r#""inline""#;
                variable("ICCL_PLUGINS_PROBE").guarded();
            /// How long a plugin may take to be probed in a child process.
            probe_timeout: Duration = Duration::from_secs(10); Span(Duration::from_millis(100)..=DAY);
                r#""30s""#; variable("ICCL_PLUGINS_PROBE_TIMEOUT");
            /// Loads plugins even if others could have written the file or its folder.
            allow_insecure_plugins: bool = false; Boolean; "true";
                variable("ICCL_ALLOW_INSECURE_PLUGINS").guarded();
            /// Plugins, by name or file name, that are trusted to be probed in this process.
            allow: Vec<String> = Vec::new(); names("a list of plugin names or file names");
                r#"["nvidia", "libiccl_ascend.so"]"#; variable("ICCL_PLUGINS_ALLOW").guarded();
            /// The sha256 of plugins, by file name. A listed file with another sum is refused.
            sha256: BTreeMap<String, String> = BTreeMap::new();
                map(Sha256, "a table of file names and sha256 sums");
                r#"{ "libiccl_nvidia.so" = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" }"#;
                variable("ICCL_PLUGINS_SHA256").guarded();
            /// Plugins, by name, that are not used.
            disable: Vec<String> = Vec::new(); names("a list of plugin names");
                r#"["shm"]"#; variable("ICCL_PLUGINS_DISABLE").guarded();
            /// Plugins, by name, that must be active, and in which version (semver). A pre-release
            /// matches only if the requirement names one.
            require: BTreeMap<String, VersionReq> = BTreeMap::new();
                map(Requirement, "a table of plugin names and version requirements");
                r#"{ nvidia = ">=1.2, <2" }"#; variable("ICCL_PLUGINS_REQUIRE").guarded();
            /// Compares a tiny reduction of every type and operation that a plugin offers with the
            /// host's result before the plugin is used.
            self_test: bool = true; Boolean; "false"; variable("ICCL_PLUGINS_SELF_TEST");
        }
        /// Which transports are used, and over which interface.
        transport: Transport {
            /// Transports, by plugin name, that may be used; others are never opened.
            enabled: Vec<String> = vec!["shm".into(), "tcp".into(), "rdma".into()];
                names("a list of transport names"); r#"["tcp"]"#; variable("ICCL_TRANSPORT_ENABLED");
            /// The network interface for data, by its exact name or by its address.
            interface: Option<String> = None; Optional(Text("the name or the address of an interface"));
                r#""eth0""#; variable("ICCL_INTERFACE");
        }
        /// How the ranks of a job find each other.
        bootstrap: Bootstrap {
            /// This process's rank. Left open, it is read from the launcher's variables.
            rank: Option<u32> = None; Optional(Integer(0..=u32::MAX - 1)); "0"; variable("ICCL_RANK");
            /// The number of ranks.
            world_size: Option<u32> = None; Optional(Integer(1..=u32::MAX)); "4";
                variable("ICCL_WORLD_SIZE");
            /// This process's rank among those on its host.
            local_rank: Option<u32> = None; Optional(Integer(0..=u32::MAX - 1)); "0";
                variable("ICCL_LOCAL_RANK");
            /// The number of ranks on this host.
            local_world_size: Option<u32> = None; Optional(Integer(1..=u32::MAX)); "2";
                variable("ICCL_LOCAL_WORLD_SIZE");
            /// Where rank 0 is met: `host:port`, `tcp://host:port` or `file:///path`.
            root: Option<String> = None; Optional(Text("\"host:port\", \"tcp://host:port\" or \"file:///path\""));
                r#""10.0.0.1:29400""#; variable("ICCL_ROOT");
            /// The address of rank 0, with or without a port, for those used to this name.
            master_addr: Option<String> = None; Optional(Text("\"host\" or \"host:port\""));
                r#""node-0:29400""#; variable("ICCL_MASTER_ADDR");
            /// The unique id of the job. It holds the job's secret, so a file may not set it and it
            /// is never printed.
            unique_id: Option<Secret> = None; Optional(Hidden("the text of a unique id"));
                r#""…""#; variable("ICCL_UNIQUE_ID").not_in_file();
            /// A file that only its owner can read and that holds the job's secret.
            job_secret_file: Option<PathBuf> = None; Optional(FilePath);
                r#""/run/secrets/iccl""#; variable("ICCL_JOB_SECRET_FILE").guarded();
            /// The network interface for the rendezvous, by its exact name or by its address. Left
            /// open, that of `transport.interface`.
            interface: Option<String> = None; Optional(Text("the name or the address of an interface"));
                r#""eth1""#; variable("ICCL_BOOTSTRAP_INTERFACE");
            /// The name of this host, where what the machine says of itself is wrong, or where one
            /// machine is to play several.
            host_id: Option<String> = None; Optional(Text("a name")); r#""a""#; variable("ICCL_HOST_ID");
            /// How long all ranks together may take to come and to agree, at the start and when a communicator
            /// is made out of another.
            init_timeout: Duration = Duration::from_mins(1); Span(Duration::from_millis(100)..=DAY);
                r#""5min""#; variable("ICCL_INIT_TIMEOUT");
            /// How long a connection may take to prove that it knows the job's secret.
            handshake_timeout: Duration = Duration::from_secs(5); Span(Duration::from_millis(10)..=DAY);
                r#""2s""#; variable("ICCL_HANDSHAKE_TIMEOUT");
            /// How long a connection to another rank may take to be made.
            connect_timeout: Duration = Duration::from_secs(30); Span(Duration::from_millis(10)..=DAY);
                r#""10s""#; variable("ICCL_CONNECT_TIMEOUT");
        }
        /// Which device a rank uses.
        device: Device {
            /// The plugin whose device is used, by name, or `auto`: the accelerator that is there,
            /// else the host's memory. A named one that is not there is an error.
            backend: String = "auto".into(); Text("\"auto\" or the name of a device plugin"); r#""host""#;
                variable("ICCL_DEVICE");
            /// What happens where something slower is used than was asked for or is there: a
            /// warning, or an error.
            on_degrade: OnDegrade = OnDegrade::Warn; choice::<OnDegrade>(); r#""fail""#;
                variable("ICCL_ON_DEGRADE");
            /// Whether the maker's own library of collectives (NCCL and its like) may be used.
            native: bool = true; Boolean; "false"; variable("ICCL_NATIVE");
            /// How long the ranks that such a library serves may take to make their native communicator.
            /// Past it they work without the library.
            native_timeout: Duration = Duration::from_secs(60);
                Span(Duration::from_millis(100)..=DAY); r#""20s""#; variable("ICCL_NATIVE_TIMEOUT");
        }
        /// How links are chosen.
        plan: Plan {
            /// The start-up time of a message (α) by tier, in place of what was measured or tabled; under
            /// `native` that of a call of a native library.
            latency: BTreeMap<String, Duration> = BTreeMap::new();
                map_of(|| LEGS.to_vec(), Span(Duration::ZERO..=DAY), "a table of tiers and times");
                r#"{ tcp = "25us" }"#; variable("ICCL_PLAN_LATENCY").agreed();
            /// The bandwidth (β) by tier, in place of what was measured or tabled, in bytes per
            /// second; under `native` that of the longer buffer of a native call.
            bandwidth: BTreeMap<String, u64> = BTreeMap::new();
                map_of(|| LEGS.to_vec(), Bandwidth, "a table of tiers and bandwidths");
                r#"{ tcp = "25Gbit/s" }"#; variable("ICCL_PLAN_BANDWIDTH").agreed();
            /// A file of measured latencies and bandwidths.
            calibration: Option<PathBuf> = None; Optional(FilePath); r#""/etc/iccl/calibration.json""#;
                variable("ICCL_PLAN_CALIBRATION").guarded();
            /// Rules for links. Each says exactly one of `require`, `prefer` and `forbid`, with a
            /// tier (`self`, `ipc`, `shm`, `direct`, `staged`, `tcp`), and for which links: either
            /// `between = [A, B]` or `from` and `to`; a link has one tier for both directions, so
            /// both forms mean the same. A side is
            /// `*`, `vendor:NAME`, `host:NAME`, `rank:3` or `rank:0-3`; one that is left out is `*`.
            rule: Vec<PlanRule> = Vec::new(); Rules;
                r#"[{ forbid = "shm", between = ["host:a", "*"] }, { require = "tcp", from = "rank:0-3", to = "vendor:nvidia" }]"#;
                variable("ICCL_PLAN_RULE").agreed();
        }
        /// How operations are run.
        engine: Engine {
            /// How long an operation may take before it ends with an error that names the rank it
            /// waits for. Ten minutes is what torch's NCCL process group waits: long enough for a rank
            /// that compiles kernels or writes a checkpoint between two collectives.
            op_timeout: Duration = Duration::from_mins(10); Span(MILLISECOND..=DAY * 30); r#""30min""#;
                variable("ICCL_OP_TIMEOUT");
            /// After how long without progress a waiting operation says in the log whom it waits for.
            stall_warn: Duration = Duration::from_secs(10); Span(MILLISECOND..=DAY * 30); r#""1s""#;
                variable("ICCL_STALL_WARN");
            /// The size of the pieces in which a message is moved, so that copies, network and
            /// reduction overlap.
            chunk_bytes: u64 = 512 * KIB; Bytes(4 * KIB..=GIB); r#""1MiB""#;
                variable("ICCL_CHUNK_BYTES").agreed();
            /// How much pinned host memory the communicators of one card may use to move what lies in the
            /// card's memory, beyond one message to and from each peer, which they always may. The default
            /// is four messages of `chunk_bytes` to and from each of eight peers.
            staging_bytes: u64 = 32 * MIB; Bytes(0..=64 * GIB); r#""128MiB""#;
                variable("ICCL_STAGING_BYTES");
            /// How long a waiting thread spins before it sleeps.
            spin: Duration = Duration::from_micros(20); Span(Duration::ZERO..=Duration::from_secs(1));
                r#""0s""#; variable("ICCL_SPIN");
            /// The same bits on every run: costs are taken from settings and tables only, and native
            /// reductions are used only if they are declared deterministic.
            deterministic: bool = false; Boolean; "true"; variable("ICCL_DETERMINISTIC").agreed();
        }
        /// How sums are rounded.
        numerics: Numerics {
            /// What sums of 8- and 16-bit floats are kept in: `f32`, rounded once, or `library`:
            /// whatever a native library does. With `f32`, native reductions that do not declare it
            /// are not used.
            accumulate: Accumulate = Accumulate::F32; choice::<Accumulate>(); r#""library""#;
                variable("ICCL_ACCUMULATE").agreed();
        }
        /// What is logged.
        log: Log {
            /// The level, or a filter such as `info,iccl_runtime::plan=debug`.
            level: String = "info".into(); LogFilter;
                r#""info,iccl_runtime::plan=debug""#; variable("ICCL_LOG");
            /// How lines are written.
            format: LogFormat = LogFormat::Text; choice::<LogFormat>(); r#""json""#;
                variable("ICCL_LOG_FORMAT");
        }
        /// What is written down for those who look for a fault.
        observe: Observe {
            /// A folder for the flight recorder: when a communicator fails, each rank writes its last 256
            /// operations there, for `iccl diagnose`. Nothing is written where it is not set, nor when
            /// the application itself aborts or destroys the communicator.
            flight_recorder: Option<PathBuf> = None; Optional(FilePath); r#""/var/tmp/iccl""#;
                variable("ICCL_FLIGHT_RECORDER").guarded();
        }
    }
    tables {
        /// The algorithm of a collective: a name, or names by size in bytes. A collective that is
        /// not listed, and sizes above the last `max_bytes`, are left to the plan.
        algorithm: BTreeMap<String, AlgorithmChoice> = BTreeMap::new();
            map_of(collectives, Algorithm, "a table of collectives and algorithms");
            r#"{ all_reduce = [{ max_bytes = "64KiB", use = "direct" }, { use = "owner" }], broadcast = "binomial" }"#;
            variable("ICCL_ALGORITHM").agreed();
        /// The settings of plugins, one table `[plugin.NAME]` for each, be it a device's or a
        /// transport's. `iccl plugins -v` shows which settings a plugin has; another is an error.
        plugin: PluginTables = PluginTables::default(); PerPlugin;
            r#"{ nvidia = { library_dir = "/opt/nccl/lib" }, tcp = { sockets_per_peer = 4 } }"#;
            variable("ICCL_PLUGIN_SETTINGS").guarded();
    }
}
