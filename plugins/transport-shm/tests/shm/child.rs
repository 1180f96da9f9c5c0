//! Tests that need processes of their own: this executable runs itself again, with one role.

use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::TransportDomain;
use iccl_plugin_api::tables::Completion;

use crate::common::{LONG, Side, both, pair, pattern};

const ROLE: &str = "ICCL_SHM_TEST_ROLE";
const ADDRESS: &str = "ICCL_SHM_TEST_ADDRESS";
const RANK: &str = "ICCL_SHM_TEST_RANK";

/// A process that plays a role, and what it says. It is killed when the test ends.
pub(crate) struct Actor {
    pub(crate) process: Child,
    said: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Actor {
    /// Starts rank `rank` in its role; it dials rank 0 at this address.
    pub(crate) fn start(role: &str, rank: u32, address: &[u8]) -> Self {
        let mut hex = String::new();
        for byte in address {
            write!(hex, "{byte:02x}").unwrap();
        }
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["child::entry_of_other_processes", "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(ADDRESS, hex)
            .env(RANK, rank.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, said }
    }

    /// The rest of the next line that begins with `word`.
    pub(crate) fn hears(&mut self, word: &str) -> String {
        for line in self.said.by_ref() {
            let line = line.unwrap();
            // The test harness does not end its own line before ours.
            if let Some(at) = line.find(word) {
                return line[at + word.len()..].trim().to_owned();
            }
        }
        panic!("the other process ended without saying {word}");
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub(crate) fn ends_well(&mut self) {
        for line in self.said.by_ref() {
            println!("{}", line.unwrap());
        }
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a role that needs no peer and must end well.
pub(crate) fn play(role: &str) {
    Actor::start(role, 1, &[]).ends_well();
}

/// Not a test of its own: what the processes run that [`Actor::start`] starts.
#[test]
fn entry_of_other_processes() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let hex = std::env::var(ADDRESS).unwrap();
    let address: Vec<u8> = (0..hex.len() / 2)
        .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let rank = std::env::var(RANK).unwrap().parse().unwrap();
    match role.as_str() {
        "echo" => echo(rank, &address),
        "stream" => stream(rank, &address),
        "last-words" => last_words(rank, &address),
        "forked" => forked(rank, &address),
        "fork-drop" => fork_drop(rank, &address),
        "no-leak" => no_leak(),
        "limited" => limited(),
        "idle" => idle(),
        "corrupted" => corrupted(),
        "scribbled" => scribbled(),
        other => panic!("role {other}"),
    }
}

fn dial(rank: u32, address: &[u8]) -> (Side, u64) {
    let mut side = Side::rank(rank, 1 << 16);
    let channel = side.open(0, 1, Some(address)).unwrap();
    (side, channel)
}

/// Sends back what it gets: messages of 1 KiB, until one that begins with 0xff.
fn echo(rank: u32, address: &[u8]) {
    let (mut side, channel) = dial(rank, address);
    let mut message = [0; 1024];
    for round in 0.. {
        side.done.clear();
        side.receive(channel, round, &mut message).unwrap();
        side.complete(1);
        side.send(channel, round, &message).unwrap();
        side.complete(2);
        side.assert_all_done(2);
        if message[0] == 0xff {
            break;
        }
    }
    side.domain.channel_close(channel).unwrap();
}

/// Sends a message that takes some time.
fn stream(rank: u32, address: &[u8]) {
    let (mut side, channel) = dial(rank, address);
    let payload = vec![1; 256 << 20];
    side.send(channel, 1, &payload).unwrap();
    side.complete(1);
}

/// Sends two and a half messages and dies.
fn last_words(rank: u32, address: &[u8]) {
    let (mut side, channel) = dial(rank, address);
    let (first, second, third) = (pattern(1, 1000), pattern(2, 2000), pattern(3, 1 << 20));
    side.send(channel, 1, &first).unwrap();
    side.send(channel, 2, &second).unwrap();
    side.send(channel, 3, &third).unwrap();
    side.complete(2);
    for _ in 0..100 {
        side.step();
    }
    println!("sent");
    std::thread::sleep(LONG);
}

/// Leaves a forked child that holds copies of all its descriptors.
fn forked(rank: u32, address: &[u8]) {
    let (mut side, channel) = dial(rank, address);
    side.until("connected", |side| side.state(channel).unwrap() == super::common::DONE);
    // SAFETY: the child only sleeps and ends, which is allowed after a fork.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(LONG.as_secs() as u32);
            libc::pause();
            libc::_exit(0);
        }
        child
    };
    println!("forked {child}");
    std::thread::sleep(LONG);
}

/// B060: a forked child drops the domain; the parent's goes on.
fn fork_drop(rank: u32, address: &[u8]) {
    let (mut side, channel) = dial(rank, address);
    side.until("connected", |side| side.state(channel).unwrap() == super::common::DONE);
    // SAFETY: the child has one thread that matters, drops the domain, which allocates nothing,
    // and ends.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            drop(side);
            libc::_exit(7);
        }
        child
    };
    let mut status = 0;
    // SAFETY: `status` is valid for the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 7);
    for round in 0..10 {
        let mut back = [0; 100];
        side.done.clear();
        side.send(channel, round, &[round as u8; 100]).unwrap();
        side.receive(channel, round, &mut back).unwrap();
        side.complete(2);
        side.assert_all_done(2);
        assert_eq!(back, [round as u8; 100]);
    }
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn shared_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:iccl")).count()
}

