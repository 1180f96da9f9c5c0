//! One row: time and verification of one case at one size, out of place and in place.

use std::time::{Duration, Instant};

use iccl_runtime::comm::{Buffer, Communicator, Handle};
use rustix::time::{ClockId, clock_gettime};

use super::arena::Arena;
use super::benchmark::{Case, Operation};
use super::layout::Layout;
use super::oracle::Oracle;
use super::overlap::{Computation, Overlap};
use super::team::Team;
use crate::failure::Result;

/// How it is measured.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools)] // As on the command line.
pub(super) struct Effort {
    pub(super) warmup: u32,
    pub(super) iterations: u32,
    /// Verified iterations for each placement.
    pub(super) checks: u32,
    /// Waits for each operation before the next is enqueued.
    pub(super) blocking: bool,
    pub(super) out_of_place: bool,
    pub(super) in_place: bool,
    /// Measures how much is hidden behind computation, and verifies while something is computed.
    pub(super) overlap: bool,
}

/// What was measured for one placement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measurement {
    /// The slowest rank's average.
    pub(super) time: Duration,
    /// Wrong elements over all ranks and verified iterations; `None` if nothing was verified.
    pub(super) wrong: Option<u64>,
    pub(super) overlap: Option<Overlap>,
}

/// Everything that stays the same from row to row.
pub(super) struct Bench<'a> {
    communicator: &'a Communicator,
    team: Team<'a>,
    send: Arena,
    receive: Arena,
    computation: Computation,
    /// How much is computed while a verified operation goes on.
    products: u64,
    effort: Effort,
    wide_sums: bool,
    /// Whether all ranks read the same monotonic clock.
    is_one_clock: bool,
    /// Grows with each verified iteration, on all ranks alike.
    round: u64,
    /// Wrong elements on this rank.
    wrong_here: u64,
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        communicator: &'a Communicator,
        effort: Effort,
        most_bytes: u64,
        wide_sums: bool,
    ) -> Result<Self> {
        let device = communicator.device();
        let team = Team::new(communicator)?;
        let kernel = kernel_number();
        let is_one_clock = team.largest(kernel)? == kernel && team.smallest(kernel)? == kernel;
        let is_one_clock = team.smallest(u64::from(is_one_clock))? == 1;
        Ok(Self {
            communicator,
            team,
            send: Arena::new(device, most_bytes)?,
            receive: Arena::new(device, most_bytes)?,
            computation: Computation::new(),
            products: 0,
            effort,
            wide_sums,
            is_one_clock,
            round: 0,
            wrong_here: 0,
        })
    }

    pub(super) fn is_first(&self) -> bool {
        self.team.is_first()
    }

    /// Wrong elements that this rank saw itself, whatever the others say.
    pub(super) fn wrong_here(&self) -> u64 {
        self.wrong_here
    }

    /// Measures `count` elements; one measurement for each placement that there is.
    pub(super) fn row(
        &mut self,
        case: &Case,
        count: u64,
    ) -> Result<(Option<Measurement>, Option<Measurement>)> {
        let can_be_in_place = case.operation.can_be_in_place();
        let out_of_place = self.effort.out_of_place || !can_be_in_place;
        let in_place = self.effort.in_place && can_be_in_place;
        let out_of_place = out_of_place.then(|| self.measure(case, count, false)).transpose()?;
        let in_place = in_place.then(|| self.measure(case, count, true)).transpose()?;
        Ok((out_of_place, in_place))
    }

    fn measure(&mut self, case: &Case, count: u64, in_place: bool) -> Result<Measurement> {
        let layout = self.layout(case, count);
        let (send, receive) = self.buffers(&layout, in_place)?;
        for _ in 0..self.effort.warmup {
            wait(&self.enqueue(case, &send, &receive, count)?)?;
        }
        self.team.meet()?;
        let started = Instant::now();
        let mut last = Vec::new();
        for _ in 0..self.effort.iterations {
            let handles = self.enqueue(case, &send, &receive, count)?;
            if self.effort.blocking {
                wait(&handles)?;
            } else {
                last = handles;
            }
        }
        // Streams keep the order, so the last ones are over when all are.
        wait(&last)?;
        let time = started.elapsed() / self.effort.iterations.max(1);
        let time = self.team.slowest(time)?;
        let overlap = if self.effort.overlap {
            Some(self.overlap(case, &send, &receive, count)?)
        } else {
            None
        };
        let mut wrong = (self.effort.checks > 0).then_some(0);
        for _ in 0..self.effort.checks {
            let seen = if case.operation == Operation::Barrier {
                self.verify_barrier(case)?
            } else {
                Some(self.verify(&layout, in_place)?)
            };
            self.wrong_here += seen.unwrap_or(0);
            let all = self.team.sum(seen.unwrap_or(0))?;
            wrong = seen.and(wrong).map(|before| before + all);
        }
        Ok(Measurement { time, wrong, overlap })
    }

    /// Times the operation and a computation as long, each alone and both at once.
    fn overlap(
        &mut self,
        case: &Case,
        send: &Buffer,
        receive: &Buffer,
        count: u64,
    ) -> Result<Overlap> {
        let communication = self.average(case, send, receive, count, 0)?;
        let products = self.computation.products_in(communication);
        self.products = products;
        let iterations = self.effort.iterations.max(1);
        let started = Instant::now();
        for _ in 0..iterations {
            self.computation.run(products);
        }
        let computation = self.team.slowest(started.elapsed() / iterations)?;
        let both = self.average(case, send, receive, count, products)?;
        Ok(Overlap { communication, computation, both })
    }

    /// The slowest rank's average time of an operation with `products` computed before it is waited for.
    fn average(
        &mut self,
        case: &Case,
        send: &Buffer,
        receive: &Buffer,
        count: u64,
        products: u64,
    ) -> Result<Duration> {
        let iterations = self.effort.iterations.max(1);
        self.team.meet()?;
        let started = Instant::now();
        for _ in 0..iterations {
            let handles = self.enqueue(case, send, receive, count)?;
            self.computation.run(products);
            wait(&handles)?;
        }
        self.team.slowest(started.elapsed() / iterations)
    }

    fn enqueue(
        &self,
        case: &Case,
        send: &Buffer,
        receive: &Buffer,
        count: u64,
    ) -> Result<Vec<Handle>> {
        Ok(case.enqueue(self.communicator, send, receive, count)?)
    }

    fn layout(&self, case: &Case, count: u64) -> Layout {
        let (rank, ranks) = (self.communicator.rank(), self.communicator.ranks());
        Layout { case: *case, rank, ranks, count }
    }

    /// Input and output: of a buffer each, or of one.
    fn buffers(&self, layout: &Layout, is_joint: bool) -> Result<(Buffer, Buffer)> {
        let bytes = |elements: u64| elements * layout.case.dtype.size_bytes() as u64;
        let input = bytes(layout.input_elements());
        let output = bytes(layout.output_elements());
        if !is_joint {
            return Ok((self.send.vector(input)?, self.receive.vector(output)?));
        }
        let joint = self.receive.vector(bytes(layout.joint_elements()))?;
        let send = joint.slice(bytes(layout.input_offset()), input)?;
        Ok((send, joint.slice(bytes(layout.output_offset()), output)?))
    }

    /// Runs it once on new inputs and poisoned outputs. Gives the wrong elements on this rank.
    fn verify(&mut self, layout: &Layout, in_place: bool) -> Result<u64> {
        self.round += 1;
        let Layout { case, ranks, count, .. } = *layout;
        let oracle = Oracle {
            dtype: case.dtype,
            task: case.task(),
            ranks,
            round: self.round,
            wide_sums: self.wide_sums,
        };
        let images = layout.images(&oracle);
        let is_joint = in_place && layout.can_be_joint();
        if is_joint {
            self.receive.poison(&images.joint)?;
            let offset = layout.input_offset() * case.dtype.size_bytes() as u64;
            self.receive.overwrite(offset, &images.input)?;
        } else {
            self.send.write(&images.input)?;
            if layout.has_output() {
                self.receive.poison(&images.output)?;
            } else {
                self.receive.write(&images.output)?;
            }
        }
        let (send, receive) = self.buffers(layout, is_joint)?;
        let handles = self.enqueue(&case, &send, &receive, count)?;
        self.computation.run(self.products);
        wait(&handles)?;
        if is_joint {
            return self.receive.wrong(&images.joint);
        }
        // What was sent is as it was.
        Ok(self.receive.wrong(&images.output)? + self.send.wrong(&images.input)?)
    }

    /// One rank, each time another, comes late: nobody may have passed before it came. `None` where
    /// the ranks' clocks cannot be compared.
    fn verify_barrier(&mut self, case: &Case) -> Result<Option<u64>> {
        const LATE: Duration = Duration::from_millis(2);
        self.round += 1;
        let late = self.round % u64::from(self.communicator.ranks());
        if late == u64::from(self.communicator.rank()) {
            std::thread::sleep(LATE);
        }
        let empty = self.receive.vector(0)?;
        let came = monotonic_ns();
        wait(&self.enqueue(case, &empty, &empty, 0)?)?;
        let passed = monotonic_ns();
        let last_came = self.team.largest(came)?;
        Ok(self.is_one_clock.then(|| u64::from(passed < last_came)))
    }
}

fn wait(handles: &[Handle]) -> Result<()> {
    handles.iter().try_for_each(Handle::wait)?;
    Ok(())
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The same number in all processes under one kernel, whose clock they share.
fn kernel_number() -> u64 {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = boot.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    // Without one, every process is on its own.
    u64::from_str_radix(&digits, 16).unwrap_or_else(|_| u64::from(std::process::id()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_kernel_has_a_number() {
        assert_eq!(super::kernel_number(), super::kernel_number());
        assert!(super::kernel_number() > u64::from(u32::MAX));
    }
}
