//! iccl's own test of a native collectives library: a tiny reduction of every type and operation
//! that it offers, compared with the host's reference. Libraries have returned a sum for a mean, and
//! reported success. What is wrong is not used; the rest is.
//!
//! Where the plugin has two devices the communicator has two ranks. With one it has one, which still
//! finds what fails, crashes or leaves the result unwritten, but no sum in place of a mean.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use iccl_kernels::{Finish, Unsupported, reference};
use iccl_plugin_api::host::{CallError, CollectivesView, OpenCommunicator, OpenDevice, PluginView};
use iccl_plugin_api::sdk::NativeCall;
use iccl_plugin_api::tables::CollectiveSupport;
use iccl_plugin_api::{Collective, DataType, MemoryKind, RedOp};

/// How long all of it may take. A library that hangs is not used, and its threads are given up.
const DEADLINE: Duration = Duration::from_secs(30);

/// Elements of a result for each rank.
const ELEMENTS: usize = 8;

/// Bytes of the largest buffer: 8-byte elements for two ranks.
const BUFFER_BYTES: usize = ELEMENTS * 2 * 8;

/// One combination to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    collective: Collective,
    dtype: DataType,
    op: RedOp,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.collective, self.dtype, self.op)
    }
}

/// Takes out of `support` what is wrong, and gives a line for each combination taken out.
pub(super) fn strike(
    view: PluginView,
    devices: usize,
    support: &mut Vec<CollectiveSupport>,
) -> Vec<String> {
    let cases = cases(support);
    if cases.is_empty() {
        return Vec::new();
    }
    let wrong: Vec<(Case, String)> = match try_all(view, devices.min(2) as u32, &cases) {
        Ok(results) => cases
            .iter()
            .zip(results)
            .filter_map(|(case, result)| Some((*case, result.err()?)))
            .collect(),
        Err(why) => cases.iter().map(|case| (*case, why.clone())).collect(),
    };
    let struck: Vec<Case> = wrong.iter().map(|(case, _)| *case).collect();
    *support = without(support, &struck);
    wrong.iter().map(|(case, why)| format!("{case} ({why})")).collect()
}

/// The combinations of a list that reduce, each once.
fn cases(support: &[CollectiveSupport]) -> Vec<Case> {
    let tested = [
        Collective::AllReduce,
        Collective::Reduce,
        Collective::ReduceScatter,
        Collective::ReduceScatterV,
    ];
    let mut cases = Vec::new();
    for entry in support {
        for &collective in tested.iter().filter(|each| each.code() == entry.collective) {
            for &dtype in DataType::ALL.iter().filter(|each| entry.dtypes & each.mask() != 0) {
                for &op in RedOp::ALL.iter().filter(|each| entry.ops & each.mask() != 0) {
                    let case = Case { collective, dtype, op };
                    if !cases.contains(&case) {
                        cases.push(case);
                    }
                }
            }
        }
    }
    cases
}

/// The list without some combinations. An entry is a product of types and operations, so one that
/// loses a combination falls apart into an entry for each type.
fn without(support: &[CollectiveSupport], struck: &[Case]) -> Vec<CollectiveSupport> {
    let mut left = Vec::new();
    for entry in support {
        let of_entry: Vec<&Case> =
            struck.iter().filter(|case| case.collective.code() == entry.collective).collect();
        if of_entry.is_empty() {
            left.push(*entry);
            continue;
        }
        for &dtype in DataType::ALL.iter().filter(|each| entry.dtypes & each.mask() != 0) {
            let ops = of_entry
                .iter()
                .filter(|case| case.dtype == dtype)
                .fold(entry.ops, |ops, case| ops & !case.op.mask());
            if ops != 0 {
                left.push(CollectiveSupport { dtypes: dtype.mask(), ops, ..*entry });
            }
        }
    }
    left
}

