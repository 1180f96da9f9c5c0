//! Collectives and messages.

use std::ffi::c_void;
use std::sync::Arc;

use iccl_sim_core::group::{Call, Flaw, Operation};
use iccl_sim_core::reduce::{Element, Reduction};
use iccl_sim_core::{Fault, Machine, Place, Span};

use crate::communicators::{Comm, find};
use crate::group::{self, Deferred, Launch};
use crate::operators::{element, reduction};
use crate::{INVALID_ARGUMENT, INVALID_USAGE, Outcome, Status, UNHANDLED_CUDA_ERROR, call, fail};

/// `cudaErrorIllegalAddress`.
const ILLEGAL_ADDRESS: i32 = 700;

/// What all calls have in common.
struct Asked {
    machine: &'static Machine,
    comm: Arc<Comm>,
    element: Element,
    count: usize,
    fault: Option<Fault>,
    stream: *mut c_void,
}

/// A buffer that isn't where cards reach it.
struct Unreachable;

type Spanned = Result<Operation, Unreachable>;

impl Asked {
    fn span(&self, pointer: *const c_void, blocks: usize) -> Result<Span, Unreachable> {
        let bytes = self.count * blocks * self.element.bytes();
        let span = self.machine.span(pointer as u64, bytes as u64).map_err(|_| Unreachable)?;
        if span.place() == Place::Pageable { Err(Unreachable) } else { Ok(span) }
    }

    fn ranks(&self) -> usize {
        self.comm.ranks as usize
    }

    fn peer(&self, peer: i32) -> Result<u32, Status> {
        let found = u32::try_from(peer).ok().filter(|peer| *peer < self.comm.ranks);
        found.ok_or_else(|| fail(INVALID_ARGUMENT, "invalid root or peer"))
    }

    fn reduction(&self, operator: i32) -> Result<(Reduction, Option<Span>), Status> {
        reduction(&self.comm, operator, self.element, self.fault)
    }

    /// Puts the operation into the stream, or into the group. A buffer out of reach breaks the card when the
    /// stream comes there, as with the real one.
    fn launch(self, factor_at: Option<Span>, operation: Spanned) -> Outcome {
        let machine = self.machine;
        let stream = match self.stream as u64 {
            0 | 1 => machine.default_stream(self.comm.device).map_err(|_| INVALID_USAGE)?,
            _ => iccl_sim_nvidia::stream(machine, self.stream).map_err(|_| {
                fail(UNHANDLED_CUDA_ERROR, "Cuda failure 'invalid resource handle'")
            })?,
        };
        if stream.device() != self.comm.device {
            return Err(fail(UNHANDLED_CUDA_ERROR, "Cuda failure 'invalid resource handle'"));
        }
        self.comm.ready()?;
        if machine.health(self.comm.device).is_err() {
            return Err(fail(UNHANDLED_CUDA_ERROR, "Cuda failure: the card is in error"));
        }
        let Ok(operation) = operation else {
            let device = self.comm.device;
            let fall = move || {
                if let Ok(device) = machine.device(device) {
                    device.break_with(ILLEGAL_ADDRESS);
                }
            };
            machine.enqueue(&stream, Box::new(fall));
            return Ok(());
        };
        let flaw = (self.fault == Some(Fault::DropSlice)).then_some(Flaw::DropSlice);
        let call = Call { operation, element: self.element, factor_at, flaw };
        let launch = Launch { machine, comm: self.comm, stream, call };
        if group::is_open() {
            group::defer(Deferred::Launch(Box::new(launch)));
            return Ok(());
        }
        group::launch(vec![launch])
    }
}

struct Arguments {
    symbol: &'static str,
    count: usize,
    element: i32,
    comm: *mut c_void,
    stream: *mut c_void,
}

