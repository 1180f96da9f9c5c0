//! Half round-trip times and stream bandwidth over loopback between two threads, by number of
//! sockets: `cargo run --release -p iccl-plugin-transport-tcp --example pingpong`.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use iccl_plugin_api::sdk::{
    ChannelRequest, CompletionSink, DomainRequest, Plugin, PostedMessage, Progress, Settings,
    Transport, TransportDomain,
};
use iccl_plugin_api::tables::{ENVELOPE_BYTES, Segment, completion_kind};
use iccl_plugin_transport_tcp::{TcpDomain, TcpTransport};

const ENVELOPE: [u8; ENVELOPE_BYTES] = [0; ENVELOPE_BYTES];

struct End {
    domain: TcpDomain,
    channel: u64,
    sent: u64,
    received: u64,
}

impl End {
    fn open(settings: &[(&str, &str)], rank: u32) -> TcpDomain {
        let transport = TcpTransport::probe(&Settings::new(settings.to_vec())).expect("settings");
        let timeout = Duration::from_secs(20);
        let request = DomainRequest {
            communicator: 1,
            rank,
            ranks: 2,
            local_ranks: 2,
            job_key: &[3; 32],
            interface: "",
            handshake_timeout: timeout,
            connect_timeout: timeout,
        };
        transport.open(&request).expect("a domain")
    }

    fn new(mut domain: TcpDomain, peer: u32, dial: Option<&[u8]>) -> Self {
        let address = dial.unwrap_or_default();
        let dial = dial.is_some();
        let request = ChannelRequest { peer, dial, channel: 1, link_digest: 0, address };
        let channel = domain.channel_open(&request).expect("a channel");
        let mut end = Self { domain, channel, sent: 0, received: 0 };
        while end.domain.channel_state(channel).expect("the peer") == Progress::Pending {
            end.progress();
        }
        end
    }

    fn post(&mut self, memory: &mut [u8], is_send: bool) {
        let (address, length) = (memory.as_mut_ptr().cast(), memory.len() as u64);
        let segments = [Segment { address, length, key: 0 }];
        let message = PostedMessage { token: 0, segments: &segments, envelope: &ENVELOPE };
        // SAFETY: the memory outlives the completion, which every caller waits for; what arrives in
        // it does not matter.
        unsafe {
            if is_send {
                self.domain.post_send(self.channel, message).expect("a send");
            } else {
                self.domain.post_receive(self.channel, message).expect("a receive");
            }
        }
    }

    fn progress(&mut self) {
        let mut room = [const { MaybeUninit::uninit() }; 16];
        let mut sink = CompletionSink::new(&mut room);
        self.domain.progress(&mut sink).expect("progress");
        let used = sink.used();
        for completion in &room[..used] {
            // SAFETY: the sink has written the first `used` ones.
            let completion = unsafe { completion.assume_init_ref() };
            assert_eq!(completion.status, 0, "a message failed");
            match completion.kind {
                completion_kind::SEND => self.sent += 1,
                _ => self.received += 1,
            }
        }
    }

    fn finish(&mut self, sent: u64, received: u64) {
        while self.sent < sent || self.received < received {
            self.progress();
        }
    }
}

fn ping_pong(end: &mut End, memory: &mut [u8], rounds: u64, starts: bool) -> Duration {
    let start = Instant::now();
    for _ in 0..rounds {
        let (sent, received) = (end.sent, end.received);
        end.post(memory, false);
        if !starts {
            end.finish(sent, received + 1);
        }
        end.post(memory, true);
        end.finish(sent + 1, received + 1);
    }
    start.elapsed() / (2 * rounds as u32)
}

fn stream(end: &mut End, memory: &mut [u8], rounds: u64, sends: bool) -> Duration {
    let start = Instant::now();
    let (sent, received) = (end.sent, end.received);
    for round in 1..=rounds {
        end.post(memory, sends);
        // Two are under way at a time.
        let over = round - 1;
        if sends { end.finish(sent + over, received) } else { end.finish(sent, received + over) }
    }
    if sends {
        end.finish(sent + rounds, received)
    } else {
        end.finish(sent, received + rounds)
    }
    start.elapsed()
}

const SIZES: [(usize, u64); 5] =
    [(8, 20_000), (16 << 10, 10_000), (64 << 10, 5000), (1 << 20, 400), (64 << 20, 8)];
const STREAM: (usize, u64) = (64 << 20, 16);

fn run(end: &mut End, starts: bool) -> Vec<f64> {
    let mut memory = vec![1; 64 << 20];
    let mut figures = Vec::new();
    for (bytes, rounds) in SIZES {
        ping_pong(end, &mut memory[..bytes], rounds / 10 + 1, starts);
        let half = ping_pong(end, &mut memory[..bytes], rounds, starts);
        figures.push(half.as_secs_f64() * 1e6);
    }
    let (bytes, rounds) = STREAM;
    let time = stream(end, &mut memory[..bytes], rounds, starts);
    figures.push((bytes as u64 * rounds) as f64 / time.as_secs_f64() / 1e9);
    figures
}

fn main() {
    println!(
        "{:>7} {:>9} | half round trip in us at 8 B, 16 KiB, 64 KiB, 1 MiB, 64 MiB | stream GB/s",
        "sockets", "stripe"
    );
    let stripes: Vec<String> = std::env::args().skip(1).collect();
    let stripes = if stripes.is_empty() { vec!["262144".to_owned()] } else { stripes };
    for stripe in &stripes {
        for sockets in ["1", "2", "4"] {
            let settings = [("sockets_per_peer", sockets), ("stripe_bytes", stripe.as_str())];
            let (left, right) = (End::open(&settings, 0), End::open(&settings, 1));
            let address = left.address().expect("an address");
            let figures = std::thread::scope(|scope| {
                scope.spawn(|| run(&mut End::new(left, 1, None), false));
                run(&mut End::new(right, 0, Some(&address)), true)
            });
            let text: Vec<_> = figures.iter().map(|figure| format!("{figure:9.2}")).collect();
            println!("{sockets:>7} {stripe:>9} | {}", text.join(" "));
        }
    }
}
