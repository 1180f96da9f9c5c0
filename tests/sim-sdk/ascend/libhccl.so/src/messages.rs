//! Messages, and collectives whose blocks differ in length.

use std::collections::BTreeSet;
use std::ffi::c_void;

use iccl_sim_core::Span;
use iccl_sim_core::group::Operation;
use iccl_sim_core::reduce::Element;

use crate::calls::{Asked, Unreachable, on_comm};
use crate::{Outcome, PARA, PTR, Status};

/// A rank, and where a message to it or from it lies, if that is reached.
type Message = (u32, Result<Span, Unreachable>);

/// Messages to and from ranks.
#[derive(Default)]
struct Messages {
    sends: Vec<Message>,
    receives: Vec<Message>,
}

impl Messages {
    fn launch(self, asked: &Asked<'_>) -> Outcome {
        let reached = |list: Vec<Message>| {
            list.into_iter().map(|(peer, span)| Ok((peer, span?))).collect::<Result<_, _>>()
        };
        let operation = || {
            let (sends, receives) = (reached(self.sends)?, reached(self.receives)?);
            Ok(vec![Operation::Messages { sends, receives }])
        };
        asked.launch(Element::U8, operation())
    }
}

/// Both sides wait for each other, also in a stream.
#[unsafe(no_mangle)]
extern "C" fn HcclSend(
    buffer: *mut c_void,
    count: u64,
    dtype: i32,
    peer: u32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    on_comm("HcclSend", comm, stream, |asked| {
        let bytes = count as usize * asked.moved(dtype)?.bytes();
        other(asked, peer)?;
        let sends = vec![(peer, asked.span(buffer, bytes)?)];
        Messages { sends, receives: Vec::new() }.launch(asked)
    })
}

#[unsafe(no_mangle)]
extern "C" fn HcclRecv(
    buffer: *mut c_void,
    count: u64,
    dtype: i32,
    peer: u32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    on_comm("HcclRecv", comm, stream, |asked| {
        let bytes = count as usize * asked.moved(dtype)?.bytes();
        other(asked, peer)?;
        let receives = vec![(peer, asked.span(buffer, bytes)?)];
        Messages { sends: Vec::new(), receives }.launch(asked)
    })
}

/// A rank, and not the caller itself.
fn other(asked: &Asked<'_>, peer: u32) -> Outcome {
    asked.root(peer)?;
    if peer == asked.comm.rank { Err(PARA) } else { Ok(()) }
}

/// `HcclSendRecvItem`.
#[repr(C)]
struct Item {
    kind: i32,
    buffer: *mut c_void,
    count: u64,
    dtype: i32,
    remote_rank: u32,
}

const SEND: i32 = 0;
const RECV: i32 = 1;

/// One send to and one receive from each rank at most; those with the caller itself in pairs.
#[unsafe(no_mangle)]
extern "C" fn HcclBatchSendRecv(
    items: *const Item,
    count: u32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    on_comm("HcclBatchSendRecv", comm, stream, |asked| {
        if items.is_null() {
            return Err(PTR);
        }
        // SAFETY: C passes as many items.
        let items = unsafe { std::slice::from_raw_parts(items, count as usize) };
        let mut seen = BTreeSet::new();
        let mut messages = Messages::default();
        for item in items {
            asked.root(item.remote_rank)?;
            let bytes = item.count as usize * asked.moved(item.dtype)?.bytes();
            if !seen.insert((item.kind, item.remote_rank)) {
                return Err(PARA);
            }
            let message = (item.remote_rank, asked.span(item.buffer, bytes)?);
            match item.kind {
                SEND => messages.sends.push(message),
                RECV => messages.receives.push(message),
                _ => return Err(PARA),
            }
        }
        let own = |kind| seen.contains(&(kind, asked.comm.rank));
        if own(SEND) != own(RECV) {
            return Err(PARA);
        }
        messages.launch(asked)
    })
}

