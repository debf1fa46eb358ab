//! Implements each method of the wire's table.

use std::path::Path;
use std::sync::Arc;

use partywall_clock::SessionClock;
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
use crate::resident::{Resident, Residents, Running, Sink};
use crate::trace::Trace;
use crate::workload::Workload;

/// Clocks of two working machines differ in rate by less than this, and a kernel cannot correct more.
const RATE_PPB_MAX: i64 = 500_000;

/// State shared by the answering thread and the flushing thread: all residents.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Kinds>);

struct Kinds {
    running: Running,
    workloads: Residents<Workload>,
    monitors: Residents<Monitor>,
    traces: Residents<Trace>,
    guards: Residents<Guard>,
}

impl Default for Shared {
    fn default() -> Self {
        let running = Running::default();
        let kinds = Kinds {
            workloads: Residents::new(&running),
            monitors: Residents::new(&running),
            traces: Residents::new(&running),
            guards: Residents::new(&running),
            running,
        };
        Self(Arc::new(kinds))
    }
}

impl Shared {
    /// Blocks while there is nothing to flush, so that an idle agent sleeps.
    pub(crate) fn wait_for_work(&self) {
        self.0.running.wait_for_any();
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
    clock: SessionClock,
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
        Self { shared: Shared::default(), clock: SessionClock::default(), outbox, owner, only }
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
        Ok(Clock { monotonic_ns: self.clock.now() })
    }

