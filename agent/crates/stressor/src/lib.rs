#![forbid(unsafe_code)]
//! Stressors: paced kernels. A worker thread follows a schedule of switches. At full intensity it runs at full speed. At a partial
//! intensity it runs at full speed for that share of the time, and pauses for the rest.

mod burst;
mod calibration;
mod dose;
mod meter;
mod pacer;
mod schedule;
mod worth;

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use partywall_clock::{process_cpu, thread_cpu, Nanos, SessionClock};
use partywall_kernels::{worker, Kernel, KernelError, Latency};
use partywall_record::{Recorder, Tape};

use calibration::{FlatOut, Progress};
use meter::Meter;
use worth::Worth;

pub use calibration::{Allowance, Calibrated, Calibration, CalibrationError};
pub use dose::Dose;
pub use pacer::Pacer;
pub use schedule::{Full, Hold, Schedule, ScheduleError};

/// A running stressor. It is off until its schedule switches it on. Dropping it stops it.
pub struct Stressor {
    schedule: Arc<Schedule>,
    progress: Vec<Arc<Progress>>,
    workers: Vec<JoinHandle<Result<(), KernelError>>>,
}

struct Worker {
    clock: SessionClock,
    kernel: Box<dyn Kernel>,
    timed: bool,
    recorder: Recorder,
    schedule: Arc<Schedule>,
    progress: Arc<Progress>,
    /// Active time of its last piece of work; 0 before the first.
    piece_ns: f64,
    worth: Worth,
    /// Position in a beat at which a partial intensity begins: 0 to 1, uniformly distributed.
    phase: f64,
}

/// The golden ratio: its multiples fill 0 to 1 evenly, however few there are.
const PHASE_STEP: f64 = 0.618_033_988_749_895;

