//! A running guard: the hooks, and three threads. One keeps the rates. One manages queues, checks interfaces and writes reports.
//! One listens for changes.
//!
//! The thread that keeps the rates only touches memory. A system call can take long, because a tenant that changes its own
//! interfaces holds the kernel's single lock for all of them. Rates and heartbeat must not wait for that lock.

mod core;
mod shared;
mod start;
mod tender;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use partywall_bpf::Watch;
use partywall_clock::{self as clock, Nanos, SessionClock};
use partywall_wire::{GuardExcess, GuardGrant, GuardMove, GuardNote, GuardPoolRow, GuardQueue, GuardRemove, GuardRow, GuardStart};

use self::core::Core;
use self::shared::{listen, Ends, Shared};
use self::start::{alike, checked, links, load, places, prepare, put_all};
use self::tender::Tender;
use crate::error::GuardError;
use crate::fallback::FallbackProcess;
use crate::place::{self, Networks};
use crate::round::Rounds;

/// Events and counts since the last report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Start of the reported period.
    pub from_ns: Nanos,
    /// End of the reported period.
    pub at_ns: Nanos,
    /// One row per leaf.
    pub rows: Vec<GuardRow>,
    /// One row per pool.
    pub pools: Vec<GuardPoolRow>,
    /// Findings of the independent check.
    pub notes: Vec<GuardNote>,
    /// Longest time to read, decide and write.
    pub round_ns_max: Nanos,
    /// Longest time to decide.
    pub decide_ns_max: Nanos,
}

/// A running guard. When it is dropped, it stops deciding, as if it had died: hooks and rates stay, unless it is transient.
pub struct Guard {
    start: GuardStart,
    session: SessionClock,
    shared: Arc<Shared>,
    core: Arc<Core>,
    excess: Vec<GuardExcess>,
    without_backstop: Vec<usize>,
    queue: GuardQueue,
    watch: Arc<Watch>,
    fallback_process: Arc<Mutex<FallbackProcess>>,
    threads: Vec<JoinHandle<()>>,
}

impl Guard {
    /// Hooks the data plane to every place and starts the threads. If one place fails, this start leaves nothing at the others. Reports
    /// get times of `session`; everything else here is in the kernel's time, which is the machine's.
    ///
    /// # Errors
    /// A number without its object, a missing interface, or an error of the kernel. Each error names the thing.
    pub fn start(start: &GuardStart, session: &SessionClock) -> Result<Self, GuardError> {
        checked(start)?;
        let mut networks = Networks::default();
        let queue = place::queue(start.queue)?;
        let mut places = places(start, queue, &mut networks)?;
        let links = links(start, &mut networks)?;
        let plane = load(start)?;
        let mut rounds = Rounds::new(start, queue, clock::monotonic());
        prepare(start, &plane, &mut rounds, &places)?;
        let (spaces, namespaces) = networks.namespaces();
        let watch = Arc::new(Watch::new(&namespaces).map_err(GuardError::kernel("listening for interfaces"))?);
        let fallback_process = Arc::new(Mutex::new(FallbackProcess::start()?));
        put_all(start, &plane, &rounds, &mut places)?;
        let excess = places.iter().map(|place| place.excess).collect();
        let without_backstop = (0..places.len()).filter(|&at| places[at].lacks_backstop()).collect();
        let shared = Arc::<Shared>::default();
        let core = Arc::new(Core::new(start.clone(), plane, rounds, &places));
        let mut tender = Tender::new(start.clone(), session, core.clone(), places, links);
        (tender.networks, tender.spaces, tender.watch) = (networks, spaces, Some(watch.clone()));
        tender.fallback_process = fallback_process.clone();
        tender.instruct_fallback_process();
        let mut guard = Self {
            start: start.clone(),
            session: session.clone(),
            shared,
            core: core.clone(),
            excess,
            without_backstop,
            queue,
            watch,
            fallback_process,
            threads: Vec::new(),
        };
        guard.run(core, tender)?;
        Ok(guard)
    }

