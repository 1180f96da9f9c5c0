//! A channel that is not open yet: this side dials all of its sockets, or waits for the peer's.

use std::time::Instant;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::PluginError;

use crate::core::Core;
use crate::dialer::{Dialer, digests_differ};
use crate::framing::Layout;
use crate::greeting::Terms;
use crate::newcomers::Arrival;
use crate::poller::{Owner, Poller};
use crate::socket::{Connection, failure};

#[derive(Debug)]
pub(crate) enum Opening {
    Dialing { layout: Layout, lanes: Vec<Dialing> },
    Awaiting { deadline: Instant, layout: Option<Layout>, lanes: Vec<Option<Connection>> },
}

#[derive(Debug)]
pub(crate) enum Dialing {
    Dialer(Box<Dialer>),
    Done(Connection),
}

/// How far an opening is.
#[derive(Debug)]
pub(crate) enum Opened {
    NotYet,
    /// All sockets, in order, and how payloads are cut.
    Open(Vec<Connection>, Layout),
    Failed(PluginError),
}

impl Opening {
    pub(crate) fn dial(layout: Layout, dialers: Vec<Dialer>) -> Self {
        let lanes = dialers.into_iter().map(|dialer| Dialing::Dialer(Box::new(dialer))).collect();
        Self::Dialing { layout, lanes }
    }

    pub(crate) fn await_peer(deadline: Instant) -> Self {
        Self::Awaiting { deadline, layout: None, lanes: Vec::new() }
    }

    pub(crate) fn is_ready(&self, poller: &Poller) -> bool {
        match self {
            Self::Dialing { lanes, .. } => lanes.iter().any(|lane| match lane {
                Dialing::Dialer(dialer) => dialer.is_ready(poller),
                Dialing::Done(_) => false,
            }),
            Self::Awaiting { .. } => false,
        }
    }

    /// When `step` is to be called at the latest.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match self {
            Self::Dialing { lanes, .. } => lanes
                .iter()
                .filter_map(|lane| match lane {
                    Dialing::Dialer(dialer) => Some(dialer.next_deadline()),
                    Dialing::Done(_) => None,
                })
                .min(),
            Self::Awaiting { deadline, .. } => Some(*deadline),
        }
    }

    /// Moves on. `who` names the channel, `last_dropped` helps to explain why a peer did not come.
    pub(crate) fn step(
        &mut self,
        who: &str,
        owner: Owner,
        core: &mut Core,
        now: Instant,
        last_dropped: Option<&str>,
    ) -> Opened {
        match self {
            Self::Dialing { lanes, .. } => {
                for lane in lanes {
                    let Dialing::Dialer(dialer) = lane else { continue };
                    match dialer.step(core, now) {
                        Ok(None) => {}
                        Ok(Some(connection)) => {
                            core.poller.set_owner(connection.token, owner);
                            *lane = Dialing::Done(connection);
                        }
                        Err(error) => return Opened::Failed(error),
                    }
                }
            }
            Self::Awaiting { deadline, lanes, .. } if now >= *deadline => {
                let came = lanes.iter().flatten().count();
                let of = match lanes.len() {
                    0 => String::new(),
                    all => format!(" ({came} of {all} sockets came)"),
                };
                let dropped = last_dropped
                    .map(|text| format!("; the last connection that was dropped was {text}"))
                    .unwrap_or_default();
                let within = core.identity.connect_timeout;
                let text =
                    format!("{who}: the peer did not connect within {within:?}{of}{dropped}");
                return Opened::Failed(PluginError::new(Status::Timeout, text));
            }
            Self::Awaiting { .. } => {}
        }
        self.finish()
    }

    /// Takes a connection of the peer that has proved itself, and answers it. Gives the connection
    /// back with a reason if there is no use for it.
    pub(crate) fn attach(
        &mut self,
        who: &str,
        owner: Owner,
        link_digest: u64,
        arrival: Arrival,
        core: &mut Core,
    ) -> Result<Opened, (Connection, String)> {
        let Arrival { connection, mut greeting, terms, .. } = arrival;
        let Self::Awaiting { layout, lanes, .. } = self else {
            return Err((connection, "this side dials the channel".to_owned()));
        };
        if *layout.get_or_insert(terms.layout) != terms.layout {
            return Err((connection, "its sockets disagree about the channel".to_owned()));
        }
        lanes.resize_with(terms.layout.lanes as usize, || None);
        greeting.answer(Terms { link_digest, ..terms });
        let answer = greeting.output().to_vec();
        let told = match connection.send_bytes(&answer, &mut core.poller) {
            Ok(Some(bytes)) if bytes == answer.len() as u64 => Ok(()),
            // The socket is empty, so there is room for a few bytes.
            Ok(_) => Err(std::io::Error::from_raw_os_error(libc::ENOBUFS)),
            Err(error) => Err(error),
        };
        core.poller.set_owner(connection.token, owner);
        if let Some(before) = lanes[terms.lane as usize].replace(connection) {
            // The peer gave that one up, else it would not have dialed again.
            before.close(&mut core.poller);
        }
        if terms.link_digest != link_digest {
            return Ok(Opened::Failed(digests_differ(who, link_digest, terms.link_digest)));
        }
        Ok(match told {
            Ok(()) => self.finish(),
            Err(error) => Opened::Failed(failure(who, &error)),
        })
    }

    /// Gives the sockets if all are there.
    fn finish(&mut self) -> Opened {
        match self {
            Self::Dialing { layout, lanes } => {
                if lanes.iter().all(|lane| matches!(lane, Dialing::Done(_))) {
                    let layout = *layout;
                    return Opened::Open(self.take_connections(), layout);
                }
            }
            Self::Awaiting { layout: Some(layout), lanes, .. } => {
                if lanes.iter().all(Option::is_some) {
                    let layout = *layout;
                    return Opened::Open(self.take_connections(), layout);
                }
            }
            Self::Awaiting { layout: None, .. } => {}
        }
        Opened::NotYet
    }

    fn take_connections(&mut self) -> Vec<Connection> {
        match self {
            Self::Dialing { lanes, .. } => lanes
                .drain(..)
                .filter_map(|lane| match lane {
                    Dialing::Done(connection) => Some(connection),
                    Dialing::Dialer(_) => None,
                })
                .collect(),
            Self::Awaiting { lanes, .. } => lanes.drain(..).flatten().collect(),
        }
    }

    /// Ends the attempts and gives the sockets that are connected already.
    pub(crate) fn give_up(&mut self, poller: &mut Poller) -> Vec<Connection> {
        if let Self::Dialing { lanes, .. } = self {
            for lane in lanes {
                if let Dialing::Dialer(dialer) = lane {
                    dialer.hang_up(poller);
                }
            }
        }
        self.take_connections()
    }
}
