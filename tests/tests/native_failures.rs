//! What a maker's library does wrong while communicators use it, on the simulated libraries of all makers. Each
//! test has cards of its own: a library that did not come to rest is given up on them for good.

use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use iccl_plugin_api::{Collective, DataType, RedOp};
use iccl_runtime::comm::Communicator;
use iccl_runtime::schedule::Algorithm;
use iccl_runtime::{Error, ErrorKind};
use iccl_tests::maker::{Machine, Maker};
use iccl_tests::ranks::{Job, SOON, must_be_right, sum, wait_until};

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

/// So long that the library is the fastest way.
const LONG: usize = 300_000;
const CARDS: usize = 10;

/// A maker, and what its library is like when it fails.
struct Failing {
    maker: Maker,
    all_reduce: &'static str,
    /// A status of that call that is an error, and its name in messages.
    refusal: (i32, &'static str),
    /// The call that tells errors which the library met by itself, if there is one.
    async_error: Option<&'static str>,
}

const fn maker(name: &'static str, owner: &'static str) -> Maker {
    Maker { name, owner, cards: CARDS, variant: None, settings: &[], simulated: &[] }
}

const NVIDIA: Failing = Failing {
    maker: maker("nvidia", "libcuda.so.1"),
    all_reduce: "ncclAllReduce",
    refusal: (2, "ncclAllReduce"),
    async_error: Some("ncclCommGetAsyncError"),
};
const ASCEND: Failing = Failing {
    maker: maker("ascend", "libascendcl.so"),
    all_reduce: "HcclAllReduce",
    refusal: (4, "HcclAllReduce"),
    async_error: Some("HcclGetCommAsyncError"),
};
const CAMBRICON: Failing = Failing {
    maker: maker("cambricon", "libcndrv.so"),
    all_reduce: "cnclAllReduce",
    refusal: (5, "cnclAllReduce"),
    async_error: Some("cnclGetCommAsyncError"),
};
const KUNLUN: Failing = Failing {
    maker: maker("kunlun", "libxpurt.so.1"),
    all_reduce: "bkcl_all_reduce",
    refusal: (4, "bkcl_all_reduce"),
    async_error: None,
};

/// How a long sum ends that must not come to anything.
fn failed_sum(communicator: &Communicator) -> Error {
    sum(communicator, 1, LONG).map(|_| "sums").expect_err("something is broken")
}

/// A long sum is right.
fn must_sum(communicator: &Communicator) {
    let sums = sum(communicator, communicator.rank() as i32 + 1, LONG).expect("sums");
    assert!(sums.iter().all(|sum| *sum == 3), "{:?}", &sums[..8]);
}

/// Two ranks on two cards, with the plugin loaded and tested before anything goes wrong.
fn on_cards(machine: &Machine, first: u32, op_timeout: &str) -> Job {
    let job = machine.job(Job::new(2)).with("engine.op_timeout", op_timeout);
    let job = (0..2).fold(job, |job, rank| {
        job.with_on(rank, "bootstrap.local_rank", &(first + rank).to_string())
    });
    (0..2).for_each(|rank| drop(job.runtime(rank).expect("a runtime")));
    job
}

/// Both ranks are right by the library, then something is broken, then they call again.
fn broken(
    machine: &Machine,
    job: &Job,
    faults: &str,
    call: impl Fn(&Communicator) -> Error + Sync,
) -> Vec<Error> {
    let meeting = Barrier::new(2);
    let errors = job.run(|communicator| {
        must_sum(communicator);
        assert_eq!(communicator.counters().native_calls(), 1);
        if meeting.wait().is_leader() {
            machine.simulate("faults", faults);
        }
        meeting.wait();
        call(communicator)
    });
    machine.simulate("faults", "");
    errors
}

/// The next communicator on the same cards is right without the library, and says why.
fn must_do_without(job: &Job) {
    job.run(|communicator| {
        must_be_right(communicator);
        must_sum(communicator);
        assert_eq!(communicator.counters().native_calls(), 0);
        let plan = communicator.plan();
        let why = plan.islands()[0].why_unused().expect("a reason");
        assert!(why.contains("did not come to rest on this device"), "{why}");
        assert!(plan.warnings().iter().any(|warning| warning.contains(&why)), "{why}");
        assert!(plan.report().to_string().contains(&why), "{why}");
    });
}

/// One rank's call never returns: all hear in time who it is, and the card's library is not used again.
fn a_call_that_hangs_is_told_by_all_and_the_library_is_given_up(of: &Failing) {
    let machine = Machine::new(&of.maker);
    let job = on_cards(&machine, 2, "2s");
    let begun = Instant::now();
    let fault = format!("{}@1=hang", of.all_reduce);
    let errors = broken(&machine, &job, &fault, |communicator| {
        let error = failed_sum(communicator);
        let library = &communicator.plan().islands()[0].library;
        assert!(error.message().contains(library), "{error}");
        assert!(communicator.async_error().is_some());
        error
    });
    assert!(begun.elapsed() < 2 * SOON, "{:?}", begun.elapsed());
    for error in &errors {
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        // Some libraries let no other call in either: then both calls have not returned.
        let culprit = error.rank().expect("a culprit") as usize;
        let told = errors[culprit].message();
        assert!(told.contains("has not returned from all_reduce"), "{errors:?}");
    }
    must_do_without(&job);
}

/// Whoever aborts does not wait for a library that does not.
fn an_abort_does_not_wait_for_a_call_that_hangs(of: &Failing) {
    let machine = Machine::new(&of.maker);
    let job = on_cards(&machine, 4, "60s");
    let fault = format!("{}@*=hang", of.all_reduce);
    let errors = broken(&machine, &job, &fault, |communicator| {
        let device = communicator.device();
        let buffer = device.allocate::<i32>(LONG).expect("a buffer");
        let (dtype, stream) = (DataType::I32, communicator.stream());
        let call =
            || communicator.all_reduce(&buffer, &buffer, LONG as u64, dtype, RedOp::Sum, stream);
        std::thread::scope(|scope| {
            // Where streams cannot wait, this waits for the operation.
            let calling = scope.spawn(|| call().and_then(|handle| handle.wait()));
            wait_until("the library is called", || communicator.counters().native_calls() == 2);
            // It is inside.
            std::thread::sleep(Duration::from_millis(50));
            let begun = Instant::now();
            communicator.abort();
            let took = begun.elapsed();
            println!("{}: an abort took {took:?}", of.maker.name);
            // Half a second for the library, and as much as a loaded machine needs.
            assert!(took < Duration::from_secs(10), "{took:?}");
            calling.join().expect("no panic").expect_err("aborted")
        })
    });
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
    }
    must_do_without(&job);
}