/// B091, B092: channels and domains come and go and leave nothing.
fn no_leak() {
    let round = || {
        let (mut left, mut right, dialer, acceptor) = pair(4096);
        let mut back = [0; 8];
        left.send(dialer, 1, &[5; 8]).unwrap();
        right.receive(acceptor, 1, &mut back).unwrap();
        both(&mut left, &mut right, |_, right| right.done.len() == 1);
        let _wakers = (left.domain.waker(), right.domain.waker());
        left.domain.channel_close(dialer).unwrap();
        // A failed attempt as well.
        let gone = Side::rank(2, 4096).domain.address().unwrap();
        let failed = right.open(0, 9, Some(&gone)).unwrap();
        assert!(right.state(failed).is_err());
        drop(left);
        assert!(shared_mappings() > 0, "the count does not see anything");
    };
    round();
    let before = (open_descriptors(), shared_mappings());
    for _ in 0..200 {
        round();
    }
    assert_eq!((open_descriptors(), shared_mappings()), before);
    // In one pair of domains, too.
    let (mut left, mut right, ..) = pair(4096);
    let before = (open_descriptors(), shared_mappings());
    for number in 100..300 {
        let (dialer, acceptor) = super::common::connect(&mut left, &mut right, number);
        left.domain.channel_close(dialer).unwrap();
        right.domain.channel_close(acceptor).unwrap();
    }
    left.step();
    right.step();
    assert_eq!((open_descriptors(), shared_mappings()), before);
    assert_eq!(names_in_dev_shm(), Vec::<String>::new());
}

pub(crate) fn names_in_dev_shm() -> Vec<String> {
    let Ok(folder) = std::fs::read_dir("/dev/shm") else { return Vec::new() };
    folder
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.contains("iccl"))
        .collect()
}

/// B093: a process that may not make files of that size gets an error on both sides, no signal.
fn limited() {
    let limit = libc::rlimit { rlim_cur: 70_000, rlim_max: 70_000 };
    // SAFETY: the limit is valid for the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
    let (mut left, mut right) = (Side::rank(0, 4096), Side::rank(1, 4096));
    let address = right.domain.address().unwrap();
    let dialer = left.open(1, 1, Some(&address)).unwrap();
    let acceptor = right.open(0, 1, None).unwrap();
    both(&mut left, &mut right, |left, right| {
        left.state(dialer).is_err() && right.state(acceptor).is_err()
    });
    for error in [left.state(dialer).unwrap_err(), right.state(acceptor).unwrap_err()] {
        assert_eq!(error.status, Status::OutOfResources);
        assert!(error.message.contains("73728 bytes needed"), "{error}");
        assert!(error.message.contains("70000 available"), "{error}");
    }
    assert!(left.state(dialer).unwrap_err().message.starts_with("attach failed: rank 1"));
}

