//! Descriptors that have run out. A process of its own, since the limit is the process's.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Duration;

use iccl_runtime::bootstrap::{Bootstrap, JoinOptions, Rendezvous, UniqueId, UniqueIdOptions};
use iccl_runtime::topology::HostIdentity;
use iccl_runtime::{Error, ErrorKind};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn must_name_the_limit(limit: u64, error: &Error) {
    assert_eq!(error.kind(), ErrorKind::OutOfResources, "{error}");
    let words = format!("{limit} files open: raise `ulimit -n`");
    assert!(error.hint().is_some_and(|hint| hint.contains(&words)), "{error}");
}

#[test]
fn b089_where_descriptors_have_run_out_the_limit_is_named_and_no_other_host_is_made_up() {
    let options = || UniqueIdOptions { is_one_host: true, ..UniqueIdOptions::default() };
    let host = HostIdentity::detect(None).expect("a host");
    let id = UniqueId::generate(&options()).expect("a root");
    let before = getrlimit(Resource::Nofile);
    // All below the lowest free number are in use.
    let lowest = File::open("/dev/null").expect("one is left").as_raw_fd();
    let limit = u64::try_from(lowest).expect("a number");
    let tight = Rlimit { current: Some(limit), ..before };
    setrlimit(Resource::Nofile, tight).expect("less is always allowed");

    must_name_the_limit(limit, &HostIdentity::detect(None).expect_err("unknown"));
    must_name_the_limit(limit, &UniqueId::generate(&options()).expect_err("no socket"));
    let error = Bootstrap::join(JoinOptions {
        init_timeout: Duration::from_millis(300),
        ..JoinOptions::new(Rendezvous::UniqueId(id), 1, 2)
    })
    .expect_err("no socket");
    must_name_the_limit(limit, &error);
    assert_eq!(error.rank(), Some(1), "it is not the root's fault: {error}");

    setrlimit(Resource::Nofile, before).expect("as it was");
    assert_eq!(HostIdentity::detect(None).expect("a host"), host);
}
