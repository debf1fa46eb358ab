//! One stream: a thread that reads requests and answers them, and one that sends what workloads left on their tapes.

use std::io::{self, BufRead, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use partywall_clock as clock;
use partywall_wire::{decode, Event, Fault, Notification, Response, CODE_REQUEST, MAX_LINE};
use serde::Serialize;

use crate::dispatch::{Agent, ClockOwner, Shared};

/// How often tapes are sent. Rare, because sending takes time from a workload on the same CPU.
const FLUSH_NS: u64 = 200_000_000;

/// The writing side, shared by answers and notifications; each message is one line and one write.
#[derive(Clone)]
pub(crate) struct Sender(Arc<Mutex<Box<dyn Write + Send>>>);

impl Sender {
    fn send(&self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stream.write_all(&line)?;
        stream.flush()
    }

    pub(crate) fn notify(&self, event: &Event) -> io::Result<()> {
        self.send(&Notification::new(event))
    }
}

/// Serves one controller until its stream ends. Everything started for it ends with it. owner: whose clock it may adjust.
pub(crate) fn serve(input: impl BufRead, output: impl Write + Send + 'static, owner: ClockOwner) -> io::Result<()> {
    let sender = Sender(Arc::new(Mutex::new(Box::new(output))));
    let mut agent = Agent::new(sender.clone(), owner);
    let shared = agent.shared();
    thread::Builder::new().name("flush".into()).spawn({
        let sender = sender.clone();
        move || flush(&shared, &sender)
    })?;
    let ended = answer(input, &sender, &mut agent);
    // Commands are killed here, with their whole groups; nothing else would end a grandchild.
    agent.stop_all();
    ended
}

fn answer(mut input: impl BufRead, sender: &Sender, agent: &mut Agent) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = input.by_ref().take(MAX_LINE as u64 + 2).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(());
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let response = match decode(line.trim_ascii_end()) {
            Ok(request) => Response::new(Some(request.id), agent.call(&request.method, request.params)),
            Err((id, fault)) => Response::new(id, Err(fault)),
        };
        sender.send(&response)?;
        if !line.ends_with(b"\n") && line.len() > MAX_LINE {
            let fault = Fault::new(CODE_REQUEST, "the rest of a message that is too long cannot be told from the next; ending");
            return sender.send(&Response::new(None, Err(fault)));
        }
    }
}

/// Sends tapes until nobody listens, which ends the agent: it must not outlive its controller.
fn flush(shared: &Shared, sender: &Sender) {
    loop {
        shared.wait_for_work();
        clock::sleep_until(clock::now() + FLUSH_NS);
        for event in shared.take_events() {
            if sender.notify(&event).is_err() {
                std::process::exit(1);
            }
        }
    }
}
