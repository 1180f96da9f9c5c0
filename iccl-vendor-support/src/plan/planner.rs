//! How each operation is made of primitive calls.

use std::ffi::c_int;

use iccl_plugin_api::Collective;
use iccl_plugin_api::sdk::{NativeCall, PluginError, PluginResult};

use super::blocks::{Blocks, too_large};
use super::{AllGatherV, Destination, Primitive, Repertoire, Source};

/// One operation on its way.
pub(super) struct Planner<'a> {
    pub(super) library: &'a Repertoire,
    pub(super) call: &'a NativeCall<'a>,
    pub(super) ranks: u32,
    pub(super) rank: u32,
}

impl Planner<'_> {
    pub(super) fn reductions(&self, op: c_int) -> PluginResult<Vec<Primitive>> {
        let NativeCall { collective, send, receive, dtype, root, .. } = *self.call;
        if collective == Collective::ReduceScatterV {
            // A reduce to each rank of its block.
            let counts = (self.call.send_counts, self.call.send_displacements);
            let blocks = Blocks::uneven(send.addr(), dtype, counts, ("send", self.ranks))?;
            let reduce = |owner| {
                let block = send.with_addr(blocks.at(owner));
                self.reduce(block, blocks.count(owner), op, owner as u32)
            };
            return Ok(blocks.owners().map(reduce).collect());
        }
        let count = self.count(1)?;
        if count == 0 {
            return Ok(Vec::new());
        }
        Ok(vec![match collective {
            Collective::AllReduce => Primitive::AllReduce { send, receive, count, op },
            Collective::Reduce => self.reduce(send, count, op, root),
            Collective::ReduceScatter => Primitive::ReduceScatter { send, receive, count, op },
            _ => return Err(PluginError::not_supported("it reduces nothing")),
        }])
    }

    fn reduce(&self, send: Source, count: usize, op: c_int, root: u32) -> Primitive {
        let is_root = self.rank == root;
        let receive = if is_root { self.call.receive } else { std::ptr::null_mut() };
        Primitive::Reduce { send, receive, count, op, root }
    }

    /// `factor` elements of the library are one of iccl.
    pub(super) fn moves(&self, factor: usize) -> PluginResult<Vec<Primitive>> {
        let NativeCall { collective, send, receive, root, .. } = *self.call;
        let count = self.count(factor)?;
        let functions = self.library.functions;
        match collective {
            Collective::GatherV => return self.gather(factor),
            Collective::ScatterV => return self.scatter(factor),
            Collective::AllGatherV => return self.all_gather_v(factor),
            Collective::AllToAllV => return self.all_to_all_v(factor),
            Collective::Barrier if functions.barrier => return Ok(vec![Primitive::Barrier]),
            _ if count == 0 => return Ok(Vec::new()),
            Collective::Gather if !functions.gather => return self.gather(factor),
            Collective::Scatter if !functions.scatter => return self.scatter(factor),
            Collective::AllToAll => return self.all_to_all(count, factor),
            _ => {}
        }
        Ok(vec![match collective {
            Collective::Broadcast => {
                return Ok(self.broadcast(send, receive, (count, factor), root));
            }
            Collective::AllGather => Primitive::AllGather { send, receive, count },
            Collective::Gather => Primitive::Gather { send, receive, count, root },
            Collective::Scatter => {
                let is_there = !functions.roots_in_place
                    && self.rank == root
                    && self.even(send.addr())?.at(self.rank as usize) == receive.addr();
                let receive = if is_there { std::ptr::null_mut() } else { receive };
                Primitive::Scatter { send, receive, count, root }
            }
            Collective::Send => Primitive::Send { send, count, peer: root },
            Collective::Recv => Primitive::Recv { receive, count, peer: root },
            _ => return Err(PluginError::not_supported("it moves nothing")),
        }])
    }

    fn broadcast(
        &self,
        send: Source,
        receive: Destination,
        (count, factor): (usize, usize),
        root: u32,
    ) -> Vec<Primitive> {
        let mut list = Vec::new();
        if self.library.broadcasts_in_one_buffer
            && self.rank == root
            && send != receive.cast_const()
        {
            let bytes = count / factor * self.call.dtype.size_bytes();
            list.push(Primitive::Copy { from: send, to: receive, bytes });
        }
        list.push(Primitive::Broadcast { send, receive, count, root });
        list
    }

    /// A block of each rank to all.
    fn all_gather_v(&self, factor: usize) -> PluginResult<Vec<Primitive>> {
        let NativeCall { send, receive, .. } = *self.call;
        let into = self.received()?;
        let rank = self.rank as usize;
        if self.library.all_gather_v == AllGatherV::Broadcasts {
            let broadcast = |owner| {
                let place = receive.with_addr(into.at(owner));
                let from = if owner == rank { send } else { place.cast_const() };
                self.broadcast(from, place, (into.count(owner) * factor, factor), owner as u32)
            };
            return Ok(into.owners().flat_map(broadcast).collect());
        }
        let mut list = Vec::new();
        let own = into.count(rank) * factor;
        for peer in 0..self.ranks as usize {
            if peer == rank {
                self.own_block(&mut list, send, receive.with_addr(into.at(rank)), own);
                continue;
            }
            if own > 0 {
                list.push(Primitive::Send { send, count: own, peer: peer as u32 });
            }
            self.receive_block(&mut list, &into, peer, factor);
        }
        Ok(list)
    }

    fn all_to_all(&self, count: usize, factor: usize) -> PluginResult<Vec<Primitive>> {
        let NativeCall { send, receive, .. } = *self.call;
        self.not_in_place()?;
        let (from, into) = (self.even(send.addr())?, self.even(receive.addr())?);
        if self.library.functions.all_to_all {
            return Ok(vec![Primitive::AllToAll { send, receive, count }]);
        }
        self.exchange(&from, &into, factor)
    }

    fn all_to_all_v(&self, factor: usize) -> PluginResult<Vec<Primitive>> {
        let NativeCall { send, receive, .. } = *self.call;
        self.not_in_place()?;
        let (from, into) = (self.sent()?, self.received()?);
        if self.library.functions.all_to_all_v {
            let (sent, received) = (from.scaled(factor), into.scaled(factor));
            return Ok(vec![Primitive::AllToAllV { send, receive, sent, received }]);
        }
        self.exchange(&from, &into, factor)
    }

    /// A block for the root; the root has one of each rank.
    fn gather(&self, factor: usize) -> PluginResult<Vec<Primitive>> {
        let NativeCall { send, receive, root, collective, .. } = *self.call;
        let rank = self.rank as usize;
        let count = self.count(factor)?;
        let mut list = Vec::new();
        if self.rank != root {
            if count > 0 {
                list.push(Primitive::Send { send, count, peer: root });
            }
            return Ok(list);
        }
        let is_even = collective == Collective::Gather;
        let into = if is_even { self.even(receive.addr())? } else { self.received()? };
        self.own_block(&mut list, send, receive.with_addr(into.at(rank)), count);
        for peer in (0..self.ranks as usize).filter(|peer| *peer != rank) {
            self.receive_block(&mut list, &into, peer, factor);
        }
        Ok(list)
    }

    /// A block from the root; the root has one for each rank.
    fn scatter(&self, factor: usize) -> PluginResult<Vec<Primitive>> {
        let NativeCall { send, receive, root, collective, .. } = *self.call;
        let rank = self.rank as usize;
        let count = self.count(factor)?;
        let mut list = Vec::new();
        if self.rank != root {
            if count > 0 {
                list.push(Primitive::Recv { receive, count, peer: root });
            }
            return Ok(list);
        }
        let is_even = collective == Collective::Scatter;
        let from = if is_even { self.even(send.addr())? } else { self.sent()? };
        self.own_block(&mut list, send.with_addr(from.at(rank)), receive, count);
        for peer in (0..self.ranks as usize).filter(|peer| *peer != rank) {
            self.send_block(&mut list, &from, peer, factor);
        }
        Ok(list)
    }

    /// A block for each rank, and one from each.
    fn exchange(
        &self,
        from: &Blocks,
        into: &Blocks,
        factor: usize,
    ) -> PluginResult<Vec<Primitive>> {
        let NativeCall { send, receive, .. } = *self.call;
        let rank = self.rank as usize;
        let (sent, received) = (from.count(rank), into.count(rank));
        if sent != received {
            let text = format!("rank {rank} sends itself {sent} elements and receives {received}");
            return Err(PluginError::invalid(text));
        }
        let mut list = Vec::new();
        for peer in 0..self.ranks as usize {
            if peer == rank {
                let from_own = send.with_addr(from.at(rank));
                let to_own = receive.with_addr(into.at(rank));
                self.own_block(&mut list, from_own, to_own, sent * factor);
                continue;
            }
            self.send_block(&mut list, from, peer, factor);
            self.receive_block(&mut list, into, peer, factor);
        }
        Ok(list)
    }

    fn send_block(&self, list: &mut Vec<Primitive>, from: &Blocks, peer: usize, factor: usize) {
        if from.count(peer) > 0 {
            let send = self.call.send.with_addr(from.at(peer));
            let count = from.count(peer) * factor;
            list.push(Primitive::Send { send, count, peer: peer as u32 });
        }
    }

    fn receive_block(&self, list: &mut Vec<Primitive>, into: &Blocks, peer: usize, factor: usize) {
        if into.count(peer) > 0 {
            let receive = self.call.receive.with_addr(into.at(peer));
            let count = into.count(peer) * factor;
            list.push(Primitive::Recv { receive, count, peer: peer as u32 });
        }
    }

    /// This rank's block from one place to another, if it is not there yet.
    fn own_block(&self, list: &mut Vec<Primitive>, from: Source, to: Destination, count: usize) {
        if count == 0 || from == to.cast_const() {
            return;
        }
        let peer = self.rank;
        if self.library.sends_to_itself {
            list.push(Primitive::Send { send: from, count, peer });
            list.push(Primitive::Recv { receive: to, count, peer });
        } else {
            let factor = (self.library.moved_type)(self.call.dtype).1;
            let bytes = count / factor * self.call.dtype.size_bytes();
            list.push(Primitive::Copy { from, to, bytes });
        }
    }

    fn even(&self, address: usize) -> PluginResult<Blocks> {
        Blocks::even(address, self.call.dtype, self.count(1)?, self.ranks)
    }

    fn sent(&self) -> PluginResult<Blocks> {
        let counts = (self.call.send_counts, self.call.send_displacements);
        Blocks::uneven(self.call.send.addr(), self.call.dtype, counts, ("send", self.ranks))
    }

    fn received(&self) -> PluginResult<Blocks> {
        let counts = (self.call.receive_counts, self.call.receive_displacements);
        Blocks::uneven(self.call.receive.addr(), self.call.dtype, counts, ("receive", self.ranks))
    }

    /// The library's elements of the call's count.
    fn count(&self, factor: usize) -> PluginResult<usize> {
        let count = usize::try_from(self.call.count).ok();
        let bytes = count.and_then(|count| count.checked_mul(self.call.dtype.size_bytes()));
        bytes.ok_or_else(too_large)?;
        Ok(self.call.count as usize * factor)
    }

    /// No library promises an all-to-all of a buffer into itself.
    fn not_in_place(&self) -> PluginResult<()> {
        let NativeCall { send, receive, collective, .. } = *self.call;
        if send == receive.cast_const() && !send.is_null() {
            let library = self.library.library;
            let text = format!("{library} is not used for {collective} in place");
            return Err(PluginError::not_supported(text));
        }
        Ok(())
    }
}
