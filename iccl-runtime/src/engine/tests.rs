//! The engine over a transport in memory that is as strict as the contract allows: a send is over
//! only when its receive was posted, and bytes move only then.

mod late_card;
mod native;
mod reached;
mod staged;

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use iccl_plugin_api::sdk::{ChannelRequest, Envelope as EnvelopeBytes, PluginError, Progress};
use iccl_plugin_api::tables::{Completion, Segment, completion_kind};
use iccl_plugin_api::{Collective, DataType, RedOp, Status};

use smallvec::smallvec;

use super::domain::{Domain, Wake};
use super::envelope::{Fingerprint, Lane, Purpose};
use super::*;
use crate::plan::Access;
use crate::schedule::{Algorithm, Request, compile};

/// From, to, channel number.
type Way = (u32, u32, u64);

struct Posted {
    token: u64,
    segments: Vec<Segment>,
    envelope: EnvelopeBytes,
}

// SAFETY: the tests keep the memory that the segments point to alive until the engines are gone.
unsafe impl Send for Posted {}

#[derive(Default)]
struct Hub {
    sends: HashMap<Way, VecDeque<Posted>>,
    receives: HashMap<Way, VecDeque<Posted>>,
    done: HashMap<u32, Vec<Completion>>,
    gone: Vec<u32>,
    /// Channels do not come to rest.
    restless: bool,
    events: HashMap<u32, Arc<OwnedFd>>,
}

impl Hub {
    fn signal(&self, rank: u32) {
        if let Some(event) = self.events.get(&rank) {
            rustix::io::write(event, &1_u64.to_ne_bytes()).expect("event descriptor");
        }
    }

    fn complete(&mut self, rank: u32, completion: Completion) {
        self.done.entry(rank).or_default().push(completion);
        self.signal(rank);
    }

    fn matchup(&mut self, way: Way) {
        let (from, to, _) = way;
        loop {
            let sends = self.sends.entry(way).or_default();
            let receives = self.receives.entry(way).or_default();
            if sends.is_empty() || receives.is_empty() {
                return;
            }
            let (send, receive) =
                (sends.pop_front().expect("a send"), receives.pop_front().expect("a receive"));
            let length =
                |posted: &Posted| posted.segments.iter().map(|one| one.length).sum::<u64>();
            let (sent, expected) = (length(&send), length(&receive));
            let (to_sender, to_receiver) = (channel_at(from, way), channel_at(to, way));
            if send.envelope != receive.envelope || sent != expected {
                let bad = Completion::mismatch(to_receiver, receive.token, &send.envelope, sent);
                self.complete(to, bad);
                return;
            }
            if let ([source], [destination]) = (&send.segments[..], &receive.segments[..]) {
                // SAFETY: both were posted, so both are valid, and the engine keeps them apart.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        source.address.cast::<u8>(),
                        destination.address.cast::<u8>(),
                        sent as usize,
                    );
                }
            }
            self.complete(
                from,
                Completion::done(to_sender, send.token, completion_kind::SEND, sent),
            );
            let received =
                Completion::done(to_receiver, receive.token, completion_kind::RECEIVE, sent);
            self.complete(to, received);
        }
    }
}

/// The handle of the channel of `way` at `rank`: the peer and the channel's number.
fn channel_at(rank: u32, (from, to, number): Way) -> u64 {
    let peer = if rank == from { to } else { from };
    u64::from(peer) << 8 | number
}

struct MemoryDomain {
    rank: u32,
    hub: Arc<Mutex<Hub>>,
    event: Arc<OwnedFd>,
}

impl MemoryDomain {
    fn way(&self, channel: u64, sends: bool) -> Way {
        let peer = (channel >> 8) as u32;
        let number = channel & 0xff;
        if sends { (self.rank, peer, number) } else { (peer, self.rank, number) }
    }

    fn post(
        &self,
        channel: u64,
        token: u64,
        segments: &[Segment],
        envelope: &EnvelopeBytes,
        sends: bool,
    ) {
        let way = self.way(channel, sends);
        let mut hub = self.hub.lock().expect("hub");
        let posted = Posted { token, segments: segments.to_vec(), envelope: *envelope };
        let side = if sends { &mut hub.sends } else { &mut hub.receives };
        side.entry(way).or_default().push_back(posted);
        hub.matchup(way);
    }
}

