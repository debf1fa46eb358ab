//! A workload of any kind behind one interface: start, calibrate, switch, drain, end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use partywall_clock::SessionClock;
use partywall_kernels::{self as kernels, Environment, Kernel, KernelError, PacedBy};
use partywall_load::{Load, Options};
use partywall_probe::Probe;
use partywall_record::Tape;
use partywall_stressor::{Calibration, Dose, Stressor};
use partywall_wire::load::LoadProgram;
use partywall_wire::{Event, Fault, Pace, Slices, Start, Started, Work};
use serde_json::{Map, Value};

use crate::command::CommandWorkload;
use crate::refusal::refused;
use crate::resident::{Resident, Sink};

/// The same maximum as for a load.
const THREADS_MAX: u32 = 1024;
/// Slices in one message, so that no message becomes too long.
const SLICES_MAX: usize = 1000;
const SECONDS_MAX: usize = 20;

/// A started workload.
pub(crate) enum Workload {
    Measured(Probe, Tape, LastFacts),
    Paced(Stressor, Tape, LastFacts),
    Command(CommandWorkload),
    Load(Box<Load>),
}

/// Facts of the kernels at the end of their threads, in the order of threads.
#[derive(Clone, Default)]
pub(crate) struct LastFacts(Arc<Mutex<BTreeMap<u32, Map<String, Value>>>>);

impl LastFacts {
    fn slot(&self) -> MutexGuard<'_, BTreeMap<u32, Map<String, Value>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A kernel whose facts are stored when it ends, because some are known only then.
struct Remembered {
    kernel: Box<dyn Kernel>,
    thread: u32,
    last: LastFacts,
}

impl Kernel for Remembered {
    fn step(&mut self, sink: &mut dyn kernels::Sink) -> Result<f64, KernelError> {
        self.kernel.step(sink)
    }

    fn pause(&mut self) -> Result<(), KernelError> {
        self.kernel.pause()
    }

    fn pending(&self) -> f64 {
        self.kernel.pending()
    }

    fn paced_by(&self) -> PacedBy {
        self.kernel.paced_by()
    }

    fn facts(&self) -> Map<String, Value> {
        self.kernel.facts()
    }
}

impl Drop for Remembered {
    fn drop(&mut self) {
        self.last.slot().insert(self.thread, self.kernel.facts());
    }
}

impl Resident for Workload {
    const KIND: &'static str = "workload";
    type Start = Start;
    type Started = Started;
    /// Facts of its kernels at the end; none for commands and loads.
    type Stopped = Vec<Map<String, Value>>;

    fn start(start: &Start, clock: &SessionClock) -> Result<(Self, Started), Fault> {
        if start.threads > THREADS_MAX {
            return Err(Fault::usage(format_args!("threads: {} are too many; give at most {THREADS_MAX}", start.threads)));
        }
        match &start.work {
            Work::Command(command) => {
                let running = CommandWorkload::start(command, start.pace, clock)?;
                let pid = Some(running.pid());
                Ok((Self::Command(running), Started { facts: Vec::new(), pid, load: None }))
            }
            Work::Load(program) => Self::start_load(start, program, clock),
            Work::Kernel(kernel) => Self::start_kernel(start, &kernel.name, &kernel.params, clock),
        }
    }

    fn ended(&mut self) -> Option<String> {
        match self {
            Self::Measured(probe, ..) => probe.ended(),
            Self::Paced(stressor, ..) => stressor.ended(),
            Self::Command(command) => command.ended(),
            Self::Load(load) => load.ended(),
        }
    }

    fn drain(&self, id: &str, sink: &mut dyn Sink) {
        match self {
            Self::Measured(_, tape, _) | Self::Paced(_, tape, _) => push_slices(id, tape, sink),
            Self::Command(command) => command.drain(id, sink),
            Self::Load(load) => push_load(id, load, sink),
        }
    }

