//! Measures intensity 1: runs at full speed until every worker thread has finished some work.
//!
//! It holds no lock of the caller, because it takes as long as a slow disk, and slices are sent meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use partywall_clock::{self as clock, Nanos};

use crate::{Dose, Full, Schedule, ScheduleError};

/// Maximum duration. A longer calibration is a caller's error.
const FOR_MAX_NS: Nanos = 60_000_000_000;
/// A worker that has finished no work for this time after the first window will not finish any in a slot.
const PATIENCE_NS: Nanos = 45_000_000_000;
const LEAD_NS: Nanos = 1_000_000;
const POLL_NS: Nanos = 10_000_000;
/// A worker that was not on a CPU during its whole window has missed it, after it had this time to notice.
const GRACE_NS: Nanos = 50_000_000;

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

/// State of a worker thread during calibration.
#[derive(Default)]
pub(crate) struct Progress {
    /// Work per second in its last period at full intensity.
    rate: AtomicU64,
    /// Share of that period in which it was active.
    share: AtomicU64,
    pressing: AtomicBool,
    ended: AtomicBool,
    dose: Mutex<Dose>,
}

impl Progress {
    fn rate(&self) -> f64 {
        f64::from_bits(self.rate.load(Ordering::Acquire))
    }

    /// The result for intensity 1, from its last period.
    fn full(&self) -> Full {
        Full { rate: self.rate(), pressing: f64::from_bits(self.share.load(Ordering::Acquire)) }
    }

    pub(crate) fn set_full(&self, full: Full) {
        self.share.store(full.pressing.to_bits(), Ordering::Release);
        self.rate.store(full.rate.to_bits(), Ordering::Release);
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
    /// Runs at full speed for `for_ns`, and longer if a worker thread needs longer for one step or did not run in that time. Returns each
    /// worker's rate after its warm-up, above 0, which defines intensity 1 from now on. The kernel is idle afterwards.
    ///
    /// # Errors
    /// [`CalibrationError`]; partial intensities are then still refused.
    pub fn run(&self, for_ns: Nanos) -> Result<Vec<f64>, CalibrationError> {
        self.run_within(for_ns, PATIENCE_NS)
    }

    fn run_within(&self, for_ns: Nanos, patience_ns: Nanos) -> Result<Vec<f64>, CalibrationError> {
        if for_ns > FOR_MAX_NS {
            return Err(CalibrationError::Long(for_ns));
        }
        let begin_ns = clock::now();
        let give_up_ns = begin_ns + for_ns + patience_ns;
        let mut window_ns = for_ns;
        loop {
            self.press(window_ns)?;
            self.settle(give_up_ns);
            if let Some(thread) = self.workers.iter().position(|worker| worker.ended.load(Ordering::Acquire)) {
                return Err(CalibrationError::Ended { thread });
            }
            let rates: Vec<f64> = self.workers.iter().map(|worker| worker.rate()).collect();
            let Some(thread) = rates.iter().position(|&rate| rate <= 0.0) else {
                self.schedule.calibrated(&self.workers.iter().map(|worker| worker.full()).collect::<Vec<_>>());
                return Ok(rates);
            };
            let now_ns = clock::now();
            if now_ns >= give_up_ns {
                return Err(CalibrationError::NoWork { thread, waited_ns: now_ns - begin_ns });
            }
            window_ns = (window_ns.max(POLL_NS) * 2).min(give_up_ns - now_ns);
        }
    }

    /// Switches on for this time.
    fn press(&self, window_ns: Nanos) -> Result<(), ScheduleError> {
        self.workers.iter().for_each(|worker| worker.set_full(Full { rate: 0.0, pressing: 0.0 }));
        let start_ns = clock::now() + LEAD_NS;
        self.schedule.append(start_ns, 1.0)?;
        self.schedule.append(start_ns + window_ns, 0.0)?;
        clock::sleep_until(start_ns + window_ns);
        Ok(())
    }

    /// Waits until every worker has finished its last step, or has missed the window, or time is up.
    fn settle(&self, give_up_ns: Nanos) {
        let missed_ns = clock::now() + GRACE_NS;
        loop {
            let now_ns = clock::now();
            let waits = |worker: &Arc<Progress>| worker.rate() <= 0.0 && (now_ns < missed_ns || worker.pressing.load(Ordering::Acquire));
            let ended = self.workers.iter().any(|worker| worker.ended.load(Ordering::Acquire));
            if ended || now_ns >= give_up_ns || !self.workers.iter().any(waits) {
                return;
            }
            clock::sleep_until(now_ns + POLL_NS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stressor;
    use partywall_kernels::{Kernel, KernelError, Latency, Sink};
    use partywall_record::Tape;

    /// A kernel whose steps take a set time and do a set amount of work.
    struct Slow {
        step_ns: Nanos,
        work: f64,
    }

    impl Kernel for Slow {
        fn step(&mut self, _: &mut dyn Sink) -> Result<f64, KernelError> {
            clock::sleep_until(clock::now() + self.step_ns);
            Ok(self.work)
        }
    }

    fn stressor(step_ns: Nanos, work: f64) -> Stressor {
        Stressor::start(vec![Box::new(Slow { step_ns, work })], &Latency::Step("a nap"), 10_000_000, &Tape::default()).unwrap()
    }

    #[test]
    fn a_step_longer_than_the_window_is_waited_for() {
        let stressor = stressor(300_000_000, 3.0);
        let rates = stressor.calibration().run(20_000_000).unwrap();
        assert!((5.0..=10.0).contains(&rates[0]), "{rates:?}");
        stressor.switch(clock::now(), 0.3).unwrap();
    }

    #[test]
    fn zero_work_is_refused_by_name_and_so_is_every_share_of_it() {
        let stressor = stressor(1_000_000, 0.0);
        let error = stressor.calibration().run_within(5_000_000, 200_000_000).unwrap_err();
        assert!(matches!(error, CalibrationError::NoWork { thread: 0, .. }), "{error}");
        assert!(error.to_string().contains("make its steps smaller"), "{error}");
        assert_eq!(stressor.switch(clock::now(), 0.3), Err(ScheduleError::Uncalibrated(0.3)));
    }

    #[test]
    fn a_step_that_never_ends_is_given_up() {
        let stressor = stressor(800_000_000, 1.0);
        let error = stressor.calibration().run_within(5_000_000, 100_000_000).unwrap_err();
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
                let _ = schedule.hold(&mut cursor, clock::now());
                std::thread::yield_now();
            }
            worker.set_full(Full { rate: 7.0, pressing: 1.0 });
        });
        assert_eq!(calibration.run(1_000_000), Ok(vec![7.0]));
        asleep.join().unwrap();
    }

    #[test]
    fn a_calibration_of_an_hour_is_refused() {
        assert_eq!(stressor(1, 1.0).calibration().run(3_600_000_000_000), Err(CalibrationError::Long(3_600_000_000_000)));
    }
}
