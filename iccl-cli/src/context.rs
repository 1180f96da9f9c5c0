//! What every subcommand starts from: the configuration, and log lines on standard error.

use std::io::IsTerminal;

use iccl_runtime::comm::Runtime;
use iccl_runtime::config::{Config, LogFormat, Provenance, Sources};
use tracing_subscriber::EnvFilter;

use crate::arguments::Global;
use crate::failure::{Failure, Result};

/// The level where nobody set one: the commands answer on standard output, so they only log what
/// needs attention.
const QUIET_LEVEL: &str = "warn";

/// The options of every subcommand.
pub(crate) struct Context {
    global: Global,
}

impl Context {
    pub(crate) fn new(global: Global) -> Self {
        Self { global }
    }

    /// Whether the answer is JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.global.json
    }

    /// Whether the user wants detail.
    pub(crate) fn is_verbose(&self) -> bool {
        self.global.verbose > 0
    }

    /// The options as given.
    pub(crate) fn global(&self) -> &Global {
        &self.global
    }

    /// Reads the configuration and starts logging as it says. Called once.
    pub(crate) fn config(&self) -> Result<Config> {
        let mut sources = Sources::of_process();
        if let Some(file) = &self.global.config {
            sources = sources.with_file(file);
        }
        for (key, value) in &self.global.set {
            sources = sources.with(key, value);
        }
        let config = Config::load(&sources)?;
        self.start_logging(&config)?;
        Ok(config)
    }

    /// A runtime: configuration, plugins.
    pub(crate) fn runtime(&self) -> Result<Runtime> {
        Ok(Runtime::with_config(self.config()?)?)
    }

    fn start_logging(&self, config: &Config) -> Result<()> {
        let is_set = config.provenance("log.level") != Provenance::Default;
        let level = match (self.global.quiet, self.global.verbose) {
            (true, _) => "error",
            (_, 0 | 1) if is_set => config.log.level.as_str(),
            (_, 0 | 1) => QUIET_LEVEL,
            (_, 2) => "debug",
            _ => "trace",
        };
        let filter = EnvFilter::try_new(level).map_err(|error| {
            Failure::usage(format!("log.level = \"{level}\": {error}"))
                .with_hint("a level (error, warn, info, debug, trace) or target=level, …")
        })?;
        let lines = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal());
        let started = match config.log.format {
            LogFormat::Text => lines.try_init(),
            LogFormat::Json => lines.json().flatten_event(true).try_init(),
        };
        started.map_err(|error| Failure::new(format!("logging cannot be started: {error}")))
    }
}
