//! Devices in memory: writes and sends are carried out when a completion is polled, as late as they may
//! be. Faults are set from outside.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::event::{EventfdFlags, eventfd};

use super::{
    Device, Ended, Fabric, GidEntry, GidKind, Library, Limits, Made, Memory, News, Port,
    Registered, Route, Run, SendWork, Shape, VerbsError, Work, status,
};

/// What goes wrong.
#[derive(Debug, Clone)]
pub(crate) struct Faults {
    pub(crate) max_mr_bytes: u64,
    pub(crate) fabric: Fabric,
    pub(crate) register_errno: Option<i32>,
    /// Devices that can't be opened.
    pub(crate) broken: Vec<String>,
    /// Every packet is lost.
    pub(crate) is_dark: bool,
    /// How many more sends are carried out; the rest stay under way.
    pub(crate) carries: Option<u32>,
    pub(crate) stop_errno: Option<i32>,
    pub(crate) destroy_errno: Option<i32>,
    /// How often a peer had no receive for what was sent.
    pub(crate) not_ready: u32,
    /// The longest write that was seen, and how many.
    pub(crate) writes: Vec<u32>,
}

#[derive(Debug, Default)]
struct Pair {
    peer: Option<u32>,
    is_stopped: bool,
    sends: VecDeque<SendWork>,
    receives: VecDeque<(u64, Run)>,
    ended: VecDeque<Ended>,
}

#[derive(Debug)]
struct World {
    faults: Faults,
    pairs: HashMap<u32, Pair>,
    /// By handle, which is the key as well.
    regions: HashMap<u64, Memory>,
    next: u32,
    devices: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct Mock(Arc<Mutex<World>>);

/// The faults of a mock, while they are held.
pub(crate) struct Held<'a>(MutexGuard<'a, World>);

impl std::ops::Deref for Held<'_> {
    type Target = Faults;
    fn deref(&self) -> &Faults {
        &self.0.faults
    }
}

impl std::ops::DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Faults {
        &mut self.0.faults
    }
}

impl Mock {
    pub(crate) fn new(devices: u32) -> Self {
        let faults = Faults {
            max_mr_bytes: 1 << 40,
            fabric: Fabric::Ethernet,
            register_errno: None,
            broken: Vec::new(),
            is_dark: false,
            carries: None,
            stop_errno: None,
            destroy_errno: None,
            not_ready: 0,
            writes: Vec::new(),
        };
        let (pairs, regions) = (HashMap::new(), HashMap::new());
        Self(Arc::new(Mutex::new(World { faults, pairs, regions, next: 17, devices })))
    }

    pub(crate) fn faults(&self) -> Held<'_> {
        Held(self.0.lock().unwrap())
    }

    pub(crate) fn queue_pairs(&self) -> usize {
        self.0.lock().unwrap().pairs.len()
    }

    pub(crate) fn registered_bytes(&self) -> u64 {
        self.0.lock().unwrap().regions.values().map(|memory| memory.length).sum()
    }
}

impl Library for Mock {
    fn device_names(&self) -> io::Result<Vec<String>> {
        let devices = self.0.lock().unwrap().devices;
        Ok((0..devices).map(|index| format!("mock{index}")).collect())
    }

    fn open(&self, name: &str) -> Result<Box<dyn Device>, VerbsError> {
        if self.faults().broken.iter().any(|broken| broken == name) {
            return Err(refuse("ibv_open_device", libc::EIO));
        }
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        Ok(Box::new(MockDevice {
            name: name.to_owned(),
            world: Arc::clone(&self.0),
            mine: Vec::new(),
            completions: event(),
            news: event(),
        }))
    }
}

#[derive(Debug)]
struct MockDevice {
    name: String,
    world: Arc<Mutex<World>>,
    mine: Vec<u32>,
    completions: OwnedFd,
    news: OwnedFd,
}

fn refuse(step: &'static str, number: i32) -> VerbsError {
    VerbsError::new(step, io::Error::from_raw_os_error(number))
}

impl World {
    fn memory(&self, key: u32, address: u64, length: u32) -> Option<*mut u8> {
        let memory = self.regions.get(&u64::from(key))?;
        let is_inside = address >= memory.address
            && address + u64::from(length) <= memory.address + memory.length;
        is_inside.then_some(address as *mut u8)
    }

