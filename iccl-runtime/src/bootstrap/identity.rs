//! Who this rank is, read from what the launcher set. A pure function over a map of variables, so
//! that recorded environments are its tests.
//!
//! A source counts only if both rank and world size are there. In this order: iccl's own settings,
//! `torchrun` and its kind, Open MPI, PMI (MPICH, Intel MPI, PALS), MVAPICH2, Slurm, JSM; `PMIx` and
//! Kubernetes give a rank only and need `ICCL_WORLD_SIZE`. The order has its reasons: `mpirun` inside
//! a Slurm step leaves variables of the step that launched it, and `torchrun` under `srun` does too.

mod local;
mod settings;
mod slurm;

use std::fmt;

pub use settings::{IdentitySettings, RootSetting};

use super::interface::HostPort;
use super::rendezvous::{Meeting, Rendezvous, derived_ports};
use crate::config::Environment;
use crate::{Error, ErrorKind, Result};

/// Who started this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// `iccl run`, or somebody who set iccl's own variables.
    Iccl,
    /// `torchrun` and others that set `RANK` and `WORLD_SIZE`.
    Torch,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH's or Intel MPI's `mpiexec`, and others that speak PMI.
    Pmi,
    /// `mpirun_rsh` of MVAPICH2.
    Mvapich2,
    /// `srun`.
    Slurm,
    /// `jsrun` of IBM LSF.
    Jsm,
    /// Something that speaks `PMIx` only.
    Pmix,
    /// A Kubernetes indexed job.
    Kubernetes,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iccl => "iccl",
            Self::Torch => "torchrun",
            Self::OpenMpi => "Open MPI",
            Self::Pmi => "PMI",
            Self::Mvapich2 => "MVAPICH2",
            Self::Slurm => "Slurm",
            Self::Jsm => "JSM",
            Self::Pmix => "PMIx",
            Self::Kubernetes => "Kubernetes",
        })
    }
}

/// Where a launcher names its variables.
struct Source {
    launcher: Launcher,
    rank: &'static [&'static str],
    world_size: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_world_size: &'static [&'static str],
    /// Variables without which the others mean something else.
    requires: &'static [&'static str],
    /// What tells one job from another.
    job: &'static [&'static str],
}

const SOURCES: &[Source] = &[
    Source {
        launcher: Launcher::Torch,
        rank: &["RANK"],
        world_size: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_world_size: &["LOCAL_WORLD_SIZE"],
        requires: &[],
        job: &["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
    },
    Source {
        launcher: Launcher::OpenMpi,
        rank: &["OMPI_COMM_WORLD_RANK"],
        world_size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_world_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        requires: &[],
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
    },
    Source {
        launcher: Launcher::Pmi,
        rank: &["PMI_RANK"],
        world_size: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"],
        local_world_size: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
        requires: &[],
        job: &["PALS_APID", "PMI_JOBID"],
    },
    Source {
        launcher: Launcher::Mvapich2,
        rank: &["MV2_COMM_WORLD_RANK"],
        world_size: &["MV2_COMM_WORLD_SIZE"],
        local_rank: &["MV2_COMM_WORLD_LOCAL_RANK"],
        local_world_size: &["MV2_COMM_WORLD_LOCAL_SIZE"],
        requires: &[],
        job: &[],
    },
    Source {
        launcher: Launcher::Slurm,
        rank: &["SLURM_PROCID"],
        world_size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: &["SLURM_LOCALID"],
        // SLURM_STEP_TASKS_PER_NODE says it for every node.
        local_world_size: &[],
        // Set in a batch script as well, where one process runs and not a step.
        requires: &["SLURM_STEP_ID"],
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"],
    },
    Source {
        launcher: Launcher::Jsm,
        rank: &["JSM_NAMESPACE_RANK"],
        world_size: &["JSM_NAMESPACE_SIZE"],
        local_rank: &["JSM_NAMESPACE_LOCAL_RANK"],
        local_world_size: &["JSM_NAMESPACE_LOCAL_SIZE"],
        requires: &[],
        job: &["LSB_JOBID", "JSM_JSRUN_ID", "PMIX_NAMESPACE"],
    },
    Source {
        launcher: Launcher::Pmix,
        rank: &["PMIX_RANK"],
        world_size: &[],
        local_rank: &[],
        local_world_size: &[],
        requires: &[],
        job: &["PMIX_NAMESPACE"],
    },
    Source {
        launcher: Launcher::Kubernetes,
        rank: &["JOB_COMPLETION_INDEX"],
        world_size: &[],
        local_rank: &[],
        local_world_size: &[],
        requires: &[],
        job: &["JOB_NAME"],
    },
];

/// Who this rank is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// This rank.
    pub rank: u32,
    /// How many ranks the job has.
    pub world_size: u32,
    /// This rank's number among those on its host.
    pub local_rank: Option<u32>,
    /// How many ranks are on this host.
    pub local_world_size: Option<u32>,
    /// Who said so.
    pub launcher: Launcher,
    /// The variables that said so: `RANK, WORLD_SIZE`.
    pub source: String,
    /// Tells the job and its restarts apart from others; may be empty.
    pub job: String,
    /// Something that looks wrong but may be meant.
    pub note: Option<String>,
    /// Host and ports to meet at.
    meeting: Option<(String, Vec<u16>)>,
    settings: IdentitySettings,
}

