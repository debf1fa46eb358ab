//! What the scheduler gave a worker thread. Deliberately not here: whether that was enough; the controller judges.

use partywall_clock::{self as clock, Nanos};

/// Reads the calling thread's own account.
pub(crate) struct ThreadClock {
    cpu_ns: Nanos,
    run_delay_ns: Option<Nanos>,
}

impl ThreadClock {
    pub(crate) fn new() -> Self {
        Self { cpu_ns: clock::thread_cpu(), run_delay_ns: run_delay() }
    }

    /// CPU time used and time spent waiting for a CPU since the last step.
    pub(crate) fn step(&mut self) -> (Nanos, Option<Nanos>) {
        let before = std::mem::replace(self, Self::new());
        let delay = self.run_delay_ns.zip(before.run_delay_ns).map(|(now, then)| now.saturating_sub(then));
        (self.cpu_ns.saturating_sub(before.cpu_ns), delay)
    }
}

/// The second figure of schedstat: time on a run queue without running. None where the kernel keeps no such account.
fn run_delay() -> Option<Nanos> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}
