//! Measures intensity 1: runs at full speed until every worker thread has finished some work.
//!
//! A worker that waits for a CPU is either limited or disturbed. Limits are known: the CPUs that the process may use, and the quotas of
//! its cgroups. They belong to intensity 1. Any other waiting time means that another process had the CPU. It does not belong to
//! intensity 1, so the measurement is repeated, and what remains is taken off and reported.
//!
//! It holds no lock of the caller, because it takes as long as a slow disk, and slices are sent meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use partywall_clock::Nanos;

use crate::{Dose, Full, Schedule, ScheduleError};

/// Maximum duration. A longer calibration is a caller's error.
const FOR_MAX_NS: Nanos = 60_000_000_000;
/// A worker that has finished no work for this time after the first window will not finish any in a slot.
const PATIENCE_NS: Nanos = 45_000_000_000;
const LEAD_NS: Nanos = 1_000_000;
const POLL_NS: Nanos = 10_000_000;
/// A worker that was not on a CPU during its whole window has missed it, after it had this time to notice.
const GRACE_NS: Nanos = 50_000_000;
/// A measurement is repeated if other processes took more than this share of a worker's time.
const DISTURBED: f64 = 0.1;
const ATTEMPTS: u32 = 4;
/// A CPU limit grants a quota in each period, so that the share of the time is only known over several.
const PERIODS: Nanos = 10;
const PERIODS_MAX_NS: Nanos = 2_000_000_000;

/// Reason why intensity 1 could not be measured.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum CalibrationError {
    /// Switches are still due.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The duration is far longer than any slot.
    #[error("for_ns: {0} is too long; give at most {FOR_MAX_NS}")]
    Long(Nanos),
    /// No work was done, so a share of it has no meaning.
    #[error(
        "worker thread {thread} finished no work within {} s at full intensity, so a share of its maximum means nothing; \
         make its steps smaller (its requests, chunks or files), or what it uses faster", waited_ns / 1_000_000_000
    )]
    NoWork {
        /// The worker thread.
        thread: usize,
        /// How long it was given.
        waited_ns: Nanos,
    },
    /// The thread's result has the reason.
    #[error("worker thread {thread} ended while it was calibrated")]
    Ended {
        /// The worker thread.
        thread: usize,
    },
}

/// CPU time that this process may use.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// CPUs, or less by a quota: 0.5 is half of the time of one CPU.
    pub cpus: f64,
    /// Period of the quota; 0 if there is none.
    pub period_ns: Nanos,
}

/// Result of a calibration.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibrated {
    /// Each worker's work per second at intensity 1, above 0.
    pub rates: Vec<f64>,
    /// Share of the time in which other processes had the CPU of the most disturbed worker. It is taken off the rates.
    pub disturbed: f64,
}

/// What a worker thread did in a period at full intensity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlatOut {
    /// Work per second.
    pub(crate) rate: f64,
    /// Share of the period in which it was active, above 0.
    pub(crate) active: f64,
    /// Its CPU time as a share of the period.
    pub(crate) cpu: f64,
    /// The CPU time of all threads of this process as a share of the period.
    pub(crate) process: f64,
}

/// What all workers would have done without other processes, and the share of the time that those took from the most disturbed one.
fn undisturbed(runs: &[FlatOut], cpus: f64) -> (Vec<Full>, f64) {
    let workers = runs.len() as f64;
    let cpu: f64 = runs.iter().map(|run| run.cpu).sum();
    let taken = |run: &FlatOut| {
        // A worker also waits while the kernel's own other threads use its CPU, and that belongs to the kernel.
        let helpers = (run.process - cpu).max(0.0) / workers;
        // Only what the process did not use of a limit can have been taken from it.
        let unused = if workers > cpus { (1.0 - run.process / cpus).max(0.0) } else { 1.0 };
        (1.0 - run.active - helpers).max(0.0).min(unused)
    };
    let full = |run: &FlatOut| {
        let left = 1.0 - taken(run);
        Full { rate: run.rate / left, pressing: (run.active / left).min(1.0) }
    };
    (runs.iter().map(full).collect(), runs.iter().map(taken).fold(0.0, f64::max))
}

/// State of a worker thread during calibration.
#[derive(Default)]
pub(crate) struct Progress {
    /// Its last period at full intensity.
    flat_out: Mutex<Option<FlatOut>>,
    pressing: AtomicBool,
    ended: AtomicBool,
    dose: Mutex<Dose>,
}

