//! The methods, by name.

use std::fmt::Display;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use partywall_clock as clock;
use partywall_facts as facts;
use partywall_guard::Guard;
use partywall_kernels as kernels;
use partywall_monitor::{CounterInfo, Missing};
use partywall_stressor::CalibrationError;
use partywall_wire::trace::{TraceClosed, TraceFeed, TraceSample, TraceStart, TraceStarted};
use partywall_wire::{
    Calibrate, Calibrated, Clock, ClockAdjust, Ended, Event, Fault, GuardMoves, GuardRemove, GuardRemoved, GuardStart, GuardStarted, Hello,
    HelloReply, MemoryCheck, MonitorAt, MonitorStart, Notification, Outcome, Request, Response, Schedule, Start, Stop, Stopped,
    CODE_FAILED, CODE_METHOD, CODE_PARAMS, PROTOCOL,
};
use schemars::{schema_for, JsonSchema};
use serde::de::DeserializeOwned;
use serde::Serialize;
use serde_json::{json, Value};

use crate::capability::Only;
use crate::monitor::Monitor;
use crate::outbox::Outbox;
use crate::running::Running;
use crate::trace::Trace;
use crate::workload::Workload;

/// No two machines' clocks that work differ by more, and a kernel corrects no more either.
const RATE_PPB_MAX: i64 = 500_000;

/// What the answering thread and the flushing thread share.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<(Mutex<State>, Condvar)>);

struct State {
    workloads: Running<Workload>,
    monitors: Running<Monitor>,
    traces: Running<Trace>,
    guards: Running<Guard>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            workloads: Running::new("workload"),
            monitors: Running::new("monitor"),
            traces: Running::new("trace"),
            guards: Running::new("guard"),
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0 .0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks while there is nothing to flush, so that an idle agent sleeps.
    pub(crate) fn wait_for_work(&self) {
        let idle = |state: &mut State| {
            state.workloads.is_empty() && state.monitors.is_empty() && state.traces.is_empty() && state.guards.is_empty()
        };
        drop(self.0 .1.wait_while(self.state(), idle).unwrap_or_else(PoisonError::into_inner));
    }

    /// Offers what all that runs left since the last time; workloads that ended are gone after this. The state stays locked,
    /// so that nothing of what is being stopped comes after the answer that says so.
    pub(crate) fn collect(&self, outbox: &Outbox) {
        let mut events = Vec::new();
        let mut state = self.state();
        let ended = state.workloads.take_where(Workload::ended);
        state.workloads.iter().for_each(|(id, workload)| workload.take_events(id, &mut events));
        state.monitors.iter().for_each(|(id, monitor)| monitor.take_events(id, &mut events));
        // A trace that is not asked loses nothing: its rings fill, and what they miss is counted by hop.
        if !outbox.is_full() {
            state.traces.iter().for_each(|(id, trace)| trace.take_events(id, &mut events));
        }
        state.guards.iter().for_each(|(id, guard)| events.extend(guard_events(id, guard)));
        for (id, workload, reason) in ended {
            events.extend(workload.stop(&id).1);
            events.push(Event::Ended(Ended { id, reason }));
        }
        for event in &events {
            outbox.offer(event);
        }
    }

    /// Stops everything.
    pub(crate) fn stop_all(&self) {
        let state = std::mem::take(&mut *self.state());
        drop(state);
    }
}

/// Answer to `monitor.start`.
#[derive(Serialize, JsonSchema)]
struct Watched {
    /// The columns of every sample.
    counters: Vec<CounterInfo>,
    /// What cannot be read on this host.
    missing: Vec<Missing>,
}

/// Whose clock this agent tells, and so what a controller may do to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockOwner {
    /// The controller's own host: there is nothing to adjust.
    Host,
    /// A guest of Partywall's own, whose kernel may be told to run faster or slower.
    Machine,
    /// Somebody's machine: what this agent tells may be shifted and corrected, the machine's clock is left as it is.
    Agent,
}

/// Answers requests.
pub(crate) struct Agent {
    shared: Shared,
    outbox: Outbox,
    owner: ClockOwner,
    only: Only,
}

impl Agent {
    pub(crate) fn new(outbox: Outbox, owner: ClockOwner, only: Only) -> Self {
        Self { shared: Shared::default(), outbox, owner, only }
    }

    pub(crate) fn shared(&self) -> Shared {
        self.shared.clone()
    }

