//! Measures the transport between two processes of this machine: half the time of a round trip for
//! small messages, spinning and sleeping, and the bandwidth of a stream of large ones.
//!
//! `cargo run --release -p iccl-plugin-transport-shm --example pingpong [RING_BYTES]`

use std::io::{BufRead, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{
    ChannelRequest, CompletionSink, DomainRequest, Plugin, PostedMessage, Progress, Settings,
    Transport, TransportDomain,
};
use iccl_plugin_api::tables::{Completion, Segment};
use iccl_plugin_transport_shm::{ShmDomain, ShmTransport};

const STREAM_BYTES: usize = 64 << 20;
const STREAM_ROUNDS: usize = 32;
/// The argument of the second process.
const PEER: &str = "peer";
const PATIENCE: Duration = Duration::from_secs(20);

struct Side {
    domain: ShmDomain,
    channel: u64,
    sleeps: bool,
}

impl Side {
    fn open(rank: u32, ring_bytes: Option<&str>, address: Option<&[u8]>) -> Self {
        let settings = ring_bytes.map(|value| ("ring_bytes", value)).into_iter().collect();
        let transport = ShmTransport::probe(&Settings::new(settings)).expect("settings");
        let mut domain = transport
            .open(&DomainRequest {
                communicator: 1,
                rank,
                ranks: 2,
                local_ranks: 2,
                job_key: &[1; 32],
                interface: "",
                handshake_timeout: PATIENCE,
                connect_timeout: PATIENCE,
            })
            .expect("a domain");
        let request = ChannelRequest {
            peer: 1 - rank,
            dial: address.is_some(),
            channel: 0,
            link_digest: 0,
            address: address.unwrap_or_default(),
        };
        let channel = domain.channel_open(&request).expect("a channel");
        Self { domain, channel, sleeps: false }
    }

    fn connect(&mut self) {
        while self.domain.channel_state(self.channel).expect("the peer") == Progress::Pending {
            self.domain.wait(PATIENCE).expect("wait");
            self.progress();
        }
    }

    fn progress(&mut self) -> usize {
        let mut room = [const { std::mem::MaybeUninit::<Completion>::uninit() }; 16];
        let mut sink = CompletionSink::new(&mut room);
        self.domain.progress(&mut sink).expect("progress");
        let used = sink.used();
        for completion in &room[..used] {
            // SAFETY: the sink has written that many.
            let status = unsafe { completion.assume_init() }.status;
            assert_eq!(status, Status::Ok.code(), "a message failed");
        }
        used
    }

    fn post(&mut self, send: bool, buffer: &mut [u8]) {
        let segments =
            [Segment { address: buffer.as_mut_ptr().cast(), length: buffer.len() as u64, key: 0 }];
        let message = PostedMessage { token: 0, segments: &segments, envelope: &[0; 64] };
        // SAFETY: every caller completes the message before it touches or drops the buffer.
        unsafe {
            if send {
                self.domain.post_send(self.channel, message)
            } else {
                self.domain.post_receive(self.channel, message)
            }
        }
        .expect("a post");
    }

    fn complete(&mut self, count: usize) {
        let mut done = self.progress();
        while done < count {
            if self.sleeps {
                self.domain.wait(PATIENCE).expect("wait");
            }
            done += self.progress();
        }
    }

    /// The same on both sides, but for who sends first.
    fn ping_pong(&mut self, first: bool, bytes: usize, rounds: u32) -> Duration {
        let (mut out, mut back) = (vec![1; bytes], vec![0; bytes]);
        let began = Instant::now();
        for _ in 0..rounds {
            self.post(false, &mut back);
            if first {
                self.post(true, &mut out);
            } else {
                self.complete(1);
                self.post(true, &mut out);
            }
            self.complete(if first { 2 } else { 1 });
        }
        began.elapsed() / (2 * rounds)
    }

    /// Two messages are always on their way; the receiver acknowledges the last one.
    fn stream(&mut self, sends: bool) -> f64 {
        let mut buffers = [vec![1; STREAM_BYTES], vec![2; STREAM_BYTES]];
        let mut last = [0; 1];
        let began = Instant::now();
        for round in 0..STREAM_ROUNDS {
            self.post(sends, &mut buffers[round % 2]);
            if round > 0 {
                self.complete(1);
            }
        }
        self.complete(1);
        self.post(!sends, &mut last);
        self.complete(1);
        (STREAM_BYTES * STREAM_ROUNDS) as f64 / began.elapsed().as_secs_f64() / 1e9
    }

    fn run(&mut self, first: bool) {
        for sleeps in [false, true] {
            self.sleeps = sleeps;
            let how = if sleeps { "wait" } else { "spin" };
            for (bytes, rounds) in [(8, 50_000), (1024, 50_000), (65_536, 5_000)] {
                self.ping_pong(first, bytes, rounds / 10);
                let half = self.ping_pong(first, bytes, rounds);
                if first {
                    println!("{how}  half round trip {bytes:>6} B  {:>8.2} us", micros(half));
                }
            }
            let speed = self.stream(first);
            if first {
                println!("{how}  stream of {} MiB messages  {speed:.2} GB/s", STREAM_BYTES >> 20);
            }
        }
    }
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ring_bytes = arguments.first().filter(|bytes| *bytes != PEER).map(String::as_str);
    if arguments.iter().any(|argument| argument == PEER) {
        // The second process: it says where it is and plays along.
        let mut side = Side::open(1, ring_bytes, None);
        let address = side.domain.address().expect("an address");
        for byte in address {
            print!("{byte:02x}");
        }
        println!();
        std::io::stdout().flush().expect("standard output");
        side.connect();
        side.run(false);
        return;
    }
    let mut peer = Command::new(std::env::current_exe().expect("own path"))
        .args(ring_bytes)
        .arg(PEER)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a second process");
    let mut line = String::new();
    let output = peer.stdout.take().expect("its output");
    std::io::BufReader::new(output).read_line(&mut line).expect("its address");
    let address: Vec<u8> = (0..line.trim().len() / 2)
        .map(|at| u8::from_str_radix(&line[2 * at..2 * at + 2], 16).expect("an address"))
        .collect();
    let mut side = Side::open(0, ring_bytes, Some(&address));
    side.connect();
    side.run(true);
    assert!(peer.wait().expect("its end").success());
}
