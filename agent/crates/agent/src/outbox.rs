//! Lines that wait to be written to the controller, in order and bounded in bytes. A stopped controller, or a connection that
//! hangs, must not fill the memory of a measured host.
//!
//! Answers wait for space, so that a controller that sends requests without reading has to wait. Notifications do not wait: they
//! are dropped and counted, and the counts are sent as `dropped` when there is space. Lines are not interpreted here.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use partywall_wire::{Event, Notification};
use serde::Serialize;

use crate::resident::Sink;

/// Half a minute of a busy workload's messages. Not more, because it counts as memory of the sandbox.
const BYTES_MAX: usize = 32 << 20;

/// Waiting lines. Clones share them.
#[derive(Clone)]
pub(crate) struct Outbox(Arc<Shared>);

struct Shared {
    bytes_max: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Counts by kind of message and by sender.
    dropped: BTreeMap<(&'static str, String), u64>,
    /// No more lines will be added.
    closed: bool,
    /// The stream has failed.
    failed: bool,
}

impl State {
    fn add(&mut self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.bytes += line.len();
        self.lines.push_back(line);
        Ok(())
    }

    /// Reports dropped messages before the next message.
    fn add_dropped(&mut self) -> io::Result<()> {
        while let Some(((what, id), count)) = self.dropped.pop_first() {
            self.add(&Notification::new(&Event::Dropped { id, what: what.into(), count }))?;
        }
        Ok(())
    }
}

impl Default for Outbox {
    fn default() -> Self {
        Self::bounded(BYTES_MAX)
    }
}

impl Outbox {
    fn bounded(bytes_max: usize) -> Self {
        Self(Arc::new(Shared { bytes_max, state: Mutex::default(), changed: Condvar::new() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message when there is space. An error if the stream has failed.
    pub(crate) fn send(&self, message: &impl Serialize) -> io::Result<()> {
        let full = |state: &mut State| state.bytes >= self.0.bytes_max && !state.failed;
        let mut state = self.0.changed.wait_while(self.state(), full).unwrap_or_else(PoisonError::into_inner);
        if state.failed {
            return Err(ErrorKind::BrokenPipe.into());
        }
        state.add_dropped()?;
        state.add(message)?;
        drop(state);
        self.0.changed.notify_all();
        Ok(())
    }

    /// Adds a notification, or counts it as dropped if there is no space. The end of a workload is always added.
    pub(crate) fn offer(&self, event: &Event) {
        let mut state = self.state();
        if state.bytes >= self.0.bytes_max && !matches!(event, Event::Ended(_)) {
            let (what, id, count) = event.content();
            *state.dropped.entry((what, id.to_owned())).or_default() += count;
            return;
        }
        // All events can be serialised as JSON.
        let _ = state.add_dropped().and_then(|()| state.add(&Notification::new(event)));
        drop(state);
        self.0.changed.notify_all();
    }

    /// Sends the counts of dropped messages, if there is space.
    pub(crate) fn tell_dropped(&self) {
        let mut state = self.state();
        if state.bytes < self.0.bytes_max && !state.dropped.is_empty() {
            let _ = state.add_dropped();
            drop(state);
            self.0.changed.notify_all();
        }
    }

    /// Writes lines until the outbox is closed. An error if the stream fails.
    pub(crate) fn write_to(&self, mut stream: impl Write) -> io::Result<()> {
        while let Some(line) = self.next() {
            let written = stream.write_all(&line).and_then(|()| stream.flush());
            let mut state = self.state();
            state.bytes -= line.len();
            state.failed |= written.is_err();
            drop(state);
            self.0.changed.notify_all();
            written?;
        }
        Ok(())
    }

    /// The next line. It counts until it has been written.
    fn next(&self) -> Option<Vec<u8>> {
        let idle = |state: &mut State| state.lines.is_empty() && !state.closed;
        self.0.changed.wait_while(self.state(), idle).unwrap_or_else(PoisonError::into_inner).lines.pop_front()
    }

    /// Waits for a limited time until all is written: a peer that closed its output may not read either.
    pub(crate) fn close(&self, within: Duration) {
        let mut state = self.state();
        state.closed = true;
        self.0.changed.notify_all();
        let unwritten = |state: &mut State| state.bytes > 0 && !state.failed;
        drop(self.0.changed.wait_timeout_while(state, within, unwritten).unwrap_or_else(PoisonError::into_inner));
    }
}

impl Sink for Outbox {
    fn push(&mut self, event: Event) {
        self.offer(&event);
    }

    fn is_full(&self) -> bool {
        self.state().bytes >= self.0.bytes_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_wire::{Ended, Outcome, Slices};
    use std::sync::mpsc::{channel, Receiver, Sender};
    use std::thread;

    fn sample(id: &str) -> Event {
        Event::Sample { id: id.into(), at_ns: 1, until_ns: 2, values: vec![None; 20] }
    }

    /// A stream whose reader takes one line for each signal.
    struct Stopped(Receiver<()>, Sender<String>);

    impl Write for Stopped {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.recv().map_err(|_| ErrorKind::BrokenPipe)?;
            self.1.send(String::from_utf8(bytes.to_vec()).unwrap()).map_err(|_| ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn stopped(outbox: &Outbox) -> (Sender<()>, Receiver<String>, thread::JoinHandle<io::Result<()>>) {
        let (go, going) = channel();
        let (tell, received) = channel();
        let writer = outbox.clone();
        (go, received, thread::spawn(move || writer.write_to(Stopped(going, tell))))
    }

    #[test]
    fn a_stopped_reader_costs_a_bounded_amount_of_memory_and_learns_what_it_missed() {
        let outbox = Outbox::bounded(1000);
        let (go, received, writer) = stopped(&outbox);
        for _ in 0..1000 {
            outbox.offer(&sample("m"));
            outbox.offer(&Event::Slices(Slices { id: "p".into(), slices: Vec::new() }));
        }
        assert!(outbox.state().bytes < 1500);
        outbox.offer(&Event::Ended(Ended { id: "p".into(), reason: "over".into() }));
        // Signals until the writer ends, which is before it has taken all lines.
        while go.send(()).is_ok() && outbox.state().bytes > 0 {}
        outbox.close(Duration::from_secs(10));
        outbox.tell_dropped();
        writer.join().unwrap().unwrap();
        let lines: Vec<String> = received.try_iter().collect();
        let samples = lines.iter().filter(|line| line.contains("\"sample\"")).count();
        assert!(lines.iter().any(|line| line.contains("\"ended\"")));
        assert!(samples < 10, "{samples}");
    }

    #[test]
    fn counts_of_what_was_dropped_come_before_what_follows() {
        let mut outbox = Outbox::bounded(1);
        let (go, received, writer) = stopped(&outbox);
        assert!(!outbox.is_full());
        (0..4).for_each(|_| outbox.push(sample("m")));
        assert!(outbox.is_full());
        go.send(()).unwrap();
        assert!(received.recv().unwrap().contains("\"sample\""));
        // Returns after the first line has been written.
        outbox.send(&Outcome {}).unwrap();
        (0..2).for_each(|_| go.send(()).unwrap());
        let dropped: serde_json::Value = serde_json::from_str(&received.recv().unwrap()).unwrap();
        assert_eq!(dropped["params"], serde_json::json!({ "id": "m", "what": "sample", "count": 3 }));
        assert_eq!(received.recv().unwrap(), "{}\n");
        outbox.close(Duration::from_secs(10));
        writer.join().unwrap().unwrap();
    }

    #[test]
    fn an_answer_waits_for_room_until_nobody_listens() {
        let outbox = Outbox::bounded(1);
        let (go, received, writer) = stopped(&outbox);
        outbox.send(&Outcome {}).unwrap();
        let waiting = {
            let outbox = outbox.clone();
            thread::spawn(move || outbox.send(&Outcome {}))
        };
        drop((go, received));
        assert!(waiting.join().unwrap().is_err());
        assert!(writer.join().unwrap().is_err());
    }

    #[test]
    fn a_reader_that_never_comes_back_does_not_keep_the_agent() {
        let outbox = Outbox::default();
        let (go, _received, _writer) = stopped(&outbox);
        outbox.send(&Outcome {}).unwrap();
        outbox.close(Duration::from_millis(20));
        drop(go);
    }
}
