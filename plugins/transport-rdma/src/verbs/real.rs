//! libibverbs, taken by name at run time, so that this plugin loads on every machine.

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::os::fd::RawFd;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;

use iccl_vendor_support::Library as Opened;

use super::sys::{self, Functions, ibv_qp_attr};
use super::{
    Device, Ended, Fabric, GidEntry, GidKind, Library, Limits, Made, Memory, News, Port,
    Registered, Route, Run, SendWork, Shape, VerbsError, Work,
};

/// The library's name, for the loader and for people.
pub(crate) const SONAME: &str = "libibverbs.so.1";

/// Completions that one queue has room for, where the device has.
const QUEUE_ENTRIES: u32 = 4096;

/// Most work requests given to the driver in one call.
const BATCH: usize = 16;

/// libibverbs, opened.
#[derive(Debug)]
pub(crate) struct Ibverbs {
    functions: Functions,
    _library: Opened,
}

impl Ibverbs {
    /// Opens the library. No device is touched.
    ///
    /// # Errors
    /// The loader's words, or what the library lacks.
    pub(crate) fn open() -> Result<Arc<Self>, String> {
        // SAFETY: whoever put the library where the loader looks wants it to be run.
        let library = unsafe { Opened::open(Path::new(SONAME)) }?;
        // SAFETY: these are the signatures of `infiniband/verbs.h`.
        let functions = unsafe { Functions::resolve(&library) };
        let functions = functions.map_err(|missing| format!("{SONAME}: {missing}"))?;
        // Without it a forked child takes pages of registered memory from its parent, on kernels before 5.12.
        // SAFETY: called before anything is registered by this image.
        let answer = unsafe { (functions.ibv_fork_init)() };
        if answer != 0 {
            tracing::debug!(answer, "ibv_fork_init");
        }
        Ok(Arc::new(Self { functions, _library: library }))
    }
}

/// The list of devices, freed at its end.
struct Devices<'a> {
    functions: &'a Functions,
    list: *mut *mut sys::ibv_device,
    count: usize,
}

impl<'a> Devices<'a> {
    fn all(functions: &'a Functions) -> io::Result<Self> {
        let mut count: c_int = 0;
        // SAFETY: `count` is written during the call.
        let list = unsafe { (functions.ibv_get_device_list)(&raw mut count) };
        if list.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { functions, list, count: usize::try_from(count).unwrap_or(0) })
    }

    fn iter(&self) -> impl Iterator<Item = (*mut sys::ibv_device, String)> {
        (0..self.count).map(|index| {
            // SAFETY: the list has `count` devices, which live as long as it.
            let device = unsafe { *self.list.add(index) };
            // SAFETY: the name is a terminated string in the device.
            let name = unsafe { CStr::from_ptr((&raw const (*device).name).cast()) };
            (device, name.to_string_lossy().into_owned())
        })
    }
}

impl Drop for Devices<'_> {
    fn drop(&mut self) {
        // SAFETY: it came from the library, and no device of it is used after this.
        unsafe { (self.functions.ibv_free_device_list)(self.list) };
    }
}

impl Library for Ibverbs {
    fn device_names(&self) -> io::Result<Vec<String>> {
        Ok(Devices::all(&self.functions)?.iter().map(|(_, name)| name).collect())
    }

    fn open(&self, name: &str) -> Result<Box<dyn Device>, VerbsError> {
        let gone = || io::Error::from_raw_os_error(libc::ENODEV);
        let all = Devices::all(&self.functions)
            .map_err(|error| VerbsError::new("ibv_get_device_list", error))?;
        let found = all.iter().find(|(_, other)| other == name);
        let (device, _) = found.ok_or_else(|| VerbsError::new("ibv_open_device", gone()))?;
        Ok(Box::new(RealDevice::open(self.functions, device, name)?))
    }
}

/// A queue of completions and how many more work requests may be under way on it.
struct Queue {
    cq: *mut sys::ibv_cq,
    room: u32,
}

