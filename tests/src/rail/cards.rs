//! Ranks on simulated cards whose memory NICs reach, or do not.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::ranks::Job;
use crate::{cargo_build, maker_plugin_folder, place, sim_sdk};

/// A card, by what it gives to a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Card {
    /// A Kunlun card, whose memory BKCL maps for the host.
    Alias,
    /// An NVIDIA card, whose driver exports dma-bufs.
    DmaBuf,
    /// A Cambricon card whose driver claims peer memory, of which no kernel here knows.
    Address,
    /// An Ascend card, which gives its memory to no NIC.
    None,
    /// Host memory.
    Host,
}

impl Card {
    /// Who makes it, by the plugin's name; nobody makes host memory.
    fn maker(self) -> Option<&'static str> {
        match self {
            Self::Alias => Some("kunlun"),
            Self::DmaBuf => Some("nvidia"),
            Self::Address => Some("cambricon"),
            Self::None => Some("ascend"),
            Self::Host => None,
        }
    }
}

/// Where the plugin and the simulated libraries of a maker lie.
struct Folders {
    plugins: String,
    libraries: String,
}

/// The simulated machine of each maker.
const SDKS: [(&str, &str); 4] = [
    ("kunlun", "kunlun-p800"),
    ("nvidia", "nvidia"),
    ("cambricon", "cambricon"),
    ("ascend", "ascend"),
];

/// What a process that cannot build is told of each maker: two folders, with a colon between.
fn variable(maker: &str) -> String {
    format!("ICCL_TEST_RAIL_{}", maker.to_uppercase())
}

/// The folder of a transport plugin that is not linked in: the real one.
const TRANSPORT: &str = "ICCL_TEST_RAIL_TRANSPORT";

/// A folder with the transport that has a NIC in name only, under the name of the real one.
///
/// # Panics
/// If it cannot be built.
pub fn fabric_folder() -> PathBuf {
    let built = cargo_build(&["-p", "iccl-tests-fabric", "--lib"]);
    let folder = built.join("test-plugins-fabric");
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    place(&built.join("libiccl_tests_fabric.so"), &folder.join("libiccl_transport-rdma.so"));
    folder
}

/// What `iccl` and programs like it are told, whose rank `n` is on the card `cards[n]`: a script that makes the
/// rank's variables and then becomes the words after it. `transport` is the folder of the transport, `plugins` that
/// of the others.
///
/// # Panics
/// If something cannot be built.
pub fn script(cards: &[Card], plugins: &Path, transport: &Path) -> String {
    let mut script =
        String::from("export ICCL_HOST_ID=host-$ICCL_RANK ICCL_PLUGINS_PROBE=inline\n");
    for (name, value) in SIMULATED {
        let _ = writeln!(script, "export {name}={value}");
    }
    script += "case $ICCL_RANK in\n";
    for (rank, card) in cards.iter().enumerate() {
        let maker = card.maker().expect("a card");
        let Folders { plugins: own, libraries } = &FOLDERS[maker];
        let peer_memory = if *card == Card::Address { ", peer_memory = true" } else { "" };
        let _ = writeln!(
            script,
            "{rank}) export ICCL_DEVICE={maker} ICCL_PLUGIN_PATH={own}:{}:{}\n\
             export ICCL_PLUGIN_SETTINGS='{{ {maker} = {{ library_dir = \"{libraries}\"{peer_memory} }} }}' ;;",
            plugins.display(),
            transport.display(),
        );
    }
    script + "esac\nexec \"$@\"\n"
}

/// Builds everything but the transport, whose folder is given, and says what a process that cannot is told.
///
/// # Panics
/// If it cannot be built.
pub fn variables(transport: &str) -> Vec<(String, String)> {
    let makers = SDKS.iter().map(|(maker, sdk)| {
        let (plugins, libraries) = (maker_plugin_folder(maker), sim_sdk::folder(sdk));
        (variable(maker), format!("{}:{}", plugins.display(), libraries.display()))
    });
    makers.chain([(TRANSPORT.to_owned(), transport.to_owned())]).collect()
}

fn folders(maker: &str) -> Folders {
    let told = std::env::var(variable(maker)).ok();
    if let Some((plugins, libraries)) = told.as_deref().and_then(|told| told.split_once(':')) {
        return Folders { plugins: plugins.to_owned(), libraries: libraries.to_owned() };
    }
    let sdk = SDKS.iter().find(|(name, _)| *name == maker).expect("a maker").1;
    let text = |path: PathBuf| path.to_str().expect("text").to_owned();
    Folders { plugins: text(maker_plugin_folder(maker)), libraries: text(sim_sdk::folder(sdk)) }
}

/// What every simulator and plugin of a process is told.
const SIMULATED: [(&str, &str); 4] = [
    ("BKCL_USE_PEERMEM_XDR", "1"),
    ("ICCL_SIM_DEVICES", "8"),
    ("ICCL_SIM_KUNLUN_HOST_ALIAS", "1"),
    ("ICCL_SIM_NVIDIA_DMA_BUF", "1"),
];

/// Tells it this process, before the first of them is used.
static SETTINGS: LazyLock<()> = LazyLock::new(|| {
    for (name, value) in SIMULATED {
        // SAFETY: everything else in this process reads the environment by the standard library, or
        // later.
        unsafe { std::env::set_var(name, value) };
    }
});

static FOLDERS: LazyLock<BTreeMap<&str, Folders>> =
    LazyLock::new(|| SDKS.iter().map(|(maker, _)| (*maker, folders(maker))).collect());

/// A job of ranks on such cards, each of its own host.
pub fn job(cards: &[Card]) -> Job {
    LazyLock::force(&SETTINGS);
    let mut job = Job::new(cards.len() as u32).with("device.native", "false");
    // By speed, a NIC in software may lose to TCP.
    let rules = ["direct", "staged"]
        .map(|tier| format!(r#"{{ prefer = "{tier}", between = ["*", "*"] }}"#))
        .join(", ");
    job = job.with("engine.chunk_bytes", "64KiB").with("plan.rule", &format!("[{rules}]"));
    for (rank, card) in (0..).zip(cards) {
        let mut set = |key: &str, value: &str| job = job.clone().with_on(rank, key, value);
        set("bootstrap.host_id", &format!("host-{rank}"));
        set("bootstrap.local_rank", &rank.to_string());
        set("plugins.probe", "inline");
        let transport = std::env::var(TRANSPORT).ok();
        let Some(maker) = card.maker() else {
            set("device.backend", "host");
            transport.iter().for_each(|folder| set("plugins.path", folder));
            continue;
        };
        let Folders { plugins, libraries } = &FOLDERS[maker];
        let folders: Vec<_> = std::iter::once(plugins.clone()).chain(transport).collect();
        set("plugins.path", &folders.join(":"));
        set(&format!("plugin.{maker}.library_dir"), libraries);
        set("device.backend", maker);
        if *card == Card::Address {
            set("plugin.cambricon.peer_memory", "true");
        }
    }
    job
}
