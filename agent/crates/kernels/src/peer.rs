//! The other end of a communicating kernel: a thread that ends before the kernel is dropped.

use std::io;
use std::thread::{panicking, Builder, JoinHandle};

/// A thread that is joined on drop. The owner must first close what the thread waits for. In a struct, fields drop in declaration
/// order, so declare a `Peer` after the socket, pipe or channel that keeps its thread running.
pub(crate) struct Peer(Option<JoinHandle<()>>);

impl Peer {
    /// Starts `work` on a thread named `name`.
    ///
    /// # Errors
    /// `EAGAIN` at a limit of threads.
    pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        Ok(Self(Some(spawn(name, work)?)))
    }
}

/// Starts a thread that others wait for, perhaps forever. If it panics, the process ends, which its controller reports.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(move || {
        let _ends = EndsOnPanic;
        work();
    })
}

struct EndsOnPanic;

impl Drop for EndsOnPanic {
    fn drop(&mut self) {
        if panicking() {
            std::process::exit(PANICKED);
        }
    }
}

/// The exit status of a program whose main thread panics.
const PANICKED: i32 = 101;

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::sync::mpsc::{channel, RecvTimeoutError};
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::testing::{build, steps, Latencies};

    /// The name of this test, and the sign that it is the child that it starts.
    const SELF: &str = "peer::tests::a_process_ends_with_a_thread_that_a_kernel_waits_for";
    const CHILD: &str = "PARTYWALL_TEST_CHILD";

    #[test]
    fn a_process_ends_with_a_thread_that_a_kernel_waits_for() {
        if std::env::var_os(CHILD).is_some() {
            let (wait, never) = channel::<()>();
            let _peer = Peer::spawn("planted", || panic!("planted")).unwrap();
            let _ = never.recv_timeout(Duration::from_mins(1));
            return drop(wait);
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        let child = child.args(["--exact", SELF, "--nocapture"]).env(CHILD, "").stdout(Stdio::null()).stderr(Stdio::null());
        assert_eq!(child.status().unwrap().code(), Some(PANICKED));
    }

    #[test]
    fn dropping_a_communicating_kernel_ends_its_other_end() {
        let talking = [
            "pipe",
            "unix-socket",
            "tcp-loopback",
            "shared-memory",
            "udp-send",
            "tcp-stream",
            "udp-request",
            "tcp-request",
            "context-switch",
        ];
        for name in talking {
            for before in [0, 3] {
                let mut kernel = build(name, json!({}));
                steps(kernel.as_mut(), before, &mut Latencies::default());
                let (tell, received) = channel::<()>();
                std::thread::spawn(move || {
                    drop(kernel);
                    drop(tell);
                });
                assert_eq!(
                    received.recv_timeout(Duration::from_secs(30)),
                    Err(RecvTimeoutError::Disconnected),
                    "{name} after {before} steps"
                );
            }
        }
    }
}
