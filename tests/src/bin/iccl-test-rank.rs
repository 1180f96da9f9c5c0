//! One rank of a whole-system test, as a process. The first argument names what it does; it prints a
//! word and what belongs to it per line.

use std::io::Write as _;
use std::time::{Duration, Instant};

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::comm::{Buffer, Communicator, Group, Handle, Runtime};
use iccl_runtime::{Error, ErrorKind, Result};
use iccl_tests::children::{self, Anchor};
use iccl_tests::processes::{Holdings, processor_time};

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

fn main() {
    let filter = tracing_subscriber::EnvFilter::new("warn");
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let outcome = match words[..] {
        ["loop"] => run_until_it_fails(),
        ["rounds", rounds, count] => rounds_of(number(rounds), number(count) as usize),
        ["wait"] => wait_for_one(),
        ["skip", which] => skip_one(number(which)),
        ["leave", how] => leave(how),
        ["abort"] => abort_after_a_while(),
        ["strangers"] => among_strangers(),
        ["abort-beside-a-stopped-rank"] => abort_beside_a_stopped_rank(),
        ["idle", milliseconds] => idle(Duration::from_millis(number(milliseconds))),
        ["fork"] => fork(),
        ["communicators", times] => communicators(number(times)),
        ["calls", times] => calls(number(times)),
        ["survive", anchor, least, rounds] => {
            let anchor = if anchor == "world" { Anchor::World } else { Anchor::Last };
            children::survive(anchor, number(least) as u32, number(rounds) as i32)
        }
        ["divide"] => children::divide(),
        ["descendants", times] => children::descendants(number(times)),
        ["warnings"] => plan_warnings(),
        ["latency", rounds] => latency(number(rounds) as u32),
        ["bandwidth", bytes, rounds] => bandwidth(number(bytes) as usize, number(rounds) as u32),
        _ => panic!("unknown scenario: {words:?}"),
    };
    if let Err(error) = outcome {
        let rank = error.rank().map_or("none".to_owned(), |rank| rank.to_string());
        say(&format!("error {} {rank} {error}", error.kind().name()));
        std::process::exit(3);
    }
}

/// Prints a line at once.
fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    // Whoever reads may have gone.
    let _ = writeln!(output, "{line}");
    let _ = output.flush();
}

/// An all-reduce of numbers that change from round to round.
struct Sums {
    send: Buffer,
    receive: Buffer,
    count: usize,
}

impl Sums {
    fn new(communicator: &Communicator, count: usize) -> Result<Self> {
        let device = communicator.device();
        Ok(Self {
            send: device.allocate::<i64>(count)?,
            receive: device.allocate::<i64>(count)?,
            count,
        })
    }

    fn begin(&self, communicator: &Communicator, round: i64) -> Result<Handle> {
        let value = round * 100 + i64::from(communicator.rank());
        self.send.write(0, &vec![value; self.count])?;
        let (count, stream) = (self.count as u64, communicator.stream());
        communicator.all_reduce(&self.send, &self.receive, count, DataType::I64, RedOp::Sum, stream)
    }

    fn check(&self, communicator: &Communicator, round: i64) -> Result<()> {
        let ranks = i64::from(communicator.ranks());
        let expected = ranks * round * 100 + ranks * (ranks - 1) / 2;
        let got: Vec<i64> = self.receive.read()?;
        if got.iter().any(|one| *one != expected) {
            let text = format!("round {round}: a wrong sum, {} instead of {expected}", got[0]);
            return Err(Error::new(ErrorKind::Internal, text));
        }
        Ok(())
    }

    fn round(&self, communicator: &Communicator, round: i64) -> Result<()> {
        self.begin(communicator, round)?.wait()?;
        self.check(communicator, round)
    }
}

fn run_until_it_fails() -> Result<()> {
    say("begin");
    let communicator = Runtime::new()?.world()?;
    say("ready");
    let sums = Sums::new(&communicator, 2000)?;
    for round in 0.. {
        sums.round(&communicator, round)?;
        if round == 10 {
            say("running");
        }
    }
    Ok(())
}

