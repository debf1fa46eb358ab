//! Residents: activities that continue after the request that started them was answered, by id, with one lock for each. A request
//! for an unknown id gets an error that names it. A slow request to one does not delay the events of the others. What residents do is
//! implemented elsewhere.

use std::collections::btree_map::Entry::{Occupied, Vacant};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;

use partywall_clock::SessionClock;
use partywall_wire::{Ended, Event, Fault};

/// The destination of a resident's events.
pub(crate) trait Sink {
    /// Takes an event, or counts it as dropped.
    fn push(&mut self, event: Event);

    /// True while events are being dropped. A resident that can store events itself, and counts its own losses, waits.
    fn is_full(&self) -> bool;
}

/// An activity that continues after its answer. Dropping it ends it too, and its remaining events are lost.
pub(crate) trait Resident: Sized + Send {
    /// Its name in messages.
    const KIND: &'static str;
    /// The parameters of its start.
    type Start;
    /// The result of its start.
    type Started;
    /// The result of its stop.
    type Stopped;

    /// Starts it. Its schedule and its events are in the time of `clock`.
    fn start(start: &Self::Start, clock: &SessionClock) -> Result<(Self, Self::Started), Fault>;

    /// Pushes the events since the last call.
    fn drain(&self, id: &str, sink: &mut dyn Sink);

    /// Why it ended on its own, if it did.
    fn ended(&mut self) -> Option<String> {
        None
    }

    /// Ends it, and then pushes the remaining events, because it may produce some as it ends.
    fn stop(self, id: &str, sink: &mut dyn Sink) -> Self::Stopped;
}

/// Why a resident has ended whose thread runs until it is stopped.
pub(crate) fn died(thread: &JoinHandle<()>) -> Option<String> {
    let name = || thread.thread().name().unwrap_or("without a name").to_owned();
    thread.is_finished().then(|| format!("its thread {} panicked, which is a bug", name()))
}

/// What runs or starts, by kind. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Running(Arc<(Mutex<BTreeMap<&'static str, usize>>, Condvar)>);

/// A place among what runs, until it is dropped.
struct RunningOne {
    running: Running,
    kind: &'static str,
}

impl Running {
    fn by_kind(&self) -> MutexGuard<'_, BTreeMap<&'static str, usize>> {
        self.0 .0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, kind: &'static str) -> RunningOne {
        *self.by_kind().entry(kind).or_default() += 1;
        self.0 .1.notify_all();
        RunningOne { running: self.clone(), kind }
    }

    /// Blocks while nothing runs.
    pub(crate) fn wait_for_any(&self) {
        drop(self.0 .1.wait_while(self.by_kind(), |by_kind| by_kind.is_empty()).unwrap_or_else(PoisonError::into_inner));
    }

    /// Calls `act` if nothing runs, and lets nothing start meanwhile. Otherwise returns the kinds of what runs.
    pub(crate) fn while_none<R>(&self, act: impl FnOnce() -> R) -> Result<R, Vec<&'static str>> {
        let by_kind = self.by_kind();
        if by_kind.is_empty() {
            Ok(act())
        } else {
            Err(by_kind.keys().copied().collect())
        }
    }
}

impl Drop for RunningOne {
    fn drop(&mut self) {
        let mut by_kind = self.running.by_kind();
        let count = by_kind.entry(self.kind).or_default();
        *count = count.saturating_sub(1);
        if *count == 0 {
            by_kind.remove(self.kind);
        }
    }
}

/// One resident, with its own lock. None while it starts and after it has ended.
struct Entry<T> {
    resident: Mutex<Option<T>>,
    _running: RunningOne,
}

