//! `linpack`: solves dense systems of linear equations by elimination with partial pivoting, column by column, and counts operations
//! as LINPACK does (Dongarra, Luszczek and Petitet, "The LINPACK benchmark: past, present and future", Concurrency and Computation
//! 15, 2003). The loops are plain ones over columns, not blocks: each number that is loaded takes part in two operations. So a small
//! system measures the floating-point units and the caches, and one beyond the last cache the path to memory.

use std::hint::black_box;

use partywall_sys::memory::Block;
use schemars::{schema_for, JsonSchema};
use serde::Deserialize;
use serde_json::json;

use crate::blocks::{self, Pages};
use crate::chance::Chance;
use crate::limits::within;
use crate::{
    Entry, Environment, Figure, Held, Holder, Kernel, KernelError, KernelInfo, Latency, Needs, Resource, Roles, Settle, Sink, Unit,
};

/// Operations, and numbers that are copied, in a step: some 50 µs.
const EFFORT: usize = 100_000;
const SIZE_MAX: usize = 1 << 14;
/// Elements are multiples of 1 over this, between -1/2 and 1/2, so that sums of rows are exact.
const GRAIN: usize = 1 << 20;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Params {
    /// Equations and unknowns of a system; each worker thread has a system of its own.
    #[schemars(range(min = 1, max = 16_384))]
    size: usize,
}

impl Default for Params {
    fn default() -> Self {
        Self { size: 100 }
    }
}

/// What is done next of a solution. Numbers are those of columns and unknowns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Copy(usize),
    Pivot(usize),
    Eliminate { pivot: usize, column: usize },
    Forward(usize),
    Backward(usize),
}

struct Linpack {
    size: usize,
    /// Two matrices by columns: as given, and as eliminated.
    matrices: Block,
    sums: Vec<f64>,
    solution: Vec<f64>,
    pivots: Vec<usize>,
    next: Next,
    /// LINPACK's count of a solution's operations over those that are done.
    counted: f64,
    facts: crate::Params,
}

impl Linpack {
    fn build(size: usize, environment: &Environment) -> Result<Self, KernelError> {
        within("size", size, 1..=SIZE_MAX)?;
        let mut facts = crate::Params::new();
        let bytes = 2 * size * size * size_of::<f64>();
        let mut matrices = blocks::untouched("size", bytes, Pages::Ordinary, environment, &mut facts)?;
        let mut chance = Chance::new(environment.seed, environment.thread);
        let mut sums = vec![0.0; size];
        for column in matrices.floats_mut()[..size * size].chunks_exact_mut(size) {
            for (element, sum) in column.iter_mut().zip(&mut sums) {
                *element = chance.below(GRAIN) as f64 / GRAIN as f64 - 0.5;
                *sum += *element;
            }
        }
        facts.extend([("size".into(), json!(size)), ("matrix_bytes_of_this_worker".into(), json!(bytes))]);
        let (solution, pivots) = (vec![0.0; size], vec![0; size]);
        let counted = nominal(size) / operations(size) as f64;
        Ok(Self { size, matrices, sums, solution, pivots, next: Next::Copy(0), counted, facts })
    }

    /// Does what is next. Returns its operations, and its effort, which is never 0.
    fn advance(&mut self) -> (usize, usize) {
        let Self { size, ref mut matrices, ref sums, ref mut solution, ref mut pivots, .. } = *self;
        let (given, matrix) = matrices.floats_mut().split_at_mut(size * size);
        let (next, operations) = match self.next {
            Next::Copy(column) => {
                let elements = column * size..(column + 1) * size;
                matrix[elements.clone()].copy_from_slice(&black_box(given)[elements]);
                if column + 1 < size {
                    self.next = Next::Copy(column + 1);
                } else {
                    solution.copy_from_slice(sums);
                    self.next = Next::Pivot(0);
                }
                return (0, size);
            }
            Next::Pivot(pivot) => {
                let below = &mut matrix[pivot * size + pivot..(pivot + 1) * size];
                let largest = largest(below);
                pivots[pivot] = pivot + largest;
                below.swap(0, largest);
                let scale = -1.0 / below[0];
                below[1..].iter_mut().for_each(|element| *element *= scale);
                let next = if pivot + 1 < size { Next::Eliminate { pivot, column: pivot + 1 } } else { Next::Forward(0) };
                (next, size - pivot)
            }
            Next::Eliminate { pivot, column } => {
                let (before, rest) = matrix.split_at_mut(column * size);
                let changed = &mut rest[pivot..size];
                changed.swap(0, pivots[pivot] - pivot);
                let (first, below) = changed.split_at_mut(1);
                add(first[0], &before[pivot * size + pivot + 1..(pivot + 1) * size], below);
                let next = if column + 1 < size { Next::Eliminate { pivot, column: column + 1 } } else { Next::Pivot(pivot + 1) };
                (next, 2 * (size - pivot - 1))
            }
            Next::Forward(pivot) => {
                solution.swap(pivot, pivots[pivot]);
                let (done, below) = solution.split_at_mut(pivot + 1);
                add(done[pivot], &matrix[pivot * size + pivot + 1..(pivot + 1) * size], below);
                (if pivot + 1 < size { Next::Forward(pivot + 1) } else { Next::Backward(size - 1) }, 2 * (size - pivot - 1))
            }
            Next::Backward(unknown) => {
                let (above, rest) = solution.split_at_mut(unknown);
                rest[0] /= matrix[unknown * size + unknown];
                add(-rest[0], &matrix[unknown * size..unknown * size + unknown], above);
                (if unknown > 0 { Next::Backward(unknown - 1) } else { Next::Copy(0) }, 2 * unknown + 1)
            }
        };
        self.next = next;
        (operations, operations.max(1))
    }
}

