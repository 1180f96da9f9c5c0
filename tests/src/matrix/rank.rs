//! One rank of the matrix: runs the cells that it is told, and says what came of them.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::io::{BufRead, Write as _};
use std::path::Path;
use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use iccl_plugin_api::{Collective, DataType, RedOp};
use iccl_runtime::bootstrap::UniqueId;
use iccl_runtime::comm::{Buffer, Communicator, Counts, Group, Handle, Stream};
use iccl_runtime::engine::counters::PeerCounts;
use iccl_runtime::plan::Tier;
use iccl_runtime::schedule::{Algorithm, Request, StepKind, compile};
use iccl_runtime::{Error, Result};

use super::cell::Cell;
use super::coordinator::{CHUNK_BYTES, Ranks, Transport, job};
use super::declared::{self, Refusal};
use super::expect::{self, Part, Pointer};
use super::memory::{Arena, Place};
use super::values::{PERIOD, Values};
use crate::oracle::reduction;

/// How often a rank says how far it is.
const PROGRESS: Duration = Duration::from_secs(10);
/// How many cells are under way at once, if they are short.
const TOGETHER: usize = 16;
/// The largest count of a short cell.
const SHORT: u64 = 1000;

/// Runs the columns that come over the standard input, one after the other.
///
/// A column is a line `column ALGORITHM UNIQUE_ID`, a line for each cell, and a line `go`.
///
/// # Errors
/// What iccl says of the communicator.
///
/// # Panics
/// If the input makes no sense.
pub fn run(rank: u32, group: Ranks, meeting: &Path) -> Result<()> {
    let Ranks { ranks, transport, .. } = group;
    let meeting = Meeting::open(meeting);
    let known = Known::default();
    let mut lines = std::io::stdin().lock().lines().map(|line| line.expect("a line"));
    let barriers = std::cell::Cell::new(0);
    while let Some(line) = lines.next() {
        let words: Vec<&str> = line.split(' ').collect();
        let ["column", algorithm, id] = words[..] else { panic!("no column: {line}") };
        let forced = Algorithm::from_name(algorithm);
        let cells: Vec<Cell> = lines
            .by_ref()
            .take_while(|line| line != "go")
            .map(|line| line.parse().expect("a cell"))
            .collect();
        let id = UniqueId::from_text(id).expect("a unique id");
        let runtime = job(group, forced).runtime(rank)?;
        let communicator = runtime.communicator(&id, rank, ranks)?;
        check_tiers(&communicator, transport);
        let longest = |cells: &mut dyn Iterator<Item = &Cell>| {
            cells.map(|cell| longest_buffer(cell, rank, ranks)).max().unwrap_or(0)
        };
        let short = longest(&mut cells.iter().filter(|cell| cell.count <= SHORT));
        let any = longest(&mut cells.iter());
        let slots =
            (0..TOGETHER).map(|slot| Slot::new(&communicator, if slot == 0 { any } else { short }));
        let mut column = Column {
            slots: slots.collect::<Result<_>>()?,
            communicator: &communicator,
            forced,
            known: &known,
            meeting: Some(&meeting),
            barriers: &barriers,
        };
        column.run(&cells);
        communicator.finalize()?;
    }
    Ok(())
}

pub(super) fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    // Whoever reads may have gone.
    let _ = writeln!(output, "{line}");
    let _ = output.flush();
}

pub(super) fn longest_buffer(cell: &Cell, rank: u32, ranks: u32) -> usize {
    let part = expect::part(cell, rank, ranks);
    let longest = part.memories.iter().map(|memory| memory.before.elements()).max();
    longest.unwrap_or(0) as usize * cell.dtype.size_bytes()
}

/// # Panics
/// If the ranks are not joined as they should be.
fn check_tiers(communicator: &Communicator, transport: Transport) {
    let rank = communicator.rank();
    for peer in (0..communicator.ranks()).filter(|peer| *peer != rank) {
        let tier = communicator.plan().link(rank, peer).expect("a link").chosen.tier;
        let expected = if transport.is_shared(rank, peer) { Tier::Shm } else { Tier::Tcp };
        assert_eq!(tier, expected, "from rank {rank} to {peer}");
    }
}

