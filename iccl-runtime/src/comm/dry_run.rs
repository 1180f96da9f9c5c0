//! The plan of ranks that are not there: what every rank would tell is taken from this process.

use super::describe::describe;
use super::runtime::Runtime;
use crate::Result;
use crate::plan::{Evidence, Plan, plan};
use crate::topology::{HostIdentity, RankDescriptor};

impl Runtime {
    /// The plan of as many ranks as there are `hosts`, all like this process; each on the host of that
    /// id, or on this one where there is none. Nothing is opened or tried. The same pure function makes
    /// it that makes the real one.
    ///
    /// # Errors
    /// `PluginMissing` for a device that is not there; `PlanUnsatisfiable` naming what is missing.
    pub fn dry_plan(&self, hosts: &[Option<String>]) -> Result<Plan> {
        let inner = &self.inner;
        let settings = inner.plan_config()?;
        let own = inner.config.bootstrap.host_id.as_deref();
        let descriptors: Vec<RankDescriptor> = (0_u32..)
            .zip(hosts)
            .map(|(rank, host)| {
                let host = HostIdentity::detect(host.as_deref().or(own))?;
                describe(rank, &host, inner.device()?, &inner.plugins, None, &settings.agreed)
            })
            .collect::<Result<_>>()?;
        Ok(plan(&descriptors, &settings, &Evidence::default())?)
    }
}
