//! Readiness of sockets by edge-triggered epoll: what the kernel said last about each descriptor is
//! kept here, and whoever meets "would block" takes it back. So nothing is registered twice, and a
//! socket that nobody wants to use costs nothing.
//!
//! The epoll descriptor itself can be polled: it is readable from the first news to the next
//! [`Poller::harvest`].

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};

/// Events taken from the kernel by one call.
const EVENTS: usize = 64;

/// What a descriptor is registered for, so that news of it can be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Listener,
    Waker,
    Timer,
    /// A connection that is not part of a channel yet.
    Newcomer,
    /// A socket of the channel in this place of the domain's table.
    Channel(usize),
}

/// A registered descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token(usize);

#[derive(Clone, Copy, Debug)]
struct Registered {
    owner: Owner,
    readable: bool,
    writable: bool,
    hung_up: bool,
}

#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
    registered: Vec<Option<Registered>>,
    free: Vec<usize>,
    /// Channels of whose sockets one was closed or broken by the peer.
    hung_up: Vec<usize>,
    woken: bool,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (registered, free, hung_up) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { epoll, registered, free, hung_up, woken: false })
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Registers a descriptor. It counts as not ready until the kernel says otherwise.
    pub(crate) fn add(&mut self, source: BorrowedFd<'_>, owner: Owner) -> io::Result<Token> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.registered.push(None);
            self.registered.len() - 1
        });
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        let flags = match owner {
            Owner::Listener | Owner::Waker | Owner::Timer => {
                epoll::EventFlags::IN | epoll::EventFlags::ET
            }
            Owner::Newcomer | Owner::Channel(_) => flags,
        };
        let data = epoll::EventData::new_u64(index as u64);
        if let Err(error) = epoll::add(&self.epoll, source, data, flags) {
            self.free.push(index);
            return Err(error.into());
        }
        self.registered[index] =
            Some(Registered { owner, readable: false, writable: false, hung_up: false });
        Ok(Token(index))
    }

    /// Forgets a descriptor, before it is closed: a child process may hold it open as well.
    pub(crate) fn remove(&mut self, token: Token, source: BorrowedFd<'_>) {
        // It fails only for a descriptor that is not registered, which is what is wanted.
        let _ = epoll::delete(&self.epoll, source);
        self.registered[token.0] = None;
        self.free.push(token.0);
    }

    pub(crate) fn set_owner(&mut self, token: Token, owner: Owner) {
        if let Some(registered) = &mut self.registered[token.0] {
            registered.owner = owner;
            if let (true, Owner::Channel(place)) = (registered.hung_up, owner) {
                self.hung_up.push(place);
            }
        }
    }

    pub(crate) fn is_readable(&self, token: Token) -> bool {
        self.registered[token.0].is_some_and(|registered| registered.readable)
    }

    pub(crate) fn is_writable(&self, token: Token) -> bool {
        self.registered[token.0].is_some_and(|registered| registered.writable)
    }

    pub(crate) fn is_hung_up(&self, token: Token) -> bool {
        self.registered[token.0].is_some_and(|registered| registered.hung_up)
    }

    /// Takes note that a read found less than it asked for. After a hang-up it stays readable, so
    /// that the end of the stream is found.
    pub(crate) fn is_drained(&mut self, token: Token) {
        if let Some(registered) = &mut self.registered[token.0] {
            registered.readable = registered.hung_up;
        }
    }

    /// Takes note that a write did not take all.
    pub(crate) fn is_full(&mut self, token: Token) {
        if let Some(registered) = &mut self.registered[token.0] {
            registered.writable = false;
        }
    }

    /// Takes the kernel's news, waiting at most `timeout` for them.
    pub(crate) fn harvest(&mut self, timeout: Duration) -> io::Result<()> {
        let mut timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX).min(1 << 20),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        loop {
            let mut events = [const { MaybeUninit::uninit() }; EVENTS];
            let (news, _) = match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
                Ok(news) => news,
                // The caller looks at its clock and comes back.
                Err(rustix::io::Errno::INTR) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let count = news.len();
            for event in news {
                self.note(event.data.u64() as usize, event.flags);
            }
            if count < EVENTS {
                return Ok(());
            }
            timeout = Timespec { tv_sec: 0, tv_nsec: 0 };
        }
    }

    fn note(&mut self, index: usize, flags: epoll::EventFlags) {
        use epoll::EventFlags as Flags;
        let Some(Some(registered)) = self.registered.get_mut(index) else { return };
        let broken = flags.intersects(Flags::HUP | Flags::ERR);
        registered.readable |= broken || flags.intersects(Flags::IN | Flags::RDHUP);
        registered.writable |= broken || flags.contains(Flags::OUT);
        if (broken || flags.contains(Flags::RDHUP)) && !registered.hung_up {
            registered.hung_up = true;
            if let Owner::Channel(place) = registered.owner {
                self.hung_up.push(place);
            }
        }
        self.woken |= registered.owner == Owner::Waker;
    }

    /// A channel of which a socket was closed or broken by the peer since this was last asked.
    pub(crate) fn next_hung_up(&mut self) -> Option<usize> {
        self.hung_up.pop()
    }

    pub(crate) fn has_hung_up(&self) -> bool {
        !self.hung_up.is_empty()
    }

    /// Whether the waker was used since this was last asked.
    pub(crate) fn take_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken)
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
