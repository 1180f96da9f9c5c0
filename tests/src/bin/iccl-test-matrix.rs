//! The matrix of operations, types, algorithms and transports: see `iccl_tests::matrix`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use iccl_runtime::schedule::Algorithm;
use iccl_tests::matrix::coordinator::{
    Block, Column, Device, Ranks, Summary, Transport, run_placed,
};
use iccl_tests::matrix::{Cell, covering, declared, product, rank, soak};

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

const USAGE: &str = "usage:
  iccl-test-matrix soak SEED OPERATIONS         one rank of a soak, its place in the environment
  iccl-test-matrix full STATE_FILE COMMIT       the full product; blocks in the file are not run again
  iccl-test-matrix huge                         vectors of more than 2^31 elements and 4 GiB
  iccl-test-matrix covering STRENGTH SEED       a covering array
  iccl-test-matrix cell RANKS shm|tcp|mixed host|sim-nvidia auto|ALGORITHM CELL";

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::new("warn");
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let program = std::env::current_exe().expect("a program has a path");
    let program = program.to_str().expect("a path that is text");
    let summary = match words[..] {
        ["rank", number, ranks, transport, device, meeting] => {
            let number = number.parse().expect("a rank");
            let of = who(ranks, transport, device);
            return match rank::run(number, of, Path::new(meeting)) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    println!("error {error}");
                    ExitCode::FAILURE
                }
            };
        }
        ["soak", seed, operations] => {
            let seed = seed.parse().expect("a seed");
            let outcome = soak::run(seed, operations.parse().expect("a number of operations"));
            return match outcome {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    println!("error {error}");
                    ExitCode::FAILURE
                }
            };
        }
        ["full", state, commit] => full(program, &State::open(Path::new(state), commit)),
        ["huge"] => b025_huge(program),
        ["covering", strength, seed] => {
            let strength = strength.parse().expect("2 or 3");
            run_placed(program, &covering::rows(strength, seed.parse().expect("a seed")))
        }
        ["cell", ranks, transport, device, algorithm, cell] => {
            let of = who(ranks, transport, device);
            let forced = Algorithm::from_name(algorithm);
            let cell: Cell = cell.parse().expect("a cell");
            let block = Block { program, of, talkative: true };
            block.run(&[Column { forced, cells: vec![cell] }])
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    summary.print();
    if summary.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The ranks that the words of a command name.
fn who(ranks: &str, transport: &str, device: &str) -> Ranks {
    Ranks {
        ranks: ranks.parse().expect("a number of ranks"),
        transport: Transport::from_name(transport).expect("a transport"),
        device: Device::from_name(device).expect("a device"),
    }
}

/// Two ranks and vectors of more than 2^31 elements, or more than 4 GiB.
fn b025_huge(program: &str) -> Summary {
    let mut summary = Summary::default();
    for (transport, algorithm, text) in [
        (Transport::Shm, "auto", "broadcast/u8/sum/in/2147483665/1/odd/single"),
        (Transport::Tcp, "auto", "broadcast/u8/sum/in/4294967313/0/guard/single"),
        (Transport::Shm, "auto", "send/u8/sum/out/2147483665/0/line/single"),
        (Transport::Shm, "auto", "all_gather/u8/sum/in/2147483665/0/element/single"),
        (Transport::Shm, "auto", "all_reduce/u8/sum/in/4294967313/0/odd/single"),
        (Transport::Shm, "ring", "all_reduce/i16/sum/in/2147483665/0/line/single"),
        (Transport::Shm, "auto", "reduce_scatter/f64/sum/in/268435489/0/line/single"),
    ] {
        let cell: Cell = text.parse().expect("a cell");
        let needed = product::bytes(&cell, 2) + (1 << 30);
        let available = available_bytes();
        let place = format!("2 ranks, {}, {algorithm}: {cell}", transport.name());
        if available < needed {
            let text = format!("not run: it needs {needed} bytes of memory, {available} are there");
            summary.wrong.push(format!("{place}: {text}"));
            continue;
        }
        let started = Instant::now();
        let of = Ranks { ranks: 2, transport, device: Device::Host };
        let block = Block { program, of, talkative: true };
        let column = Column { forced: Algorithm::from_name(algorithm), cells: vec![cell] };
        let of_cell = block.run(&[column]);
        println!("{place}: {} right, {} s", of_cell.right, started.elapsed().as_secs());
        summary.add(of_cell);
    }
    summary
}

/// Memory that can be had without swapping.
fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("/proc is mounted");
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("a size") << 10
}

