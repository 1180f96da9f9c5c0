//! b040: connections of others than the job's processes are dropped and stall nobody.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use common::{Options, Pair, Rank, drive, drive_for, pattern};
use iccl_plugin_api::sdk::TransportDomain;
use socket2::SockRef;

fn connect(rank: &Rank) -> TcpStream {
    let stream = TcpStream::connect(rank.domain.listens_on()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    stream
}

/// Whether the other side has closed the connection.
fn is_closed(mut stream: &TcpStream) -> bool {
    loop {
        match stream.read(&mut [0; 256]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn wrong_first_bytes_close_the_connection_at_once() {
    let mut rank = Options::default().open(0);
    let openings: [&[u8]; 4] = [b"GET /metrics HTTP/1.1\r\n\r\n", &[0xff; 8], b"I", b"ICCLwirX"];
    for bytes in openings {
        let mut stream = connect(&rank);
        stream.write_all(bytes).unwrap();
        if bytes == b"I" {
            // A right beginning, then silence: nothing is wrong yet, until its time is over.
            drive_for(&mut [&mut rank], Duration::from_millis(20));
            assert!(!is_closed(&stream));
            stream.write_all(b"x").unwrap();
        }
        drive(&mut [&mut rank], |_| is_closed(&stream));
    }
}

#[test]
fn silence_is_dropped_when_its_time_is_over() {
    let options = Options { handshake_timeout: Duration::from_millis(100), ..Options::default() };
    let mut rank = options.open(0);
    let mut streams: Vec<_> = (0..3).map(|_| connect(&rank)).collect();
    streams[1].write_all(b"ICCLwire").unwrap();
    // Only the domain's own timer ends the sleep.
    drive(&mut [&mut rank], |ranks| {
        let are_closed = streams.iter().all(is_closed);
        if !are_closed {
            ranks[0].domain.wait(common::LONG).unwrap();
        }
        are_closed
    });
}

#[test]
fn replayed_bytes_of_a_true_peer_are_worth_nothing() {
    // Between the true peers sits someone who records what the dialer says.
    let options = Options::default();
    let (mut a, mut b) = (options.open(0), options.open(1));
    let tap = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut address = vec![1, 1, 4];
    address.extend_from_slice(&tap.local_addr().unwrap().port().to_le_bytes());
    address.extend_from_slice(&[127, 0, 0, 1]);
    let (on_a, on_b) = (a.await_peer(1, 5, 1), b.dial(0, 5, 1, &address));
    drive_for(&mut [&mut b], Duration::from_millis(5));
    let (from_b, to_a) = (tap.accept().unwrap().0, connect(&a));
    from_b.set_nonblocking(true).unwrap();
    to_a.set_nonblocking(true).unwrap();
    let mut recorded = Vec::new();
    drive(&mut [&mut a, &mut b], |ranks| {
        let mut buffer = [0; 4096];
        if let Ok(bytes) = (&from_b).read(&mut buffer) {
            recorded.extend_from_slice(&buffer[..bytes]);
            (&to_a).write_all(&buffer[..bytes]).unwrap();
        }
        if let Ok(bytes) = (&to_a).read(&mut buffer) {
            (&from_b).write_all(&buffer[..bytes]).unwrap();
        }
        ranks[0].is_open(on_a) && ranks[1].is_open(on_b)
    });
    assert!(recorded.len() > 100);
    // A second channel, for which the recorder poses as the dialer.
    let second = a.await_peer(1, 6, 1);
    let mut impostor = connect(&a);
    impostor.write_all(&recorded).unwrap();
    drive(&mut [&mut a, &mut b], |_| is_closed(&impostor));
    assert!(!a.is_open(second) && a.is_open(on_a) && a.ended.is_empty());
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn two_hundred_idle_connections_neither_stall_the_job_nor_pile_up() {
    let options = Options { ranks: 3, ..Options::default() };
    let mut pair = Pair::new(&options);
    let idle: Vec<_> = (0..200).map(|_| connect(&pair.a)).collect();
    for stream in (0..50).map(|_| connect(&pair.a)) {
        // Closing with a linger of zero sends a reset.
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
    let (source, mut target) = (pattern(1, 100_000), vec![0; 100_000]);
    for round in 0..10 {
        pair.a.receive(pair.on_a, round, 1, &mut target);
        pair.b.send(pair.on_b, round, 1, &source);
        pair.drive(|a, _| a.take(1).is_some());
        assert!(target == source);
    }
    // A true peer still gets in while they sit there, and only so many are kept.
    let mut third = options.open(2);
    let address = pair.a.domain.address().unwrap();
    let (on_a, on_third) = (pair.a.await_peer(2, 9, 3), third.dial(0, 9, 3, &address));
    drive(&mut [&mut pair.a, &mut pair.b, &mut third], |ranks| {
        ranks[0].is_open(on_a) && ranks[2].is_open(on_third)
    });
    let closed = idle.iter().filter(|stream| is_closed(stream)).count();
    assert!((130..=200).contains(&closed), "{closed} of 200 were dropped");
    assert!(descriptors() < 1000);
}

/// The local addresses of listening sockets, as the kernel lists them.
fn listening(file: &str) -> Vec<String> {
    let table = std::fs::read_to_string(file).unwrap();
    let rows = table.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row[3] == "0A").map(|row| row[1].to_owned()).collect()
}

#[test]
fn b063_only_the_chosen_interface_listens() {
    for interface in ["", "127.0.0.1", "127.0.0.2", "::1"] {
        let rank = Options { interface, ..Options::default() }.open(0);
        let address: SocketAddr = rank.domain.listens_on();
        assert!(address.ip().is_loopback() && address.port() != 0);
        let port = format!(":{:04X}", address.port());
        let mut all = listening("/proc/self/net/tcp");
        all.extend(listening("/proc/self/net/tcp6"));
        let ours: Vec<_> = all.iter().filter(|row| row.ends_with(&port)).collect();
        assert_eq!(ours.len(), 1, "{ours:?}");
        let ip = ours[0].split(':').next().unwrap();
        assert!(ip.bytes().any(|digit| digit != b'0'), "it listens on all addresses");
        if interface.starts_with("127") {
            let last = interface.rsplit('.').next().unwrap();
            assert_eq!(ip, format!("0{last}00007F"));
        }
    }
}
