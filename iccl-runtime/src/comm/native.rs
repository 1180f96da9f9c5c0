//! Native communicators: one for each island of two ranks or more, made while a communicator is made.
//!
//! The island's first rank asks the library for an id, the bootstrap takes it to the others, and all join.
//! Libraries may block there for ever, so whatever is asked of them runs on an expendable thread with a
//! deadline. If any rank fails, all ranks hear of it as evidence and plan without that island's library.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use iccl_plugin_api::host::OpenCommunicator;
use iccl_plugin_api::sdk::NativeCall;

use super::device::Device;
use crate::engine::{NativeDevice, NativeIsland, Operands};
use crate::plan::{Plan, PlannedIsland, RankFact};
use crate::plugins::{CollectivesPlugin, PluginSet};
use crate::schedule::IslandCall;
use crate::topology::{NativeAbilities, NativeLibrary, RankSet, reach};
use crate::{Error, ErrorKind, Result};

/// The native library that this rank may use on its device.
pub(super) fn library(plugins: &PluginSet, device: &Device) -> Option<NativeLibrary> {
    // Where the device's memory is the host's, the host's own algorithms are as near to it.
    device.inner.pinned.as_ref()?;
    let library = library_of(plugins, device.plugin())?;
    Some(NativeLibrary { is_given_up: device.inner.native.why_given_up().is_some(), ..library })
}

/// The native library that a plugin brings, if it has found one.
pub(super) fn library_of(plugins: &PluginSet, plugin: &str) -> Option<NativeLibrary> {
    let collectives = plugins.collectives_of(plugin)?;
    Some(NativeLibrary {
        id: collectives.library().to_owned(),
        reach: reach::SAME_HOST | reach::OTHER_HOSTS,
        abilities: NativeAbilities::new(collectives.flags(), collectives.support()),
        is_given_up: false,
        later_fields: Vec::new(),
    })
}

/// The part of one rank in making its island's native communicator.
pub(super) struct Attempt<'a> {
    rank: u32,
    island: &'a PlannedIsland,
    collectives: &'a CollectivesPlugin,
    device: &'a Device,
    deadline: Instant,
}

/// A native communicator that was made. Dropping it gives it up, unless an engine [has it](Self::keep).
pub(super) struct Joined(Option<Arc<Made>>);

struct Made {
    communicator: OpenCommunicator,
    name: String,
    device: Device,
}

impl<'a> Attempt<'a> {
    /// What this rank has to try; nothing if it is on no island whose library is used.
    pub(super) fn new(
        plan: &'a Plan,
        rank: u32,
        plugins: &'a PluginSet,
        device: &'a Device,
        deadline: Instant,
    ) -> Option<Self> {
        let mut islands = plan.islands().iter();
        let island = islands.find(|island| island.is_used() && island.ranks.contains(&rank))?;
        let collectives = plugins.collectives_of(device.plugin())?;
        Some(Self { rank, island, collectives, device, deadline })
    }

