//! Which algorithm carries a call: what the user forces, else what costs least by the plan.

use std::collections::BTreeMap;

use iccl_plugin_api::Collective;

use crate::config::{AlgorithmChoice, Config, nearest};
use crate::plan::Plan;
use crate::schedule::{Algorithm, Choice, CostModel, Request, candidates, select};
use crate::{Error, ErrorKind, Result};

/// The choices of one communicator, the same on all its ranks.
#[derive(Clone, Debug)]
pub(super) struct Algorithms {
    forced: BTreeMap<String, AlgorithmChoice>,
    deterministic: bool,
    model: CostModel,
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
        Ok(Self {
            forced: config.algorithm.clone(),
            deterministic: config.engine.deterministic,
            model,
        })
    }

    /// Stands in a request until the algorithm is chosen, which does not look at it.
    pub(super) fn placeholder(collective: Collective) -> Algorithm {
        candidates(collective).next().unwrap_or(Algorithm::Local)
    }

    /// The algorithm for a request, and why.
    pub(super) fn choose(&self, request: &Request) -> Result<Choice> {
        let bytes = request.vector_bytes().unwrap_or(u64::MAX);
        let forced = self
            .forced
            .get(request.collective.name())
            .and_then(|choice| choice.for_bytes(bytes))
            .and_then(Algorithm::from_name);
        select(request, forced, self.deterministic, &self.model)
    }
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
                    "algorithm.{name}: there is no algorithm \"{}\" for it{near}",
                    range.algorithm
                ),
            )
            .with_hint(format!("there are: {}", known.join(", "))));
        }
    }
    Ok(())
}
