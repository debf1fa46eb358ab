//! A user's command as a workload: the command capability, and a thread that switches it by a stressor's schedule.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use partywall_clock::SessionClock;
use partywall_command::{Output, Running, Source, Spec, Switch, Tape};
use partywall_stressor::Schedule;
use partywall_wire::{Command, Event, Fault, Line, Pace, Stream, Used};

use crate::refusal::refused;
use crate::resident::{died, Sink};

/// Lines in one message, so that no message becomes too long.
const LINES_MAX: usize = 100;

/// A running command and, if it is scheduled, the thread that switches it.
pub(crate) struct CommandWorkload {
    // Dropped first, because the follower must not continue a group that is being killed.
    follower: Option<Follower>,
    running: Running,
    output: Output,
    used: Tape,
}

struct Follower {
    schedule: Arc<Schedule>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.schedule.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl CommandWorkload {
    pub(crate) fn start(command: &Command, pace: Pace, clock: &SessionClock) -> Result<Self, Fault> {
        let output = Output::default();
        let spec = Spec { argv: command.argv.clone(), env: command.env.clone() };
        let running = Running::start(&spec, &output, clock).map_err(refused)?;
        let used = Tape::default();
        let follower = match pace {
            Pace::FlatOut => None,
            Pace::Scheduled => Some(Follower::start(running.switch(&used, clock), command.warm_up_ns, clock)?),
        };
        Ok(Self { follower, running, output, used })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.running.pid()
    }

    pub(crate) fn switch(&self, at_ns: u64, intensity: f64) -> Result<(), Fault> {
        let Some(follower) = &self.follower else {
            return Err(Fault::usage("a command without a schedule cannot be switched; start it with pace scheduled"));
        };
        if intensity > 0.0 && intensity < 1.0 {
            let why =
                format_args!("intensity {intensity}: a command is either on (1) or off (0); use a built-in stressor for other intensities");
            return Err(Fault::usage(why));
        }
        follower.schedule.append(at_ns, intensity).map_err(refused)
    }

    pub(crate) fn ended(&mut self) -> Option<String> {
        self.running.ended().or_else(|| self.follower.as_ref()?.thread.as_ref().and_then(died))
    }

    pub(crate) fn drain(&self, id: &str, sink: &mut dyn Sink) {
        push(id, &self.output, &self.used, sink);
    }

    /// Ends the command and pushes its remaining output.
    pub(crate) fn stop(self, id: &str, sink: &mut dyn Sink) {
        let Self { follower, running, output, used } = self;
        drop(follower);
        drop(running);
        push(id, &output, &used, sink);
    }
}

fn push(id: &str, output: &Output, used: &Tape, sink: &mut dyn Sink) {
    lines(id, output).into_iter().chain(usage(id, used)).for_each(|event| sink.push(event));
}

fn lines(id: &str, output: &Output) -> Vec<Event> {
    let (lines, dropped) = output.take();
    let stream = |source| match source {
        Source::Stdout => Stream::Stdout,
        Source::Stderr => Stream::Stderr,
    };
    let lines: Vec<Line> = lines.into_iter().map(|l| Line { at_ns: l.at_ns, stream: stream(l.source), text: l.text }).collect();
    let message = |lines: &[Line], dropped| Event::Output { id: id.into(), lines: lines.to_vec(), dropped };
    let mut events: Vec<Event> = lines.chunks(LINES_MAX).map(|lines| message(lines, 0)).collect();
    match events.last_mut() {
        Some(Event::Output { dropped: of_last, .. }) => *of_last = dropped,
        _ if dropped > 0 => events.push(message(&[], dropped)),
        _ => {}
    }
    events
}

fn usage(id: &str, used: &Tape) -> Option<Event> {
    let wire_used = |used: partywall_command::Used| Used {
        start_ns: used.start_ns,
        end_ns: used.end_ns,
        on: used.on,
        processes: used.processes,
        cpu_ns: used.cpu_ns,
        disk_bytes: used.disk_bytes,
    };
    let intervals: Vec<Used> = used.take().into_iter().map(wire_used).collect();
    (!intervals.is_empty()).then(|| Event::Usage { id: id.into(), intervals })
}

impl Follower {
    fn start(mut switch: Switch, warm_up_ns: u64, clock: &SessionClock) -> Result<Self, Fault> {
        let schedule = Arc::new(Schedule::new(clock));
        let followed = schedule.clone();
        let first_off_ns = clock.now().saturating_add(warm_up_ns);
        let body = move || {
            followed.wait(0, first_off_ns);
            switch.set(false);
            let mut cursor = 0;
            while let Some(hold) = followed.hold(&mut cursor, followed.clock().now()) {
                switch.set(hold.intensity > 0.0);
                followed.wait(cursor, hold.until_ns);
            }
        };
        let thread = thread::Builder::new().name("switch".into()).spawn(body).map_err(refused)?;
        Ok(Self { schedule, thread: Some(thread) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_nobody_switches_any_more_has_ended() {
        let command = Command { argv: vec!["sleep".into(), "60".into()], env: std::collections::BTreeMap::new(), warm_up_ns: 0 };
        let mut workload = CommandWorkload::start(&command, Pace::Scheduled, &SessionClock::default()).unwrap();
        assert_eq!(workload.ended(), None);
        let panicking = thread::Builder::new().name("switch".into()).spawn(|| panic!("planted")).unwrap();
        workload.follower = Some(Follower { schedule: Arc::default(), thread: Some(panicking) });
        let why = loop {
            if let Some(why) = workload.ended() {
                break why;
            }
            thread::yield_now();
        };
        assert_eq!(why, "its thread switch panicked, which is a bug");
    }

    #[test]
    fn a_command_is_stopped_during_its_warm_up() {
        let warm_up_ns = 36_000_000_000_000;
        let command = Command { argv: vec!["sleep".into(), "3600".into()], env: std::collections::BTreeMap::new(), warm_up_ns };
        let workload = CommandWorkload::start(&command, Pace::Scheduled, &SessionClock::default()).unwrap();
        drop(workload);
    }
}
