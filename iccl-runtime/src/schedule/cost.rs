//! What an algorithm costs: counts of messages and bytes, and the time that a model makes of them.
//!
//! Each algorithm counts for itself, beside its steps; tests compare the counts with the compiled
//! schedules. All numbers are integers, so that every rank comes to the same decision.

use iccl_plugin_api::types::Collective;

use super::{
    Algorithm, Request, all_gather, all_reduce, blocks, broadcast, exchange, gather_scatter,
    island_blocks, native, point_to_point, reduce, reduce_scatter,
};

/// The load of the busiest rank in an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The longest chain of data messages in which each waits for the one before, were the whole
    /// vector one chunk. Where only some ranks fold it can be one less.
    pub rounds: u64,
    /// How many of the rounds end in scratch, so that they can run beside the gate; the others wait
    /// for it.
    pub rounds_beside_gate: u64,
    /// The rounds of the gate.
    pub gate_rounds: u64,
    /// Data messages that it sends or receives, whichever are more.
    pub messages: u64,
    /// Bytes that it sends or receives, whichever are more.
    pub bytes: u64,
    /// Bytes that are still to be sent by someone when the busiest rank's last message is.
    pub fill_bytes: u64,
    /// Bytes that its reductions read.
    pub reduced_bytes: u64,
    /// Calls of the native library.
    pub native_calls: u64,
    /// Bytes of the longer buffer of each native call.
    pub native_bytes: u64,
}

impl Cost {
    /// The longest chain of messages, those of the gate included.
    pub fn latency_rounds(&self) -> u64 {
        let beside = self.rounds_beside_gate;
        beside.max(self.gate_rounds) + (self.rounds - beside)
    }

    /// The time by `model`, in nanoseconds: each round costs α, every further message of the busiest
    /// rank what it takes to handle one, and bytes go at the given rates.
    pub fn time_ns(&self, model: &CostModel) -> u64 {
        let rounds = self.latency_rounds();
        let further = self.messages.saturating_add(self.gate_rounds).saturating_sub(rounds);
        let at_rate = |bytes: u64, bytes_per_us: u64| {
            u128::from(bytes) * 1000 / u128::from(bytes_per_us.max(1))
        };
        let time = u128::from(rounds) * u128::from(model.alpha_ns)
            + u128::from(further) * u128::from(model.message_ns)
            + at_rate(self.bytes, model.bytes_per_us)
            + at_rate(self.fill_bytes, model.bytes_per_us)
            + at_rate(self.reduced_bytes, model.reduce_bytes_per_us)
            + u128::from(self.native_calls) * u128::from(model.native_alpha_ns)
            + at_rate(self.native_bytes, model.native_bytes_per_us);
        u64::try_from(time).unwrap_or(u64::MAX)
    }
}

/// Speeds, as the plan knows them for the links that a communicator uses (Hockney's α and β, and a
/// charge for each message beyond the first of a round, as in `LogGP`). A plan in which several ranks
/// share a NIC gives the share of one rank as `bytes_per_us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// From the start of a short message to its arrival, in nanoseconds.
    pub alpha_ns: u64,
    /// How long handling one more message keeps a rank busy, in nanoseconds.
    pub message_ns: u64,
    /// How many bytes a rank sends in a microsecond, while it receives as many.
    pub bytes_per_us: u64,
    /// How many bytes of operands a rank's reductions read in a microsecond.
    pub reduce_bytes_per_us: u64,
    /// What one call of a native library takes, in nanoseconds, however little it does.
    pub native_alpha_ns: u64,
    /// How many bytes of its longer buffer a native call does in a microsecond.
    pub native_bytes_per_us: u64,
}

impl Default for CostModel {
    /// Shared memory on one host; native libraries over links between cards.
    fn default() -> Self {
        Self {
            alpha_ns: 2_000,
            message_ns: 500,
            bytes_per_us: 5_000,
            reduce_bytes_per_us: 10_000,
            native_alpha_ns: 20_000,
            native_bytes_per_us: 100_000,
        }
    }
}

/// What `algorithm` costs for a request (whatever `request.algorithm` says), by counting messages
/// and bytes of the busiest rank; in the vector forms, of this rank, which need not know what others
/// do, and nothing if they are not given. Meant for requests that the algorithm can carry; one that no
/// memory can hold costs more than any other.
pub fn cost(algorithm: Algorithm, request: &Request) -> Cost {
    if request.ranks <= 1 {
        return Cost::default();
    }
    if blocks::is_vector_form(request.collective) && request.counts.is_none() {
        return Cost::default();
    }
    if request.vector_bytes().is_none() {
        return Cost { bytes: u64::MAX, ..Cost::default() };
    }
    let gated = algorithm.gates(request.collective);
    let data = match (algorithm, request.collective) {
        // Nothing of an empty vector travels but the gate.
        _ if gated && request.count == 0 && request.counts.is_none() => Cost::default(),
        (Algorithm::Local | Algorithm::Dissemination, _) => Cost::default(),
        (Algorithm::PointToPoint, _) => point_to_point::cost(request),
        (Algorithm::Direct, Collective::Reduce) => reduce::direct::cost(request),
        (Algorithm::Direct, Collective::ReduceScatter | Collective::ReduceScatterV) => {
            reduce_scatter::direct::cost(request)
        }
        (
            Algorithm::Direct,
            Collective::Gather | Collective::GatherV | Collective::Scatter | Collective::ScatterV,
        ) => gather_scatter::direct::cost(request),
        (Algorithm::Direct, Collective::AllReduce) => all_reduce::direct::cost(request),
        (Algorithm::Direct, _) => exchange::cost(request),
        (Algorithm::Owner, _) => all_reduce::owner::cost(request),
        (Algorithm::RecursiveDoubling, _) => all_reduce::recursive_doubling::cost(request),
        (Algorithm::Ring, Collective::AllGather) => all_gather::ring::cost(request),
        (Algorithm::Ring, Collective::ReduceScatter) => reduce_scatter::ring::cost(request),
        (Algorithm::Ring, _) => all_reduce::ring::cost(request),
        (Algorithm::Flat, _) => broadcast::flat::cost(request),
        (Algorithm::Binomial, Collective::Reduce) => reduce::binomial::cost(request),
        (Algorithm::Binomial, _) => broadcast::binomial::cost(request),
        (Algorithm::ScatterAllGather, _) => broadcast::scatter_all_gather::cost(request),
        (Algorithm::Bruck, _) => all_gather::bruck::cost(request),
        (Algorithm::Native, _) => native::cost(request),
        (Algorithm::Islands, Collective::AllReduce) => all_reduce::islands::cost(request),
        (Algorithm::Islands, _) => island_blocks::cost(request),
    };
    let rounds = u64::from(log2_ceil(request.ranks));
    let gate_rounds = match (gated, request.with_algorithm(algorithm).takes_turns()) {
        (false, _) => 0,
        (true, false) => rounds,
        (true, true) => 2 * rounds,
    };
    Cost { gate_rounds, ..data }
}

/// ⌈log₂ ranks⌉.
pub(super) const fn log2_ceil(ranks: u32) -> u32 {
    u32::BITS - (ranks - 1).leading_zeros()
}