    /// Answers one request.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Result<Value, Fault> {
        self.only.check(method)?;
        match method {
            "hello" => answer(params, |hello: Hello| greet(&hello)),
            "facts" => value(host_facts()),
            "memory.check" => answer(params, |check: MemoryCheck| check_memory(check)),
            "clock" => value(Clock { monotonic_ns: clock::now() }),
            "clock.adjust" => answer(params, |adjust: ClockAdjust| self.adjust_clock(adjust)),
            "workload.start" => answer(params, |start: Start| self.start(&start)),
            "workload.calibrate" => answer(params, |calibrate: Calibrate| self.calibrate(&calibrate)),
            "workload.schedule" => answer(params, |schedule: Schedule| self.schedule(&schedule)),
            "workload.stop" => answer(params, |stop: Stop| self.stop(&stop)),
            "monitor.start" => answer(params, |start: MonitorStart| self.watch(&start)),
            "monitor.schedule" => answer(params, |at: MonitorAt| self.watch_at(&at)),
            "monitor.stop" => answer(params, |stop: Stop| self.unwatch(&stop)),
            "guard.start" => answer(params, |start: GuardStart| self.guard(&start)),
            "guard.move" => answer(params, |moves: GuardMoves| self.move_guarded(moves)),
            "guard.stop" => answer(params, |stop: Stop| self.unguard(&stop)),
            "guard.remove" => answer(params, |remove: GuardRemove| partywall_guard::remove(&remove).map_err(failed)),
            "trace.start" => answer(params, |start: TraceStart| self.trace(&start)),
            "trace.feed" => {
                answer(params, |feed: TraceFeed| self.shared.state().traces.with(&feed.id, |trace| trace.feed(&feed).map(|()| Outcome {})))
            }
            "trace.sample" => answer(params, |to: TraceSample| {
                self.shared.state().traces.with(&to.id, |trace| trace.sample(to.below).map(|()| Outcome {}))
            }),
            "trace.close" => answer(params, |stop: Stop| self.shared.state().traces.with(&stop.id, |trace| trace.close())),
            "trace.stop" => answer(params, |stop: Stop| self.untrace(&stop)),
            _ => Err(Fault::new(CODE_METHOD, format!("no method is called {method:?}"))),
        }
    }

    /// The shift is this process's own; the rate is the kernel's where the machine is ours, else this process's too.
    fn adjust_clock(&self, adjust: ClockAdjust) -> Result<Clock, Fault> {
        if self.owner == ClockOwner::Host {
            return Err(failed("only the clock of a guest that Partywall made, or of an agent started with --own-clock, can be adjusted"));
        }
        if adjust.shift_ns != 0 && !self.shared.state().workloads.is_empty() {
            return Err(failed("the clock cannot be shifted while workloads run; shift it before they start"));
        }
        clock::shift(adjust.shift_ns);
        match (adjust.frequency_ppb, self.owner) {
            (Some(ppb), ClockOwner::Machine) => {
                partywall_sys::timekeeping::set_frequency(ppb).map_err(|error| failed(format!("frequency_ppb {ppb}: {error}")))?;
            }
            (Some(ppb), _) => clock::set_rate(ppb.clamp(-RATE_PPB_MAX, RATE_PPB_MAX)),
            (None, _) => {}
        }
        Ok(Clock { monotonic_ns: clock::now() })
    }

    /// Starts what is to run under `id` among those of its kind, and answers with what is to be told of it.
    fn begin<T, R>(
        &self,
        kind: fn(&mut State) -> &mut Running<T>,
        id: &str,
        start: impl FnOnce() -> Result<(T, R), Fault>,
    ) -> Result<R, Fault> {
        kind(&mut self.shared.state()).vacant(id)?;
        let (started, told) = start()?;
        kind(&mut self.shared.state()).insert(id, started);
        self.shared.0 .1.notify_all();
        Ok(told)
    }

    /// Sends what something left, so that nothing of it comes after the answer.
    fn send(&self, events: &[Event]) -> Result<(), Fault> {
        events.iter().try_for_each(|event| self.outbox.send(&Notification::new(event))).map_err(failed)
    }

    fn start(&self, start: &Start) -> Result<partywall_wire::Started, Fault> {
        self.only.check_start(start)?;
        self.begin(|state| &mut state.workloads, &start.id, || Workload::start(start).map_err(failed))
    }

    /// Takes as long as a slow disk does, so the state is not locked meanwhile.
    fn calibrate(&self, calibrate: &Calibrate) -> Result<Calibrated, Fault> {
        let calibration = self.shared.state().workloads.with(&calibrate.id, |workload| workload.calibration())?;
        let refused = |error: CalibrationError| failed(format!("workload {:?}: {error}", calibrate.id));
        Ok(Calibrated { rate_max: calibration.run(calibrate.for_ns).map_err(refused)? })
    }

    fn schedule(&self, schedule: &Schedule) -> Result<Outcome, Fault> {
        self.shared
            .state()
            .workloads
            .with(&schedule.id, |workload| schedule.switches.iter().try_for_each(|s| workload.switch(s.at_ns, s.intensity)))?;
        Ok(Outcome {})
    }

    fn stop(&self, stop: &Stop) -> Result<Stopped, Fault> {
        let workload = self.shared.state().workloads.take(&stop.id)?;
        let (facts, events) = workload.stop(&stop.id);
        self.send(&events)?;
        Ok(Stopped { facts })
    }

    fn watch(&self, start: &MonitorStart) -> Result<Watched, Fault> {
        self.begin(
            |state| &mut state.monitors,
            &start.id,
            || {
                let monitor = Monitor::start(start).map_err(|error| failed(format!("monitor {:?}: {error}", start.id)))?;
                let (counters, missing) = monitor.header();
                Ok((monitor, Watched { counters, missing }))
            },
        )
    }

    fn watch_at(&self, at: &MonitorAt) -> Result<Outcome, Fault> {
        self.shared.state().monitors.get(&at.id)?.read_at(&at.at_ns);
        Ok(Outcome {})
    }

    fn unwatch(&self, stop: &Stop) -> Result<Outcome, Fault> {
        let monitor = self.shared.state().monitors.take(&stop.id)?;
        // Waits for its thread, and not while the state is locked.
        self.send(&monitor.stop(&stop.id))?;
        Ok(Outcome {})
    }

    fn guard(&self, start: &GuardStart) -> Result<GuardStarted, Fault> {
        self.begin(
            |state| &mut state.guards,
            &start.id,
            || {
                let guard = Guard::start(start).map_err(failed)?;
                let (excess, without_backstop) = (guard.excess().to_vec(), guard.without_backstop().to_vec());
                let told = GuardStarted { excess, queue: guard.queue(), without_backstop };
                Ok((guard, told))
            },
        )
    }

    fn move_guarded(&self, moves: GuardMoves) -> Result<Outcome, Fault> {
        self.shared.state().guards.get(&moves.id)?.relocate(moves.moves).map_err(failed)?;
        Ok(Outcome {})
    }

    /// Ends the loop; hooks and rates stay until `guard.remove`, which comes next.
    fn unguard(&self, stop: &Stop) -> Result<Outcome, Fault> {
        let guard = self.shared.state().guards.take(&stop.id)?;
        guard.disinherit();
        self.send(&guard_events(&stop.id, &guard))?;
        Ok(Outcome {})
    }

    fn trace(&self, start: &TraceStart) -> Result<TraceStarted, Fault> {
        self.begin(|state| &mut state.traces, &start.id, || Trace::start(start).map_err(failed))
    }

    fn untrace(&self, stop: &Stop) -> Result<Outcome, Fault> {
        let trace = self.shared.state().traces.take(&stop.id)?;
        self.send(&trace.stop(&stop.id))?;
        Ok(Outcome {})
    }
}