impl Progress {
    /// Its last period at full intensity, if it did some work.
    fn flat_out(&self) -> Option<FlatOut> {
        self.flat_out.lock().unwrap_or_else(PoisonError::into_inner).filter(|run| run.rate > 0.0)
    }

    pub(crate) fn set_flat_out(&self, run: Option<FlatOut>) {
        *self.flat_out.lock().unwrap_or_else(PoisonError::into_inner) = run;
    }

    pub(crate) fn dose(&self) -> MutexGuard<'_, Dose> {
        self.dose.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_pressing(&self, pressing: bool) {
        self.pressing.store(pressing, Ordering::Release);
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }
}

/// A calibration of one stressor. It does not prevent the stressor from ending.
pub struct Calibration {
    pub(crate) schedule: Arc<Schedule>,
    pub(crate) workers: Vec<Arc<Progress>>,
}

impl Calibration {
    /// Runs at full speed for `for_ns`, and longer under a quota, or if a worker thread needs longer for one step or did not run in that
    /// time. Repeats this while other processes disturb it. The rates after the warm-up define intensity 1 from now on. The kernel is
    /// idle afterwards.
    ///
    /// # Errors
    /// [`CalibrationError`]; partial intensities are then still refused.
    pub fn run(&self, for_ns: Nanos, allowance: Allowance) -> Result<Calibrated, CalibrationError> {
        self.run_within(for_ns, allowance, PATIENCE_NS)
    }

    fn run_within(&self, for_ns: Nanos, allowance: Allowance, patience_ns: Nanos) -> Result<Calibrated, CalibrationError> {
        if for_ns > FOR_MAX_NS {
            return Err(CalibrationError::Long(for_ns));
        }
        let is_limited = (self.workers.len() as f64) > allowance.cpus;
        let least_ns = if is_limited { (PERIODS * allowance.period_ns).min(PERIODS_MAX_NS) } else { 0 };
        let window_ns = for_ns.max(least_ns);
        let retry_until_ns = self.schedule.clock().now() + patience_ns / 2;
        let (mut best, mut attempts) = (undisturbed(&self.measure(window_ns, patience_ns)?, allowance.cpus), 1);
        while best.1 > DISTURBED && attempts < ATTEMPTS && self.schedule.clock().now() < retry_until_ns {
            let next = undisturbed(&self.measure(window_ns, patience_ns / 2)?, allowance.cpus);
            best = if next.1 < best.1 { next } else { best };
            attempts += 1;
        }
        let (full, disturbed) = best;
        self.schedule.calibrated(&full);
        Ok(Calibrated { rates: full.iter().map(|full| full.rate).collect(), disturbed })
    }

    /// Runs at full speed until every worker has finished some work, for `for_ns` at least.
    fn measure(&self, for_ns: Nanos, patience_ns: Nanos) -> Result<Vec<FlatOut>, CalibrationError> {
        let begin_ns = self.schedule.clock().now();
        let give_up_ns = begin_ns + for_ns + patience_ns;
        let mut window_ns = for_ns;
        loop {
            self.press(window_ns)?;
            self.settle(give_up_ns);
            if let Some(thread) = self.workers.iter().position(|worker| worker.ended.load(Ordering::Acquire)) {
                return Err(CalibrationError::Ended { thread });
            }
            let runs: Vec<Option<FlatOut>> = self.workers.iter().map(|worker| worker.flat_out()).collect();
            let Some(thread) = runs.iter().position(Option::is_none) else {
                return Ok(runs.into_iter().flatten().collect());
            };
            let now_ns = self.schedule.clock().now();
            if now_ns >= give_up_ns {
                return Err(CalibrationError::NoWork { thread, waited_ns: now_ns - begin_ns });
            }
            window_ns = (window_ns.max(POLL_NS) * 2).min(give_up_ns - now_ns);
        }
    }

    /// Switches on for this time.
    fn press(&self, window_ns: Nanos) -> Result<(), ScheduleError> {
        self.workers.iter().for_each(|worker| worker.set_flat_out(None));
        let start_ns = self.schedule.clock().now() + LEAD_NS;
        self.schedule.append(start_ns, 1.0)?;
        self.schedule.append(start_ns + window_ns, 0.0)?;
        self.schedule.clock().sleep_until(start_ns + window_ns);
        Ok(())
    }

