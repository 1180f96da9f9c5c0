//! Joining: jobs of every small size, and every way in which ranks can disagree about who they are.

mod bootstrap_support;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bootstrap_support::*;
use iccl_runtime::ErrorKind;
use iccl_runtime::bootstrap::{
    Bootstrap, CONTRIBUTION_LIMIT_BYTES, InterfaceChoice, JoinOptions, Meeting, Rendezvous,
    UniqueId, UniqueIdOptions,
};

#[test]
fn jobs_of_every_small_size_exchange_descriptors_and_gather() {
    for world_size in 1..=17 {
        let job = shared(job(world_size));
        let expected: Vec<_> =
            (0..world_size).map(|rank| format!("descriptor of {rank}").into_bytes()).collect();
        for (rank, bootstrap) in job.iter().enumerate() {
            assert_eq!(bootstrap.rank() as usize, rank);
            assert_eq!(bootstrap.descriptors(), expected, "rank {rank} of {world_size}");
            assert_eq!(bootstrap.key(), job[0].key());
            assert!(bootstrap.local_ip().is_loopback());
        }
        for round in 0..3_u32 {
            let tables = on_every_rank(&job, move |bootstrap| {
                let bytes = vec![bootstrap.rank() as u8; (bootstrap.rank() + round) as usize];
                bootstrap.all_gather(round, &bytes, PATIENT).unwrap()
            });
            let expected: Vec<_> =
                (0..world_size).map(|rank| vec![rank as u8; (rank + round) as usize]).collect();
            assert!(tables.iter().all(|table| *table == expected), "round {round}");
        }
        on_every_rank(&job, |bootstrap| bootstrap.barrier(PATIENT).unwrap());
        leave(job.into_iter().map(|b| Arc::into_inner(b).unwrap()).collect());
    }
}

#[test]
fn keys_of_different_jobs_differ() {
    let (first, second) = (job(2), job(2));
    assert_ne!(first[0].key(), second[0].key());
}