/// What one cell uses while it is under way.
pub(super) struct Slot {
    arenas: [Arena; 2],
    stream: Stream,
    /// For what is received while something is sent.
    other_stream: Stream,
    companions: Companions,
}

impl Slot {
    pub(super) fn new(communicator: &Communicator, longest: usize) -> Result<Self> {
        let device = communicator.device();
        Ok(Self {
            arenas: [Arena::on(device, longest)?, Arena::on(device, longest)?],
            stream: device.stream()?,
            other_stream: device.stream()?,
            companions: Companions::new(communicator)?,
        })
    }
}

/// The elements of contributions and results, made once.
#[derive(Default)]
pub(super) struct Known(RefCell<HashMap<ValuesKey, Rc<Values>>>);

type ValuesKey = (DataType, Option<RedOp>, u32);

impl Known {
    fn get(&self, key: ValuesKey) -> Rc<Values> {
        let mut known = self.0.borrow_mut();
        Rc::clone(known.entry(key).or_insert_with(|| Rc::new(Values::new(key.0, key.1, key.2))))
    }
}

/// One communicator, and what cells on it need.
pub(super) struct Column<'a> {
    pub(super) communicator: &'a Communicator,
    pub(super) slots: Vec<Slot>,
    pub(super) forced: Option<Algorithm>,
    pub(super) known: &'a Known,
    /// Where barriers are counted.
    pub(super) meeting: Option<&'a Meeting>,
    /// How many ranks have come to barriers when all have come to the last one.
    pub(super) barriers: &'a std::cell::Cell<u64>,
}

/// A cell with all that it needs.
pub(super) struct Prepared<'a> {
    cell: &'a Cell,
    pub(super) refusal: Option<Refusal>,
    part: Part,
    places: Vec<Place>,
    values: Rc<Values>,
}

impl Prepared<'_> {
    /// Where the elements of this cell start among those that repeat.
    fn rotation(&self) -> u64 {
        self.cell.hash() % PERIOD
    }

    /// What the outcome of the call alone tells.
    pub(super) fn judge(&self, called: &Result<()>) -> Option<String> {
        match (&self.refusal, called) {
            (None, Err(error)) => Some(format!("{}: {error}", error.kind().name())),
            (Some(refusal), Ok(())) => Some(format!("not refused, although {}", refusal.reason)),
            (Some(refusal), Err(error)) if error.kind() != refusal.kind => {
                let (got, kind) = (error.kind().name(), refusal.kind.name());
                Some(format!("refused as {got} and not as {kind}: {error}"))
            }
            (None, Ok(())) | (Some(_), Err(_)) => None,
        }
    }

    /// Compares all memory.
    pub(super) fn compare(&self) -> Option<String> {
        for (index, (memory, place)) in self.part.memories.iter().zip(&self.places).enumerate() {
            let expected = if self.refusal.is_some() { &memory.before } else { &memory.after };
            if let Err(error) = place.from_card() {
                return Some(error.to_string());
            }
            // SAFETY: the arena lives, and the operation is over.
            let bytes = unsafe { place.bytes() };
            let compared = self.values.compare(expected, self.rotation(), bytes);
            if let Some(text) = compared.or_else(|| place.harmed().map(str::to_owned)) {
                let which = match (self.cell.in_place, index) {
                    (true, _) => "the buffer",
                    (false, 0) => "the first buffer",
                    (false, _) => "the second buffer",
                };
                return Some(format!("{which}: {text}"));
            }
        }
        None
    }
}

/// What was exchanged and done so far.
#[derive(PartialEq, Eq)]
struct Trace {
    by_algorithm: Vec<u64>,
    peers: Vec<PeerCounts>,
}

/// What a column has come to.
#[derive(Default)]
struct Tally {
    right: u64,
    wrong: u64,
    refused: BTreeMap<String, u64>,
}