fn guard_events(id: &str, guard: &Guard) -> Vec<Event> {
    let event = |report: partywall_guard::Report| Event::Guard {
        id: id.into(),
        from_ns: report.from_ns,
        at_ns: report.at_ns,
        rows: report.rows,
        pools: report.pools,
        notes: report.notes,
        round_ns_max: report.round_ns_max,
        decide_ns_max: report.decide_ns_max,
    };
    guard.take_reports().into_iter().map(event).collect()
}

fn greet(hello: &Hello) -> Result<HelloReply, Fault> {
    if hello.protocol != PROTOCOL {
        let why = format!("the controller speaks protocol {}, this agent {PROTOCOL}; install both from the same release", hello.protocol);
        return Err(failed(why));
    }
    let cpus = partywall_sys::affinity::allowed().map_err(failed)?;
    Ok(HelloReply {
        protocol: PROTOCOL,
        agent: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        cpus,
        emulated: partywall_sys::processor::emulated(),
    })
}

/// What this host is. The kernel itself says on which CPUs this agent may run.
fn host_facts() -> facts::HostFacts {
    let mut found = facts_of(Path::new("/"));
    if let Ok(cpus) = partywall_sys::affinity::allowed() {
        found.cpus_allowed = Some(cpus.into_iter().map(|cpu| cpu as u32).collect());
        found.missing.retain(|missing| missing.what != facts::cpu::ALLOWED);
    }
    found
}