/// Tries all cases on `ranks` devices, a thread for each. The outer error is about all of them.
fn try_all(
    view: PluginView,
    ranks: u32,
    cases: &[Case],
) -> Result<Vec<Result<(), String>>, String> {
    let (Some(collectives), Some(backend)) = (view.collectives(), view.device()) else {
        return Err("the plugin has no native collectives".to_owned());
    };
    // All before the first joins: a library may have to know which ranks a process has.
    let devices = (0..ranks).map(|rank| backend.open(rank).map(Arc::new));
    let devices: Vec<Arc<OpenDevice>> =
        devices.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    let id: Arc<[u8]> = collectives.unique_id().map_err(|error| error.to_string())?.into();
    let (sender, receiver) = channel();
    for (rank, device) in devices.into_iter().enumerate() {
        let (sender, id, cases) = (sender.clone(), Arc::clone(&id), cases.to_vec());
        let rank = rank as u32;
        std::thread::Builder::new()
            .name(format!("iccl-self-test-{rank}"))
            .spawn(move || {
                let outcome = run_rank(collectives, &device, &id, (ranks, rank), &cases);
                // Nobody listens any more after the deadline.
                let _ = sender.send(outcome.map_err(|error| error.to_string()));
            })
            .map_err(|error| error.to_string())?;
    }
    drop(sender);
    let mut merged = vec![Ok(()); cases.len()];
    for _ in 0..ranks {
        let results = receiver.recv_timeout(DEADLINE).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("it did not end within {DEADLINE:?}"),
            RecvTimeoutError::Disconnected => "its thread ended without a result".to_owned(),
        })??;
        for (merged, result) in merged.iter_mut().zip(results) {
            if merged.is_ok() {
                *merged = result;
            }
        }
    }
    Ok(merged)
}

/// One rank's part of all cases.
fn run_rank(
    collectives: CollectivesView,
    device: &Arc<OpenDevice>,
    id: &[u8],
    (ranks, rank): (u32, u32),
    cases: &[Case],
) -> Result<Vec<Result<(), String>>, CallError> {
    let communicator = collectives.join(device, id, ranks, rank)?;
    let stage = Stage { device, communicator: &communicator, ranks, rank };
    let send = device.allocate(BUFFER_BYTES as u64, MemoryKind::Device)?;
    let receive = device.allocate(BUFFER_BYTES as u64, MemoryKind::Device)?;
    let stream = device.stream_create()?;
    let results = cases.iter().map(|case| stage.run(*case, send, receive, stream)).collect();
    communicator.leave()?;
    device.stream_destroy(stream)?;
    // SAFETY: both came from this device, and the stream that used them is gone.
    unsafe {
        device.free(send)?;
        device.free(receive)?;
    }
    Ok(results)
}

/// Where the cases of a rank are run.
struct Stage<'a> {
    device: &'a OpenDevice,
    communicator: &'a OpenCommunicator,
    ranks: u32,
    rank: u32,
}

