#![forbid(unsafe_code)]
//! Virtual users: a load generator that also measures itself. Preparing a [`Load`] from a program reports all errors in it and
//! connects to its servers. The load begins with its first switch, and produces one record per second and thread. Latency is
//! measured from the intended start of a request. The controller compiles the user's file and judges the records; the monitor
//! reads host counters.

mod address;
mod compress;
mod controls;
mod cookie;
mod engine;
mod extract;
mod feeder;
mod health;
mod http1;
mod http2;
mod link;
mod pacing;
mod prepare;
mod program;
mod record;
mod schedule;
mod template;
mod tls;
mod user;

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use partywall_clock::{Nanos, SessionClock};
use partywall_record::{Recorder, Tape};
use partywall_wire::load::{LoadProgram, LoadSecond, LoadStarted, Pacing, Stage};

use crate::compress::Pool;
use crate::controls::{Controls, Setting, Switch};
use crate::engine::{Shared, Worker};
use crate::health::Surroundings;
use crate::pacing::Seat;
use crate::record::{SecondRecorder, Seconds};
use crate::schedule::Levels;
use crate::user::User;

pub use crate::program::ProgramError;

/// Parsers of servers' bytes, for fuzzing.
#[doc(hidden)]
pub mod testing {
    pub use crate::http1::check_response;
    pub use crate::http2::check_http2;
}

/// Settings of a load that are not part of its program.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of worker threads, which share the users.
    pub threads: u32,
    /// Length of slices, if the program requests them.
    pub slice_ns: Nanos,
    /// Folder for files to compress.
    pub work_dir: PathBuf,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// Checks a program without connecting to servers or creating files.
///
/// # Errors
/// Lists all errors in it.
pub fn check(program: LoadProgram) -> Result<(), ProgramError> {
    program::compile(program).map(drop)
}

/// Reason why a switch is invalid.
#[derive(Debug, thiserror::Error)]
#[error("the switch at {at_ns} ns to intensity {intensity} is invalid; {why}")]
pub struct SwitchError {
    at_ns: Nanos,
    intensity: f64,
    why: &'static str,
}

