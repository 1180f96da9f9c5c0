//! Strangers on the bootstrap's ports: none may stall a job, end it, or make it grow.

mod bootstrap_support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bootstrap_support::*;
use iccl_runtime::ErrorKind;
use iccl_runtime::bootstrap::{Bootstrap, JoinOptions, Meeting, Rendezvous, UniqueId};
use iccl_wire::{Claim, Context, Handshake, Key, encode_frame};

const ROOT: u64 = u64::MAX - 1;

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim_end_matches(" kB").trim().parse::<usize>().unwrap() * 1024
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Connections of every bad kind.
fn strangers(address: SocketAddr) -> Vec<TcpStream> {
    let connect = || TcpStream::connect(address).unwrap();
    let mut kept: Vec<_> = (0..200).map(|_| connect()).collect();
    for bytes in [
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".as_slice(),
        b"I",
        b"ICCLwire",
        &[0xff; 8],
        &[0; 4096],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ] {
        let mut stream = connect();
        let _ = stream.write_all(bytes);
        kept.push(stream);
    }
    // A reset right after the connection.
    for _ in 0..10 {
        let stream = connect();
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
    kept
}

#[test]
fn b040_strangers_neither_stall_a_job_nor_make_it_grow() {
    let id = unique_id_with(Duration::from_millis(300));
    let before = resident_bytes();
    let descriptors = open_descriptors();
    let kept = strangers(id.address());
    let dripping = {
        let mut stream = TcpStream::connect(id.address()).unwrap();
        std::thread::spawn(move || {
            let started = Instant::now();
            for byte in b"ICCLwire\x01\0\0\0".iter().chain([0; 200].iter()) {
                if stream.write_all(&[*byte]).is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            started.elapsed()
        })
    };
    // The job meets among them.
    let joined = join_all((0..4).map(|rank| options(&id, rank, 4)));
    assert!(joined.iter().all(Result::is_ok), "{joined:?}");
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 10 * 1024 * 1024, "{grown} bytes");
    assert!(dripping.join().unwrap() < Duration::from_secs(4), "dripping kept it open");
    // Every one of them was dropped.
    for mut stream in kept {
        stream.set_read_timeout(Some(PATIENT)).unwrap();
        let mut rest = Vec::new();
        let end = stream.read_to_end(&mut rest);
        assert!(end.is_ok() || end.unwrap_err().kind() == std::io::ErrorKind::ConnectionReset);
    }
    leave(joined.into_iter().map(Result::unwrap).collect());
    let left = open_descriptors();
    assert!(left <= descriptors + 4, "{descriptors} descriptors before, {left} after");
}

#[test]
fn b040_idle_strangers_are_dropped_at_the_handshake_timeout() {
    let id = unique_id_with(Duration::from_millis(200));
    let started = Instant::now();
    let mut idle: Vec<_> = (0..50).map(|_| TcpStream::connect(id.address()).unwrap()).collect();
    for stream in &mut idle {
        stream.set_read_timeout(Some(PATIENT)).unwrap();
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "closed, and nothing was said");
    }
    assert!(started.elapsed() >= Duration::from_millis(200));
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn b040_more_strangers_than_there_is_room_for() {
    let id = unique_id_with(Duration::from_secs(60));
    let idle: Vec<_> = (0..600).map(|_| TcpStream::connect(id.address()).unwrap()).collect();
    // Younger than a second they keep their places; then the oldest give way.
    let joined = join_all((0..3).map(|rank| options(&id, rank, 3)));
    assert!(joined.iter().all(Result::is_ok), "{joined:?}");
    drop(idle);
}

fn dial(key: &Key, job: &[u8], rank: u64) -> Handshake {
    let context = Context { purpose: "iccl-bootstrap/1", job };
    Handshake::dial(key, context, Claim { dialer: rank, acceptor: ROOT, channel: 0 }).unwrap()
}

/// What a client that knows nothing but the address can see and send.
fn exchange(address: SocketAddr, send: &[&[u8]]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut received = Vec::new();
    for bytes in send {
        let _ = stream.write_all(bytes);
        let mut buffer = [0; 512];
        if let Ok(count) = stream.read(&mut buffer) {
            received.extend_from_slice(&buffer[..count]);
        }
    }
    received
}

#[test]
fn b064_recorded_reflected_and_cut_handshakes_let_nobody_in() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let secret = Key::from_bytes([1; 32]);
    let meeting = |port| {
        Rendezvous::Address(Meeting {
            host: "127.0.0.1".into(),
            ports: vec![port],
            job: "j".into(),
            secret: Some(secret.clone()),
        })
    };
    let join = |port, rank| {
        let mut options = JoinOptions::new(meeting(port), rank, 2);
        options.init_timeout = PATIENT;
        options.handshake_timeout = Duration::from_millis(500);
        options
    };
    let root = start(join(port, 0));
    // Rank 1 comes through somebody in between, who records what it says.
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy_port = proxy.local_addr().unwrap().port();
    let address: SocketAddr = ([127, 0, 0, 1], port).into();
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let recorder = Arc::clone(&recorded);
    let between = std::thread::spawn(move || {
        let (mut rank, _) = proxy.accept().unwrap();
        let mut buffer = [0; 4096];
        let count = rank.read(&mut buffer).unwrap();
        recorder.lock().unwrap().push(buffer[..count].to_vec());
        let mut root = std::iter::repeat_with(|| {
            std::thread::sleep(Duration::from_millis(20));
            TcpStream::connect(address)
        })
        .find_map(Result::ok)
        .unwrap();
        root.write_all(&buffer[..count]).unwrap();
        let count = root.read(&mut buffer).unwrap();
        rank.write_all(&buffer[..count]).unwrap();
        let count = rank.read(&mut buffer).unwrap();
        recorder.lock().unwrap().push(buffer[..count].to_vec());
        // It goes no further: rank 1 has to come again on its own.
    });
    let mut through_proxy = join(proxy_port, 1);
    through_proxy.init_timeout = Duration::from_secs(2);
    assert!(Bootstrap::join(through_proxy).is_err());
    between.join().unwrap();
    let recorded = recorded.lock().unwrap().clone();
    assert_eq!(recorded[0].len(), iccl_wire::HELLO_BYTES);
    assert!(recorded[1].len() >= iccl_wire::PROOF_BYTES);

    // Replayed, the root answers with a challenge of its own and takes no old proof.
    let answer = exchange(address, &[&recorded[0], &recorded[1], &[]]);
    assert_eq!(answer.len(), iccl_wire::REPLY_BYTES, "no welcome follows");
    // Reflected: the root's own proof comes back to it.
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENT)).unwrap();
    stream.write_all(&recorded[0]).unwrap();
    let mut reply = [0; iccl_wire::REPLY_BYTES];
    stream.read_exact(&mut reply).unwrap();
    stream.write_all(&reply[iccl_wire::REPLY_BYTES - 32..]).unwrap();
    assert!(matches!(stream.read(&mut [0; 8]), Ok(0) | Err(_)), "dropped without a word");
    // Cut after every byte.
    for cut in (0..recorded[0].len()).step_by(7) {
        drop(TcpStream::connect(address).unwrap().write_all(&recorded[0][..cut]));
    }

    // The real rank 1 still gets in.
    Bootstrap::join(join(port, 1)).unwrap();
    root.join().unwrap().unwrap();
}

