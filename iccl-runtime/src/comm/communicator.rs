//! Communicators: the ranks that compute together, and what they do.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use iccl_plugin_api::{Collective, DataType, RedOp};
use sha2::{Digest, Sha256};

use super::algorithms::Algorithms;
use super::buffer::Buffer;
use super::call::{Call, Operand, Operands};
use super::choices::Choices;
use super::control::Control;
use super::device::Device;
use super::group::{self, Checked};
use super::handle::Handle;
use super::order::Order;
use super::own_messages;
use super::split::Family;
use super::stream::Stream;
use crate::engine::counters::Counters;
use crate::engine::envelope::{Fingerprint, Lane, Purpose};
use crate::engine::{Engine, Keep, OperationRequest, Program};
use crate::lock::lock;
use crate::plan::Plan;
use crate::schedule::Request;
use crate::{Error, ErrorKind, Result};

/// Compiled calls kept for repetition; when there are more, all are forgotten.
const KEPT_PROGRAMS: usize = 512;

/// The ranks that compute together, as one of them sees it.
///
/// All ranks make the same calls in the same order; a difference is an error on every rank before a
/// byte of a user's receive buffer is written. The first error ends the communicator on every rank;
/// operations under way end with it too, even if they are over on other ranks. Calls return at once; the
/// operation takes place in the order of its stream.
///
/// Buffers: the send buffer and the receive buffer may be one memory (in place): the same, or, where
/// one of them has a block for each rank, the other is this rank's block of it. They must not overlap
/// otherwise. A buffer that a rank does not use, or uses no byte of, may be anything, null and `None`
/// included. A count of 0 is allowed and takes part like any other. `docs/numerics.md` has the rules in
/// one place.
///
/// # Threads
///
/// Everything here may be called from several threads at once; none waits for another longer than it takes
/// to enqueue a call.
///
/// * Each call is numbered and enqueued as a whole, and so is a [`Group`](super::Group): whatever threads do
///   at once, it is as if one had made all calls in some order, and data of different calls never meet.
/// * Ranks match collectives by their order. Threads that make different ones on one communicator must agree
///   on an order, the same on all ranks; a difference is `Mismatch` on every rank. Calls that are
///   alike may be made in any order, and then it is left open which thread's here meets which there.
///   Messages are matched by peer and direction, so a thread for each peer needs no agreement.
/// * Communicators progress independently, whatever other communicators wait for. Operations that all
///   ranks have begun and that call makers' libraries take turns on each card, in an order that is the
///   same on all. Else only a stream orders operations of several: where ranks put those of two communicators on one stream in different
///   order, they wait for each other until one runs out of time, unless they are in one group.
/// * A group belongs to the thread that started it; calls of other threads are not part of it.
/// * A handle or a stream may be waited for by any number of threads.
/// * [`Communicator::abort`] may be called at any moment from any thread. It needs no other rank, and every
///   thread that waits for an operation of the communicator is woken with `Aborted`, at once. Whoever is
///   still in a call of [`Runtime::begin_communicator`] is woken by [`Pending::abort`].
/// * [`Communicator::finalize`] and dropping wait for what is under way. Communicators may be ended in any
///   order, here and elsewhere, before or after their streams, buffers, handles and runtime. A process may
///   exit without ending them; the other ranks take it for lost.
///
/// [`Runtime::begin_communicator`]: super::Runtime::begin_communicator
/// [`Pending::abort`]: super::Pending::abort
pub struct Communicator {
    rank: u32,
    ranks: u32,
    id: u64,
    device: Device,
    stream: Stream,
    pub(super) engine: Arc<Engine>,
    plan: Arc<Plan>,
    algorithms: Algorithms,
    chunk_bytes: u64,
    /// What every fingerprint carries of arguments that are no part of a call.
    arguments_digest: u64,
    op_timeout: Duration,
    order: Arc<Order>,
    /// What was compiled.
    programs: Mutex<Programs>,
    finalized: AtomicBool,
    pub(super) control: Control,
    pub(super) family: Family,
}