    /// Waits until every worker has finished its last step, or has missed the window, or time is up.
    fn settle(&self, give_up_ns: Nanos) {
        let missed_ns = self.schedule.clock().now() + GRACE_NS;
        loop {
            let now_ns = self.schedule.clock().now();
            let waits =
                |worker: &Arc<Progress>| worker.flat_out().is_none() && (now_ns < missed_ns || worker.pressing.load(Ordering::Acquire));
            let ended = self.workers.iter().any(|worker| worker.ended.load(Ordering::Acquire));
            if ended || now_ns >= give_up_ns || !self.workers.iter().any(waits) {
                return;
            }
            self.schedule.clock().sleep_until(now_ns + POLL_NS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stressor;
    use partywall_clock::{self as clock, SessionClock};
    use partywall_kernels::{Kernel, KernelError, Latency, Sink};
    use partywall_record::Tape;

    /// A kernel whose steps take a set time and do a set amount of work.
    struct Slow {
        step_ns: Nanos,
        work: f64,
    }

    impl Kernel for Slow {
        fn step(&mut self, _: &mut dyn Sink) -> Result<f64, KernelError> {
            clock::sleep_until(clock::monotonic() + self.step_ns);
            Ok(self.work)
        }
    }

    const ALONE: Allowance = Allowance { cpus: 1.0, period_ns: 0 };

    /// A computing worker that had its CPU for this share of the time.
    fn computed(active: f64) -> FlatOut {
        FlatOut { rate: 100.0 * active, active, cpu: active, process: active }
    }

    #[test]
    fn a_worker_that_other_processes_kept_from_its_cpu_is_worth_all_of_it() {
        let (full, disturbed) = undisturbed(&[computed(0.4)], 1.0);
        assert!((full[0].rate - 100.0).abs() < 1e-9 && (full[0].pressing - 1.0).abs() < 1e-9, "{full:?}");
        assert!((disturbed - 0.6).abs() < 1e-9);
    }

    #[test]
    fn a_worker_under_a_quota_is_worth_its_quota() {
        assert_eq!(undisturbed(&[computed(0.5)], 0.5), (vec![Full { rate: 50.0, pressing: 0.5 }], 0.0));
    }

    #[test]
    fn a_worker_that_did_not_get_its_quota_is_worth_all_of_the_quota() {
        let (full, disturbed) = undisturbed(&[computed(0.3)], 0.5);
        assert!((full[0].rate - 50.0).abs() < 1e-9 && (full[0].pressing - 0.5).abs() < 1e-9, "{full:?}");
        assert!((disturbed - 0.4).abs() < 1e-9);
    }

    #[test]
    fn workers_that_share_a_cpu_among_themselves_are_not_disturbed() {
        let half = FlatOut { process: 1.0, ..computed(0.5) };
        assert_eq!(undisturbed(&[half, half], 1.0), (vec![Full { rate: 50.0, pressing: 0.5 }; 2], 0.0));
    }

    #[test]
    fn a_worker_that_waits_for_the_kernel_s_own_thread_is_not_disturbed() {
        let run = FlatOut { rate: 100.0, active: 0.7, cpu: 0.5, process: 1.0 };
        assert_eq!(undisturbed(&[run], 1.0), (vec![Full { rate: 100.0, pressing: 0.7 }], 0.0));
    }

    #[test]
    fn a_limit_that_a_waiting_kernel_does_not_reach_takes_nothing_from_it() {
        let run = FlatOut { rate: 100.0, active: 1.0, cpu: 0.1, process: 0.1 };
        assert_eq!(undisturbed(&[run], 0.5), (vec![Full { rate: 100.0, pressing: 1.0 }], 0.0));
    }

    /// Does some work on the CPU in every step.
    struct Busy;

    impl Kernel for Busy {
        fn step(&mut self, _: &mut dyn Sink) -> Result<f64, KernelError> {
            let until_ns = clock::thread_cpu() + 100_000;
            while clock::thread_cpu() < until_ns {}
            Ok(1.0)
        }
    }

    /// The other process is a child, because threads of this one would be the kernel's own.
    #[test]
    fn a_calibration_on_a_contended_cpu_says_so_and_finds_the_rate_of_a_free_one() {
        let cpus = partywall_sys::affinity::allowed().unwrap();
        partywall_sys::affinity::pin(&cpus[..1]).unwrap();
        let mut other = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let stressor =
            Stressor::start(vec![Box::new(Busy)], &Latency::Step("a turn"), 10_000_000, &Tape::default(), &SessionClock::default())
                .unwrap();
        let outcome = stressor.calibration().run(200_000_000, ALONE);
        other.kill().unwrap();
        other.wait().unwrap();
        let Calibrated { rates, disturbed } = outcome.unwrap();
        assert!(disturbed > 0.2, "another process used the CPU, but only {disturbed} of the time was missed");
        // 10,000 pieces of 100 µs in a second, if their CPU time is all that they need.
        assert!((8_000.0..=10_500.0).contains(&rates[0]), "{rates:?}");
    }

    fn stressor(step_ns: Nanos, work: f64) -> Stressor {
        Stressor::start(
            vec![Box::new(Slow { step_ns, work })],
            &Latency::Step("a nap"),
            10_000_000,
            &Tape::default(),
            &SessionClock::default(),
        )
        .unwrap()
    }

    /// Half of the work that it counts goes into a buffer that grows.
    struct Buffering {
        held: f64,
    }

    impl Kernel for Buffering {
        fn step(&mut self, _: &mut dyn Sink) -> Result<f64, KernelError> {
            clock::sleep_until(clock::monotonic() + 1_000_000);
            self.held += 1.0;
            Ok(2.0)
        }

        fn pending(&self) -> f64 {
            self.held
        }
    }

    #[test]
    fn work_that_is_still_pending_is_no_part_of_the_rate() {
        let kernel = Box::new(Buffering { held: 0.0 });
        let stressor =
            Stressor::start(vec![kernel], &Latency::Step("a nap"), 10_000_000, &Tape::default(), &SessionClock::default()).unwrap();
        let Calibrated { rates, .. } = stressor.calibration().run(100_000_000, ALONE).unwrap();
        assert!(rates[0] > 0.0 && rates[0] <= 1000.0, "{rates:?}");
    }

    #[test]
    fn a_step_longer_than_the_window_is_waited_for() {
        let stressor = stressor(300_000_000, 3.0);
        let Calibrated { rates, .. } = stressor.calibration().run(20_000_000, ALONE).unwrap();
        assert!((5.0..=10.0).contains(&rates[0]), "{rates:?}");
        stressor.switch(clock::monotonic(), 0.3).unwrap();
    }

    #[test]
    fn zero_work_is_refused_by_name_and_so_is_every_share_of_it() {
        let stressor = stressor(1_000_000, 0.0);
        let error = stressor.calibration().run_within(5_000_000, ALONE, 200_000_000).unwrap_err();
        assert!(matches!(error, CalibrationError::NoWork { thread: 0, .. }), "{error}");
        assert!(error.to_string().contains("make its steps smaller"), "{error}");
        assert_eq!(stressor.switch(clock::monotonic(), 0.3), Err(ScheduleError::Uncalibrated(0.3)));
    }

    #[test]
    fn a_step_that_never_ends_is_given_up() {
        let stressor = stressor(800_000_000, 1.0);
        let error = stressor.calibration().run_within(5_000_000, ALONE, 100_000_000).unwrap_err();
        assert!(matches!(error, CalibrationError::NoWork { .. }), "{error}");
    }

    #[test]
    fn a_window_that_a_worker_missed_is_repeated() {
        let schedule = Arc::<Schedule>::default();
        let worker = Arc::<Progress>::default();
        let calibration = Calibration { schedule: schedule.clone(), workers: vec![worker.clone()] };
        let asleep = std::thread::spawn(move || {
            // It wakes when the first window is over, and gets the second.
            let mut cursor = 0;
            while cursor < 3 {
                let _ = schedule.hold(&mut cursor, clock::monotonic());
                std::thread::yield_now();
            }
            worker.set_flat_out(Some(FlatOut { rate: 7.0, active: 1.0, cpu: 1.0, process: 1.0 }));
        });
        assert_eq!(calibration.run(1_000_000, ALONE), Ok(Calibrated { rates: vec![7.0], disturbed: 0.0 }));
        asleep.join().unwrap();
    }

    #[test]
    fn a_calibration_of_an_hour_is_refused() {
        assert_eq!(stressor(1, 1.0).calibration().run(3_600_000_000_000, ALONE), Err(CalibrationError::Long(3_600_000_000_000)));
    }
}
