//! The descriptors that a domain watches: its listener, its sockets, its doorbell's event and a
//! timer for deadlines, all behind the one descriptor that the runtime polls.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// What a watched descriptor belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Listener,
    Bell,
    Timer,
    /// A connection that no channel has yet, by its number in the lobby.
    Guest(u64),
    /// A channel's socket, by the channel's handle.
    Socket(u64),
    /// The process of a channel's peer.
    Process(u64),
}

const KIND_SHIFT: u32 = 56;

impl Source {
    fn encode(self) -> u64 {
        let (kind, number) = match self {
            Self::Listener => (0, 0),
            Self::Bell => (1, 0),
            Self::Timer => (2, 0),
            Self::Guest(guest) => (3, guest),
            Self::Socket(channel) => (4, channel),
            Self::Process(channel) => (5, channel),
        };
        debug_assert!(number >> KIND_SHIFT == 0);
        kind << KIND_SHIFT | number
    }

    fn decode(data: u64) -> Self {
        let number = data & ((1 << KIND_SHIFT) - 1);
        match data >> KIND_SHIFT {
            0 => Self::Listener,
            1 => Self::Bell,
            2 => Self::Timer,
            3 => Self::Guest(number),
            4 => Self::Socket(number),
            _ => Self::Process(number),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Events {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// What the timer is set to.
    alarm: Option<Instant>,
}

fn system(what: &str, errno: Errno) -> PluginError {
    PluginError::system(Status::OutOfResources, what, &errno.into())
}

impl Events {
    pub(crate) fn new() -> PluginResult<Self> {
        let epoll =
            epoll::create(CreateFlags::CLOEXEC).map_err(|errno| system("epoll_create1", errno))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|errno| system("timerfd_create", errno))?;
        let events = Self { epoll, timer, alarm: None };
        events.watch(events.timer.as_fd(), Source::Timer)?;
        Ok(events)
    }

    /// The descriptor that becomes readable when any of the watched ones does.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Watches for something to read, or the end of it.
    pub(crate) fn watch(&self, descriptor: BorrowedFd<'_>, source: Source) -> PluginResult<()> {
        let data = EventData::new_u64(source.encode());
        epoll::add(&self.epoll, descriptor, data, EventFlags::IN)
            .map_err(|errno| system("epoll_ctl", errno))
    }

    /// Ends the watch. Closing is not enough: a forked child may hold a copy of the descriptor.
    pub(crate) fn forget(&self, descriptor: BorrowedFd<'_>) {
        // It may have been forgotten already.
        let _ = epoll::delete(&self.epoll, descriptor);
    }

    /// Which descriptors are readable now, at most `room` of them.
    pub(crate) fn readable(&self, room: usize) -> PluginResult<Vec<Source>> {
        let mut events: Vec<Event> = Vec::with_capacity(room);
        let now = Timespec::default();
        let space = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.epoll, space, Some(&now)) {
            Ok(_) => {}
            Err(Errno::INTR) => events.clear(),
            Err(errno) => return Err(system("epoll_wait", errno)),
        }
        Ok(events.iter().map(|event| Source::decode(event.data.u64())).collect())
    }

    /// Waits until one is readable, at most `timeout`. Whether one is.
    pub(crate) fn wait(&self, timeout: Duration) -> PluginResult<bool> {
        let timeout = Timespec::try_from(timeout).ok();
        let mut descriptors = [PollFd::from_borrowed_fd(self.epoll.as_fd(), PollFlags::IN)];
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(system("poll", errno)),
        }
    }

    /// Makes the timer readable at `alarm`, or never.
    pub(crate) fn set_alarm(&mut self, alarm: Option<Instant>) -> PluginResult<()> {
        if alarm == self.alarm {
            return Ok(());
        }
        // All zeroes would switch the timer off, so an alarm in the past is one in a nanosecond.
        let value = alarm.map_or_else(Timespec::default, |alarm| {
            let left = alarm.saturating_duration_since(Instant::now());
            Timespec::try_from(left.max(Duration::from_nanos(1)))
                .unwrap_or(Timespec { tv_sec: i64::from(u32::MAX), tv_nsec: 0 })
        });
        let setting = Itimerspec { it_interval: Timespec::default(), it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting)
            .map_err(|errno| system("timerfd_settime", errno))?;
        self.alarm = alarm;
        Ok(())
    }

    /// The timer has fired.
    pub(crate) fn clear_alarm(&mut self) {
        let _ = rustix::io::read(&self.timer, &mut [0_u8; 8]);
        self.alarm = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_survive_the_kernel() {
        let handle = (0x00ff_ffff_u64 << 32) | 0x11;
        for source in [
            Source::Listener,
            Source::Bell,
            Source::Timer,
            Source::Guest(3),
            Source::Socket(handle),
            Source::Process(handle),
        ] {
            assert_eq!(Source::decode(source.encode()), source);
        }
    }

    #[test]
    fn the_alarm_makes_the_descriptor_readable() {
        let mut events = Events::new().unwrap();
        assert!(!events.wait(Duration::ZERO).unwrap());
        events.set_alarm(Some(Instant::now())).unwrap();
        assert!(events.wait(Duration::from_secs(20)).unwrap());
        assert_eq!(events.readable(8).unwrap(), [Source::Timer]);
        events.clear_alarm();
        assert!(!events.wait(Duration::ZERO).unwrap());
    }
}