    /// Carries out what a pair has posted, as far as it goes.
    fn carry(&mut self, number: u32) {
        while let Some(send) = self.pairs.get(&number).and_then(|pair| pair.sends.front().copied())
        {
            if let Some(left) = &mut self.faults.carries {
                let Some(less) = left.checked_sub(1) else { return };
                *left = less;
            }
            let Some(pair) = self.pairs.get_mut(&number) else { return };
            let (peer, is_stopped) = (pair.peer, pair.is_stopped);
            pair.sends.pop_front();
            let outcome = if is_stopped {
                Err(status::FLUSHED)
            } else if self.faults.is_dark {
                Err(status::RETRY_EXCEEDED)
            } else {
                self.one(peer, &send)
            };
            let Some(pair) = self.pairs.get_mut(&number) else { return };
            let ended = |status| Ended { id: send.id, status, vendor: 0, bytes: 0, note: None };
            match outcome {
                Ok(()) if send.is_signalled => pair.ended.push_back(ended(0)),
                Ok(()) => {}
                Err(number) => {
                    pair.is_stopped = true;
                    pair.ended.push_back(ended(number));
                }
            }
        }
    }

    fn one(&mut self, peer: Option<u32>, send: &SendWork) -> Result<(), i32> {
        let Run { address, length, key } = send.run;
        let source = if send.is_inline || length == 0 {
            address as *const u8
        } else {
            self.memory(key, address, length).ok_or(4)?.cast_const()
        };
        let peer = peer.filter(|peer| self.pairs.get(peer).is_some_and(|pair| !pair.is_stopped));
        let peer = peer.ok_or(status::RETRY_EXCEEDED)?;
        let (target, note, takes) = match send.work {
            Work::Send => (None, None, true),
            Work::Write { address, key } => (Some((address, key)), None, false),
            Work::WriteWithNote { address, key, note } => (Some((address, key)), Some(note), true),
        };
        let mut into = None;
        if let Some((address, key)) = target {
            into = Some(self.memory(key, address, length).ok_or(10)?);
            self.faults.writes.push(length);
        }
        let mut receive = None;
        if takes {
            let taken = self.pairs.get_mut(&peer).and_then(|pair| pair.receives.pop_front());
            let Some((id, run)) = taken else {
                self.faults.not_ready += 1;
                return Err(status::RNR_EXCEEDED);
            };
            if target.is_none() {
                if run.length < length {
                    return Err(9);
                }
                into = Some(self.memory(run.key, run.address, length).ok_or(10)?);
            }
            receive = Some(id);
        }
        if let Some(into) = into {
            // SAFETY: both lie in registered memory, or are inline bytes that live as long as the mock's
            // copy of them.
            unsafe { std::ptr::copy_nonoverlapping(source, into, length as usize) };
        }
        if let (Some(id), Some(pair)) = (receive, self.pairs.get_mut(&peer)) {
            pair.ended.push_back(Ended { id, status: 0, vendor: 0, bytes: length, note });
        }
        if send.is_inline {
            // SAFETY: `post_sends` made it of a boxed slice of this length, for this one use.
            drop(unsafe {
                let bytes = std::slice::from_raw_parts_mut(address as *mut u8, length as usize);
                Box::from_raw(std::ptr::from_mut(bytes))
            });
        }
        Ok(())
    }
}