/// The port from which others are derived where only a host is named.
const DEFAULT_PORT: u16 = 29400;

impl Identity {
    /// Reads rank and world size from `settings` and `environment`; `None` if nothing says that
    /// this process is one of several.
    ///
    /// # Errors
    ///
    /// `InvalidConfig`: a variable is not a number, rank and size contradict each other, or only one of
    /// the two was set with iccl's own variables. It names the variables.
    pub fn discover(
        environment: &Environment,
        settings: &IdentitySettings,
    ) -> Result<Option<Self>> {
        let Some(mut identity) = Self::find(environment, settings)? else { return Ok(None) };
        if identity.rank >= identity.world_size {
            let (rank, size, source) = (identity.rank, identity.world_size, &identity.source);
            let message = format!("rank {rank} is not below the world size {size} ({source})");
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        identity.local_rank = settings.local_rank.or(identity.local_rank);
        identity.local_world_size = settings.local_world_size.or(identity.local_world_size);
        identity.check_local()?;
        identity.check_pods(environment)?;
        identity.meeting = identity.find_meeting(environment)?;
        Ok(Some(identity))
    }

    fn find(environment: &Environment, settings: &IdentitySettings) -> Result<Option<Self>> {
        if let (Some(rank), Some(world_size)) = (settings.rank, settings.world_size) {
            let source = "ICCL_RANK, ICCL_WORLD_SIZE".into();
            return Ok(Some(Self::new(rank, world_size, Launcher::Iccl, source, settings)));
        }
        for source in SOURCES {
            if let Some(identity) = Self::from_source(source, environment, settings)? {
                return Ok(Some(identity));
            }
        }
        match (settings.rank, settings.world_size) {
            (Some(rank), None) => {
                let message = format!("ICCL_RANK is {rank}, but no world size is known");
                Err(Error::new(ErrorKind::InvalidConfig, message).with_hint("set ICCL_WORLD_SIZE"))
            }
            (None, Some(size)) if size > 1 => {
                let message = format!("ICCL_WORLD_SIZE is {size}, but no rank is known");
                Err(Error::new(ErrorKind::InvalidConfig, message).with_hint("set ICCL_RANK"))
            }
            _ => Ok(None),
        }
    }

    fn from_source(
        source: &Source,
        environment: &Environment,
        settings: &IdentitySettings,
    ) -> Result<Option<Self>> {
        if !source.requires.iter().all(|name| environment.get(name).is_some()) {
            return Ok(None);
        }
        // One of the two may come from iccl's own settings.
        let rank = match settings.rank {
            Some(rank) => Some(("ICCL_RANK", rank)),
            None => first_number(environment, source.rank)?,
        };
        let world_size = match settings.world_size {
            Some(size) => Some(("ICCL_WORLD_SIZE", size)),
            None => first_number(environment, source.world_size)?,
        };
        let (Some((rank_name, rank)), Some((size_name, world_size))) = (rank, world_size) else {
            return Ok(None);
        };
        let names = format!("{rank_name}, {size_name}");
        let mut identity = Self::new(rank, world_size, source.launcher, names, settings);
        let first = |names: &[&'static str]| -> Result<Option<u32>> {
            Ok(first_number(environment, names)?.map(|(_, number)| number))
        };
        identity.local_rank = first(source.local_rank)?;
        identity.local_world_size = first(source.local_world_size)?;
        if source.launcher == Launcher::Slurm {
            identity.local_world_size = slurm::local_tasks(environment)?;
        }
        let job: Vec<&str> = source.job.iter().filter_map(|name| environment.get(name)).collect();
        identity.job = job.join("/");
        Ok(Some(identity))
    }

    fn new(
        rank: u32,
        world_size: u32,
        launcher: Launcher,
        source: String,
        settings: &IdentitySettings,
    ) -> Self {
        Self {
            rank,
            world_size,
            local_rank: None,
            local_world_size: None,
            launcher,
            source,
            job: String::new(),
            note: None,
            meeting: None,
            settings: settings.clone(),
        }
    }

    fn check_local(&self) -> Result<()> {
        let (Some(local_rank), Some(local_size)) = (self.local_rank, self.local_world_size) else {
            return Ok(());
        };
        if local_rank < local_size && local_size <= self.world_size {
            return Ok(());
        }
        let (launcher, size) = (self.launcher, self.world_size);
        let message = format!(
            "{launcher} says local rank {local_rank} of {local_size} in a job of {size} ranks"
        );
        Err(Error::new(ErrorKind::InvalidConfig, message))
    }

    /// The operator of `Kubeflow` (and Alibaba's PAI) counts pods in `RANK` and `WORLD_SIZE`.
    fn check_pods(&mut self, environment: &Environment) -> Result<()> {
        let counts_pods = self.launcher == Launcher::Torch
            && self.settings.rank.is_none()
            && self.local_rank.is_none()
            && environment.get("KUBERNETES_PORT").is_some();
        if !counts_pods {
            return Ok(());
        }
        let per_pod = first_number(environment, &["PET_NPROC_PER_NODE", "NPROC_PER_NODE"]);
        // PET_NPROC_PER_NODE may also be "auto" or "gpu".
        let several = match per_pod {
            Ok(number) => number.filter(|(_, count)| *count > 1).map(|(name, _)| name),
            Err(_) => Some("PET_NPROC_PER_NODE"),
        };
        if let Some(name) = several {
            let message = format!(
                "RANK and WORLD_SIZE count pods here, and {name} asks for several processes in each"
            );
            return Err(Error::new(ErrorKind::InvalidConfig, message)
                .with_hint("start torchrun inside the pod, or set ICCL_RANK and ICCL_WORLD_SIZE"));
        }
        self.note = Some("RANK and WORLD_SIZE count pods: one process in each is assumed".into());
        Ok(())
    }

    fn find_meeting(&self, environment: &Environment) -> Result<Option<(String, Vec<u16>)>> {
        match &self.settings.root {
            Some(RootSetting::Address(root)) => {
                return Ok(Some((root.host.clone(), vec![root.port])));
            }
            Some(RootSetting::Host(host)) => {
                return Ok(Some((host.clone(), derived_ports(DEFAULT_PORT, &self.job))));
            }
            Some(RootSetting::File(_)) | None => {}
        }
        if let (Some(host), Some(port)) =
            (environment.get("MASTER_ADDR"), environment.get("MASTER_PORT"))
        {
            let base: u16 = port.trim().parse().map_err(|_| {
                let message = format!("MASTER_PORT=\"{port}\": expected a number from 1 to 65535");
                Error::new(ErrorKind::InvalidConfig, message)
            })?;
            // The port itself is for the store of torch.distributed, in the agent or in rank 0.
            let host = HostPort::new(host, base)?.host;
            return Ok(Some((host, derived_ports(base, &self.job))));
        }
        let is_slurm_step = self.launcher == Launcher::Slurm
            || (self.launcher == Launcher::Pmi
                && number(environment, "SLURM_PROCID").ok().flatten() == Some(self.rank));
        if is_slurm_step && let Some(host) = slurm::first_host(environment)? {
            let job = slurm::job(environment).unwrap_or_else(|| self.job.clone());
            return Ok(Some((host, derived_ports(slurm::BASE_PORT, &job))));
        }
        Ok(None)
    }

    /// Whether every rank is known to be on this host.
    pub fn is_one_host(&self) -> bool {
        self.local_world_size == Some(self.world_size)
    }

    /// Where the job meets.
    ///
    /// # Errors
    ///
    /// `InvalidConfig`: several hosts and no address; it says what to set.
    pub fn rendezvous(&self) -> Result<Rendezvous> {
        if let Some(id) = &self.settings.unique_id {
            return Ok(Rendezvous::UniqueId(id.clone()));
        }
        if self.world_size == 1 {
            return Ok(Rendezvous::Alone);
        }
        if let Some(RootSetting::File(path)) = &self.settings.root {
            return Ok(Rendezvous::File(path.clone()));
        }
        if let Some((host, ports)) = &self.meeting {
            return Ok(Rendezvous::Address(Meeting {
                host: host.clone(),
                ports: ports.clone(),
                job: self.job.clone(),
                secret: self.settings.secret.clone(),
            }));
        }
        if self.is_one_host() {
            return Ok(Rendezvous::LocalSocket { job: local::job(self.launcher, &self.job) });
        }
        let (launcher, size) = (self.launcher, self.world_size);
        let here = match self.local_world_size {
            Some(here) => format!("{here} of {size} ranks are on this host"),
            None => format!("it is not known whether all {size} ranks are on this host"),
        };
        let message = format!("bootstrap: {launcher} names no address of rank 0, and {here}");
        Err(Error::new(ErrorKind::InvalidConfig, message)
            .with_hint("set ICCL_ROOT=host:port, an address of rank 0's host, on every rank"))
    }
}

/// Sources that are half there: for a message when somebody wonders why a process is alone.
pub fn near_misses(environment: &Environment, settings: &IdentitySettings) -> Vec<String> {
    if settings.rank.is_some() || settings.world_size.is_some() {
        return Vec::new();
    }
    let is_set =
        |names: &'static [&'static str]| names.iter().find(|name| environment.get(name).is_some());
    SOURCES
        .iter()
        .filter_map(|source| match (is_set(source.rank), is_set(source.world_size)) {
            (Some(rank), None) => {
                Some(format!("{rank} is set, but no world size: set ICCL_WORLD_SIZE"))
            }
            (None, Some(size)) => Some(format!("{size} is set, but no rank: set ICCL_RANK")),
            (Some(rank), Some(_)) => {
                let missing = source.requires.iter().find(|n| environment.get(n).is_none())?;
                Some(format!(
                    "{rank} is set, but not {missing}: this is not one of the step's tasks"
                ))
            }
            (None, None) => None,
        })
        .collect()
}

/// The variable as a number.
fn number(environment: &Environment, name: &str) -> Result<Option<u32>> {
    let Some(text) = environment.get(name) else { return Ok(None) };
    text.trim().parse().map(Some).map_err(|_| {
        let message = format!("{name}=\"{text}\": expected a whole number from 0");
        Error::new(ErrorKind::InvalidConfig, message)
    })
}

/// The first of the variables that is set, as a number.
fn first_number(
    environment: &Environment,
    names: &[&'static str],
) -> Result<Option<(&'static str, u32)>> {
    for name in names {
        if let Some(number) = number(environment, name)? {
            return Ok(Some((name, number)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
