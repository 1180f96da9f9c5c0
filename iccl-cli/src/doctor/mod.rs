//! `iccl doctor`: what users trip over, and what to do about it.
//!
//! [`system`] looks at limits, memory and the kernel, [`network`] at interfaces and RDMA devices,
//! [`libraries`] for vendors' libraries, without loading one, and [`setup`] at configuration, launcher
//! and plugins; [`vendor`] writes a report on one maker's cards. A finding is `fail` only if iccl cannot work with it.

mod libraries;
mod network;
mod setup;
mod system;
mod vendor;

use clap::Args;
use serde::Serialize;

use crate::context::Context;
use crate::failure::{Outcome, Result};
use crate::print;
use libraries::Libraries;

pub(crate) const EXAMPLES: &str = "\
Examples:
  iccl doctor
  iccl doctor --vendor nvidia              what to send back from a machine with such cards
  iccl doctor --json | jq '.checks[] | select(.result != \"ok\")'

Exit status: 1 if a check failed; warnings alone end with 0.";

#[derive(Args)]
pub(crate) struct Arguments {
    /// Instead, print a report on this maker's cards, to confirm what is not confirmed of them.
    #[arg(long, value_name = "NAME")]
    vendor: Option<String>,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Check {
    /// A stable name.
    name: String,
    result: Verdict,
    /// What was found, one line.
    found: String,
    /// What to do; empty if nothing.
    hint: String,
}

impl Check {
    fn ok(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self { name: name.into(), result: Verdict::Ok, found: found.into(), hint: String::new() }
    }

    fn warn(name: impl Into<String>, found: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { result: Verdict::Warn, hint: hint.into(), ..Self::ok(name, found) }
    }

    fn fail(name: impl Into<String>, found: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { result: Verdict::Fail, ..Self::warn(name, found, hint) }
    }
}

#[derive(Serialize)]
struct Answer {
    checks: Vec<Check>,
}

pub(crate) fn examine(context: &Context, arguments: &Arguments) -> Result {
    if let Some(vendor) = &arguments.vendor {
        return vendor::report(context, vendor);
    }
    let config = context.config()?;
    let mut checks = system::checks();
    checks.extend(network::checks(&config));
    let (found, plugins) = setup::checks(&config);
    checks.extend(Libraries::new(&config, plugins.as_ref()).checks());
    checks.extend(found);
    let is_failed = checks.iter().any(|check| check.result == Verdict::Fail);
    if context.is_json() {
        print::json(&Answer { checks })?;
    } else {
        print::text(&text(&checks))?;
    }
    Ok(if is_failed { Outcome::CheckFailed } else { Outcome::Right })
}

fn text(checks: &[Check]) -> String {
    let rows = checks.iter().map(|check| {
        let verdict = match check.result {
            Verdict::Ok => "ok",
            Verdict::Warn => "WARN",
            Verdict::Fail => "FAIL",
        };
        let mut found = check.found.clone();
        if !check.hint.is_empty() {
            found = format!("{found}\n-> {}", check.hint);
        }
        vec![verdict.to_owned(), check.name.clone(), found]
    });
    let count = |result| checks.iter().filter(|check| check.result == result).count();
    format!(
        "{}\n{} ok, {} to look at, {} failed\n",
        iccl_runtime::plan::text_table(&rows.collect::<Vec<_>>()),
        count(Verdict::Ok),
        count(Verdict::Warn),
        count(Verdict::Fail)
    )
}
