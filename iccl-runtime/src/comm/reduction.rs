//! How contributions are combined.

use iccl_plugin_api::RedOp;

/// How a collective that reduces combines the contributions of the ranks. Made from a [`RedOp`], so that
/// one can be given wherever this is asked for.
#[derive(Clone, Debug)]
pub struct Reduction {
    op: RedOp,
}

impl Reduction {
    /// What is done with the contributions.
    pub const fn op(&self) -> RedOp {
        self.op
    }
}

impl From<RedOp> for Reduction {
    fn from(op: RedOp) -> Self {
        Self { op }
    }
}
