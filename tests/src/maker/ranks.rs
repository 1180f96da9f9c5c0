//! Native collectives, through a plugin: four ranks, a thread and a card each, against the oracle.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use iccl_plugin_api::host::{CollectivesView, OpenCommunicator, OpenDevice};
use iccl_plugin_api::sdk::NativeCall;
use iccl_plugin_api::{Collective, DataType, MemoryKind, RedOp, Status};

use super::Machine;
use crate::oracle;

/// Within this time everything has happened, however loaded the machine.
pub const SOON: Duration = Duration::from_secs(120);

/// The ranks of a test.
pub const RANKS: usize = 4;

/// Elements of a block.
pub const BLOCK: usize = 5;

/// Bytes of a buffer: room for a block of 8-byte elements for each rank, and some.
const BUFFER_BYTES: usize = 8 * RANKS * (BLOCK + 4);

/// What was there before.
const POISON: u8 = 0xA5;

/// One rank: a card with a communicator, a stream and two buffers.
pub struct Rank {
    /// Its number.
    pub number: usize,
    /// Its card.
    pub card: Arc<OpenDevice>,
    /// Its communicator.
    pub communicator: OpenCommunicator,
    /// A stream of the card.
    pub stream: u64,
    /// A buffer of the card.
    pub send: *mut c_void,
    /// Another one.
    pub receive: *mut c_void,
}

// SAFETY: a rank is used by one thread at a time.
unsafe impl Send for Rank {}

impl Rank {
    /// Joins on the card of the rank's number.
    pub fn join(machine: &Machine, view: CollectivesView, id: &[u8], rank: usize) -> Self {
        let card = machine.card(rank);
        let communicator = view.join(&card, id, RANKS as u32, rank as u32).expect("joined");
        Self::of(card, communicator, rank)
    }

    /// Of a card that has joined.
    pub fn of(card: Arc<OpenDevice>, communicator: OpenCommunicator, number: usize) -> Self {
        let stream = card.stream_create().expect("a stream");
        let allocate = || card.allocate(BUFFER_BYTES as u64, MemoryKind::Device).expect("memory");
        let (send, receive) = (allocate(), allocate());
        Self { number, card, communicator, stream, send, receive }
    }

    /// Puts bytes onto the card, and poison behind them.
    pub fn fill(&self, place: *mut c_void, bytes: &[u8]) {
        let mut all = vec![POISON; BUFFER_BYTES];
        all[..bytes.len()].copy_from_slice(bytes);
        let host = (all.as_ptr().cast(), MemoryKind::Host);
        // SAFETY: both sides have this many bytes; stream 0 copies before it returns.
        unsafe { self.card.copy(0, (place, MemoryKind::Device), host, BUFFER_BYTES as u64) }
            .expect("a copy");
    }

    /// All that a buffer holds.
    pub fn read(&self, place: *mut c_void) -> Vec<u8> {
        let mut all = vec![0; BUFFER_BYTES];
        let host = (all.as_mut_ptr().cast(), MemoryKind::Host);
        let source = (place.cast_const(), MemoryKind::Device);
        // SAFETY: as above.
        unsafe { self.card.copy(0, host, source, BUFFER_BYTES as u64) }.expect("a copy");
        all
    }

    /// Calls, and waits for the stream.
    pub fn run(&self, call: &NativeCall<'_>) {
        // SAFETY: the buffers have room for every call of these tests.
        unsafe { self.communicator.call(call, self.stream) }
            .unwrap_or_else(|error| panic!("rank {}: {call:?}: {error}", self.number));
        self.card.stream_synchronize(self.stream, SOON).expect("done");
    }

    /// Leaves, and gives everything back.
    pub fn leave(self) {
        self.communicator.leave().expect("left");
        self.card.stream_destroy(self.stream).expect("destroyed");
        for pointer in [self.send, self.receive] {
            // SAFETY: nothing uses it any more.
            unsafe { self.card.free(pointer) }.expect("freed");
        }
    }

    /// A call of this rank on its two buffers.
    pub fn call(
        &self,
        collective: Collective,
        dtype: DataType,
        op: Option<RedOp>,
    ) -> NativeCall<'static> {
        NativeCall {
            collective,
            dtype,
            op,
            root: 0,
            count: BLOCK as u64,
            send: self.send,
            receive: self.receive,
            send_counts: &[],
            send_displacements: &[],
            receive_counts: &[],
            receive_displacements: &[],
        }
    }
}

