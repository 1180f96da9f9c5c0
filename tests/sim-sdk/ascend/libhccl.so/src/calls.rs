//! Collectives.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use iccl_sim_ascend::{AICORE_EXCEPTION, Product};
use iccl_sim_core::group::{Call, Flaw, Operation};
use iccl_sim_core::reduce::{Combine, Element, Reduction};
use iccl_sim_core::{Fault, Machine, Place, Span, Stream};

use crate::communicators::{Comm, find};
use crate::{NOT_SUPPORT, Outcome, PARA, PTR, RUNTIME_ERROR, Status, call};

/// A buffer that isn't where cards reach it.
pub(crate) struct Unreachable;

/// What all calls have in common.
pub(crate) struct Asked<'a> {
    pub(crate) machine: &'static Machine,
    pub(crate) comm: &'a Comm,
    stream: Arc<Stream>,
    fault: Option<Fault>,
}

/// A type by its number. Not all of them are known to the machine.
pub(crate) fn element(number: i32) -> Result<Element, Status> {
    Ok(match number {
        0 => Element::I8,
        1 => Element::I16,
        2 => Element::I32,
        3 => Element::F16,
        4 => Element::F32,
        5 => Element::I64,
        6 => Element::U64,
        7 => Element::U8,
        8 => Element::U16,
        9 => Element::U32,
        10 => Element::F64,
        11 => Element::Bf16,
        15 => Element::F8E4m3,
        16 => Element::F8E5m2,
        12 | 14 | 17 => return Err(NOT_SUPPORT),
        _ => return Err(PARA),
    })
}

/// Enters a call on a communicator and a stream, if the kind of card has the function.
pub(crate) fn on_comm(
    symbol: &'static str,
    handle: *mut c_void,
    stream: *mut c_void,
    body: impl FnOnce(&Asked<'_>) -> Outcome,
) -> Status {
    call(symbol, |machine, fault| {
        let comm = find(machine, handle)?;
        if !Product::of(machine).has(symbol) {
            return Err(NOT_SUPPORT);
        }
        let stream = iccl_sim_ascend::stream(machine, stream).map_err(|_| RUNTIME_ERROR)?;
        machine.health(comm.device).map_err(|_| RUNTIME_ERROR)?;
        body(&Asked { machine, comm, stream, fault })
    })
}

impl Asked<'_> {
    pub(crate) fn ranks(&self) -> usize {
        self.comm.ranks as usize
    }

    /// A type that is moved.
    pub(crate) fn moved(&self, number: i32) -> Result<Element, Status> {
        let element = element(number)?;
        if Product::of(self.machine).moves(element) { Ok(element) } else { Err(NOT_SUPPORT) }
    }

    /// A type and an operation that are reduced together. There is no mean.
    fn reduced(&self, dtype: i32, op: i32) -> Result<(Element, Reduction), Status> {
        let combine = match op {
            0 => Combine::Sum,
            1 => Combine::Product,
            2 => Combine::Max,
            3 => Combine::Min,
            _ => return Err(PARA),
        };
        let element = element(dtype)?;
        if !Product::of(self.machine).reduces(element, op) {
            return Err(NOT_SUPPORT);
        }
        Ok((element, Reduction::plain(combine)))
    }

    pub(crate) fn root(&self, root: u32) -> Outcome {
        if root < self.comm.ranks { Ok(()) } else { Err(PARA) }
    }

    /// A buffer. None may be null.
    pub(crate) fn span(
        &self,
        pointer: *const c_void,
        bytes: usize,
    ) -> Result<Result<Span, Unreachable>, Status> {
        if pointer.is_null() {
            return Err(PTR);
        }
        let span = self.machine.span(pointer as u64, bytes as u64);
        Ok(span.ok().filter(|span| matches!(span.place(), Place::Device(_))).ok_or(Unreachable))
    }

    /// Puts calls into the stream. A buffer out of reach breaks the card when the stream comes there.
    #[allow(clippy::unnecessary_wraps, reason = "the last word of each call")]
    pub(crate) fn launch(
        &self,
        element: Element,
        operations: Result<Vec<Operation>, Unreachable>,
    ) -> Outcome {
        let machine = self.machine;
        let Ok(operations) = operations else {
            let device = self.comm.device;
            let fall = move || {
                if let Ok(device) = machine.device(device) {
                    device.break_with(AICORE_EXCEPTION);
                }
            };
            machine.enqueue(&self.stream, Box::new(fall));
            return Ok(());
        };
        let flaw = (self.fault == Some(Fault::DropSlice)).then_some(Flaw::DropSlice);
        let call = |operation| Call { operation, element, factor_at: None, flaw };
        let calls: Vec<Call> = operations.into_iter().map(call).collect();
        let busy = Arc::clone(&self.comm.busy);
        busy.fetch_add(1, Ordering::AcqRel);
        self.comm.inner.launch(machine, &self.stream, &[], calls, move || {
            busy.fetch_sub(1, Ordering::AcqRel);
        });
        Ok(())
    }

    fn launch_one(&self, element: Element, operation: Result<Operation, Unreachable>) -> Outcome {
        self.launch(element, operation.map(|operation| vec![operation]))
    }
}

