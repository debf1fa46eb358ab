//! Switches at absolute times, appended by the controller and followed by every worker thread.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use partywall_clock::{Nanos, SessionClock};

use crate::Pacer;

/// Reason why a switch was refused.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ScheduleError {
    /// Times of switches must not decrease.
    #[error("the switch at {at_ns} ns is earlier than the last one at {last_ns} ns; give switches in order of time")]
    OutOfOrder {
        /// Time of the refused switch.
        at_ns: Nanos,
        /// Time of the last accepted switch.
        last_ns: Nanos,
    },
    /// Outside 0 to 1.
    #[error("intensity {0} is out of range; give 0 to 1")]
    Intensity(f64),
    /// A share of an unknown maximum.
    #[error("intensity {0} is a share of a maximum that is not known; calibrate the workload first")]
    Uncalibrated(f64),
}

/// Rate and share of a worker thread alone at full speed: the definition of intensity 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Full {
    /// Work per second.
    pub rate: f64,
    /// Share of the time in which it is active: less than 1 under a CPU limit.
    pub pressing: f64,
}

#[derive(Default)]
struct State {
    switches: Vec<(Nanos, f64)>,
    full: Vec<Full>,
}

impl State {
    /// Whether there is a rate. Without a rate there is no pacer, and the kernel would run at full speed.
    fn is_calibrated(&self) -> bool {
        !self.full.is_empty() && self.full.iter().all(|full| full.rate > 0.0 && full.pressing > 0.0)
    }
}

/// Shared by the controller's side, which appends switches, and the worker threads, which follow them. Its times are the session's.
#[derive(Default)]
pub struct Schedule {
    clock: SessionClock,
    state: Mutex<State>,
    changed: Condvar,
    length: AtomicUsize,
    ended: AtomicBool,
}

/// One intensity and its duration.
#[derive(Clone, Debug, PartialEq)]
pub struct Hold {
    /// 0 is off, 1 is full speed.
    pub intensity: f64,
    /// Until the next known switch, or indefinitely.
    pub until_ns: Nanos,
    full: Vec<Full>,
    length: usize,
}

impl Hold {
    /// How long a rate at full intensity is not yet stable: an idle processor raises its frequency, and caches fill, within some tens of
    /// milliseconds. For a short period it is the first quarter.
    #[must_use]
    pub fn warm_up_ns(&self, start_ns: Nanos) -> Nanos {
        const MOST_NS: Nanos = 50_000_000;
        (self.until_ns.saturating_sub(start_ns) / 4).min(MOST_NS)
    }

    /// The closed loop for a partial intensity, and its full rate. None at full intensity.
    #[must_use]
    pub fn pacer(&self, thread: u32, start_ns: Nanos) -> Option<(Pacer, Full)> {
        let full = self.full.get(thread as usize).copied()?;
        (self.intensity < 1.0).then(|| (Pacer::new(self.intensity, start_ns), full))
    }
}

impl Schedule {
    /// A schedule in the time of `clock`, without switches.
    #[must_use]
    pub fn new(clock: &SessionClock) -> Self {
        Self { clock: clock.clone(), ..Self::default() }
    }