impl Domain for MemoryDomain {
    fn name(&self) -> &'static str {
        "memory"
    }
    fn address(&mut self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
    fn channel_open(&mut self, request: &ChannelRequest<'_>) -> Result<u64> {
        Ok(u64::from(request.peer) << 8 | request.channel)
    }
    fn channel_state(&mut self, _channel: u64) -> Result<Progress> {
        Ok(Progress::Done)
    }
    unsafe fn post_send(
        &mut self,
        channel: u64,
        token: u64,
        segments: &[Segment],
        envelope: &EnvelopeBytes,
    ) -> Result<()> {
        self.post(channel, token, segments, envelope, true);
        Ok(())
    }
    unsafe fn post_receive(
        &mut self,
        channel: u64,
        token: u64,
        segments: &[Segment],
        envelope: &EnvelopeBytes,
    ) -> Result<()> {
        self.post(channel, token, segments, envelope, false);
        Ok(())
    }
    fn progress(&mut self, completions: &mut Vec<Completion>) -> Result<()> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count);
        let mut hub = self.hub.lock().expect("hub");
        completions.append(hub.done.entry(self.rank).or_default());
        for way in hub.receives.keys().copied().collect::<Vec<_>>() {
            if way.1 == self.rank && hub.gone.contains(&way.0) {
                let error = PluginError::new(Status::PeerLost, "end of file");
                for lost in hub.receives.get_mut(&way).into_iter().flat_map(|queue| queue.drain(..))
                {
                    let channel = channel_at(self.rank, way);
                    let kind = completion_kind::RECEIVE;
                    completions.push(Completion::failed(channel, lost.token, kind, &error));
                }
            }
        }
        Ok(())
    }
    fn arm(&mut self) -> Result<Progress> {
        let hub = self.hub.lock().expect("hub");
        let waiting = hub.done.get(&self.rank).is_some_and(|done| !done.is_empty());
        Ok(if waiting { Progress::Done } else { Progress::Pending })
    }
    fn event_descriptor(&self) -> RawFd {
        self.event.as_raw_fd()
    }
    fn has_wait(&self) -> bool {
        false
    }
    fn wait(&mut self, _timeout: Duration) -> Result<()> {
        unreachable!("the engine polls")
    }
    fn waker(&self) -> Option<Wake> {
        None
    }
    fn quiesce(&mut self, channel: u64, _timeout: Duration) -> Result<()> {
        let (sends, receives) = (self.way(channel, true), self.way(channel, false));
        let mut hub = self.hub.lock().expect("hub");
        if hub.restless {
            return Err(Error::new(ErrorKind::Timeout, "the channel does not come to rest"));
        }
        hub.sends.remove(&sends);
        hub.receives.remove(&receives);
        Ok(())
    }
    fn channel_close(&mut self, _channel: u64) -> Result<()> {
        Ok(())
    }
}

const COMMUNICATOR: u64 = 77;

fn engine(rank: u32, ranks: u32, stall_warn: Duration, hub: &Arc<Mutex<Hub>>) -> Engine {
    let options = EngineOptions { stall_warn, ..EngineOptions::default() };
    Engine::start(EngineParts { options, ..parts(rank, ranks, hub) }).expect("an engine")
}

fn parts(rank: u32, ranks: u32, hub: &Arc<Mutex<Hub>>) -> EngineParts {
    let flags = rustix::event::EventfdFlags::NONBLOCK;
    let event = Arc::new(rustix::event::eventfd(0, flags).expect("event descriptor"));
    hub.lock().expect("hub").events.insert(rank, Arc::clone(&event));
    let link = |peer| Link {
        domain: 0,
        address: Vec::new(),
        digest: u64::from(peer),
        access: Access::Staged,
        channel: None,
    };
    EngineParts {
        rank,
        ranks,
        communicator: COMMUNICATOR,
        epoch: 0,
        options: EngineOptions::default(),
        flights: None,
        domains: vec![Box::new(MemoryDomain { rank, hub: Arc::clone(hub), event })],
        links: (0..ranks).map(|peer| (peer != rank).then(|| link(peer))).collect(),
        native: None,
        pinned: None,
        on_failure: Box::new(|_| {}),
    }
}

