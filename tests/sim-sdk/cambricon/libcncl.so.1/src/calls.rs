//! Collectives and messages.

use std::ffi::c_void;
use std::sync::Arc;

use iccl_sim_core::group::{Call, Flaw, Operation};
use iccl_sim_core::reduce::{Element, Reduction};
use iccl_sim_core::{Fault, Machine, Place, Span};

use crate::cliques::{Comm, find};
use crate::group::{self, Deferred};
use crate::types::{element, reduction};
use crate::{ARGUMENTS, MLU_RUNTIME, NULL_POINTER, Outcome, Status, call};

/// `cnrtErrorKernelTrap`: what a card meets that reads what it can not reach.
const KERNEL_TRAP: i32 = 100_132;

/// What all calls have in common.
struct Asked {
    machine: &'static Machine,
    comm: Arc<Comm>,
    dtype: i32,
    element: Element,
    count: usize,
    fault: Option<Fault>,
    queue: *mut c_void,
}

/// A buffer that isn't where cards reach it.
struct Unreachable;

type Spanned = Result<Operation, Unreachable>;

fn reach(machine: &Machine, pointer: *const c_void, bytes: usize) -> Result<Span, Unreachable> {
    let span = machine.span(pointer as u64, bytes as u64).map_err(|_| Unreachable)?;
    if span.place() == Place::Pageable { Err(Unreachable) } else { Ok(span) }
}

/// Null buffers are refused at once.
fn there<T>(pointer: *const T) -> Outcome {
    if pointer.is_null() { Err(NULL_POINTER) } else { Ok(()) }
}

impl Asked {
    fn span(&self, pointer: *const c_void, blocks: usize) -> Result<Span, Unreachable> {
        reach(self.machine, pointer, self.count * blocks * self.element.bytes())
    }

    fn ranks(&self) -> usize {
        self.comm.ranks as usize
    }

    fn peer(&self, peer: i32) -> Result<u32, Status> {
        u32::try_from(peer).ok().filter(|peer| *peer < self.comm.ranks).ok_or(ARGUMENTS)
    }

    fn reduction(&self, operation: i32) -> Result<Reduction, Status> {
        reduction(self.machine, operation, self.dtype)
    }

    /// Puts the operation into the queue, or into the group. A buffer out of reach breaks the card when the
    /// queue comes there.
    fn launch(self, operation: Spanned) -> Outcome {
        let machine = self.machine;
        let stream = match self.queue as u64 {
            0 | 2 => machine.default_stream(self.comm.device).map_err(|_| MLU_RUNTIME)?,
            _ => iccl_sim_cambricon::queue(machine, self.queue).map_err(|_| MLU_RUNTIME)?,
        };
        if stream.device() != self.comm.device || machine.health(self.comm.device).is_err() {
            return Err(MLU_RUNTIME);
        }
        let Ok(operation) = operation else {
            let device = self.comm.device;
            let fall = move || {
                if let Ok(device) = machine.device(device) {
                    device.break_with(KERNEL_TRAP);
                }
            };
            machine.enqueue(&stream, Box::new(fall));
            return Ok(());
        };
        let flaw = (self.fault == Some(Fault::DropSlice)).then_some(Flaw::DropSlice);
        let call = Call { operation, element: self.element, factor_at: None, flaw };
        let deferred = Deferred { machine, comm: self.comm, stream, call };
        if group::is_open() {
            group::defer(deferred);
            return Ok(());
        }
        group::run(vec![deferred])
    }
}

struct Arguments {
    symbol: &'static str,
    count: usize,
    dtype: i32,
    comm: *mut c_void,
    queue: *mut c_void,
}

impl Arguments {
    /// Checks what all calls have in common. Nothing to move is nothing to do.
    fn run(&self, body: impl FnOnce(Asked) -> Outcome) -> Status {
        let code = call(self.symbol, |machine, fault| {
            let comm = find(self.comm)?;
            let element = element(self.dtype)?;
            let (count, dtype, queue) = (self.count, self.dtype, self.queue);
            body(Asked { machine, comm, dtype, element, count, fault, queue })
        });
        group::note_error(code);
        code
    }
}

