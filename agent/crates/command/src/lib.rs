#![forbid(unsafe_code)]
//! Users' commands as workloads. Each runs in its own process group, its output lines are timed, and it is switched on and off by
//! continuing and stopping the group. The controller extracts metrics from the lines.

mod output;
mod usage;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use partywall_clock::{self as clock, SessionClock};
use partywall_sys::process::{signal_group, Signal};

use self::usage::Meter;

pub use output::{Output, Source, TimedLine};
pub use usage::{Tape, Used};

/// The command to start.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Added to the environment.
    pub env: BTreeMap<String, String>,
}

/// Maximum time to read the last lines of a killed command.
const LAST_OUTPUT_NS: clock::Nanos = 200_000_000;

/// Reason why a command could not be started.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// An empty list of arguments.
    #[error("the command is empty; give a program and its arguments")]
    Empty,
    /// The program could not be started.
    #[error("command {program:?} could not be started: {source}; check that it is installed and visible in the sandbox")]
    Start {
        /// The program.
        program: String,
        /// The error of the system.
        source: io::Error,
    },
}

/// A running command; dropping it kills its whole group.
pub struct Running {
    leader: u32,
    child: Arc<Mutex<Child>>,
    readers: Vec<JoinHandle<()>>,
    output: Output,
}

impl Running {
    /// Starts `spec` and sends its lines to `output`, with times of `clock`.
    ///
    /// # Errors
    /// See [`CommandError`].
    pub fn start(spec: &Spec, output: &Output, clock: &SessionClock) -> Result<Self, CommandError> {
        let (program, arguments) = spec.argv.split_first().ok_or(CommandError::Empty)?;
        let failed = |source| CommandError::Start { program: program.clone(), source };
        let mut command = Command::new(program);
        command.args(arguments).envs(&spec.env).process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        partywall_sys::process::kill_child_with_parent(&mut command);
        let mut child = command.spawn().map_err(failed)?;
        let mut readers = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            readers.push(output::follow(stdout, Source::Stdout, output.clone(), clock.clone()).map_err(failed)?);
        }
        if let Some(stderr) = child.stderr.take() {
            readers.push(output::follow(stderr, Source::Stderr, output.clone(), clock.clone()).map_err(failed)?);
        }
        Ok(Self { leader: child.id(), child: Arc::new(Mutex::new(child)), readers, output: output.clone() })
    }

    /// Process ID of the command, which leads its group.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.leader
    }

    /// A handle that switches the command on and off, for a thread that follows a schedule. Resource usage between two switches goes to
    /// `tape`, with times of `clock`.
    #[must_use]
    pub fn switch(&self, tape: &Tape, clock: &SessionClock) -> Switch {
        let mut meter = Meter::new(Path::new("/"), self.leader);
        meter.read(clock.now(), true);
        Switch { leader: self.leader, on: true, meter, tape: tape.clone(), clock: clock.clone() }
    }

    /// How it ended, with its last lines, if it has.
    pub fn ended(&mut self) -> Option<String> {
        if self.readers.extract_if(.., |reader| reader.is_finished()).any(|reader| reader.join().is_err()) {
            return Some("the thread that reads its output panicked, which is a bug".into());
        }
        let status = self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait().ok()??;
        let mut reason = format!("the command ended {}", in_words(status));
        let tail = self.output.tail();
        if !tail.is_empty() {
            reason = format!("{reason}; its last output was: {}", tail.join(" | "));
        }
        Some(reason)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A stopped group does not react to other signals, but SIGKILL also ends stopped processes.
        let _ = signal_group(self.leader, Signal::KILL);
        let _ = self.child.lock().unwrap_or_else(PoisonError::into_inner).wait();
        let until_ns = clock::monotonic() + LAST_OUTPUT_NS;
        for reader in self.readers.drain(..) {
            // Its last output is in the pipe. A grandchild that left the group may keep the pipe open; do not wait for it.
            while !reader.is_finished() && clock::monotonic() < until_ns {
                clock::sleep_until(clock::monotonic() + 1_000_000);
            }
            if reader.is_finished() {
                let _ = reader.join();
            }
        }
    }
}

/// Switches a command on and off.
pub struct Switch {
    leader: u32,
    on: bool,
    meter: Meter,
    tape: Tape,
    clock: SessionClock,
}

impl Switch {
    /// Continues or stops the whole group. A group that has ended stays ended.
    pub fn set(&mut self, on: bool) {
        let _ = signal_group(self.leader, if on { Signal::CONT } else { Signal::STOP });
        if on != self.on {
            self.meter.read(self.clock.now(), self.on).into_iter().for_each(|used| self.tape.push(used));
            self.on = on;
        }
    }
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("with exit status {code}"),
        (None, Some(9)) => "by signal 9 (killed, perhaps because memory ran out)".into(),
        (None, Some(signal)) => format!("by signal {signal}"),
        (None, None) => "for an unknown reason".into(),
    }
}

/// Spawns a named thread of the command capability.
fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running() -> Running {
        let spec = Spec { argv: vec!["sleep".into(), "60".into()], env: BTreeMap::new() };
        Running::start(&spec, &Output::default(), &SessionClock::default()).unwrap()
    }

    #[test]
    fn a_command_whose_output_nobody_reads_any_more_has_ended() {
        let mut command = running();
        assert_eq!(command.ended(), None);
        command.readers.push(thread::spawn(|| panic!("planted")));
        let why = loop {
            if let Some(why) = command.ended() {
                break why;
            }
            thread::yield_now();
        };
        assert_eq!(why, "the thread that reads its output panicked, which is a bug");
    }

    #[test]
    fn a_command_that_closed_its_output_goes_on() {
        let argv = ["sh", "-c", "exec >&- 2>&-; exec sleep 60"].map(String::from).to_vec();
        let spec = Spec { argv, env: BTreeMap::new() };
        let mut command = Running::start(&spec, &Output::default(), &SessionClock::default()).unwrap();
        while !command.readers.is_empty() {
            assert_eq!(command.ended(), None);
            thread::yield_now();
        }
    }
}