impl Stressor {
    /// Starts one worker thread for each kernel; they follow its schedule and write slices of `slice_ns` to `tape`, both by `clock`.
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
        let mut stressor = Self { schedule: Arc::new(Schedule::new(clock)), progress: Vec::new(), workers: Vec::new() };
        let timed = matches!(latency, Latency::Step(_));
        for (thread, kernel) in kernels.into_iter().enumerate() {
            let progress = Arc::<Progress>::default();
            stressor.progress.push(progress.clone());
            let recorder = Recorder::new(tape.clone(), thread as u32, slice_ns, clock.now());
            let schedule = stressor.schedule.clone();
            let worth = Worth::new(kernel.paced_by());
            let clock = clock.clone();
            let worker = Worker { clock, kernel, timed, recorder, schedule, progress, piece_ns: 0.0, worth, phase: 0.0 };
            stressor.workers.push(thread::Builder::new().name(format!("stress-{thread}")).spawn(move || worker.run())?);
        }
        Ok(stressor)
    }

    /// Appends a switch: the workload has `intensity` from `at_ns` on.
    ///
    /// # Errors
    /// The time is before an earlier switch, the intensity is invalid, or it is partial before a [`Calibration`].
    pub fn switch(&self, at_ns: Nanos, intensity: f64) -> Result<(), ScheduleError> {
        self.schedule.append(at_ns, intensity)
    }

    /// A calibration of this stressor, which does not block other users of it.
    #[must_use]
    pub fn calibration(&self) -> Calibration {
        Calibration { schedule: self.schedule.clone(), workers: self.progress.clone() }
    }

    /// The reason why it ended without a stop, if it has.
    pub fn ended(&mut self) -> Option<String> {
        worker::ended(&mut self.workers)
    }

    /// Ends it, and returns what each worker thread did at partial intensities.
    #[must_use]
    pub fn stop(mut self) -> Vec<Dose> {
        self.end();
        self.progress.iter().map(|progress| *progress.dose()).collect()
    }

    fn end(&mut self) {
        self.schedule.end();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

impl Drop for Stressor {
    fn drop(&mut self) {
        self.end();
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
        self.recorder.close(self.clock.now());
        outcome
    }

    fn follow(&mut self) -> Result<(), KernelError> {
        let mut cursor = 0;
        let schedule = self.schedule.clone();
        self.recorder.switch(0.0, self.clock.now());
        while let Some(hold) = schedule.hold(&mut cursor, self.clock.now()) {
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
        let start_ns = self.clock.now();
        self.recorder.switch(hold.intensity, start_ns);
        let outcome = match hold.pacer(self.recorder.thread(), start_ns) {
            Some((pacer, full)) => self.press_partly(hold, pacer, full, start_ns)?,
            None => self.press_fully(hold, start_ns)?,
        };
        self.recorder.switch(0.0, self.clock.now());
        // Pause before the rate is set, which ends a calibration. The next work must not be delayed by a disk's write-back.
        self.kernel.pause()?;
        match outcome {
            Pressed::Partly(dose) => *self.progress.dose() += dose,
            Pressed::Fully(flat_out) => self.progress.set_flat_out(Some(flat_out)),
            Pressed::TooShort => {}
        }
        Ok(())
    }

    /// Does a step that begins at `begun_ns`. Returns its work, its end, and when the next one may begin.
    fn step(&mut self, begun_ns: Nanos) -> Result<(f64, Nanos, Nanos), KernelError> {
        let work = self.kernel.step(&mut self.recorder)?;
        let now_ns = self.clock.now();
        if self.timed {
            self.recorder.latency(now_ns - begun_ns);
        }
        // Closing a slice takes a system call, which must not count for the next step.
        let next_ns = if self.recorder.work(work, now_ns) { self.clock.now() } else { now_ns };
        Ok((work, now_ns, next_ns))
    }

    fn press_fully(&mut self, hold: &Hold, start_ns: Nanos) -> Result<Pressed, KernelError> {
        let mut meter = Meter::start(start_ns);
        let warm_ns = start_ns + hold.warm_up_ns(start_ns);
        let (mut begun, mut now) = (start_ns, start_ns);
        let (mut work, mut active_ns) = (0.0, 0);
        // A buffer that fills would count as work, and every share of that rate would be too large.
        let mut warm = Totals::at(now, work - self.kernel.pending(), active_ns);
        while now < hold.until_ns && !self.schedule.has_changed(hold) {
            let (done, ended, next) = self.step(begun)?;
            (now, begun) = (ended, next);
            work += done;
            let pressed_ns = meter.pressed(now);
            active_ns += pressed_ns;
            if now <= warm_ns && pressed_ns > 0 {
                warm = Totals::at(now, work - self.kernel.pending(), active_ns);
            }
        }
        let done = work - self.kernel.pending();
        Ok(Totals::at(now, done, active_ns).since(&warm).map_or(Pressed::TooShort, Pressed::Fully))
    }

    fn press_partly(&mut self, hold: &Hold, mut pacer: Pacer, full: Full, start_ns: Nanos) -> Result<Pressed, KernelError> {
        let cpu_ns = thread_cpu();
        let mut dose = Dose::default();
        self.phase = (self.phase + PHASE_STEP).fract();
        if let Some(due_ns) = pacer.begin(self.phase, self.piece_ns, start_ns) {
            self.clock.sleep_until(due_ns.min(hold.until_ns));
        }
        let mut now = self.clock.now();
        let mut meter = Meter::start(now);
        let mut begun = now;
        self.worth.begin();
        while now < hold.until_ns && !self.schedule.has_changed(hold) {
            let (work, ended, next) = self.step(begun)?;
            (now, begun) = (ended, next);
            let worth_ns = self.worth.add(&full, work, meter.pressed(now));
            dose.pressed_ns += worth_ns;
            if worth_ns > 0.0 {
                self.piece_ns = worth_ns;
            }
            if let Some(due_ns) = pacer.pause_until(worth_ns, now).filter(|_| !self.worth.needs_another()) {
                self.clock.sleep_until(due_ns.min(hold.until_ns));
                self.worth.pause();
                dose.pauses += 1;
                now = self.clock.now();
                begun = now;
                meter.resume(now);
            }
        }
        dose.held_ns = now.saturating_sub(start_ns);
        dose.requested_ns = dose.held_ns as f64 * hold.intensity;
        dose.cpu_ns = thread_cpu().saturating_sub(cpu_ns);
        Ok(Pressed::Partly(dose))
    }
}

/// Result of a period of one intensity.
enum Pressed {
    Partly(Dose),
    Fully(FlatOut),
    /// Its only step ended at once, so there is no rate.
    TooShort,
}

/// What a worker thread has done since it started to run at full speed. CPU times have no fixed origin.
struct Totals {
    at_ns: Nanos,
    work: f64,
    active_ns: Nanos,
    cpu_ns: Nanos,
    process_ns: Nanos,
}

impl Totals {
    fn at(at_ns: Nanos, work: f64, active_ns: Nanos) -> Self {
        Self { at_ns, work, active_ns, cpu_ns: thread_cpu(), process_ns: process_cpu() }
    }

    /// The rate and the shares of the time between two moments. `None` if they are the same.
    fn since(&self, from: &Self) -> Option<FlatOut> {
        /// A CPU-time clock is coarse if it counts in ticks.
        const ACTIVE_MIN: f64 = 0.01;
        let lasted_ns = (self.at_ns > from.at_ns).then(|| (self.at_ns - from.at_ns) as f64)?;
        let share = |until_ns: Nanos, from_ns: Nanos| until_ns.saturating_sub(from_ns) as f64 / lasted_ns;
        Some(FlatOut {
            rate: (self.work - from.work) * 1e9 / lasted_ns,
            active: share(self.active_ns, from.active_ns).clamp(ACTIVE_MIN, 1.0),
            cpu: share(self.cpu_ns, from.cpu_ns),
            process: share(self.process_ns, from.process_ns),
        })
    }
}