fn cpu_time() -> Duration {
    // SAFETY: a `rusage` of zeroes is one, and the pointer to it is valid for the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut usage), 0);
        usage
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// B095: who waits for a message that does not come uses no processor.
fn idle() {
    const IDLE: Duration = Duration::from_secs(1);
    let (mut left, mut right, dialer, _acceptor) = pair(4096);
    let mut never = [0; 8];
    left.receive(dialer, 1, &mut never).unwrap();
    left.step();
    right.step();
    let (began, used) = (Instant::now(), cpu_time());
    left.domain.wait(IDLE).unwrap();
    assert!(began.elapsed() >= IDLE, "it woke for nothing after {:?}", began.elapsed());
    let used = cpu_time().saturating_sub(used);
    assert!(used < IDLE / 10, "waiting took {used:?} of processor time");
}

/// Where this process has mapped the control words of its channels.
fn control_words() -> Vec<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let starts = maps.lines().filter(|line| line.contains("memfd:iccl-channel")).map(|line| {
        u64::from_str_radix(line.split_once('-').expect("a range").0, 16).expect("an address")
    });
    starts.collect()
}

/// Writes where a peer gone mad might write.
fn scribble(address: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let memory = std::fs::File::options().write(true).open("/proc/self/mem").unwrap();
    memory.write_all_at(bytes, address).unwrap();
}

/// Control words that say nonsense end the channel on both sides.
fn corrupted() {
    let (mut left, mut right, dialer, acceptor) = pair(4096);
    let (sent, mut back) = (pattern(1, 100_000), vec![0xee; 64]);
    left.send(dialer, 1, &sent).unwrap();
    for _ in 0..10 {
        left.step();
    }
    right.receive(acceptor, 1, &mut back).unwrap();
    let controls = control_words();
    assert_eq!(controls.len(), 2, "one mapping on each side");
    // Head, tail and the request for room; the word that says `closed` is left alone.
    scribble(controls[0], &[0xff; 300]);
    left.step();
    right.step();
    for (side, channel) in [(&left, dialer), (&right, acceptor)] {
        let ended: Vec<Status> = side.done.iter().map(Completion::outcome).collect();
        assert_eq!(ended, [Status::Internal; 2]);
        let error = side.state(channel).unwrap_err();
        assert!(error.message.contains("shared memory is corrupted"), "{error}");
    }
    assert!(back.iter().all(|byte| *byte == 0xee));
}

/// Whatever is written into the shared memory, nothing outside posted buffers is touched, and
/// nothing crashes or hangs.
fn scribbled() {
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut failed = 0;
    for round in 0..300 {
        let (mut left, mut right, dialer, acceptor) = pair(4096);
        let sent = pattern(round, 9000);
        let mut back = vec![0xee; 3 * 9000];
        for tag in 0..3 {
            left.send(dialer, tag, &sent).unwrap();
        }
        right.receive(acceptor, 0, &mut back[9000..18_000]).unwrap();
        for _ in 0..20 {
            if random(3) == 0 {
                // Words of the control blocks, or bytes of the ring and so of headers.
                let address = control_words()[0];
                if random(2) == 0 {
                    let values = [0, 1, random(9000), u64::MAX, 1 << 63, random(1 << 40)];
                    let value = values[random(6) as usize];
                    scribble(address + 128 * random(8), &value.to_ne_bytes());
                } else {
                    scribble(address + 65_536 + random(4096), &[random(256) as u8; 64]);
                }
            }
            left.step();
            right.step();
            if left.state(dialer).is_err() || right.state(acceptor).is_err() {
                failed += 1;
                break;
            }
        }
        drop((left, right));
        assert!(back[..9000].iter().chain(&back[18_000..]).all(|byte| *byte == 0xee));
    }
    assert!(failed > 100, "only {failed} channels noticed");
}