fn engines(ranks: u32, stall_warn: Duration) -> (Vec<Engine>, Arc<Mutex<Hub>>) {
    let hub = Arc::new(Mutex::new(Hub::default()));
    ((0..ranks).map(|rank| engine(rank, ranks, stall_warn, &hub)).collect(), hub)
}

#[derive(Clone, Copy)]
struct Call {
    collective: Collective,
    algorithm: Algorithm,
    count: u64,
    op: RedOp,
    root: u32,
    sequence: u64,
    timeout: Duration,
    ready: bool,
    in_place: bool,
}

const ALL_REDUCE: Call = Call {
    collective: Collective::AllReduce,
    algorithm: Algorithm::Owner,
    count: 1000,
    op: RedOp::Sum,
    root: 0,
    sequence: 0,
    timeout: Duration::from_secs(20),
    ready: true,
    in_place: false,
};

fn submit(
    engine: &Engine,
    rank: u32,
    ranks: u32,
    call: &Call,
    send: &[i64],
    receive: &mut [i64],
) -> Result<Arc<Operation>> {
    submit_keeping(engine, (rank, ranks), call, send, receive, Keep::new())
}

fn submit_keeping(
    engine: &Engine,
    ranks: (u32, u32),
    call: &Call,
    send: &[i64],
    receive: &mut [i64],
    keep: Keep,
) -> Result<Arc<Operation>> {
    let request = request(ranks, call);
    assert!(request.program.schedule().send_bytes <= size_of_val(send) as u64);
    assert!(request.program.schedule().recv_bytes <= size_of_val(receive) as u64);
    let (send, receive) = (send.as_ptr().cast(), receive.as_mut_ptr().cast());
    submit_request(engine, OperationRequest { send, receive, keep, ..request })
}

/// What a call asks of the engine, on no memory yet.
fn request((rank, ranks): (u32, u32), call: &Call) -> OperationRequest {
    let request = Request {
        collective: call.collective,
        dtype: DataType::I64,
        op: call.op,
        count: call.count,
        root: call.root,
        rank,
        ranks,
        in_place: call.in_place,
        algorithm: call.algorithm,
        chunk_bytes: 256,
        counts: None,
        islands: native::islands(call.algorithm, ranks),
    };
    let schedule = compile(&request).expect("a schedule");
    let point_to_point = matches!(call.collective, Collective::Send | Collective::Recv);
    let fingerprint = Fingerprint {
        sequence: call.sequence,
        collective: if point_to_point { Collective::Send } else { call.collective },
        dtype: DataType::I64,
        op: call.op,
        algorithm: call.algorithm,
        root: match call.collective {
            Collective::Recv => rank,
            _ => call.root,
        },
        count: call.count,
        digest: 256,
        purpose: Purpose::Application,
    };
    OperationRequest {
        allocations: [None; 2],
        program: Arc::new(Program::new(schedule)),
        fingerprint,
        lane: if point_to_point { Lane::PointToPoint } else { Lane::Collective },
        send: std::ptr::null(),
        receive: std::ptr::null_mut(),
        scalar: std::ptr::null(),
        scalar_is_on_device: false,
        keep: Keep::new(),
        timeout: call.timeout,
        ready: call.ready,
        on_complete: None,
    }
}

fn submit_request(engine: &Engine, request: OperationRequest) -> Result<Arc<Operation>> {
    engine.check()?;
    engine.prepare(&request.program)?;
    engine.prepare_buffers(&request.program, request.send, request.receive)?;
    let operation = Arc::new(Operation::new(request));
    // SAFETY: the callers keep all memory until the operation is over or the engine is gone.
    unsafe { engine.submit(&operation) };
    Ok(operation)
}

