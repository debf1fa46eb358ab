//! `wake-up`: sleeps until points in time a period apart and measures how late it wakes. The lateness comes from timers, the
//! scheduler and the hypervisor. The points are fixed beforehand, so a late wake-up does not shift later points.

use std::num::NonZeroU64;

use partywall_clock::{self as clock, Nanos};
use rustix::thread::set_current_timer_slack;
use schemars::{schema_for, JsonSchema};
use serde::Deserialize;
use serde_json::json;

use crate::limits::within;
use crate::{Entry, Figure, Kernel, KernelError, KernelInfo, Latency, Needs, Resource, Roles, Settle, Sink, Unit};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Params {
    /// Time from one wake-up to the next, 50 µs to 100 ms.
    #[schemars(range(min = 50_000, max = 100_000_000))]
    period_ns: Nanos,
    /// How far the operating system may delay the timer to serve several at once. A thread's default is 50 µs, which would hide
    /// what is measured here.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    slack_ns: NonZeroU64,
}

impl Default for Params {
    fn default() -> Self {
        Self { period_ns: 500_000, slack_ns: NonZeroU64::MIN }
    }
}

/// Above this number of missed points in a row only their number is kept: the thread stood still for seconds.
const MISSED_MAX: u64 = 10_000;

struct WakeUp {
    period_ns: Nanos,
    slack_ns: NonZeroU64,
    /// The last point; `None` before the first step.
    last_ns: Option<Nanos>,
    missed: u64,
}

impl Kernel for WakeUp {
    fn step(&mut self, sink: &mut dyn Sink) -> Result<f64, KernelError> {
        if self.last_ns.is_none() {
            // Here and not in `build`, because slack is a property of the sleeping thread.
            let what = format!("setting a timer slack of {} ns", self.slack_ns);
            set_current_timer_slack(Some(self.slack_ns)).map_err(|error| KernelError::host(what)(error.into()))?;
        }
        let begin_ns = clock::monotonic();
        let due = due(self.last_ns, begin_ns, self.period_ns);
        // A point that passed while the thread was delayed was also reached late; omitting it would hide the worst cases.
        (0..due.missed.min(MISSED_MAX)).for_each(|n| sink.latency(begin_ns.saturating_sub(due.at_ns - (n + 1) * self.period_ns)));
        clock::sleep_until(due.at_ns);
        sink.latency(clock::monotonic().saturating_sub(due.at_ns));
        self.last_ns = Some(due.at_ns);
        self.missed += due.missed;
        Ok(1.0)
    }

    fn pause(&mut self) -> Result<(), KernelError> {
        self.last_ns = None;
        Ok(())
    }

    fn facts(&self) -> crate::Params {
        let facts = [("period_ns", self.period_ns), ("slack_ns", self.slack_ns.get()), ("missed", self.missed)];
        facts.into_iter().map(|(name, value)| (name.into(), json!(value))).collect()
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Due {
    at_ns: Nanos,
    /// Points that passed while the thread was not running.
    missed: u64,
}

/// The next point after `now_ns` that is a whole number of periods after the last.
fn due(last_ns: Option<Nanos>, now_ns: Nanos, period_ns: Nanos) -> Due {
    let last_ns = last_ns.unwrap_or(now_ns);
    let missed = now_ns.saturating_sub(last_ns) / period_ns;
    Due { at_ns: last_ns + (missed + 1) * period_ns, missed }
}

pub(crate) const ENTRY: Entry = Entry {
    name: "wake-up",
    info: || KernelInfo {
        name: "wake-up",
        resource: Resource::Cpu,
        summary: "sleeps until fixed points of time: timer wake-up latency",
        doing: "timer-sleeping",
        loses: None,
        unit: Unit::Operations,
        figure: Figure::Rate { label: "wake-ups/s", divisor: 1.0 },
        also: None,
        latency: Latency::Own("lateness of a wake-up"),
        roles: Roles::Probe,
        // It is only measured, so it has no lasting effect.
        settle: Settle { rise_ns: 0, release_ns: 0 },
        needs: Needs::NOTHING,
        warnings: &[],
        params: schema_for!(Params),
    },
    build: |params, _| {
        let Params { period_ns, slack_ns } = serde_json::from_value(params.clone().into())?;
        within("period_ns", period_ns, 50_000..=100_000_000)?;
        within("slack_ns", slack_ns.get(), 1..=1_000_000_000)?;
        Ok(Box::new(WakeUp { period_ns, slack_ns, last_ns: None, missed: 0 }))
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{environment, parsed, Latencies};

    #[test]
    fn points_missed_in_a_stall_count_with_their_lateness() {
        const PERIOD_NS: Nanos = 1_000_000;
        let now = clock::monotonic();
        let mut kernel = WakeUp { period_ns: PERIOD_NS, slack_ns: NonZeroU64::MIN, last_ns: Some(now - 10 * PERIOD_NS - 1), missed: 0 };
        let mut seen = Latencies::default();
        kernel.step(&mut seen).unwrap();
        assert_eq!(seen.0.len() as u64, kernel.missed + 1);
        assert!(kernel.missed >= 10 && seen.0.iter().any(|&late| late >= 9 * PERIOD_NS), "{:?}", seen.0);
    }

    #[test]
    fn points_are_a_period_apart_however_late_the_wake_up() {
        assert_eq!(due(None, 1000, 100), Due { at_ns: 1100, missed: 0 });
        assert_eq!(due(Some(1100), 1101, 100), Due { at_ns: 1200, missed: 0 });
        assert_eq!(due(Some(1100), 1199, 100), Due { at_ns: 1200, missed: 0 });
    }

    #[test]
    fn points_that_passed_are_counted_and_skipped() {
        assert_eq!(due(Some(1100), 1200, 100), Due { at_ns: 1300, missed: 1 });
        assert_eq!(due(Some(1100), 1450, 100), Due { at_ns: 1500, missed: 3 });
    }

    #[test]
    fn each_step_wakes_once_with_the_requested_slack() {
        let worker = std::thread::spawn(|| {
            let mut latencies = Latencies::default();
            let mut kernel = (ENTRY.build)(&parsed(r#"{"period_ns": 50000, "slack_ns": 7}"#), &environment()).expect("in range");
            let work: f64 = (0..10).map(|_| kernel.step(&mut latencies).expect("slack is allowed")).sum();
            let missed = kernel.facts()["missed"].as_u64().expect("a count");
            (work as u64, latencies.0.len() as u64 - missed, rustix::thread::current_timer_slack().expect("this thread's"))
        });
        assert_eq!(worker.join().expect("no panic"), (10, 10, 7));
    }

    #[test]
    fn periods_out_of_range_are_refused_by_name() {
        for json in [r#"{"period_ns": 10}"#, r#"{"period_ns": 1000000000}"#, r#"{"slack_ns": 2000000000}"#] {
            let error = (ENTRY.build)(&parsed(json), &environment()).map(drop).expect_err(json).to_string();
            assert!(error.contains("is out of range; give"), "{error}");
        }
        (ENTRY.build)(&parsed(r#"{"slack_ns": 0}"#), &environment()).map(drop).expect_err("0 would mean the default");
    }
}