/// Runs something on all ranks, a thread for each.
pub fn on_all_ranks(machine: &Machine, run: impl Fn(&Rank) + Sync) {
    let view = machine.set.collectives_of(machine.maker.plugin()).expect("a library").view();
    let id = view.unique_id().expect("an id");
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            let (id, run) = (&id, &run);
            scope.spawn(move || {
                let rank = Rank::join(machine, view, id, rank);
                run(&rank);
                rank.leave();
            });
        }
    });
}

/// The contribution of every rank.
pub fn contributions(dtype: DataType, op: RedOp, count: usize) -> Vec<Vec<u8>> {
    (0..RANKS as u32).map(|rank| oracle::contribution(dtype, op, rank, count, 7)).collect()
}

/// Every reduction that is offered is right, and there are as many as the maker's test expects: the
/// self-test strikes off what is wrong.
pub fn reductions_are_right(machine: &Machine, expected_cases: usize) {
    let native = machine.set.collectives_of(machine.maker.plugin()).expect("a library");
    let support = native.support().to_vec();
    let reducing = [Collective::AllReduce, Collective::Reduce, Collective::ReduceScatter];
    let cases: Vec<_> = support
        .iter()
        .flat_map(|entry| {
            let collective = reducing.into_iter().find(|each| each.code() == entry.collective);
            let dtypes = DataType::ALL.iter().filter(|dtype| entry.dtypes & dtype.mask() != 0);
            dtypes.flat_map(move |dtype| {
                let ops = RedOp::ALL.iter().filter(|op| entry.ops & op.mask() != 0);
                ops.filter_map(move |op| Some((collective?, *dtype, *op)))
            })
        })
        .collect();
    assert_eq!(cases.len(), expected_cases, "the self-test struck something off");
    on_all_ranks(machine, |rank| {
        for &(collective, dtype, op) in &cases {
            let scatters = collective == Collective::ReduceScatter;
            let inputs = contributions(dtype, op, BLOCK * RANKS);
            rank.fill(rank.send, &inputs[rank.number]);
            rank.fill(rank.receive, &[]);
            let count = if scatters { BLOCK } else { BLOCK * RANKS };
            let call = rank.call(collective, dtype, Some(op));
            rank.run(&NativeCall { root: 2, count: count as u64, ..call });
            let result = rank.read(rank.receive);
            let bytes = count * dtype.size_bytes();
            let expected = oracle::reduced(dtype, op, &inputs);
            let expected = match collective {
                Collective::Reduce if rank.number != 2 => vec![POISON; bytes],
                Collective::ReduceScatter => expected[rank.number * bytes..][..bytes].to_vec(),
                _ => expected,
            };
            assert_eq!(result[..bytes], expected, "{collective} {dtype} {op} on {}", rank.number);
            assert!(
                result[bytes..].iter().all(|byte| *byte == POISON),
                "{collective} {dtype} {op}"
            );
        }
    });
}

/// What the collectives move arrives as it was, whatever its type, and nothing else is touched.
pub fn every_type_is_moved(machine: &Machine) {
    on_all_ranks(machine, |rank| {
        for &dtype in DataType::ALL {
            let block = BLOCK * dtype.size_bytes();
            let inputs = contributions(dtype, RedOp::Sum, BLOCK * RANKS);
            let mine = rank.number;
            let check = |collective, expected: &[u8]| {
                rank.fill(rank.send, &inputs[mine]);
                rank.fill(rank.receive, &[]);
                rank.run(&NativeCall { root: 1, ..rank.call(collective, dtype, None) });
                let result = rank.read(rank.receive);
                assert_eq!(result[..expected.len()], *expected, "{collective} {dtype} on {mine}");
                let rest = &result[expected.len()..];
                assert!(rest.iter().all(|byte| *byte == POISON), "{collective} {dtype} on {mine}");
            };
            let blocks =
                |of: &dyn Fn(usize) -> Vec<u8>| (0..RANKS).flat_map(of).collect::<Vec<u8>>();
            let first = blocks(&|peer| inputs[peer][..block].to_vec());
            let crossed = blocks(&|peer| inputs[peer][mine * block..][..block].to_vec());
            check(Collective::Broadcast, &inputs[1][..block]);
            check(Collective::AllGather, &first);
            check(Collective::Gather, if mine == 1 { &first } else { &[] });
            check(Collective::Scatter, &inputs[1][mine * block..][..block]);
            check(Collective::AllToAll, &crossed);
        }
    });
}

