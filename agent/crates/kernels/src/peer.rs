//! The other end of a communicating kernel: a thread that ends before the kernel is dropped.

use std::io;
use std::thread::{Builder, JoinHandle};

/// A thread that is joined on drop. The owner must first close what the thread waits for. In a struct, fields drop in declaration
/// order, so declare a `Peer` after the socket, pipe or channel that keeps its thread running.
pub(crate) struct Peer(Option<JoinHandle<()>>);

impl Peer {
    /// Starts `work` on a thread named `name`.
    ///
    /// # Errors
    /// `EAGAIN` at a limit of threads.
    pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        Ok(Self(Some(Builder::new().name(name.to_owned()).spawn(work)?)))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // A panic of the thread was already reported by the panic hook.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, RecvTimeoutError};
    use std::time::Duration;

    use serde_json::json;

    use crate::testing::{build, steps, Latencies};

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
