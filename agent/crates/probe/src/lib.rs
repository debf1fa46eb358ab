#![forbid(unsafe_code)]
//! Probes: measured kernels. A worker thread steps its kernel at full speed and records slices until it is stopped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use partywall_clock::{Nanos, SessionClock};
use partywall_kernels::{worker, Kernel, KernelError, Latency};
use partywall_record::{Recorder, Tape};

/// A running probe; dropping it stops it.
pub struct Probe {
    stop: Arc<AtomicBool>,
    workers: Vec<JoinHandle<Result<(), KernelError>>>,
}

impl Probe {
    /// Starts one worker thread for each kernel; they write slices of `slice_ns` by `clock` to `tape`.
    ///
    /// # Errors
    /// When the host refuses a thread.
    pub fn start(
        kernels: Vec<Box<dyn Kernel>>,
        latency: &Latency,
        slice_ns: u64,
        tape: &Tape,
        clock: &SessionClock,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut probe = Self { stop: stop.clone(), workers: Vec::new() };
        let timed = matches!(latency, Latency::Step(_));
        for (thread, kernel) in kernels.into_iter().enumerate() {
            let (stop, tape, clock) = (stop.clone(), tape.clone(), clock.clone());
            let worker = move || {
                let mut recorder = Recorder::new(tape, thread as u32, slice_ns, clock.now());
                measure(kernel, timed, &stop, &mut recorder, &clock)
            };
            probe.workers.push(thread::Builder::new().name(format!("probe-{thread}")).spawn(worker)?);
        }
        Ok(probe)
    }

    /// The reason why it ended without a stop, if it has.
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

fn measure(
    mut kernel: Box<dyn Kernel>,
    timed: bool,
    stop: &AtomicBool,
    recorder: &mut Recorder,
    clock: &SessionClock,
) -> Result<(), KernelError> {
    let outcome = step_until(stop, kernel.as_mut(), timed, recorder, || clock.now());
    // The last slice is shorter, and as valid as any other.
    recorder.close(clock.now());
    outcome
}

fn step_until(
    stop: &AtomicBool,
    kernel: &mut dyn Kernel,
    timed: bool,
    recorder: &mut Recorder,
    now: impl Fn() -> Nanos,
) -> Result<(), KernelError> {
    let mut begun_ns = now();
    while !stop.load(Ordering::Relaxed) {
        let work = kernel.step(recorder)?;
        let now_ns = now();
        if timed {
            recorder.latency(now_ns - begun_ns);
        }
        // Closing a slice takes a system call, which must not count for the next step.
        begun_ns = if recorder.work(work, now_ns) { now() } else { now_ns };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_clock::{monotonic, sleep_until};
    use partywall_kernels::Sink;
    use std::sync::atomic::AtomicU64;

    const STEP_NS: Nanos = 100_000;
    const BOOKKEEPING_NS: Nanos = 7_000_000;
    static NOW_NS: AtomicU64 = AtomicU64::new(0);

    fn pass(time_ns: Nanos) -> Nanos {
        NOW_NS.fetch_add(time_ns, Ordering::Relaxed) + time_ns
    }

    /// A kernel of a number of steps, each of which advances a test clock by `STEP_NS`.
    struct Steps<'a>(u32, &'a AtomicBool);

    impl Kernel for Steps<'_> {
        fn step(&mut self, _: &mut dyn Sink) -> Result<f64, KernelError> {
            pass(STEP_NS);
            self.0 -= 1;
            self.1.store(self.0 == 0, Ordering::Relaxed);
            Ok(1.0)
        }
    }

    #[test]
    fn the_latency_of_a_step_excludes_the_bookkeeping_of_the_slice_before() {
        let tape = Tape::default();
        let stop = AtomicBool::new(false);
        let mut recorder = Recorder::with_cpu_clock(tape.clone(), 0, 10 * STEP_NS, pass(0), || pass(BOOKKEEPING_NS));
        step_until(&stop, &mut Steps(100, &stop), true, &mut recorder, || pass(0)).unwrap();
        recorder.close(pass(0));
        let slices = tape.take();
        assert!(slices.len() > 5, "no slice was closed");
        let longest = slices.iter().flat_map(|slice| &slice.latency.0).map(|&(bucket, _)| bucket).max().unwrap();
        assert_eq!(longest, partywall_record::bucket_of(STEP_NS));
    }

    struct Naps;

    impl Kernel for Naps {
        fn step(&mut self, _: &mut dyn Sink) -> Result<f64, KernelError> {
            sleep_until(monotonic() + 1_000_000);
            Ok(1.0)
        }
    }

    #[test]
    fn the_last_slice_is_on_the_tape_when_the_probe_has_ended() {
        let tape = Tape::default();
        let until_ns = monotonic() + 20_000_000;
        let clock = SessionClock::default();
        let probe = Probe::start(vec![Box::new(Naps)], &Latency::Step("a nap"), 3_600_000_000_000, &tape, &clock).unwrap();
        sleep_until(until_ns);
        drop(probe);
        assert!(tape.take().iter().map(|slice| slice.work).sum::<f64>() >= 1.0);
    }
}