impl<T> Entry<T> {
    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.resident.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None while a request uses it.
    fn try_lock(&self) -> Option<MutexGuard<'_, Option<T>>> {
        match self.resident.try_lock() {
            Ok(resident) => Some(resident),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// All residents of one kind. The list is only locked to look something up, and never while a resident works.
pub(crate) struct Residents<T> {
    by_id: Mutex<BTreeMap<String, Arc<Entry<T>>>>,
    running: Running,
}

impl<T: Resident> Residents<T> {
    pub(crate) fn new(running: &Running) -> Self {
        Self { by_id: Mutex::default(), running: running.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Entry<T>>>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes an entry, unless another one has its ID by now.
    fn forget(&self, id: &str, entry: &Arc<Entry<T>>) {
        let mut by_id = self.lock();
        if by_id.get(id).is_some_and(|held| Arc::ptr_eq(held, entry)) {
            by_id.remove(id);
        }
    }

    /// Starts one. The others are not locked meanwhile, because a start can be slow.
    pub(crate) fn start(&self, id: &str, start: &T::Start, clock: &SessionClock) -> Result<T::Started, Fault> {
        let entry = Arc::new(Entry { resident: Mutex::new(None), _running: self.running.enter(T::KIND) });
        match self.lock().entry(id.into()) {
            Occupied(_) => return Err(Fault::passing(format_args!("{} {id:?} is already running", T::KIND))),
            Vacant(place) => place.insert(entry.clone()),
        };
        let (resident, started) = T::start(start, clock).inspect_err(|_| self.forget(id, &entry))?;
        *entry.lock() = Some(resident);
        Ok(started)
    }

    /// Calls `act` with one of them, and delays no other. Errors contain its name.
    pub(crate) fn with<R>(&self, id: &str, act: impl FnOnce(&mut T) -> Result<R, Fault>) -> Result<R, Fault> {
        let entry = self.lock().get(id).cloned().ok_or_else(|| missing::<T>(id))?;
        let mut resident = entry.lock();
        let resident = resident.as_mut().ok_or_else(|| missing::<T>(id))?;
        act(resident).map_err(|fault| fault.about(format_args!("{} {id:?}", T::KIND)))
    }

    /// Ends one. It is removed first, so that no other thread drains it, and the events pushed here are its last.
    pub(crate) fn stop(&self, id: &str, sink: &mut dyn Sink) -> Result<T::Stopped, Fault> {
        let entry = self.lock().remove(id).ok_or_else(|| missing::<T>(id))?;
        let resident = entry.lock().take().ok_or_else(|| missing::<T>(id))?;
        Ok(resident.stop(id, sink))
    }

    /// Pushes the events of all, and removes those that have ended. One that a request uses keeps its events until the next call. Each
    /// is locked meanwhile, so that no event of a resident that is being stopped follows the answer to its stop.
    pub(crate) fn drain(&self, sink: &mut dyn Sink) {
        let entries: Vec<(String, Arc<Entry<T>>)> = self.lock().iter().map(|(id, entry)| (id.clone(), entry.clone())).collect();
        for (id, entry) in entries {
            let Some(mut resident) = entry.try_lock() else { continue };
            let Some(reason) = resident.as_mut().and_then(Resident::ended) else {
                resident.iter().for_each(|resident| resident.drain(&id, sink));
                continue;
            };
            self.forget(&id, &entry);
            if let Some(resident) = resident.take() {
                resident.stop(&id, sink);
            }
            sink.push(Event::Ended(Ended { id, reason }));
        }
    }

    /// Ends all. Their remaining events are lost.
    pub(crate) fn drop_all(&self) {
        let all = std::mem::take(&mut *self.lock());
        for entry in all.values() {
            drop(entry.lock().take());
        }
    }
}

/// It may have ended a moment ago.
fn missing<T: Resident>(id: &str) -> Fault {
    Fault::passing(format_args!("no {} {id:?} is running", T::KIND))
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_wire::CODE_PASSING;
    use std::sync::mpsc::{channel, Receiver, Sender};
    use std::thread;

    /// A sink that takes all events.
    #[derive(Default)]
    struct All(Vec<Event>);

    impl Sink for All {
        fn push(&mut self, event: Event) {
            self.0.push(event);
        }

        fn is_full(&self) -> bool {
            false
        }
    }

    /// Sends one sample when drained and another when stopped; ends on its own on request.
    struct Clock {
        over: bool,
    }

    fn sample(id: &str, at_ns: u64) -> Event {
        Event::Sample { id: id.into(), at_ns, until_ns: at_ns, values: Vec::new() }
    }

    impl Resident for Clock {
        const KIND: &'static str = "clock";
        type Start = bool;
        type Started = ();
        type Stopped = &'static str;

        fn start(&over: &bool, _: &SessionClock) -> Result<(Self, ()), Fault> {
            Ok((Self { over }, ()))
        }

        fn drain(&self, id: &str, sink: &mut dyn Sink) {
            sink.push(sample(id, 1));
        }

        fn ended(&mut self) -> Option<String> {
            self.over.then(|| "it struck".into())
        }

        fn stop(self, id: &str, sink: &mut dyn Sink) -> &'static str {
            sink.push(sample(id, 2));
            "stopped"
        }
    }

    #[test]
    fn each_is_started_drained_and_stopped_once() {
        let clocks = Residents::<Clock>::new(&Running::default());
        clocks.start("a", &false, &SessionClock::default()).unwrap();
        assert_eq!(clocks.start("a", &false, &SessionClock::default()), Err(Fault::new(CODE_PASSING, "clock \"a\" is already running")));
        let mut sink = All::default();
        clocks.drain(&mut sink);
        assert_eq!(clocks.stop("a", &mut sink), Ok("stopped"));
        assert_eq!(sink.0, [sample("a", 1), sample("a", 2)]);
        let missing = Fault::new(CODE_PASSING, "no clock \"a\" is running");
        assert_eq!(clocks.stop("a", &mut sink), Err(missing.clone()));
        assert_eq!(clocks.with("a", |_| Ok(())), Err(missing));
    }

    #[test]
    fn one_that_ended_by_itself_tells_its_last_before_its_end_and_is_gone() {
        let clocks = Residents::<Clock>::new(&Running::default());
        clocks.start("a", &true, &SessionClock::default()).unwrap();
        clocks.start("b", &false, &SessionClock::default()).unwrap();
        let mut sink = All::default();
        clocks.drain(&mut sink);
        assert_eq!(sink.0, [sample("a", 2), Event::Ended(Ended { id: "a".into(), reason: "it struck".into() }), sample("b", 1)]);
        assert!(clocks.with("a", |_| Ok(())).is_err());
        assert!(clocks.with("b", |_| Ok(())).is_ok());
        clocks.drop_all();
        assert!(clocks.with("b", |_| Ok(())).is_err());
    }

    #[test]
    fn a_request_that_takes_long_delays_no_events_but_those_of_its_own_resident() {
        let clocks = Arc::new(Residents::<Clock>::new(&Running::default()));
        for id in ["a", "b"] {
            clocks.start(id, &false, &SessionClock::default()).unwrap();
        }
        let ((says, said), (go, going)) = (channel::<()>(), channel::<()>());
        let asked = clocks.clone();
        let asking = thread::spawn(move || {
            asked.with("a", |_| {
                says.send(()).unwrap();
                going.recv().unwrap();
                Ok(())
            })
        });
        said.recv().unwrap();
        let mut sink = All::default();
        clocks.drain(&mut sink);
        assert_eq!(sink.0, [sample("b", 1)]);
        clocks.stop("b", &mut sink).unwrap();
        go.send(()).unwrap();
        asking.join().unwrap().unwrap();
        clocks.drain(&mut sink);
        assert_eq!(sink.0, [sample("b", 1), sample("b", 2), sample("a", 1)]);
    }

    /// Starts on permission.
    struct Starting;

    impl Resident for Starting {
        const KIND: &'static str = "slow one";
        type Start = (Sender<()>, Mutex<Receiver<Option<Self>>>);
        type Started = ();
        type Stopped = ();

        fn start((says, going): &Self::Start, _: &SessionClock) -> Result<(Self, ()), Fault> {
            says.send(()).unwrap();
            Ok((going.lock().unwrap().recv().unwrap().ok_or_else(|| Fault::failed("refused"))?, ()))
        }

        fn drain(&self, _: &str, _: &mut dyn Sink) {}

        fn stop(self, _: &str, _: &mut dyn Sink) {}
    }

    #[test]
    fn what_needs_that_nothing_runs_is_refused_from_the_first_start_to_the_last_stop() {
        let running = Running::default();
        let (clocks, starting) = (Residents::<Clock>::new(&running), Residents::<Starting>::new(&running));
        let clock = SessionClock::default();
        assert_eq!(running.while_none(|| 7), Ok(7));
        for outcome in [None, Some(Starting)] {
            let succeeds = outcome.is_some();
            let ((says, said), (go, going)) = (channel(), channel());
            thread::scope(|scope| {
                let start = scope.spawn(|| starting.start("s", &(says, Mutex::new(going)), &clock));
                said.recv().unwrap();
                assert_eq!(running.while_none(|| 7), Err(vec!["slow one"]), "while it starts");
                assert!(starting.with("s", |_| Ok(())).is_err());
                go.send(outcome).unwrap();
                assert_eq!(start.join().unwrap().is_ok(), succeeds);
            });
            assert_eq!(running.while_none(|| 7).is_ok(), !succeeds);
        }
        clocks.start("a", &false, &clock).unwrap();
        assert_eq!(running.while_none(|| 7), Err(vec!["clock", "slow one"]));
        starting.stop("s", &mut All::default()).unwrap();
        assert_eq!(running.while_none(|| 7), Err(vec!["clock"]));
        clocks.drop_all();
        assert_eq!(running.while_none(|| 7), Ok(7));
    }

    #[test]
    fn who_waits_for_any_is_woken_by_the_first() {
        let running = Running::default();
        let clocks = Arc::new(Residents::<Clock>::new(&running));
        let waiting = {
            let running = running.clone();
            thread::spawn(move || running.wait_for_any())
        };
        clocks.start("a", &false, &SessionClock::default()).unwrap();
        waiting.join().unwrap();
    }
}
