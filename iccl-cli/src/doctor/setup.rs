//! Configuration, launcher, plugins.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use iccl_runtime::bootstrap::{Identity, IdentitySettings, near_misses};
use iccl_runtime::config::Config;
use iccl_runtime::plugins::{PluginSet, ProbeMethod, Record, State, TransportPlugin};

use super::Check;

/// The checks, and the plugins for others to look at.
pub(super) fn checks(config: &Config) -> (Vec<Check>, Option<PluginSet>) {
    let mut checks = vec![configuration(config), launcher(config)];
    let plugins = match PluginSet::discover(config) {
        Ok(plugins) => plugins,
        Err(error) => {
            let hint = error.hint().unwrap_or("correct the setting").to_owned();
            checks.push(Check::fail("plugins", error.message(), hint));
            return (checks, None);
        }
    };
    checks.extend(plugins.searched().iter().filter_map(|folder| folder_rights(folder)));
    checks.extend(plugins.records().iter().map(plugin));
    checks.extend(offers(&plugins));
    if let Err(error) = plugins.check_required(config) {
        let hint = error.hint().unwrap_or("install it").to_owned();
        checks.push(Check::fail("plugins.require", error.message(), hint));
    }
    (checks, Some(plugins))
}

fn configuration(config: &Config) -> Check {
    let file = config.file().map_or("no file".to_owned(), |file| file.display().to_string());
    let warnings = config.warnings();
    if warnings.is_empty() {
        return Check::ok("configuration", file);
    }
    Check::warn(
        "configuration",
        format!("{file}: {}", warnings.join("; ")),
        "`iccl config --changed`",
    )
}

fn launcher(config: &Config) -> Check {
    const NAME: &str = "launcher";
    let settings = match IdentitySettings::from_config(config) {
        Ok(settings) => settings,
        Err(error) => return Check::fail(NAME, error.message(), error.hint().unwrap_or_default()),
    };
    match Identity::discover(config.environment(), &settings) {
        Ok(Some(identity)) => Check::ok(
            NAME,
            format!(
                "{}: rank {} of {} (by {})",
                identity.launcher, identity.rank, identity.world_size, identity.source
            ),
        ),
        Ok(None) => {
            let misses = near_misses(config.environment(), &settings);
            if misses.is_empty() {
                return Check::ok(NAME, "none; this process is alone");
            }
            Check::warn(
                NAME,
                misses.join("; "),
                "a process that is not one of several ranks runs alone",
            )
        }
        Err(error) => Check::fail(NAME, error.message(), error.hint().unwrap_or_default()),
    }
}

/// Whether others could put code into a folder of plugins. `None` if it is not there.
fn folder_rights(folder: &Path) -> Option<Check> {
    let facts = std::fs::metadata(folder).ok()?;
    let name = format!("folder {}", folder.display());
    let (owner, mode) = (facts.uid(), facts.mode() & 0o7777);
    let is_ours = owner == 0 || owner == rustix::process::geteuid().as_raw();
    if is_ours && mode & 0o022 == 0 {
        return Some(Check::ok(name, format!("mode {mode:o}")));
    }
    Some(Check::fail(
        name,
        format!("mode {mode:o}, owner {owner}: others could put code there"),
        "chown it to root or this user, and chmod go-w",
    ))
}

fn plugin(record: &Record) -> Check {
    let name = match &record.name {
        Some(name) => format!("plugin {name}"),
        None => format!("plugin {}", record.path.display()),
    };
    let version = record.version.clone().unwrap_or_default();
    match (record.state, record.reason) {
        (State::Active, _) if record.probe == Some(ProbeMethod::InlineWithoutHelper) => {
            Check::warn(
                name,
                format!("{version} active; probed in this process: {}", record.notes.join("; ")),
                "put iccl-plugin-probe beside iccl, so that a plugin that hangs or crashes ends another process",
            )
        }
        (State::Active, _) => {
            Check::ok(name, format!("{version} active ({})", record.kinds.join(", ")))
        }
        (State::NoDevice | State::Skipped, _) => {
            Check::ok(name, format!("{version} {}: {}", record.state.name(), record.detail))
        }
        (State::Rejected, reason) => Check::warn(
            name,
            format!("{}: {}", reason.map_or("rejected", |one| one.code()), record.detail),
            record.hint.clone(),
        ),
    }
}

/// Without a device nothing works, without a transport nothing but single ranks.
fn offers(plugins: &PluginSet) -> Vec<Check> {
    let searched: Vec<String> =
        plugins.searched().iter().map(|folder| folder.display().to_string()).collect();
    let hint =
        format!("put the plugins into one of {}, or set ICCL_PLUGIN_PATH", searched.join(", "));
    let devices = match plugins.devices().len() {
        0 => Check::fail("devices", "none", hint.clone()),
        count => Check::ok("devices", count.to_string()),
    };
    let tiers: Vec<&str> = plugins.transports().iter().map(TransportPlugin::tier).collect();
    let transports = if tiers.is_empty() {
        Check::fail("transports", "none: ranks cannot reach each other", hint)
    } else {
        Check::ok("transports", tiers.join(", "))
    };
    vec![devices, transports]
}
