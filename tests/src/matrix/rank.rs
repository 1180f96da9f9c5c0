//! One rank of the matrix: runs the cells that it is told, and says what came of them.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::io::{BufRead, Write as _};
use std::path::Path;
use std::ptr::null_mut;
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
use super::coordinator::{CHUNK_BYTES, Transport, job};
use super::declared::{self, Refusal};
use super::expect::{self, Part, Pointer};
use super::memory::{Arena, Place};
use super::values::{PERIOD, Values};

/// How often a rank says how far it is.
const PROGRESS: Duration = Duration::from_secs(10);

/// Runs the columns that come over the standard input, one after the other.
///
/// A column is a line `column ALGORITHM UNIQUE_ID`, a line for each cell, and a line `go`.
///
/// # Errors
/// What iccl says of the communicator.
///
/// # Panics
/// If the input makes no sense.
pub fn run(rank: u32, ranks: u32, transport: Transport, meeting: &Path) -> Result<()> {
    let meeting = Meeting::open(meeting);
    let mut known = HashMap::new();
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
        let runtime = job(ranks, transport, forced).runtime(rank)?;
        let communicator = runtime.communicator(&id, rank, ranks)?;
        check_tiers(&communicator, transport);
        let longest = cells.iter().map(|cell| longest_buffer(cell, rank, ranks)).max().unwrap_or(0);
        let mut column = Column {
            stream: communicator.device().stream()?,
            companions: Companions::new(&communicator)?,
            communicator: &communicator,
            forced,
            arenas: [Arena::new(longest), Arena::new(longest)],
            known: &mut known,
            meeting: &meeting,
            barriers: &barriers,
        };
        column.run(&cells);
        communicator.finalize()?;
    }
    Ok(())
}

fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    // Whoever reads may have gone.
    let _ = writeln!(output, "{line}");
    let _ = output.flush();
}

fn longest_buffer(cell: &Cell, rank: u32, ranks: u32) -> usize {
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

/// What became of a cell.
enum Outcome {
    Right,
    Refused(String),
    Wrong(String),
}

struct Column<'a> {
    communicator: &'a Communicator,
    /// For what is received while something is sent.
    stream: Stream,
    companions: Companions,
    forced: Option<Algorithm>,
    arenas: [Arena; 2],
    known: &'a mut HashMap<(DataType, Option<RedOp>), Values>,
    meeting: &'a Meeting,
    /// How many ranks have come to barriers when all have come to the last one.
    barriers: &'a std::cell::Cell<u64>,
}

/// What was exchanged and done so far.
#[derive(PartialEq, Eq)]
struct Trace {
    by_algorithm: Vec<u64>,
    peers: Vec<PeerCounts>,
}

