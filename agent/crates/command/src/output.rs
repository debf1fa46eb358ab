//! Lines of output, each with the time of its end.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use partywall_clock::{Nanos, SessionClock};

/// Maximum lines in the queue. Further lines are dropped and counted.
const WAITING_MAX: usize = 10_000;
/// Maximum bytes of these lines, because long lines use more memory.
const WAITING_BYTES_MAX: usize = 8 << 20;
/// Maximum length of a line. A longer line is cut.
const LINE_MAX: usize = 64 << 10;
/// Number of last lines in the message when the command ends.
const TAIL: usize = 5;

/// An output stream of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A line and the time of its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedLine {
    /// Monotonic time.
    pub at_ns: Nanos,
    /// The output stream.
    pub source: Source,
    /// Without the line end.
    pub text: String,
}

#[derive(Default)]
struct State {
    waiting: Vec<TimedLine>,
    bytes: usize,
    dropped: u64,
    tail: VecDeque<String>,
}

/// Queue of lines.
#[derive(Clone, Default)]
pub struct Output(Arc<Mutex<State>>);

impl Output {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: TimedLine) {
        let mut state = self.state();
        if state.tail.len() == TAIL {
            state.tail.pop_front();
        }
        state.tail.push_back(line.text.clone());
        if state.waiting.len() < WAITING_MAX && state.bytes + line.text.len() <= WAITING_BYTES_MAX {
            state.bytes += line.text.len();
            state.waiting.push(line);
        } else {
            state.dropped += 1;
        }
    }

    /// Takes the queued lines, and the number of lines dropped since the last call.
    #[must_use]
    pub fn take(&self) -> (Vec<TimedLine>, u64) {
        let mut state = self.state();
        state.bytes = 0;
        (std::mem::take(&mut state.waiting), std::mem::take(&mut state.dropped))
    }

    /// The last lines.
    #[must_use]
    pub fn tail(&self) -> Vec<String> {
        self.state().tail.iter().cloned().collect()
    }
}

/// Reads `stream` to its end. Lines get the time of `clock`. A carriage return also ends a line, because progress displays use only that.
pub(crate) fn follow(
    mut stream: impl Read + Send + 'static,
    source: Source,
    output: Output,
    clock: SessionClock,
) -> std::io::Result<JoinHandle<()>> {
    crate::spawn("output", move || {
        let mut open = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            let at_ns = clock.now();
            for &byte in &buffer[..read] {
                if !matches!(byte, b'\n' | b'\r') && open.len() < LINE_MAX {
                    open.push(byte);
                } else if !open.is_empty() {
                    output.push(line(&mut open, at_ns, source));
                }
            }
        }
        if !open.is_empty() {
            output.push(line(&mut open, clock.now(), source));
        }
    })
}

fn line(bytes: &mut Vec<u8>, at_ns: Nanos, source: Source) -> TimedLine {
    let text = String::from_utf8_lossy(bytes).into_owned();
    bytes.clear();
    TimedLine { at_ns, source, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(bytes: &'static [u8]) -> Vec<String> {
        let output = Output::default();
        follow(bytes, Source::Stdout, output.clone(), SessionClock::default()).unwrap().join().unwrap();
        output.take().0.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn lines_end_with_newline_carriage_return_or_the_stream() {
        assert_eq!(lines_of(b"one\ntwo\r\nthree\rfour"), ["one", "two", "three", "four"]);
    }

    #[test]
    fn bytes_that_are_not_text_are_replaced() {
        assert_eq!(lines_of(b"a\xffb\n"), ["a\u{fffd}b"]);
    }

    #[test]
    fn long_lines_are_dropped_sooner() {
        let output = Output::default();
        for _ in 0..1000 {
            output.push(TimedLine { at_ns: 0, source: Source::Stdout, text: "x".repeat(LINE_MAX) });
        }
        let (lines, dropped) = output.take();
        assert_eq!((lines.len(), dropped), (WAITING_BYTES_MAX / LINE_MAX, 1000 - (WAITING_BYTES_MAX / LINE_MAX) as u64));
        output.push(TimedLine { at_ns: 0, source: Source::Stdout, text: "x".into() });
        assert_eq!(output.take().0.len(), 1);
    }

    #[test]
    fn lines_that_are_not_taken_are_dropped_and_counted() {
        let output = Output::default();
        for n in 0..WAITING_MAX + 3 {
            output.push(TimedLine { at_ns: 0, source: Source::Stdout, text: n.to_string() });
        }
        let (lines, dropped) = output.take();
        assert_eq!((lines.len(), dropped), (WAITING_MAX, 3));
        assert_eq!(output.take(), (vec![], 0));
    }
}