impl Column<'_> {
    fn run(&mut self, cells: &[Cell]) {
        let ranks = self.communicator.ranks();
        let mut tally = Tally::default();
        let mut told = Instant::now();
        let mut batch: Vec<(&Cell, Option<Refusal>)> = Vec::new();
        for (index, cell) in cells.iter().enumerate() {
            if told.elapsed() > PROGRESS {
                told = Instant::now();
                say(&format!("at {index} of {}: {cell}", cells.len()));
            }
            let refusal = declared::refusal(cell, ranks, self.forced);
            let alone = refusal.is_some()
                || cell.count > SHORT
                || cell.collective == Collective::Barrier
                || batch.first().is_some_and(|(first, _)| first.grouped != cell.grouped);
            if alone || batch.len() == TOGETHER {
                self.check(&std::mem::take(&mut batch), &mut tally);
            }
            batch.push((cell, refusal));
            let (cell, refusal) = &batch[0];
            if refusal.is_some() || cell.count > SHORT || cell.collective == Collective::Barrier {
                self.check(&std::mem::take(&mut batch), &mut tally);
            }
            if self.communicator.async_error().is_some() {
                break;
            }
        }
        self.check(&batch, &mut tally);
        for (reason, times) in tally.refused {
            say(&format!("refused {times} {reason}"));
        }
        say(&format!("done {} {}", tally.right, tally.wrong));
    }

    /// Runs cells at once, each on a stream of its own.
    fn check(&mut self, batch: &[(&Cell, Option<Refusal>)], tally: &mut Tally) {
        let prepared: Vec<Prepared> = batch
            .iter()
            .enumerate()
            .map(|(slot, (cell, refusal))| self.prepare(slot, cell, refusal.clone()))
            .collect();
        if prepared.is_empty() {
            return;
        }
        let before = self.trace();
        let begun: Vec<_> =
            prepared.iter().zip(&self.slots).map(|(one, slot)| self.call(one, slot)).collect();
        let ended: Vec<Result<()>> = prepared
            .iter()
            .zip(&self.slots)
            .zip(begun)
            .map(|((one, slot), begun)| self.finish(one, slot, &begun?))
            .collect();
        let mut of_batch = if ended.iter().all(Result::is_ok) {
            self.traced(&prepared, &before, &self.trace())
        } else {
            let moved = prepared.iter().all(|one| one.refusal.is_some()) && before != self.trace();
            moved.then(|| "refused after something was sent".to_owned())
        };
        for (one, called) in prepared.iter().zip(&ended) {
            let told = one.judge(called).or_else(|| one.compare());
            if let Some(text) = told.or_else(|| of_batch.take()) {
                tally.wrong += 1;
                let others = prepared.len() - 1;
                say(&format!("wrong {} {text} ({others} others under way)", one.cell));
            } else if let Some(refusal) = &one.refusal {
                *tally.refused.entry(refusal.reason.clone()).or_default() += 1;
            } else {
                tally.right += 1;
            }
        }
    }

    /// Lays out and fills the memory of a cell.
    pub(super) fn prepare<'a>(
        &mut self,
        slot: usize,
        cell: &'a Cell,
        refusal: Option<Refusal>,
    ) -> Prepared<'a> {
        let (rank, ranks) = (self.communicator.rank(), self.communicator.ranks());
        let part = expect::part(cell, rank, ranks);
        let size = cell.dtype.size_bytes();
        let arenas = &mut self.slots[slot].arenas;
        let places = part.memories.iter().zip(arenas).map(|(memory, arena)| {
            arena.place(memory.before.elements() as usize * size, size, cell.alignment)
        });
        let places = places.collect();
        // A reduction that is refused has no result.
        let reduced = (cell.collective.reduces() && refusal.is_none()).then_some(cell.op);
        let values = self.known.get((cell.dtype, reduced, ranks));
        let mut prepared = Prepared { cell, refusal, part, places, values };
        let rotation = prepared.rotation();
        for (memory, place) in prepared.part.memories.iter().zip(&mut prepared.places) {
            // SAFETY: the arena lives, and nothing is under way on it.
            prepared.values.write(&memory.before, rotation, unsafe { place.bytes_mut() });
            place.to_card().expect("the card takes what the test gives it");
        }
        prepared
    }

    fn trace(&self) -> Trace {
        let counters = self.communicator.counters();
        let of = |peer| counters.peer(peer).unwrap_or_default();
        Trace {
            by_algorithm: Algorithm::ALL.iter().map(|one| counters.operations_by(*one)).collect(),
            peers: (0..self.communicator.ranks()).map(of).collect(),
        }
    }

    /// The algorithm that must carry a cell, where that is known without asking for the choice.
    fn must_carry(&self, cell: &Cell) -> Option<Algorithm> {
        let forced = self.forced.filter(|one| declared::carries(*one, cell));
        match (forced, self.communicator.ranks()) {
            (Some(forced), _) => Some(forced),
            (None, 1) => Some(Algorithm::Local),
            (None, _) => declared::only(cell.collective),
        }
    }

    /// Whether the algorithms that were to run did: by what is counted of them, and by what was sent,
    /// which must be exactly the messages of their schedules.
    fn traced(&self, batch: &[Prepared], before: &Trace, after: &Trace) -> Option<String> {
        let ranks = self.communicator.ranks();
        let ran: Vec<u64> =
            before.by_algorithm.iter().zip(&after.by_algorithm).map(|(a, b)| b - a).collect();
        let times = |cell: &Cell| if cell.collective == Collective::Send { 2 } else { 1 };
        let exact = batch.iter().all(|one| !one.cell.grouped);
        let planned: u64 = batch.iter().map(|one| times(one.cell)).sum();
        if exact && ran.iter().sum::<u64>() != planned {
            return Some(format!("{ran:?} operations by algorithm; there were {planned}"));
        }
        let mut messages = vec![(0, 0); ranks as usize];
        let mut carried: BTreeMap<Algorithm, u64> = BTreeMap::new();
        let mut known = exact;
        for one in batch {
            let Some(algorithm) = self.must_carry(one.cell) else {
                known = false;
                continue;
            };
            // Messages to oneself are carried by nobody.
            if ranks > 1 || one.cell.collective != Collective::Send {
                *carried.entry(algorithm).or_default() += times(one.cell);
            }
            if known {
                self.add_planned(one.cell, &one.part, algorithm, &mut messages);
            }
        }
        for (algorithm, times) in carried {
            let counted = ran[usize::from(algorithm.code())];
            if counted < times {
                return Some(format!("{algorithm} ran {counted} times and must have {times}"));
            }
        }
        for (peer, planned) in (0_u32..).zip(messages).filter(|_| known) {
            let (before, after) = (before.peers[peer as usize], after.peers[peer as usize]);
            let sent =
                (after.messages_sent - before.messages_sent, after.bytes_sent - before.bytes_sent);
            if sent != planned {
                return Some(format!(
                    "sent rank {peer} {sent:?} messages and bytes, and {planned:?} are planned"
                ));
            }
        }
        None
    }

    /// Adds the messages and bytes to each peer in the schedules of a cell.
    fn add_planned(
        &self,
        cell: &Cell,
        part: &Part,
        algorithm: Algorithm,
        messages: &mut [(u64, u64)],
    ) {
        let (rank, ranks) = (self.communicator.rank(), self.communicator.ranks());
        let counts = counts(cell, part);
        let request = Request {
            collective: cell.collective,
            dtype: cell.dtype,
            op: cell.op,
            count: match cell.collective {
                Collective::AllGatherV | Collective::ReduceScatterV => {
                    counts.as_ref().and_then(Counts::total).expect("few elements")
                }
                Collective::GatherV | Collective::ScatterV | Collective::AllToAllV => 0,
                _ => cell.count,
            },
            root: if cell.collective == Collective::Send { (rank + 1) % ranks } else { cell.root },
            rank,
            ranks,
            in_place: cell.in_place,
            algorithm,
            chunk_bytes: CHUNK_BYTES,
            counts: counts.map(std::sync::Arc::new),
            islands: None,
        };
        let schedule = compile(&request).expect("it ran");
        for step in &schedule.steps {
            let (peer, bytes) = match &step.kind {
                StepKind::Send { peer, source, .. } => (*peer, source.bytes),
                StepKind::GateSend { peer, .. } => (*peer, 0),
                _ => continue,
            };
            messages[peer as usize].0 += 1;
            messages[peer as usize].1 += bytes;
        }
    }

    /// Makes the call, in a group with others where the cell says so. The handles of those come second.
    pub(super) fn call(&self, one: &Prepared, slot: &Slot) -> Result<[Vec<Handle>; 2]> {
        if one.cell.collective == Collective::Barrier {
            self.meeting.inspect(|meeting| meeting.arrive());
        }
        if !one.cell.grouped {
            return Ok([self.begin(one, slot)?, Vec::new()]);
        }
        let group = Group::start();
        let companions = slot.companions.begin(self.communicator, &slot.stream);
        let called = self.begin(one, slot);
        // What was refused in a group ends the group with the same.
        group.end()?;
        Ok([called?, companions?])
    }

    /// Waits for what [`Column::call`] has begun.
    pub(super) fn finish(
        &self,
        one: &Prepared,
        slot: &Slot,
        begun: &[Vec<Handle>; 2],
    ) -> Result<()> {
        let [called, companions] = begun;
        wait_for_all(called)?;
        if one.cell.grouped {
            slot.companions.check(self.communicator, companions)?;
        }
        if one.cell.collective == Collective::Barrier {
            self.barriers.set(self.barriers.get() + u64::from(self.communicator.ranks()));
            let counted = self.meeting.map(|meeting| meeting.must_have_all(self.barriers.get()));
            return counted.unwrap_or(Ok(()));
        }
        Ok(())
    }

    fn begin(&self, one: &Prepared, slot: &Slot) -> Result<Vec<Handle>> {
        let Prepared { cell, part, places, .. } = one;
        let address = |pointer: Option<Pointer>| -> *mut c_void {
            pointer.map_or(null_mut(), |pointer| {
                let offset = pointer.element as usize * cell.dtype.size_bytes();
                places[pointer.memory].address(offset)
            })
        };
        let (send, receive) = (address(part.send).cast_const(), address(part.receive));
        let communicator = self.communicator;
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        let stream = &slot.stream;
        let Cell { dtype, count, root, .. } = **cell;
        let op = reduction(dtype, cell.op, rank);
        let (to, from) = (&part.send_blocks, &part.receive_blocks);
        // SAFETY: the places are as long as the cell's part says, and live until the wait is over.
        let handle: Handle = unsafe {
            match cell.collective {
                Collective::AllReduce => {
                    communicator.all_reduce_raw(send, receive, count, dtype, op, stream)
                }
                Collective::Reduce => {
                    communicator.reduce_raw(send, receive, count, dtype, op, root, stream)
                }
                Collective::Broadcast => {
                    communicator.broadcast_raw(send, receive, count, dtype, root, stream)
                }
                Collective::AllGather => {
                    communicator.all_gather_raw(send, receive, count, dtype, stream)
                }
                Collective::ReduceScatter => {
                    communicator.reduce_scatter_raw(send, receive, count, dtype, op, stream)
                }
                Collective::Gather => {
                    communicator.gather_raw(send, receive, count, dtype, root, stream)
                }
                Collective::Scatter => {
                    communicator.scatter_raw(send, receive, count, dtype, root, stream)
                }
                Collective::AllToAll => {
                    communicator.all_to_all_raw(send, receive, count, dtype, stream)
                }
                Collective::AllGatherV => {
                    communicator.all_gather_v_raw(send, receive, from, dtype, stream)
                }
                Collective::ReduceScatterV => {
                    communicator.reduce_scatter_v_raw(send, receive, to, dtype, op, stream)
                }
                Collective::GatherV => {
                    let own = part.own_count;
                    communicator.gather_v_raw(send, own, receive, from, dtype, root, stream)
                }
                Collective::ScatterV => {
                    let own = part.own_count;
                    communicator.scatter_v_raw(send, to, receive, own, dtype, root, stream)
                }
                Collective::AllToAllV => {
                    communicator.all_to_all_v_raw(send, to, receive, from, dtype, stream)
                }
                Collective::Barrier => communicator.barrier(stream),
                Collective::Send | Collective::Recv => {
                    let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
                    let other = if cell.grouped { stream } else { &slot.other_stream };
                    let sent = communicator.send_raw(send, count, dtype, next, stream)?;
                    let received = communicator.recv_raw(receive, count, dtype, previous, other)?;
                    return Ok(vec![sent, received]);
                }
            }
        }?;
        Ok(vec![handle])
    }
}

