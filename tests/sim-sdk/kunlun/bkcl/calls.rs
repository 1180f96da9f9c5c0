//! Collectives and messages.

use std::ffi::c_void;
use std::sync::Arc;

use iccl_sim_core::group::{BlocksAt, Call, Flaw, Operation};
use iccl_sim_core::reduce::{Combine, Element, Factor, Reduction};
use iccl_sim_core::{Fault, Machine, Place, Span};
use iccl_sim_kunlun::ABNORMAL;

use super::communicators::{Comm, find};
use super::group::{Launch, launch_or_defer, note_error};
use super::{INVALID_ARGUMENT, Outcome, RUNTIME_ERROR, Status, call, fail};
use crate::numbers;

/// What the numbers of operators mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Plain(Combine),
    #[allow(dead_code, reason = "older libraries have none")]
    Average,
}

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
        if matches!(span.place(), Place::Device(_)) { Ok(span) } else { Err(Unreachable) }
    }

    fn ranks(&self) -> usize {
        self.comm.inner.ranks() as usize
    }

    fn peer(&self, peer: i32) -> Result<u32, Status> {
        let found = u32::try_from(peer).ok().filter(|peer| *peer < self.comm.inner.ranks());
        found.ok_or_else(|| fail(INVALID_ARGUMENT, "[INVALID PARAMETER] root or peer"))
    }

    fn reduction(&self, operator: i32) -> Result<Reduction, Status> {
        // Of the older library nobody knows that it reduces these; here it does not.
        if numbers::IS_OLD && matches!(self.element, Element::U8 | Element::F64) {
            return Err(fail(INVALID_ARGUMENT, "[INVALID PARAMETER] data type"));
        }
        let sum = Reduction::plain(Combine::Sum);
        let ranks = self.comm.inner.ranks();
        match numbers::operator(operator) {
            None => Err(fail(INVALID_ARGUMENT, "[INVALID PARAMETER] operator")),
            Some(Operator::Plain(combine)) => Ok(Reduction::plain(combine)),
            Some(Operator::Average) if self.fault == Some(Fault::SumForAvg) => Ok(sum),
            Some(Operator::Average) if self.element.is_float() => {
                Ok(Reduction { factor: Factor::Number(1.0 / f64::from(ranks)), ..sum })
            }
            Some(Operator::Average) => Ok(Reduction { divisor: ranks, ..sum }),
        }
    }

    /// Puts the operation into the stream, or into the group. A buffer out of reach breaks the card when
    /// the stream comes there.
    fn launch(self, operation: Spanned) -> Outcome {
        let machine = self.machine;
        let device = self.comm.inner.device();
        // Kernels go to the thread's current card.
        if machine.current_device() != device {
            return Err(fail(RUNTIME_ERROR, "kernel check failed, error code=-400"));
        }
        let stream = iccl_sim_kunlun::stream(machine, self.stream)
            .map_err(|_| fail(RUNTIME_ERROR, "invalid resource handle"))?;
        machine.health(device).map_err(|_| fail(RUNTIME_ERROR, "the card is in error"))?;
        let Ok(operation) = operation else {
            let fall = move || {
                if let Ok(device) = machine.device(device) {
                    device.break_with(ABNORMAL);
                }
            };
            machine.enqueue(&stream, Box::new(fall));
            return Ok(());
        };
        let flaw = (self.fault == Some(Fault::DropSlice)).then_some(Flaw::DropSlice);
        let call = Call { operation, element: self.element, factor_at: None, flaw };
        launch_or_defer(Launch { machine, comm: self.comm, stream, call })
    }
}

struct Arguments {
    symbol: &'static str,
    context: *mut c_void,
    count: usize,
    element: i32,
    stream: *mut c_void,
}

impl Arguments {
    fn run(&self, body: impl FnOnce(Asked) -> Outcome) -> Status {
        let code = call(self.symbol, |machine, fault| {
            let comm = find(self.context)?;
            let element = numbers::element(self.element)
                .ok_or_else(|| fail(INVALID_ARGUMENT, "[INVALID PARAMETER] data type"))?;
            let (count, stream) = (self.count, self.stream);
            body(Asked { machine, comm, element, count, fault, stream })
        });
        note_error(code);
        code
    }
}

pub(crate) fn all_reduce(
    context: *mut c_void,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    element: i32,
    operator: i32,
    stream: *mut c_void,
) -> Status {
    Arguments { symbol: "bkcl_all_reduce", context, count, element, stream }.run(|asked| {
        let reduction = asked.reduction(operator)?;
        let spans = || Ok((asked.span(send, 1)?, asked.span(receive, 1)?));
        let operation =
            spans().map(|(send, receive)| Operation::AllReduce { send, receive, reduction });
        asked.launch(operation)
    })
}

#[allow(clippy::too_many_arguments, reason = "as in C")]
pub(crate) fn reduce(
    context: *mut c_void,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    element: i32,
    operator: i32,
    root: i32,
    stream: *mut c_void,
) -> Status {
    Arguments { symbol: "bkcl_reduce", context, count, element, stream }.run(|asked| {
        let (reduction, root) = (asked.reduction(operator)?, asked.peer(root)?);
        let is_root = asked.comm.inner.rank() == root;
        let spans = || {
            let receive = if is_root { Some(asked.span(receive, 1)?) } else { None };
            Ok((asked.span(send, 1)?, receive))
        };
        let operation =
            spans().map(|(send, receive)| Operation::Reduce { send, receive, reduction, root });
        asked.launch(operation)
    })
}

