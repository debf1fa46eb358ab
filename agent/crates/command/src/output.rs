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
/// Maximum length of a line, because a tool may print its whole result in one. A longer line is dropped and counted.
const LINE_MAX: usize = 4 << 20;
/// Number of last lines in the message when the command ends, and the characters of each.
const TAIL: usize = 5;
const TAIL_CHARS: usize = 500;

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
        state.tail.push_back(line.text.chars().take(TAIL_CHARS).collect());
        let fits = state.waiting.len() < WAITING_MAX && state.bytes + line.text.len() <= WAITING_BYTES_MAX;
        if fits && line.text.len() <= LINE_MAX {
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
                if !matches!(byte, b'\n' | b'\r') {
                    // One byte too many shows that the line is too long.
                    if open.len() <= LINE_MAX {
                        open.push(byte);
                    }
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
    use std::io::Cursor;

    use super::*;

    fn followed(bytes: Vec<u8>) -> Output {
        let output = Output::default();
        follow(Cursor::new(bytes), Source::Stdout, output.clone(), SessionClock::default()).unwrap().join().unwrap();
        output
    }

    fn lines_of(bytes: &[u8]) -> Vec<String> {
        followed(bytes.to_vec()).take().0.into_iter().map(|line| line.text).collect()
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
    fn a_long_document_in_one_line_is_whole() {
        let document = format!("[{}0]", "1.5, ".repeat(20_000));
        assert_eq!(lines_of(format!("{document}\nnext\n").as_bytes()), [document.as_str(), "next"]);
    }

    #[test]
    fn a_line_that_is_too_long_is_dropped_and_counted() {
        let lines = [vec![b'x'; LINE_MAX], b"\n".to_vec(), vec![b'y'; LINE_MAX + 100], b"\nz".to_vec()].concat();
        let output = followed(lines);
        let tail = output.tail();
        let (lines, dropped) = output.take();
        let lengths: Vec<usize> = lines.iter().map(|line| line.text.len()).collect();
        assert_eq!((lengths, dropped), (vec![LINE_MAX, 1], 1));
        assert_eq!(tail, ["x".repeat(TAIL_CHARS), "y".repeat(TAIL_CHARS), "z".into()]);
    }

    #[test]
    fn long_lines_are_dropped_sooner() {
        const LONG: usize = 64 << 10;
        let output = Output::default();
        for _ in 0..1000 {
            output.push(TimedLine { at_ns: 0, source: Source::Stdout, text: "x".repeat(LONG) });
        }
        let (lines, dropped) = output.take();
        assert_eq!((lines.len(), dropped), (WAITING_BYTES_MAX / LONG, 1000 - (WAITING_BYTES_MAX / LONG) as u64));
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