/// Waits for every one, whatever comes of the others.
fn wait_for_all(handles: &[Handle]) -> Result<()> {
    let ended: Vec<Result<()>> = handles.iter().map(Handle::wait).collect();
    ended.into_iter().collect()
}

/// Calls that share a group with a cell: a message around the ring, and a small sum.
struct Companions {
    sent: Buffer,
    received: Buffer,
    sum: Buffer,
    /// Changes from group to group.
    turn: std::cell::Cell<u32>,
}

impl Companions {
    const COUNT: usize = 37;

    fn new(communicator: &Communicator) -> Result<Self> {
        let memory = || communicator.device().allocate::<u32>(Self::COUNT);
        let (sent, received, sum) = (memory()?, memory()?, memory()?);
        Ok(Self { sent, received, sum, turn: std::cell::Cell::new(0) })
    }

    /// What a rank sends in a turn.
    fn of(turn: u32, rank: u32) -> u32 {
        turn.wrapping_mul(1_000_003).wrapping_add(rank)
    }

    fn begin(&self, communicator: &Communicator, stream: &Stream) -> Result<Vec<Handle>> {
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        let turn = self.turn.get() + 1;
        self.turn.set(turn);
        self.sent.write(0, &[Self::of(turn, rank); Self::COUNT])?;
        self.received.write(0, &[0_u32; Self::COUNT])?;
        let (count, dtype) = (Self::COUNT as u64, DataType::U32);
        let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        Ok(vec![
            communicator.send(&self.sent, count, dtype, next, stream)?,
            communicator.recv(&self.received, count, dtype, previous, stream)?,
            communicator.all_reduce(&self.sent, &self.sum, count, dtype, RedOp::Sum, stream)?,
        ])
    }

