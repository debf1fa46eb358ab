//! Active time of a worker thread: the CPU time of a kernel that computes, plus the waiting time of one that waits for a device or a
//! peer. Time in which it waits for a CPU, or is throttled by a CPU limit, is not active time.

use std::fs::File;
use std::os::unix::fs::FileExt;

use partywall_clock::{self as clock, Nanos};
use partywall_sys::account::voluntary_switches;

/// Reading the clocks costs about a microsecond, so steps shorter than this are metered together.
const LEAST_NS: Nanos = 50_000;
/// A thread has not waited if it was on a CPU for all but this part of the time.
const UNSEEN: u64 = 16;

/// Measures the calling thread.
pub(crate) struct Meter {
    at_ns: Nanos,
    cpu_ns: Nanos,
    switches: u64,
    account: Account,
}

impl Meter {
    /// Starts at `now_ns`.
    pub(crate) fn start(now_ns: Nanos) -> Self {
        Self { at_ns: now_ns, cpu_ns: clock::thread_cpu(), switches: voluntary_switches(), account: Account::default() }
    }

    /// A pause ended at `now_ns`. Its waiting time does not count. Its CPU time does, because the pause uses part of the dose.
    pub(crate) fn resume(&mut self, now_ns: Nanos) {
        (self.at_ns, self.switches) = (now_ns, voluntary_switches());
        self.account.skip();
    }

    /// Active time since the last call. 0 if that was very recent; the time then counts in the next result.
    pub(crate) fn pressed(&mut self, now_ns: Nanos) -> Nanos {
        let wall_ns = now_ns.saturating_sub(self.at_ns);
        if wall_ns < LEAST_NS {
            return 0;
        }
        let cpu_ns = clock::thread_cpu();
        let used_ns = cpu_ns.saturating_sub(self.cpu_ns);
        (self.at_ns, self.cpu_ns) = (now_ns, cpu_ns);
        if wall_ns.saturating_sub(used_ns) < wall_ns / UNSEEN || !self.has_waited() {
            return used_ns;
        }
        wall_ns.saturating_sub(self.account.waited_for_cpu()).max(used_ns)
    }

    fn has_waited(&mut self) -> bool {
        let switches = voluntary_switches();
        std::mem::replace(&mut self.switches, switches) != switches
    }
}

/// The kernel's accounting of time in which the thread was runnable without a CPU. It is opened on first use, because most kernels never
/// wait for anything else.
#[derive(Default)]
struct Account {
    tried: bool,
    file: Option<File>,
    last_ns: Nanos,
}

impl Account {
    fn read(&self) -> Option<Nanos> {
        let mut text = [0; 96];
        let length = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        std::str::from_utf8(&text[..length]).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
    }

    /// Time since the last call. 0 for the first call, and if the kernel has no such accounting.
    fn waited_for_cpu(&mut self) -> Nanos {
        if !self.tried {
            self.tried = true;
            self.file = File::open("/proc/thread-self/schedstat").ok();
            self.skip();
        }
        let now_ns = self.read().unwrap_or(self.last_ns);
        now_ns.saturating_sub(std::mem::replace(&mut self.last_ns, now_ns))
    }

    fn skip(&mut self) {
        self.last_ns = self.read().unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    #[test]
    fn a_computing_thread_is_active_for_its_cpu_time() {
        let mut meter = Meter::start(clock::monotonic());
        let (cpu_ns, mut pressed_ns) = (clock::thread_cpu(), 0);
        while clock::thread_cpu() - cpu_ns < 20 * MS {
            pressed_ns += meter.pressed(clock::monotonic());
        }
        assert!(pressed_ns.abs_diff(clock::thread_cpu() - cpu_ns) < MS, "{pressed_ns}");
    }

    #[test]
    fn a_waiting_thread_is_active_meanwhile_and_a_pause_does_not_count() {
        let begin_ns = clock::monotonic();
        let mut meter = Meter::start(begin_ns);
        clock::sleep_until(begin_ns + 30 * MS);
        let end_ns = clock::monotonic();
        let pressed_ns = meter.pressed(end_ns);
        assert!(pressed_ns > 0 && pressed_ns <= end_ns - begin_ns, "{pressed_ns}");
        clock::sleep_until(end_ns + 30 * MS);
        let resumed_ns = clock::monotonic();
        meter.resume(resumed_ns);
        assert_eq!(meter.pressed(resumed_ns), 0);
    }
}
