//! Slices, the recorder a worker writes them with, and the tape another thread drains.

use std::sync::{Arc, Mutex, PoisonError};

use partywall_clock::{self as clock, Nanos};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Histogram;

/// About 10 ms of one worker thread's work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Slice {
    /// Worker thread, from 0.
    pub thread: u32,
    /// Monotonic start.
    pub start_ns: Nanos,
    /// Monotonic end; the next slice of the thread starts here unless it was switched off.
    pub end_ns: Nanos,
    /// Work done, in the kernel's unit.
    pub work: f64,
    /// CPU time the worker thread used. The rest of the slice it waited: for I/O, for its turn, or for the hypervisor.
    pub cpu_ns: u64,
    /// Intensity asked for, 0 to 1; 1 for a probe.
    pub intensity: f64,
    /// Latencies of the operations that ended in this slice.
    pub latency: Histogram,
}

/// Where finished slices wait to be taken. The writer never waits for the reader to send: the lock is held for a push or a swap.
#[derive(Clone, Default)]
pub struct Tape(Arc<Mutex<Vec<Slice>>>);

impl Tape {
    fn push(&self, slice: Slice) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(slice);
    }

    /// Takes all finished slices.
    #[must_use]
    pub fn take(&self) -> Vec<Slice> {
        // The new buffer is allocated before the lock is taken, so that the worker never waits for an allocation.
        let empty = Vec::with_capacity(64);
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), empty)
    }
}

/// Cuts one worker's work into slices.
pub struct Recorder {
    tape: Tape,
    slice_ns: Nanos,
    open: Slice,
    cpu_start_ns: Nanos,
}

impl Recorder {
    /// A recorder for worker `thread` that closes a slice with the first operation that ends `slice_ns` after its start.
    #[must_use]
    pub fn new(tape: Tape, thread: u32, slice_ns: Nanos) -> Self {
        let start_ns = clock::now();
        let open = Slice { thread, start_ns, end_ns: start_ns, work: 0.0, cpu_ns: 0, intensity: 1.0, latency: Histogram::default() };
        Self { tape, slice_ns, open, cpu_start_ns: clock::thread_cpu() }
    }

    /// The worker thread it records.
    #[must_use]
    pub fn thread(&self) -> u32 {
        self.open.thread
    }

    /// Counts the latency of one operation of the open slice.
    pub fn latency(&mut self, value_ns: u64) {
        self.open.latency.record(value_ns);
    }

    /// Adds `work` that was finished at `now_ns`; closes the slice if it is long enough.
    pub fn work(&mut self, work: f64, now_ns: Nanos) {
        self.open.work += work;
        if now_ns.saturating_sub(self.open.start_ns) >= self.slice_ns {
            self.close(now_ns);
        }
    }

    /// Closes the open slice at `now_ns`, if it holds any time, and opens the next.
    pub fn close(&mut self, now_ns: Nanos) {
        let cpu_ns = clock::thread_cpu();
        let next = Slice { start_ns: now_ns, end_ns: now_ns, work: 0.0, cpu_ns: 0, latency: Histogram::default(), ..self.open };
        let mut done = std::mem::replace(&mut self.open, next);
        done.end_ns = now_ns;
        done.cpu_ns = cpu_ns.saturating_sub(self.cpu_start_ns);
        self.cpu_start_ns = cpu_ns;
        if done.end_ns > done.start_ns {
            self.tape.push(done);
        }
    }

    /// Closes the open slice and labels what follows with `intensity`.
    pub fn switch(&mut self, intensity: f64, now_ns: Nanos) {
        self.close(now_ns);
        self.open.intensity = intensity;
    }
}