    fn check(&self, communicator: &Communicator, handles: &[Handle]) -> Result<()> {
        wait_for_all(handles)?;
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        let turn = self.turn.get();
        let sum = (0..ranks).fold(0, |sum: u32, one| sum.wrapping_add(Self::of(turn, one)));
        let received = Self::of(turn, (rank + ranks - 1) % ranks);
        for (what, buffer, expected) in
            [("message", &self.received, received), ("sum", &self.sum, sum)]
        {
            let got: Vec<u32> = buffer.read()?;
            if got != [expected; Self::COUNT] {
                let text = format!("the {what} of the group is {got:?} instead of {expected}");
                return Err(Error::new(iccl_runtime::ErrorKind::Internal, text));
            }
        }
        Ok(())
    }
}

/// The counts of a vector form as the call gives them.
fn counts(cell: &Cell, part: &Part) -> Option<Counts> {
    let (to, from, own) = (part.send_blocks.clone(), part.receive_blocks.clone(), part.own_count);
    match cell.collective {
        Collective::AllGatherV => Some(Counts::all_gather_v(from)),
        Collective::ReduceScatterV => Some(Counts::reduce_scatter_v(to)),
        Collective::GatherV => Some(Counts::gather_v(own, from)),
        Collective::ScatterV => Some(Counts::scatter_v(to, own)),
        Collective::AllToAllV => Some(Counts::all_to_all_v(to, from)),
        _ => None,
    }
}

