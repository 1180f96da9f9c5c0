//! Safe traits for plugin authors, and the adaptors that turn them into tables.
//!
//! A plugin implements [`Plugin`], and one or more of [`DeviceBackend`], [`NativeCollectives`] and
//! [`Transport`], and names them in [`export_plugin!`](crate::export_plugin). The adaptors own the
//! handles, check arguments, catch panics (they arrive at the host as
//! [`Status::Panic`](crate::Status)) and carry errors across.

mod collectives;
mod device;
mod error;
mod transport;

pub use collectives::{
    CollectivesFacts, DeviceOf, NativeCall, NativeCollectives, NativeCommunicator,
};
pub use device::{Device, DeviceBackend, DeviceFacts, HostCallback};
pub use error::{PluginError, PluginResult, Progress};
pub use transport::{
    ChannelRequest, CompletionSink, DomainRequest, Envelope, PostedMessage, Transport,
    TransportDomain, TransportFacts, Waker,
};

use crate::tables::SettingSpec;

/// What a plugin is. Everything here is pure.
pub trait Plugin: Send + Sync + 'static {
    /// The name in kebab case, as used in configuration.
    const NAME: &'static str;
    /// The plugin's own version, semver; usually `env!("CARGO_PKG_VERSION")`.
    const VERSION: &'static str;
    /// Who makes it.
    const VENDOR: &'static str;
    /// One line that says what it is.
    const DESCRIPTION: &'static str;
    /// The settings that it understands.
    const SETTINGS: &'static [SettingSpec] = &[];

    /// Opens the vendor's libraries and looks for devices. Called once, before anything else;
    /// what it gives is kept for the life of the process.
    ///
    /// # Errors
    /// `NoDevice` and `LibraryMissing` are normal answers, with the vendor's own text.
    fn probe(settings: &Settings<'_>) -> PluginResult<Self>
    where
        Self: Sized;

    /// Checks the plugin's own promises.
    ///
    /// # Errors
    /// What was promised and is not so.
    fn self_test(&self) -> PluginResult<()> {
        Ok(())
    }
}

/// The settings that the operator gave for this plugin.
#[derive(Debug, Clone, Default)]
pub struct Settings<'a> {
    values: Vec<(&'a str, &'a str)>,
}

impl<'a> Settings<'a> {
    /// Settings from pairs of key and value, for tests and statically linked plugins.
    pub fn new(values: Vec<(&'a str, &'a str)>) -> Self {
        Self { values }
    }

    /// The text given for `key`, if any.
    pub fn text(&self, key: &str) -> Option<&'a str> {
        self.values.iter().rev().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }

    /// The number given for `key`, if any: an integer, bytes, or a duration in microseconds.
    ///
    /// # Errors
    /// `InvalidArgument` naming key and value if it is not a number.
    pub fn number(&self, key: &str) -> PluginResult<Option<u64>> {
        self.text(key)
            .map(|value| {
                value.parse().map_err(|_| {
                    PluginError::invalid(format!("setting {key}: `{value}` is not a whole number"))
                })
            })
            .transpose()
    }
}
