//! Implements each method of the wire's table.

use std::path::Path;
use std::sync::Arc;

use partywall_clock as clock;
use partywall_facts as facts;
use partywall_guard::Guard;
use partywall_kernels as kernels;
use partywall_stressor::Allowance;
use partywall_wire::load::LoadLevel;
use partywall_wire::trace::{TraceClosed, TraceFeed, TraceSample, TraceStart, TraceStarted};
use partywall_wire::{
    Calibrate, Calibrated, Clock, ClockAdjust, Event, Fault, GuardAdjusted, GuardGrants, GuardMoves, GuardRemove, GuardRemoved, GuardStart,
    GuardStarted, Hello, HelloReply, MemoryChanges, MemoryCheck, MonitorAt, MonitorStart, Notification, Outcome, Schedule, Start, Started,
    Stop, Stopped, PROTOCOL,
};
use serde_json::{json, Value};

use crate::capability::Only;
use crate::methods::{self, Answers};
use crate::monitor::{Monitor, Watched};
use crate::outbox::Outbox;
use crate::refusal::refused;
use crate::resident::{Count, Resident, Residents, Sink};
use crate::trace::Trace;
use crate::workload::Workload;

/// Clocks of two working machines differ in rate by less than this, and a kernel cannot correct more.
const RATE_PPB_MAX: i64 = 500_000;

/// State shared by the answering thread and the flushing thread: all residents, with one lock for each kind.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Kinds>);

struct Kinds {
    count: Count,
    workloads: Residents<Workload>,
    monitors: Residents<Monitor>,
    traces: Residents<Trace>,
    guards: Residents<Guard>,
}

impl Default for Shared {
    fn default() -> Self {
        let count = Count::default();
        let kinds = Kinds {
            workloads: Residents::new(&count),
            monitors: Residents::new(&count),
            traces: Residents::new(&count),
            guards: Residents::new(&count),
            count,
        };
        Self(Arc::new(kinds))
    }
}

impl Shared {
    /// Blocks while there is nothing to flush, so that an idle agent sleeps.
    pub(crate) fn wait_for_work(&self) {
        self.0.count.wait_for_any();
    }

    /// Drains all residents into a bounded sink, and removes workloads that have ended.
    pub(crate) fn drain(&self, sink: &mut dyn Sink) {
        self.0.workloads.drain(sink);
        self.0.monitors.drain(sink);
        self.0.traces.drain(sink);
        self.0.guards.drain(sink);
    }

    /// Stops everything.
    pub(crate) fn stop_all(&self) {
        self.0.workloads.drop_all();
        self.0.monitors.drop_all();
        self.0.traces.drop_all();
        self.0.guards.drop_all();
    }
}

/// The owner of this agent's clock, which decides how a controller may adjust it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockOwner {
    /// The controller's own host: there is nothing to adjust.
    Host,
    /// A guest created by Partywall: the rate of its kernel's clock may be changed.
    Machine,
    /// Another machine: the agent's own times may be shifted and corrected, but the machine's clock is not changed.
    Agent,
}

/// Answers requests.
pub(crate) struct Agent {
    shared: Shared,
    outbox: Outbox,
    owner: ClockOwner,
    only: Only,
}

/// Sends a resident's last messages before the answer. It waits for space, so that none is lost.
struct Last<'a> {
    outbox: &'a Outbox,
    failed: Option<std::io::Error>,
}

impl Sink for Last<'_> {
    fn push(&mut self, event: Event) {
        if self.failed.is_none() {
            self.failed = self.outbox.send(&Notification::new(&event)).err();
        }
    }

    fn is_full(&self) -> bool {
        false
    }
}

impl Agent {
    pub(crate) fn new(outbox: Outbox, owner: ClockOwner, only: Only) -> Self {
        Self { shared: Shared::default(), outbox, owner, only }
    }

    pub(crate) fn shared(&self) -> Shared {
        self.shared.clone()
    }

    /// Answers one request.
    pub(crate) fn call(&self, method: &str, params: Value) -> Result<Value, Fault> {
        self.only.check(method)?;
        methods::call(self, method, params)
    }

    fn kinds(&self) -> &Kinds {
        &self.shared.0
    }

    fn stop<T: Resident>(&self, kind: &Residents<T>, stop: &Stop) -> Result<T::Stopped, Fault> {
        let mut last = Last { outbox: &self.outbox, failed: None };
        let stopped = kind.stop(&stop.id, &mut last)?;
        last.failed.map_or(Ok(stopped), |error| Err(refused(error)))
    }
}

