//! From a loaded plugin to one that is used: probe, facts, self-test. The same in the child process
//! and in this one.

use iccl_plugin_api::Status;
use iccl_plugin_api::host::PluginView;
use iccl_plugin_api::sdk::{CollectivesFacts, DeviceFacts, TransportFacts};
use iccl_plugin_api::tables::{CollectiveSupport, HostTable};

use super::image::call_refusal;
use super::reason::{Reason, Refusal};
use super::self_test;

/// More devices than any host has.
const MOST_DEVICES: u32 = 4096;

/// What a plugin that was probed offers here.
#[derive(Clone, Debug, Default)]
pub(super) struct Offer {
    pub(super) devices: Vec<DeviceFacts>,
    pub(super) transport: Option<TransportFacts>,
    pub(super) collectives: Option<Native>,
    /// Combinations of native collectives that the self-test found wrong, each with the reason.
    pub(super) struck: Vec<String>,
}

/// What a native library can do, without what the self-test struck.
#[derive(Clone, Debug)]
pub(super) struct Native {
    pub(super) facts: CollectivesFacts,
    pub(super) support: Vec<CollectiveSupport>,
}

/// Which self-tests are run.
#[derive(Clone, Copy, Debug)]
pub(super) enum SelfTests<'a> {
    /// All.
    Run,
    /// None, as the configuration says.
    Off,
    /// The child process ran them, with this result.
    Known(&'a [CollectiveSupport]),
}

/// Probes a plugin and asks what it offers. `stage` hears what is done next, so that a crash can be
/// told where it happened.
pub(super) fn activate(
    view: PluginView,
    host: &'static HostTable,
    settings: &[(String, String)],
    self_tests: SelfTests<'_>,
    mut stage: impl FnMut(&'static str),
) -> Result<Offer, Refusal> {
    stage("probe");
    let settings: Vec<(&str, &str)> =
        settings.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    view.probe(Some(host), &settings).map_err(|error| {
        let reason = match error.status {
            Status::NoDevice => Reason::NoDevice,
            Status::LibraryMissing => Reason::LibraryMissing,
            _ => Reason::ProbeFailed,
        };
        match reason {
            Reason::ProbeFailed => call_refusal(reason, &error),
            _ => Refusal::new(reason, error.message),
        }
    })?;

    stage("facts");
    let mut offer = Offer::default();
    if let Some(device) = view.device() {
        let count = device.count().map_err(|error| call_refusal(Reason::BadFacts, &error))?;
        if count > MOST_DEVICES {
            return Err(Refusal::new(Reason::BadFacts, format!("it says it has {count} devices")));
        }
        if count == 0 && view.transport().is_none() {
            return Err(Refusal::new(Reason::NoDevice, "the plugin counts 0 devices"));
        }
        offer.devices = (0..count)
            .map(|index| device.facts(index))
            .collect::<Result<_, _>>()
            .map_err(|error| call_refusal(Reason::BadFacts, &error))?;
    }
    if let Some(transport) = view.transport() {
        let facts = transport.facts().map_err(|error| call_refusal(Reason::BadFacts, &error))?;
        offer.transport = Some(facts);
    }
    if let Some(collectives) = view.collectives() {
        let facts = collectives.facts().map_err(|error| call_refusal(Reason::BadFacts, &error))?;
        offer.collectives = Some(Native { facts, support: facts.support.to_vec() });
    }

    match self_tests {
        SelfTests::Off => {}
        SelfTests::Known(support) => {
            if let Some(native) = &mut offer.collectives {
                native.support = support.to_vec();
            }
        }
        SelfTests::Run => {
            stage("self-test");
            view.self_test().map_err(|error| call_refusal(Reason::SelfTestFailed, &error))?;
            if let (Some(native), false) = (&mut offer.collectives, offer.devices.is_empty()) {
                offer.struck = self_test::strike(view, offer.devices.len(), &mut native.support);
            }
        }
    }
    Ok(offer)
}
