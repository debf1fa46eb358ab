//! Measurements of one worker, second by second. It does not send or judge them.

use std::sync::{Arc, Mutex, PoisonError};

use partywall_clock::Nanos;
use partywall_record::{LatencyCounts, Recorder};
use partywall_wire::load::{GeneratorHealth, LoadError, LoadErrorKind, LoadSecond, Timing};

use crate::health::{Surroundings, ThreadClock};

const SECOND_NS: Nanos = 1_000_000_000;

/// Queue of finished seconds.
#[derive(Clone, Default)]
pub(crate) struct Seconds(Arc<Mutex<Vec<LoadSecond>>>);

impl Seconds {
    pub(crate) fn take(&self) -> Vec<LoadSecond> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn push(&self, second: LoadSecond) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(second);
    }
}

/// The times of one request.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_field_names, reason = "units stand last in names")]
pub(crate) struct Moments {
    /// Intended start.
    pub intended_ns: Nanos,
    /// Start of sending, including connecting.
    pub sent_ns: Nanos,
    /// When it was written to the socket.
    pub written_ns: Nanos,
    /// When the first byte of its response was read.
    pub first_ns: Nanos,
    /// How late it left although its user was free to send it.
    pub late_ns: Nanos,
}

#[derive(Default)]
struct Counts {
    timing: Timing,
    corrected: LatencyCounts,
    raw: LatencyCounts,
    first_byte: LatencyCounts,
    body: LatencyCounts,
    failures: LatencyCounts,
}

/// Splits one worker's measurements into seconds of monotonic time.
pub(crate) struct SecondRecorder {
    pub open: LoadSecond,
    seconds: Seconds,
    slices: Option<Recorder>,
    labels: Vec<Counts>,
    connect: LatencyCounts,
    tls: LatencyCounts,
    lateness: LatencyCounts,
    undelayed: LatencyCounts,
    late_after_ns: Nanos,
    thread_clock: ThreadClock,
    surroundings: Option<Surroundings>,
    pub ends_ns: Nanos,
}

impl SecondRecorder {
    /// `surroundings`: set for the one thread that reports them.
    pub(crate) fn new(
        seconds: Seconds,
        slices: Option<Recorder>,
        thread: u32,
        labels: usize,
        late_after_ns: Nanos,
        surroundings: Option<Surroundings>,
        start_ns: Nanos,
    ) -> Self {
        Self {
            open: LoadSecond { thread, start_ns, ..LoadSecond::default() },
            seconds,
            slices,
            labels: (0..labels).map(|_| Counts::default()).collect(),
            connect: LatencyCounts::default(),
            tls: LatencyCounts::default(),
            lateness: LatencyCounts::default(),
            undelayed: LatencyCounts::default(),
            late_after_ns,
            thread_clock: ThreadClock::new(),
            surroundings,
            ends_ns: (start_ns / SECOND_NS + 1) * SECOND_NS,
        }
    }

    /// Records a successful request or other step.
    #[inline]
    pub(crate) fn timed(&mut self, label: u32, moments: Moments, end_ns: Nanos, good: bool) {
        let counts = &mut self.labels[label as usize];
        let corrected_ns = end_ns.saturating_sub(moments.intended_ns);
        counts.corrected.record(corrected_ns);
        counts.raw.record(end_ns.saturating_sub(moments.sent_ns));
        let seconds = corrected_ns as f64 / 1e9;
        counts.timing.sum_ns += corrected_ns;
        counts.timing.sum_squares_s2 += seconds * seconds;
        if good {
            counts.timing.done += 1;
        } else {
            counts.timing.failed += 1;
        }
        if moments.first_ns > 0 {
            counts.first_byte.record(moments.first_ns.saturating_sub(moments.written_ns));
            counts.body.record(end_ns.saturating_sub(moments.first_ns));
            self.undelayed.record(corrected_ns.saturating_sub(moments.late_ns));
            if let Some(slices) = &mut self.slices {
                slices.latency(corrected_ns);
                slices.work(1.0, end_ns);
            }
        }
    }

