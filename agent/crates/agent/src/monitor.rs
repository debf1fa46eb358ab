//! A monitor as a resident of the agent: a thread that reads all counters at scheduled times.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use partywall_clock::SessionClock;
use partywall_facts::cgroup;
use partywall_monitor::{CgroupTarget, CounterInfo, Missing, Reader, Sample, Targets};
use partywall_wire::{Event, Fault, MonitorStart};
use schemars::JsonSchema;
use serde::Serialize;

use crate::refusal::refused;
use crate::resident::{died, Resident, Sink};

/// The last part of a wait sleeps until an absolute time, which is more precise than a condition variable.
const FINE_NS: u64 = 2_000_000;

/// The result of `monitor.start`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Watched {
    /// The columns of every sample.
    counters: Vec<CounterInfo>,
    /// Counters that cannot be read on this host.
    missing: Vec<Missing>,
}

/// A running monitor; dropping it stops it.
pub(crate) struct Monitor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    moments: VecDeque<u64>,
    samples: Vec<Sample>,
    ended: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn drain(&self, id: &str, sink: &mut dyn Sink) {
        let samples = std::mem::take(&mut self.state().samples);
        for Sample { at_ns, until_ns, values } in samples {
            sink.push(Event::Sample { id: id.into(), at_ns, until_ns, values });
        }
    }

    /// Waits until shortly before the next time; None at the end.
    fn next(&self, clock: &SessionClock) -> Option<u64> {
        let idle = |state: &mut State| state.moments.is_empty() && !state.ended;
        let mut state = self.changed.wait_while(self.state(), idle).unwrap_or_else(PoisonError::into_inner);
        let at_ns = state.moments.pop_front()?;
        let left = Duration::from_nanos(at_ns.saturating_sub(clock.now()).saturating_sub(FINE_NS));
        let going = |state: &mut State| !state.ended;
        (state, _) = self.changed.wait_timeout_while(state, left, going).unwrap_or_else(PoisonError::into_inner);
        (!state.ended).then_some(at_ns)
    }
}

impl Monitor {
    fn open(start: &MonitorStart, clock: SessionClock) -> std::io::Result<(Self, Watched)> {
        let root = Path::new("/");
        let targets = Targets { pids: start.pids.clone(), cgroups: cgroups(root, start)?, cpus: start.cpus.clone(), ..Targets::default() };
        let (mut reader, missing) = Reader::new(root, &targets);
        let counters = reader.header().to_vec();
        let shared = Arc::<Shared>::default();
        let followed = shared.clone();
        let body = move || {
            while let Some(at_ns) = followed.next(&clock) {
                clock.sleep_until(at_ns);
                let sample = reader.read(&clock);
                followed.state().samples.push(sample);
            }
        };
        let thread = Some(thread::Builder::new().name("monitor".into()).spawn(body).map_err(|error| no_thread(&error))?);
        Ok((Self { shared, thread }, Watched { counters, missing }))
    }

    pub(crate) fn read_at(&self, moments: &[u64]) {
        self.shared.state().moments.extend(moments);
        self.shared.changed.notify_all();
    }
}

impl Resident for Monitor {
    const KIND: &'static str = "monitor";
    type Start = MonitorStart;
    type Started = Watched;
    type Stopped = ();

    fn start(start: &MonitorStart, clock: &SessionClock) -> Result<(Self, Watched), Fault> {
        Self::open(start, clock.clone()).map_err(|error| refused(error).about(format_args!("monitor {:?}", start.id)))
    }

    fn ended(&mut self) -> Option<String> {
        self.thread.as_ref().and_then(died)
    }

    fn drain(&self, id: &str, sink: &mut dyn Sink) {
        self.shared.drain(id, sink);
    }

    fn stop(self, id: &str, sink: &mut dyn Sink) {
        let shared = self.shared.clone();
        // Dropping a monitor joins its thread.
        drop(self);
        shared.drain(id, sink);
    }
}

fn no_thread(error: &std::io::Error) -> std::io::Error {
    std::io::Error::new(error.kind(), format!("starting a thread: {error}"))
}

fn cgroups(root: &Path, start: &MonitorStart) -> std::io::Result<Vec<CgroupTarget>> {
    let below = start.cgroups_below.as_deref();
    let target = |(label, pid): (&String, &u32)| Ok(CgroupTarget { label: label.clone(), folders: cgroup::of_process(root, *pid, below)? });
    start.cgroups_of.iter().map(target).collect()
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_monitor_whose_thread_panicked_has_ended() {
        let thread = thread::Builder::new().name("monitor".into()).spawn(|| panic!("planted")).unwrap();
        let mut monitor = Monitor { shared: Arc::default(), thread: Some(thread) };
        while monitor.ended().is_none() {
            thread::yield_now();
        }
        assert_eq!(monitor.ended().unwrap(), "its thread monitor panicked, which is a bug");
    }

    #[test]
    fn a_monitor_that_waits_has_not_ended() {
        let start = serde_json::from_value(serde_json::json!({"id": "m"})).unwrap();
        let (mut monitor, _) = Monitor::start(&start, &SessionClock::default()).unwrap();
        assert_eq!(monitor.ended(), None);
    }

    #[test]
    fn reports_the_missing_file_when_a_process_has_ended() {
        let request = serde_json::json!({"id": "m", "cgroups_of": {"victim": u32::MAX}});
        let start: MonitorStart = serde_json::from_value(request).expect("a request");
        let error = Monitor::start(&start, &SessionClock::default()).err().expect("no such process");
        assert!(error.to_string().starts_with("monitor \"m\": /proc/4294967295/cgroup: No such file"), "{error}");
    }
}