pub(crate) fn reduce_scatter(
    context: *mut c_void,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    element: i32,
    operator: i32,
    stream: *mut c_void,
) -> Status {
    Arguments { symbol: "bkcl_reduce_scatter", context, count, element, stream }.run(|asked| {
        let reduction = asked.reduction(operator)?;
        let spans = || Ok((asked.span(send, asked.ranks())?, asked.span(receive, 1)?));
        let operation =
            spans().map(|(send, receive)| Operation::ReduceScatter { send, receive, reduction });
        asked.launch(operation)
    })
}

pub(crate) fn broadcast(
    context: *mut c_void,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    element: i32,
    root: i32,
    stream: *mut c_void,
) -> Status {
    Arguments { symbol: "bkcl_broadcast", context, count, element, stream }.run(|asked| {
        if numbers::IS_OLD && asked.element == Element::I64 {
            return Err(fail(INVALID_ARGUMENT, "[INVALID PARAMETER] broadcast of int64"));
        }
        let root = asked.peer(root)?;
        let is_root = asked.comm.inner.rank() == root;
        let spans = || {
            let send = if is_root { Some(asked.span(send, 1)?) } else { None };
            Ok((send, asked.span(receive, 1)?))
        };
        let operation = spans().map(|(send, receive)| Operation::Broadcast { send, receive, root });
        asked.launch(operation)
    })
}

pub(crate) fn all_gather(
    context: *mut c_void,
    send: *const c_void,
    count: usize,
    receive: *mut c_void,
    element: i32,
    stream: *mut c_void,
) -> Status {
    Arguments { symbol: "bkcl_all_gather", context, count, element, stream }.run(|asked| {
        let spans = || Ok((asked.span(send, 1)?, asked.span(receive, asked.ranks())?));
        let operation = spans().map(|(send, receive)| Operation::AllGather { send, receive });
        asked.launch(operation)
    })
}

pub(crate) fn all_to_all(
    context: *mut c_void,
    send: *const c_void,
    count: usize,
    receive: *mut c_void,
    element: i32,
    stream: *mut c_void,
) -> Status {
    Arguments { symbol: "bkcl_all_to_all", context, count, element, stream }.run(|asked| {
        let ranks = asked.ranks();
        let spans = || Ok((asked.span(send, ranks)?, asked.span(receive, ranks)?));
        let operation = spans().map(|(send, receive)| Operation::AllToAll { send, receive });
        asked.launch(operation)
    })
}

/// A buffer with the counts and displacements that lie beside it, and the number of its type.
type Blocks<P> = (P, *const usize, *const usize, i32);

/// Counts and displacements are arrays in device memory, and are read when the stream comes there.
pub(crate) fn all_to_all_v(
    context: *mut c_void,
    sent: Blocks<*const c_void>,
    received: Blocks<*mut c_void>,
    stream: *mut c_void,
) -> Status {
    let symbol = "bkcl_all_to_all_v";
    Arguments { symbol, context, count: 0, element: sent.3, stream }.run(|asked| {
        if sent.3 != received.3 {
            return Err(fail(INVALID_ARGUMENT, "[INVALID PARAMETER] data types differ"));
        }
        let (machine, ranks) = (asked.machine, asked.ranks() as u64);
        let words = |pointer: *const usize| {
            let span = machine.span(pointer as u64, ranks * 8).map_err(|_| Unreachable)?;
            if matches!(span.place(), Place::Device(_)) { Ok(span) } else { Err(Unreachable) }
        };
        let buffer = |pointer: *const c_void| {
            let address = pointer as u64;
            let Ok((start, bytes)) = machine.allocation(address) else {
                // Where nothing is sent or received there may be none.
                return machine.span(address, 0).map_err(|_| Unreachable);
            };
            machine.span(address, start + bytes - address).map_err(|_| Unreachable)
        };
        let spans = || {
            let at = |counts, displacements| -> Result<BlocksAt, Unreachable> {
                Ok(BlocksAt { counts: words(counts)?, displacements: words(displacements)? })
            };
            let (send, receive) = (buffer(sent.0)?, buffer(received.0.cast_const())?);
            let (sent, received) = (at(sent.1, sent.2)?, at(received.1, received.2)?);
            Ok(Operation::AllToAllV { send, receive, sent, received })
        };
        let operation = spans();
        asked.launch(operation)
    })
}

pub(crate) fn send(
    context: *mut c_void,
    send: *const c_void,
    count: usize,
    peer: i32,
    element: i32,
    stream: *mut c_void,
) -> Status {
    Arguments { symbol: "bkcl_send", context, count, element, stream }.run(|asked| {
        let peer = asked.peer(peer)?;
        let span = asked.span(send, 1);
        let operation = span
            .map(|span| Operation::Messages { sends: vec![(peer, span)], receives: Vec::new() });
        asked.launch(operation)
    })
}

pub(crate) fn recv(
    context: *mut c_void,
    receive: *mut c_void,
    count: usize,
    peer: i32,
    element: i32,
    stream: *mut c_void,
) -> Status {
    Arguments { symbol: "bkcl_recv", context, count, element, stream }.run(|asked| {
        let peer = asked.peer(peer)?;
        let span = asked.span(receive, 1);
        let operation = span
            .map(|span| Operation::Messages { sends: Vec::new(), receives: vec![(peer, span)] });
        asked.launch(operation)
    })
}