/// Runs one call per rank, each on its own thread, and gives the outcomes and what was received.
fn run(engines: &[Engine], calls: &[Call]) -> Vec<(Result<()>, Vec<i64>)> {
    let ranks = engines.len() as u32;
    std::thread::scope(|scope| {
        let threads: Vec<_> = engines
            .iter()
            .zip(calls)
            .enumerate()
            .map(|(rank, (engine, call))| {
                scope.spawn(move || {
                    let send: Vec<i64> =
                        (0..call.count as i64).map(|at| at + 1000 * rank as i64).collect();
                    let mut receive = vec![-1; call.count as usize];
                    let outcome = submit(engine, rank as u32, ranks, call, &send, &mut receive)
                        .and_then(|operation| engine.wait(&operation, None));
                    (outcome, receive)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

fn same(call: Call, ranks: usize) -> Vec<Call> {
    vec![call; ranks]
}

#[test]
fn every_all_reduce_algorithm_gives_the_sum_on_every_rank() {
    let algorithms =
        [Algorithm::Direct, Algorithm::Owner, Algorithm::RecursiveDoubling, Algorithm::Ring];
    for ranks in [2_u32, 3, 5] {
        let (engines, _hub) = engines(ranks, Duration::from_secs(10));
        for (sequence, algorithm) in algorithms.into_iter().enumerate() {
            let call = Call { algorithm, sequence: sequence as u64, ..ALL_REDUCE };
            let expected: Vec<i64> = (0..1000)
                .map(|at| (0..i64::from(ranks)).map(|rank| at + 1000 * rank).sum())
                .collect();
            for (outcome, received) in run(&engines, &same(call, ranks as usize)) {
                outcome.unwrap_or_else(|error| panic!("{algorithm} on {ranks}: {error}"));
                assert_eq!(received, expected, "{algorithm} on {ranks}");
            }
        }
        assert_eq!(engines[0].counters().operations(), 4);
        assert!(engines[0].counters().peer(1).expect("peer 1").bytes_sent > 0);
    }
}

/// B001: an AVG is not a SUM, whatever carries it.
#[test]
fn b001_avg_is_divided_once_by_the_engine() {
    for algorithm in [Algorithm::Direct, Algorithm::Owner] {
        let (engines, _hub) = engines(3, Duration::from_secs(10));
        let call = Call { algorithm, op: RedOp::Avg, ..ALL_REDUCE };
        let expected: Vec<i64> = (0..1000).map(|at| at + 1000).collect();
        for (outcome, received) in run(&engines, &same(call, 3)) {
            outcome.unwrap_or_else(|error| panic!("{algorithm}: {error}"));
            assert_eq!(received, expected, "{algorithm}");
        }
    }
}

#[test]
fn operations_that_nobody_waits_for_go_on_and_may_be_awaited_in_reverse() {
    let (engines, _hub) = engines(2, Duration::from_secs(10));
    let mut buffers: Vec<Vec<(Vec<i64>, Vec<i64>)>> = (0..2_i64)
        .map(|rank| {
            let sent = |at: i64| vec![at + rank; 1000];
            (0..16).map(|at| (sent(at), vec![0; 1000])).collect()
        })
        .collect();
    let mut operations = Vec::new();
    for (rank, buffers) in buffers.iter_mut().enumerate() {
        for (sequence, (send, receive)) in buffers.iter_mut().enumerate() {
            let call = Call { sequence: sequence as u64, ..ALL_REDUCE };
            let operation = submit(&engines[rank], rank as u32, 2, &call, send, receive);
            operations.push((rank, operation.expect("accepted")));
        }
    }
    for (rank, operation) in operations.iter().rev() {
        let deadline = Instant::now() + Duration::from_secs(20);
        engines[*rank].wait(operation, Some(deadline)).expect("done");
    }
    for buffers in &buffers {
        for (at, (_, received)) in buffers.iter().enumerate() {
            assert!(received.iter().all(|value| *value == 2 * at as i64 + 1));
        }
    }
}

#[test]
fn an_operation_waits_for_its_stream() {
    let (engines, _hub) = engines(1, Duration::from_secs(10));
    let call = Call { algorithm: Algorithm::Local, ready: false, count: 8, ..ALL_REDUCE };
    let send = vec![5; 8];
    let mut receive = vec![0; 8];
    let operation = submit(&engines[0], 0, 1, &call, &send, &mut receive).expect("accepted");
    let soon = Instant::now() + Duration::from_millis(50);
    let error = engines[0].wait(&operation, Some(soon)).expect_err("not reached yet");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(!operation.is_over());
    engines[0].set_ready(&operation);
    engines[0].wait(&operation, Some(Instant::now() + Duration::from_secs(20))).expect("done");
    assert_eq!(receive, send);
}

/// B014, B015, B016: whichever field differs, every rank that can see it names both sides.
#[test]
fn different_calls_are_refused_and_both_sides_named() {
    let differing = [
        ("count", Call { count: 999, ..ALL_REDUCE }),
        ("op", Call { op: RedOp::Max, ..ALL_REDUCE }),
        ("sequence", Call { sequence: 1, ..ALL_REDUCE }),
        (
            "collective",
            Call { collective: Collective::Broadcast, algorithm: Algorithm::Flat, ..ALL_REDUCE },
        ),
        ("algorithm", Call { algorithm: Algorithm::Ring, ..ALL_REDUCE }),
    ];
    for (field, other) in differing {
        for first in [true, false] {
            let (engines, _hub) = engines(2, Duration::from_secs(10));
            let short = Duration::from_secs(3);
            let usual = Call { timeout: short, ..ALL_REDUCE };
            let other = Call { timeout: short, ..other };
            let calls = if first { [usual, other] } else { [other, usual] };
            let outcomes = run(&engines, &calls);
            for (outcome, received) in &outcomes {
                let error = outcome.as_ref().expect_err("the calls differ");
                assert!(
                    matches!(error.kind(), ErrorKind::Mismatch | ErrorKind::Timeout),
                    "{error}"
                );
                assert!(received.iter().all(|value| *value == -1), "{field}: a buffer was written");
            }
            let told: Vec<_> = outcomes
                .iter()
                .filter_map(|(outcome, _)| outcome.as_ref().err())
                .filter(|error| error.kind() == ErrorKind::Mismatch)
                .collect();
            assert!(!told.is_empty(), "{field}: nobody saw the mismatch");
            for error in told {
                assert!(error.to_string().contains(&format!("field={field}")), "{error}");
                assert!(error.message().contains("rank 0") && error.message().contains("rank 1"));
            }
        }
    }
}

#[test]
fn b099_a_timeout_names_the_rank_that_is_missing() {
    let (engines, _hub) = engines(3, Duration::from_millis(50));
    let send = vec![1; 1000];
    let mut receive = vec![0; 1000];
    let call = Call { timeout: Duration::from_millis(300), ..ALL_REDUCE };
    let operation = submit(&engines[0], 0, 3, &call, &send, &mut receive).expect("accepted");
    let error = engines[0].wait(&operation, None).expect_err("nobody else came");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("rank 1 (not seen yet), rank 2 (not seen yet)"), "{error}");
    let again = submit(&engines[0], 0, 3, &call, &send, &mut receive).expect_err("it has failed");
    assert_eq!(again.kind(), ErrorKind::Timeout);
}

#[test]
fn b046_an_unmatched_send_is_called_so() {
    let (engines, _hub) = engines(2, Duration::from_secs(10));
    let call = Call {
        collective: Collective::Send,
        algorithm: Algorithm::PointToPoint,
        root: 1,
        timeout: Duration::from_millis(200),
        ..ALL_REDUCE
    };
    let send = vec![1; 1000];
    let operation = submit(&engines[0], 0, 2, &call, &send, &mut []).expect("accepted");
    let error = engines[0].wait(&operation, None).expect_err("nobody receives");
    assert!(error.message().contains("unmatched send to rank 1"), "{error}");
    assert_eq!(error.rank(), Some(1));
}

#[test]
fn a_lost_peer_is_named_unless_the_control_plane_knows_better() {
    for told in [false, true] {
        let (engines, hub) = engines(2, Duration::from_secs(10));
        let send = vec![1; 1000];
        let mut receive = vec![0; 1000];
        let operation =
            submit(&engines[0], 0, 2, &ALL_REDUCE, &send, &mut receive).expect("accepted");
        {
            let mut hub = hub.lock().expect("hub");
            hub.gone.push(1);
            hub.signal(0);
        }
        if told {
            let culprit = Error::new(ErrorKind::PeerLost, "rank 7 is gone").with_rank(7);
            assert!(engines[0].fail(culprit));
        }
        let error = engines[0].wait(&operation, None).expect_err("the peer is gone");
        assert_eq!(error.kind(), ErrorKind::PeerLost);
        assert_eq!(error.rank(), Some(if told { 7 } else { 1 }), "{error}");
    }
}

#[test]
fn b050_failing_wakes_a_waiter_at_once() {
    let (engines, _hub) = engines(2, Duration::from_secs(10));
    let send = vec![1; 1000];
    let mut receive = vec![0; 1000];
    let operation = submit(&engines[0], 0, 2, &ALL_REDUCE, &send, &mut receive).expect("accepted");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| engines[0].wait(&operation, None));
        std::thread::sleep(Duration::from_millis(100));
        let started = Instant::now();
        engines[0].fail(Error::new(ErrorKind::Aborted, "aborted by the application"));
        assert!(started.elapsed() < Duration::from_secs(1));
        let error = waiter.join().expect("a waiter").expect_err("aborted");
        assert_eq!(error.kind(), ErrorKind::Aborted);
    });
}

#[test]
fn memory_that_a_restless_transport_may_write_to_is_never_freed() {
    for restless in [false, true] {
        let (engines, hub) = engines(2, Duration::from_secs(10));
        hub.lock().expect("hub").restless = restless;
        let send = vec![1; 1000];
        let mut receive = vec![0; 1000];
        let memory: Arc<dyn Any + Send + Sync> = Arc::new(());
        let keep = smallvec![Arc::clone(&memory)];
        let operation = submit_keeping(&engines[0], (0, 2), &ALL_REDUCE, &send, &mut receive, keep);
        let operation = operation.expect("accepted");
        engines[0].wait(&operation, Some(Instant::now())).expect_err("the peer does not come");
        // Started, so that its messages are posted.
        while engines[0].counters().peer(1).is_none_or(|counts| counts.messages_sent == 0) {
            std::thread::yield_now();
        }
        engines[0].fail(Error::new(ErrorKind::Aborted, "aborted"));
        engines[0].wait(&operation, None).expect_err("aborted");
        assert_eq!(Arc::strong_count(&memory), if restless { 2 } else { 1 });
        // The hub may hold addresses of these; nothing is freed before it.
        drop((engines, hub));
    }
}

/// Nanoseconds that the engine thread of this (otherwise unused) rank ran.
fn thread_time(rank: u32) -> u64 {
    let name = format!("iccl-engine-{rank}\n");
    let find = || {
        std::fs::read_dir("/proc/self/task")
            .expect("tasks")
            .filter_map(std::result::Result::ok)
            .map(|task| task.path())
            .find(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm == name))
    };
    // It takes its name when it begins to run.
    let until = Instant::now() + Duration::from_secs(60);
    let task = loop {
        match find() {
            Some(task) => break task,
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            None => panic!("there is no thread {name}"),
        }
    };
    let statistics = std::fs::read_to_string(task.join("schedstat")).expect("statistics");
    statistics.split(' ').next().and_then(|time| time.parse().ok()).expect("a time")
}

#[test]
fn b095_an_idle_engine_uses_no_processor_time() {
    const RANK: u32 = 91;
    let hub = Arc::new(Mutex::new(Hub::default()));
    let _engine = engine(RANK, RANK + 1, Duration::from_secs(10), &hub);
    std::thread::sleep(Duration::from_millis(100));
    let before = thread_time(RANK);
    std::thread::sleep(Duration::from_millis(500));
    let used = thread_time(RANK) - before;
    assert!(used < 25_000_000, "{used} ns of processor time in 500 ms of idleness");
}
