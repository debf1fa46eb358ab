//! A worker thread: an event loop that advances its share of the users through their scripts. It keeps one record per user and one
//! small record per connection. Requests with constant bytes need no allocation. `pacing` decides when users arrive, `http1` parses
//! bytes, and `record` stores the results.
//!
//! The worker reads the clock before and after each wait and after each read. A request that immediately follows a response counts
//! as sent when that response was read. For a request with a scheduled time, the worker reads the clock again just before sending.

mod exchange;
mod script;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use partywall_clock::{Nanos, SessionClock};
use partywall_wire::load::LoadErrorKind;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::time::Timespec;
use slotmap::{KeyData, SlotMap};

use crate::compress::Pool;
use crate::controls::{Controls, Setting, Switch};
use crate::link::{Address, Link, LinkKey};
use crate::pacing::{Change, Pacer, Seat};
use crate::program::Program;
use crate::record::SecondRecorder;
use crate::tls::Trust;
use crate::user::{Doing, User};

/// No link has this key.
const WAKE_KEY: u64 = u64::MAX;
const READ_BYTES: usize = 64 << 10;
const EVENTS_MOST: usize = 128;
/// Maximum users that are started or woken between two polls of the sockets.
const DUES_MOST: usize = 64;
const SECOND_NS: Nanos = 1_000_000_000;

/// State shared by all workers of a load.
pub(crate) struct Shared {
    pub program: Program,
    /// The addresses of each of the program's places.
    pub addresses: Vec<Vec<Address>>,
    /// The session's, for all times of the load.
    pub clock: SessionClock,
    /// None if no request uses TLS.
    pub trust: Option<Trust>,
    pub controls: Arc<Controls>,
    pub pool: Option<Pool>,
    pub seed: u64,
    pub threads: u32,
    /// Local ports available for all servers together. None if none are needed.
    pub ports_most: Option<u64>,
}

/// One worker.
pub(crate) struct Worker<'s> {
    shared: &'s Shared,
    program: &'s Program,
    thread: u32,
    seat: Seat,
    poll: OwnedFd,
    recorder: SecondRecorder,
    pacer: Pacer,
    switches: VecDeque<Switch>,
    intensity: f64,
    began_ns: Option<Nanos>,
    closing_ns: Option<Nanos>,
    users: Vec<User>,
    /// Users of the open model without an iteration, by kind. The last freed user is last.
    free: Vec<Vec<u32>>,
    /// Arrivals of the open model so far.
    arrived: u64,
    /// Users of the open model that have left.
    away: Vec<u32>,
    /// Users that wait until the load is switched on again.
    held: Vec<u32>,
    links: SlotMap<LinkKey, Link>,
    draining: VecDeque<(Nanos, LinkKey)>,
    /// Pending continuations: time, user, and the user's epoch when the entry was made.
    dues: BinaryHeap<Reverse<(Nanos, u32, u32)>>,
    /// When to check each user's request for a timeout.
    deadlines: BinaryHeap<Reverse<(Nanos, u32)>>,
    read_buffer: Box<[u8]>,
    request_buffer: Vec<u8>,
    plain_buffer: Vec<u8>,
    wake_ahead: WakeAhead,
    /// The last clock reading.
    now_ns: Nanos,
    looked_ns: Nanos,
    worked: bool,
}

/// How long before a due time a sleep must end. Estimated from the lateness of earlier sleeps: mean and spread in ns, as TCP
/// estimates its timeout.
struct WakeAhead {
    mean: f64,
    spread: f64,
    most: Nanos,
}

impl WakeAhead {
    fn ns(&self) -> Nanos {
        ((self.mean + 4.0 * self.spread) as Nanos).min(self.most)
    }

    fn learn(&mut self, late_ns: Nanos) {
        let error = late_ns as f64 - self.mean;
        self.mean += error / 16.0;
        self.spread += (error.abs() - self.spread) / 16.0;
    }
}

