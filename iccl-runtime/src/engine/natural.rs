//! Native calls on buffers that lie at no multiple of their elements' size: libraries refuse them, or fail on
//! the card. Such an operand is copied to memory of the engine's own before the call, and back after it.
//!
//! All of it goes on the stream of the native calls, so one block serves all calls of an operation, one after
//! the other. It is the operation's until that is over, and who calls has it prepared
//! ([`super::Engine::prepare_buffers`]): an allocation may wait for streams that wait for the operation.

use iccl_plugin_api::MemoryKind;

use super::device::Card;
use super::native_operands::{Operand, Operands};
use super::program::Program;
use crate::Result;
use crate::schedule::{Buffer, IslandCall, Slice, StepKind};

/// What every element type divides.
const ALIGNMENT: u64 = 64;

/// How long the block of an operation on these buffers is; 0 if it needs none.
pub(super) fn bytes(program: &Program, send: *const u8, receive: *mut u8) -> u64 {
    let schedule = program.schedule();
    let address = |slice: Slice| match slice.buffer {
        Buffer::Send => send.cast_mut().wrapping_add(slice.offset as usize),
        Buffer::Recv => receive.wrapping_add(slice.offset as usize),
        // A block of the card, of whose elements native calls use whole ones.
        Buffer::Scratch | Buffer::DeviceScratch => std::ptr::null_mut(),
    };
    let calls = program.native_calls().iter().map(|step| {
        let StepKind::Native { call, sources, destinations } = &schedule.steps[*step as usize].kind
        else {
            unreachable!("only native calls are in the list of native calls")
        };
        let (sources, destinations) = (schedule.sources(sources), schedule.sources(destinations));
        lengths(call, &Operands::new(call, sources, destinations, address)).iter().sum()
    });
    calls.max().unwrap_or(0)
}

/// What the copies of a call's operands take of the block: of what is read, and behind it of what is written.
fn lengths(call: &IslandCall, given: &Operands) -> [u64; 2] {
    let size = call.dtype.size_bytes();
    [&given.sent, &given.received].map(|operand| match operand.address.addr() % size {
        0 => 0,
        _ => operand.bytes.next_multiple_of(ALIGNMENT),
    })
}

/// Where the library is to find a call's operands, unless it is where they are.
pub(super) fn moved(call: &IslandCall, given: &Operands, block: *mut u8) -> Option<Operands> {
    let [sent, received] = lengths(call, given);
    if sent + received == 0 {
        return None;
    }
    let mut moved = given.clone();
    if sent > 0 {
        moved.sent.address = block;
    }
    if received > 0 {
        moved.received.address = block.wrapping_add(sent as usize);
    }
    Some(moved)
}

/// Copies an operand to its other place, if it has one. Block by block: what lies between the blocks of a
/// vector form stays as it is.
///
/// # Safety
/// Both are as long, and stay as they are until `stream` is past it.
///
/// # Errors
/// What the card says.
pub(super) unsafe fn copy(
    card: &dyn Card,
    stream: u64,
    to: &Operand,
    from: &Operand,
    call: &IslandCall,
) -> Result<()> {
    if to.address == from.address {
        return Ok(());
    }
    for (offset, bytes) in from.blocks(call.dtype.size_bytes() as u64) {
        let to = to.address.wrapping_add(offset as usize);
        let from = from.address.wrapping_add(offset as usize).cast_const();
        let kind = MemoryKind::Device;
        // SAFETY: the caller says that both have room.
        unsafe { card.copy(stream, (to, kind), (from, kind), bytes)? };
    }
    Ok(())
}