impl Stage<'_> {
    /// One case; `send` and `receive` have `BUFFER_BYTES` bytes each.
    fn run(
        &self,
        case: Case,
        send: *mut std::ffi::c_void,
        receive: *mut std::ffi::c_void,
        stream: u64,
    ) -> Result<(), String> {
        let size = case.dtype.size_bytes();
        let total = ELEMENTS * self.ranks as usize;
        let inputs: Vec<Vec<u8>> =
            (0..self.ranks).map(|rank| input(case.dtype, rank, total)).collect();
        // On all ranks alike, before anything is called: bits of floats, or a pre-multiplied sum, whose
        // scalar a native call has no place for.
        let expected = expected(case, &inputs, total).map_err(|error| error.to_string())?;
        let is_v = case.collective == Collective::ReduceScatterV;
        let scatters = is_v || case.collective == Collective::ReduceScatter;
        let count = if scatters { ELEMENTS } else { total };
        let poison = [0xA5_u8; BUFFER_BYTES];
        let mut result = vec![0_u8; count * size];
        let blocks = vec![ELEMENTS as u64; self.ranks as usize];
        let call = NativeCall {
            collective: case.collective,
            dtype: case.dtype,
            op: Some(case.op),
            root: 0,
            count: count as u64,
            send,
            receive,
            send_counts: if is_v { &blocks } else { &[] },
            send_displacements: &[],
            receive_counts: &[],
            receive_displacements: &[],
        };
        let moved = || -> Result<(), CallError> {
            let mine = &inputs[self.rank as usize];
            // SAFETY: all buffers are as large as is copied; stream 0 copies before it returns, and
            // the call's stream is waited for before anything else touches them.
            unsafe {
                let host = (mine.as_ptr().cast(), MemoryKind::Host);
                self.device.copy(0, (send, MemoryKind::Device), host, mine.len() as u64)?;
                let host = (poison.as_ptr().cast(), MemoryKind::Host);
                self.device.copy(0, (receive, MemoryKind::Device), host, BUFFER_BYTES as u64)?;
                self.communicator.call(&call, stream)?;
                self.device.stream_synchronize(stream, DEADLINE)?;
                let back = (result.as_mut_ptr().cast(), MemoryKind::Host);
                let device = (receive.cast_const(), MemoryKind::Device);
                self.device.copy(0, back, device, (count * size) as u64)
            }
        };
        let mut moved = moved;
        moved().map_err(|error| error.to_string())?;
        if case.collective == Collective::Reduce && self.rank != 0 {
            return Ok(());
        }
        let begin = if scatters { self.rank as usize * ELEMENTS * size } else { 0 };
        if result == expected[begin..begin + result.len()] {
            Ok(())
        } else {
            Err("its result differs from the host's".to_owned())
        }
    }
}

/// The contribution of a rank: small whole numbers, of which every result is exact in every type (but
/// for 15, a product that E5M2 has to round). Among integers, ends of their ranges: sums and products
/// wrap, and signs count.
fn input(dtype: DataType, rank: u32, elements: usize) -> Vec<u8> {
    let element = |index: usize| match index % ELEMENTS {
        5 if dtype.is_integer() => end_of_range(dtype, 0xff, 0x7f),
        6 if dtype.is_integer() && rank == 0 => end_of_range(dtype, 0, 0x80),
        _ => whole_number(dtype, (index % 4) as u8 + 1 + 2 * rank as u8),
    };
    (0..elements).flat_map(element).collect()
}

/// An integer by its upper byte and all others.
fn end_of_range(dtype: DataType, others: u8, upper: u8) -> Vec<u8> {
    let mut bytes = vec![others; dtype.size_bytes()];
    if let Some(last) = bytes.last_mut() {
        *last = upper;
    }
    bytes
}

/// A small whole number as an element.
fn whole_number(dtype: DataType, value: u8) -> Vec<u8> {
    let float = f32::from(value);
    match dtype {
        DataType::F16 => half::f16::from_f32(float).to_le_bytes().to_vec(),
        DataType::Bf16 => half::bf16::from_f32(float).to_le_bytes().to_vec(),
        DataType::F32 => float.to_le_bytes().to_vec(),
        DataType::F64 => f64::from(value).to_le_bytes().to_vec(),
        // The upper byte of the f16, which is E5M2, rounded by half of its last place: no result here
        // is a tie but 15, which goes up.
        DataType::F8E5M2 => vec![((half::f16::from_f32(float).to_bits() + 0x80) >> 8) as u8],
        // Exponent and mantissa of the f16 without its lower seven bits, and with another bias.
        DataType::F8E4M3 => {
            vec![((half::f16::from_f32(float).to_bits() - ((15 - 7) << 10)) >> 7) as u8]
        }
        _ => {
            let mut bytes = vec![0; dtype.size_bytes()];
            bytes[0] = value;
            bytes
        }
    }
}