/// What was compiled, by what was asked for.
#[derive(Default)]
struct Programs {
    all: HashMap<Request, Arc<Program>>,
    /// The last one: most calls are like the one before.
    last: Option<(Request, Arc<Program>)>,
}

impl Programs {
    fn find(&mut self, request: &Request) -> Option<Arc<Program>> {
        if let Some((_, program)) = self.last.as_ref().filter(|(last, _)| last == request) {
            return Some(Arc::clone(program));
        }
        let program = Arc::clone(self.all.get(request)?);
        self.last = Some((request.clone(), Arc::clone(&program)));
        Some(program)
    }

    fn keep(&mut self, request: Request, program: &Arc<Program>) {
        if self.all.len() >= KEPT_PROGRAMS {
            self.all.clear();
        }
        self.all.insert(request, Arc::clone(program));
    }
}

/// What a communicator is made of.
pub(super) struct CommunicatorParts {
    pub(super) rank: u32,
    pub(super) ranks: u32,
    pub(super) id: u64,
    pub(super) device: Device,
    pub(super) engine: Arc<Engine>,
    pub(super) plan: Arc<Plan>,
    pub(super) algorithms: Algorithms,
    pub(super) chunk_bytes: u64,
    pub(super) op_timeout: Duration,
    pub(super) control: Control,
    pub(super) family: Family,
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator(rank {} of {}, {:016x})", self.rank, self.ranks, self.id)
    }
}

impl Communicator {
    pub(super) fn new(parts: CommunicatorParts) -> Result<Self> {
        let stream = parts.device.stream()?;
        let order = Arc::new(Order::new(parts.rank, Arc::clone(&parts.engine)));
        Ok(Self {
            rank: parts.rank,
            ranks: parts.ranks,
            id: parts.id,
            device: parts.device,
            stream,
            engine: parts.engine,
            plan: parts.plan,
            algorithms: parts.algorithms,
            chunk_bytes: parts.chunk_bytes,
            arguments_digest: digest(&[parts.chunk_bytes, u64::from(parts.ranks)]),
            op_timeout: parts.op_timeout,
            order,
            programs: Mutex::default(),
            finalized: AtomicBool::new(false),
            control: parts.control,
            family: parts.family,
        })
    }

    /// This rank, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The device that this rank computes on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A stream that belongs to this communicator, for callers that need only one.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// How every link was decided, and why.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What was exchanged so far.
    pub fn counters(&self) -> &Counters {
        self.engine.counters()
    }

    /// Which algorithm carries a call, and why: the same on all ranks.
    ///
    /// # Errors
    /// `NotSupported` if none can, naming each and why.
    pub fn explain(
        &self,
        collective: Collective,
        dtype: DataType,
        op: RedOp,
        count: u64,
    ) -> Result<crate::schedule::Choice> {
        self.algorithms.choose(&self.request(collective, dtype, op, count, 0, false))
    }

    /// Which algorithms carry which calls, and who does what: the same on all ranks.
    pub fn choices(&self) -> Choices {
        Choices::new(self.algorithms.clone(), &self.plan, self.chunk_bytes)
    }

    /// The error that ended the communicator, if it has ended. Does not block.
    pub fn async_error(&self) -> Option<Error> {
        self.engine.failure()
    }

    /// Ends the communicator on every rank: operations that are not over end with `Aborted`, here
    /// before this returns. Does not wait for other ranks. A communicator that is being made out of this
    /// one is given up; those that stand are not concerned.
    pub fn abort(&self) {
        self.family.give_up();
        let error =
            Error::new(ErrorKind::Aborted, format!("rank {} aborted the communicator", self.rank))
                .with_rank(self.rank);
        if self.engine.failure().is_none() {
            self.control.tell(self.id, &error);
        }
        self.engine.fail(error);
    }

    /// Waits until every operation that was called on the communicator is over, at most
    /// `engine.op_timeout`.
    ///
    /// # Errors
    /// The error that ended the communicator; `Timeout` if there are operations left.
    pub fn drain(&self) -> Result<()> {
        self.engine.drain(Instant::now().checked_add(self.op_timeout))
    }