impl Answers for Agent {
    fn hello(&self, hello: Hello) -> Result<HelloReply, Fault> {
        if hello.protocol != PROTOCOL {
            let why = format!(
                "the controller uses protocol {}, but this agent uses {PROTOCOL}; install both from the same release",
                hello.protocol
            );
            return Err(Fault::failed(why));
        }
        let cpus = partywall_sys::affinity::allowed().map_err(refused)?;
        Ok(HelloReply {
            protocol: PROTOCOL,
            agent: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            cpus,
            emulated: partywall_sys::processor::emulated(),
        })
    }

    /// Facts about this host. The kernel reports the CPUs that this agent may run on.
    fn facts(&self) -> Result<facts::HostFacts, Fault> {
        let mut host = facts_of(Path::new("/"));
        if let Ok(cpus) = partywall_sys::affinity::allowed() {
            host.cpus_allowed = Some(cpus.into_iter().map(|cpu| cpu as u32).collect());
            host.missing.retain(|missing| missing.what != facts::cpu::ALLOWED);
        }
        Ok(host)
    }

    fn clock(&self) -> Result<Clock, Fault> {
        Ok(Clock { monotonic_ns: clock::now() })
    }

    /// The shift applies to this process only; the rate to the kernel if the machine is a guest of Partywall, else to this process too.
    fn clock_adjust(&self, adjust: ClockAdjust) -> Result<Clock, Fault> {
        if self.owner == ClockOwner::Host {
            let why = "the clock of this host cannot be adjusted; start the agent in a guest of Partywall, or with --own-clock";
            return Err(Fault::failed(why));
        }
        if adjust.shift_ns != 0 && !self.kinds().workloads.is_empty() {
            return Err(Fault::passing("the clock cannot be shifted while workloads run; shift it before they start"));
        }
        clock::shift(adjust.shift_ns);
        match (adjust.frequency_ppb, self.owner) {
            (Some(ppb), ClockOwner::Machine) => {
                let about = |error| refused(error).about(format_args!("frequency_ppb {ppb}"));
                partywall_sys::timekeeping::set_frequency(ppb).map_err(about)?;
            }
            (Some(ppb), _) => clock::set_rate(ppb.clamp(-RATE_PPB_MAX, RATE_PPB_MAX)),
            (None, _) => {}
        }
        self.clock()
    }

    fn memory_check(&self, check: MemoryCheck) -> Result<facts::memory_check::MemoryCheck, Fault> {
        facts::memory_check::check_when_free(Path::new("/"), check.bytes, check.budget_ns).map_err(refused)
    }

    fn memory_changes(&self, changes: MemoryChanges) -> Result<facts::memory_changes::MemoryChanges, Fault> {
        let MemoryChanges { file, interval_ns, samples, stride, windows } = changes;
        let plan = facts::memory_changes::Plan { file, interval_ns, samples, stride, windows };
        facts::memory_changes::memory_changes(Path::new("/"), &plan).map_err(refused)
    }

    fn workload_start(&self, start: Start) -> Result<Started, Fault> {
        self.only.check_start(&start)?;
        self.kinds().workloads.start(&start.id, &start)
    }

    /// Calibration may take as long as a slow disk, so the workloads are not locked meanwhile.
    fn workload_calibrate(&self, calibrate: Calibrate) -> Result<Calibrated, Fault> {
        let calibration = self.kinds().workloads.with(&calibrate.id, |workload| workload.calibration())?;
        let about = |error| refused(error).about(format_args!("workload {:?}", calibrate.id));
        let calibrated = calibration.run(calibrate.for_ns, allowance(calibrate.cpus_limit)).map_err(about)?;
        Ok(Calibrated { rate_max: calibrated.rates, disturbed: calibrated.disturbed })
    }

    fn workload_schedule(&self, schedule: Schedule) -> Result<Outcome, Fault> {
        let append = |workload: &mut Workload| schedule.switches.iter().try_for_each(|s| workload.switch(s.at_ns, s.intensity));
        self.kinds().workloads.with(&schedule.id, append)?;
        Ok(Outcome {})
    }

    fn load_level(&self, to: LoadLevel) -> Result<Outcome, Fault> {
        self.kinds().workloads.with(&to.id, |workload| workload.set_level(to.at_ns, to.level))?;
        Ok(Outcome {})
    }

    fn workload_stop(&self, stop: Stop) -> Result<Stopped, Fault> {
        Ok(Stopped { facts: self.stop(&self.kinds().workloads, &stop)? })
    }