impl<'s> Worker<'s> {
    pub(crate) fn new(shared: &'s Shared, thread: u32, recorder: SecondRecorder) -> Result<Self, Errno> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&poll, shared.controls.waker(thread), EventData::new_u64(WAKE_KEY), EventFlags::IN)?;
        let (program, now_ns) = (&shared.program, shared.clock.now());
        let seat = Seat::new(program.source.share, thread, shared.threads);
        Ok(Self {
            shared,
            program,
            thread,
            seat,
            poll,
            recorder,
            pacer: Pacer::new(&program.pacing, seat, shared.seed),
            switches: VecDeque::new(),
            intensity: 0.0,
            began_ns: None,
            closing_ns: None,
            users: Vec::new(),
            free: vec![Vec::new(); program.kinds.len()],
            arrived: 0,
            away: Vec::new(),
            held: Vec::new(),
            links: SlotMap::with_key(),
            draining: VecDeque::new(),
            dues: BinaryHeap::new(),
            deadlines: BinaryHeap::new(),
            read_buffer: vec![0; READ_BYTES].into(),
            request_buffer: Vec::new(),
            plain_buffer: Vec::new(),
            wake_ahead: WakeAhead { mean: 30_000.0, spread: 10_000.0, most: program.source.spin_ns },
            now_ns,
            looked_ns: now_ns,
            worked: false,
        })
    }

    /// Runs the program until its last stage has ended and all users have left, or until the load is ended externally.
    pub(crate) fn run(&mut self) -> Result<(), Errno> {
        let mut events = Vec::with_capacity(EVENTS_MOST);
        while !self.shared.controls.ended() && !self.is_over() {
            self.tend();
            self.wait(&mut events)?;
            for event in &events {
                match event.data.u64() {
                    WAKE_KEY => self.woken(),
                    key => self.event(KeyData::from_ffi(key).into(), event.flags),
                }
                // Due requests do not wait until all responses are read.
                self.send_due();
            }
        }
        self.cut_off();
        self.account();
        self.recorder.close(self.shared.clock.now());
        Ok(())
    }

    fn is_over(&self) -> bool {
        let grace_ns = self.program.source.grace_ns;
        self.closing_ns.is_some_and(|closing_ns| self.recorder.open.users == 0 || self.now_ns >= closing_ns.saturating_add(grace_ns))
    }

    /// Does all work that is due by time.
    fn tend(&mut self) {
        // Do this before the second is closed, so that no record mixes results from within the stages with later ones.
        if let Some(end_ns) = self.stages_end_ns().filter(|end_ns| self.closing_ns.is_none() && self.now_ns >= *end_ns) {
            self.begin_to_close(end_ns);
        }
        if self.now_ns >= self.recorder.ends_ns {
            self.account();
            self.recorder.close(self.now_ns);
        }
        self.recorder.idle(self.now_ns);
        self.switch();
        self.send_due();
        self.expire();
    }

    fn stages_end_ns(&self) -> Option<Nanos> {
        self.began_ns.map(|began_ns| began_ns.saturating_add(self.pacer.end_ns()))
    }

    fn account(&mut self) {
        self.recorder.open.waiting = self.pacer.waiting() as u32;
        self.recorder.open.connections_open = self.links.len() as u32;
    }

    fn elapsed_ns(&self) -> Option<Nanos> {
        self.began_ns.map(|began_ns| self.now_ns.saturating_sub(began_ns))
    }