/// A queue pair and what it takes of its queue of completions.
struct Pair {
    qp: *mut sys::ibv_qp,
    queue: usize,
    entries: u32,
}

struct RealDevice {
    functions: Functions,
    name: String,
    context: *mut sys::ibv_context,
    fabric: Option<Fabric>,
    pd: *mut sys::ibv_pd,
    channel: *mut sys::ibv_comp_channel,
    queues: Vec<Queue>,
    pairs: HashMap<u32, Pair>,
    regions: HashMap<u64, *mut sys::ibv_mr>,
    next_region: u64,
    /// Where `poll` goes on.
    turn: usize,
}

// SAFETY: the library's objects belong to no thread, and one thread at a time uses this device.
unsafe impl Send for RealDevice {}

impl std::fmt::Debug for RealDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RealDevice({})", self.name)
    }
}

fn not_null<T>(step: &'static str, pointer: *mut T) -> Result<*mut T, VerbsError> {
    if pointer.is_null() { Err(VerbsError::last(step)) } else { Ok(pointer) }
}

impl RealDevice {
    fn open(
        functions: Functions,
        device: *mut sys::ibv_device,
        name: &str,
    ) -> Result<Self, VerbsError> {
        // SAFETY: the device is one of the library's list, which is not freed yet.
        let context = unsafe { (functions.ibv_open_device)(device) };
        // SAFETY: as above.
        let transport = unsafe { (*device).transport_type };
        let context = not_null("ibv_open_device", context)?;
        let mut this = Self {
            functions,
            name: name.to_owned(),
            context,
            // InfiniBand or Ethernet is said by the port.
            fabric: match transport {
                sys::TRANSPORT_IB => None,
                sys::TRANSPORT_IWARP => Some(Fabric::Iwarp),
                _ => Some(Fabric::Other),
            },
            pd: null_mut(),
            channel: null_mut(),
            queues: Vec::new(),
            pairs: HashMap::new(),
            regions: HashMap::new(),
            next_region: 1,
            turn: 0,
        };
        // SAFETY: the context is open; what is made is taken back when `this` is dropped.
        unsafe {
            this.pd = not_null("ibv_alloc_pd", (functions.ibv_alloc_pd)(context))?;
            let channel = (functions.ibv_create_comp_channel)(context);
            this.channel = not_null("ibv_create_comp_channel", channel)?;
            for descriptor in [(*this.channel).fd, (*context).async_fd] {
                let flags = libc::fcntl(descriptor, libc::F_GETFL);
                if flags < 0 || libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK) < 0
                {
                    return Err(VerbsError::last("fcntl"));
                }
            }
        }
        Ok(this)
    }

    fn attributes(&self) -> Result<sys::ibv_device_attr, VerbsError> {
        // SAFETY: integers only, for which zero is a value.
        let mut attributes: sys::ibv_device_attr = unsafe { std::mem::zeroed() };
        let answer =
            // SAFETY: the context is open and the attributes are written during the call.
            unsafe { (self.functions.ibv_query_device)(self.context, &raw mut attributes) };
        VerbsError::check("ibv_query_device", answer)?;
        Ok(attributes)
    }

    fn pair(&self, step: &'static str, number: u32) -> Result<*mut sys::ibv_qp, VerbsError> {
        let pair = self.pairs.get(&number).map(|pair| pair.qp);
        pair.ok_or_else(|| VerbsError::new(step, io::Error::from_raw_os_error(libc::EINVAL)))
    }

    fn modify(
        &mut self,
        step: &'static str,
        number: u32,
        attributes: &mut ibv_qp_attr,
        mask: c_int,
    ) -> Result<(), VerbsError> {
        let qp = self.pair(step, number)?;
        // SAFETY: the queue pair is one of ours, the attributes are only read.
        VerbsError::check(step, unsafe { (self.functions.ibv_modify_qp)(qp, attributes, mask) })
    }

    /// A queue of completions with room for so many.
    fn queue_for(&mut self, entries: u32) -> Result<usize, VerbsError> {
        if let Some(index) = self.queues.iter().position(|queue| queue.room >= entries) {
            return Ok(index);
        }
        let most = u32::try_from(self.attributes()?.max_cqe).unwrap_or(QUEUE_ENTRIES);
        let size = QUEUE_ENTRIES.max(entries).min(most);
        if size < entries {
            let error = io::Error::from_raw_os_error(libc::EINVAL);
            return Err(VerbsError::new("ibv_create_cq", error));
        }
        // SAFETY: context and channel are ours.
        let cq = unsafe {
            let size = size as c_int;
            (self.functions.ibv_create_cq)(self.context, size, null_mut(), self.channel, 0)
        };
        let cq = not_null("ibv_create_cq", cq)?;
        self.queues.push(Queue { cq, room: size });
        Ok(self.queues.len() - 1)
    }
}

