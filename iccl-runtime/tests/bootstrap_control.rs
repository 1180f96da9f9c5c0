//! The control plane: who hears what, and how soon, when ranks disagree, leave or die.

mod bootstrap_support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bootstrap_support::*;
use iccl_runtime::ErrorKind;
use iccl_runtime::bootstrap::{Bootstrap, Notice, UniqueId};

/// Everyone who hears a notice.
fn listen(job: &[Arc<Bootstrap>]) -> mpsc::Receiver<(u32, Notice)> {
    let (sender, receiver) = mpsc::channel();
    let sender = Arc::new(Mutex::new(sender));
    for bootstrap in job {
        let (rank, sender) = (bootstrap.rank(), Arc::clone(&sender));
        bootstrap.on_notice(move |notice| {
            let _ = sender.lock().unwrap().send((rank, notice.clone()));
        });
    }
    receiver
}

#[test]
fn a_notice_reaches_everyone_but_its_author() {
    for origin in [0, 3, 16] {
        let job = shared(job(17));
        let heard = listen(&job);
        job[origin].notify_failure(42, Some(7), ErrorKind::Timeout, "all_reduce seq 5").unwrap();
        let mut ranks: Vec<_> = (0..16)
            .map(|_| {
                let (rank, notice) = heard.recv_timeout(PATIENT).unwrap();
                assert_eq!(notice.communicator, 42);
                assert_eq!((notice.origin as usize, notice.culprit), (origin, Some(7)));
                assert_eq!(notice.kind, ErrorKind::Timeout);
                assert_eq!(notice.message, "all_reduce seq 5");
                rank
            })
            .collect();
        ranks.sort_unstable();
        let expected: Vec<_> = (0..17).filter(|rank| *rank as usize != origin).collect();
        assert_eq!(ranks, expected);
        // A failed communicator is not a failed job.
        on_every_rank(&job, |bootstrap| bootstrap.barrier(PATIENT).unwrap());
        assert!(heard.try_recv().is_err(), "each hears it once");
    }
}

#[test]
fn a_callback_hears_what_came_before_it() {
    let job = shared(job(2));
    job[0].notify_failure(1, None, ErrorKind::Aborted, "early").unwrap();
    on_every_rank(&job, |bootstrap| bootstrap.barrier(PATIENT).unwrap());
    let (sender, heard) = mpsc::channel();
    let sender = Mutex::new(sender);
    job[1].on_notice(move |notice| sender.lock().unwrap().send(notice.message.clone()).unwrap());
    assert_eq!(heard.recv_timeout(PATIENT).unwrap(), "early");
    assert_eq!(job[1].notices().len(), 1);
    assert!(job[0].notices().is_empty());
}

#[test]
fn different_tags_are_a_mismatch_on_every_rank() {
    let job = shared(job(6));
    let results = on_every_rank(&job, |bootstrap| {
        bootstrap.all_gather(u32::from(bootstrap.rank() == 5), &[], PATIENT)
    });
    for result in results {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(error.message().contains("rank 5 has tag 0x1"), "{error}");
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_at_the_deadline() {
    let job = shared(job(6));
    let results = on_every_rank(&job, |bootstrap| {
        if bootstrap.rank() == 5 {
            return None;
        }
        Some(bootstrap.all_gather(1, &[], Duration::from_millis(400)))
    });
    for error in results.into_iter().flatten().map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert_eq!(error.rank(), Some(5), "{error}");
    }
}

#[test]
fn a_rank_that_leaves_is_not_lost_but_missed() {
    let mut job = job(3);
    job.pop().unwrap().goodbye(PATIENT);
    let job = shared(job);
    let heard = listen(&job);
    for result in on_every_rank(&job, |bootstrap| bootstrap.barrier(PATIENT)) {
        let error = result.unwrap_err();
        assert_eq!((error.kind(), error.rank()), (ErrorKind::PeerLost, Some(2)));
        assert!(error.message().contains("rank 2 has left the job"), "{error}");
    }
    assert!(heard.try_recv().is_err(), "leaving is no failure");
}

#[test]
fn an_inner_rank_that_leaves_early_goes_on_passing_news() {
    // Rank 1 stands between 0 and 5 to 8; it wants to leave while the others work.
    let mut job = job(9);
    let leaving = job.remove(1);
    let leaver = std::thread::spawn(move || leaving.goodbye(PATIENT));
    std::thread::sleep(Duration::from_millis(100));
    let job = shared(job);
    let heard = listen(&job);
    let author = job.iter().find(|b| b.rank() == 6).unwrap();
    author.notify_failure(9, None, ErrorKind::DeviceError, "news").unwrap();
    let mut ranks: Vec<_> = (0..7).map(|_| heard.recv_timeout(PATIENT).unwrap().0).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 2, 3, 4, 5, 7, 8]);
    assert!(!leaver.is_finished());
    leave(job.into_iter().map(|b| Arc::into_inner(b).unwrap()).collect());
    leaver.join().unwrap();
}

