//! A workload of either sort behind one face: started, calibrated, switched, drained, ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use partywall_clock as clock;
use partywall_kernels::{self as kernels, Environment, Kernel, KernelError, Sink};
use partywall_load::{Load, Options};
use partywall_probe::Probe;
use partywall_record::Tape;
use partywall_stressor::{Calibration, ScheduleError, Stressor};
use partywall_wire::load::LoadProgram;
use partywall_wire::{Event, Pace, Slices, Start, Started, Work};
use serde_json::{Map, Value};

use crate::command::CommandWorkload;

/// As many as a load has at most.
const THREADS_MAX: u32 = 1024;
/// In one message, so that none is too long a line.
const SLICES_MAX: usize = 1000;
const SECONDS_MAX: usize = 20;

/// A workload that was started.
pub(crate) enum Workload {
    Measured(Probe, Tape, LastFacts),
    Paced(Stressor, Tape, LastFacts),
    Command(CommandWorkload),
    Load(Box<Load>),
}

/// What kernels said of themselves as their threads let go of them, in the order of threads.
#[derive(Clone, Default)]
pub(crate) struct LastFacts(Arc<Mutex<BTreeMap<u32, Map<String, Value>>>>);

impl LastFacts {
    fn slot(&self) -> MutexGuard<'_, BTreeMap<u32, Map<String, Value>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A kernel whose facts are kept when it ends: what it did, missed or found cached is known only then.
struct Remembered {
    kernel: Box<dyn Kernel>,
    thread: u32,
    last: LastFacts,
}

impl Kernel for Remembered {
    fn step(&mut self, sink: &mut dyn Sink) -> Result<f64, KernelError> {
        self.kernel.step(sink)
    }