/// Buffers that are reduced lie at multiples of their element.
fn aligned(element: Element, pointers: &[*const c_void]) -> Outcome {
    let is_aligned = |pointer: &*const c_void| (*pointer as usize).is_multiple_of(element.bytes());
    if pointers.iter().all(is_aligned) { Ok(()) } else { Err(PARA) }
}

#[unsafe(no_mangle)]
extern "C" fn HcclAllReduce(
    send: *mut c_void,
    receive: *mut c_void,
    count: u64,
    dtype: i32,
    op: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    on_comm("HcclAllReduce", comm, stream, |asked| {
        let (element, reduction) = asked.reduced(dtype, op)?;
        aligned(element, &[send, receive])?;
        let bytes = count as usize * element.bytes();
        let (send, receive) = (asked.span(send, bytes)?, asked.span(receive, bytes)?);
        let operation = || Ok(Operation::AllReduce { send: send?, receive: receive?, reduction });
        asked.launch_one(element, operation())
    })
}

/// With the setting `reduce_writes_everywhere`, the result is written on every rank: nobody says that the
/// others' memory is left alone.
#[unsafe(no_mangle)]
extern "C" fn HcclReduce(
    send: *mut c_void,
    receive: *mut c_void,
    count: u64,
    dtype: i32,
    op: i32,
    root: u32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    on_comm("HcclReduce", comm, stream, |asked| {
        let (element, reduction) = asked.reduced(dtype, op)?;
        asked.root(root)?;
        aligned(element, &[send, receive])?;
        let bytes = count as usize * element.bytes();
        let (send, receive) = (asked.span(send, bytes)?, asked.span(receive, bytes)?);
        let is_root = asked.comm.rank == root;
        let everywhere = asked.machine.settings().is_on("reduce_writes_everywhere");
        let operation = || {
            let (send, receive) = (send?, receive?);
            if everywhere {
                return Ok(Operation::AllReduce { send, receive, reduction });
            }
            let receive = is_root.then_some(receive);
            Ok(Operation::Reduce { send, receive, reduction, root })
        };
        asked.launch_one(element, operation())
    })
}

#[unsafe(no_mangle)]
extern "C" fn HcclReduceScatter(
    send: *mut c_void,
    receive: *mut c_void,
    count: u64,
    dtype: i32,
    op: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    on_comm("HcclReduceScatter", comm, stream, |asked| {
        let (element, reduction) = asked.reduced(dtype, op)?;
        aligned(element, &[send, receive])?;
        let bytes = count as usize * element.bytes();
        let send = asked.span(send, bytes * asked.ranks())?;
        let receive = asked.span(receive, bytes)?;
        let operation =
            || Ok(Operation::ReduceScatter { send: send?, receive: receive?, reduction });
        asked.launch_one(element, operation())
    })
}