    /// Records a request or other step that did not complete.
    pub(crate) fn failed(&mut self, label: u32, intended_ns: Nanos, now_ns: Nanos) {
        let counts = &mut self.labels[label as usize];
        counts.timing.failed += 1;
        counts.failures.record(now_ns.saturating_sub(intended_ns));
    }

    pub(crate) fn error(&mut self, label: Option<u32>, kind: LoadErrorKind, detail: &str) {
        let same = |error: &&mut LoadError| error.label == label && error.kind == kind && error.detail == detail;
        match self.open.errors.iter_mut().find(same) {
            Some(error) => error.count += 1,
            None => self.open.errors.push(LoadError { label, kind, detail: detail.into(), count: 1 }),
        }
    }

    #[inline]
    pub(crate) fn status(&mut self, status: u16) {
        match self.open.statuses.iter_mut().find(|(known, _)| *known == status) {
            Some((_, count)) => *count += 1,
            None => self.open.statuses.push((status, 1)),
        }
    }

    /// Records how late a request with a scheduled time left.
    #[inline]
    pub(crate) fn left(&mut self, lateness_ns: Nanos) {
        self.lateness.record(lateness_ns);
        self.open.health.timed += 1;
        self.open.health.late += u64::from(lateness_ns > self.late_after_ns);
    }

    pub(crate) fn connected(&mut self, took_ns: Nanos) {
        self.connect.record(took_ns);
    }

    pub(crate) fn secured(&mut self, took_ns: Nanos) {
        self.tls.record(took_ns);
    }

    /// Records belong to this intensity from `now_ns` on.
    pub(crate) fn switch(&mut self, intensity: f64, now_ns: Nanos) {
        if let Some(slices) = &mut self.slices {
            slices.switch(intensity, now_ns);
        }
    }

    /// Cuts slices while nothing completes, so that a stalled server shows as slices without work.
    pub(crate) fn idle(&mut self, now_ns: Nanos) {
        if let Some(slices) = &mut self.slices {
            slices.work(0.0, now_ns);
        }
    }

    /// Ends the current second at `now_ns` and begins the next. Numbers of users and connections carry over.
    pub(crate) fn close(&mut self, now_ns: Nanos) {
        self.open.end_ns = now_ns;
        self.open.connect = self.connect.take();
        self.open.tls = self.tls.take();
        self.open.health.lateness = self.lateness.take();
        self.open.health.undelayed = self.undelayed.take();
        if let Some(surroundings) = &mut self.surroundings {
            self.open.health.throttled_ns = surroundings.throttled_ns();
            self.open.health.ports_waiting = surroundings.ports_waiting();
            self.open.health.ports_most = surroundings.ports_most;
        }
        let (cpu_ns, run_delay_ns) = self.thread_clock.step();
        self.open.health.cpu_ns = cpu_ns;
        self.open.health.run_delay_ns = run_delay_ns;
        let numbered = (0..).zip(&mut self.labels);
        self.open.timings = numbered.filter_map(|(label, counts)| counts.take(label)).collect();
        let next = LoadSecond {
            thread: self.open.thread,
            start_ns: now_ns,
            users: self.open.users,
            in_flight: self.open.in_flight,
            waiting: self.open.waiting,
            connections_open: self.open.connections_open,
            health: GeneratorHealth::default(),
            ..LoadSecond::default()
        };
        self.seconds.push(std::mem::replace(&mut self.open, next));
        self.ends_ns = (now_ns / SECOND_NS + 1) * SECOND_NS;
    }
}

impl Counts {
    fn take(&mut self, label: u32) -> Option<Timing> {
        let timing = std::mem::take(&mut self.timing);
        (timing.done + timing.failed > 0).then(|| Timing {
            label,
            corrected: self.corrected.take(),
            raw: self.raw.take(),
            first_byte: self.first_byte.take(),
            body: self.body.take(),
            failures: self.failures.take(),
            ..timing
        })
    }
}