fn empty_attributes() -> ibv_qp_attr {
    // SAFETY: integers only, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// A GID as the library holds it, in the network's order of bytes.
fn gid_words(gid: [u8; 16]) -> [u64; 2] {
    let (high, low) = gid.split_at(8);
    [high, low].map(|half| u64::from_ne_bytes(half.try_into().unwrap_or_default()))
}

fn gid_bytes(words: [u64; 2]) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&words[0].to_ne_bytes());
    gid[8..].copy_from_slice(&words[1].to_ne_bytes());
    gid
}

/// Megabits a second of one lane, by the number of its speed, and lanes by the number of a width.
fn speed(width: u8, speed: u8) -> u32 {
    let lane = match speed {
        1 => 2500,
        2 => 5000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    lane * lanes
}

impl Device for RealDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Result<Limits, VerbsError> {
        let attributes = self.attributes()?;
        Ok(Limits { max_mr_bytes: attributes.max_mr_size, ports: attributes.phys_port_cnt })
    }

    fn port(&self, port: u8) -> Result<Port, VerbsError> {
        // SAFETY: integers only, for which zero is a value.
        let mut attributes: sys::ibv_port_attr = unsafe { std::mem::zeroed() };
        let answer =
            // SAFETY: the context is open and the attributes are written during the call.
            unsafe { (self.functions.ibv_query_port)(self.context, port, &raw mut attributes) };
        VerbsError::check("ibv_query_port", answer)?;
        let by_port = if attributes.link_layer == sys::LINK_LAYER_ETHERNET {
            Fabric::Ethernet
        } else {
            Fabric::InfiniBand
        };
        Ok(Port {
            is_active: attributes.state == sys::PORT_ACTIVE,
            fabric: self.fabric.unwrap_or(by_port),
            mtu: u8::try_from(attributes.active_mtu).unwrap_or(1),
            lid: attributes.lid,
            megabits_per_second: speed(attributes.active_width, attributes.active_speed),
        })
    }

    fn gids(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        let Some(query) = self.functions._ibv_query_gid_table else {
            return self.gids_one_by_one(port);
        };
        let empty = sys::ibv_gid_entry {
            gid: [0; 2],
            gid_index: 0,
            port_num: 0,
            gid_type: 0,
            ndev_ifindex: 0,
        };
        let mut entries = vec![empty; 1024];
        // SAFETY: there is room for as many entries of this size as is said.
        let count = unsafe {
            let size = size_of::<sys::ibv_gid_entry>();
            query(self.context, entries.as_mut_ptr(), entries.len(), 0, size)
        };
        let Ok(count) = usize::try_from(count) else {
            let number = i32::try_from(-count).unwrap_or(libc::EIO);
            let error = io::Error::from_raw_os_error(number);
            return Err(VerbsError::new("ibv_query_gid_table", error));
        };
        let of_port = entries[..count].iter().filter(|entry| entry.port_num == u32::from(port));
        let kind = |number| match number {
            sys::GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            sys::GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            _ => GidKind::InfiniBand,
        };
        Ok(of_port
            .map(|entry| GidEntry {
                index: entry.gid_index,
                gid: gid_bytes(entry.gid),
                kind: kind(entry.gid_type),
            })
            .collect())
    }

    fn pkey(&self, port: u8, index: u16) -> Result<u16, VerbsError> {
        let mut pkey = 0;
        // SAFETY: the context is open and `pkey` is written during the call.
        let answer = unsafe {
            (self.functions.ibv_query_pkey)(self.context, port, c_int::from(index), &raw mut pkey)
        };
        VerbsError::check("ibv_query_pkey", answer)?;
        Ok(u16::from_be(pkey))
    }

    unsafe fn register(&mut self, memory: Memory) -> Result<Registered, VerbsError> {
        let access = sys::ACCESS_LOCAL_WRITE | sys::ACCESS_REMOTE_WRITE | sys::ACCESS_REMOTE_READ;
        let (pointer, length) = (memory.address as *mut c_void, memory.length as usize);
        // SAFETY: the caller answers for the memory.
        let mr = unsafe { (self.functions.ibv_reg_mr)(self.pd, pointer, length, access) };
        let mr = not_null("ibv_reg_mr", mr)?;
        let handle = self.next_region;
        self.next_region += 1;
        self.regions.insert(handle, mr);
        // SAFETY: the library gave the region, which lives until it is deregistered.
        let (local_key, remote_key) = unsafe { ((*mr).lkey, (*mr).rkey) };
        Ok(Registered { handle, local_key, remote_key })
    }

    fn deregister(&mut self, handle: u64) -> Result<(), VerbsError> {
        let Some(mr) = self.regions.remove(&handle) else { return Ok(()) };
        // SAFETY: the region is one of ours and is not used after this.
        VerbsError::check("ibv_dereg_mr", unsafe { (self.functions.ibv_dereg_mr)(mr) })
    }

    fn create(&mut self, shape: Shape) -> Result<Made, VerbsError> {
        let entries = shape.sends + shape.receives;
        let queue = self.queue_for(entries)?;
        let cq = self.queues[queue].cq;
        let make = |inline_bytes: u32| {
            let mut attributes = sys::ibv_qp_init_attr {
                qp_context: null_mut(),
                send_cq: cq,
                recv_cq: cq,
                srq: null_mut(),
                cap: sys::ibv_qp_cap {
                    max_send_wr: shape.sends,
                    max_recv_wr: shape.receives,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: inline_bytes,
                },
                qp_type: sys::QP_TYPE_RC,
                sq_sig_all: 0,
            };
            // SAFETY: domain and queue are ours; the attributes are used during the call.
            let qp = unsafe { (self.functions.ibv_create_qp)(self.pd, &raw mut attributes) };
            (not_null("ibv_create_qp", qp), attributes.cap.max_inline_data)
        };
        // A device that can't have so much inline refuses, instead of giving what it can.
        let (qp, inline_bytes) = match make(shape.inline_bytes) {
            (Ok(qp), inline_bytes) => (qp, inline_bytes.min(shape.inline_bytes)),
            (Err(_), _) => (make(0).0?, 0),
        };
        // SAFETY: the library gave the queue pair.
        let number = unsafe { (*qp).qp_num };
        self.queues[queue].room -= entries;
        self.pairs.insert(number, Pair { qp, queue, entries });
        Ok(Made { number, inline_bytes })
    }

    fn initialise(&mut self, number: u32, port: u8, pkey_index: u16) -> Result<(), VerbsError> {
        let mut attributes = empty_attributes();
        attributes.qp_state = sys::STATE_INIT;
        attributes.port_num = port;
        attributes.pkey_index = pkey_index;
        attributes.qp_access_flags = sys::ACCESS_REMOTE_WRITE as u32;
        let mask = sys::MASK_STATE | sys::MASK_PKEY | sys::MASK_PORT | sys::MASK_ACCESS;
        self.modify("ibv_modify_qp to INIT", number, &mut attributes, mask)
    }

    fn connect(&mut self, number: u32, route: &Route) -> Result<(), VerbsError> {
        let mut attributes = empty_attributes();
        attributes.qp_state = sys::STATE_RTR;
        attributes.path_mtu = c_int::from(route.mtu);
        attributes.dest_qp_num = route.number;
        attributes.rq_psn = route.receive_psn;
        // A peer that has no receive is not repeated at for ever: credits see to it that it has.
        attributes.min_rnr_timer = 12;
        let vector = &mut attributes.ah_attr;
        vector.port_num = route.port;
        vector.sl = route.service_level;
        vector.dlid = route.lid;
        if let Some(index) = route.gid_index {
            vector.is_global = 1;
            vector.grh.dgid = gid_words(route.gid);
            vector.grh.sgid_index = index;
            vector.grh.hop_limit = 64;
            vector.grh.traffic_class = route.traffic_class;
        }
        let mask = sys::MASK_STATE
            | sys::MASK_AV
            | sys::MASK_MTU
            | sys::MASK_DEST_QPN
            | sys::MASK_RQ_PSN
            | sys::MASK_MAX_DEST_RD
            | sys::MASK_MIN_RNR;
        self.modify("ibv_modify_qp to RTR", number, &mut attributes, mask)?;
        let mut attributes = empty_attributes();
        attributes.qp_state = sys::STATE_RTS;
        attributes.timeout = route.timeout;
        attributes.retry_cnt = route.retries;
        attributes.rnr_retry = 3;
        attributes.sq_psn = route.send_psn;
        let mask = sys::MASK_STATE
            | sys::MASK_TIMEOUT
            | sys::MASK_RETRY
            | sys::MASK_RNR_RETRY
            | sys::MASK_SQ_PSN
            | sys::MASK_MAX_RD;
        self.modify("ibv_modify_qp to RTS", number, &mut attributes, mask)
    }

    fn stop(&mut self, number: u32) -> Result<(), VerbsError> {
        let mut attributes = empty_attributes();
        attributes.qp_state = sys::STATE_ERR;
        self.modify("ibv_modify_qp to ERR", number, &mut attributes, sys::MASK_STATE)
    }

    fn destroy(&mut self, number: u32) -> Result<(), VerbsError> {
        let Some(pair) = self.pairs.remove(&number) else { return Ok(()) };
        // SAFETY: the queue pair is one of ours and is not used after this.
        let answer = unsafe { (self.functions.ibv_destroy_qp)(pair.qp) };
        if let Err(error) = VerbsError::check("ibv_destroy_qp", answer) {
            self.pairs.insert(number, pair);
            return Err(error);
        }
        self.queues[pair.queue].room += pair.entries;
        Ok(())
    }

    unsafe fn post_sends(&mut self, number: u32, sends: &[SendWork]) -> Result<(), VerbsError> {
        let qp = self.pair("ibv_post_send", number)?;
        for sends in sends.chunks(BATCH) {
            let mut runs = [sys::ibv_sge { addr: 0, length: 0, lkey: 0 }; BATCH];
            let mut works = [sys::ibv_send_wr::EMPTY; BATCH];
            let first = works.as_mut_ptr();
            for (index, send) in sends.iter().enumerate() {
                let Run { address, length, key } = send.run;
                runs[index] = sys::ibv_sge { addr: address, length, lkey: key };
                let work = &mut works[index];
                work.wr_id = send.id;
                work.sg_list = &raw mut runs[index];
                work.num_sge = c_int::from(length > 0);
                work.send_flags = if send.is_signalled { sys::SEND_SIGNALED } else { 0 }
                    | if send.is_inline { sys::SEND_INLINE } else { 0 };
                (work.opcode, work.remote_addr, work.rkey, work.imm_data) = match send.work {
                    Work::Send => (sys::OPCODE_SEND, 0, 0, 0),
                    Work::Write { address, key } => (sys::OPCODE_WRITE, address, key, 0),
                    Work::WriteWithNote { address, key, note } => {
                        (sys::OPCODE_WRITE_WITH_IMM, address, key, note.to_be())
                    }
                };
                // The next one lies in the same array.
                let next = first.wrapping_add(index + 1);
                work.next = if index + 1 < sends.len() { next } else { null_mut() };
            }
            let mut bad = null_mut();
            // SAFETY: the queue pair is ours, requests and runs live through the call, and the caller
            // answers for what the runs point to. Every provider has the function.
            let answer = unsafe {
                let post = (*(*qp).context).ops.post_send;
                post.map_or(libc::ENOSYS, |post| post(qp, works.as_mut_ptr(), &raw mut bad))
            };
            VerbsError::check("ibv_post_send", answer)?;
        }
        Ok(())
    }

    unsafe fn post_receives(
        &mut self,
        number: u32,
        receives: &[(u64, Run)],
    ) -> Result<(), VerbsError> {
        let qp = self.pair("ibv_post_recv", number)?;
        for receives in receives.chunks(BATCH) {
            let mut runs = [sys::ibv_sge { addr: 0, length: 0, lkey: 0 }; BATCH];
            let empty =
                sys::ibv_recv_wr { wr_id: 0, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
            let mut works = [empty; BATCH];
            let first = works.as_mut_ptr();
            for (index, &(id, Run { address, length, key })) in receives.iter().enumerate() {
                runs[index] = sys::ibv_sge { addr: address, length, lkey: key };
                let next = first.wrapping_add(index + 1);
                works[index] = sys::ibv_recv_wr {
                    wr_id: id,
                    next: if index + 1 < receives.len() { next } else { null_mut() },
                    sg_list: &raw mut runs[index],
                    num_sge: c_int::from(length > 0),
                };
            }
            let mut bad = null_mut();
            // SAFETY: as in `post_sends`.
            let answer = unsafe {
                let post = (*(*qp).context).ops.post_recv;
                post.map_or(libc::ENOSYS, |post| post(qp, works.as_mut_ptr(), &raw mut bad))
            };
            VerbsError::check("ibv_post_recv", answer)?;
        }
        Ok(())
    }

    fn poll(&mut self, ended: &mut Vec<Ended>) -> Result<bool, VerbsError> {
        let mut is_more = false;
        for _ in 0..self.queues.len() {
            self.turn = (self.turn + 1) % self.queues.len();
            let cq = self.queues[self.turn].cq;
            let mut completions = [sys::ibv_wc::default(); BATCH];
            // SAFETY: the queue is ours, with room for as many as is said; every provider has it.
            let count = unsafe {
                let poll = (*(*cq).context).ops.poll_cq;
                poll.map_or(-libc::ENOSYS, |poll| {
                    poll(cq, BATCH as c_int, completions.as_mut_ptr())
                })
            };
            let Ok(count) = usize::try_from(count) else {
                let error = io::Error::from_raw_os_error(libc::EIO);
                return Err(VerbsError::new("ibv_poll_cq", error));
            };
            is_more |= count == BATCH;
            ended.extend(completions[..count].iter().map(|wc| {
                Ended {
                    id: wc.wr_id,
                    status: wc.status,
                    vendor: wc.vendor_err,
                    bytes: wc.byte_len,
                    note: (wc.status == 0 && wc.opcode == sys::WC_RECV_WITH_IMM)
                        .then_some(u32::from_be(wc.imm_data)),
                }
            }));
        }
        Ok(is_more)
    }

    fn arm(&mut self) -> Result<(), VerbsError> {
        for queue in &self.queues {
            // SAFETY: the queue is ours; every provider has the function.
            let answer = unsafe {
                let arm = (*(*queue.cq).context).ops.req_notify_cq;
                arm.map_or(libc::ENOSYS, |arm| arm(queue.cq, 0))
            };
            VerbsError::check("ibv_req_notify_cq", answer)?;
        }
        Ok(())
    }

    fn completion_descriptor(&self) -> RawFd {
        // SAFETY: the channel is ours.
        unsafe { (*self.channel).fd }
    }

    fn quiet(&mut self) {
        let (mut cq, mut cq_context) = (null_mut(), null_mut());
        // SAFETY: the channel is ours and does not block; each event is acknowledged once.
        unsafe {
            let get = self.functions.ibv_get_cq_event;
            while get(self.channel, &raw mut cq, &raw mut cq_context) == 0 {
                (self.functions.ibv_ack_cq_events)(cq, 1);
            }
        }
    }

    fn news_descriptor(&self) -> RawFd {
        // SAFETY: the context is open.
        unsafe { (*self.context).async_fd }
    }

    fn next_news(&mut self) -> Option<News> {
        let mut event = sys::ibv_async_event { element: null_mut(), event_type: 0 };
        // SAFETY: the event is written during the call, and acknowledged before objects that it may
        // name are destroyed.
        unsafe {
            if (self.functions.ibv_get_async_event)(self.context, &raw mut event) != 0 {
                return None;
            }
            (self.functions.ibv_ack_async_event)(&raw mut event);
        }
        // SAFETY: the library answers with a static string.
        let words = unsafe { (self.functions.ibv_event_type_str)(event.event_type).as_ref() };
        let words = words.map_or_else(String::new, |words| {
            // SAFETY: as above.
            unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
        });
        Some(match event.event_type {
            // A port's number lies in the first four bytes of the element.
            9 | 10 => News::Port(event.element as usize as u8),
            11 | 12 | 18 => News::Addresses,
            8 | 0 => News::Fatal(words),
            _ => News::Other(words),
        })
    }

    fn words(&self, status: i32) -> String {
        // SAFETY: the library answers any number with a static string.
        let words = unsafe { CStr::from_ptr((self.functions.ibv_wc_status_str)(status)) };
        words.to_string_lossy().into_owned()
    }

    fn forget(self: Box<Self>) {
        std::mem::forget(self);
    }
}

impl RealDevice {
    /// For libraries before 1.11: the table entry by entry, kinds from the kernel's files.
    fn gids_one_by_one(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        // SAFETY: integers only, for which zero is a value.
        let mut attributes: sys::ibv_port_attr = unsafe { std::mem::zeroed() };
        let answer =
            // SAFETY: the context is open and the attributes are written during the call.
            unsafe { (self.functions.ibv_query_port)(self.context, port, &raw mut attributes) };
        VerbsError::check("ibv_query_port", answer)?;
        let mut entries = Vec::new();
        for index in 0..attributes.gid_tbl_len {
            let mut words = [0; 2];
            // SAFETY: as above, for 16 bytes.
            let answer = unsafe {
                (self.functions.ibv_query_gid)(self.context, port, index, &raw mut words)
            };
            if answer != 0 || words == [0; 2] {
                continue;
            }
            let name = &self.name;
            let file = format!("/sys/class/infiniband/{name}/ports/{port}/gid_attrs/types/{index}");
            let kind = match std::fs::read_to_string(file).unwrap_or_default().trim() {
                "RoCE v2" => GidKind::RoceV2,
                _ if attributes.link_layer == sys::LINK_LAYER_ETHERNET => GidKind::RoceV1,
                _ => GidKind::InfiniBand,
            };
            entries.push(GidEntry { index: index as u32, gid: gid_bytes(words), kind });
        }
        Ok(entries)
    }
}

impl Drop for RealDevice {
    fn drop(&mut self) {
        // SAFETY: everything is ours and used by nobody any more; children before parents.
        unsafe {
            for (_, pair) in self.pairs.drain() {
                (self.functions.ibv_destroy_qp)(pair.qp);
            }
            for (_, mr) in self.regions.drain() {
                (self.functions.ibv_dereg_mr)(mr);
            }
            for queue in self.queues.drain(..) {
                (self.functions.ibv_destroy_cq)(queue.cq);
            }
            if !self.channel.is_null() {
                (self.functions.ibv_destroy_comp_channel)(self.channel);
            }
            if !self.pd.is_null() {
                (self.functions.ibv_dealloc_pd)(self.pd);
            }
            (self.functions.ibv_close_device)(self.context);
        }
    }
}