/// The vector forms move and reduce blocks of different length, also with gaps between them.
pub fn blocks_are_moved_and_reduced(machine: &Machine) {
    /// Elements of each rank's block.
    const COUNTS: [u64; RANKS] = [3, 0, 1, 6];
    /// Where they begin in a buffer with gaps.
    const PLACES: [u64; RANKS] = [7, 0, 4, 12];
    let dtype = DataType::I16;
    let size = dtype.size_bytes();
    on_all_ranks(machine, |rank| {
        let mine = rank.number;
        let inputs = contributions(dtype, RedOp::Sum, BLOCK * RANKS);
        let bytes = |owner: usize| COUNTS[owner] as usize * size;
        let place = |owner: usize| PLACES[owner] as usize * size;
        let own = NativeCall {
            root: 3,
            count: COUNTS[mine],
            ..rank.call(Collective::AllGatherV, dtype, None)
        };
        let run = |call: &NativeCall<'_>| {
            rank.fill(rank.send, &inputs[mine]);
            rank.fill(rank.receive, &[]);
            rank.run(call);
            rank.read(rank.receive)
        };
        // Gathered, with gaps, on all ranks and on the root.
        let mut gathered = vec![POISON; BUFFER_BYTES];
        for owner in 0..RANKS {
            gathered[place(owner)..][..bytes(owner)]
                .copy_from_slice(&inputs[owner][..bytes(owner)]);
        }
        let into = NativeCall { receive_counts: &COUNTS, receive_displacements: &PLACES, ..own };
        assert_eq!(run(&into), gathered, "all_gather_v on {mine}");
        let gather = NativeCall { collective: Collective::GatherV, ..into };
        let expected = if mine == 3 { gathered } else { vec![POISON; BUFFER_BYTES] };
        assert_eq!(run(&gather), expected, "gather_v on {mine}");
        // Scattered from the root, without gaps.
        let front: usize = (0..mine).map(bytes).sum();
        let scatter = NativeCall { collective: Collective::ScatterV, send_counts: &COUNTS, ..own };
        let result = run(&scatter);
        assert_eq!(result[..bytes(mine)], inputs[3][front..][..bytes(mine)], "scatter_v on {mine}");
        // From each to each: as many as the receiver's number says.
        let received = [COUNTS[mine]; RANKS];
        let all_to_all = NativeCall {
            collective: Collective::AllToAllV,
            send_counts: &COUNTS,
            receive_counts: &received,
            ..own
        };
        let expected: Vec<u8> =
            (0..RANKS).flat_map(|peer| inputs[peer][front..][..bytes(mine)].to_vec()).collect();
        assert_eq!(run(&all_to_all)[..expected.len()], expected, "all_to_all_v on {mine}");
        // Reduced, each rank its block.
        let dtype = DataType::I32;
        let inputs = contributions(dtype, RedOp::Prod, BLOCK * RANKS);
        let reduced = oracle::reduced(dtype, RedOp::Prod, &inputs);
        rank.fill(rank.send, &inputs[mine]);
        rank.fill(rank.receive, &[]);
        rank.run(&NativeCall {
            send_counts: &COUNTS,
            ..rank.call(Collective::ReduceScatterV, dtype, Some(RedOp::Prod))
        });
        let result = rank.read(rank.receive);
        let (front, length) = (2 * front, 2 * bytes(mine));
        assert_eq!(result[..length], reduced[front..][..length], "reduce_scatter_v on {mine}");
        assert!(result[length..].iter().all(|byte| *byte == POISON));
    });
}

/// Sends and receives of a group are issued together: outside a group this ring would wait for ever.
pub fn rings_meet_in_groups(machine: &Machine) {
    let view = machine.set.collectives_of(machine.maker.plugin()).expect("a library").view();
    on_all_ranks(machine, |rank| {
        let dtype = DataType::F64;
        let inputs = contributions(dtype, RedOp::Sum, BLOCK);
        let (next, before) = ((rank.number + 1) % RANKS, (rank.number + RANKS - 1) % RANKS);
        rank.fill(rank.send, &inputs[rank.number]);
        rank.fill(rank.receive, &[]);
        // A ring: outside a group everybody would wait for everybody.
        view.group_start().expect("a group");
        let to = |collective, peer: usize| NativeCall {
            root: peer as u32,
            ..rank.call(collective, dtype, None)
        };
        // SAFETY: the buffers have room, and the stream is waited for below.
        unsafe {
            rank.communicator.call(&to(Collective::Send, next), rank.stream).expect("taken");
            rank.communicator.call(&to(Collective::Recv, before), rank.stream).expect("taken");
        }
        view.group_end().expect("issued");
        rank.card.stream_synchronize(rank.stream, SOON).expect("done");
        assert_eq!(rank.read(rank.receive)[..8 * BLOCK], inputs[before]);
        // An end without a begin is a mistake of the caller.
        assert_eq!(view.group_end().unwrap_err().status, Status::InvalidArgument);
    });
}