    /// The clock of its times.
    #[must_use]
    pub fn clock(&self) -> &SessionClock {
        &self.clock
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets `intensity` from `at_ns` on.
    ///
    /// # Errors
    /// See [`ScheduleError`]. Nothing is appended then.
    pub fn append(&self, at_ns: Nanos, intensity: f64) -> Result<(), ScheduleError> {
        let mut state = self.state();
        let last_ns = state.switches.last().map_or(0, |last| last.0);
        if !(0.0..=1.0).contains(&intensity) {
            return Err(ScheduleError::Intensity(intensity));
        }
        if at_ns < last_ns {
            return Err(ScheduleError::OutOfOrder { at_ns, last_ns });
        }
        if intensity > 0.0 && intensity < 1.0 && !state.is_calibrated() {
            return Err(ScheduleError::Uncalibrated(intensity));
        }
        state.switches.push((at_ns, intensity));
        self.length.store(state.switches.len(), Ordering::Release);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Defines intensity 1 for each worker thread from now on.
    pub fn calibrated(&self, full: &[Full]) {
        self.state().full = full.to_vec();
    }

    /// The current intensity at `now_ns`. Advances `cursor`, the number of passed switches. None after the schedule has ended.
    #[must_use]
    pub fn hold(&self, cursor: &mut usize, now_ns: Nanos) -> Option<Hold> {
        if self.ended.load(Ordering::Acquire) {
            return None;
        }
        let state = self.state();
        while state.switches.get(*cursor).is_some_and(|next| next.0 <= now_ns) {
            *cursor += 1;
        }
        let intensity = cursor.checked_sub(1).map_or(0.0, |last| state.switches[last].1);
        let until_ns = state.switches.get(*cursor).map_or(Nanos::MAX, |next| next.0);
        Some(Hold { intensity, until_ns, full: state.full.clone(), length: state.switches.len() })
    }

    /// Whether a period without a next switch must be checked again.
    #[must_use]
    pub fn has_changed(&self, hold: &Hold) -> bool {
        self.ended.load(Ordering::Acquire) || (hold.until_ns == Nanos::MAX && self.length.load(Ordering::Acquire) != hold.length)
    }

    /// Waits until `until_ns`, for more than `cursor` switches if none was due, or for the end.
    pub fn wait(&self, cursor: usize, until_ns: Nanos) {
        if until_ns != Nanos::MAX {
            // The condition variable wakes up for the end. The last part sleeps to the absolute time, which is more precise. A
            // wake-up takes 1 to 2 ms in an emulated guest.
            const FINE_NS: Nanos = 5_000_000;
            let coarse_ns = until_ns.saturating_sub(self.clock.now()).saturating_sub(FINE_NS);
            self.doze(Duration::from_nanos(coarse_ns), |_| true);
            if !self.ended.load(Ordering::Acquire) {
                self.clock.sleep_until(until_ns);
            }
            return;
        }
        self.doze(Duration::from_hours(1), |state| state.switches.len() <= cursor);
    }

    fn doze(&self, at_most: Duration, goes_on: impl Fn(&State) -> bool) {
        let ended = || self.ended.load(Ordering::Acquire);
        let _ = self.changed.wait_timeout_while(self.state(), at_most, |state| !ended() && goes_on(state));
    }

    /// Ends every worker thread that follows this schedule.
    pub fn end(&self) {
        let state = self.state();
        self.ended.store(true, Ordering::Release);
        drop(state);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_lasts_from_its_switch_to_the_next() {
        let schedule = Schedule::default();
        schedule.append(100, 1.0).unwrap();
        schedule.append(200, 0.0).unwrap();
        let mut cursor = 0;
        let seen: Vec<(f64, Nanos)> =
            [50, 100, 150, 200].iter().map(|&now| schedule.hold(&mut cursor, now).map(|h| (h.intensity, h.until_ns)).unwrap()).collect();
        assert_eq!(seen, [(0.0, 100), (1.0, 200), (1.0, 200), (0.0, Nanos::MAX)]);
    }

    #[test]
    fn switches_out_of_order_and_invalid_intensities_are_refused() {
        let schedule = Schedule::default();
        schedule.append(100, 1.0).unwrap();
        assert_eq!(schedule.append(99, 0.0), Err(ScheduleError::OutOfOrder { at_ns: 99, last_ns: 100 }));
        assert_eq!(schedule.append(200, 1.5), Err(ScheduleError::Intensity(1.5)));
        assert!(matches!(schedule.append(200, f64::NAN), Err(ScheduleError::Intensity(_))));
        assert_eq!(schedule.append(200, 0.5), Err(ScheduleError::Uncalibrated(0.5)));
    }

    #[test]
    fn a_share_of_a_maximum_of_0_is_refused() {
        let schedule = Schedule::default();
        let full = |rate| Full { rate, pressing: 1.0 };
        schedule.calibrated(&[full(5.0), full(0.0)]);
        assert_eq!(schedule.append(200, 0.3), Err(ScheduleError::Uncalibrated(0.3)));
        schedule.calibrated(&[full(5.0), full(1.0)]);
        assert_eq!(schedule.append(200, 0.3), Ok(()));
    }

    #[test]
    fn the_end_wakes_a_waiting_worker() {
        let schedule = std::sync::Arc::new(Schedule::default());
        let waiter = {
            let schedule = schedule.clone();
            std::thread::spawn(move || schedule.wait(0, Nanos::MAX))
        };
        schedule.end();
        waiter.join().unwrap();
        assert_eq!(schedule.hold(&mut 0, 0), None);
    }
}