/// What the host says.
///
/// # Errors
/// If the type has no such operation, or none without a scalar.
fn expected(case: Case, inputs: &[Vec<u8>], elements: usize) -> Result<Vec<u8>, Unsupported> {
    let (op, finish) = match case.op {
        RedOp::Avg => (RedOp::Sum, Finish::DivideByRanks(inputs.len() as u32)),
        op => (op, Finish::None),
    };
    let mut result = vec![0; elements * case.dtype.size_bytes()];
    let sources: Vec<*const u8> = inputs.iter().map(Vec::as_ptr).collect();
    // SAFETY: every source and the destination have this many elements, and none overlap.
    unsafe {
        reference::reduce(case.dtype, op, finish, result.as_mut_ptr(), &sources, elements)?;
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_tell_a_sum_from_a_mean_and_all_results_are_exact() {
        for &dtype in DataType::ALL {
            let inputs = [input(dtype, 0, 16), input(dtype, 1, 16)];
            let result =
                |op| expected(Case { collective: Collective::AllReduce, dtype, op }, &inputs, 16);
            let sum = result(RedOp::Sum).expect("every type has sums");
            let number = |value| whole_number(dtype, value);
            let size = dtype.size_bytes();
            assert_eq!(sum[..size], number(4), "{dtype}");
            assert_eq!(result(RedOp::Avg).unwrap()[..size], number(2), "{dtype}");
            assert_eq!(result(RedOp::Prod).unwrap()[3 * size..4 * size], number(24), "{dtype}");
            // A native call has no place for the scalar, and floats have no bits to combine.
            assert!(result(RedOp::PreMulSum).is_err());
            assert_eq!(result(RedOp::BitXor).is_ok(), dtype.is_integer(), "{dtype}");
        }
    }

    #[test]
    fn integers_wrap_and_signs_count() {
        let result = |dtype, op| {
            let inputs = [input(dtype, 0, 8), input(dtype, 1, 8)];
            expected(Case { collective: Collective::Reduce, dtype, op }, &inputs, 8).unwrap()
        };
        assert_eq!(result(DataType::I8, RedOp::Sum)[5], 0xfe, "127 and 127");
        assert_eq!(result(DataType::U8, RedOp::Prod)[5], 1, "127 by 127");
        assert_eq!(result(DataType::I8, RedOp::Max)[6], 5, "-128 and 5");
        assert_eq!(result(DataType::U8, RedOp::Max)[6], 0x80, "128 and 5");
        assert_eq!(result(DataType::I16, RedOp::Min)[12..14], [0, 0x80]);
        assert_eq!(result(DataType::F32, RedOp::Sum)[20..24], 6_f32.to_le_bytes());
    }

    #[test]
    fn striking_one_combination_keeps_all_others() {
        let entry = |dtypes: &[DataType], ops: &[RedOp]| {
            CollectiveSupport::new(Collective::AllReduce, dtypes, ops)
        };
        let support = [
            entry(&[DataType::F32, DataType::I32], &[RedOp::Sum, RedOp::Avg]),
            CollectiveSupport::new(Collective::Broadcast, &[DataType::I32], &[]),
        ];
        let struck =
            Case { collective: Collective::AllReduce, dtype: DataType::I32, op: RedOp::Avg };
        let all = cases(&support);
        assert_eq!(all.len(), 4);
        let left = without(&support, &[struck]);
        let rest: Vec<Case> = all.into_iter().filter(|case| *case != struck).collect();
        let mut found = cases(&left);
        found.sort_by_key(|case| rest.iter().position(|each| each == case));
        assert_eq!(found, rest);
        assert!(left.iter().any(|entry| entry.collective == Collective::Broadcast.code()));
        // An entry of which nothing is left is gone.
        let only = [entry(&[DataType::I32], &[RedOp::Avg])];
        assert!(without(&only, &[struck]).is_empty());
    }
}