    /// Waits until every operation of the communicator is over, at most `engine.op_timeout`, and says
    /// goodbye to the other ranks, so that they do not take this rank for lost. Dropping the
    /// communicator does the same. Again, it does nothing.
    ///
    /// # Errors
    /// The error that ended the communicator; `Timeout` if operations were left over, which end with
    /// `Aborted`.
    pub fn finalize(&self) -> Result<()> {
        if self.finalized.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let outcome = self.drain();
        let failure = self.engine.failure();
        self.engine.close();
        self.control.leave(failure.as_ref());
        outcome
    }

    pub(super) fn is_finalized(&self) -> bool {
        self.finalized.load(Ordering::SeqCst)
    }

    /// Makes a call on buffers; what this rank does not use is not looked at.
    pub(super) fn call_on_buffers(
        &self,
        call: Call,
        send: Option<&Buffer>,
        receive: Option<&Buffer>,
        stream: &Stream,
    ) -> Result<Handle> {
        let operand = |buffer: Option<&Buffer>| {
            buffer
                .map_or(Ok(Operand::NONE), |buffer| Operand::buffer(buffer, &self.device))
                .map_err(|error| group::refuse(call.collective, error))
        };
        let operands = Operands {
            send: operand(send.filter(|_| call.uses_send(self.rank)))?,
            receive: operand(receive.filter(|_| call.uses_receive(self.rank)))?,
        };
        // SAFETY: operands made of buffers are kept alive by the operation.
        unsafe { self.call(call, operands, stream) }
    }

    /// Makes a call on memory that iccl does not own; what this rank does not use is not looked at.
    ///
    /// # Safety
    /// What this rank uses is memory of its device, as much as the call says, that stays valid and is
    /// used by nobody else in a conflicting way until the operation is over.
    pub(super) unsafe fn call_on_memory(
        &self,
        call: Call,
        send: *const c_void,
        receive: *mut c_void,
        stream: &Stream,
    ) -> Result<Handle> {
        let operand =
            |pointer, is_used| if is_used { Operand::raw(pointer) } else { Operand::NONE };
        let operands = Operands {
            send: operand(send.cast_mut(), call.uses_send(self.rank)),
            receive: operand(receive, call.uses_receive(self.rank)),
        };
        // SAFETY: the caller promises it.
        unsafe { self.call(call, operands, stream) }
    }

    fn request(
        &self,
        collective: Collective,
        dtype: DataType,
        op: RedOp,
        count: u64,
        root: u32,
        in_place: bool,
    ) -> Request {
        Request {
            collective,
            dtype,
            op,
            count,
            root,
            rank: self.rank,
            ranks: self.ranks,
            in_place,
            algorithm: Algorithms::placeholder(collective),
            chunk_bytes: self.chunk_bytes,
            counts: None,
            islands: None,
        }
    }

    /// Checks a call and enqueues it, now or with its group: the one way that every operation takes.
    ///
    /// # Safety
    /// Operands without something that keeps them are valid until the operation is over.
    unsafe fn call(&self, call: Call, operands: Operands, stream: &Stream) -> Result<Handle> {
        let collective = call.collective;
        let checked =
            self.check(call, operands, stream).map_err(|error| group::refuse(collective, error))?;
        // SAFETY: the operands are kept by the operation or by the caller's promise.
        unsafe { group::take(checked) }
    }

