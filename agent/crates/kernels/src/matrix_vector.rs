//! `matrix-vector`: the product of a square matrix and a vector, the load of the migration study (Cervera, section IV). Each worker
//! thread has its own rows; together they compute the whole product. The matrix is read once per product. So a large one measures
//! the path to memory, and a small one the floating-point units.

use std::hint::black_box;
use std::ops::Range;

use partywall_sys::memory::Block;
use schemars::{schema_for, JsonSchema};
use serde::Deserialize;
use serde_json::json;

use crate::blocks::{self, Pages, Round};
use crate::limits::within;
use crate::{
    Entry, Environment, Figure, Held, Holder, Kernel, KernelError, KernelInfo, Latency, Needs, Resource, Roles, Settle, Sink, Unit,
};

/// Elements of the matrix in a step: 512 KiB, some 50 µs.
const ELEMENTS: usize = 64 << 10;
const SIZE_MAX: usize = 1 << 16;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Params {
    /// Rows and columns of the matrix of 8-byte numbers; at least one row for each worker thread.
    #[schemars(range(min = 1, max = 65_536))]
    size: usize,
}

impl Default for Params {
    fn default() -> Self {
        Self { size: 2048 }
    }
}

struct MatrixVector {
    size: usize,
    /// The rows of this worker only.
    matrix: Block,
    vector: Vec<f64>,
    product: Vec<f64>,
    round: Round,
    facts: crate::Params,
}

impl MatrixVector {
    fn build(size: usize, environment: &Environment) -> Result<Self, KernelError> {
        within("size", size, environment.threads.max(1) as usize..=SIZE_MAX)?;
        let rows = share(size, environment.thread, environment.threads);
        let mut facts = crate::Params::new();
        let bytes = rows.len() * size * size_of::<f64>();
        let mut matrix = blocks::untouched("size", bytes, Pages::Ordinary, environment, &mut facts)?;
        matrix.floats_mut().iter_mut().enumerate().for_each(|(at, number)| *number = element(rows.start + at / size, at % size));
        facts.extend([
            ("size".into(), json!(size)),
            ("rows_of_this_worker".into(), json!([rows.start, rows.end])),
            ("matrix_bytes_of_this_worker".into(), json!(bytes)),
        ]);
        let round = Round::new(rows.len(), (ELEMENTS / size).max(1));
        Ok(Self { size, matrix, vector: (0..size).map(entry).collect(), product: vec![0.0; rows.len()], round, facts })
    }
}

impl Kernel for MatrixVector {
    fn step(&mut self, _: &mut dyn Sink) -> Result<f64, KernelError> {
        let rows = self.round.next();
        let matrix = self.matrix.floats()[rows.start * self.size..rows.end * self.size].chunks_exact(self.size);
        let vector = black_box(&self.vector);
        self.product[rows.clone()].iter_mut().zip(matrix).for_each(|(product, row)| *product = dot(row, vector));
        black_box(&self.product);
        Ok((2 * rows.len() * self.size) as f64)
    }

    fn facts(&self) -> crate::Params {
        self.facts.clone()
    }
}

/// The rows of worker `thread` of `threads`: each row belongs to one worker, and the numbers of rows differ by at most one.
fn share(size: usize, thread: u32, threads: u32) -> Range<usize> {
    let threads = threads.max(1) as usize;
    let edge = |thread: usize| thread * size / threads;
    edge(thread as usize)..edge(thread as usize + 1)
}

/// Small whole numbers: any order of summation gives exactly the same product.
fn element(row: usize, column: usize) -> f64 {
    ((row + 3 * column) % 7) as f64 + 1.0
}

fn entry(column: usize) -> f64 {
    (column % 5) as f64 + 1.0
}

