//! How long a worker thread presses: the CPU time of a kernel that computes, and of one that waits for a device or a peer the
//! waiting too. Time in which it waits for a CPU is not pressing, and neither is a CPU limit that holds it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use partywall_clock::{self as clock, Nanos};
use partywall_sys::account::voluntary_switches;

/// Reading the clocks costs about a microsecond, so steps shorter than this are metered together.
const LEAST_NS: Nanos = 50_000;
/// A thread that is on a CPU for all but this part of the time has not waited.
const UNSEEN: u64 = 16;

/// Meters the calling thread.
pub(crate) struct Meter {
    at_ns: Nanos,
    cpu_ns: Nanos,
    switches: u64,
    account: Account,
}

impl Meter {
    /// From `now_ns` on.
    pub(crate) fn start(now_ns: Nanos) -> Self {
        Self { at_ns: now_ns, cpu_ns: clock::thread_cpu(), switches: voluntary_switches(), account: Account::default() }
    }

    /// A pause ended at `now_ns`. Waiting before is not counted; CPU time is, because the pause itself takes some of the dose.
    pub(crate) fn resume(&mut self, now_ns: Nanos) {
        (self.at_ns, self.switches) = (now_ns, voluntary_switches());
        self.account.skip();
    }

    /// How long it has pressed since it was last asked; 0 if that is not long ago, which is then part of the next answer.
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

/// The kernel's account of the time that the thread was ready to run and had no CPU. Opened when it is first needed: most kernels
/// never wait for anything else.
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

    /// Since it was last asked; 0 the first time, and where the kernel keeps no such account.
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
    fn a_thread_that_computes_presses_for_its_cpu_time() {
        let mut meter = Meter::start(clock::now());
        let (cpu_ns, mut pressed_ns) = (clock::thread_cpu(), 0);
        while clock::thread_cpu() - cpu_ns < 20 * MS {
            pressed_ns += meter.pressed(clock::now());
        }
        assert!(pressed_ns.abs_diff(clock::thread_cpu() - cpu_ns) < MS, "{pressed_ns}");
    }

    #[test]
    fn a_thread_that_waits_for_something_presses_meanwhile_and_a_pause_does_not_count() {
        let begin_ns = clock::now();
        let mut meter = Meter::start(begin_ns);
        clock::sleep_until(begin_ns + 30 * MS);
        let end_ns = clock::now();
        let pressed_ns = meter.pressed(end_ns);
        assert!(pressed_ns > 0 && pressed_ns <= end_ns - begin_ns, "{pressed_ns}");
        clock::sleep_until(end_ns + 30 * MS);
        let resumed_ns = clock::now();
        meter.resume(resumed_ns);
        assert_eq!(meter.pressed(resumed_ns), 0);
    }
}