impl Kernel for Linpack {
    fn step(&mut self, _: &mut dyn Sink) -> Result<f64, KernelError> {
        let (mut done, mut effort) = (0, 0);
        while effort < EFFORT {
            let (operations, more) = self.advance();
            done += operations;
            effort += more;
        }
        black_box(&self.solution);
        Ok(done as f64 * self.counted)
    }

    fn facts(&self) -> crate::Params {
        self.facts.clone()
    }
}

/// LINPACK's count of the operations of a solution.
fn nominal(size: usize) -> f64 {
    let size = size as f64;
    size * size * (2.0 / 3.0 * size + 2.0)
}

/// Operations of a solution here: to divide by pivots, to eliminate, forward and backward.
fn operations(size: usize) -> usize {
    size * (size + 1) / 2 + size * (size - 1) * (2 * size - 1) / 3 + size * (size - 1) + size * size
}

/// The index of the largest number, regardless of its sign.
fn largest(numbers: &[f64]) -> usize {
    let larger = |best: usize, at: usize| if numbers[at].abs() > numbers[best].abs() { at } else { best };
    (0..numbers.len()).fold(0, larger)
}

/// Adds a multiple of `from` to `to`.
fn add(times: f64, from: &[f64], to: &mut [f64]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += times * from);
}

pub(crate) const ENTRY: Entry = Entry {
    name: "linpack",
    info: || KernelInfo {
        name: "linpack",
        resource: Resource::Cpu,
        summary: "solutions of systems of linear equations",
        doing: "solving equations",
        loses: None,
        unit: Unit::Flops,
        figure: Figure::Rate { label: "GFLOPS", divisor: 1e9 },
        also: None,
        latency: Latency::Step("100,000 operations"),
        roles: Roles::Both,
        // As `matrix-vector`.
        settle: Settle { rise_ns: 2_000_000, release_ns: 1_000_000 },
        needs: Needs {
            memory: &[
                // The matrix twice; sums, solution and pivots.
                Held { by: Holder::EachThread, times: 16, parameters: &["size", "size"] },
                Held { by: Holder::EachThread, times: 24, parameters: &["size"] },
            ],
            ..Needs::NOTHING
        },
        warnings: &[],
        params: schema_for!(Params),
    },
    build: |params, environment| {
        let Params { size } = serde_json::from_value(params.clone().into())?;
        Ok(Box::new(Linpack::build(size, environment)?))
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{environment, fact, parsed, Latencies};

    fn solved(size: usize) -> (Linpack, usize) {
        let mut kernel = Linpack::build(size, &environment()).expect("in range");
        let mut done = 0;
        loop {
            done += kernel.advance().0;
            if kernel.next == Next::Copy(0) {
                return (kernel, done);
            }
        }
    }

    #[test]
    fn every_unknown_is_one_because_the_right_sides_are_the_sums_of_rows() {
        for size in [1, 2, 3, 17, 100, 257] {
            let (kernel, _) = solved(size);
            let off = kernel.solution.iter().map(|unknown| (unknown - 1.0).abs()).fold(0.0, f64::max);
            assert!(off < 1e-8, "{size} equations: off by {off}");
        }
    }

    #[test]
    fn a_second_solution_begins_with_the_given_system() {
        let (mut kernel, done) = solved(40);
        kernel.solution.fill(0.0);
        let again: usize = std::iter::from_fn(|| {
            let operations = kernel.advance().0;
            (kernel.next != Next::Copy(0)).then_some(operations)
        })
        .sum();
        assert_eq!(again + 1, done, "the last unknown is one division");
        assert!(kernel.solution.iter().all(|unknown| (unknown - 1.0).abs() < 1e-8));
    }

    #[test]
    fn operations_of_a_solution_are_those_that_are_done() {
        for size in [1, 2, 3, 10, 100] {
            assert_eq!(solved(size).1, operations(size), "{size} equations");
        }
    }

    #[test]
    fn steps_count_as_linpack_does() {
        assert!((nominal(100) - 686_666.667).abs() < 0.001);
        let mut kernel = Linpack::build(100, &environment()).expect("in range");
        let steps = 700;
        let counted: f64 = (0..steps).map(|_| kernel.step(&mut Latencies::default()).expect("arithmetic does not fail")).sum();
        // Copies are efforts that do not count.
        let expected = f64::from(steps) * EFFORT as f64 * nominal(100) / (operations(100) + 100 * 100) as f64;
        assert!((counted / expected - 1.0).abs() < 0.01, "{counted}, not {expected}");
    }

    #[test]
    fn rows_are_exchanged_where_a_pivot_is_small() {
        assert_eq!(largest(&[0.0, -3.0, 2.0]), 1);
        let (kernel, _) = solved(100);
        assert!(kernel.pivots.iter().enumerate().any(|(at, &pivot)| at != pivot));
    }

    #[test]
    fn sizes_out_of_range_are_refused_by_name_and_the_memory_is_stated() {
        for json in [r#"{"size": 0}"#, r#"{"size": 16385}"#] {
            let error = (ENTRY.build)(&parsed(json), &environment()).map(drop).expect_err(json).to_string();
            assert!(error.starts_with("parameter size: "), "{error}");
        }
        let kernel = (ENTRY.build)(&parsed(r#"{"size": 10}"#), &environment()).expect("in range");
        assert!((fact(kernel.as_ref(), "matrix_bytes_of_this_worker") - 1600.0).abs() < 0.5);
    }
}