/// Sixteen independent sums: enough to keep vector units busy; one sum would wait for each addition.
fn dot(row: &[f64], vector: &[f64]) -> f64 {
    const LANES: usize = 16;
    let mut sums = [0.0; LANES];
    let (rows, vectors) = (row.chunks_exact(LANES), vector.chunks_exact(LANES));
    let rest: f64 = rows.remainder().iter().zip(vectors.remainder()).map(|(left, right)| left * right).sum();
    for (row, vector) in rows.zip(vectors) {
        for ((sum, left), right) in sums.iter_mut().zip(row).zip(vector) {
            *sum += left * right;
        }
    }
    sums.iter().sum::<f64>() + rest
}

pub(crate) const ENTRY: Entry = Entry {
    name: "matrix-vector",
    info: || KernelInfo {
        name: "matrix-vector",
        resource: Resource::Cpu,
        summary: "the product of a matrix with a vector",
        doing: "matrix-multiplying",
        loses: None,
        unit: Unit::Flops,
        figure: Figure::Rate { label: "GFLOPS", divisor: 1e9 },
        also: None,
        latency: Latency::Step("rows of 65536 elements together, at least one row"),
        roles: Roles::Both,
        // On the same CPU it acts like `integer`. A matrix larger than the last cache also displaces a neighbour's data there, like
        // `memory-read`.
        settle: Settle { rise_ns: 2_000_000, release_ns: 1_000_000 },
        needs: Needs {
            memory: &[
                // The rows are divided among the threads; each thread has its own vector.
                Held { by: Holder::AllThreads, times: 8, parameters: &["size", "size"] },
                Held { by: Holder::EachThread, times: 8, parameters: &["size"] },
                Held { by: Holder::AllThreads, times: 8, parameters: &["size"] },
            ],
            ..Needs::NOTHING
        },
        warnings: &[],
        params: schema_for!(Params),
    },
    build: |params, environment| {
        let Params { size } = serde_json::from_value(params.clone().into())?;
        Ok(Box::new(MatrixVector::build(size, environment)?))
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{environment, parsed, Latencies};

    /// The product in integer arithmetic only.
    fn expected(size: usize) -> Vec<u64> {
        let cell = |row: usize, column: usize| ((row + 3 * column) % 7 + 1) as u64 * (column % 5 + 1) as u64;
        (0..size).map(|row| (0..size).map(|column| cell(row, column)).sum()).collect()
    }

    fn worker(size: usize, thread: u32, threads: u32) -> (Vec<u64>, f64) {
        let mut kernel = MatrixVector::build(size, &Environment { thread, threads, ..environment() }).expect("in range");
        let steps = kernel.product.len().div_ceil((ELEMENTS / size).max(1));
        let flops = (0..steps).map(|_| kernel.step(&mut Latencies::default()).expect("arithmetic does not fail")).sum();
        (kernel.product.iter().map(|&number| number as u64).collect(), flops)
    }

    #[test]
    fn workers_together_compute_the_whole_product_and_count_its_operations() {
        for (size, threads) in [(1, 1), (17, 1), (100, 3), (300, 4), (333, 7)] {
            let (products, flops): (Vec<_>, Vec<_>) = (0..threads).map(|thread| worker(size, thread, threads)).unzip();
            assert_eq!(products.concat(), expected(size), "{size} by {threads} workers");
            assert!((flops.iter().sum::<f64>() - (2 * size * size) as f64).abs() < 0.5);
        }
    }

    #[test]
    fn rows_are_shared_evenly_and_none_twice() {
        let shares: Vec<_> = (0..3).map(|thread| share(10, thread, 3)).collect();
        assert_eq!(shares, [0..3, 3..6, 6..10]);
    }

    #[test]
    fn sizes_out_of_range_are_refused_by_name() {
        for (json, threads) in [(r#"{"size": 0}"#, 1), (r#"{"size": 3}"#, 4), (r#"{"size": 65537}"#, 1)] {
            let environment = Environment { threads, ..environment() };
            let error = (ENTRY.build)(&parsed(json), &environment).map(drop).expect_err(json).to_string();
            assert!(error.starts_with("parameter size: "), "{error}");
        }
    }
}