/// What the host is whose files lie under `root`, with what this build of the agent lacks among what is missing.
pub(crate) fn facts_of(root: &Path) -> facts::HostFacts {
    let mut found = facts::read(root);
    if let Err(absent) = partywall_bpf::built() {
        found.missing.push(facts::Missing {
            what: "eBPF programs".into(),
            why: format!("the agent was built without them: {}", absent.why),
            cost: "no partywall guard and no partywall trace".into(),
            remedy: partywall_bpf::REMEDY.into(),
        });
    }
    found
}

fn check_memory(check: MemoryCheck) -> Result<facts::memory_check::MemoryCheck, Fault> {
    facts::memory_check::check_when_free(Path::new("/"), check.bytes, check.budget_ns).map_err(failed)
}

pub(crate) fn failed(why: impl Display) -> Fault {
    Fault::new(CODE_FAILED, why.to_string())
}

fn answer<P: DeserializeOwned, R: Serialize>(params: Value, act: impl FnOnce(P) -> Result<R, Fault>) -> Result<Value, Fault> {
    let params = serde_json::from_value(params).map_err(|error| Fault::new(CODE_PARAMS, error.to_string()))?;
    value(act(params)?)
}

fn value(result: impl Serialize) -> Result<Value, Fault> {
    serde_json::to_value(result).map_err(failed)
}

/// What every kernel says of itself.
pub(crate) fn catalogue() -> Value {
    json!(kernels::ALL.iter().map(|entry| (entry.info)()).collect::<Vec<_>>())
}

/// JSON Schema of everything that goes over the wire.
pub(crate) fn schema() -> Value {
    json!({
        "protocol": PROTOCOL,
        "request": schema_for!(Request),
        "response": schema_for!(Response),
        "methods": {
            "hello": { "params": schema_for!(Hello), "result": schema_for!(HelloReply) },
            "facts": { "params": null, "result": schema_for!(facts::HostFacts) },
            "memory.check": { "params": schema_for!(MemoryCheck), "result": schema_for!(facts::memory_check::MemoryCheck) },
            "clock.adjust": { "params": schema_for!(ClockAdjust), "result": schema_for!(Clock) },
            "clock": { "params": null, "result": schema_for!(Clock) },
            "monitor.start": { "params": schema_for!(MonitorStart), "result": schema_for!(Watched) },
            "monitor.schedule": { "params": schema_for!(MonitorAt), "result": schema_for!(Outcome) },
            "monitor.stop": { "params": schema_for!(Stop), "result": schema_for!(Outcome) },
            "workload.start": { "params": schema_for!(Start), "result": schema_for!(partywall_wire::Started) },
            "workload.calibrate": { "params": schema_for!(Calibrate), "result": schema_for!(Calibrated) },
            "workload.schedule": { "params": schema_for!(Schedule), "result": schema_for!(Outcome) },
            "guard.start": { "params": schema_for!(GuardStart), "result": schema_for!(GuardStarted) },
            "guard.move": { "params": schema_for!(GuardMoves), "result": schema_for!(Outcome) },
            "guard.stop": { "params": schema_for!(Stop), "result": schema_for!(Outcome) },
            "guard.remove": { "params": schema_for!(GuardRemove), "result": schema_for!(GuardRemoved) },
            "trace.start": { "params": schema_for!(TraceStart), "result": schema_for!(TraceStarted) },
            "trace.feed": { "params": schema_for!(TraceFeed), "result": schema_for!(Outcome) },
            "trace.sample": { "params": schema_for!(TraceSample), "result": schema_for!(Outcome) },
            "trace.close": { "params": schema_for!(Stop), "result": schema_for!(TraceClosed) },
            "trace.stop": { "params": schema_for!(Stop), "result": schema_for!(Outcome) },
            "workload.stop": { "params": schema_for!(Stop), "result": schema_for!(Stopped) },
        },
        "notifications": schema_for!(Event),
    })
}