    fn run(&mut self, core: Arc<Core>, mut tender: Tender) -> Result<(), GuardError> {
        let watch = self.watch.clone();
        self.spawn("guard", move |shared| core.run(shared))?;
        self.spawn("guard-tend", move |shared| {
            tender.run(shared);
            tender.end();
        })?;
        self.spawn("guard-watch", move |shared| listen(&watch, shared))
    }

    fn spawn(&mut self, name: &'static str, body: impl FnOnce(&Shared) + Send + 'static) -> Result<(), GuardError> {
        let (shared, watch) = (self.shared.clone(), self.watch.clone());
        let body = move || {
            let _ends = Ends { shared: &shared, watch: &watch, thread: name };
            body(&shared);
        };
        self.threads.push(thread::Builder::new().name(name.into()).spawn(body).map_err(GuardError::kernel("a thread"))?);
        Ok(())
    }

    /// Why it ended on its own, if it did. All its threads have ended then.
    #[must_use]
    pub fn ended(&self) -> Option<String> {
        let thread = self.shared.state().died.filter(|_| self.threads.iter().all(JoinHandle::is_finished))?;
        Some(format!("its thread {thread} panicked, which is a bug; hooks and rates stay as after its death"))
    }

    /// Hooks that lack their backstop.
    #[must_use]
    pub fn without_backstop(&self) -> &[usize] {
        &self.without_backstop
    }

    /// The kind of queue that holds packets back.
    #[must_use]
    pub fn queue(&self) -> GuardQueue {
        self.queue
    }

    /// The rates of each leaf now.
    #[must_use]
    pub fn grants(&self) -> Vec<GuardGrant> {
        self.core.kept().rounds.grants().iter().map(|grant| GuardGrant { bps: grant.bps, pps: grant.pps }).collect()
    }

    /// How each hook treats excess packets.
    #[must_use]
    pub fn excess(&self) -> &[GuardExcess] {
        &self.excess
    }

    /// Moves hooks to other places. The notes of later reports say whether each hook is in place or lost.
    ///
    /// # Errors
    /// A hook that is not in the list.
    pub fn relocate(&self, moves: Vec<GuardMove>) -> Result<(), GuardError> {
        if let Some(unknown) = moves.iter().find(|to| to.hook >= self.excess.len()) {
            return Err(GuardError::usage(format_args!("no hook {}; there are {}", unknown.hook, self.excess.len())));
        }
        self.shared.state().moves.extend(moves);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Replaces the policy. Promises, priorities, totals, goals and the capacities may differ; vifs, flow classes and what belongs to
    /// them may not. Hooks stay attached, and no packet passes without a rate. Places in `to` are ignored: vifs stay where they are.
    /// Returns the time from which the new policy holds.
    ///
    /// # Errors
    /// A policy that `start` would refuse, or one with other vifs or flow classes. The current policy then stays.
    pub fn adjust(&mut self, to: &GuardStart) -> Result<Nanos, GuardError> {
        checked(to)?;
        alike(&self.start, to)?;
        let at_ns = self.shared.adjusted(to.clone()).ok_or_else(|| GuardError::new("the guard has ended"))?;
        self.start = to.clone();
        Ok(self.session.at(at_ns))
    }

    /// Ends the fallback process, because the hooks of this guard are about to be removed.
    pub fn end_fallback_process(&self) {
        self.fallback_process.lock().unwrap_or_else(PoisonError::into_inner).kill();
    }

    /// The reports since the last call.
    #[must_use]
    pub fn take_reports(&self) -> Vec<Report> {
        std::mem::take(&mut self.shared.state().reports)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.end();
        self.watch.end();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        if self.start.transient {
            // The tender has removed the hooks where they are, unless it has panicked.
            self.fallback_process.lock().unwrap_or_else(PoisonError::into_inner).kill();
            let _ = place::remove(&GuardRemove { id: Some(self.start.id.clone()), hooks: self.start.hooks.clone() });
        }
    }
}