/// A number in memory that all ranks share: how many have come to barriers.
pub(super) struct Meeting {
    arrived: *const AtomicU64,
}

impl Meeting {
    /// # Panics
    /// If the file can't be mapped.
    fn open(path: &Path) -> Self {
        use std::os::fd::AsRawFd;
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path);
        let file = file.expect("the file in which ranks meet");
        // SAFETY: a fresh shared mapping of a file that is a page long, kept until the process ends.
        let address = unsafe {
            libc::mmap(
                null_mut(),
                size_of::<AtomicU64>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(address, libc::MAP_FAILED, "the file in which ranks meet cannot be mapped");
        Self { arrived: address.cast() }
    }

    fn number(&self) -> &AtomicU64 {
        // SAFETY: mapped in `open` and aligned to a page; all processes use it atomically.
        unsafe { &*self.arrived }
    }

    fn arrive(&self) {
        self.number().fetch_add(1, Ordering::SeqCst);
    }

    fn must_have_all(&self, all: u64) -> Result<()> {
        let arrived = self.number().load(Ordering::SeqCst);
        if arrived >= all {
            return Ok(());
        }
        let text = format!("passed a barrier when {arrived} of {all} had come");
        Err(Error::new(iccl_runtime::ErrorKind::Internal, text))
    }
}
