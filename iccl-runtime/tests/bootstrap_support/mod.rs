//! What the tests of the bootstrap share: jobs whose ranks are threads.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use iccl_runtime::bootstrap::{Bootstrap, JoinOptions, Rendezvous, UniqueId, UniqueIdOptions};
use iccl_runtime::{Error, Result};

/// Long enough for a loaded machine; nothing waits for it when all is well.
pub(crate) const PATIENT: Duration = Duration::from_secs(60);

pub(crate) fn unique_id() -> UniqueId {
    unique_id_with(Duration::from_secs(5))
}

pub(crate) fn unique_id_with(handshake_timeout: Duration) -> UniqueId {
    let options =
        UniqueIdOptions { is_one_host: true, handshake_timeout, ..UniqueIdOptions::default() };
    UniqueId::generate(&options).unwrap()
}

pub(crate) fn options(id: &UniqueId, rank: u32, world_size: u32) -> JoinOptions {
    let mut options = JoinOptions::new(Rendezvous::UniqueId(id.clone()), rank, world_size);
    options.init_timeout = PATIENT;
    options.is_one_host = true;
    options.descriptor = format!("descriptor of {rank}").into_bytes();
    options
}

pub(crate) fn start(options: JoinOptions) -> JoinHandle<Result<Bootstrap>> {
    std::thread::spawn(move || Bootstrap::join(options))
}

/// Joins with all options at once, each on a thread of its own; results in their order.
pub(crate) fn join_all(options: impl IntoIterator<Item = JoinOptions>) -> Vec<Result<Bootstrap>> {
    let threads: Vec<_> = options.into_iter().map(start).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// A job of `world_size` threads.
pub(crate) fn job(world_size: u32) -> Vec<Bootstrap> {
    let id = unique_id();
    join_all((0..world_size).map(|rank| options(&id, rank, world_size)))
        .into_iter()
        .map(Result::unwrap)
        .collect()
}

/// Calls `body` for every rank at once; results by rank.
pub(crate) fn on_every_rank<T: Send + 'static>(
    job: &[Arc<Bootstrap>],
    body: impl Fn(&Bootstrap) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let body = Arc::new(body);
    let threads: Vec<_> = job
        .iter()
        .map(|bootstrap| {
            let (bootstrap, body) = (Arc::clone(bootstrap), Arc::clone(&body));
            std::thread::spawn(move || body(&bootstrap))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

pub(crate) fn shared(job: Vec<Bootstrap>) -> Vec<Arc<Bootstrap>> {
    job.into_iter().map(Arc::new).collect()
}

/// Leaves on every rank at once, as a job that is done does.
pub(crate) fn leave(job: Vec<Bootstrap>) {
    let threads: Vec<_> =
        job.into_iter().map(|b| std::thread::spawn(move || b.goodbye(PATIENT))).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

pub(crate) fn errors(results: Vec<Result<Bootstrap>>) -> Vec<Error> {
    results.into_iter().map(|result| result.expect_err("the join should fail")).collect()
}
