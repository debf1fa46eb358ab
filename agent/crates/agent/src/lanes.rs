//! Threads that answer requests: one for each group of methods, so that a slow method delays only its own group. Requests of one
//! group are answered in order. Which methods there are is decided elsewhere.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, Scope};

use partywall_wire::{Method, Request};

/// Maximum bytes of waiting requests, except for a single longer one.
const WAITING_MAX: usize = 1 << 20;

/// The group of a method. None for one that is answered at once by the reading thread: about the time, or unknown.
fn group(method: &str) -> Option<&'static str> {
    match Method::find(method)?.name {
        "hello" | "clock" | "clock.adjust" => None,
        // It may take a minute, during which the workloads are not locked.
        name @ "workload.calibrate" => Some(name),
        name => name.split('.').next(),
    }
}

/// Bytes of requests that are not answered yet.
#[derive(Default)]
struct Waiting(Mutex<usize>, Condvar);

impl Waiting {
    /// Adds a request when there is space.
    fn add(&self, bytes: usize) {
        let full = |waiting: &mut usize| *waiting > 0 && *waiting + bytes > WAITING_MAX;
        let free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *self.1.wait_while(free, full).unwrap_or_else(PoisonError::into_inner) += bytes;
    }

    fn answered(&self, bytes: usize) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) -= bytes;
        self.1.notify_all();
    }
}

/// The threads. They end when this is dropped and the waiting requests are answered.
pub(crate) struct Lanes<'scope, 'env, F> {
    scope: &'scope Scope<'scope, 'env>,
    answer: &'env F,
    waiting: Arc<Waiting>,
    by_group: BTreeMap<&'static str, Sender<(Request, usize)>>,
}

impl<'scope, 'env, F: Fn(Request) -> io::Result<()> + Sync> Lanes<'scope, 'env, F> {
    /// `answer` answers a request. If it fails, the stream has failed.
    pub(crate) fn new(scope: &'scope Scope<'scope, 'env>, answer: &'env F) -> Self {
        Self { scope, answer, waiting: Arc::default(), by_group: BTreeMap::new() }
    }

    /// Answers a request of `bytes`, or has it answered. Waits while too many are open.
    pub(crate) fn take(&mut self, request: Request, bytes: usize) -> io::Result<()> {
        let Some(group) = group(&request.method) else { return (self.answer)(request) };
        self.waiting.add(bytes);
        if !self.by_group.contains_key(group) {
            let lane = self.spawn(group)?;
            self.by_group.insert(group, lane);
        }
        self.by_group[group].send((request, bytes)).map_err(|_| ErrorKind::BrokenPipe.into())
    }

    fn spawn(&self, group: &str) -> io::Result<Sender<(Request, usize)>> {
        let (lane, requests): (_, Receiver<(Request, usize)>) = channel();
        let (answer, waiting) = (self.answer, self.waiting.clone());
        let body = move || {
            for (request, bytes) in requests {
                let answered = answer(request);
                waiting.answered(bytes);
                if answered.is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name(format!("answer-{group}")).spawn_scoped(self.scope, body)?;
        Ok(lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn request(id: u64, method: &str) -> Request {
        Request { jsonrpc: "2.0".into(), id, method: method.into(), params: Value::Null }
    }

    #[test]
    fn a_slow_method_delays_only_its_own_group() {
        let (go, going) = channel();
        let (going, done) = (Mutex::new(going), Mutex::new(Vec::new()));
        let (says, said) = channel();
        let answer = |request: Request| {
            if request.id == 1 {
                going.lock().unwrap().recv().unwrap();
            }
            done.lock().unwrap().push(request.id);
            says.send(request.id).unwrap();
            Ok(())
        };
        thread::scope(|scope| {
            let mut lanes = Lanes::new(scope, &answer);
            let methods = ["workload.calibrate", "workload.calibrate", "workload.stop", "monitor.stop", "clock", "no.such"];
            for (id, method) in (1..).zip(methods) {
                lanes.take(request(id, method), 100).unwrap();
            }
            let mut others: Vec<u64> = said.iter().take(4).collect();
            others.sort_unstable();
            assert_eq!(others, [3, 4, 5, 6]);
            go.send(()).unwrap();
        });
        assert_eq!(done.lock().unwrap()[4..], [1, 2], "in order, and answered although no more came");
    }

    #[test]
    fn requests_that_wait_take_bounded_memory() {
        let answer = |_| Ok(());
        thread::scope(|scope| {
            let mut lanes = Lanes::new(scope, &answer);
            for id in 0..100 {
                lanes.take(request(id, "workload.start"), WAITING_MAX / 3).unwrap();
                assert!(*lanes.waiting.0.lock().unwrap() <= WAITING_MAX);
            }
            lanes.take(request(100, "workload.start"), 64 * WAITING_MAX).unwrap();
            lanes.take(request(101, "workload.stop"), 100).unwrap();
            assert!(*lanes.waiting.0.lock().unwrap() <= 100, "the long one was answered first");
        });
    }
}