    /// Refuses what cannot be done; else says what is asked of the engine.
    fn check(&self, call: Call, operands: Operands, stream: &Stream) -> Result<Checked> {
        self.engine.check()?;
        stream.must_be_of(&self.device)?;
        let Call { collective, dtype, reduction, count, root, counts, purpose, turn } = call;
        let mut request = self.request(collective, dtype, reduction.op(), count, root, false);
        request.counts = counts.map(Arc::new);
        request.in_place = operands.are_in_place(&request);
        if request.vector_bytes().is_none() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{request}: those are more bytes than memory can have"),
            ));
        }
        let scalar = reduction.scalar(collective, dtype, &self.device)?;
        let program = self.program(&mut request)?;
        operands.check(&request, &program, &self.device)?;
        operands.check_scalar(&scalar, &program, &self.device)?;
        let Operands { send, receive } = operands;
        let (from, to) = (send.pointer.cast_const().cast(), receive.pointer.cast());
        self.engine.prepare_buffers(&program, from, to)?;
        let mut keep = Keep::new();
        for kept in [send.keep, receive.keep, scalar.keep].into_iter().flatten() {
            keep.push(kept);
        }
        let point_to_point = is_point_to_point(collective);
        Ok(Checked {
            order: Arc::clone(&self.order),
            collective,
            root,
            request: OperationRequest {
                fingerprint: self.fingerprint(&request, &program, purpose),
                program,
                lane: if point_to_point { Lane::PointToPoint } else { Lane::Collective },
                send: from,
                receive: to,
                scalar: scalar.pointer.cast_const().cast(),
                scalar_is_on_device: scalar.is_on_device,
                allocations: [send.allocation, receive.allocation],
                keep,
                timeout: self.timeout_of(purpose),
                ready: false,
                on_complete: None,
            },
            stream: stream.clone(),
            turn,
        })
    }

    /// The compiled call, from the cache if it was made before.
    fn program(&self, request: &mut Request) -> Result<Arc<Program>> {
        let Request { collective, dtype, count, root, rank, .. } = *request;
        if own_messages::is_one(rank, collective, root) {
            if group::group_depth() == 0 {
                return Err(own_messages::needs_a_group(collective, rank));
            }
            return own_messages::program(count, dtype, false).map(Arc::new);
        }
        let mut programs = lock(&self.programs);
        if let Some(program) = programs.find(request) {
            return Ok(program);
        }
        let key = request.clone();
        let (_, schedule) = self.algorithms.compile(request)?;
        let program = Arc::new(Program::new(schedule));
        self.engine.prepare(&program)?;
        programs.keep(key, &program);
        Ok(program)
    }

    /// What all ranks must have asked; the number comes later.
    fn fingerprint(&self, request: &Request, program: &Program, purpose: Purpose) -> Fingerprint {
        let (collective, root) = match request.collective {
            Collective::Send => (Collective::Send, request.root),
            Collective::Recv => (Collective::Send, self.rank),
            other => (other, request.root),
        };
        Fingerprint {
            sequence: 0,
            collective,
            dtype: request.dtype,
            op: request.op,
            algorithm: program.schedule().algorithm,
            root,
            count: request.count,
            digest: match request.counts {
                None => self.arguments_digest,
                Some(_) => digest_of(request),
            },
            purpose,
        }
    }

    fn timeout_of(&self, purpose: Purpose) -> Duration {
        match purpose {
            Purpose::Application => self.op_timeout,
            Purpose::Split | Purpose::Duplicate => self.op_timeout.min(self.family.patience()),
        }
    }

    /// Waits until nothing is under way on the communicator's own stream, at most `timeout`.
    ///
    /// # Errors
    /// How the first operation that failed ended; `Timeout`.
    pub fn flush(&self, timeout: Duration) -> Result<()> {
        self.stream.synchronize_for(timeout)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // A failure before now is known from `async_error` and from every handle.
        let failed_before = self.engine.check().is_err();
        if let Err(error) = self.finalize()
            && !failed_before
        {
            tracing::warn!(rank = self.rank, %error, "an operation failed");
        }
    }
}

fn is_point_to_point(collective: Collective) -> bool {
    matches!(collective, Collective::Send | Collective::Recv)
}

/// What all ranks must have given alike beyond what the fingerprint has fields for.
fn digest_of(request: &Request) -> u64 {
    let mut numbers = vec![request.chunk_bytes, u64::from(request.ranks)];
    numbers.extend(request.agreed_counts());
    digest(&numbers)
}

/// A digest of numbers.
fn digest(numbers: &[u64]) -> u64 {
    let mut hash = Sha256::new();
    for number in numbers {
        hash.update(number.to_le_bytes());
    }
    let bytes = hash.finalize();
    u64::from_le_bytes(std::array::from_fn(|at| bytes[at]))
}