#[test]
fn b052_ranks_that_leave_in_any_order_all_return() {
    for reverse in [false, true] {
        let mut job = job(9);
        if reverse {
            job.reverse();
        }
        let started = Instant::now();
        for bootstrap in job {
            bootstrap.goodbye(Duration::from_millis(100));
        }
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn two_threads_in_one_all_gather_are_refused() {
    let job = shared(job(2));
    let waiting = {
        let bootstrap = Arc::clone(&job[0]);
        std::thread::spawn(move || bootstrap.all_gather(1, &[], PATIENT))
    };
    let refused = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(5));
        job[0].all_gather(1, &[], Duration::from_millis(1))
    })
    .find(|result| result.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConcurrentUse));
    assert!(refused.is_some());
    drop(job[1].all_gather(1, &[], Duration::from_secs(1)));
    drop(waiting.join().unwrap());
}

// From here on: ranks that are processes.

const WORKER: &str = "ICCL_TEST_CONTROL_WORKER";

/// Not a test of its own: a rank in a process, which reports what it sees line by line.
#[test]
fn worker() {
    let Ok(arguments) = std::env::var(WORKER) else { return };
    let arguments: Vec<_> = arguments.split(' ').collect();
    let id = UniqueId::from_text(arguments[0]).unwrap();
    let (rank, world_size) = (arguments[1].parse().unwrap(), arguments[2].parse().unwrap());
    let bootstrap = Bootstrap::join(options(&id, rank, world_size)).unwrap();
    println!("\njoined");
    let error = loop {
        if let Err(error) = bootstrap.barrier(PATIENT) {
            break error;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    println!("\nbarrier {} {:?}", error.kind().name(), error.rank());
    let notice = &bootstrap.notices()[0];
    println!("\nnotice {} {:?}", notice.kind.name(), notice.culprit);
    // So that others hear it from this rank's notice and not from its end.
    std::thread::sleep(Duration::from_millis(300));
}

struct Worker {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Worker {
    fn start(id: &UniqueId, rank: u32, world_size: u32) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "worker", "--nocapture"])
            .env(WORKER, format!("{} {rank} {world_size}", id.to_text()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, lines }
    }

    /// Skips to the next line that begins with `word`.
    fn expect(&self, word: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENT).expect("the worker should go on");
            if line.starts_with(word) {
                return line;
            }
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn b036_a_killed_rank_is_named_on_every_other_within_five_seconds() {
    // A leaf, an inner rank, and the top of the tree.
    for victim in [6_usize, 1, 0] {
        let id = unique_id();
        let mut workers: Vec<_> = (0..7).map(|rank| Worker::start(&id, rank, 7)).collect();
        workers.iter().for_each(|worker| drop(worker.expect("joined")));
        let killed = Instant::now();
        workers[victim].signal(rustix::process::Signal::KILL);
        drop(workers.remove(victim));
        for worker in &workers {
            let lost = format!("peer-lost Some({victim})");
            assert_eq!(worker.expect("barrier"), format!("barrier {lost}"));
            assert_eq!(worker.expect("notice"), format!("notice {lost}"));
        }
        assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
    }
}

#[test]
fn b036_a_stopped_rank_is_not_lost() {
    let id = unique_id();
    let workers: Vec<_> = (0..3).map(|rank| Worker::start(&id, rank, 3)).collect();
    workers.iter().for_each(|worker| drop(worker.expect("joined")));
    workers[1].signal(rustix::process::Signal::STOP);
    let quiet = workers[0].lines.recv_timeout(Duration::from_millis(500));
    assert!(quiet.is_err(), "{quiet:?}");
    workers[1].signal(rustix::process::Signal::CONT);
    workers[2].signal(rustix::process::Signal::KILL);
    assert_eq!(workers[0].expect("barrier"), "barrier peer-lost Some(2)");
    assert_eq!(workers[1].expect("barrier"), "barrier peer-lost Some(2)");
}

#[test]
fn b037_a_rank_killed_while_others_wait_for_one_more_is_named() {
    let id = unique_id();
    let waiting: Vec<_> = [0, 1].map(|rank| start(options(&id, rank, 4))).into();
    let worker = Worker::start(&id, 2, 4);
    std::thread::sleep(Duration::from_secs(1));
    worker.signal(rustix::process::Signal::KILL);
    for thread in waiting {
        let error = thread.join().unwrap().unwrap_err();
        assert_eq!((error.kind(), error.rank()), (ErrorKind::PeerLost, Some(2)), "{error}");
    }
}

const IDLER: &str = "ICCL_TEST_CONTROL_IDLER";

/// Not a test of its own: a process with nothing in it but a job that waits.
#[test]
fn idler() {
    if std::env::var(IDLER).is_err() {
        return;
    }
    let job = shared(job(8));
    let spent = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::try_from(time).unwrap()
    };
    let before = spent();
    std::thread::sleep(Duration::from_secs(1));
    println!("\nspent {}", spent().saturating_sub(before).as_millis());
    leave(job.into_iter().map(|b| Arc::into_inner(b).unwrap()).collect());
}

#[test]
fn b036_waiting_costs_no_processor_time() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "idler", "--nocapture"])
        .env(IDLER, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let spent = text.lines().find_map(|line| line.strip_prefix("spent ")).expect("it reports");
    assert!(spent.parse::<u32>().unwrap() < 50, "{spent} ms of one second");
}