    fn monitor_start(&self, start: MonitorStart) -> Result<Watched, Fault> {
        self.kinds().monitors.start(&start.id, &start)
    }

    fn monitor_schedule(&self, at: MonitorAt) -> Result<Outcome, Fault> {
        self.kinds().monitors.with(&at.id, |monitor| {
            monitor.read_at(&at.at_ns);
            Ok(Outcome {})
        })
    }

    fn monitor_stop(&self, stop: Stop) -> Result<Outcome, Fault> {
        self.stop(&self.kinds().monitors, &stop)?;
        Ok(Outcome {})
    }

    fn guard_start(&self, start: GuardStart) -> Result<GuardStarted, Fault> {
        self.kinds().guards.start(&start.id, &start)
    }

    fn guard_adjust(&self, to: GuardStart) -> Result<GuardAdjusted, Fault> {
        let at_ns = self.kinds().guards.with(&to.id, |guard| guard.adjust(&to).map_err(refused))?;
        Ok(GuardAdjusted { at_ns })
    }

    fn guard_grants(&self, of: Stop) -> Result<GuardGrants, Fault> {
        self.kinds().guards.with(&of.id, |guard| Ok(GuardGrants { grants: guard.grants() }))
    }

    fn guard_move(&self, moves: GuardMoves) -> Result<Outcome, Fault> {
        self.kinds().guards.with(&moves.id, |guard| guard.relocate(moves.moves).map_err(refused))?;
        Ok(Outcome {})
    }

    fn guard_stop(&self, stop: Stop) -> Result<Outcome, Fault> {
        self.stop(&self.kinds().guards, &stop)?;
        Ok(Outcome {})
    }

    fn guard_remove(&self, remove: GuardRemove) -> Result<GuardRemoved, Fault> {
        partywall_guard::remove(&remove).map_err(refused)
    }

    fn trace_start(&self, start: TraceStart) -> Result<TraceStarted, Fault> {
        self.kinds().traces.start(&start.id, &start)
    }

    fn trace_feed(&self, feed: TraceFeed) -> Result<Outcome, Fault> {
        self.kinds().traces.with(&feed.id, |trace| trace.feed(&feed))?;
        Ok(Outcome {})
    }

    fn trace_sample(&self, to: TraceSample) -> Result<Outcome, Fault> {
        self.kinds().traces.with(&to.id, |trace| trace.sample(to.below))?;
        Ok(Outcome {})
    }

    fn trace_close(&self, stop: Stop) -> Result<TraceClosed, Fault> {
        self.kinds().traces.with(&stop.id, |trace| trace.close())
    }

    fn trace_stop(&self, stop: Stop) -> Result<Outcome, Fault> {
        self.stop(&self.kinds().traces, &stop)?;
        Ok(Outcome {})
    }
}

/// CPU time that this process may use: by its affinity, the quotas that it can see, and a limit that the controller knows.
fn allowance(limit: Option<f64>) -> Allowance {
    /// The usual period of a quota that is not visible here.
    const PERIOD_NS: u64 = 100_000_000;
    let cpus = partywall_sys::affinity::allowed().map_or(f64::INFINITY, |cpus| cpus.len() as f64);
    let root = Path::new("/");
    let seen = facts::cgroup::own(root).ok().and_then(|own| facts::cgroup::cpu_quota(root, &own));
    let known = limit.map(|cpus| facts::cgroup::CpuQuota { cpus, period_ns: PERIOD_NS });
    let quotas = [seen, known].into_iter().flatten().filter(|quota| quota.cpus < cpus);
    let tightest = quotas.min_by(|first, second| first.cpus.total_cmp(&second.cpus));
    tightest.map_or(Allowance { cpus, period_ns: 0 }, |quota| Allowance { cpus: quota.cpus, period_ns: quota.period_ns })
}

/// Facts about the host whose files are below `root`, including what this build of the agent lacks.
pub(crate) fn facts_of(root: &Path) -> facts::HostFacts {
    let mut host = facts::read(root);
    if let Err(absent) = partywall_bpf::built() {
        host.missing.push(facts::Missing {
            what: "eBPF programs".into(),
            why: format!("the agent was built without them: {}", absent.why),
            cost: "partywall guard and partywall trace do not work".into(),
            remedy: partywall_bpf::REMEDY.into(),
        });
    }
    host
}

/// The descriptions of all kernels.
pub(crate) fn catalogue() -> Value {
    json!(kernels::ALL.iter().map(|entry| (entry.info)()).collect::<Vec<_>>())
}