fn rounds_of(rounds: u64, count: usize) -> Result<()> {
    let communicator = Runtime::new()?.world()?;
    let sums = Sums::new(&communicator, count)?;
    for round in 0..rounds as i64 {
        sums.round(&communicator, round)?;
    }
    let waiting = communicator.plan().report().summary();
    say(&format!("plan {waiting}"));
    communicator.finalize()?;
    say("done");
    Ok(())
}

/// All but rank 1 wait for an operation that rank 1 begins once it is told to by a signal: `SIGSTOP`
/// and `SIGCONT` around its sleep.
fn wait_for_one() -> Result<()> {
    let communicator = Runtime::new()?.world()?;
    let sums = Sums::new(&communicator, 1000)?;
    sums.round(&communicator, 0)?;
    say("ready");
    if communicator.rank() == 1 {
        // Stopped meanwhile.
        std::thread::sleep(Duration::from_millis(500));
    }
    let before = processor_time(std::process::id() as i32);
    let started = Instant::now();
    let outcome = sums.round(&communicator, 1);
    let used = processor_time(std::process::id() as i32).saturating_sub(before);
    say(&format!("waited {} {}", started.elapsed().as_micros(), used.as_micros()));
    outcome?;
    communicator.finalize()?;
    say("done");
    Ok(())
}

/// Rank 1 leaves out one round and comes late.
fn skip_one(which: u64) -> Result<()> {
    let communicator = Runtime::new()?.world()?;
    let sums = Sums::new(&communicator, 8)?;
    for round in 0..=which as i64 {
        if communicator.rank() == 1 && round == which as i64 {
            std::thread::sleep(Duration::from_secs(3));
        }
        sums.round(&communicator, round)?;
    }
    communicator.finalize()
}

/// Ends the process in the middle of the job.
fn leave(how: &str) -> Result<()> {
    let communicator = Runtime::new()?.world()?;
    let sums = Sums::new(&communicator, 1000)?;
    let first = sums.round(&communicator, 0);
    if how == "one" {
        first?;
    }
    if communicator.rank() == 1 || how == "all" {
        say("leaves");
        // Destructors do not run, threads of the communicator do.
        std::process::exit(0);
    }
    sums.round(&communicator, 1)
}

fn abort_after_a_while() -> Result<()> {
    let communicator = Runtime::new()?.world()?;
    let sums = Sums::new(&communicator, 1000)?;
    sums.round(&communicator, 0)?;
    if communicator.rank() == 1 {
        std::thread::sleep(Duration::from_millis(100));
        communicator.abort();
        return Ok(());
    }
    sums.round(&communicator, 1)
}