/// One buffer, of which the root's is sent.
#[unsafe(no_mangle)]
extern "C" fn HcclBroadcast(
    buffer: *mut c_void,
    count: u64,
    dtype: i32,
    root: u32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    on_comm("HcclBroadcast", comm, stream, |asked| {
        let element = asked.moved(dtype)?;
        asked.root(root)?;
        let span = asked.span(buffer, count as usize * element.bytes())?;
        let is_root = asked.comm.rank == root;
        let operation = span.map(|span| Operation::Broadcast {
            send: is_root.then(|| span.clone()),
            receive: span,
            root,
        });
        asked.launch_one(element, operation)
    })
}

#[unsafe(no_mangle)]
extern "C" fn HcclAllGather(
    send: *mut c_void,
    receive: *mut c_void,
    count: u64,
    dtype: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    on_comm("HcclAllGather", comm, stream, |asked| {
        let element = asked.moved(dtype)?;
        let bytes = count as usize * element.bytes();
        let send = asked.span(send, bytes)?;
        let receive = asked.span(receive, bytes * asked.ranks())?;
        let operation = || Ok(Operation::AllGather { send: send?, receive: receive? });
        asked.launch_one(element, operation())
    })
}

/// What is sent counts on the root only, and may be null elsewhere.
#[unsafe(no_mangle)]
extern "C" fn HcclScatter(
    send: *mut c_void,
    receive: *mut c_void,
    count: u64,
    dtype: i32,
    root: u32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    on_comm("HcclScatter", comm, stream, |asked| {
        let element = asked.moved(dtype)?;
        asked.root(root)?;
        let bytes = count as usize * element.bytes();
        let is_root = asked.comm.rank == root;
        let send = if is_root { Some(asked.span(send, bytes * asked.ranks())?) } else { None };
        let receive = asked.span(receive, bytes)?;
        let operation = || {
            let send = send.transpose()?;
            Ok(Operation::Scatter { send, receive: receive?, root })
        };
        asked.launch_one(element, operation())
    })
}

/// Out of place only.
#[unsafe(no_mangle)]
extern "C" fn HcclAlltoAll(
    send: *const c_void,
    send_count: u64,
    send_type: i32,
    receive: *const c_void,
    receive_count: u64,
    receive_type: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    on_comm("HcclAlltoAll", comm, stream, |asked| {
        let element = asked.moved(send_type)?;
        if (send_count, send_type) != (receive_count, receive_type) || send == receive {
            return Err(PARA);
        }
        let bytes = send_count as usize * element.bytes() * asked.ranks();
        let (send, receive) = (asked.span(send, bytes)?, asked.span(receive, bytes)?);
        let operation = || Ok(Operation::AllToAll { send: send?, receive: receive? });
        asked.launch_one(element, operation())
    })
}

/// All wait for all.
#[unsafe(no_mangle)]
extern "C" fn HcclBarrier(comm: *mut c_void, stream: *mut c_void) -> Status {
    on_comm("HcclBarrier", comm, stream, |asked| {
        // A word for each rank, of the machine's own.
        let bytes = 8 * asked.ranks() as u64;
        let place = || -> Result<Span, Status> {
            let address = asked.machine.allocate(asked.comm.device, bytes);
            let address = address.map_err(|_| RUNTIME_ERROR)?;
            let span = asked.machine.span(address, bytes).map_err(|_| RUNTIME_ERROR)?;
            // The span keeps it until the stream is past it.
            asked.machine.free(address).map_err(|_| RUNTIME_ERROR)?;
            Ok(span)
        };
        let operation = Operation::AllToAll { send: place()?, receive: place()? };
        asked.launch_one(Element::U64, Ok(operation))
    })
}