#[test]
fn contributions_may_be_as_large_as_the_limit_and_no_larger() {
    let job = shared(job(5));
    let tables = on_every_rank(&job, |bootstrap| {
        let bytes = vec![bootstrap.rank() as u8; CONTRIBUTION_LIMIT_BYTES];
        bootstrap.all_gather(1, &bytes, PATIENT).unwrap()
    });
    for table in tables {
        for (rank, entry) in table.iter().enumerate() {
            assert!(entry.len() == CONTRIBUTION_LIMIT_BYTES && entry[0] == rank as u8);
        }
    }
    let too_long = vec![0; CONTRIBUTION_LIMIT_BYTES + 1];
    let error = job[0].all_gather(1, &too_long, PATIENT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let id = unique_id();
    let mut options = options(&id, 0, 2);
    options.descriptor = too_long;
    assert_eq!(Bootstrap::join(options).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn b038_missing_ranks_are_named_on_every_rank_that_came() {
    let id = unique_id();
    let started = Instant::now();
    let results = join_all([0, 2].map(|rank| {
        let mut options = options(&id, rank, 3);
        options.init_timeout = Duration::from_secs(2);
        options
    }));
    for error in errors(results) {
        assert_eq!(error.kind(), ErrorKind::Rendezvous);
        assert_eq!(error.message(), "missing ranks [1]");
        assert_eq!(error.rank(), Some(1));
        assert!(error.hint().is_some_and(|hint| hint.contains("every rank")), "{error}");
    }
    assert!(started.elapsed() >= Duration::from_secs(1));
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn b038_a_join_can_be_aborted() {
    let id = unique_id();
    let cancel = Arc::new(AtomicBool::new(false));
    let mut options = options(&id, 0, 2);
    options.cancel = Some(Arc::clone(&cancel));
    let thread = start(options);
    std::thread::sleep(Duration::from_millis(100));
    let started = Instant::now();
    cancel.store(true, Ordering::Relaxed);
    let error = thread.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Aborted);
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn b039_the_same_rank_twice() {
    let id = unique_id();
    let threads: Vec<_> = [0, 1].map(|rank| start(options(&id, rank, 3))).into();
    // This process would refuse to use the id twice for one rank.
    let again = second_process_as(&id, 1, 3);
    for thread in threads {
        let error = thread.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Rendezvous);
        assert!(error.message().contains("rank 1 checked in twice: as pid"), "{error}");
    }
    assert!(again.contains("rank 1 checked in twice"), "{again}");
}

#[test]
fn b039_a_rank_that_is_not_below_the_world_size() {
    let id = unique_id();
    let results = join_all([options(&id, 0, 2), options(&id, 2, 2)]);
    for error in errors(results) {
        assert_eq!(error.kind(), ErrorKind::Rendezvous);
        assert!(error.message().contains("rank 2 ("), "{error}");
        assert!(error.message().contains("is not below the world size 2"), "{error}");
    }
}

#[test]
fn b039_different_world_sizes() {
    let id = unique_id();
    for error in errors(join_all([options(&id, 0, 3), options(&id, 1, 2)])) {
        assert_eq!(error.kind(), ErrorKind::Rendezvous);
        let message = error.message();
        assert!(message.contains("ranks disagree on the world size"), "{message}");
        assert!(message.contains("says 3") && message.contains("says 2"), "{message}");
    }
}

#[test]
fn b039_an_id_used_twice() {
    let id = unique_id();
    let first = join_all((0..2).map(|rank| options(&id, rank, 2)));
    assert!(first.iter().all(Result::is_ok));
    for error in errors(join_all((0..2).map(|rank| options(&id, rank, 2)))) {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("has used this unique id before"), "{error}");
    }
    // Another process finds nobody there.
    let again = second_process_as(&id, 1, 2);
    assert!(again.contains("cannot reach the root") && again.contains("attempts="), "{again}");
}

#[test]
fn b061_another_protocol_version() {
    let id = unique_id();
    let results = join_all([1, 2].map(|version| {
        let mut options = options(&id, version - 1, 2);
        options.protocol_version = version;
        options
    }));
    for error in errors(results) {
        assert_eq!(error.kind(), ErrorKind::VersionMismatch);
        assert!(error.message().contains("protocol versions differ"), "{error}");
    }
}

#[test]
fn b061_another_wire_version() {
    let id = unique_id();
    let mut patient = options(&id, 0, 2);
    patient.init_timeout = Duration::from_secs(2);
    let mut newer = options(&id, 1, 2);
    newer.wire_version = 2;
    let results = errors(join_all([patient, newer]));
    assert!(results.iter().all(|error| error.kind() == ErrorKind::VersionMismatch), "{results:?}");
    let [first, second] = results.try_into().unwrap();
    assert!(first.message().contains("missing ranks [1]"), "{first}");
    assert!(first.message().contains("spoke wire version 2, this job speaks 1"), "{first}");
    assert!(second.message().contains("rank 1 speaks 2"), "{second}");
    assert!(second.message().contains("speaks 1"), "{second}");
}

#[test]
fn b037_a_rank_that_gives_up_while_others_wait_is_named() {
    let id = unique_id();
    let threads: Vec<_> = [0, 1].map(|rank| start(options(&id, rank, 4))).into();
    let cancel = Arc::new(AtomicBool::new(false));
    let mut fickle = options(&id, 2, 4);
    fickle.cancel = Some(Arc::clone(&cancel));
    let fickle = start(fickle);
    std::thread::sleep(Duration::from_millis(300));
    cancel.store(true, Ordering::Relaxed);
    assert_eq!(fickle.join().unwrap().unwrap_err().kind(), ErrorKind::Aborted);
    for thread in threads {
        let error = thread.join().unwrap().unwrap_err();
        assert_eq!((error.kind(), error.rank()), (ErrorKind::Aborted, Some(2)), "{error}");
        assert!(error.message().contains("rank 2 gave up"), "{error}");
    }
}

fn meeting(port: u16, secret: Option<u8>) -> Rendezvous {
    Rendezvous::Address(Meeting {
        host: "127.0.0.1".into(),
        ports: vec![port],
        job: "job 7".into(),
        secret: secret.map(|byte| iccl_wire::Key::from_bytes([byte; 32])),
    })
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn at(rendezvous: &Rendezvous, rank: u32, world_size: u32) -> JoinOptions {
    let mut options = JoinOptions::new(rendezvous.clone(), rank, world_size);
    options.init_timeout = PATIENT;
    options
}

#[test]
fn b058_ranks_wait_for_a_root_that_starts_late() {
    let rendezvous = meeting(free_port(), Some(1));
    let early: Vec<_> = (1..4).map(|rank| start(at(&rendezvous, rank, 4))).collect();
    std::thread::sleep(Duration::from_secs(1));
    let root = start(at(&rendezvous, 0, 4));
    root.join().unwrap().unwrap();
    for thread in early {
        thread.join().unwrap().unwrap();
    }
}

#[test]
fn b058_the_final_error_shows_address_errno_and_attempts() {
    let port = free_port();
    let mut options = at(&meeting(port, None), 1, 2);
    options.init_timeout = Duration::from_millis(700);
    let error = Bootstrap::join(options).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(text.contains(&format!("127.0.0.1:{port}")), "{text}");
    assert!(text.contains("os error 111"), "{text}");
    let attempts = error.context().find(|(key, _)| *key == "attempts").unwrap().1;
    assert!(attempts.parse::<u32>().unwrap() > 2, "{text}");
}

#[test]
fn b058_sixty_four_ranks_connect_at_once() {
    let bootstraps = job(64);
    assert!(bootstraps.iter().all(|b| b.descriptors().len() == 64));
    leave(bootstraps);
}

#[test]
fn an_address_serves_one_job_after_the_other() {
    let rendezvous = meeting(free_port(), None);
    for _ in 0..3 {
        let results = join_all((0..3).map(|rank| at(&rendezvous, rank, 3)));
        for result in results {
            result.unwrap();
        }
    }
}

#[test]
fn b064_another_secret_is_refused_and_the_job_goes_on() {
    let port = free_port();
    let right = meeting(port, Some(1));
    let root = start(at(&right, 0, 2));
    let impostor = Bootstrap::join(at(&meeting(port, Some(2)), 1, 2)).unwrap_err();
    assert_eq!(impostor.kind(), ErrorKind::Authentication);
    assert!(!impostor.to_string().contains("0202"), "{impostor}");
    Bootstrap::join(at(&right, 1, 2)).unwrap();
    root.join().unwrap().unwrap();
}

#[test]
fn a_port_that_is_taken_gives_way_to_the_next() {
    // As with MASTER_PORT, on which torchrun's agent answers in another protocol.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let ports = vec![taken.local_addr().unwrap().port(), free_port()];
    let rendezvous = Rendezvous::Address(Meeting {
        host: "localhost".into(),
        ports,
        job: "job 8".into(),
        secret: None,
    });
    let agent = std::thread::spawn(move || {
        // Closes whoever comes, until the job is done.
        taken.set_nonblocking(true).unwrap();
        for _ in 0..100 {
            drop(taken.accept());
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    for result in join_all((0..2).map(|rank| at(&rendezvous, rank, 2))) {
        result.unwrap();
    }
    agent.join().unwrap();
}

#[test]
fn ranks_of_one_host_meet_on_a_local_socket() {
    let job = format!("test job of {}", std::process::id());
    let rendezvous = Rendezvous::LocalSocket { job };
    for _ in 0..2 {
        let joined: Vec<_> = join_all((0..3).map(|rank| at(&rendezvous, rank, 3)))
            .into_iter()
            .map(Result::unwrap)
            .collect();
        assert!(joined.iter().all(|b| b.local_ip().is_loopback() && b.key() == joined[0].key()));
        let root_key = rendezvous_key_guess();
        assert_ne!(joined[0].key(), &root_key, "the key is random, not derived from the name");
    }
}

fn rendezvous_key_guess() -> iccl_wire::Key {
    let job = format!("test job of {}", std::process::id());
    iccl_wire::Key::from_material("iccl job on a local socket", job.as_bytes())
        .derive("iccl job key", job.as_bytes())
}

#[test]
fn b056_a_job_on_ipv6() {
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("this host has no IPv6 loopback");
        return;
    }
    let id = UniqueId::generate(&UniqueIdOptions {
        interface: InterfaceChoice::parse("::1").unwrap(),
        ..UniqueIdOptions::default()
    })
    .unwrap();
    assert!(id.address().is_ipv6());
    let joined = join_all((0..6).map(|rank| options(&id, rank, 6)));
    assert!(joined.into_iter().all(|result| result.unwrap().local_ip().is_ipv6()));
}

#[test]
fn b054_an_unknown_interface_lists_those_there_are() {
    let id = unique_id();
    let mut options = options(&id, 0, 2);
    options.interface = InterfaceChoice::Name("nosuch0".into());
    let error = Bootstrap::join(options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("lo 127.0.0.1"), "{error}");
}

#[test]
fn b063_the_root_listens_on_the_chosen_address_only_and_closes_when_all_are_there() {
    let id = unique_id();
    let port = id.address().port();
    assert_eq!(listeners(port), ["0100007F"], "127.0.0.1 and nothing else");
    let joined = join_all((0..6).map(|rank| options(&id, rank, 6)));
    let joined: Vec<_> = joined.into_iter().map(Result::unwrap).collect();
    assert_eq!(listeners(port), Vec::<String>::new());
    leave(joined);
}

/// The local addresses that listen on `port`, as the kernel shows them.
fn listeners(port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(std::fs::read_to_string);
    let mut found = Vec::new();
    for line in tables.iter().flatten().flat_map(|table| table.lines().skip(1)) {
        let fields: Vec<_> = line.split_whitespace().collect();
        let (address, local_port) = fields[1].split_once(':').unwrap();
        if fields[3] == LISTEN && local_port == format!("{port:04X}") {
            found.push(address.to_owned());
        }
    }
    found
}

#[test]
fn a_world_of_nobody_or_an_outsider_alone_is_refused() {
    let alone = |rank, size| Bootstrap::join(JoinOptions::new(Rendezvous::Alone, rank, size));
    assert_eq!(alone(0, 0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(alone(1, 1).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(alone(0, 2).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(alone(0, 1).unwrap().descriptors().len(), 1);
}

const SECOND_PROCESS: &str = "ICCL_TEST_SECOND_PROCESS";

/// Joins from a process of its own and returns the error as text.
fn second_process_as(id: &UniqueId, rank: u32, world_size: u32) -> String {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "second_process", "--nocapture"])
        .env(SECOND_PROCESS, format!("{} {rank} {world_size}", id.to_text()))
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Not a test of its own: what [`second_process_as`] runs.
#[test]
fn second_process() {
    let Ok(arguments) = std::env::var(SECOND_PROCESS) else { return };
    let arguments: Vec<_> = arguments.split(' ').collect();
    let id = UniqueId::from_text(arguments[0]).unwrap();
    let mut options = options(&id, arguments[1].parse().unwrap(), arguments[2].parse().unwrap());
    options.init_timeout = Duration::from_secs(3);
    match Bootstrap::join(options) {
        Ok(_) => println!("joined"),
        Err(error) => println!("{error}"),
    }
}