/// One rank's call is refused: all hear which rank's, and in the library's words.
fn a_call_that_fails_is_told_by_all(of: &Failing) {
    let machine = Machine::new(&of.maker);
    let job = on_cards(&machine, 6, "60s");
    let (status, words) = of.refusal;
    let fault = format!("{}@1={status}", of.all_reduce);
    let begun = Instant::now();
    let errors = broken(&machine, &job, &fault, failed_sum);
    assert!(begun.elapsed() < 2 * SOON, "{:?}", begun.elapsed());
    let culprit = errors[0].rank().expect("a culprit");
    for error in &errors {
        assert_eq!(error.rank(), Some(culprit), "{errors:?}");
        assert!(error.to_string().contains(words), "{error}");
    }
    // Whether the library is used again depends on whether it could be stopped; right they are.
    job.run(must_be_right);
}

/// What a library meets by itself ends the communicator, though nobody calls.
fn an_error_that_the_library_met_by_itself_is_told(of: &Failing) {
    let Some(symbol) = of.async_error else { return };
    let machine = Machine::new(&of.maker);
    let job = on_cards(&machine, 8, "60s");
    let errors = broken(&machine, &job, &format!("{symbol}@*={}", of.refusal.0), |communicator| {
        wait_until("it is told", || communicator.async_error().is_some());
        communicator.async_error().expect("an error")
    });
    for error in errors {
        assert!(error.to_string().contains("collectives.async_error"), "{error}");
        assert!(error.rank().is_some(), "{error}");
    }
}

/// Runs a test in a process of its own: a call that hangs may keep all others of its library out.
fn alone(test: &str, body: impl FnOnce()) {
    const INSIDE: &str = "ICCL_TEST_ALONE";
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let program = std::env::current_exe().expect("a test has a path");
    let mut command = Command::new(program);
    iccl_tests::run(command.args(["--exact", test, "--nocapture"]).env(INSIDE, "1"));
}