/// Proves itself, and then says something that no rank says.
fn insider(address: SocketAddr, key: &Key, job: &[u8], rank: u64, say: &[u8]) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    let mut handshake = dial(key, job, rank);
    iccl_wire::authenticate(&stream, &mut handshake, Instant::now() + PATIENT, None).unwrap();
    (&stream).write_all(say).unwrap();
    stream
}

/// The key of a unique id.
fn key_of(id: &UniqueId) -> Key {
    // Magic 8, version 2, address 23, then the secret.
    let mut secret = [0; 32];
    secret.copy_from_slice(&id.to_bytes()[33..65]);
    Key::from_bytes(secret)
}

#[test]
fn b037_a_rank_that_dies_between_its_proof_and_its_check_in_is_named_soon() {
    let id = unique_id();
    let waiting = start(options(&id, 0, 3));
    let dead = insider(id.address(), &key_of(&id), &id.job(), 1, b"");
    // One that comes again over another connection is not meant.
    let again = insider(id.address(), &key_of(&id), &id.job(), 2, b"");
    drop(again);
    let third = start(options(&id, 2, 3));
    let started = Instant::now();
    drop(dead);
    for thread in [waiting, third] {
        let error = thread.join().unwrap().unwrap_err();
        assert_eq!((error.kind(), error.rank()), (ErrorKind::PeerLost, Some(1)), "{error}");
        assert!(error.message().contains("rank 1 went away before it had checked in"), "{error}");
    }
    assert!(started.elapsed() < PATIENT / 2, "{:?}", started.elapsed());
}

#[test]
fn b065_nonsense_from_somebody_who_knows_the_secret_ends_only_its_connection() {
    let id = unique_id_with(Duration::from_millis(500));
    let key = key_of(&id);
    let mut unknown_message = Vec::new();
    encode_frame(&[200, 1, 2, 3], 100, &mut unknown_message).unwrap();
    let mut empty = Vec::new();
    encode_frame(&[], 100, &mut empty).unwrap();
    for say in [&[0xff; 8][..], &unknown_message, &empty, b""] {
        let mut stream = insider(id.address(), &key, &id.job(), 1, say);
        stream.set_read_timeout(Some(PATIENT)).unwrap();
        assert!(matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_)), "{say:?}");
    }
    let joined = join_all((0..2).map(|rank| options(&id, rank, 2)));
    assert!(joined.iter().all(Result::is_ok), "{joined:?}");
}
