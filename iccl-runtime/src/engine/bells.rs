//! What drivers and the engine's thread sleep on: event descriptors, and the wake of a transport that
//! sleeps by itself.

use std::os::fd::RawFd;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

use super::domain::Wake;
use super::seat::Bells;
use crate::{Error, ErrorKind, Result};

/// Of two that sleep on one event either may take the news that is meant for the other, so there are
/// two.
pub(super) struct EventBells {
    /// Wakes a driver that sleeps inside a transport.
    transport: Option<Wake>,
    /// Wakes a driver that sleeps on several transports.
    driver: OwnedFd,
    thread: OwnedFd,
}

impl Bells for EventBells {
    fn wake_driver(&self) {
        match &self.transport {
            Some(wake) => wake(),
            None => signal(&self.driver),
        }
    }

    fn wake_thread(&self) {
        signal(&self.thread);
    }
}

impl EventBells {
    /// `transport` wakes a driver that sleeps inside the only transport there is.
    ///
    /// # Errors
    /// The operating system gives no descriptor.
    pub(super) fn new(transport: Option<Wake>) -> Result<Self, Errno> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self { transport, driver: event()?, thread: event()? })
    }

    /// Whether the driver sleeps inside its transport.
    pub(super) fn driver_sleeps_in_transport(&self) -> bool {
        self.transport.is_some()
    }

    /// The driver waits until one of the descriptors is readable or it is woken.
    pub(super) fn sleep_of_driver(&self, descriptors: &[RawFd], timeout: Duration) -> Result<()> {
        poll_descriptors(descriptors, self.driver.as_fd(), timeout)
    }

    /// The engine's thread waits until one of the descriptors is readable or it is woken.
    pub(super) fn sleep_of_thread(&self, descriptors: &[RawFd], timeout: Duration) -> Result<()> {
        poll_descriptors(descriptors, self.thread.as_fd(), timeout)
    }
}

/// Makes an event descriptor readable.
fn signal(event: &OwnedFd) {
    // Full means readable already.
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

/// Waits until one of the descriptors is readable.
fn poll_descriptors(descriptors: &[RawFd], event: BorrowedFd<'_>, timeout: Duration) -> Result<()> {
    let mut polled: Vec<PollFd<'_>> = descriptors
        .iter()
        .map(|descriptor| {
            // SAFETY: the descriptors belong to domains that live as long as the engine, which
            // waits for its drivers and its thread before it drops them.
            let descriptor = unsafe { BorrowedFd::borrow_raw(*descriptor) };
            PollFd::from_borrowed_fd(descriptor, PollFlags::IN)
        })
        .collect();
    polled.push(PollFd::from_borrowed_fd(event, PollFlags::IN));
    let timeout =
        Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => {
            return Err(Error::new(ErrorKind::TransportError, "the engine cannot poll its links")
                .with_source(std::io::Error::from(errno)));
        }
    }
    let mut count = [0; 8];
    // Empty means that nobody wrote.
    let _ = rustix::io::read(event, &mut count);
    Ok(())
}