/// Two communicators are busy on threads of their own, and a group waits; rank 0 aborts the one, then the
/// other. Its peer is stopped by then.
fn abort_beside_a_stopped_rank() -> Result<()> {
    let first = Runtime::new()?.world()?;
    let second = first.duplicate()?;
    let busy = |communicator: &Communicator, count: usize| -> Result<()> {
        let sums = Sums::new(communicator, count)?;
        (0..).try_for_each(|round| {
            if round == 5 {
                say("busy");
            }
            sums.round(communicator, round)
        })
    };
    // Rank 1 sends what the group waits for, and never more.
    let grouped = |communicator: &Communicator| -> Result<()> {
        let device = communicator.device();
        let (buffer, stream) = (device.allocate::<i64>(1000)?, device.stream()?);
        let peer = 1 - communicator.rank();
        (0..100).try_for_each(|round| {
            if communicator.rank() == 1 && round > 0 {
                // Ends with the communicator, which this rank does not end.
                while communicator.async_error().is_none() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            let handles = Group::run(|| {
                let sent = communicator.send(&buffer, 1000, DataType::I64, peer, &stream)?;
                Ok([sent, communicator.recv(&buffer, 1000, DataType::I64, peer, &stream)?])
            })?;
            handles.iter().try_for_each(Handle::wait)
        })
    };
    std::thread::scope(|scope| {
        let of_first = scope.spawn(|| busy(&first, 2_000_000));
        let of_group = scope.spawn(|| grouped(&first));
        let of_second = scope.spawn(|| busy(&second, 20_000));
        if first.rank() == 0 {
            std::thread::sleep(Duration::from_secs(2));
            for (communicator, waiters) in
                [(&first, vec![of_first, of_group]), (&second, vec![of_second])]
            {
                let started = Instant::now();
                communicator.abort();
                let aborted = started.elapsed();
                for waiter in waiters {
                    let outcome = waiter.join().expect("a thread");
                    let error = outcome.expect_err("it was aborted");
                    say(&format!(
                        "woken {} {}",
                        started.elapsed().as_micros(),
                        error.kind().name()
                    ));
                }
                say(&format!("aborted {}", aborted.as_micros()));
            }
        } else {
            for waiter in [of_first, of_group, of_second] {
                let error = waiter.join().expect("a thread").expect_err("it was aborted");
                say(&format!("told {} {:?}", error.kind().name(), error.rank()));
            }
        }
    });
    drop((first, second));
    say("done");
    Ok(())
}

/// Works while strangers come, and makes another communicator when they have.
fn among_strangers() -> Result<()> {
    let communicator = Runtime::new()?.world()?;
    let sums = Sums::new(&communicator, 2000)?;
    sums.round(&communicator, 0)?;
    let before = Holdings::now().resident_kib;
    say("running");
    let started = Instant::now();
    for round in 1.. {
        sums.round(&communicator, round)?;
        // All ranks must leave in the same round, so one of them says when.
        let over =
            i64::from(communicator.rank() == 0 && started.elapsed() > Duration::from_secs(4));
        let told = communicator.device().buffer_from(&[over])?;
        let stream = communicator.stream();
        let root = (communicator.rank() == 0).then_some(&told);
        communicator.broadcast(root, &told, 1, DataType::I64, 0, stream)?.wait()?;
        if told.read::<i64>()? == [1] {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let other = communicator.duplicate()?;
    Sums::new(&other, 2000)?.round(&other, 1)?;
    sums.round(&communicator, 2)?;
    say(&format!("grown {}", Holdings::now().resident_kib.saturating_sub(before)));
    other.finalize()?;
    communicator.finalize()?;
    say("done");
    Ok(())
}

fn idle(time: Duration) -> Result<()> {
    let communicator = Runtime::new()?.world()?;
    let sums = Sums::new(&communicator, 1000)?;
    sums.round(&communicator, 0)?;
    std::thread::sleep(Duration::from_millis(200));
    let own = std::process::id() as i32;
    let before = processor_time(own);
    std::thread::sleep(time);
    let used = processor_time(own).saturating_sub(before);
    say(&format!("used {}", used.as_micros()));
    sums.round(&communicator, 1)?;
    communicator.finalize()
}

fn fork() -> Result<()> {
    let communicator = Runtime::new()?.world()?;
    let sums = Sums::new(&communicator, 1000)?;
    sums.round(&communicator, 0)?;
    // SAFETY: the child does only what is tested here: calls that must be refused, then ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = |error: Error| error.kind() == ErrorKind::Forked;
        let call = sums.begin(&communicator, 1).is_err_and(refused);
        let split = communicator.split(Some(0), 0).is_err_and(refused);
        let shrunk = communicator.shrink(&[]).is_err_and(refused);
        let end = communicator.finalize().is_err_and(refused);
        communicator.abort();
        // Destructors must not harm the parent.
        drop(communicator);
        drop(sums);
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!(call && split && shrunk)) | i32::from(!end) << 1) }
    }
    let mut status = 0;
    // SAFETY: this process's own child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    say(&format!("child {status}"));
    for round in 1..20 {
        sums.round(&communicator, round)?;
    }
    communicator.finalize()?;
    say("done");
    Ok(())
}

