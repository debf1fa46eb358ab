#![forbid(unsafe_code)]
//! Stressors: kernels paced. A worker thread follows a schedule of switches and holds, between them, the intensity asked
//! for as a share of its own calibrated maximum.

mod calibration;
mod pacer;
mod schedule;

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use partywall_clock::{self as clock, Nanos};
use partywall_kernels::{worker, Kernel, KernelError, Latency};
use partywall_record::{Recorder, Tape};

use calibration::Progress;

pub use calibration::{Calibration, CalibrationError};
pub use pacer::Pacer;
pub use schedule::{Hold, Schedule, ScheduleError};

/// A resident stressor, off until its schedule says otherwise; dropping it stops it.
pub struct Stressor {
    schedule: Arc<Schedule>,
    progress: Vec<Arc<Progress>>,
    workers: Vec<JoinHandle<Result<(), KernelError>>>,
}

struct Worker {
    kernel: Box<dyn Kernel>,
    timed: bool,
    recorder: Recorder,
    schedule: Arc<Schedule>,
    progress: Arc<Progress>,
    /// What its last step did; none before the first.
    step: f64,
    /// Of the time that a step is worth, what the first of a partial intensity is put off by: 0 to 1, each as often.
    phase: f64,
}

/// The golden section: its multiples fill 0 to 1 evenly, however few there are.
const PHASE_STEP: f64 = 0.618_033_988_749_895;

impl Stressor {
    /// Starts one worker thread for each kernel; they follow `schedule` and write slices of `slice_ns` to `tape`.
    ///
    /// # Errors
    /// When the host refuses a thread.
    pub fn start(kernels: Vec<Box<dyn Kernel>>, latency: &Latency, slice_ns: u64, tape: &Tape) -> std::io::Result<Self> {
        let mut stressor = Self { schedule: Arc::default(), progress: Vec::new(), workers: Vec::new() };
        let timed = matches!(latency, Latency::Step(_));
        for (thread, kernel) in kernels.into_iter().enumerate() {
            let progress = Arc::<Progress>::default();
            stressor.progress.push(progress.clone());
            let recorder = Recorder::new(tape.clone(), thread as u32, slice_ns);
            let schedule = stressor.schedule.clone();
            let worker = Worker { kernel, timed, recorder, schedule, progress, step: 0.0, phase: 0.0 };
            stressor.workers.push(thread::Builder::new().name(format!("stress-{thread}")).spawn(move || worker.run())?);
        }
        Ok(stressor)
    }

    /// Appends a switch: from `at_ns` on the workload has `intensity`.
    ///
    /// # Errors
    /// When time would run backwards, the intensity is none, or is partial before a [`Calibration`].
    pub fn switch(&self, at_ns: Nanos, intensity: f64) -> Result<(), ScheduleError> {
        self.schedule.append(at_ns, intensity)
    }

    /// What calibrates it, while others go on using it.
    #[must_use]
    pub fn calibration(&self) -> Calibration {
        Calibration { schedule: self.schedule.clone(), workers: self.progress.clone() }
    }

    /// Why it ended by itself, once it has.
    pub fn ended(&mut self) -> Option<String> {
        worker::ended(&mut self.workers)
    }
}

impl Drop for Stressor {
    fn drop(&mut self) {
        self.schedule.end();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.progress.end();
    }
}

impl Worker {
    fn run(mut self) -> Result<(), KernelError> {
        let outcome = self.follow();
        self.recorder.close(clock::now());
        outcome
    }

    fn follow(&mut self) -> Result<(), KernelError> {
        let mut cursor = 0;
        let schedule = self.schedule.clone();
        self.recorder.switch(0.0, clock::now());
        while let Some(hold) = schedule.hold(&mut cursor, clock::now()) {
            if hold.intensity == 0.0 {
                schedule.wait(cursor, hold.until_ns);
            } else {
                self.progress.set_pressing(true);
                let outcome = self.press(&hold);
                self.progress.set_pressing(false);
                outcome?;
            }
        }
        Ok(())
    }

    /// Holds one intensity until the next switch.
    fn press(&mut self, hold: &Hold) -> Result<(), KernelError> {
        let start_ns = clock::now();
        self.recorder.switch(hold.intensity, start_ns);
        let mut pacer = hold.pacer(self.recorder.thread(), start_ns);
        let (mut now, mut total) = (start_ns, 0.0);
        let (warm_ns, mut warm) = (start_ns + hold.warm_up_ns(start_ns), (start_ns, 0.0));
        self.phase = (self.phase + PHASE_STEP).fract();
        if let Some(due_ns) = pacer.as_mut().and_then(|pacer| pacer.put_off(self.phase, self.step, now)) {
            clock::sleep_until(due_ns.min(hold.until_ns));
            now = clock::now();
        }
        let mut begun = now;
        while now < hold.until_ns && !self.schedule.has_changed(hold) {
            let work = self.kernel.step(&mut self.recorder)?;
            now = clock::now();
            if self.timed {
                self.recorder.latency(now - begun);
            }
            let cut = self.recorder.work(work, now);
            total += work;
            self.step = work;
            if now <= warm_ns {
                warm = (now, total);
            }
            // Closing a slice takes a system call, which is no part of the next step.
            begun = if cut { clock::now() } else { now };
            if let Some(due_ns) = pacer.as_mut().and_then(|pacer| pacer.pause_until(work, now)) {
                clock::sleep_until(due_ns.min(hold.until_ns));
                now = clock::now();
                begun = now;
            }
        }
        self.recorder.switch(0.0, now);
        // Before the rate, which ends a calibration: what follows one must not start late, behind a disk's write-back.
        self.kernel.pause()?;
        if pacer.is_none() && now > warm.0 {
            self.progress.set_rate((total - warm.1) * 1e9 / (now - warm.0) as f64);
        }
        Ok(())
    }
}
