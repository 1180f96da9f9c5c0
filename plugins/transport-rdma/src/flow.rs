//! The two directions of an open channel over one queue pair: messages, credits, grants.
//!
//! A short message travels behind its header into a slot that the receiver has posted before. A long
//! one is announced; the receiver compares the envelope and grants runs of memory, and the sender writes into
//! them. What has no key goes through blocks of the channel, several at a time.
//!
//! No more is sent than the peer has posted slots for: messages and control have separate allowances, so
//! that a peer that posts no receives can still be granted what it sends.

use std::collections::VecDeque;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{Envelope, PluginError};
use iccl_plugin_api::tables::{Completion, completion_kind};

use crate::memory::{Block, Message};
use crate::regions::Regions;
use crate::verbs::{Device, Ended, Run, SendWork, Shape, VerbsError, Work, status};
use crate::wire::{EAGER_BYTES, Grant, HEADER_BYTES, Head, SLOT_BYTES, Taken};

/// Messages that may be on the way without having been received.
const MESSAGES: u32 = 16;
/// Control that may be on the way; one is kept for returning credit.
const CONTROL: u32 = 16;
/// Grants that may be open.
const GRANTS: usize = 8;
/// Slots for what the peer sends: all that it may send, and a write that ends a grant takes one too.
const RECEIVES: usize = MESSAGES as usize + CONTROL as usize + GRANTS;
/// Work requests of the send queue, and slots to send from.
const SENDS: usize = 64;
const SEND_SLOTS: usize = 32;
/// Blocks for payloads without a key in each direction, and their bytes.
const BLOCKS: usize = 4;
const BLOCK_BYTES: usize = 128 * 1024;
/// Longest run that is granted at a time in registered memory.
const LONGEST_GRANT: u64 = 8 << 20;
/// So many work requests may be without a completion of their own.
const UNSIGNALLED: usize = 8;

const SEND_SLOTS_AT: usize = RECEIVES * SLOT_BYTES;
const OUT_BLOCKS_AT: usize = SEND_SLOTS_AT + SEND_SLOTS * SLOT_BYTES;
const IN_BLOCKS_AT: usize = OUT_BLOCKS_AT + BLOCKS * BLOCK_BYTES;

/// Bytes of a channel's memory.
pub(crate) const BLOCK_TOTAL: usize = IN_BLOCKS_AT + BLOCKS * BLOCK_BYTES;

/// The queue pair that this needs.
pub(crate) const SHAPE: Shape =
    Shape { sends: SENDS as u32, receives: RECEIVES as u32, inline_bytes: 220 };

/// Marks the id of a receive.
const RECEIVE: u64 = 1 << 31;

/// Why a channel cannot go on.
#[derive(Debug)]
pub(crate) enum Trouble {
    Verbs(VerbsError),
    Bad(Ended),
    /// The peer broke the protocol.
    Nonsense(&'static str),
    Mismatch {
        token: u64,
        expected: u64,
        envelope: Envelope,
        length: u64,
    },
}

impl From<VerbsError> for Trouble {
    fn from(error: VerbsError) -> Self {
        Self::Verbs(error)
    }
}

#[derive(Debug)]
struct Outgoing {
    message: Message,
    is_sent: bool,
    written: u64,
    done: u64,
}

#[derive(Debug)]
struct Incoming {
    message: Message,
    is_matched: bool,
    granted: u64,
    landed: u64,
}

#[derive(Debug)]
struct Arrived {
    envelope: Envelope,
    length: u64,
    /// `None` if it was announced only.
    payload: Option<Vec<u8>>,
}

/// Work that was posted to the send queue.
#[derive(Debug)]
struct Flight {
    id: u32,
    what: Flown,
}

#[derive(Debug)]
enum Flown {
    Slot,
    Inline,
    Write { message: u64, bytes: u64, block: Option<usize> },
}

#[derive(Clone, Copy, Debug)]
struct Open {
    message: u64,
    offset: u64,
    length: u64,
    block: Option<usize>,
}

/// What a flow works with.
pub(crate) struct Tools<'a> {
    pub(crate) device: &'a mut dyn Device,
    pub(crate) regions: &'a Regions,
    pub(crate) completions: &'a mut VecDeque<Completion>,
}

