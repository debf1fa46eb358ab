//! One stream: a thread that reads requests and answers them, one that collects what workloads left on their tapes, and one
//! that writes.

use std::io::{self, BufRead, Read, Write};
use std::thread;
use std::time::Duration;

use partywall_clock as clock;
use partywall_wire::{decode, Fault, Response, CODE_REQUEST};

use crate::capability::Only;
use crate::dispatch::{Agent, ClockOwner, Shared};
use crate::outbox::Outbox;

/// How often tapes are collected. Rare, because sending takes time from a workload on the same CPU.
const FLUSH_NS: u64 = 200_000_000;
/// How long the last answers may take to be written once the controller has closed its side.
const FAREWELL: Duration = Duration::from_secs(2);

/// Serves one controller until its stream ends. Everything started for it ends with it. owner: whose clock it may adjust.
pub(crate) fn serve(input: impl BufRead, output: impl Write + Send + 'static, owner: ClockOwner, only: Only) -> io::Result<()> {
    let outbox = Outbox::default();
    let line_max = only.line_max();
    let agent = Agent::new(outbox.clone(), owner, only);
    let (shared, collected) = (agent.shared(), outbox.clone());
    thread::Builder::new().name("flush".into()).spawn(move || collect(&shared, collected))?;
    let (shared, written) = (agent.shared(), outbox.clone());
    thread::Builder::new().name("write".into()).spawn(move || {
        if written.write_to(output).is_err() {
            // Nobody listens: it must not outlive its controller, and neither must what it started.
            shared.stop_all();
            std::process::exit(1);
        }
    })?;
    let ended = answer(input, &outbox, &agent, line_max);
    // Commands are killed here, with their whole groups; nothing else would end a grandchild.
    agent.shared().stop_all();
    outbox.close(FAREWELL);
    ended
}

fn answer(mut input: impl BufRead, outbox: &Outbox, agent: &Agent, line_max: usize) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        // A long request is rare; its memory is not kept.
        line.shrink_to(1 << 20);
        let read = input.by_ref().take(line_max as u64 + 2).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(());
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        if !line.ends_with(b"\n") && line.len() > line_max {
            let why = format!("a message longer than {line_max} bytes; the rest of it cannot be told from the next, so this ends");
            return outbox.send(&Response::new(None, Err(Fault::new(CODE_REQUEST, why))));
        }
        let response = match decode(line.trim_ascii_end()) {
            Ok(request) => Response::new(Some(request.id), agent.call(&request.method, request.params)),
            Err((id, fault)) => Response::new(id, Err(fault)),
        };
        outbox.send(&response)?;
    }
}

/// Collects tapes all the time, so that they stay short also while nobody reads what is sent.
fn collect(shared: &Shared, mut outbox: Outbox) {
    loop {
        shared.wait_for_work();
        clock::sleep_until(clock::now() + FLUSH_NS);
        shared.drain(&mut outbox);
        outbox.tell_dropped();
    }
}
