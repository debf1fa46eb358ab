//! Steps of many short operations, each timed with one clock reading: the end of one operation is the start of the next.

use partywall_clock::{self as clock, Nanos};

use crate::{KernelError, Sink};

/// Long enough to make the caller's overhead small, short enough to be paced.
pub(crate) const STEP_NS: Nanos = 50_000;

/// Repeats `once` for about [`STEP_NS`], pushes the duration of each call into `sink`, and returns the sum of their work.
pub(crate) fn timed(sink: &mut dyn Sink, mut once: impl FnMut() -> Result<f64, KernelError>) -> Result<f64, KernelError> {
    let begin = clock::monotonic();
    let mut last = begin;
    let mut work = 0.0;
    while last - begin < STEP_NS {
        work += once()?;
        let now = clock::monotonic();
        sink.latency(now - last);
        last = now;
    }
    Ok(work)
}
