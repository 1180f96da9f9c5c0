//! `cargo xtask`: builds, lays out, shows and tests iccl.

mod ascend;
mod generate;
mod install;
mod layout;
mod mutants;
mod nvidia;
mod pip;
mod rdma;
mod run;
mod sanitizers;
mod test;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use run::Failure;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Builds, lays out, shows and tests iccl", version)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Builds everything and lays out the command and the plugins: target/PROFILE/iccl and
    /// target/PROFILE/plugins/*.so.
    Build {
        /// With optimisations.
        #[arg(long)]
        release: bool,
    },
    /// Builds with optimisations and installs: bin/, lib/, include/ and share/ below a folder.
    Install {
        /// The folder.
        #[arg(long)]
        prefix: PathBuf,
        /// The profile of cargo: release or dev.
        #[arg(long, default_value = "release")]
        profile: String,
    },
    /// Builds, then shows the plugins, a plan, and a verified all-reduce on 4 ranks.
    Demo,
    /// Checks format and lints, builds everything, runs every test.
    Test {
        /// Only the steps whose name contains this text.
        #[arg(long)]
        only: Option<String>,
        /// The steps of the full suite too: every cell of the matrix, vectors of more than 4 GiB. Takes
        /// about half an hour; the matrix goes on where it was broken off.
        #[arg(long)]
        full: bool,
        /// The step `rdma` must run: it is a failure if the packages for its virtual machine are missing.
        #[arg(long)]
        rdma: bool,
    },
    /// Writes what is made from code: the C headers, the layout file, the configuration reference.
    Generate {
        /// Only says what would change, and fails if something would.
        #[arg(long)]
        check: bool,
    },
    /// Compares the NVIDIA plugin with NVIDIA's own headers and libraries, which pip fetches. Needs no
    /// card, and no part of `test`: half a gigabyte comes over the network.
    Nvidia,
    /// Drives the simulated HCCL by HCCL's own bindings for Python, which pip fetches, and compares the
    /// Ascend plugin's numbers with theirs. Needs no card, but Python 3.11, and no part of `test`.
    Ascend,
    /// Breaks the code in known ways, one at a time, and checks that the tests notice.
    Mutants {
        /// Only mutants whose name contains this text.
        #[arg(long)]
        only: Option<String>,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Build { release } => layout::build(if release { "release" } else { "dev" }),
        Task::Install { prefix, profile } => install::install(&prefix, &profile),
        Task::Demo => demo(),
        Task::Test { only, full, rdma } => test::all(only.as_deref(), full, rdma),
        Task::Generate { check } => generate::all(check),
        Task::Nvidia => nvidia::compare(),
        Task::Ascend => ascend::drive(),
        Task::Mutants { only } => mutants::all(only.as_deref()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(text)) => {
            eprintln!("\nxtask: {text}");
            ExitCode::FAILURE
        }
    }
}

fn demo() -> Result<(), Failure> {
    layout::build("release")?;
    let iccl = layout::folder("release").join("iccl");
    run::show(&iccl, &["plugins"])?;
    run::show(&iccl, &["plan", "-n", "4"])?;
    let perf = "perf all_reduce -n 4 -b 8 -e 16M -f 8 --dtype bf16 --op avg";
    run::show(&iccl, &perf.split(' ').collect::<Vec<_>>())?;
    println!("\nEvery element was verified. `iccl --help` shows what else there is.");
    Ok(())
}