#[derive(Debug)]
pub(crate) struct Flow {
    channel: u64,
    /// The high half of the ids of its work.
    mark: u64,
    number: u32,
    inline_bytes: usize,
    block: Block,

    sends: VecDeque<Outgoing>,
    /// Number of the message at the front of `sends`.
    first_send: u64,
    flights: VecDeque<Flight>,
    next_flight: u32,
    unsignalled: usize,
    next_slot: usize,
    slots_in_use: usize,
    out_blocks: Vec<usize>,
    grants: VecDeque<(Grant, u32)>,
    sent: Taken,
    /// Of `sent`, what the peer has said that it took.
    acknowledged: Taken,

    receives: VecDeque<Incoming>,
    first_receive: u64,
    arrived: VecDeque<Arrived>,
    open: [Option<Open>; GRANTS],
    in_blocks: Vec<usize>,
    reposts: Vec<usize>,
    taken: Taken,
    told: Taken,
    /// Messages that have arrived.
    pub(crate) heard: u32,
}

impl Flow {
    pub(crate) fn new(
        channel: u64,
        mark: u64,
        number: u32,
        inline_bytes: u32,
        block: Block,
    ) -> Self {
        Self {
            channel,
            mark,
            number,
            inline_bytes: inline_bytes as usize,
            block,
            sends: VecDeque::new(),
            first_send: 0,
            flights: VecDeque::new(),
            next_flight: 0,
            unsignalled: 0,
            next_slot: 0,
            slots_in_use: 0,
            out_blocks: (0..BLOCKS).collect(),
            grants: VecDeque::new(),
            sent: Taken::default(),
            acknowledged: Taken::default(),
            receives: VecDeque::new(),
            first_receive: 0,
            arrived: VecDeque::new(),
            open: [None; GRANTS],
            in_blocks: (0..BLOCKS).collect(),
            reposts: (0..RECEIVES).collect(),
            taken: Taken::default(),
            told: Taken::default(),
            heard: 0,
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn post_send(&mut self, message: Message) {
        self.sends.push_back(Outgoing { message, is_sent: false, written: 0, done: 0 });
    }

    pub(crate) fn post_receive(&mut self, message: Message) {
        self.receives.push_back(Incoming { message, is_matched: false, granted: 0, landed: 0 });
    }

    /// Messages that were sent.
    pub(crate) fn said(&self) -> u32 {
        self.sent.messages
    }

    pub(crate) fn has_sends(&self) -> bool {
        !self.sends.is_empty()
    }

    pub(crate) fn has_receives(&self) -> bool {
        !self.receives.is_empty()
    }

    pub(crate) fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Whether the peer's device has all that was posted.
    pub(crate) fn is_drained(&self) -> bool {
        self.flights.is_empty()
    }

    /// Gives up the block once the queue pair is gone, and what was posted.
    pub(crate) fn take_apart(self) -> (Block, Vec<(u32, Message)>) {
        let sends = self.sends.into_iter().map(|one| (completion_kind::SEND, one.message));
        let receives = self.receives.into_iter().map(|one| (completion_kind::RECEIVE, one.message));
        (self.block, sends.chain(receives).collect())
    }

    // --- What the device tells -----------------------------------------------------------------

    /// Takes note of work that has ended.
    pub(crate) fn ended(&mut self, ended: Ended) -> Result<(), Trouble> {
        if ended.status != 0 {
            return Err(Trouble::Bad(ended));
        }
        if ended.id & RECEIVE == 0 {
            self.flown(ended.id as u32);
            return Ok(());
        }
        let slot = (ended.id & (RECEIVE - 1)) as usize;
        self.reposts.push(slot);
        if let Some(note) = ended.note {
            return self.landed(note as usize);
        }
        self.heard_slot(slot, ended.bytes as usize)
    }

    fn flown(&mut self, id: u32) {
        while let Some(flight) =
            self.flights.pop_front_if(|flight| (id.wrapping_sub(flight.id) & 0x7fff_ffff) < 1 << 30)
        {
            match flight.what {
                Flown::Slot => self.slots_in_use -= 1,
                Flown::Inline => {}
                Flown::Write { message, bytes, block } => {
                    self.out_blocks.extend(block);
                    let index = (message - self.first_send) as usize;
                    if let Some(outgoing) = self.sends.get_mut(index) {
                        outgoing.done += bytes;
                    }
                }
            }
        }
    }

    fn landed(&mut self, note: usize) -> Result<(), Trouble> {
        let open = self.open.get_mut(note).and_then(Option::take);
        let open = open.ok_or(Trouble::Nonsense("it wrote what was not granted"))?;
        let index = (open.message - self.first_receive) as usize;
        let incoming = self.receives.get_mut(index);
        let incoming = incoming.ok_or(Trouble::Nonsense("it wrote for no message"))?;
        if let Some(block) = open.block {
            let at = IN_BLOCKS_AT + block * BLOCK_BYTES;
            let bytes = self.block.bytes(at, open.length as usize);
            // SAFETY: the receive is not over.
            unsafe { incoming.message.write(open.offset, bytes) };
            self.in_blocks.push(block);
        }
        incoming.landed += open.length;
        Ok(())
    }

    fn heard_slot(&mut self, slot: usize, bytes: usize) -> Result<(), Trouble> {
        if bytes > SLOT_BYTES {
            return Err(Trouble::Nonsense("it sent more than a slot holds"));
        }
        let text = self.block.bytes(slot * SLOT_BYTES, bytes);
        let parsed = Head::parse(text).ok_or(Trouble::Nonsense("it sent no header"))?;
        let (head, taken, payload) = parsed;
        match head {
            Head::Eager { envelope, length } => {
                let waits = self.receives.iter_mut().find(|incoming| !incoming.is_matched);
                let direct = waits.filter(|_| self.arrived.is_empty()).filter(|incoming| {
                    incoming.message.length == length && incoming.message.envelope == envelope
                });
                if let Some(incoming) = direct {
                    // SAFETY: the receive is not over.
                    unsafe { incoming.message.write(0, payload) };
                    (incoming.is_matched, incoming.landed) = (true, length);
                    incoming.granted = length;
                    self.taken.messages = self.taken.messages.wrapping_add(1);
                } else {
                    let payload = Some(payload.to_vec());
                    self.arrived.push_back(Arrived { envelope, length, payload });
                }
            }
            Head::Announced { envelope, length } => {
                self.arrived.push_back(Arrived { envelope, length, payload: None });
            }
            Head::Grant(grant) => self.grants.push_back((grant, 0)),
            Head::Credit => {}
        }
        if head.is_message() {
            self.heard = self.heard.wrapping_add(1);
        } else {
            self.taken.control = self.taken.control.wrapping_add(1);
        }
        self.acknowledged = taken;
        Ok(())
    }

    // --- What is done about it -----------------------------------------------------------------

    /// Moves on what can be moved.
    pub(crate) fn advance(&mut self, tools: &mut Tools<'_>) -> Result<(), Trouble> {
        self.tell_what_is_done(tools);
        self.repost(tools.device)?;
        self.match_arrived()?;
        self.grant(tools)?;
        self.write(tools)?;
        self.send(tools)?;
        let owed = |taken: u32, told: u32| taken.wrapping_sub(told);
        if owed(self.taken.messages, self.told.messages) >= MESSAGES / 2
            || owed(self.taken.control, self.told.control) >= CONTROL / 2
        {
            self.return_credit(tools.device)?;
        }
        self.tell_what_is_done(tools);
        Ok(())
    }

    /// Posts the slots that are free, before credit for them is given.
    pub(crate) fn repost(&mut self, device: &mut dyn Device) -> Result<(), Trouble> {
        let mut receives = Vec::with_capacity(self.reposts.len());
        for slot in self.reposts.drain(..) {
            let run = self.block.run(slot * SLOT_BYTES, SLOT_BYTES);
            let (run, _) = run.ok_or(Trouble::Nonsense("a slot is cut"))?;
            receives.push((self.mark | RECEIVE | slot as u64, run));
        }
        if receives.is_empty() {
            return Ok(());
        }
        // SAFETY: slots are the channel's own, and nobody touches them until they have ended.
        unsafe { device.post_receives(self.number, &receives) }?;
        Ok(())
    }

    fn match_arrived(&mut self) -> Result<(), Trouble> {
        for incoming in self.receives.iter_mut().filter(|incoming| !incoming.is_matched) {
            let Some(arrived) = self.arrived.pop_front() else { return Ok(()) };
            self.taken.messages = self.taken.messages.wrapping_add(1);
            let message = &incoming.message;
            if arrived.length != message.length || arrived.envelope != message.envelope {
                return Err(Trouble::Mismatch {
                    token: message.token,
                    expected: message.length,
                    envelope: arrived.envelope,
                    length: arrived.length,
                });
            }
            incoming.is_matched = true;
            if let Some(payload) = arrived.payload {
                // SAFETY: the receive is not over.
                unsafe { incoming.message.write(0, &payload) };
                (incoming.granted, incoming.landed) = (arrived.length, arrived.length);
            }
        }
        Ok(())
    }

    fn control_left(&self) -> u32 {
        CONTROL - self.sent.control.wrapping_sub(self.acknowledged.control)
    }

    fn has_room(&self) -> bool {
        self.flights.len() < SENDS && self.slots_in_use < SEND_SLOTS
    }

    fn grant(&mut self, tools: &mut Tools<'_>) -> Result<(), Trouble> {
        let mut index = 0;
        while let Some(incoming) = self.receives.get(index).filter(|incoming| incoming.is_matched) {
            let left = incoming.message.length - incoming.granted;
            if left == 0 {
                index += 1;
                continue;
            }
            let free = self.open.iter().position(Option::is_none);
            let Some(note) = free.filter(|_| self.control_left() > 1 && self.has_room()) else {
                return Ok(());
            };
            let offset = incoming.granted;
            let (address, length, key, block) = if incoming.message.is_registered() {
                let run = incoming.message.at(offset).and_then(|(address, length, key)| {
                    let length = length.min(LONGEST_GRANT);
                    let (length, registered) = tools.regions.run(key, address, length)?;
                    Some((address, length, registered.remote_key, None))
                });
                run.ok_or(Trouble::Nonsense("a region was taken back under a receive"))?
            } else {
                let Some(block) = self.in_blocks.pop() else { return Ok(()) };
                let length = left.min(BLOCK_BYTES as u64);
                let run = self.block.run(IN_BLOCKS_AT + block * BLOCK_BYTES, length as usize);
                let (run, key) = run.ok_or(Trouble::Nonsense("a block is cut"))?;
                (run.address, length, key, Some(block))
            };
            let message = self.first_receive + index as u64;
            self.open[note] = Some(Open { message, offset, length, block });
            self.receives[index].granted += length;
            let grant = Grant { note: note as u32, address, key, length: length as u32 };
            self.send_head(tools.device, &Head::Grant(grant), None, false)?;
        }
        Ok(())
    }

    /// Writes into what was granted.
    fn write(&mut self, tools: &mut Tools<'_>) -> Result<(), Trouble> {
        while let Some(&(grant, done)) = self.grants.front() {
            if self.flights.len() >= SENDS {
                return Ok(());
            }
            let waits = |outgoing: &Outgoing| {
                outgoing.is_sent
                    && outgoing.message.length > EAGER_BYTES as u64
                    && outgoing.written < outgoing.message.length
            };
            let index = self.sends.iter().position(waits);
            let index = index.ok_or(Trouble::Nonsense("it granted what was not announced"))?;
            let outgoing = &self.sends[index];
            let left = (grant.length - done).min(1 << 30);
            if u64::from(left) > outgoing.message.length - outgoing.written {
                return Err(Trouble::Nonsense("it granted more than was announced"));
            }
            let (run, block) = if outgoing.message.is_registered() {
                let run =
                    outgoing.message.at(outgoing.written).and_then(|(address, length, key)| {
                        let length = length.min(u64::from(left));
                        let (length, registered) = tools.regions.run(key, address, length)?;
                        Some(Run { address, length: length as u32, key: registered.local_key })
                    });
                (run.ok_or(Trouble::Nonsense("a region was taken back under a send"))?, None)
            } else {
                let Some(block) = self.out_blocks.pop() else { return Ok(()) };
                let (at, length) =
                    (OUT_BLOCKS_AT + block * BLOCK_BYTES, left.min(BLOCK_BYTES as u32));
                // SAFETY: the send is not over.
                unsafe {
                    let bytes = self.block.bytes(at, length as usize);
                    outgoing.message.read(outgoing.written, bytes);
                }
                let run = self.block.run(at, length as usize);
                (run.ok_or(Trouble::Nonsense("a block is cut"))?.0, Some(block))
            };
            let address = grant.address + u64::from(done);
            let is_last = done + run.length == grant.length;
            let work = if is_last {
                Work::WriteWithNote { address, key: grant.key, note: grant.note }
            } else {
                Work::Write { address, key: grant.key }
            };
            let (message, bytes) = (self.first_send + index as u64, u64::from(run.length));
            self.sends[index].written += bytes;
            self.post(tools.device, work, run, Flown::Write { message, bytes, block }, true)?;
            if is_last {
                self.grants.pop_front();
            } else if let Some((_, done)) = self.grants.front_mut() {
                *done += run.length;
            }
        }
        Ok(())
    }

    fn send(&mut self, tools: &mut Tools<'_>) -> Result<(), Trouble> {
        let Some(mut index) = self.sends.iter().position(|outgoing| !outgoing.is_sent) else {
            return Ok(());
        };
        while index < self.sends.len() {
            let on_the_way = self.sent.messages.wrapping_sub(self.acknowledged.messages);
            if on_the_way >= MESSAGES || !self.has_room() {
                return Ok(());
            }
            let outgoing = &mut self.sends[index];
            outgoing.is_sent = true;
            let (envelope, length) = (outgoing.message.envelope, outgoing.message.length);
            if length > EAGER_BYTES as u64 {
                let head = Head::Announced { envelope, length };
                self.send_head(tools.device, &head, None, false)?;
            } else {
                (outgoing.written, outgoing.done) = (length, length);
                let head = Head::Eager { envelope, length };
                self.send_head(tools.device, &head, Some(index), false)?;
            }
            index += 1;
        }
        Ok(())
    }

    /// Tells the peer what was taken, if there is a slot for it; the device tells when it has come.
    pub(crate) fn return_credit(&mut self, device: &mut dyn Device) -> Result<(), Trouble> {
        if self.control_left() > 0 && self.has_room() {
            self.send_head(device, &Head::Credit, None, true)?;
        }
        Ok(())
    }

    fn send_head(
        &mut self,
        device: &mut dyn Device,
        head: &Head,
        payload_of: Option<usize>,
        is_signalled: bool,
    ) -> Result<(), Trouble> {
        let at = SEND_SLOTS_AT + self.next_slot * SLOT_BYTES;
        let bytes = self.block.bytes(at, SLOT_BYTES);
        let mut length = head.write(self.taken, bytes);
        self.told = self.taken;
        if let Some(outgoing) = payload_of.and_then(|index| self.sends.get(index)) {
            let payload = outgoing.message.length as usize;
            // SAFETY: the send is not over.
            unsafe { outgoing.message.read(0, &mut bytes[length..length + payload]) };
            length += payload;
        }
        debug_assert!(length >= HEADER_BYTES);
        let counter =
            if head.is_message() { &mut self.sent.messages } else { &mut self.sent.control };
        *counter = counter.wrapping_add(1);
        let run = self.block.run(at, length);
        let (run, _) = run.ok_or(Trouble::Nonsense("a slot is cut"))?;
        let flown = if length <= self.inline_bytes {
            Flown::Inline
        } else {
            self.next_slot = (self.next_slot + 1) % SEND_SLOTS;
            self.slots_in_use += 1;
            Flown::Slot
        };
        self.post(device, Work::Send, run, flown, is_signalled)
    }

    fn post(
        &mut self,
        device: &mut dyn Device,
        work: Work,
        run: Run,
        what: Flown,
        is_signalled: bool,
    ) -> Result<(), Trouble> {
        let is_signalled = is_signalled || self.unsignalled + 1 >= UNSIGNALLED;
        self.unsignalled = if is_signalled { 0 } else { self.unsignalled + 1 };
        let id = self.next_flight & 0x7fff_ffff;
        self.next_flight = self.next_flight.wrapping_add(1);
        let is_inline = matches!(what, Flown::Inline);
        let work = SendWork { id: self.mark | u64::from(id), work, run, is_inline, is_signalled };
        self.flights.push_back(Flight { id, what });
        // SAFETY: the run lies in a slot or block that is not used again before the work has ended, or in
        // memory that the runtime lends until the message's completion.
        unsafe { device.post_sends(self.number, &[work]) }?;
        Ok(())
    }

    /// In the order in which they were posted.
    fn tell_what_is_done(&mut self, tools: &mut Tools<'_>) {
        let done = |kind, message: &Message| {
            Completion::done(self.channel, message.token, kind, message.length)
        };
        while let Some(one) =
            self.sends.pop_front_if(|one| one.is_sent && one.done == one.message.length)
        {
            self.first_send += 1;
            tools.completions.push_back(done(completion_kind::SEND, &one.message));
        }
        while let Some(one) =
            self.receives.pop_front_if(|one| one.is_matched && one.landed == one.message.length)
        {
            self.first_receive += 1;
            tools.completions.push_back(done(completion_kind::RECEIVE, &one.message));
        }
    }
}

/// What a failure of work means. `who` names channel and peer.
pub(crate) fn failure(who: &str, device: &dyn Device, trouble: &Trouble) -> PluginError {
    let name = device.name();
    match trouble {
        Trouble::Verbs(error) => {
            PluginError::new(Status::TransportError, format!("{who}, {name}: {error}"))
                .with_vendor_code(error.number().into())
        }
        Trouble::Bad(ended) => {
            let (status, hint) = match ended.status {
                status::RETRY_EXCEEDED => (Status::PeerLost, ": the peer's device does not answer"),
                status::FLUSHED => (Status::PeerLost, ": the connection was broken before"),
                status::RNR_EXCEEDED => {
                    (Status::TransportError, ": the peer had no receive posted")
                }
                _ => (Status::TransportError, ""),
            };
            let words = device.words(ended.status);
            let vendor = ended.vendor;
            let text = format!("{who}, {name}: {words}{hint} (vendor's number {vendor:#x})");
            PluginError::new(status, text).with_vendor_code(ended.status.into())
        }
        Trouble::Nonsense(what) => {
            PluginError::new(Status::TransportError, format!("{who}, {name}: {what}"))
        }
        Trouble::Mismatch { expected, length, .. } => PluginError::new(
            Status::Mismatch,
            format!(
                "{who}: a message of {length} bytes arrived that is not the one of {expected} bytes that \
                 was expected, or not for it"
            ),
        ),
    }
}
