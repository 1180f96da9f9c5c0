//! What the ranks of a cluster need on this machine: a place to meet, their makers' simulated SDKs, and
//! with `--netns` a network.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;

use super::folder::Folder;
use super::network::Network;
use super::{Cluster, HOST, Node, SIMULATED_HOST};
use crate::failure::{Failure, Result};
use crate::run::job::Place;

/// The variable of plugins' settings.
const PLUGIN_SETTINGS: &str = "ICCL_PLUGIN_SETTINGS";

/// The cluster that is asked for.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ClusterArguments {
    /// Play the cluster of this file here: each node a host of its own, cards by simulated SDKs.
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["ranks", "hosts", "ranks_per_host", "host_ids"])]
    pub(crate) cluster: Option<PathBuf>,
    /// The folder of the simulated SDKs [default: sim-sdk beside this program].
    #[arg(long, value_name = "DIR", requires = "cluster")]
    sim_sdk: Option<PathBuf>,
    /// Give each node a network namespace of its own, its NICs shaped to their speeds. Needs root,
    /// ip, tc and unshare.
    #[arg(long, requires = "cluster")]
    netns: bool,
}

impl ClusterArguments {
    /// The cluster of the file, if one is named.
    pub(crate) fn read(&self) -> Result<Option<Cluster>> {
        self.cluster.as_deref().map(Cluster::read).transpose()
    }

    /// What `cluster` needs, which may be another than the file's.
    pub(crate) fn stage(&self, cluster: &Cluster) -> Result<Stage> {
        Stage::new(cluster, self.sim_sdk.as_deref(), self.netns)
    }
}

/// Everything that has to be there while ranks run. Dropping it takes it away.
#[derive(Debug)]
pub(crate) struct Stage {
    cluster: Cluster,
    sdks: PathBuf,
    folder: Folder,
    network: Option<Network>,
}

impl Stage {
    fn new(cluster: &Cluster, sim_sdk: Option<&Path>, netns: bool) -> Result<Self> {
        // A simulated SDK is looked for only here, where a cluster was asked for.
        let sdks = match sim_sdk {
            Some(folder) => std::path::absolute(folder),
            None => std::env::current_exe()
                .map(|program| program.parent().unwrap_or(Path::new("/")).join("sim-sdk")),
        };
        let sdks =
            sdks.map_err(|error| Failure::new(format!("no folder of simulated SDKs: {error}")))?;
        for node in &cluster.nodes {
            check_sdk(node, &sdks)?;
        }
        if std::env::var_os(PLUGIN_SETTINGS).is_some_and(|value| !value.is_empty()) {
            return Err(Failure::usage(format!(
                "{PLUGIN_SETTINGS} is set, and --cluster sets it for every rank"
            ))
            .with_hint("write the plugins' settings into a file and give that with --config"));
        }
        let network = if netns { Some(Network::new(&cluster.nodes)?) } else { None };
        Ok(Self { cluster: cluster.clone(), sdks, folder: Folder::new()?, network })
    }

    /// A folder of this job's.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The place of each rank.
    pub(crate) fn places(&self) -> Vec<Place> {
        let root = self.folder.path().join("root");
        self.cluster
            .seats
            .iter()
            .map(|seat| {
                let node = &self.cluster.nodes[seat.node];
                let mut root_setting = OsString::from("file://");
                root_setting.push(&root);
                let mut environment: Vec<(String, OsString)> = vec![
                    ("ICCL_HOST_ID".into(), node.name.clone().into()),
                    ("ICCL_LOCAL_RANK".into(), seat.card.to_string().into()),
                    ("ICCL_LOCAL_WORLD_SIZE".into(), node.cards.to_string().into()),
                    ("ICCL_ROOT".into(), root_setting),
                    ("ICCL_DEVICE".into(), node.vendor.clone().into()),
                    (SIMULATED_HOST.into(), node.name.clone().into()),
                    ("ICCL_SIM_DEVICES".into(), node.cards.to_string().into()),
                ];
                if node.vendor != HOST {
                    let folder = self.sdks.join(&node.sdk);
                    let setting = format!("{}.library_dir={}", node.vendor, folder.display());
                    environment.push((PLUGIN_SETTINGS.into(), setting.into()));
                }
                let interface = match (&self.network, node.network()) {
                    (Some(_), Some(nic)) => nic.name.clone(),
                    _ => "lo".to_owned(),
                };
                environment.push(("ICCL_INTERFACE".into(), interface.into()));
                let network = self.network.as_ref().map(|network| network.namespace(seat.node));
                Place { environment, network }
            })
            .collect()
    }
}

fn check_sdk(node: &Node, sdks: &Path) -> Result<()> {
    if node.vendor == HOST || sdks.join(&node.sdk).is_dir() {
        return Ok(());
    }
    let message = format!(
        "node {} has cards of {}, and there is no simulated SDK {}",
        node.name,
        node.vendor,
        sdks.join(&node.sdk).display()
    );
    Err(Failure::usage(message)
        .with_hint("`cargo xtask build` lays them out; --sim-sdk names another folder"))
}
