//! Ranks as threads of one process, each with a runtime of its own settings.

use std::collections::HashMap;
use std::sync::{Condvar, LazyLock, Mutex};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::bootstrap::UniqueId;
use iccl_runtime::comm::{Communicator, Runtime};
use iccl_runtime::config::{Config, Sources};
use iccl_runtime::{Error, Result};

/// A job to start: how many ranks, and what they are told.
#[derive(Clone, Debug)]
pub struct Job {
    ranks: u32,
    /// Rank (none: all), key and value.
    settings: Vec<(Option<u32>, String, String)>,
}

impl Job {
    /// A job whose operations end in time if a test is wrong.
    pub fn new(ranks: u32) -> Self {
        let job = Self { ranks, settings: Vec::new() };
        job.with("engine.op_timeout", "60s").with("bootstrap.init_timeout", "60s")
    }

    /// A setting of all ranks.
    #[must_use]
    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.settings.push((None, key.to_owned(), value.to_owned()));
        self
    }

    /// A setting of one rank.
    #[must_use]
    pub fn with_on(mut self, rank: u32, key: &str, value: &str) -> Self {
        self.settings.push((Some(rank), key.to_owned(), value.to_owned()));
        self
    }

    /// Makes ranks believe that they are on these hosts.
    #[must_use]
    pub fn on_hosts(mut self, hosts: &[&str]) -> Self {
        assert_eq!(hosts.len(), self.ranks as usize);
        for (rank, host) in (0..).zip(hosts) {
            self = self.with_on(rank, "bootstrap.host_id", host);
        }
        self
    }

    /// How many ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The runtime of one rank. Equal settings share one.
    ///
    /// # Errors
    /// What is wrong with the settings.
    pub fn runtime(&self, rank: u32) -> Result<Runtime> {
        static KNOWN: LazyLock<Mutex<HashMap<String, Runtime>>> = LazyLock::new(Mutex::default);
        let mut sources = Sources::default();
        for (whose, key, value) in &self.settings {
            if whose.is_none_or(|whose| whose == rank) {
                sources = sources.with(key, value);
            }
        }
        let name = format!("{:?}", sources.api);
        let mut known = KNOWN.lock().expect("runtimes");
        if let Some(runtime) = known.get(&name) {
            return Ok(runtime.clone());
        }
        let runtime = Runtime::with_config(Config::load(&sources)?)?;
        known.insert(name, runtime.clone());
        Ok(runtime)
    }

    /// An id for all ranks on this host.
    ///
    /// # Panics
    /// If there is none.
    pub fn unique_id(&self) -> UniqueId {
        let runtime = self.runtime(0).expect("a runtime");
        runtime.local_unique_id().expect("a unique id")
    }

    /// Runs `body` on every rank with its communicator; what each gives, by rank.
    ///
    /// # Panics
    /// If a rank cannot initialise or panics.
    pub fn run<R: Send>(&self, body: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
        let outcomes = self.try_run(body);
        outcomes
            .into_iter()
            .enumerate()
            .map(|(rank, outcome)| outcome.unwrap_or_else(|error| panic!("rank {rank}: {error}")))
            .collect()
    }

    /// As [`Job::run`], where ranks may fail to initialise.
    ///
    /// # Panics
    /// If a rank panics.
    pub fn try_run<R: Send>(
        &self,
        body: impl Fn(&Communicator) -> R + Sync,
    ) -> Vec<Result<R, Error>> {
        let id = self.unique_id();
        self.each(|rank| {
            let communicator = self.runtime(rank)?.communicator(&id, rank, self.ranks)?;
            Ok(body(&communicator))
        })
    }

    /// Runs `body` on a thread for every rank.
    ///
    /// # Panics
    /// If a rank panics.
    pub fn each<R: Send>(&self, body: impl Fn(u32) -> R + Sync) -> Vec<R> {
        std::thread::scope(|scope| {
            let body = &body;
            let threads: Vec<_> = (0..self.ranks)
                .map(|rank| {
                    let thread = std::thread::Builder::new().name(format!("rank {rank}"));
                    thread.spawn_scoped(scope, move || body(rank)).expect("a thread")
                })
                .collect();
            let outcomes: Vec<_> = threads.into_iter().map(ScopedJoinHandle::join).collect();
            outcomes.into_iter().map(|outcome| outcome.expect("a rank panicked")).collect()
        })
    }
}

/// Within this time everyone knows of what went wrong, however loaded the machine.
pub const SOON: Duration = Duration::from_secs(20);

/// The layouts in which ranks must behave alike.
pub fn layouts(ranks: u32) -> [(&'static str, Job); 3] {
    let hosts: Vec<_> = (0..ranks).map(|rank| ["left", "right"][rank as usize % 2]).collect();
    [
        ("shm", Job::new(ranks).with("transport.enabled", "shm")),
        ("tcp", Job::new(ranks).with("transport.enabled", "tcp")),
        ("two hosts", Job::new(ranks).on_hosts(&hosts)),
    ]
}

/// Where ranks wait for each other, as at a [`std::sync::Barrier`]; but when one does not come, because its
/// test has failed, the others fail too.
#[derive(Debug)]
pub struct Meeting {
    size: usize,
    came: Mutex<usize>,
    full: Condvar,
}

impl Meeting {
    /// A place for `size` ranks.
    pub fn new(size: usize) -> Self {
        Self { size, came: Mutex::new(0), full: Condvar::new() }
    }

    /// Waits until all have come, as often as this one; they must, soon.
    ///
    /// # Panics
    /// If one does not come.
    pub fn wait(&self) {
        let mut came = self.came.lock().expect("nobody panics in here");
        *came += 1;
        let all = came.next_multiple_of(self.size);
        self.full.notify_all();
        let waited = self.full.wait_timeout_while(came, 2 * SOON, |came| *came < all);
        let (came, _) = waited.expect("nobody panics in here");
        let is_full = *came >= all;
        drop(came);
        assert!(is_full, "another rank did not come");
    }
}

/// Waits until `condition` holds; it must, soon.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < SOON, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// An all-reduce of `count` elements that all are `value`.
///
/// # Errors
/// What the call says.
pub fn sum(communicator: &Communicator, value: i32, count: usize) -> Result<Vec<i32>> {
    let device = communicator.device();
    let send = device.buffer_from(&vec![value; count])?;
    let receive = device.allocate::<i32>(count)?;
    let (count, stream) = (count as u64, communicator.stream());
    communicator.all_reduce(&send, &receive, count, DataType::I32, RedOp::Sum, stream)?.wait()?;
    receive.read()
}

/// A small all-reduce that must succeed.
pub fn must_be_right(communicator: &Communicator) {
    let expected: i32 = (1..=communicator.ranks() as i32).sum();
    let sums = sum(communicator, communicator.rank() as i32 + 1, 3);
    let warnings = communicator.plan().warnings();
    let sums = sums.unwrap_or_else(|error| panic!("{error}; {warnings:?}"));
    assert_eq!(sums, [expected; 3]);
}