    /// Waits for events, or until something is due.
    fn wait(&mut self, events: &mut Vec<epoll::Event>) -> Result<(), Errno> {
        let before_ns = self.shared.clock.now();
        self.work_ended(before_ns);
        let (fine_ns, coarse_ns) = (self.next_fine(), self.next_coarse());
        let until_ns = coarse_ns.min(fine_ns.saturating_sub(self.wake_ahead.ns()));
        let left_ns = until_ns.saturating_sub(before_ns);
        let mut timeout = Timespec { tv_sec: (left_ns / SECOND_NS).cast_signed(), tv_nsec: (left_ns % SECOND_NS).cast_signed() };
        if left_ns > 0 && until_ns < coarse_ns {
            // The timeout of epoll_wait is in milliseconds, rounded up.
            let mut polled = [PollFd::new(&self.poll, PollFlags::IN)];
            let _ = poll(&mut polled, Some(&timeout));
            timeout = Timespec { tv_sec: 0, tv_nsec: 0 };
        }
        events.clear();
        match epoll::wait(&self.poll, rustix::buffer::spare_capacity(events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        self.now_ns = self.shared.clock.now();
        self.looked_ns = self.now_ns;
        self.worked = !events.is_empty();
        if events.is_empty() && left_ns > 0 && until_ns < coarse_ns {
            self.wake_ahead.learn(self.now_ns.saturating_sub(until_ns));
        }
        Ok(())
    }

    /// Records the time worked since the last poll of the sockets. A round without work is spinning and does not count.
    fn work_ended(&mut self, now_ns: Nanos) {
        let worked_ns = now_ns.saturating_sub(self.looked_ns);
        let health = &mut self.recorder.open.health;
        health.stall_ns_max = health.stall_ns_max.max(worked_ns);
        if self.worked {
            health.busy_ns += worked_ns;
        }
    }

    /// The next due time that must be met precisely.
    fn next_fine(&self) -> Nanos {
        let due = self.dues.peek().map(|Reverse((at_ns, _, _))| *at_ns);
        let switch = self.switches.front().map(|switch| switch.at_ns);
        [due, switch, self.next_change().map(|(at_ns, _)| at_ns)].into_iter().flatten().min().unwrap_or(Nanos::MAX)
    }

    /// The next due time that may be slightly late.
    fn next_coarse(&self) -> Nanos {
        let deadline = self.deadlines.peek().map_or(Nanos::MAX, |Reverse((at_ns, _))| *at_ns);
        let end = match self.closing_ns {
            Some(closing_ns) => closing_ns.saturating_add(self.program.source.grace_ns),
            None => self.stages_end_ns().unwrap_or(Nanos::MAX),
        };
        deadline.min(end).min(self.recorder.ends_ns)
    }

    /// The pacer's next due time, as absolute time. None at the end of the stages or later.
    #[inline]
    fn next_change(&self) -> Option<(Nanos, Change)> {
        let (began_ns, (at_ns, change)) = self.began_ns.zip(self.pacer.next())?;
        (self.closing_ns.is_none() && at_ns < self.pacer.end_ns()).then(|| (began_ns.saturating_add(at_ns), change))
    }

    /// Advances all due users, the earliest first.
    #[inline]
    fn send_due(&mut self) {
        for _ in 0..DUES_MOST {
            let due = self.dues.peek().map_or(Nanos::MAX, |Reverse((at_ns, _, _))| *at_ns);
            let change = self.next_change().filter(|(at_ns, _)| *at_ns <= due && *at_ns <= self.now_ns);
            match change {
                Some((at_ns, change)) => {
                    self.pacer.advance();
                    self.change(change, at_ns);
                }
                None if due <= self.now_ns => self.due(),
                None => return,
            }
            self.worked = true;
        }
    }

    fn due(&mut self) {
        let Some(Reverse((at_ns, user, epoch))) = self.dues.pop() else { return };
        if self.users[user as usize].epoch == epoch {
            self.go_on(user, at_ns);
        }
    }

    /// Checks requests that may have timed out.
    fn expire(&mut self) {
        while let Some(Reverse((at_ns, user))) = self.deadlines.peek().copied() {
            if at_ns > self.now_ns {
                break;
            }
            self.deadlines.pop();
            let asking = &mut self.users[user as usize];
            // The timer was requeued for a later time, so this entry is obsolete.
            if asking.armed_ns != at_ns {
                continue;
            }
            asking.armed_ns = Nanos::MAX;
            if asking.doing != Doing::Asking {
                continue;
            }
            if asking.pending.deadline_ns <= self.now_ns {
                self.overdue(user);
            } else {
                self.arm_deadline(user);
            }
        }
        while self.draining.front().is_some_and(|(until_ns, _)| *until_ns <= self.now_ns) {
            if let Some((_, key)) = self.draining.pop_front() {
                self.close_link(key);
            }
        }
    }

    /// If all requests of a user have the same timeout, the user has one deadline in the heap. Most requests end long before it is
    /// checked. Only a deadline before the armed one needs another entry.
    #[inline]
    fn arm_deadline(&mut self, user: u32) {
        let asking = &mut self.users[user as usize];
        if asking.pending.deadline_ns < asking.armed_ns {
            asking.armed_ns = asking.pending.deadline_ns;
            self.deadlines.push(Reverse((asking.armed_ns, user)));
        }
    }

    fn woken(&mut self) {
        self.shared.controls.rest(self.thread);
        self.switches.extend(self.shared.controls.take(self.thread));
        let finished = self.shared.pool.as_ref().map_or_else(Vec::new, |pool| pool.take(self.thread));
        for done in finished {
            self.compressed(done);
        }
    }

    /// Applies the scheduled switches.
    fn switch(&mut self) {
        while let Some(switch) = self.switches.front().copied().filter(|switch| switch.at_ns <= self.now_ns) {
            self.switches.pop_front();
            match switch.to {
                Setting::Intensity(intensity) => self.set_intensity(switch.at_ns, intensity),
                Setting::Level(level) => {
                    let elapsed_ns = self.began_ns.map_or(0, |began_ns| switch.at_ns.saturating_sub(began_ns));
                    self.pacer.set_level(elapsed_ns, level);
                }
            }
            for user in std::mem::take(&mut self.held) {
                self.go_on(user, self.now_ns);
            }
        }
    }

    fn set_intensity(&mut self, at_ns: Nanos, intensity: f64) {
        self.intensity = intensity;
        self.recorder.switch(intensity, at_ns.max(self.recorder.open.start_ns));
        match self.began_ns {
            None if intensity > 0.0 => {
                self.began_ns = Some(at_ns);
                if intensity < 1.0 {
                    self.pacer.switch(0, intensity);
                }
            }
            Some(began_ns) => self.pacer.switch(at_ns.saturating_sub(began_ns), intensity),
            None => {}
        }
    }

    /// After the last stage nothing new begins. Waiting users go to their end steps now, and users with a pending request after its
    /// response. The record is cut here, to separate results from within the stages from later ones.
    fn begin_to_close(&mut self, end_ns: Nanos) {
        // An arrival that was due before the end still begins, even if it leaves after the end. Other pending changes are dropped.
        while let Some((at_ns, change)) = self.next_change() {
            self.pacer.advance();
            self.change(change, at_ns);
        }
        self.account();
        self.closing_ns = Some(self.now_ns);
        if let Pacer::Open(open) = &mut self.pacer {
            for _ in std::mem::take(&mut open.waiting) {
                self.recorder.error(None, LoadErrorKind::NotServed, "");
            }
        }
        if self.recorder.open.start_ns < end_ns {
            self.recorder.close(end_ns);
        }
        self.held.clear();
        self.free.iter_mut().for_each(Vec::clear);
        for user in 0..self.users.len() as u32 {
            let this = &mut self.users[user as usize];
            this.leaving = true;
            if matches!(this.doing, Doing::Free | Doing::Waiting | Doing::Held) {
                // The end steps are due now, whatever the user waited for.
                this.moments.intended_ns = self.now_ns;
                this.timed = false;
                self.go_on(user, self.now_ns);
            }
        }
    }

    /// Counts unfinished iterations when the time for them is over.
    fn cut_off(&mut self) {
        if self.closing_ns.is_none() {
            return;
        }
        for user in 0..self.users.len() {
            let asking = &self.users[user];
            if asking.doing == Doing::Asking {
                let label = self.program.requests[asking.pending.request as usize].label;
                self.recorder.failed(label, asking.moments.intended_ns, self.now_ns);
                self.recorder.error(Some(label), LoadErrorKind::CutOff, "");
            }
        }
    }
}