#[unsafe(no_mangle)]
extern "C" fn cnclAllReduce(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: i32,
    operation: i32,
    comm: *mut c_void,
    queue: *mut c_void,
) -> Status {
    Arguments { symbol: "cnclAllReduce", count, dtype, comm, queue }.run(|asked| {
        let reduction = asked.reduction(operation)?;
        if count == 0 {
            return Ok(());
        }
        there(send).and_then(|()| there(receive))?;
        let spans = || Ok((asked.span(send, 1)?, asked.span(receive, 1)?));
        let operation =
            spans().map(|(send, receive)| Operation::AllReduce { send, receive, reduction });
        asked.launch(operation)
    })
}

/// The result may be null where there is none.
#[unsafe(no_mangle)]
extern "C" fn cnclReduce(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: i32,
    operation: i32,
    root: i32,
    comm: *mut c_void,
    queue: *mut c_void,
) -> Status {
    Arguments { symbol: "cnclReduce", count, dtype, comm, queue }.run(|asked| {
        let (reduction, root) = (asked.reduction(operation)?, asked.peer(root)?);
        if count == 0 {
            return Ok(());
        }
        let is_root = asked.comm.rank == root;
        there(send)?;
        if is_root {
            there(receive)?;
        }
        let spans = || {
            let receive = if is_root { Some(asked.span(receive, 1)?) } else { None };
            Ok((asked.span(send, 1)?, receive))
        };
        let operation =
            spans().map(|(send, receive)| Operation::Reduce { send, receive, reduction, root });
        asked.launch(operation)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnclReduceScatter(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: i32,
    operation: i32,
    comm: *mut c_void,
    queue: *mut c_void,
) -> Status {
    Arguments { symbol: "cnclReduceScatter", count, dtype, comm, queue }.run(|asked| {
        let reduction = asked.reduction(operation)?;
        if count == 0 {
            return Ok(());
        }
        there(send).and_then(|()| there(receive))?;
        let spans = || Ok((asked.span(send, asked.ranks())?, asked.span(receive, 1)?));
        let operation =
            spans().map(|(send, receive)| Operation::ReduceScatter { send, receive, reduction });
        asked.launch(operation)
    })
}

fn broadcast(
    arguments: &Arguments,
    send: *const c_void,
    receive: *mut c_void,
    root: i32,
) -> Status {
    arguments.run(|asked| {
        let root = asked.peer(root)?;
        if asked.count == 0 {
            return Ok(());
        }
        // Also where it is not read: nothing says that it may be null there.
        there(send).and_then(|()| there(receive))?;
        let is_root = asked.comm.rank == root;
        let spans = || {
            let send = if is_root { Some(asked.span(send, 1)?) } else { None };
            Ok((send, asked.span(receive, 1)?))
        };
        let operation = spans().map(|(send, receive)| Operation::Broadcast { send, receive, root });
        asked.launch(operation)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnclBroadcast(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: i32,
    root: i32,
    comm: *mut c_void,
    queue: *mut c_void,
) -> Status {
    let arguments = Arguments { symbol: "cnclBroadcast", count, dtype, comm, queue };
    broadcast(&arguments, send, receive, root)
}

#[unsafe(no_mangle)]
extern "C" fn cnclBcast(
    buffer: *mut c_void,
    count: usize,
    dtype: i32,
    root: i32,
    comm: *mut c_void,
    queue: *mut c_void,
) -> Status {
    let arguments = Arguments { symbol: "cnclBcast", count, dtype, comm, queue };
    broadcast(&arguments, buffer, buffer, root)
}

#[unsafe(no_mangle)]
extern "C" fn cnclAllGather(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: i32,
    comm: *mut c_void,
    queue: *mut c_void,
) -> Status {
    Arguments { symbol: "cnclAllGather", count, dtype, comm, queue }.run(|asked| {
        if count == 0 {
            return Ok(());
        }
        there(send).and_then(|()| there(receive))?;
        let spans = || Ok((asked.span(send, 1)?, asked.span(receive, asked.ranks())?));
        let operation = spans().map(|(send, receive)| Operation::AllGather { send, receive });
        asked.launch(operation)
    })
}

/// In place it runs, and its result is undefined: nobody looks at what it does to its own buffer.
#[unsafe(no_mangle)]
extern "C" fn cnclAlltoAll(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: i32,
    comm: *mut c_void,
    queue: *mut c_void,
) -> Status {
    Arguments { symbol: "cnclAlltoAll", count, dtype, comm, queue }.run(|asked| {
        if count == 0 {
            return Ok(());
        }
        there(send).and_then(|()| there(receive))?;
        let ranks = asked.ranks();
        let spans = || Ok((asked.span(send, ranks)?, asked.span(receive, ranks)?));
        let operation = spans().map(|(send, receive)| Operation::AllToAll { send, receive });
        asked.launch(operation)
    })
}

/// One direction of `cnclAlltoAllv`: arrays of the host with an entry for each rank.
struct Blocks {
    pointers: *const *mut c_void,
    counts: *const u32,
    dtypes: *const i32,
}

impl Blocks {
    fn read(&self, ranks: usize) -> Result<Vec<(u32, *mut c_void, usize)>, Status> {
        there(self.pointers).and_then(|()| there(self.counts)).and_then(|()| there(self.dtypes))?;
        let entry = |rank: usize| {
            // SAFETY: C passes an entry for each rank.
            let (pointer, count, dtype) = unsafe {
                (
                    self.pointers.add(rank).read_unaligned(),
                    self.counts.add(rank).read_unaligned(),
                    self.dtypes.add(rank).read_unaligned(),
                )
            };
            Ok((rank as u32, pointer, count as usize * element(dtype)?.bytes()))
        };
        (0..ranks).map(entry).collect()
    }
}

fn spans(
    machine: &Machine,
    blocks: &[(u32, *mut c_void, usize)],
) -> Result<Vec<(u32, Span)>, Unreachable> {
    let blocks = blocks.iter().filter(|(_, _, bytes)| *bytes > 0);
    blocks.map(|(rank, pointer, bytes)| Ok((*rank, reach(machine, *pointer, *bytes)?))).collect()
}

#[unsafe(no_mangle)]
extern "C" fn cnclAlltoAllv(
    send: *const *mut c_void,
    send_counts: *const u32,
    send_dtypes: *const i32,
    receive: *const *mut c_void,
    receive_counts: *const u32,
    receive_dtypes: *const i32,
    comm: *mut c_void,
    queue: *mut c_void,
) -> Status {
    const BYTES: i32 = 0x30;
    Arguments { symbol: "cnclAlltoAllv", count: 0, dtype: BYTES, comm, queue }.run(|asked| {
        let ranks = asked.ranks();
        let sent = Blocks { pointers: send, counts: send_counts, dtypes: send_dtypes };
        let received = Blocks { pointers: receive, counts: receive_counts, dtypes: receive_dtypes };
        let (sent, received) = (sent.read(ranks)?, received.read(ranks)?);
        let operation = spans(asked.machine, &sent).and_then(|sends| {
            Ok(Operation::Messages { sends, receives: spans(asked.machine, &received)? })
        });
        asked.launch(operation)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnclSend(
    send: *mut c_void,
    count: usize,
    dtype: i32,
    peer: i32,
    comm: *mut c_void,
    queue: *mut c_void,
) -> Status {
    Arguments { symbol: "cnclSend", count, dtype, comm, queue }.run(|asked| {
        let peer = asked.peer(peer)?;
        if count == 0 {
            return Ok(());
        }
        there(send)?;
        let operation = asked
            .span(send, 1)
            .map(|span| Operation::Messages { sends: vec![(peer, span)], receives: Vec::new() });
        asked.launch(operation)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cnclRecv(
    receive: *mut c_void,
    count: usize,
    dtype: i32,
    peer: i32,
    comm: *mut c_void,
    queue: *mut c_void,
) -> Status {
    Arguments { symbol: "cnclRecv", count, dtype, comm, queue }.run(|asked| {
        let peer = asked.peer(peer)?;
        if count == 0 {
            return Ok(());
        }
        there(receive)?;
        let operation = asked
            .span(receive, 1)
            .map(|span| Operation::Messages { sends: Vec::new(), receives: vec![(peer, span)] });
        asked.launch(operation)
    })
}
