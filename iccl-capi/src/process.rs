//! What all communicators of the process share: runtimes, and log lines on standard error.

use std::io::IsTerminal;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use iccl_runtime::comm::{Device, Runtime};
use iccl_runtime::config::{Config, LogFormat, Provenance, Sources};
use tracing_subscriber::EnvFilter;

use crate::failure::Refused;

/// The level where nobody set one: a library only says what needs attention.
const QUIET_LEVEL: &str = "warn";

/// The runtimes of this process.
struct Runtimes {
    /// With the process's own configuration.
    default: Option<Runtime>,
    /// One for each set of plugins.
    loaded: Vec<Runtime>,
}

static RUNTIMES: Mutex<Runtimes> = Mutex::new(Runtimes { default: None, loaded: Vec::new() });

/// The runtime with the process's own configuration, `iccl.toml` and `ICCL_*` variables. Read by the
/// first call that succeeds.
pub(crate) fn runtime() -> Refused<Runtime> {
    let mut runtimes = lock();
    if let Some(runtime) = &runtimes.default {
        return Ok(runtime.clone());
    }
    let runtime = runtimes.make(Config::load(&Sources::of_process())?)?;
    runtimes.default = Some(runtime.clone());
    Ok(runtime)
}

/// A runtime with another configuration. Devices are shared wherever the plugins are the same.
pub(crate) fn runtime_with(sources: &Sources) -> Refused<Runtime> {
    lock().make(Config::load(sources)?)
}

/// The device of the process.
pub(crate) fn device() -> Refused<Device> {
    Ok(runtime()?.device()?.clone())
}

impl Runtimes {
    fn make(&mut self, config: Config) -> Refused<Runtime> {
        start_logging(&config);
        if let Some(loaded) = self.loaded.iter().find(|one| one.has_the_plugins_of(&config)) {
            return Ok(loaded.reconfigured(config)?);
        }
        let runtime = Runtime::with_config(config)?;
        self.loaded.push(runtime.clone());
        Ok(runtime)
    }
}

/// Prints log lines from now on, unless the program that this library is linked into does already. The
/// first configuration says which, and how.
fn start_logging(config: &Config) {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let is_set = config.provenance("log.level") != Provenance::Default;
        let level = if is_set { config.log.level.as_str() } else { QUIET_LEVEL };
        let filter = EnvFilter::try_new(level).unwrap_or_else(|error| {
            eprintln!("iccl: log.level = \"{level}\": {error}; \"{QUIET_LEVEL}\" is used");
            EnvFilter::new(QUIET_LEVEL)
        });
        let lines = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal());
        // It fails where somebody else has begun to print them.
        let _ = match config.log.format {
            LogFormat::Text => lines.try_init(),
            LogFormat::Json => lines.json().flatten_event(true).try_init(),
        };
    });
}

fn lock() -> MutexGuard<'static, Runtimes> {
    RUNTIMES.lock().unwrap_or_else(PoisonError::into_inner)
}
