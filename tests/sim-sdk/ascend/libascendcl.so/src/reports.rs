//! Functions of the host's on a thread of the program's, which is subscribed to a stream and asks for
//! what there is to call.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use iccl_sim_ascend::{
    PARAM_INVALID, REPORT_TIMEOUT, STREAM_NO_CB_REG, STREAM_SUBSCRIBE, Status, THREAD_SUBSCRIBE,
    stream,
};
use iccl_sim_core::{Machine, User, entry};

use super::{call, machine};

type Function = unsafe extern "C" fn(*mut c_void);

/// Something to call, and whether it was.
struct Report {
    function: Function,
    user: User,
    is_done: Arc<(Mutex<bool>, Condvar)>,
}

/// Which thread is subscribed to which stream, and what waits for it.
#[derive(Default)]
struct Subscriptions {
    threads: BTreeMap<u64, u64>,
    waiting: BTreeMap<u64, VecDeque<Report>>,
}

static ALL: Mutex<Option<Subscriptions>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();

fn all() -> MutexGuard<'static, Option<Subscriptions>> {
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.get_or_insert_default();
    all
}

fn with_all<T>(look: impl FnOnce(&mut Subscriptions) -> T) -> T {
    look(all().get_or_insert_default())
}

fn this_thread() -> u64 {
    // SAFETY: no arguments.
    unsafe { libc::pthread_self() as u64 }
}

/// Whether a thread is subscribed to a stream.
pub(crate) fn is_subscribed(stream: u64) -> bool {
    with_all(|all| all.threads.contains_key(&stream))
}

/// A stream is gone.
pub(crate) fn forget(stream: u64) {
    with_all(|all| all.threads.remove(&stream));
}

#[unsafe(no_mangle)]
extern "C" fn aclrtSubscribeReport(thread: u64, handle: *mut c_void) -> Status {
    call("aclrtSubscribeReport", |machine| {
        stream(machine, handle)?;
        with_all(|all| {
            if all.threads.contains_key(&(handle as u64)) {
                return Err(STREAM_SUBSCRIBE);
            }
            all.threads.insert(handle as u64, thread);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn aclrtUnSubscribeReport(thread: u64, handle: *mut c_void) -> Status {
    call("aclrtUnSubscribeReport", |_| {
        with_all(|all| match all.threads.get(&(handle as u64)) {
            Some(known) if *known == thread => {
                all.threads.remove(&(handle as u64));
                Ok(())
            }
            _ => Err(THREAD_SUBSCRIBE),
        })
    })
}

/// What comes later on the stream waits for the function (1), or does not (0).
#[unsafe(no_mangle)]
extern "C" fn aclrtLaunchCallback(
    function: Option<Function>,
    user: *mut c_void,
    block_type: i32,
    handle: *mut c_void,
) -> Status {
    call("aclrtLaunchCallback", |machine| {
        let function = function.ok_or(PARAM_INVALID)?;
        if !(0..=1).contains(&block_type) {
            return Err(PARAM_INVALID);
        }
        let stream = stream(machine, handle)?;
        let thread = with_all(|all| all.threads.get(&(handle as u64)).copied());
        let thread = thread.ok_or(STREAM_NO_CB_REG)?;
        let user = User::new(user);
        let place = move || {
            let is_done = Arc::new((Mutex::new(false), Condvar::new()));
            let report = Report { function, user, is_done: Arc::clone(&is_done) };
            with_all(|all| all.waiting.entry(thread).or_default().push_back(report));
            CHANGED.notify_all();
            if block_type == 1 {
                let mut done = is_done.0.lock().unwrap_or_else(PoisonError::into_inner);
                while !*done {
                    done = is_done.1.wait(done).unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        machine.enqueue(&stream, Box::new(place));
        Ok(())
    })
}

/// The next report of this thread, within a time.
fn next(timeout: Option<Duration>) -> Result<Report, Status> {
    let thread = this_thread();
    let mut guard = all();
    let begin = std::time::Instant::now();
    loop {
        let all = guard.get_or_insert_default();
        if let Some(report) = all.waiting.get_mut(&thread).and_then(VecDeque::pop_front) {
            return Ok(report);
        }
        if !all.threads.values().any(|one| *one == thread) {
            return Err(THREAD_SUBSCRIBE);
        }
        let left = timeout
            .map_or(Duration::from_secs(1), |timeout| timeout.saturating_sub(begin.elapsed()));
        if left.is_zero() {
            return Err(REPORT_TIMEOUT);
        }
        guard = CHANGED.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn run(machine: &'static Machine, report: &Report) {
    machine.on_thread(|state| state.in_callback.set(true));
    // SAFETY: the caller's function with the caller's argument, called once.
    unsafe { (report.function)(report.user.pointer()) };
    machine.on_thread(|state| state.in_callback.set(false));
    *report.is_done.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
    report.is_done.1.notify_all();
}

/// -1 waits for ever, 0 is refused.
#[unsafe(no_mangle)]
extern "C" fn aclrtProcessReport(timeout_ms: i32) -> Status {
    let outcome = || {
        if let Err(code) = entry::enter(machine(), "aclrtProcessReport") {
            return if code == 0 { Ok(()) } else { Err(code) };
        }
        let timeout = match timeout_ms {
            -1 => None,
            1.. => Some(Duration::from_millis(timeout_ms as u64)),
            _ => return Err(PARAM_INVALID),
        };
        run(machine(), &next(timeout)?);
        Ok(())
    };
    super::tell("aclrtProcessReport", outcome().err().unwrap_or(0))
}
