//! Drives a [`Greeting`] over a connection.

use std::io;

use crate::greeting::{Greeting, GreetingError};
use crate::poller::Poller;
use crate::socket::Connection;

/// Why a connection is not going to be part of a channel.
#[derive(Debug)]
pub(crate) enum Rejection {
    Greeting(GreetingError),
    /// The peer closed the connection before it had said what it has to.
    Closed,
    System(io::Error),
}

impl std::fmt::Display for Rejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Greeting(error) => error.fmt(f),
            Self::Closed => f.write_str("it closed the connection before it had proved itself"),
            Self::System(error) => error.fmt(f),
        }
    }
}

/// Moves the greeting on as far as the connection allows. Takes no byte of what follows it.
pub(crate) fn greet(
    greeting: &mut Greeting,
    connection: &Connection,
    poller: &mut Poller,
) -> Result<(), Rejection> {
    loop {
        while !greeting.output().is_empty() && poller.is_writable(connection.token) {
            let sent = connection.send_bytes(greeting.output(), poller);
            match sent.map_err(Rejection::System)? {
                Some(bytes) => greeting.output_sent(bytes as usize),
                None => break,
            }
        }
        let mut buffer = [0; 256];
        let wanted = greeting.wanted_bytes().min(buffer.len());
        if wanted == 0 || !poller.is_readable(connection.token) {
            return Ok(());
        }
        let buffer = &mut buffer[..wanted];
        match connection.receive_bytes(buffer, poller).map_err(Rejection::System)? {
            None => return Ok(()),
            Some(0) => return Err(Rejection::Closed),
            Some(bytes) => {
                if let Err(error) = greeting.input(&buffer[..bytes as usize]) {
                    // The peer may be told why; if it does not listen, that is its loss.
                    let _ = connection.send_bytes(greeting.output(), poller);
                    return Err(Rejection::Greeting(error));
                }
            }
        }
    }
}
