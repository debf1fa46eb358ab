//! `context-switch`: two threads pass a token back and forth, and each pass makes the processor switch threads. The other thread is
//! pinned to the worker's CPU. Otherwise the two would run in parallel and wake each other instead of taking turns.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::Arc;

use rustix::event::{eventfd, EventfdFlags};
use rustix::io::{read, retry_on_intr, write};
use rustix::pipe::{pipe_with, PipeFlags};
use rustix::thread::{gettid, sched_getcpu, sched_setaffinity, CpuSet, Pid};
use schemars::{schema_for, JsonSchema};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::batch;
use crate::peer::Peer;
use crate::{Entry, Environment, Figure, Kernel, KernelError, KernelInfo, Latency, Needs, Resource, Roles, Settle, Sink, Unit};

/// Valid for pipes and event counters: an event counter requires exactly eight bytes and a value other than zero.
const TOKEN: [u8; 8] = 1_u64.to_ne_bytes();

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Through {
    #[default]
    Pipe,
    Eventfd,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Params {
    /// Channel that carries the token.
    through: Through,
    /// Whether the other thread is pinned to the worker's CPU. If not, wake-ups across CPUs are measured where there are several.
    same_cpu: bool,
}

impl Default for Params {
    fn default() -> Self {
        Self { through: Through::Pipe, same_cpu: true }
    }
}

/// The ends of the channel that one thread uses.
struct Side {
    from: OwnedFd,
    to: OwnedFd,
}

impl Side {
    fn put(&self) -> rustix::io::Result<()> {
        retry_on_intr(|| write(&self.to, &TOKEN)).map(|_| ())
    }

    fn take(&self) -> rustix::io::Result<()> {
        let mut token = [0; 8];
        match retry_on_intr(|| read(&self.from, &mut token))? {
            8 => Ok(()),
            _ => Err(rustix::io::Errno::PIPE),
        }
    }

    fn pair(through: Through) -> io::Result<(Self, Self)> {
        let one_way = || -> io::Result<(OwnedFd, OwnedFd)> {
            match through {
                Through::Pipe => Ok(pipe_with(PipeFlags::CLOEXEC)?),
                Through::Eventfd => {
                    let counter = eventfd(0, EventfdFlags::CLOEXEC)?;
                    Ok((counter.try_clone()?, counter))
                }
            }
        };
        let ((there_out, there_in), (back_out, back_in)) = (one_way()?, one_way()?);
        Ok((Self { from: back_out, to: there_in }, Self { from: there_out, to: back_in }))
    }
}

struct ContextSwitch {
    ours: Side,
    stop: Arc<AtomicBool>,
    other: Pid,
    params: Params,
    /// CPU on which the other thread was placed last.
    cpu: Option<usize>,
    moves: u64,
    _peer: Peer,
}

impl ContextSwitch {
    fn new(params: Params) -> io::Result<Self> {
        let (ours, theirs) = Side::pair(params.through)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (tell, received) = channel();
        let peer = Peer::spawn("context switch", move || {
            let _ = tell.send(gettid());
            while theirs.take().is_ok() && !stopped.load(Ordering::Acquire) && theirs.put().is_ok() {}
        })?;
        let other = received.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(Self { ours, stop, other, params, cpu: None, moves: 0, _peer: peer })
    }

    /// Moves the other thread to the current CPU of this one.
    fn gather(&mut self) -> Result<(), KernelError> {
        let cpu = sched_getcpu();
        if !self.params.same_cpu || self.cpu == Some(cpu) {
            return Ok(());
        }
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(Some(self.other), &set)
            .map_err(io::Error::from)
            .map_err(KernelError::host(format!("keeping the other thread on CPU {cpu}")))?;
        self.moves += u64::from(self.cpu.is_some());
        self.cpu = Some(cpu);
        Ok(())
    }

    fn round(&self) -> Result<f64, KernelError> {
        let passed = self.ours.put().and_then(|()| self.ours.take());
        passed.map_err(io::Error::from).map_err(KernelError::host("passing the token"))?;
        Ok(2.0)
    }
}

impl Kernel for ContextSwitch {
    fn step(&mut self, sink: &mut dyn Sink) -> Result<f64, KernelError> {
        self.gather()?;
        batch::timed(sink, || self.round())
    }

    fn facts(&self) -> crate::Params {
        let mut facts = crate::Params::new();
        facts.insert("through".into(), json!(self.params.through));
        facts.insert("same_cpu".into(), json!(self.params.same_cpu));
        facts.insert("moves".into(), json!(self.moves));
        facts
    }
}

impl Drop for ContextSwitch {
    fn drop(&mut self) {
        // Between steps the other thread waits for the token. When it gets one, it sees the stop flag.
        self.stop.store(true, Ordering::Release);
        let _ = self.ours.put();
    }
}

fn build(params: &crate::Params, _: &Environment) -> Result<Box<dyn Kernel>, KernelError> {
    let params: Params = serde_json::from_value(params.clone().into())?;
    Ok(Box::new(ContextSwitch::new(params).map_err(KernelError::host("preparing two threads"))?))
}

pub(crate) const ENTRY: Entry = Entry {
    name: "context-switch",
    info: || KernelInfo {
        name: "context-switch",
        resource: Resource::Kernel,
        summary: "two threads take turns on one CPU",
        doing: "context-switching",
        loses: None,
        unit: Unit::Operations,
        figure: Figure::PerOperation { label: "ns per switch" },
        also: None,
        latency: Latency::Own("a round trip of the token: two switches"),
        roles: Roles::Both,
        // The scheduler's load of a sleeping thread decays within a few of its periods.
        settle: Settle { rise_ns: 1_000_000, release_ns: 1_000_000 },
        needs: Needs::NOTHING,
        warnings: &[],
        params: schema_for!(Params),
    },
    build,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{build, error, steps, Latencies};

    /// Context switches away from this thread: because it waits, or because a woken thread runs at once in its place.
    fn switches_away() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
        counts.map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).sum()
    }

    #[test]
    fn the_kernel_counts_a_switch_away_for_each_round() {
        for through in ["pipe", "eventfd"] {
            let mut kernel = build("context-switch", json!({ "through": through }));
            let mut latencies = Latencies::default();
            let before = switches_away();
            let work = steps(kernel.as_mut(), 40, &mut latencies);
            let switches = switches_away() - before;
            assert_eq!(latencies.count() * 2, work as usize);
            assert!(switches as f64 >= work / 2.0 * 0.9, "{through}: {switches} switches away in {} rounds", work / 2.0);
        }
    }

    #[test]
    fn dropping_it_ends_its_thread_in_any_state() {
        for same_cpu in [true, false] {
            for through in ["pipe", "eventfd"] {
                drop(build("context-switch", json!({ "through": through, "same_cpu": same_cpu })));
            }
        }
    }

    #[test]
    fn wrong_parameters_are_named() {
        assert!(error("context-switch", json!({ "through": "smoke" })).contains("unknown variant `smoke`"));
    }
}