    fn stop(self, id: &str, sink: &mut dyn Sink) -> Vec<Map<String, Value>> {
        let (last, tape) = match self {
            Self::Measured(probe, tape, last) => {
                drop(probe);
                (last, tape)
            }
            Self::Paced(stressor, tape, last) => {
                let doses = stressor.stop();
                for (thread, facts) in &mut *last.slot() {
                    facts.extend(doses.get(*thread as usize).map(Dose::facts).unwrap_or_default());
                }
                (last, tape)
            }
            Self::Command(command) => {
                command.stop(id, sink);
                return Vec::new();
            }
            Self::Load(mut load) => {
                load.end();
                push_load(id, &load, sink);
                return Vec::new();
            }
        };
        push_slices(id, &tape, sink);
        let facts = std::mem::take(&mut *last.slot());
        facts.into_values().collect()
    }
}

impl Workload {
    fn start_load(start: &Start, program: &LoadProgram, clock: &SessionClock) -> Result<(Self, Started), Fault> {
        let options = Options { threads: start.threads, slice_ns: start.slice_ns, work_dir: start.work_dir.clone(), seed: start.seed };
        let (load, prepared) = Load::prepare(program.clone(), &options, clock).map_err(refused)?;
        if start.pace == Pace::FlatOut {
            load.switch(clock.now(), 1.0).map_err(refused)?;
        }
        Ok((Self::Load(Box::new(load)), Started { facts: Vec::new(), pid: None, load: Some(prepared) }))
    }

    fn start_kernel(start: &Start, name: &str, params: &Map<String, Value>, clock: &SessionClock) -> Result<(Self, Started), Fault> {
        let of_kernel = |error: KernelError| refused(error).about(format_args!("kernel {name}"));
        let entry = kernels::find(name).map_err(refused)?;
        let last = LastFacts::default();
        let built = (0..start.threads.max(1)).map(|thread| {
            let kernel = (entry.build)(params, &environment(start, thread))?;
            Ok(Box::new(Remembered { kernel, thread, last: last.clone() }) as Box<dyn Kernel>)
        });
        let built = built.collect::<Result<Vec<Box<dyn Kernel>>, KernelError>>().map_err(of_kernel)?;
        let facts = built.iter().map(|kernel| kernel.facts()).collect();
        let (latency, tape) = ((entry.info)().latency, Tape::default());
        let starting = format!("kernel {name}: starting {} threads", start.threads);
        let no_thread = |error: std::io::Error| refused(error).about(&starting);
        let workload = match start.pace {
            Pace::FlatOut => Self::Measured(Probe::start(built, &latency, start.slice_ns, &tape, clock).map_err(no_thread)?, tape, last),
            Pace::Scheduled => Self::Paced(Stressor::start(built, &latency, start.slice_ns, &tape, clock).map_err(no_thread)?, tape, last),
        };
        Ok((workload, Started { facts, pid: None, load: None }))
    }

    /// Runs it flat out for a while to find the rate at intensity 1.
    pub(crate) fn calibration(&self) -> Result<Calibration, Fault> {
        let why = "only a scheduled kernel can be calibrated; start a kernel with pace scheduled";
        let Self::Paced(stressor, ..) = self else { return Err(Fault::usage(why)) };
        Ok(stressor.calibration())
    }

    /// Appends a switch.
    pub(crate) fn switch(&self, at_ns: u64, intensity: f64) -> Result<(), Fault> {
        match self {
            Self::Measured(..) => Err(Fault::usage("a workload without a schedule cannot be switched; start it with pace scheduled")),
            Self::Paced(stressor, ..) => stressor.switch(at_ns, intensity).map_err(refused),
            Self::Command(command) => command.switch(at_ns, intensity),
            Self::Load(load) => load.switch(at_ns, intensity).map_err(refused),
        }
    }
}

impl Workload {
    /// Changes the level of a load.
    pub(crate) fn set_level(&self, at_ns: u64, level: f64) -> Result<(), Fault> {
        let Self::Load(load) = self else { return Err(Fault::usage("only a load has users; give the ID of a load")) };
        load.set_level(at_ns, level).map_err(refused)
    }
}

fn push_load(id: &str, load: &Load, sink: &mut dyn Sink) {
    push_slices(id, load.slices(), sink);
    for seconds in load.take().chunks(SECONDS_MAX) {
        sink.push(Event::Load { id: id.into(), seconds: seconds.to_vec() });
    }
}

fn push_slices(id: &str, tape: &Tape, sink: &mut dyn Sink) {
    for slices in tape.take().chunks(SLICES_MAX) {
        sink.push(Event::Slices(Slices { id: id.into(), slices: slices.to_vec() }));
    }
}

fn environment(start: &Start, thread: u32) -> Environment {
    Environment { root: "/".into(), work_dir: start.work_dir.clone(), seed: start.seed, thread, threads: start.threads.max(1) }
}
