//! The guard as a resident of the agent: sends its reports as events.

use partywall_clock::SessionClock;
use partywall_guard::{Guard, Report};
use partywall_wire::{Event, Fault, GuardStart, GuardStarted};

use crate::refusal::refused;
use crate::resident::{Resident, Sink};

impl Resident for Guard {
    const KIND: &'static str = "guard";
    type Start = GuardStart;
    type Started = GuardStarted;
    type Stopped = ();

    fn start(start: &GuardStart, clock: &SessionClock) -> Result<(Self, GuardStarted), Fault> {
        let guard = Self::start(start, clock).map_err(refused)?;
        let (excess, without_backstop) = (guard.excess().to_vec(), guard.without_backstop().to_vec());
        let started = GuardStarted { excess, queue: guard.queue(), without_backstop };
        Ok((guard, started))
    }

    fn drain(&self, id: &str, sink: &mut dyn Sink) {
        self.take_reports().into_iter().for_each(|report| sink.push(event(id, report)));
    }

    fn ended(&mut self) -> Option<String> {
        Self::ended(self)
    }

    /// Ends the loop. Hooks and rates stay until `guard.remove`, which follows. After a guard that died, the fallback process takes
    /// over.
    fn stop(self, id: &str, sink: &mut dyn Sink) {
        if Self::ended(&self).is_none() {
            self.end_fallback_process();
        }
        self.drain(id, sink);
    }
}

fn event(id: &str, report: Report) -> Event {
    Event::Guard {
        id: id.into(),
        from_ns: report.from_ns,
        at_ns: report.at_ns,
        rows: report.rows,
        pools: report.pools,
        notes: report.notes,
        round_ns_max: report.round_ns_max,
        decide_ns_max: report.decide_ns_max,
    }
}
