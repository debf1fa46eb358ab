//! One stream: a thread that reads requests, threads that answer them, one that collects events of workloads, and one that writes.

use std::io::{self, BufRead, Read, Write};
use std::thread;
use std::time::Duration;

use partywall_clock as clock;
use partywall_wire::{decode, Fault, Request, Response, CODE_REQUEST};

use crate::capability::Only;
use crate::dispatch::{Agent, ClockOwner, Shared};
use crate::lanes::Lanes;
use crate::outbox::Outbox;

/// How often events are collected. Rarely, because sending takes CPU time from a workload on the same CPU.
const FLUSH_NS: u64 = 200_000_000;
/// Time for writing the last answers after the controller has closed its side.
const FAREWELL: Duration = Duration::from_secs(2);
/// The exit status after a panic, as that of a program whose main thread panics.
const PANICKED: i32 = 101;

/// Serves one controller until its stream ends. Everything started for it ends with it. owner: the owner of the adjustable clock.
pub(crate) fn serve(input: impl BufRead, output: impl Write + Send + 'static, owner: ClockOwner, only: Only) -> io::Result<()> {
    let outbox = Outbox::default();
    let line_max = only.line_max();
    let agent = Agent::new(outbox.clone(), owner, only);
    let collected = outbox.clone();
    spawn("flush", agent.shared(), move |shared| collect(shared, collected))?;
    let written = outbox.clone();
    spawn("write", agent.shared(), move |shared| {
        if written.write_to(output).is_err() {
            // The stream has failed: the agent and everything it started must not outlive its controller.
            shared.stop_all();
            std::process::exit(1);
        }
    })?;
    let ended = answer(input, &outbox, &agent, line_max);
    // Kills commands with their whole process groups; nothing else would end a grandchild.
    agent.shared().stop_all();
    outbox.close(FAREWELL);
    ended
}

fn answer(mut input: impl BufRead, outbox: &Outbox, agent: &Agent, line_max: usize) -> io::Result<()> {
    let shared = agent.shared();
    let handle = |request: Request| {
        let _ends = EndsOnPanic(&shared);
        outbox.send(&Response::new(Some(request.id), agent.call(&request.method, request.params)))
    };
    thread::scope(|scope| {
        let mut lanes = Lanes::new(scope, &handle);
        let mut line = Vec::new();
        loop {
            line.clear();
            // Long requests are rare, so their memory is released.
            line.shrink_to(1 << 20);
            let read = input.by_ref().take(line_max as u64 + 2).read_until(b'\n', &mut line)?;
            if read == 0 {
                return Ok(());
            }
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            if !line.ends_with(b"\n") && line.len() > line_max {
                let why = format!("a message is longer than {line_max} bytes, so its end is unknown; the agent ends");
                return outbox.send(&Response::new(None, Err(Fault::new(CODE_REQUEST, why))));
            }
            match decode(line.trim_ascii_end()) {
                Ok(request) => lanes.take(request, line.len())?,
                Err((id, fault)) => outbox.send(&Response::new(id, Err(fault)))?,
            }
        }
    })
}

/// Starts a thread without which the agent would be useless, and ends with it if it panics.
fn spawn(name: &str, shared: Shared, body: impl FnOnce(&Shared) + Send + 'static) -> io::Result<()> {
    let body = move || {
        let _ends = EndsOnPanic(&shared);
        body(&shared);
    };
    thread::Builder::new().name(name.into()).spawn(body).map(drop)
}

/// A method that panicked has no answer, and without the other threads nothing is sent: the agent ends with everything it started.
struct EndsOnPanic<'a>(&'a Shared);

impl Drop for EndsOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop_all();
            std::process::exit(PANICKED);
        }
    }
}

/// Collects events regularly, so that buffers stay short even if nobody reads.
fn collect(shared: &Shared, mut outbox: Outbox) {
    loop {
        shared.wait_for_work();
        clock::sleep_until(clock::monotonic() + FLUSH_NS);
        shared.drain(&mut outbox);
        outbox.tell_dropped();
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// The name of this test, and the sign that it is the child that it starts.
    const SELF: &str = "session::tests::an_agent_ends_with_a_thread_that_it_cannot_do_without";
    const CHILD: &str = "PARTYWALL_TEST_CHILD";

    #[test]
    fn an_agent_ends_with_a_thread_that_it_cannot_do_without() {
        if std::env::var_os(CHILD).is_some() {
            spawn("flush", Shared::default(), |_| panic!("planted")).unwrap();
            // The sleep of an agent that goes on without saying anything.
            clock::sleep_until(clock::monotonic() + 60_000_000_000);
            return;
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        let child = child.args(["--exact", SELF, "--nocapture"]).env(CHILD, "").stdout(Stdio::null()).stderr(Stdio::null());
        assert_eq!(child.status().unwrap().code(), Some(PANICKED));
    }
}