/// Which blocks were right, and what came of them; begun anew for another commit.
struct State {
    path: PathBuf,
    done: Vec<String>,
}

impl State {
    fn open(path: &Path, commit: &str) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let mut lines = text.lines().map(str::to_owned);
        if lines.next().as_deref() == Some(commit) {
            return Self { path: path.to_owned(), done: lines.collect() };
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).expect("the folder of the state");
        }
        std::fs::write(path, format!("{commit}\n")).expect("the state can be written");
        Self { path: path.to_owned(), done: Vec::new() }
    }

    /// What came of a block, if it was right: how many cells ran, and which were refused.
    fn of(&self, block: &str) -> Option<Summary> {
        let mut lines = self.done.iter().filter_map(|line| line.strip_prefix(block));
        let mut fields = lines.next()?.split('\t').skip(1);
        let right = fields.next()?.parse().ok()?;
        let refused = fields.filter_map(|field| {
            let (times, reason) = field.split_once(' ')?;
            Some((reason.to_owned(), times.parse().ok()?))
        });
        Some(Summary { right, refused: refused.collect(), wrong: Vec::new() })
    }

    fn add(&self, block: &str, summary: &Summary) {
        let mut line = format!("{block}\t{}", summary.right);
        for (reason, times) in &summary.refused {
            let _ = write!(line, "\t{times} {reason}");
        }
        let mut file =
            std::fs::OpenOptions::new().append(true).open(&self.path).expect("the state");
        writeln!(file, "{line}").expect("the state can be written");
    }
}

/// Every cell for every number of ranks, over every transport, on every device, by every algorithm.
fn full(program: &str, state: &State) -> Summary {
    let began = Instant::now();
    let mut summary = Summary::default();
    let ways = Transport::ALL.map(|transport| Device::ALL.map(|device| (transport, device)));
    for ranks in product::RANKS {
        for (transport, device) in ways.iter().flatten().copied() {
            if ranks == 1 && transport != Transport::Shm {
                // A single rank is joined to nobody.
                continue;
            }
            let of = Ranks { ranks, transport, device };
            let name = of.to_string();
            if let Some(before) = state.of(&name) {
                println!("{name}: right before, {} cells", before.right);
                summary.add(before);
                continue;
            }
            let started = Instant::now();
            let forced = declared::forcible().into_iter().map(Some);
            let mut columns: Vec<Column> = [None]
                .into_iter()
                .chain(forced)
                .map(|forced| Column { forced, cells: product::cells(ranks, forced) })
                .collect();
            let count = |columns: &[Column]| -> usize {
                columns.iter().map(|column| column.cells.len()).sum()
            };
            let all = count(&columns);
            for column in &mut columns {
                column.cells.retain(|cell| product::fits(cell, ranks));
            }
            let planned = count(&columns);
            let limit = product::MOST_BYTES >> 20;
            println!("{name}: {planned} cells; {} exceed {limit} MiB, left out", all - planned);
            let block = Block { program, of, talkative: true };
            let of_block = block.run(&columns);
            println!(
                "{name}: {} right, {} refused, {} wrong, {} s (all: {} s)",
                of_block.right,
                of_block.refusals(),
                of_block.wrong.len(),
                started.elapsed().as_secs(),
                began.elapsed().as_secs()
            );
            if of_block.wrong.is_empty() {
                let accounted = of_block.right + of_block.refusals();
                assert_eq!(accounted, planned as u64, "{name}: cells were left out");
                state.add(&name, &of_block);
            }
            summary.add(of_block);
        }
    }
    let reasons: BTreeSet<_> = summary.refused.keys().collect();
    println!("{} reasons for refusals; {} s", reasons.len(), began.elapsed().as_secs());
    summary
}