    fn pause(&mut self) -> Result<(), KernelError> {
        self.kernel.pause()
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

/// Why a workload could not do what was asked, in words for people.
pub(crate) type Refusal = String;

impl Workload {
    /// Starts what `start` asks for.
    pub(crate) fn start(start: &Start) -> Result<(Self, Started), Refusal> {
        if start.threads > THREADS_MAX {
            return Err(format!("threads: {} are too many; give at most {THREADS_MAX}", start.threads));
        }
        match &start.work {
            Work::Command(command) => {
                let running = CommandWorkload::start(command, start.pace)?;
                let pid = Some(running.pid());
                Ok((Self::Command(running), Started { facts: Vec::new(), pid, load: None }))
            }
            Work::Load(program) => Self::start_load(start, program),
            Work::Kernel(kernel) => Self::start_kernel(start, &kernel.name, &kernel.params),
        }
    }

    fn start_load(start: &Start, program: &LoadProgram) -> Result<(Self, Started), Refusal> {
        let options = Options { threads: start.threads, slice_ns: start.slice_ns, work_dir: start.work_dir.clone(), seed: start.seed };
        let (load, found) = Load::prepare(program.clone(), &options).map_err(|error| error.to_string())?;
        if start.pace == Pace::FlatOut {
            load.switch(clock::now(), 1.0).map_err(|error| error.to_string())?;
        }
        Ok((Self::Load(Box::new(load)), Started { facts: Vec::new(), pid: None, load: Some(found) }))
    }

    fn start_kernel(start: &Start, name: &str, params: &Map<String, Value>) -> Result<(Self, Started), Refusal> {
        let refused = |error: KernelError| format!("kernel {name}: {error}");
        let entry = kernels::find(name).map_err(|error| error.to_string())?;
        let last = LastFacts::default();
        let built = (0..start.threads.max(1)).map(|thread| {
            let kernel = (entry.build)(params, &environment(start, thread))?;
            Ok(Box::new(Remembered { kernel, thread, last: last.clone() }) as Box<dyn Kernel>)
        });
        let built = built.collect::<Result<Vec<Box<dyn Kernel>>, KernelError>>().map_err(refused)?;
        let facts = built.iter().map(|kernel| kernel.facts()).collect();
        let (latency, tape) = ((entry.info)().latency, Tape::default());
        let no_thread = |error: std::io::Error| format!("kernel {name}: starting {} threads: {error}", start.threads);
        let workload = match start.pace {
            Pace::FlatOut => Self::Measured(Probe::start(built, &latency, start.slice_ns, &tape).map_err(no_thread)?, tape, last),
            Pace::Scheduled => Self::Paced(Stressor::start(built, &latency, start.slice_ns, &tape).map_err(no_thread)?, tape, last),
        };
        Ok((workload, Started { facts, pid: None, load: None }))
    }

    /// What runs it flat out for a while to learn what intensity 1 means.
    pub(crate) fn calibration(&self) -> Result<Calibration, Refusal> {
        match self {
            Self::Paced(stressor, ..) => Ok(stressor.calibration()),
            _ => Err("only a scheduled kernel can be calibrated; a command is switched on and off, and a probe runs flat out".into()),
        }
    }

    /// Appends a switch.
    pub(crate) fn switch(&self, at_ns: u64, intensity: f64) -> Result<(), Refusal> {
        let outcome: Result<(), ScheduleError> = match self {
            Self::Measured(..) => return Err("it runs flat out and follows no schedule".into()),
            Self::Paced(stressor, ..) => stressor.switch(at_ns, intensity),
            Self::Command(command) => return command.switch(at_ns, intensity),
            Self::Load(load) => return load.switch(at_ns, intensity).map_err(|error| error.to_string()),
        };
        outcome.map_err(|error| error.to_string())
    }

    /// Why it ended by itself, once it has.
    pub(crate) fn ended(&mut self) -> Option<String> {
        match self {
            Self::Measured(probe, ..) => probe.ended(),
            Self::Paced(stressor, ..) => stressor.ended(),
            Self::Command(command) => command.ended(),
            Self::Load(load) => load.ended(),
        }
    }

    /// What it left since the last time.
    pub(crate) fn take_events(&self, id: &str, into: &mut Vec<Event>) {
        match self {
            Self::Measured(_, tape, _) | Self::Paced(_, tape, _) => into.extend(slices(id, tape)),
            Self::Command(command) => into.extend(command.take_events(id)),
            Self::Load(load) => into.extend(load_events(id, load)),
        }
    }

    /// Ends it, and only then takes what is left: its threads write their last as they end. Tells also what its kernels said of
    /// themselves at the end; commands and loads say nothing.
    pub(crate) fn stop(self, id: &str) -> (Vec<Map<String, Value>>, Vec<Event>) {
        let (last, tape) = match self {
            Self::Measured(probe, tape, last) => {
                drop(probe);
                (last, tape)
            }
            Self::Paced(stressor, tape, last) => {
                drop(stressor);
                (last, tape)
            }
            Self::Command(command) => return (Vec::new(), command.stop(id)),
            Self::Load(mut load) => {
                load.end();
                return (Vec::new(), load_events(id, &load));
            }
        };
        let facts = std::mem::take(&mut *last.slot());
        (facts.into_values().collect(), slices(id, &tape))
    }
}

fn load_events(id: &str, load: &Load) -> Vec<Event> {
    let mut events = slices(id, load.slices());
    let seconds = load.take();
    events.extend(seconds.chunks(SECONDS_MAX).map(|seconds| Event::Load { id: id.into(), seconds: seconds.to_vec() }));
    events
}

fn slices(id: &str, tape: &Tape) -> Vec<Event> {
    let slices = tape.take();
    slices.chunks(SLICES_MAX).map(|slices| Event::Slices(Slices { id: id.into(), slices: slices.to_vec() })).collect()
}

fn environment(start: &Start, thread: u32) -> Environment {
    Environment { root: "/".into(), work_dir: start.work_dir.clone(), seed: start.seed, thread, threads: start.threads.max(1) }
}