impl Device for MockDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Result<Limits, VerbsError> {
        let max_mr_bytes = self.world.lock().unwrap().faults.max_mr_bytes;
        Ok(Limits { max_mr_bytes, ports: 1 })
    }

    fn port(&self, _port: u8) -> Result<Port, VerbsError> {
        let fabric = self.world.lock().unwrap().faults.fabric;
        Ok(Port { is_active: true, fabric, mtu: 5, lid: 0, megabits_per_second: 100_000 })
    }

    fn gids(&self, _port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        Ok(vec![GidEntry { index: 1, gid: [0xfd; 16], kind: GidKind::RoceV2 }])
    }

    fn pkey(&self, _port: u8, _index: u16) -> Result<u16, VerbsError> {
        Ok(0xffff)
    }

    unsafe fn register(&mut self, memory: Memory) -> Result<Registered, VerbsError> {
        let mut world = self.world.lock().unwrap();
        if let Some(number) = world.faults.register_errno {
            return Err(refuse("ibv_reg_mr", number));
        }
        if memory.length > world.faults.max_mr_bytes {
            return Err(refuse("ibv_reg_mr", libc::EINVAL));
        }
        world.next += 1;
        let key = world.next;
        world.regions.insert(u64::from(key), memory);
        Ok(Registered { handle: u64::from(key), local_key: key, remote_key: key })
    }

    fn deregister(&mut self, handle: u64) -> Result<(), VerbsError> {
        self.world.lock().unwrap().regions.remove(&handle);
        Ok(())
    }

    fn create(&mut self, shape: Shape) -> Result<Made, VerbsError> {
        let mut world = self.world.lock().unwrap();
        world.next += 1;
        let number = world.next;
        world.pairs.insert(number, Pair::default());
        self.mine.push(number);
        Ok(Made { number, inline_bytes: shape.inline_bytes })
    }

    fn initialise(&mut self, _: u32, _: u8, _: u16) -> Result<(), VerbsError> {
        Ok(())
    }

    fn connect(&mut self, number: u32, route: &Route) -> Result<(), VerbsError> {
        if let Some(pair) = self.world.lock().unwrap().pairs.get_mut(&number) {
            pair.peer = Some(route.number);
        }
        Ok(())
    }

    fn stop(&mut self, number: u32) -> Result<(), VerbsError> {
        let mut world = self.world.lock().unwrap();
        if let Some(number) = world.faults.stop_errno {
            return Err(refuse("ibv_modify_qp to ERR", number));
        }
        if let Some(pair) = world.pairs.get_mut(&number) {
            pair.is_stopped = true;
        }
        Ok(())
    }

    fn destroy(&mut self, number: u32) -> Result<(), VerbsError> {
        let mut world = self.world.lock().unwrap();
        if let Some(number) = world.faults.destroy_errno {
            return Err(refuse("ibv_destroy_qp", number));
        }
        world.pairs.remove(&number);
        self.mine.retain(|mine| *mine != number);
        Ok(())
    }

    unsafe fn post_sends(&mut self, number: u32, sends: &[SendWork]) -> Result<(), VerbsError> {
        let mut world = self.world.lock().unwrap();
        let pair = world.pairs.get_mut(&number).ok_or_else(|| refuse("post", libc::EINVAL))?;
        for send in sends {
            let mut send = *send;
            if send.is_inline {
                // SAFETY: the caller's run is readable during the call.
                let bytes = unsafe {
                    std::slice::from_raw_parts(
                        send.run.address as *const u8,
                        send.run.length as usize,
                    )
                };
                send.run.address = Box::into_raw(Box::<[u8]>::from(bytes)).cast::<u8>() as u64;
            }
            pair.sends.push_back(send);
        }
        Ok(())
    }

    unsafe fn post_receives(
        &mut self,
        number: u32,
        receives: &[(u64, Run)],
    ) -> Result<(), VerbsError> {
        let mut world = self.world.lock().unwrap();
        let pair = world.pairs.get_mut(&number).ok_or_else(|| refuse("post", libc::EINVAL))?;
        pair.receives.extend(receives);
        Ok(())
    }

    fn poll(&mut self, ended: &mut Vec<Ended>) -> Result<bool, VerbsError> {
        let mut world = self.world.lock().unwrap();
        let all: Vec<u32> = world.pairs.keys().copied().collect();
        for number in all {
            world.carry(number);
        }
        for number in &self.mine {
            if let Some(pair) = world.pairs.get_mut(number) {
                ended.extend(pair.ended.drain(..));
            }
        }
        Ok(false)
    }

    fn arm(&mut self) -> Result<(), VerbsError> {
        Ok(())
    }

    fn completion_descriptor(&self) -> RawFd {
        self.completions.as_raw_fd()
    }

    fn quiet(&mut self) {}

    fn news_descriptor(&self) -> RawFd {
        self.news.as_raw_fd()
    }

    fn next_news(&mut self) -> Option<News> {
        None
    }

    fn words(&self, status: i32) -> String {
        format!("status {status}")
    }

    fn forget(self: Box<Self>) {}
}
