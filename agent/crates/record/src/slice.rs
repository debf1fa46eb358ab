//! Slices, the recorder that a worker writes them with, and the tape that another thread drains.

use std::sync::{Arc, Mutex, PoisonError};

use partywall_clock::{self as clock, Nanos};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Histogram, LatencyCounts};

/// Some milliseconds of one worker thread's work. Slices are cut at multiples of their length in monotonic time, so that slots between
/// such multiples contain whole slices. A slice ends with the first operation that ends after its multiple.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Slice {
    /// Worker thread, from 0.
    pub thread: u32,
    /// Monotonic start.
    pub start_ns: Nanos,
    /// Monotonic end. The thread's next slice starts here, unless the thread was switched off.
    pub end_ns: Nanos,
    /// Work done, in the kernel's unit.
    pub work: f64,
    /// CPU time of the worker thread. For the rest of the slice it waited: for I/O, for its turn, or for the hypervisor.
    pub cpu_ns: u64,
    /// Requested intensity, 0 to 1; 1 for a probe.
    pub intensity: f64,
    /// Latencies of the operations that ended in this slice.
    pub latency: Histogram,
}

/// Queue of finished slices. The writer never waits while the reader sends: the lock is held only for a push or a swap.
#[derive(Clone, Default)]
pub struct Tape(Arc<Mutex<Vec<Slice>>>);

impl Tape {
    fn push(&self, slice: Slice) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(slice);
    }

    /// Takes all finished slices.
    #[must_use]
    pub fn take(&self) -> Vec<Slice> {
        // Allocate the new buffer before taking the lock, so that the worker never waits for an allocation.
        let empty = Vec::with_capacity(64);
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), empty)
    }
}

/// Divides one worker's work into slices.
pub struct Recorder {
    tape: Tape,
    slice_ns: Nanos,
    open: Slice,
    latency: LatencyCounts,
    cpu: fn() -> Nanos,
    cpu_start_ns: Nanos,
}

impl Recorder {
    /// A recorder for worker `thread` that starts at `start_ns` and cuts slices at multiples of `slice_ns`.
    #[must_use]
    pub fn new(tape: Tape, thread: u32, slice_ns: Nanos, start_ns: Nanos) -> Self {
        Self::with_cpu_clock(tape, thread, slice_ns, start_ns, clock::thread_cpu)
    }

    /// The same, with the clock of the thread's CPU time.
    #[must_use]
    pub fn with_cpu_clock(tape: Tape, thread: u32, slice_ns: Nanos, start_ns: Nanos, cpu: fn() -> Nanos) -> Self {
        let open = Slice { thread, start_ns, end_ns: start_ns, work: 0.0, cpu_ns: 0, intensity: 1.0, latency: Histogram::default() };
        Self { tape, slice_ns: slice_ns.max(1), open, latency: LatencyCounts::default(), cpu, cpu_start_ns: cpu() }
    }

    /// The worker thread it records.
    #[must_use]
    pub fn thread(&self) -> u32 {
        self.open.thread
    }

    /// Counts the latency of one operation of the open slice.
    pub fn latency(&mut self, value_ns: u64) {
        self.latency.record(value_ns);
    }

    /// Adds `work` that was finished at `now_ns`. Closes the slice if its time is over, and returns whether it did. Closing takes time,
    /// which a caller that times steps must exclude.
    pub fn work(&mut self, work: f64, now_ns: Nanos) -> bool {
        self.open.work += work;
        let over = now_ns / self.slice_ns > self.open.start_ns / self.slice_ns;
        if over {
            self.close(now_ns);
        }
        over
    }

    /// Closes the open slice at `now_ns`, if it is not empty, and opens the next.
    pub fn close(&mut self, now_ns: Nanos) {
        let cpu_ns = (self.cpu)();
        let next = Slice { start_ns: now_ns, end_ns: now_ns, work: 0.0, cpu_ns: 0, latency: Histogram::default(), ..self.open };
        let mut done = std::mem::replace(&mut self.open, next);
        done.end_ns = now_ns;
        done.latency = self.latency.take();
        done.cpu_ns = cpu_ns.saturating_sub(self.cpu_start_ns);
        self.cpu_start_ns = cpu_ns;
        if done.end_ns > done.start_ns {
            self.tape.push(done);
        }
    }

    /// Closes the open slice and sets `intensity` for the following ones.
    pub fn switch(&mut self, intensity: f64, now_ns: Nanos) {
        self.close(now_ns);
        self.open.intensity = intensity;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_cut_by_the_first_operation_after_each_multiple() {
        const SLICE_NS: Nanos = 10_000_000_000;
        let tape = Tape::default();
        let grid = 7 * SLICE_NS;
        let mut recorder = Recorder::new(tape.clone(), 0, SLICE_NS, grid - 10);
        for (at, work) in [(grid - 5, 1.0), (grid + 3, 2.0), (grid + 7, 4.0), (grid + SLICE_NS, 8.0), (grid + 3 * SLICE_NS + 1, 16.0)] {
            recorder.work(work, at);
        }
        let cut: Vec<(Nanos, Nanos, f64)> = tape.take().iter().skip(1).map(|s| (s.start_ns - grid, s.end_ns - grid, s.work)).collect();
        assert_eq!(cut, [(3, SLICE_NS, 12.0), (SLICE_NS, 3 * SLICE_NS + 1, 16.0)]);
    }

    #[test]
    fn nothing_is_recorded_twice_when_the_tape_is_taken() {
        let tape = Tape::default();
        let mut recorder = Recorder::new(tape.clone(), 3, 1_000, 500);
        recorder.work(1.0, 2_500);
        assert_eq!(tape.take().iter().map(|s| (s.thread, s.work)).collect::<Vec<_>>(), [(3, 1.0)]);
        assert!(tape.take().is_empty());
    }
}
