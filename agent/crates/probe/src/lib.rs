#![forbid(unsafe_code)]
//! Probes: kernels measured. A worker thread steps its kernel flat out and records slices until it is stopped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use partywall_clock as clock;
use partywall_kernels::{worker, Kernel, KernelError, Latency};
use partywall_record::{Recorder, Tape};

/// A running probe; dropping it stops it.
pub struct Probe {
    stop: Arc<AtomicBool>,
    workers: Vec<JoinHandle<Result<(), KernelError>>>,
}

impl Probe {
    /// Starts one worker thread for each kernel; they write slices of `slice_ns` to `tape`.
    ///
    /// # Errors
    /// When the host refuses a thread.
    pub fn start(kernels: Vec<Box<dyn Kernel>>, latency: &Latency, slice_ns: u64, tape: &Tape) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut probe = Self { stop: stop.clone(), workers: Vec::new() };
        let timed = matches!(latency, Latency::Step(_));
        for (thread, kernel) in kernels.into_iter().enumerate() {
            let (stop, tape) = (stop.clone(), tape.clone());
            let worker = move || measure(kernel, timed, &stop, &mut Recorder::new(tape, thread as u32, slice_ns));
            probe.workers.push(thread::Builder::new().name(format!("probe-{thread}")).spawn(worker)?);
        }
        Ok(probe)
    }

    /// Why it ended by itself, once it has.
    pub fn ended(&mut self) -> Option<String> {
        worker::ended(&mut self.workers)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

fn measure(mut kernel: Box<dyn Kernel>, timed: bool, stop: &AtomicBool, recorder: &mut Recorder) -> Result<(), KernelError> {
    let mut before = clock::now();
    while !stop.load(Ordering::Relaxed) {
        let work = kernel.step(recorder)?;
        let now = clock::now();
        if timed {
            recorder.latency(now - before);
        }
        recorder.work(work, now);
        before = now;
    }
    Ok(())
}