impl Arguments {
    /// Checks what all calls have in common. Nothing to move is nothing to do.
    fn run(&self, body: impl FnOnce(Asked) -> Outcome) -> Status {
        let code = call(self.symbol, |machine, fault| {
            let comm = find(self.comm)?;
            let element = element(self.element)?;
            let (count, stream) = (self.count, self.stream);
            body(Asked { machine, comm, element, count, fault, stream })
        });
        group::note_error(code);
        code
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllReduce(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    element: i32,
    operator: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    Arguments { symbol: "ncclAllReduce", count, element, comm, stream }.run(|asked| {
        let (reduction, at) = asked.reduction(operator)?;
        if count == 0 {
            return Ok(());
        }
        let spans = || Ok((asked.span(send, 1)?, asked.span(receive, 1)?));
        let operation =
            spans().map(|(send, receive)| Operation::AllReduce { send, receive, reduction });
        asked.launch(at, operation)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclReduce(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    element: i32,
    operator: i32,
    root: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    Arguments { symbol: "ncclReduce", count, element, comm, stream }.run(|asked| {
        let ((reduction, at), root) = (asked.reduction(operator)?, asked.peer(root)?);
        if count == 0 {
            return Ok(());
        }
        let is_root = asked.comm.rank == root;
        let spans = || {
            let receive = if is_root { Some(asked.span(receive, 1)?) } else { None };
            Ok((asked.span(send, 1)?, receive))
        };
        let operation =
            spans().map(|(send, receive)| Operation::Reduce { send, receive, reduction, root });
        asked.launch(at, operation)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclReduceScatter(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    element: i32,
    operator: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    Arguments { symbol: "ncclReduceScatter", count, element, comm, stream }.run(|asked| {
        let (reduction, at) = asked.reduction(operator)?;
        if count == 0 {
            return Ok(());
        }
        let spans = || Ok((asked.span(send, asked.ranks())?, asked.span(receive, 1)?));
        let operation =
            spans().map(|(send, receive)| Operation::ReduceScatter { send, receive, reduction });
        asked.launch(at, operation)
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
        let is_root = asked.comm.rank == root;
        let spans = || {
            let send = if is_root { Some(asked.span(send, 1)?) } else { None };
            Ok((send, asked.span(receive, 1)?))
        };
        let operation = spans().map(|(send, receive)| Operation::Broadcast { send, receive, root });
        asked.launch(None, operation)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclBroadcast(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    element: i32,
    root: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    let arguments = Arguments { symbol: "ncclBroadcast", count, element, comm, stream };
    broadcast(&arguments, send, receive, root)
}

#[unsafe(no_mangle)]
extern "C" fn ncclBcast(
    buffer: *mut c_void,
    count: usize,
    element: i32,
    root: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    let arguments = Arguments { symbol: "ncclBcast", count, element, comm, stream };
    broadcast(&arguments, buffer, buffer, root)
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllGather(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    element: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    Arguments { symbol: "ncclAllGather", count, element, comm, stream }.run(|asked| {
        if count == 0 {
            return Ok(());
        }
        let spans = || Ok((asked.span(send, 1)?, asked.span(receive, asked.ranks())?));
        let operation = spans().map(|(send, receive)| Operation::AllGather { send, receive });
        asked.launch(None, operation)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclAlltoAll(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    element: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    Arguments { symbol: "ncclAlltoAll", count, element, comm, stream }.run(|asked| {
        if count == 0 {
            return Ok(());
        }
        let ranks = asked.ranks();
        let spans = || Ok((asked.span(send, ranks)?, asked.span(receive, ranks)?));
        let operation = spans().map(|(send, receive)| Operation::AllToAll { send, receive });
        asked.launch(None, operation)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclGather(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    element: i32,
    root: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    Arguments { symbol: "ncclGather", count, element, comm, stream }.run(|asked| {
        let root = asked.peer(root)?;
        if count == 0 {
            return Ok(());
        }
        let is_root = asked.comm.rank == root;
        let spans = || {
            let all = if is_root { Some(asked.span(receive, asked.ranks())?) } else { None };
            Ok((asked.span(send, 1)?, all))
        };
        let operation = spans().map(|(send, receive)| Operation::Gather { send, receive, root });
        asked.launch(None, operation)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclScatter(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    element: i32,
    root: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    Arguments { symbol: "ncclScatter", count, element, comm, stream }.run(|asked| {
        let root = asked.peer(root)?;
        if count == 0 {
            return Ok(());
        }
        let is_root = asked.comm.rank == root;
        let spans = || {
            let all = if is_root { Some(asked.span(send, asked.ranks())?) } else { None };
            Ok((all, asked.span(receive, 1)?))
        };
        let operation = spans().map(|(send, receive)| Operation::Scatter { send, receive, root });
        asked.launch(None, operation)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclSend(
    send: *const c_void,
    count: usize,
    element: i32,
    peer: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    Arguments { symbol: "ncclSend", count, element, comm, stream }.run(|asked| {
        let peer = asked.peer(peer)?;
        if asked.count == 0 {
            return Ok(());
        }
        let span = asked.span(send, 1);
        let operation = span
            .map(|span| Operation::Messages { sends: vec![(peer, span)], receives: Vec::new() });
        asked.launch(None, operation)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclRecv(
    receive: *mut c_void,
    count: usize,
    element: i32,
    peer: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    Arguments { symbol: "ncclRecv", count, element, comm, stream }.run(|asked| {
        let peer = asked.peer(peer)?;
        if asked.count == 0 {
            return Ok(());
        }
        let span = asked.span(receive, 1);
        let operation = span
            .map(|span| Operation::Messages { sends: Vec::new(), receives: vec![(peer, span)] });
        asked.launch(None, operation)
    })
}
