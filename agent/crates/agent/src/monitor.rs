//! A monitor as the agent runs it: a thread that reads all counters at the moments it was told.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use partywall_clock as clock;
use partywall_facts::cgroup;
use partywall_monitor::{CgroupTarget, CounterInfo, Missing, Reader, Sample, Targets};
use partywall_wire::{Event, MonitorStart};

/// A running monitor; dropping it stops it.
pub(crate) struct Monitor {
    shared: Arc<Shared>,
    header: Vec<CounterInfo>,
    missing: Vec<Missing>,
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

    /// The next moment, waiting for one to be told; None at the end.
    fn next(&self) -> Option<u64> {
        let idle = |state: &mut State| state.moments.is_empty() && !state.ended;
        let mut state = self.changed.wait_while(self.state(), idle).unwrap_or_else(PoisonError::into_inner);
        if state.ended {
            return None;
        }
        state.moments.pop_front()
    }
}

impl Monitor {
    pub(crate) fn start(start: &MonitorStart) -> std::io::Result<Self> {
        let root = Path::new("/");
        let targets = Targets { pids: start.pids.clone(), cgroups: cgroups(root, start)?, cpus: start.cpus.clone(), ..Targets::default() };
        let (mut reader, missing) = Reader::new(root, &targets);
        let header = reader.header().to_vec();
        let shared = Arc::<Shared>::default();
        let followed = shared.clone();
        let body = move || {
            while let Some(at_ns) = followed.next() {
                clock::sleep_until(at_ns);
                let sample = reader.read();
                followed.state().samples.push(sample);
            }
        };
        let thread = Some(thread::Builder::new().name("monitor".into()).spawn(body)?);
        Ok(Self { shared, header, missing, thread })
    }

    pub(crate) fn header(&self) -> (Vec<CounterInfo>, Vec<Missing>) {
        (self.header.clone(), self.missing.clone())
    }

    pub(crate) fn read_at(&self, moments: &[u64]) {
        self.shared.state().moments.extend(moments);
        self.shared.changed.notify_all();
    }

    pub(crate) fn take_events(&self, id: &str, into: &mut Vec<Event>) {
        let samples = std::mem::take(&mut self.shared.state().samples);
        let event = |s: Sample| Event::Sample { id: id.into(), at_ns: s.at_ns, until_ns: s.until_ns, values: s.values };
        into.extend(samples.into_iter().map(event));
    }
}

fn cgroups(root: &Path, start: &MonitorStart) -> std::io::Result<Vec<CgroupTarget>> {
    let target = |(label, pid): (&String, &u32)| Ok(CgroupTarget { label: label.clone(), folders: cgroup::of_process(root, *pid)? });
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
