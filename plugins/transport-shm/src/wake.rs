//! Doorbells with the means to wake: the own one, those of peers, and the waker for other threads.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult, Waker};
use rustix::event::EventfdFlags;
use rustix::thread::futex;
use rustix::time::Timespec;

use crate::doorbell::{SLEEPS_ON_EVENT, SLEEPS_ON_FUTEX};
use crate::segment::DoorbellPage;

/// A doorbell that this process may ring, of a peer or its own.
#[derive(Debug)]
pub(crate) struct Bell {
    page: DoorbellPage,
    event: OwnedFd,
}

impl Bell {
    /// The bell whose two descriptors a peer sent.
    pub(crate) fn attach(page: BorrowedFd<'_>, event: OwnedFd) -> PluginResult<Self> {
        Ok(Self { page: DoorbellPage::attach(page)?, event })
    }

    /// Tells the owner that there is something to do.
    pub(crate) fn ring(&self) {
        let sleeps = self.page.ring();
        if sleeps == 0 {
            return;
        }
        if sleeps & SLEEPS_ON_FUTEX != 0 {
            // The flags are empty: not private, as the sleeper is another process.
            let _ = futex::wake(self.page.word(), futex::Flags::empty(), i32::MAX as u32);
        }
        if sleeps & SLEEPS_ON_EVENT != 0 {
            // The only failure is a counter that is full, which is readable already.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }
}

/// This domain's own doorbell.
#[derive(Debug)]
pub(crate) struct OwnBell {
    bell: Bell,
    page_file: OwnedFd,
    /// A [`Waker`] was used.
    woken: AtomicBool,
}

impl OwnBell {
    pub(crate) fn new() -> PluginResult<Self> {
        let (page, page_file) = DoorbellPage::create()?;
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| {
                PluginError::system(Status::OutOfResources, "eventfd", &errno.into())
            })?;
        Ok(Self { bell: Bell { page, event }, page_file, woken: AtomicBool::new(false) })
    }

    /// What a peer needs to ring: see [`Bell::attach`].
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.page_file.as_fd(), self.bell.event.as_fd()]
    }

    /// Readable when the bell was rung while [`OwnBell::prepare_event`] was in force.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.bell.event.as_fd()
    }

    pub(crate) fn count(&self) -> u32 {
        self.bell.page.count()
    }

    /// Whether the waker was used since the last call.
    pub(crate) fn take_woken(&self) -> bool {
        self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::Acquire)
    }

    /// From now on a ring makes the event descriptor readable; false if it was rung since `seen`.
    pub(crate) fn prepare_event(&self, seen: u32) -> bool {
        self.bell.page.prepare(seen, SLEEPS_ON_EVENT).is_some()
    }

    /// Sleeps until the bell is rung, at most `timeout`; not at all if it was rung since `seen`.
    pub(crate) fn sleep(&self, seen: u32, timeout: Duration) {
        if let Some(value) = self.bell.page.prepare(seen, SLEEPS_ON_FUTEX) {
            let timeout = Timespec::try_from(timeout).ok();
            let word = self.bell.page.word();
            // Woken, changed in between, timed out, interrupted: the caller looks for itself.
            let _ = futex::wait(word, futex::Flags::empty(), value, timeout.as_ref());
        }
        self.awake();
    }

    /// Ends [`OwnBell::prepare_event`].
    pub(crate) fn awake(&self) {
        self.bell.page.awake();
    }

    /// Makes the event descriptor unreadable again.
    pub(crate) fn drain_event(&self) {
        let _ = rustix::io::read(&self.bell.event, &mut [0_u8; 8]);
    }
}

/// Wakes a domain from another thread.
#[derive(Debug, Clone)]
pub struct ShmWaker {
    pub(crate) bell: Arc<OwnBell>,
}

impl Waker for ShmWaker {
    fn wake(&self) {
        self.bell.woken.store(true, Ordering::Release);
        self.bell.bell.ring();
    }
}