/// Makes and ends communicators of two ranks, both in this process.
fn communicators(times: u64) -> Result<()> {
    let runtime = Runtime::new()?;
    for time in 0..times {
        let id = runtime.local_unique_id()?;
        std::thread::scope(|scope| {
            let threads = [0, 1].map(|rank| {
                let (runtime, id) = (&runtime, &id);
                scope.spawn(move || {
                    let communicator = runtime.communicator(id, rank, 2)?;
                    Sums::new(&communicator, 1000)?.round(&communicator, time as i64)
                })
            });
            threads.into_iter().try_for_each(|thread| thread.join().expect("a rank"))
        })?;
        if time == times / 5 || time + 1 == times {
            // Threads that were detached may take a moment to end.
            std::thread::sleep(Duration::from_millis(300));
            let Holdings { descriptors, threads, resident_kib } = Holdings::now();
            say(&format!("holds {descriptors} {threads} {resident_kib}"));
        }
    }
    Ok(())
}

fn calls(times: u64) -> Result<()> {
    let communicator = Runtime::new()?.world()?;
    let sums = Sums::new(&communicator, 8)?;
    for time in 0..times {
        sums.round(&communicator, time as i64)?;
        // Not at the very end, where the peer may be leaving.
        if time == times / 5 || time == times * 9 / 10 {
            let Holdings { descriptors, threads, resident_kib } = Holdings::now();
            say(&format!("holds {descriptors} {threads} {resident_kib}"));
        }
    }
    communicator.finalize()
}

fn plan_warnings() -> Result<()> {
    let communicator = Runtime::new()?.world()?;
    let sums = Sums::new(&communicator, 1000)?;
    for round in 0..10 {
        sums.round(&communicator, round)?;
    }
    for warning in communicator.plan().warnings() {
        say(&format!("warning {warning}"));
    }
    for peer in (0..communicator.ranks()).filter(|peer| *peer != communicator.rank()) {
        let link = communicator.plan().link(communicator.rank(), peer).expect("a link");
        say(&format!("link {peer} {}", link.chosen.tier.name()));
    }
    // What is made out of it finds out the same.
    let copy = communicator.duplicate()?;
    for peer in (0..copy.ranks()).filter(|peer| *peer != copy.rank()) {
        let link = copy.plan().link(copy.rank(), peer).expect("a link");
        say(&format!("copied {peer} {}", link.chosen.tier.name()));
    }
    sums.round(&copy, 0)?;
    copy.finalize()?;
    communicator.finalize()?;
    say("done");
    Ok(())
}

fn latency(rounds: u32) -> Result<()> {
    let communicator = Runtime::new()?.world()?;
    let device = communicator.device();
    let (send, receive) = (device.buffer_from(&[1_u64])?, device.allocate::<u64>(1)?);
    let stream = communicator.stream();
    let all_reduce =
        || communicator.all_reduce(&send, &receive, 1, DataType::U64, RedOp::Sum, stream)?.wait();
    for _ in 0..rounds / 10 {
        all_reduce()?;
    }
    let started = Instant::now();
    for _ in 0..rounds {
        all_reduce()?;
    }
    let each = started.elapsed() / rounds;
    say(&format!("latency {} ns", each.as_nanos()));
    communicator.finalize()
}

fn bandwidth(bytes: usize, rounds: u32) -> Result<()> {
    let communicator = Runtime::new()?.world()?;
    let device = communicator.device();
    let count = bytes / size_of::<f32>();
    let (send, receive) = (device.allocate::<f32>(count)?, device.allocate::<f32>(count)?);
    let all_reduce = || {
        let (count, stream) = (count as u64, communicator.stream());
        communicator.all_reduce(&send, &receive, count, DataType::F32, RedOp::Sum, stream)?.wait()
    };
    for _ in 0..2 {
        all_reduce()?;
    }
    let started = Instant::now();
    for _ in 0..rounds {
        all_reduce()?;
    }
    let each = started.elapsed().as_secs_f64() / f64::from(rounds);
    let ranks = f64::from(communicator.ranks());
    let algbw = bytes as f64 / each / 1e9;
    let busbw = algbw * 2.0 * (ranks - 1.0) / ranks;
    say(&format!("bandwidth {:.3} ms, algbw {algbw:.2} GB/s, busbw {busbw:.2} GB/s", each * 1e3));
    communicator.finalize()
}