    /// The id of the native communicator, if this rank is the one that asks for it, or what is to be told
    /// to the other ranks. `meanwhile` is called again and again; its error ends the attempt.
    ///
    /// # Errors
    /// The error of `meanwhile`.
    pub(super) fn unique_id(
        &self,
        meanwhile: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Result<Vec<u8>, RankFact>> {
        if self.island.ranks[0] != self.rank {
            return Ok(Ok(Vec::new()));
        }
        let view = self.collectives.view();
        let asking = match expendable("iccl-native-id", move || view.unique_id()) {
            Ok(asking) => asking,
            Err(error) => return Ok(Err(RankFact::native_failed(false, error.message()))),
        };
        Ok(match wait(&asking, self.deadline, meanwhile)? {
            Some(Ok(id)) => Ok(id),
            Some(Err(error)) => Err(RankFact::native_failed(false, &error.to_string())),
            None => Err(RankFact::native_failed(true, "no unique id in time")),
        })
    }

    /// Joins with the ids that the ranks have told. `meanwhile` is as in [`Self::unique_id`].
    ///
    /// # Errors
    /// The error of `meanwhile`.
    pub(super) fn join(
        &self,
        ids: &[Vec<u8>],
        meanwhile: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Result<Joined, RankFact>> {
        let Self { rank, island, collectives, device, deadline } = self;
        let id = ids.get(island.ranks[0] as usize).cloned().unwrap_or_default();
        if id.is_empty() {
            // Whoever should have asked for it has told why there is none.
            return Ok(Err(RankFact::native_failed(true, "no unique id came")));
        }
        let place = island.ranks.iter().position(|one| one == rank).unwrap_or(0);
        let (view, open) = (collectives.view(), Arc::clone(&device.inner.open));
        let ranks = island.ranks.len() as u32;
        let joining =
            expendable("iccl-native-join", move || view.join(&open, &id, ranks, place as u32));
        let joining = match joining {
            Ok(joining) => joining,
            Err(error) => return Ok(Err(RankFact::native_failed(false, error.message()))),
        };
        Ok(match wait(&joining, *deadline, meanwhile)? {
            Some(Ok(communicator)) => {
                let members: RankSet = island.ranks.iter().copied().collect();
                let name = format!("{} on {}", island.library, members.phrase());
                let made = Made { communicator, name, device: (*device).clone() };
                Ok(Joined(Some(Arc::new(made))))
            }
            Some(Err(error)) => Err(RankFact::native_failed(false, &error.to_string())),
            None => {
                Err(RankFact::native_failed(true, "its native communicator was not there in time"))
            }
        })
    }
}

impl Joined {
    /// For an engine to start with.
    pub(super) fn island(&self) -> Option<Arc<dyn NativeIsland>> {
        self.0.clone().map(|made| made as Arc<dyn NativeIsland>)
    }

    /// The engine has it, and leaves it.
    pub(super) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Joined {
    /// Leaves it on a thread that nobody waits for: a library may wait for the other ranks here.
    fn drop(&mut self) {
        let Some(made) = self.0.take() else { return };
        // If there is no thread, what it would have had is not dropped here.
        let made = ManuallyDrop::new(made);
        let leaving = expendable("iccl-native-leave", move || {
            let made = ManuallyDrop::into_inner(made);
            if let Err(error) = made.communicator.abort() {
                tracing::debug!(%error, "a native communicator that is not used was not aborted");
            }
            drop(made);
        });
        if let Err(error) = leaving {
            tracing::warn!(%error, "a native communicator is left as it is");
        }
    }
}

impl Made {
    /// It is of this rank's device, and so of this rank.
    fn error(&self, error: iccl_plugin_api::host::CallError) -> Error {
        self.device.inner.error(error).with("device", &self.device)
    }
}

impl NativeIsland for Made {
    fn name(&self) -> &str {
        &self.name
    }

    unsafe fn call(&self, call: &IslandCall, operands: &Operands, stream: u64) -> Result<()> {
        let call = NativeCall {
            collective: call.collective,
            dtype: call.dtype,
            op: call.op,
            root: call.root,
            count: operands.count(call),
            send: operands.sent.address.cast_const().cast(),
            receive: operands.received.address.cast(),
            send_counts: &operands.sent.counts,
            send_displacements: &operands.sent.displacements,
            receive_counts: &operands.received.counts,
            receive_displacements: &operands.received.displacements,
        };
        // SAFETY: the caller promises what the plugin asks for.
        unsafe { self.communicator.call(&call, stream) }.map_err(|error| self.error(error))
    }

    fn async_error(&self) -> Result<()> {
        self.communicator.async_error().map(drop).map_err(|error| self.error(error))
    }

    fn abort(&self) -> Result<()> {
        self.communicator.abort().map_err(|error| self.error(error))
    }

    fn device(&self) -> &Arc<NativeDevice> {
        &self.device.inner.native
    }
}

/// Does something on a thread that is left to itself if it takes too long; then what it gives is dropped
/// there.
fn expendable<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Receiver<T>> {
    let (sender, receiver) = sync_channel(1);
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || drop(sender.send(work())))
        .map_err(|error| {
            Error::new(ErrorKind::OutOfResources, "no thread for a native library")
                .with_source(error)
        })?;
    Ok(receiver)
}

/// What an expendable thread gives, or `None` at the deadline.
fn wait<T>(
    receiver: &Receiver<T>,
    deadline: Instant,
    meanwhile: &mut dyn FnMut() -> Result<()>,
) -> Result<Option<T>> {
    loop {
        match receiver.recv_timeout(Duration::from_micros(200)) {
            Ok(given) => return Ok(Some(given)),
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => meanwhile()?,
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::new(ErrorKind::Internal, "a native library's thread panicked"));
            }
        }
    }
}

/// Whether the flag says that nobody wants the communicator any more.
pub(super) fn is_cancelled(cancel: &AtomicBool) -> Result<()> {
    if cancel.load(Ordering::Relaxed) {
        return Err(Error::new(ErrorKind::Aborted, "the initialisation was given up"));
    }
    Ok(())
}
