//! Half round-trip times and stream bandwidth over loopback between two threads, by number of
//! sockets and bytes of a stripe: `cargo run --release -p iccl-plugin-transport-tcp --example pingpong`.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use iccl_plugin_api::sdk::{
    ChannelRequest, CompletionSink, DomainRequest, Plugin, PostedMessage, Progress, Settings,
    Transport, TransportDomain,
};
use iccl_plugin_api::tables::{ENVELOPE_BYTES, Segment, completion_kind};
use iccl_plugin_transport_tcp::{TcpDomain, TcpTransport};

const ENVELOPE: [u8; ENVELOPE_BYTES] = [0; ENVELOPE_BYTES];

/// As an engine does: so many calls without result, then sleep.
const SPINS: u32 = 100;

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
        let mut idle = 0;
        while self.sent < sent || self.received < received {
            let before = (self.sent, self.received);
            self.progress();
            idle = if before == (self.sent, self.received) { idle + 1 } else { 0 };
            if idle > SPINS {
                self.domain.wait(Duration::from_secs(1)).expect("to wait");
            }
        }
    }
}

/// The half round-trip times of the rounds.
fn ping_pong(end: &mut End, memory: &mut [u8], rounds: u64, starts: bool) -> Vec<Duration> {
    let mut times = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        let (sent, received) = (end.sent, end.received);
        end.post(memory, false);
        if !starts {
            end.finish(sent, received + 1);
        }
        end.post(memory, true);
        end.finish(sent + 1, received + 1);
        times.push(start.elapsed() / 2);
    }
    times
}

/// The times of the messages of a stream in one direction, two under way at a time.
fn stream(end: &mut End, memory: &mut [u8], rounds: u64, sends: bool) -> Vec<Duration> {
    let (sent, received) = (end.sent, end.received);
    let finish = |end: &mut End, over: u64| {
        let (sends, receives) = if sends { (over, 0) } else { (0, over) };
        end.finish(sent + sends, received + receives);
    };
    let mut times = Vec::new();
    let mut start = Instant::now();
    for round in 0..rounds {
        end.post(memory, sends);
        finish(end, round);
        times.push(start.elapsed());
        start = Instant::now();
    }
    finish(end, rounds);
    // The first one waits for nothing.
    times.split_off(1)
}

const SIZES: [(usize, u64); 5] =
    [(8, 10_000), (16 << 10, 3000), (64 << 10, 1500), (1 << 20, 150), (64 << 20, 5)];
const STREAM: (usize, u64) = (4 << 20, 200);

/// The best tenth and the median, in microseconds: on a machine that does other things as well, the
/// mean tells about those.
fn summary(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort_unstable();
    let at = |index: usize| times[index].as_secs_f64() * 1e6;
    (at(times.len() / 10), at(times.len() / 2))
}

fn run(end: &mut End, starts: bool) -> Vec<String> {
    let mut memory = vec![1; 64 << 20];
    let mut figures = Vec::new();
    for (bytes, rounds) in SIZES {
        let (best, median) = summary(ping_pong(end, &mut memory[..bytes], rounds, starts));
        figures.push(format!("{best:9.1} /{median:9.1}"));
    }
    let (bytes, rounds) = STREAM;
    let (best, median) = summary(stream(end, &mut memory[..bytes], rounds, starts));
    let rate = |microseconds: f64| bytes as f64 / microseconds / 1e3;
    figures.push(format!("{:6.2} /{:6.2}", rate(best), rate(median)));
    figures
}

fn main() {
    println!("best tenth / median of: half a round trip in us; rate of a stream of 4 MiB in GB/s");
    print!("{:>7} {:>9}", "sockets", "stripe");
    for heading in ["8 B", "16 KiB", "64 KiB", "1 MiB", "64 MiB"] {
        print!(" | {heading:>20}");
    }
    println!(" | {:>14}", "stream");
    let stripes: Vec<String> = std::env::args().skip(1).collect();
    let stripes = if stripes.is_empty() { vec!["262144".to_owned()] } else { stripes };
    for stripe in &stripes {
        for sockets in ["1", "2", "4"] {
            let settings = [("sockets_per_peer", sockets), ("stripe_bytes", stripe.as_str())];
            let (left, right) = (End::open(&settings, 0), End::open(&settings, 1));
            let address = left.address().expect("an address");
            // A sender's times show when the kernel took the bytes: the receiver's are printed.
            let figures = std::thread::scope(|scope| {
                scope.spawn(|| run(&mut End::new(right, 0, Some(&address)), true));
                run(&mut End::new(left, 1, None), false)
            });
            println!("{sockets:>7} {stripe:>9} | {}", figures.join(" | "));
        }
    }
}