macro_rules! of_every_maker {
    ($($name:ident: $of:expr;)*) => { $(
        mod $name {
            use super::*;

            #[test]
            fn a_call_that_hangs_is_told_by_all_and_the_library_is_given_up() {
                const NAME: &str = concat!(
                    stringify!($name),
                    "::a_call_that_hangs_is_told_by_all_and_the_library_is_given_up"
                );
                alone(NAME, || {
                    super::a_call_that_hangs_is_told_by_all_and_the_library_is_given_up(&$of);
                });
            }

            #[test]
            fn an_abort_does_not_wait_for_a_call_that_hangs() {
                const NAME: &str =
                    concat!(stringify!($name), "::an_abort_does_not_wait_for_a_call_that_hangs");
                alone(NAME, || super::an_abort_does_not_wait_for_a_call_that_hangs(&$of));
            }

            #[test]
            fn a_call_that_fails_is_told_by_all() {
                super::a_call_that_fails_is_told_by_all(&$of);
            }

            #[test]
            fn an_error_that_the_library_met_by_itself_is_told() {
                super::an_error_that_the_library_met_by_itself_is_told(&$of);
            }
        }
    )* };
}

of_every_maker! {
    nvidia: NVIDIA;
    ascend: ASCEND;
    cambricon: CAMBRICON;
    kunlun: KUNLUN;
}

/// A library that sums where it is asked for the mean is found out before it counts, and says so; the mean is
/// right.
#[test]
fn a_sum_for_a_mean_is_found_out() {
    // A plugin is tested when a process first loads it.
    alone("a_sum_for_a_mean_is_found_out", || {
        let simulated = &[("faults", "ncclAllReduce@*=sum-for-avg")];
        let machine = Machine::new(&Maker { simulated, ..NVIDIA.maker });
        on_cards(&machine, 0, "60s").run(|communicator| {
            let device = communicator.device();
            let value = 2.0 * (communicator.rank() + 1) as f32;
            let send = device.buffer_from(&vec![value; LONG]).expect("a buffer");
            let receive = device.allocate::<f32>(LONG).expect("a buffer");
            let (count, dtype, stream) = (LONG as u64, DataType::F32, communicator.stream());
            for (op, expected) in [(RedOp::Avg, 3.0_f32), (RedOp::Sum, 6.0)] {
                let handle = communicator.all_reduce(&send, &receive, count, dtype, op, stream);
                handle.and_then(|handle| handle.wait()).expect("it goes well");
                let found = receive.read::<f32>().expect("a result");
                let is_exact = found.iter().all(|found| found.to_bits() == expected.to_bits());
                assert!(is_exact, "{op}: {:?}", &found[..4]);
            }
            // Its sums are as good as ever.
            let choice = |op| {
                let choice = communicator.explain(Collective::AllReduce, dtype, op, count);
                choice.expect("an algorithm")
            };
            assert_eq!(choice(RedOp::Sum).algorithm, Algorithm::Native);
            let reason = choice(RedOp::Avg).reason;
            assert!(reason.contains("does not offer"), "{reason}");
        });
        let records = machine.set.records();
        let plugin = records.iter().find(|one| one.name.as_deref() == Some("nvidia"));
        let told = format!("{:?}", plugin.expect("a record").self_test);
        assert!(told.contains("all_reduce f32 avg (its result differs from the host's)"), "{told}");
    });
}

/// Between cards and host memory, in the middle of an operation: the last of its native calls never returns.
#[test]
fn a_call_that_hangs_in_the_middle_is_told_across_islands() {
    alone("a_call_that_hangs_in_the_middle_is_told_across_islands", || {
        let machine = Machine::new(&NVIDIA.maker);
        let job = machine
            .job(Job::new(3))
            .with("engine.op_timeout", "2s")
            .with("algorithm.all_reduce", "islands")
            .with_on(2, "device.backend", "host");
        (0..3).for_each(|rank| drop(job.runtime(rank).expect("a runtime")));
        let meeting = Barrier::new(3);
        let errors = job.run(|communicator| {
            must_be_right(communicator);
            if meeting.wait().is_leader() {
                machine.simulate("faults", "ncclAllGather@1=hang");
            }
            meeting.wait();
            // The rank on no island may be done, rightly, before the others' last call.
            let first = sum(communicator, communicator.rank() as i32 + 1, LONG);
            assert!(first.is_err() || communicator.rank() == 2, "it hangs");
            first.map_or_else(|error| error, |_| failed_sum(communicator))
        });
        let culprit = errors[0].rank().expect("a culprit");
        for error in &errors {
            let told = (error.kind(), error.rank());
            assert_eq!(told, (ErrorKind::Timeout, Some(culprit)), "{errors:?}");
        }
        let told = errors[culprit as usize].message();
        assert!(told.contains("has not returned from all_gather"), "{errors:?}");
    });
}
