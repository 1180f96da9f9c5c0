//! The pure function from descriptors, configuration and evidence to a plan.
//!
//! What lives here: [`plan`], which decides for every link which way it takes and keeps the reason
//! for each way that it does not take; the difference finder ([`diff`]) that names the input on which
//! ranks disagree; and the report that `iccl plan` prints.
//!
//! What may not: anything that touches a device, a socket or a clock. All ranks call [`plan`] on the
//! same inputs and must get the same answer, so there are integers only, and no order that depends
//! on a hash seed.

mod class;
mod cost;
mod decide;
mod divergence;
mod error;
mod evidence;
mod figures;
mod islands;
mod links;
mod planner;
mod reason;
mod report;
mod rule;
mod tier;

pub use cost::{Cost, CostEntry, CostSource, REFERENCE_BYTES, quantised, read_calibration};
pub use decide::Way;
pub use divergence::{Divergence, InputDigests, RankInputs, SECTIONS, agreed_digest, diff};
pub use error::{PlanError, Unsatisfiable};
pub use evidence::{Evidence, LinkFact, RankFact};
pub use islands::{PlannedIsland, Unused};
pub use links::{CostModel, LinkDecision};
pub use planner::{Plan, PlanConfig, plan};
pub use reason::{Reason, Refusal};
pub use report::{
    ClassRow, HostRow, IslandRow, LinkRow, PlanReport, REPORT_SCHEMA, RefusalRow, WayRow,
    text_table,
};
pub use rule::{Rule, RuleRef};
pub use tier::{Access, RegionForm, Side, Tier};

/// The version of the rules by which plans are made. It grows with every change that can lead to
/// another decision from the same inputs; ranks with different planners do not share a plan.
pub const PLANNER_VERSION: u32 = 1;