    /// The shift applies to this session only; the rate to the kernel if the machine is a guest of Partywall, else to this session too.
    fn clock_adjust(&self, adjust: ClockAdjust) -> Result<Clock, Fault> {
        if self.owner == ClockOwner::Host {
            let why = "the clock of this host cannot be adjusted; start the agent in a guest of Partywall, or with --own-clock";
            return Err(Fault::failed(why));
        }
        if adjust.shift_ns != 0 {
            let shift = || self.clock.shift(adjust.shift_ns).map_err(Fault::usage);
            self.kinds().running.while_none(shift).unwrap_or_else(|kinds| Err(not_while(adjust.shift_ns, &kinds)))?;
        }
        match (adjust.frequency_ppb, self.owner) {
            (Some(ppb), ClockOwner::Machine) => {
                let about = |error| refused(error).about(format_args!("frequency_ppb {ppb}"));
                partywall_sys::timekeeping::set_frequency(ppb).map_err(about)?;
            }
            (Some(ppb), _) => self.clock.set_rate(ppb.clamp(-RATE_PPB_MAX, RATE_PPB_MAX)),
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
        let mut changes = facts::memory_changes::memory_changes(Path::new("/"), &plan).map_err(refused)?;
        // All at once, so that a shift meanwhile does not tear them apart.
        changes.samples.iter_mut().for_each(|sample| sample.at_ns = self.clock.at(sample.at_ns));
        Ok(changes)
    }

    fn workload_start(&self, start: Start) -> Result<Started, Fault> {
        self.only.check_start(&start)?;
        self.kinds().workloads.start(&start.id, &start, &self.clock)
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
        self.kinds().monitors.start(&start.id, &start, &self.clock)
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
        self.kinds().guards.start(&start.id, &start, &self.clock)
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
        self.kinds().traces.start(&start.id, &start, &self.clock)
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

/// Schedules and records would get times of two clocks.
fn not_while(shift_ns: i64, kinds: &[&str]) -> Fault {
    let what = kinds.join(", ");
    Fault::passing(format_args!(
        "shift_ns {shift_ns}: the clock cannot be shifted while something runs ({what}); stop it, or shift earlier"
    ))
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use partywall_bpf::Namespace;
    use partywall_wire::{CODE_PASSING, CODE_USAGE};

    use super::*;

    fn agent() -> Agent {
        Agent::new(Outbox::default(), ClockOwner::Agent, Only(None))
    }

    /// Starts something with `method`, and expects that the clock can be shifted before and after, but not while it runs.
    fn cannot_be_shifted_while(kind: &str, method: &str, params: &Value) {
        let agent = agent();
        let shift = |by: i64| agent.call("clock.adjust", json!({ "shift_ns": by }));
        shift(3_600_000_000_000).unwrap();
        if let Err(fault) = agent.call(method, params.clone()) {
            return eprintln!("skipped: {method}: {}", fault.message);
        }
        let refused = shift(-3_600_000_000_000).unwrap_err();
        assert_eq!(refused.code, CODE_PASSING);
        let why = format!("shift_ns -3600000000000: the clock cannot be shifted while something runs ({kind}); stop it, or shift earlier");
        assert_eq!(refused.message, why);
        shift(0).unwrap();
        agent.call("clock.adjust", json!({ "frequency_ppb": 1000 })).unwrap();
        agent.call(&method.replace(".start", ".stop"), json!({ "id": params["id"] })).unwrap();
        shift(-3_600_000_000_000).unwrap();
    }

    fn inside(act: impl FnOnce() + Send) {
        let Ok(namespace) = Namespace::fresh() else { return eprintln!("skipped: a new network namespace") };
        let inside = || {
            act();
            Ok(())
        };
        namespace.inside(inside).unwrap();
    }

    #[test]
    fn the_clock_is_not_shifted_while_a_monitor_runs() {
        cannot_be_shifted_while("monitor", "monitor.start", &json!({ "id": "m" }));
    }

    #[test]
    fn the_clock_is_not_shifted_while_a_probe_runs() {
        let work = json!({ "kernel": { "name": "integer" } });
        let start = json!({ "id": "p", "work": work, "pace": "flat_out", "work_dir": std::env::temp_dir() });
        cannot_be_shifted_while("workload", "workload.start", &start);
    }

    #[test]
    fn the_clock_is_not_shifted_while_a_load_runs() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let http = json!({ "name": "GET /", "method": "GET", "url": format!("http://{}/", server.local_addr().unwrap()) });
        let open = json!({ "arrivals": "poisson", "stages": [{ "to": 1.0, "for_ns": 60_000_000_000_u64 }], "users_max": 10 });
        let load = json!({ "kinds": [{ "name": "user", "actions": [{ "http": http }] }], "pacing": { "open": open } });
        let start = json!({ "id": "l", "work": { "load": load }, "pace": "scheduled", "work_dir": std::env::temp_dir() });
        cannot_be_shifted_while("workload", "workload.start", &start);
    }

    fn trace(relay: bool) -> Value {
        let hop = |hook: &str| json!({ "name": hook, "interface": "lo", "hook": hook });
        json!({
            "id": "t", "hops": [hop("out"), hop("in")], "relay": relay, "horizon_ns": 500_000_000, "report_ns": 1_000_000_000,
            "only": {}, "slowest": 1, "packets": 1, "ring_bytes": 1 << 20,
        })
    }

    #[test]
    fn the_clock_is_not_shifted_while_a_trace_runs() {
        inside(|| cannot_be_shifted_while("trace", "trace.start", &trace(false)));
    }

    #[test]
    fn the_clock_is_not_shifted_while_a_relay_runs() {
        inside(|| cannot_be_shifted_while("trace", "trace.start", &trace(true)));
    }

    #[test]
    fn the_clock_is_not_shifted_while_a_guard_runs() {
        let leaf = json!({
            "name": "vm", "pool": 0, "totals": [], "priority": 1, "guarantee_bps": 10_000_000, "ceiling_bps": 20_000_000,
            "guarantee_pps": 0, "ceiling_pps": null, "burst_ns": 10_000_000, "hold_ns": 20_000_000,
        });
        let hook = json!({ "namespace": null, "interface": "lo", "direction": "egress", "leaf": 0, "rules": [], "hold": false });
        let start = json!({
            "id": "shifted", "pools": [{ "name": "link", "capacity_bps": 100_000_000, "capacity_pps": null }], "totals": [],
            "leaves": [leaf], "hooks": [hook], "goals": [], "period_ns": 10_000_000, "report_ns": 100_000_000,
            "check_ns": 100_000_000, "fallback_after_ns": null, "transient": true,
        });
        inside(|| cannot_be_shifted_while("guard", "guard.start", &start));
    }

    #[test]
    fn a_shift_to_before_0_is_refused_and_changes_nothing() {
        let agent = agent();
        let refused = agent.call("clock.adjust", json!({ "shift_ns": i64::MIN })).unwrap_err();
        assert_eq!(refused.code, CODE_USAGE);
        assert!(refused.message.starts_with("shift_ns -9223372036854775808 would set the clock to a time before 0"), "{}", refused.message);
        let before_ns = partywall_clock::monotonic();
        let shown = agent.call("clock", Value::Null).unwrap()["monotonic_ns"].as_u64().unwrap();
        assert!((before_ns..=partywall_clock::monotonic()).contains(&shown));
    }
}
