//! Ranks on simulated cards whose memory NICs reach, or do not.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use iccl_tests::ranks::Job;
use iccl_tests::{maker_plugin_folder, sim_sdk};

/// A card, by what it gives to a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Card {
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

/// The plugins and libraries of a maker.
struct Folders {
    plugins: PathBuf,
    libraries: PathBuf,
}

/// Where a process that cannot build finds what another built: a folder for each maker, with `plugins` and
/// `libraries` in it.
pub(crate) const BUILT: &str = "ICCL_TEST_RAIL_FOLDER";

fn folders(maker: &str, sdk: &str) -> Folders {
    if let Some(built) = std::env::var_os(BUILT) {
        let folder = Path::new(&built).join(maker);
        return Folders { plugins: folder.join("plugins"), libraries: folder.join("libraries") };
    }
    Folders { plugins: maker_plugin_folder(maker), libraries: sim_sdk::folder(sdk) }
}

/// What every simulator and plugin of this process is told, before the first of them is used.
static SETTINGS: LazyLock<()> = LazyLock::new(|| {
    for (name, value) in [
        ("BKCL_USE_PEERMEM_XDR", "1"),
        ("ICCL_SIM_DEVICES", "8"),
        ("ICCL_SIM_KUNLUN_HOST_ALIAS", "1"),
        ("ICCL_SIM_NVIDIA_DMA_BUF", "1"),
    ] {
        // SAFETY: everything else in this process reads the environment by the standard library, or
        // later.
        unsafe { std::env::set_var(name, value) };
    }
});

static KUNLUN: LazyLock<Folders> = LazyLock::new(|| folders("kunlun", "kunlun-p800"));
static NVIDIA: LazyLock<Folders> = LazyLock::new(|| folders("nvidia", "nvidia"));
static CAMBRICON: LazyLock<Folders> = LazyLock::new(|| folders("cambricon", "cambricon"));
static ASCEND: LazyLock<Folders> = LazyLock::new(|| folders("ascend", "ascend"));

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// A job of ranks on such cards, each of its own host.
pub(crate) fn job(cards: &[Card]) -> Job {
    LazyLock::force(&SETTINGS);
    let mut job = Job::new(cards.len() as u32).with("device.native", "false");
    for (rank, card) in (0..).zip(cards) {
        let mut set = |key: &str, value: &str| job = job.clone().with_on(rank, key, value);
        set("bootstrap.host_id", &format!("host-{rank}"));
        set("bootstrap.local_rank", &rank.to_string());
        set("plugins.probe", "inline");
        let (maker, folders) = match card {
            Card::Host => {
                set("device.backend", "host");
                continue;
            }
            Card::Alias => ("kunlun", &*KUNLUN),
            Card::DmaBuf => ("nvidia", &*NVIDIA),
            Card::Address => ("cambricon", &*CAMBRICON),
            Card::None => ("ascend", &*ASCEND),
        };
        set("plugins.path", text(&folders.plugins));
        set(&format!("plugin.{maker}.library_dir"), text(&folders.libraries));
        set("device.backend", maker);
        if *card == Card::Address {
            set("plugin.cambricon.peer_memory", "true");
        }
    }
    job
}