/// Reason why a load cannot be prepared. Each line names one thing, its value and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The program is invalid.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// Servers cannot be reached.
    #[error("{}", .0.join("\n"))]
    Unreachable(Vec<String>),
    /// The host's limits are too low, or the trusted authorities cannot be used.
    #[error("{0}")]
    Room(String),
    /// A level that cannot be set.
    #[error("level {0} is out of range; give 0 to {LEVEL_MAX} users or arrivals a second")]
    Level(f64),
    /// The files to compress cannot be created.
    #[error("creating files to compress in {}: {source}; give a writable folder with free space", folder.display())]
    Files {
        /// The folder.
        folder: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The system refused a resource that every load needs.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// The highest level that can be set while a load runs.
const LEVEL_MAX: f64 = 1e7;

/// A running load. Dropping it ends it.
pub struct Load {
    shared: Arc<Shared>,
    seconds: Seconds,
    slices: Tape,
    threads: Vec<JoinHandle<()>>,
    failure: Arc<Mutex<Option<String>>>,
    last_switch_ns: Mutex<Nanos>,
}

impl Load {
    /// Validates the program, connects to its servers and starts the workers, which wait for the first switch. All times are those of
    /// `clock`.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn prepare(program: LoadProgram, options: &Options, clock: &SessionClock) -> Result<(Self, LoadStarted), LoadError> {
        let program = program::compile(program)?;
        let users = prepare::users_most(&program);
        let (files_needed, files_limit) = prepare::room_for_files(&program, users).map_err(LoadError::Room)?;
        let trust = prepare::trust(&program).map_err(LoadError::Room)?;
        let (addresses, origins) = prepare::reach(&program, trust.as_ref()).map_err(LoadError::Unreachable)?;
        let ports_most = prepare::room_for_ports(&program, &addresses, users).map_err(LoadError::Room)?;
        let threads = options.threads.clamp(1, 1024);
        let controls = Arc::new(Controls::new(threads)?);
        let pool = (!program.compressions.is_empty())
            .then(|| Pool::start(&program.compressions, &options.work_dir, threads, &controls, clock))
            .transpose()
            .map_err(|source| LoadError::Files { folder: options.work_dir.clone(), source })?;
        let started = LoadStarted {
            labels: program.labels.clone(),
            origins,
            files_needed,
            files_limit,
            user_bytes: (size_of::<User>() + size_of::<Option<link::Link>>()) as u64,
            stages_ns: Levels::new(stages(&program.pacing)).end_ns(),
        };
        let (seed, clock) = (options.seed, clock.clone());
        let shared = Arc::new(Shared { program, addresses, clock, trust, controls, pool, seed, threads, ports_most });
        let load = Self {
            shared,
            seconds: Seconds::default(),
            slices: Tape::default(),
            threads: Vec::new(),
            failure: Arc::default(),
            last_switch_ns: Mutex::new(0),
        };
        Ok((load.with_workers(options)?, started))
    }

    fn with_workers(mut self, options: &Options) -> std::io::Result<Self> {
        for number in 0..self.shared.threads {
            let (shared, seconds, failure) = (self.shared.clone(), self.seconds.clone(), self.failure.clone());
            let (tape, slice_ns) = (self.slices.clone(), options.slice_ns);
            let body = move || {
                let source = &shared.program.source;
                // Wake up at the requested time, without the timer slack by which the kernel groups wake-ups.
                let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
                let start_ns = shared.clock.now();
                let slices = source.slices.then(|| Recorder::new(tape, number, slice_ns, start_ns));
                let surroundings = (number == 0).then(|| Surroundings::new(shared.ports_most));
                let labels = shared.program.labels.len();
                let recorder = SecondRecorder::new(seconds, slices, number, labels, source.late_after_ns, surroundings, start_ns);
                let outcome = Worker::new(&shared, number, recorder).and_then(|mut worker| worker.run());
                if let Err(error) = outcome {
                    *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("worker thread {number}: {error}"));
                }
            };
            self.threads.push(thread::Builder::new().name(format!("load-{number}")).spawn(body)?);
        }
        Ok(self)
    }

    /// Sets the load's intensity, 0 to 1, from `at_ns` on. The load begins with its first switch above 0.
    ///
    /// # Errors
    /// If the intensity is out of range or the time is before an earlier switch's.
    pub fn switch(&self, at_ns: Nanos, intensity: f64) -> Result<(), SwitchError> {
        let mut last_ns = self.last_switch_ns.lock().unwrap_or_else(PoisonError::into_inner);
        let why = match intensity {
            0.0..=1.0 if at_ns >= *last_ns => {
                *last_ns = at_ns;
                self.shared.controls.switch(Switch { at_ns, to: Setting::Intensity(intensity) });
                return Ok(());
            }
            0.0..=1.0 => "give switches in order of time",
            _ => "give an intensity of 0 to 1",
        };
        Err(SwitchError { at_ns, intensity, why })
    }

    /// Sets the number of users, or of arrivals a second, from `at_ns` until the end of the last stage, in place of the stages. Like
    /// stages, it counts the users of all generators that share the load.
    ///
    /// # Errors
    /// If it is not a number of users, or the host has no room for so many.
    pub fn set_level(&self, at_ns: Nanos, level: f64) -> Result<(), LoadError> {
        if !(0.0..=LEVEL_MAX).contains(&level) {
            return Err(LoadError::Level(level));
        }
        let Shared { program, addresses, controls, .. } = &*self.shared;
        if let Pacing::Closed { .. } = program.pacing {
            let users = Seat::new(program.source.share, 0, 1).part_of(level.ceil() as u64);
            prepare::room_for_files(program, users).map_err(LoadError::Room)?;
            prepare::room_for_ports(program, addresses, users).map_err(LoadError::Room)?;
        }
        controls.switch(Switch { at_ns, to: Setting::Level(level) });
        Ok(())
    }

    /// Ends the workers, which close their last second, and joins them.
    pub fn end(&mut self) {
        self.shared.controls.end();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }

    /// Seconds finished since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<LoadSecond> {
        self.seconds.take()
    }

    /// Slices, if the program requests them.
    #[must_use]
    pub fn slices(&self) -> &Tape {
        &self.slices
    }

    /// The reason why it ended. None while it runs. The failure of one thread is that of the load: its users are missing.
    pub fn ended(&mut self) -> Option<String> {
        let panicked = self.threads.extract_if(.., |thread| thread.is_finished()).filter_map(|thread| thread.join().err()).count() > 0;
        if panicked || self.shared.pool.as_ref().is_some_and(Pool::has_died) {
            return Some("one of its threads panicked, which is a bug".into());
        }
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.or_else(|| self.threads.is_empty().then(|| "all stages are over".into()))
    }
}

fn stages(pacing: &Pacing) -> &[Stage] {
    match pacing {
        Pacing::Closed { stages, .. } | Pacing::Open { stages, .. } => stages,
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_load_of_which_one_thread_panics_ends_though_the_others_go_on() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let http = json!({ "name": "GET /", "method": "GET", "url": format!("http://{}/", server.local_addr().unwrap()) });
        let open = json!({ "arrivals": "poisson", "stages": [{ "to": 1.0, "for_ns": 60_000_000_000_u64 }], "users_max": 10 });
        let program = json!({ "kinds": [{ "name": "user", "actions": [{ "http": http }] }], "pacing": { "open": open } });
        let options = Options { threads: 2, slice_ns: 10_000_000, work_dir: std::env::temp_dir(), seed: 1 };
        let (mut load, _) = Load::prepare(serde_json::from_value(program).unwrap(), &options, &SessionClock::default()).unwrap();
        assert_eq!(load.ended(), None);
        load.threads.push(thread::spawn(|| panic!("planted")));
        let until_ns = partywall_clock::monotonic() + 30_000_000_000;
        let why = loop {
            assert!(partywall_clock::monotonic() < until_ns, "the load did not say that a thread had panicked");
            if let Some(why) = load.ended() {
                break why;
            }
            thread::yield_now();
        };
        assert_eq!(why, "one of its threads panicked, which is a bug");
    }
}