impl Column<'_> {
    fn run(&mut self, cells: &[Cell]) {
        let (mut right, mut wrong) = (0_u64, 0_u64);
        let mut refused: BTreeMap<String, u64> = BTreeMap::new();
        let mut told = Instant::now();
        for (index, cell) in cells.iter().enumerate() {
            if told.elapsed() > PROGRESS {
                told = Instant::now();
                say(&format!("at {index} of {}: {cell}", cells.len()));
            }
            match self.check(cell) {
                Outcome::Right => right += 1,
                Outcome::Refused(reason) => *refused.entry(reason).or_default() += 1,
                Outcome::Wrong(text) => {
                    wrong += 1;
                    say(&format!("wrong {cell} {text}"));
                    if self.communicator.async_error().is_some() {
                        break;
                    }
                }
            }
        }
        for (reason, times) in refused {
            say(&format!("refused {times} {reason}"));
        }
        say(&format!("done {right} {wrong}"));
    }

    fn check(&mut self, cell: &Cell) -> Outcome {
        let (rank, ranks) = (self.communicator.rank(), self.communicator.ranks());
        let part = expect::part(cell, rank, ranks);
        let rotation = cell.hash() % PERIOD;
        let size = cell.dtype.size_bytes();
        let mut places = Vec::with_capacity(2);
        for (memory, arena) in part.memories.iter().zip(&mut self.arenas) {
            let bytes = memory.before.elements() as usize * size;
            places.push(arena.place(bytes, size, cell.alignment));
        }
        let op = cell.collective.reduces().then_some(cell.op);
        let refusal = declared::refusal(cell, ranks, self.forced);
        // A reduction that is refused has no result.
        let op = op.filter(|_| refusal.is_none());
        let known = self.known.entry((cell.dtype, op));
        known.or_insert_with(|| Values::new(cell.dtype, op, ranks));
        let values = &self.known[&(cell.dtype, op)];
        for (memory, place) in part.memories.iter().zip(&mut places) {
            // SAFETY: the arena lives, and nothing is under way.
            values.write(&memory.before, rotation, unsafe { place.bytes_mut() });
        }
        let before = self.trace();
        let called = self.call(cell, &part, &places);
        let after = self.trace();
        let text = match (&refusal, called) {
            (None, Ok(())) => self.traced(cell, &part, &before, &after),
            (None, Err(error)) => Some(format!("{}: {error}", error.kind().name())),
            (Some(refusal), Ok(())) => Some(format!("not refused, although {}", refusal.reason)),
            (Some(Refusal { kind, reason }), Err(error)) => {
                if error.kind() != *kind {
                    let (got, kind) = (error.kind().name(), kind.name());
                    Some(format!("refused as {got} and not as {kind}: {error}"))
                } else if before != after {
                    Some(format!("refused, as {reason}, after something was sent"))
                } else {
                    None
                }
            }
        };
        if let Some(text) = text {
            return Outcome::Wrong(text);
        }
        for (index, (memory, place)) in part.memories.iter().zip(&places).enumerate() {
            let expected = if refusal.is_some() { &memory.before } else { &memory.after };
            // SAFETY: the arena lives, and the operation is over.
            let compared = values.compare(expected, rotation, unsafe { place.bytes() });
            if let Some(text) = compared.or_else(|| place.harmed().map(str::to_owned)) {
                let which = match (cell.in_place, index) {
                    (true, _) => "the buffer",
                    (false, 0) => "the first buffer",
                    (false, _) => "the second buffer",
                };
                return Outcome::Wrong(format!("{which}: {text}"));
            }
        }
        refusal.map_or(Outcome::Right, |refusal| Outcome::Refused(refusal.reason))
    }

    fn trace(&self) -> Trace {
        let counters = self.communicator.counters();
        let of = |peer| counters.peer(peer).unwrap_or_default();
        Trace {
            by_algorithm: Algorithm::ALL.iter().map(|one| counters.operations_by(*one)).collect(),
            peers: (0..self.communicator.ranks()).map(of).collect(),
        }
    }

    /// Whether the algorithm that was to run did: by what is counted of it, and by what was sent, which
    /// must be exactly the messages of its schedule.
    fn traced(&self, cell: &Cell, part: &Part, before: &Trace, after: &Trace) -> Option<String> {
        let pairs = before.by_algorithm.iter().zip(&after.by_algorithm).map(|(a, b)| b - a);
        let ran: Vec<(Algorithm, u64)> =
            Algorithm::ALL.iter().copied().zip(pairs).filter(|(_, times)| *times > 0).collect();
        if cell.grouped {
            // With others beside it, whose messages cannot be told from its own.
            let forced = self.forced.filter(|one| declared::carries(*one, cell))?;
            let is_there = ran.iter().any(|(algorithm, _)| *algorithm == forced);
            return (!is_there).then(|| format!("carried by {ran:?}, and {forced} is forced"));
        }
        let times = if cell.collective == Collective::Send { 2 } else { 1 };
        let [(algorithm, counted)] = ran[..] else {
            return Some(format!("carried by {ran:?}"));
        };
        if counted != times {
            return Some(format!("counted {counted} operations instead of {times}"));
        }
        if let Some(forced) = self.forced.filter(|one| declared::carries(*one, cell))
            && algorithm != forced
        {
            return Some(format!("carried by {algorithm}, and not by {forced}, which is forced"));
        }
        for (peer, planned) in (0_u32..).zip(self.planned(cell, part, algorithm)) {
            let (before, after) = (before.peers[peer as usize], after.peers[peer as usize]);
            let sent =
                (after.messages_sent - before.messages_sent, after.bytes_sent - before.bytes_sent);
            if sent != planned {
                return Some(format!(
                    "sent rank {peer} {sent:?} messages and bytes; by {algorithm} {planned:?}"
                ));
            }
        }
        None
    }

    /// Messages and bytes to each peer in the schedules of a cell.
    fn planned(&self, cell: &Cell, part: &Part, algorithm: Algorithm) -> Vec<(u64, u64)> {
        let (rank, ranks) = (self.communicator.rank(), self.communicator.ranks());
        let counts = counts(cell, part);
        let mut messages = vec![(0, 0); ranks as usize];
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
        messages
    }

    /// Makes the call, in a group with others where the cell says so, and waits for it.
    fn call(&self, cell: &Cell, part: &Part, places: &[Place]) -> Result<()> {
        let is_barrier = cell.collective == Collective::Barrier;
        if is_barrier {
            self.meeting.arrive();
        }
        if cell.grouped {
            let group = Group::start();
            let before = self.companions.begin(self.communicator);
            let called = self.begin(cell, part, places);
            group.end()?;
            // What was refused in a group ends the group with the same.
            wait_for_all(&called?)?;
            self.companions.check(self.communicator, &before?)?;
        } else {
            wait_for_all(&self.begin(cell, part, places)?)?;
        }
        if is_barrier {
            self.barriers.set(self.barriers.get() + u64::from(self.communicator.ranks()));
            return self.meeting.must_have_all(self.barriers.get());
        }
        Ok(())
    }

    /// Makes the call.
    fn begin(&self, cell: &Cell, part: &Part, places: &[Place]) -> Result<Vec<Handle>> {
        let address = |pointer: Option<Pointer>| -> *mut c_void {
            pointer.map_or(null_mut(), |pointer| {
                let offset = pointer.element as usize * cell.dtype.size_bytes();
                places[pointer.memory].address(offset)
            })
        };
        let (send, receive) = (address(part.send).cast_const(), address(part.receive));
        let communicator = self.communicator;
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        let stream = communicator.stream();
        let Cell { dtype, op, count, root, .. } = *cell;
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
                    let other = if cell.grouped { stream } else { &self.stream };
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

    fn begin(&self, communicator: &Communicator) -> Result<Vec<Handle>> {
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        let turn = self.turn.get() + 1;
        self.turn.set(turn);
        self.sent.write(0, &[Self::of(turn, rank); Self::COUNT])?;
        self.received.write(0, &[0_u32; Self::COUNT])?;
        let (count, stream, dtype) = (Self::COUNT as u64, communicator.stream(), DataType::U32);
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
struct Meeting {
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
