//! What the threads of a guard tell each other: changes, moves, policies and reports, and its end.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use partywall_bpf::{Change, Watch};
use partywall_clock::{self as clock, Nanos};
use partywall_wire::{GuardMove, GuardStart};

use super::Report;
use crate::change::{Changes, Rests};

/// Pause of the listener after an error of the kernel.
const LISTENER_FAILED_RESTS_NS: Nanos = 1_000_000_000;

#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    pub(super) changed: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) reports: Vec<Report>,
    changes: Changes,
    pub(super) moves: Vec<GuardMove>,
    pub(super) adjustment: Adjustment,
    /// Number of rounds so far.
    pub(super) rounds: u64,
    ended: bool,
    /// The thread that panicked.
    pub(super) died: Option<&'static str>,
}

/// A policy that replaces the current one.
#[derive(Default)]
pub(super) enum Adjustment {
    #[default]
    None,
    Wanted(Box<GuardStart>),
    /// It holds since this time.
    Made(Nanos),
}

impl Adjustment {
    fn is_wanted(&self) -> bool {
        matches!(self, Self::Wanted(_))
    }
}

/// Work that is due.
pub(super) struct Woken {
    pub(super) adjustment: Option<Box<GuardStart>>,
    pub(super) changes: Vec<Change>,
    pub(super) moves: Vec<GuardMove>,
    pub(super) rounds: u64,
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn end(&self) {
        self.state().ended = true;
        self.changed.notify_all();
    }

    /// Waits until `at_ns`. False if the guard ended first.
    pub(super) fn sleep_until(&self, at_ns: Nanos) -> bool {
        let left = Duration::from_nanos(at_ns.saturating_sub(clock::monotonic()));
        let waited = self.changed.wait_timeout_while(self.state(), left, |state| !state.ended);
        !waited.unwrap_or_else(PoisonError::into_inner).0.ended
    }

    /// Waits until `at_ns`, or until an earlier event: also a round beyond `seen`. None if the guard ended.
    pub(super) fn wait(&self, at_ns: Option<Nanos>, seen: u64) -> Option<Woken> {
        let left = at_ns.map_or(Duration::MAX, |at_ns| Duration::from_nanos(at_ns.saturating_sub(clock::monotonic())));
        let is_quiet = |state: &mut State| {
            !state.ended && state.rounds == seen && state.changes.is_empty() && state.moves.is_empty() && !state.adjustment.is_wanted()
        };
        let waited = self.changed.wait_timeout_while(self.state(), left, is_quiet);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let (changes, moves) = (state.changes.take().collect(), std::mem::take(&mut state.moves));
        let adjustment = match std::mem::take(&mut state.adjustment) {
            Adjustment::Wanted(start) => Some(start),
            other => {
                state.adjustment = other;
                None
            }
        };
        (!state.ended).then_some(Woken { adjustment, changes, moves, rounds: state.rounds })
    }

    /// Waits until the thread that tends the hooks has replaced the policy. None if the guard ended first.
    pub(super) fn adjusted(&self, start: GuardStart) -> Option<Nanos> {
        self.state().adjustment = Adjustment::Wanted(Box::new(start));
        self.changed.notify_all();
        let open = |state: &mut State| !state.ended && !matches!(state.adjustment, Adjustment::Made(_));
        let mut state = self.changed.wait_while(self.state(), open).unwrap_or_else(PoisonError::into_inner);
        match std::mem::take(&mut state.adjustment) {
            Adjustment::Made(at_ns) => Some(at_ns),
            _ => None,
        }
    }
}

/// Ends the guard with any of its threads, also on a panic: without rounds nothing is decided, and without checks the heartbeat must
/// stop too.
pub(super) struct Ends<'a> {
    pub(super) shared: &'a Shared,
    pub(super) watch: &'a Watch,
    pub(super) thread: &'static str,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.shared.state().died.get_or_insert(self.thread);
        }
        self.shared.end();
        self.watch.end();
    }
}

/// Forwards interface changes, so that a recreated interface is hooked before the next check.
pub(super) fn listen(watch: &Watch, shared: &Shared) {
    let mut rests = Rests::default();
    loop {
        let rests_ns = match watch.wait() {
            Ok(None) => return,
            Ok(Some(changes)) if changes.is_empty() => continue,
            Ok(Some(changes)) => {
                let mut state = shared.state();
                for change in changes {
                    state.changes.add(change);
                }
                rests.after_batch_ns(clock::monotonic())
            }
            // Until it succeeds again, the check every `check_ns` still finds all changes.
            Err(_) => LISTENER_FAILED_RESTS_NS,
        };
        shared.changed.notify_all();
        if rests_ns > 0 && !shared.sleep_until(clock::monotonic() + rests_ns) {
            return;
        }
    }
}
