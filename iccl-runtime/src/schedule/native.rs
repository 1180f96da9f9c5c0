//! All ranks on one island: one call of the native library does all, once the gate has shown that all
//! ranks agree (whoever is inside a library cannot be told of anything).
//!
//! What the library cannot do with one memory for both buffers is done from a copy.

use iccl_plugin_api::types::{Collective, RedOp};

use super::builder::Builder;
use super::cost::Cost;
use super::cuts::Cut;
use super::islands::{Island, Islands};
use super::types::{Buffer, IslandCall, Request, Slice};

/// Why no single native call carries the request, or `None` if one does.
pub(super) fn refusal(request: &Request) -> Option<String> {
    call(request).err()
}

/// The call, and the island that it is made on.
fn call(request: &Request) -> Result<(IslandCall, &Island), String> {
    let Request { collective, dtype, op, count, root, .. } = *request;
    let islands = request.islands.as_deref().ok_or("no native library serves the ranks")?;
    let island = islands.whole()?;
    let root = if collective.has_root() { root } else { 0 };
    if collective.reduces() {
        // Products are made before the call, which adds them.
        let op = if op == RedOp::PreMulSum { RedOp::Sum } else { op };
        let refusal = islands.refusal_to_reduce(island, collective, dtype, op);
        let call = IslandCall { collective, dtype, op: Some(op), count, root };
        return refusal.map_or(Ok((call, island)), Err);
    }
    let (dtype, factor) = Islands::moves_as(island, collective, dtype)?;
    let count = count.saturating_mul(factor);
    Ok((IslandCall { collective, dtype, op: None, count, root }, island))
}

/// All-gather-v and reduce-scatter-v: a block for each rank on the longer side.
fn compile_blocks(builder: &mut Builder<'_>, call: IslandCall, island: &Island) {
    let request = builder.request;
    let ranks = 0..request.ranks;
    let gathers = request.collective == Collective::AllGatherV;
    let (mut sources, destinations): (Vec<Cut>, Vec<Cut>) = if gathers {
        (
            vec![request.send_block(request.rank)],
            ranks.map(|from| request.recv_block(from)).collect(),
        )
    } else {
        (ranks.map(|to| request.send_block(to)).collect(), vec![request.recv_block(request.rank)])
    };
    let mut buffer = Buffer::Send;
    if builder.in_place() && !island.abilities.works_in_place() {
        buffer = Buffer::DeviceScratch;
        builder.reserve_device_scratch(request.buffer_elements().0 * request.element_bytes());
        for cut in sources.iter().filter(|cut| cut.elements > 0) {
            builder.copy(builder.slice(Buffer::Send, *cut), builder.slice(buffer, *cut));
        }
    }
    let slices = |buffer, cuts: Vec<Cut>| -> Vec<Slice> {
        cuts.into_iter().map(|cut| builder.slice(buffer, cut)).collect()
    };
    let (sources, destinations) =
        (slices(buffer, std::mem::take(&mut sources)), slices(Buffer::Recv, destinations));
    builder.native_blocks(IslandCall { count: 0, ..call }, &sources, &destinations);
}

pub(super) fn compile(builder: &mut Builder<'_>) {
    let request = builder.request;
    let (call, island) =
        call(request).unwrap_or_else(|why| unreachable!("refused before it was compiled: {why}"));
    builder.gate();
    if request.count == 0 {
        return;
    }
    builder.on_island(&island.ranks);
    let (send, recv) = request.buffer_elements();
    if request.counts.is_some() {
        return compile_blocks(builder, call, island);
    }
    let slice =
        |buffer, elements| Slice { buffer, offset: 0, bytes: elements * request.element_bytes() };
    let mut source = slice(Buffer::Send, send);
    let destination = slice(Buffer::Recv, recv);
    let works_in_place =
        island.abilities.works_in_place() && request.collective != Collective::AllToAll;
    if builder.in_place() && !works_in_place {
        let copy = Slice { buffer: Buffer::DeviceScratch, ..source };
        builder.reserve_device_scratch(copy.bytes);
        builder.copy(source, copy);
        source = copy;
    }
    builder.native(call, source, destination);
}

pub(super) fn cost(request: &Request) -> Cost {
    Cost { native_calls: 1, native_bytes: request.agreed_bytes(), ..Cost::default() }
}