/// Host memory: a count or a displacement for each rank, in elements.
fn numbers(asked: &Asked<'_>, array: *const u64, how_many: usize) -> Result<Vec<u64>, Status> {
    if array.is_null() {
        return Err(PTR);
    }
    // A card's memory would be read by the host here, which ends the process, as it does for real.
    // SAFETY: C passes as many numbers.
    let numbers = (0..how_many).map(|at| unsafe { array.add(at).read_unaligned() });
    let numbers: Vec<u64> = numbers.collect();
    if numbers.iter().any(|number| *number > u64::from(u32::MAX) * asked.ranks() as u64) {
        return Err(PARA);
    }
    Ok(numbers)
}

/// Blocks of a buffer, one for each rank, in order of ranks; those without elements are left out.
fn blocks(
    asked: &Asked<'_>,
    buffer: *const c_void,
    element: Element,
    (counts, displacements): (&[u64], &[u64]),
) -> Result<Vec<Message>, Status> {
    let mut list = Vec::new();
    for (rank, (count, displacement)) in counts.iter().zip(displacements).enumerate() {
        if *count > 0 {
            let at = buffer.wrapping_byte_add(*displacement as usize * element.bytes());
            list.push((rank as u32, asked.span(at, *count as usize * element.bytes())?));
        }
    }
    Ok(list)
}

/// Out of place only.
#[unsafe(no_mangle)]
extern "C" fn HcclAlltoAllV(
    send: *const c_void,
    send_counts: *const u64,
    send_displacements: *const u64,
    send_type: i32,
    receive: *const c_void,
    receive_counts: *const u64,
    receive_displacements: *const u64,
    receive_type: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    on_comm("HcclAlltoAllV", comm, stream, |asked| {
        let element = asked.moved(send_type)?;
        if send_type != receive_type || send == receive {
            return Err(PARA);
        }
        let all = |array| numbers(asked, array, asked.ranks());
        let sent = (all(send_counts)?, all(send_displacements)?);
        let received = (all(receive_counts)?, all(receive_displacements)?);
        let sends = blocks(asked, send, element, (&sent.0, &sent.1))?;
        let receives = blocks(asked, receive, element, (&received.0, &received.1))?;
        Messages { sends, receives }.launch(asked)
    })
}

/// By a matrix that is the same on all ranks: who sends how many elements to whom, without gaps.
#[unsafe(no_mangle)]
extern "C" fn HcclAlltoAllVC(
    send: *const c_void,
    matrix: *const u64,
    send_type: i32,
    receive: *const c_void,
    receive_type: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    on_comm("HcclAlltoAllVC", comm, stream, |asked| {
        let element = asked.moved(send_type)?;
        if send_type != receive_type || send == receive {
            return Err(PARA);
        }
        let (ranks, rank) = (asked.ranks(), asked.comm.rank as usize);
        let matrix = numbers(asked, matrix, ranks * ranks)?;
        let sent: Vec<u64> = matrix[rank * ranks..][..ranks].to_vec();
        let received: Vec<u64> = (0..ranks).map(|peer| matrix[peer * ranks + rank]).collect();
        let sends = blocks(asked, send, element, (&sent, &places(&sent)))?;
        let receives = blocks(asked, receive, element, (&received, &places(&received)))?;
        Messages { sends, receives }.launch(asked)
    })
}

/// Where blocks without gaps begin.
fn places(counts: &[u64]) -> Vec<u64> {
    let mut next = 0;
    let begin = |count: &u64| {
        let at = next;
        next += count;
        at
    };
    counts.iter().map(begin).collect()
}

#[unsafe(no_mangle)]
extern "C" fn HcclAllGatherV(
    send: *mut c_void,
    send_count: u64,
    receive: *mut c_void,
    counts: *const u64,
    displacements: *const u64,
    dtype: i32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Status {
    on_comm("HcclAllGatherV", comm, stream, |asked| {
        let element = asked.moved(dtype)?;
        let all = |array| numbers(asked, array, asked.ranks());
        let (counts, displacements) = (all(counts)?, all(displacements)?);
        if counts[asked.comm.rank as usize] != send_count {
            return Err(PARA);
        }
        let receives = blocks(asked, receive, element, (&counts, &displacements))?;
        let mut sends = Vec::new();
        if send_count > 0 {
            for peer in 0..asked.comm.ranks {
                sends.push((peer, asked.span(send, send_count as usize * element.bytes())?));
            }
        }
        Messages { sends, receives }.launch(asked)
    })
}
