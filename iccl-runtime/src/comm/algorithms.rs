//! Which algorithm carries a call: what the user forces, else what costs least by the plan.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use iccl_plugin_api::Collective;

use crate::config::{AlgorithmChoice, Config, nearest};
use crate::plan::Plan;
use crate::schedule::{
    Algorithm, Choice, CostModel, Island, Islands, NativeRules, Request, Schedule, candidates,
    compile, select,
};
use crate::{Error, ErrorKind, Result};

/// Under this name, configuration gives the latency and bandwidth of native calls.
const NATIVE: &str = "native";

/// The choices of one communicator, the same on all its ranks.
#[derive(Clone, Debug)]
pub(super) struct Algorithms {
    forced: BTreeMap<String, AlgorithmChoice>,
    deterministic: bool,
    model: CostModel,
    islands: Option<Arc<Islands>>,
}

impl Algorithms {
    /// Checks the names that the user wrote, and takes the costs of the plan's links.
    pub(super) fn new(config: &Config, plan: &Plan) -> Result<Self> {
        check_names(config)?;
        let everyone: Vec<u32> = (0..plan.world_size() as u32).collect();
        let defaults = CostModel::default();
        let model = plan.cost_model(&everyone).map_or(defaults, |links| CostModel {
            alpha_ns: links.alpha_ns,
            bytes_per_us: links.bytes_per_us,
            ..defaults
        });
        let given =
            |nanoseconds: Duration| u64::try_from(nanoseconds.as_nanos()).unwrap_or(u64::MAX);
        let (latency, bandwidth) =
            (config.plan.latency.get(NATIVE), config.plan.bandwidth.get(NATIVE));
        let model = CostModel {
            native_alpha_ns: latency.copied().map_or(model.native_alpha_ns, given),
            native_bytes_per_us: bandwidth
                .map_or(model.native_bytes_per_us, |bytes_per_s| (bytes_per_s / 1_000_000).max(1)),
            ..model
        };
        Ok(Self {
            forced: config.algorithm.clone(),
            deterministic: config.engine.deterministic,
            model,
            islands: islands(config, plan),
        })
    }

    /// Stands in a request until the algorithm is chosen, which does not look at it.
    pub(super) fn placeholder(collective: Collective) -> Algorithm {
        candidates(collective).next().unwrap_or(Algorithm::Local)
    }

    /// Where native libraries serve ranks together, for a request that is to be compiled.
    pub(super) fn islands(&self) -> Option<Arc<Islands>> {
        self.islands.clone()
    }

    /// The algorithm for a request, and why.
    pub(super) fn choose(&self, request: &Request) -> Result<Choice> {
        let request = &Request { islands: self.islands(), ..request.clone() };
        let bytes = request.agreed_bytes();
        let forced = self
            .forced
            .get(request.collective.name())
            .and_then(|choice| choice.for_bytes(bytes))
            .and_then(Algorithm::from_name);
        select(request, forced, self.deterministic, &self.model)
    }

    /// Chooses the algorithm of a request, and compiles it: the one way from a call to its steps. The
    /// request is what was compiled then.
    pub(super) fn compile(&self, request: &mut Request) -> Result<(Choice, Schedule)> {
        check_reduction(request)?;
        let choice = self.choose(request)?;
        request.algorithm = choice.algorithm;
        request.islands = self.islands();
        let schedule = compile(request)?;
        Ok((choice, schedule))
    }
}

fn check_reduction(request: &Request) -> Result<()> {
    let Request { collective, dtype, op, .. } = request;
    if collective.reduces() && !iccl_kernels::supports(*dtype, *op) {
        return Err(Error::new(
            ErrorKind::NotSupported,
            format!("{collective}: {dtype} cannot be reduced with {op}"),
        )
        .with_hint("bitwise operations are for integers"));
    }
    Ok(())
}

/// The islands whose libraries are used, or nothing if none is.
fn islands(config: &Config, plan: &Plan) -> Option<Arc<Islands>> {
    let used = plan.islands().iter().filter(|island| island.is_used());
    let list: Vec<Island> = used
        .map(|island| Island {
            library: island.library.clone(),
            ranks: island.ranks.clone().into(),
            abilities: island.abilities.clone(),
        })
        .collect();
    let ranks = plan.world_size() as u32;
    (!list.is_empty()).then(|| Arc::new(Islands::new(ranks, list, NativeRules::new(config))))
}

/// Refuses names of algorithms that there are not for their collective.
pub(super) fn check_names(config: &Config) -> Result<()> {
    for (name, choice) in &config.algorithm {
        let Some(collective) = Collective::from_name(name) else { continue };
        let known: Vec<&str> = candidates(collective).map(Algorithm::name).collect();
        for range in &choice.ranges {
            if known.contains(&range.algorithm.as_str()) {
                continue;
            }
            let near = nearest(&range.algorithm, known.iter().copied())
                .map_or(String::new(), |near| format!(", did you mean \"{near}\"?"));
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "{}: algorithm.{name}: there is no algorithm \"{}\" for it{near}",
                    config.provenance(&format!("algorithm.{name}")),
                    range.algorithm
                ),
            )
            .with_hint(format!("there are: {}", known.join(", "))));
        }
    }
    Ok(())
}
