//! Computation beside communication: how much of the one is hidden behind the other.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Rows and columns of the matrices that are multiplied: they stay in the nearest cache, so that what is
/// computed takes nothing of the memory's bandwidth.
const SIDE: usize = 24;

/// Times of one iteration, each of the slowest rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Overlap {
    /// The operation alone, from its call to its end.
    pub(super) communication: Duration,
    /// The computation alone, which is made to take about as long.
    pub(super) computation: Duration,
    /// The operation is enqueued, then computed, then waited for.
    pub(super) both: Duration,
}

impl Overlap {
    /// Which part of the shorter of communication and computation was done while the other went on:
    /// (communication + computation - both) / the shorter of them. 1 if it cost no time, 0 if both took as
    /// long as one after the other, less if they were in each other's way.
    pub(super) fn hidden(&self) -> f64 {
        let [communication, computation, both] =
            [self.communication, self.computation, self.both].map(|time| time.as_secs_f64());
        let shorter = communication.min(computation);
        if shorter == 0.0 { 0.0 } else { (communication + computation - both) / shorter }
    }
}

/// Work for the thread that calls: products of small matrices, as many as it is told.
pub(super) struct Computation {
    left: Box<[f32]>,
    right: Box<[f32]>,
    product: Box<[f32]>,
}

impl Computation {
    pub(super) fn new() -> Self {
        let filled = |step: usize| (0..SIDE * SIDE).map(|at| (at % step) as f32).collect();
        Self { left: filled(7), right: filled(5), product: filled(1) }
    }

    /// Multiplies `products` times.
    pub(super) fn run(&mut self, products: u64) {
        for _ in 0..products {
            let (left, right) = (black_box(&self.left), black_box(&self.right));
            for (row, out) in left.chunks_exact(SIDE).zip(self.product.chunks_exact_mut(SIDE)) {
                out.fill(0.0);
                for (factor, other) in row.iter().zip(right.chunks_exact(SIDE)) {
                    for (sum, element) in out.iter_mut().zip(other) {
                        *sum += factor * element;
                    }
                }
            }
            black_box(&mut self.product);
        }
    }

    /// How many products take about `time`; at least one.
    pub(super) fn products_in(&mut self, time: Duration) -> u64 {
        let started = Instant::now();
        let mut products = 0;
        while products == 0 || started.elapsed() < time {
            self.run(1);
            products += 1;
        }
        products
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(communication: u64, computation: u64, both: u64) -> f64 {
        let [communication, computation, both] =
            [communication, computation, both].map(Duration::from_micros);
        Overlap { communication, computation, both }.hidden()
    }

    #[test]
    fn what_is_hidden_is_the_part_of_the_shorter_that_cost_no_time() {
        let expected = [
            ((100, 100, 200), 0.0),
            ((100, 100, 100), 1.0),
            ((100, 100, 150), 0.5),
            ((100, 400, 400), 1.0),
            ((400, 100, 450), 0.5),
            ((100, 100, 220), -0.2),
            ((0, 100, 100), 0.0),
        ];
        for ((communication, computation, both), part) in expected {
            let got = hidden(communication, computation, both);
            assert!((got - part).abs() < 1e-9, "{communication} {computation} {both}: {got}");
        }
    }

    #[test]
    fn products_are_products() {
        let mut computation = Computation::new();
        computation.run(2);
        let Computation { left, right, product } = &computation;
        for (row, column) in [(0, 0), (3, 17), (SIDE - 1, SIDE - 1)] {
            let sum: f32 =
                (0..SIDE).map(|at| left[row * SIDE + at] * right[at * SIDE + column]).sum();
            assert!((product[row * SIDE + column] - sum).abs() < f32::EPSILON);
        }
        assert!(computation.products_in(Duration::ZERO) == 1);
        assert!(computation.products_in(Duration::from_millis(20)) > 1);
    }
}
