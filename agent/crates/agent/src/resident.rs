//! Residents: activities that continue after the request that started them was answered, by id, with one lock for each kind. A
//! request for an unknown id gets an error that names it. A slow kind does not delay the others. What residents do is implemented
//! elsewhere.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

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

    /// Starts it.
    fn start(start: &Self::Start) -> Result<(Self, Self::Started), Fault>;

    /// Pushes the events since the last call.
    fn drain(&self, id: &str, sink: &mut dyn Sink);

    /// Why it ended on its own, if it did.
    fn ended(&mut self) -> Option<String> {
        None
    }

    /// Ends it, and then pushes the remaining events, because it may produce some as it ends.
    fn stop(self, id: &str, sink: &mut dyn Sink) -> Self::Stopped;
}

/// The number of residents of all kinds. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Count(Arc<(Mutex<usize>, Condvar)>);

impl Count {
    fn change(&self, by: isize) {
        let mut count = self.0 .0.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.saturating_add_signed(by);
        drop(count);
        self.0 .1.notify_all();
    }

    /// Blocks while there are none.
    pub(crate) fn wait_for_any(&self) {
        let count = self.0 .0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.0 .1.wait_while(count, |count| *count == 0).unwrap_or_else(PoisonError::into_inner));
    }
}

/// All residents of one kind.
pub(crate) struct Residents<T> {
    by_id: Mutex<BTreeMap<String, T>>,
    count: Count,
}

impl<T: Resident> Residents<T> {
    pub(crate) fn new(count: &Count) -> Self {
        Self { by_id: Mutex::default(), count: count.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, T>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts one. The others are not locked meanwhile, because a start can be slow.
    pub(crate) fn start(&self, id: &str, start: &T::Start) -> Result<T::Started, Fault> {
        if self.lock().contains_key(id) {
            return Err(Fault::passing(format_args!("{} {id:?} is already running", T::KIND)));
        }
        let (resident, started) = T::start(start)?;
        self.lock().insert(id.into(), resident);
        self.count.change(1);
        Ok(started)
    }

    /// Calls `act` with one of them. Errors contain its name.
    pub(crate) fn with<R>(&self, id: &str, act: impl FnOnce(&mut T) -> Result<R, Fault>) -> Result<R, Fault> {
        let mut by_id = self.lock();
        let resident = by_id.get_mut(id).ok_or_else(|| missing::<T>(id))?;
        act(resident).map_err(|fault| fault.about(format_args!("{} {id:?}", T::KIND)))
    }

    /// Ends one. It is removed first, so that no other thread drains it, and the events pushed here are its last.
    pub(crate) fn stop(&self, id: &str, sink: &mut dyn Sink) -> Result<T::Stopped, Fault> {
        let resident = self.lock().remove(id).ok_or_else(|| missing::<T>(id))?;
        self.count.change(-1);
        Ok(resident.stop(id, sink))
    }

    /// Pushes the events of all, and removes those that have ended. They stay locked meanwhile, so that no event of a resident that
    /// is being stopped follows the answer to its stop.
    pub(crate) fn drain(&self, sink: &mut dyn Sink) {
        let mut by_id = self.lock();
        let over: Vec<(String, String)> = by_id.iter_mut().filter_map(|(id, resident)| Some((id.clone(), resident.ended()?))).collect();
        let over: Vec<_> = over.into_iter().filter_map(|(id, reason)| by_id.remove(&id).map(|resident| (id, resident, reason))).collect();
        by_id.iter().for_each(|(id, resident)| resident.drain(id, sink));
        for (id, resident, reason) in over {
            self.count.change(-1);
            resident.stop(&id, sink);
            sink.push(Event::Ended(Ended { id, reason }));
        }
    }

    /// Ends all. Their remaining events are lost.
    pub(crate) fn drop_all(&self) {
        let all = std::mem::take(&mut *self.lock());
        self.count.change(-all.len().cast_signed());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
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

        fn start(&over: &bool) -> Result<(Self, ()), Fault> {
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
        let clocks = Residents::<Clock>::new(&Count::default());
        clocks.start("a", &false).unwrap();
        assert_eq!(clocks.start("a", &false), Err(Fault::new(CODE_PASSING, "clock \"a\" is already running")));
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
        let clocks = Residents::<Clock>::new(&Count::default());
        clocks.start("a", &true).unwrap();
        clocks.start("b", &false).unwrap();
        let mut sink = All::default();
        clocks.drain(&mut sink);
        assert_eq!(sink.0, [sample("b", 1), sample("a", 2), Event::Ended(Ended { id: "a".into(), reason: "it struck".into() })]);
        assert!(clocks.with("a", |_| Ok(())).is_err());
        assert!(!clocks.is_empty());
        clocks.drop_all();
        assert!(clocks.is_empty());
    }

    /// Signals that it is being drained, and waits for permission to continue.
    struct Slow(Sender<()>, Mutex<Receiver<()>>);

    impl Resident for Slow {
        const KIND: &'static str = "slow one";
        type Start = Mutex<Option<Self>>;
        type Started = ();
        type Stopped = ();

        fn start(start: &Self::Start) -> Result<(Self, ()), Fault> {
            Ok((start.lock().unwrap().take().ok_or_else(|| Fault::failed("started already"))?, ()))
        }

        fn drain(&self, _: &str, _: &mut dyn Sink) {
            self.0.send(()).unwrap();
            self.1.lock().unwrap().recv().unwrap();
        }

        fn stop(self, _: &str, _: &mut dyn Sink) {}
    }

    #[test]
    fn a_kind_that_is_slow_holds_up_no_other() {
        let count = Count::default();
        let slow = Arc::new(Residents::<Slow>::new(&count));
        let clocks = Residents::<Clock>::new(&count);
        let ((says, said), (go, going)) = (channel(), channel());
        slow.start("s", &Mutex::new(Some(Slow(says, Mutex::new(going))))).unwrap();
        let drained = slow.clone();
        let draining = thread::spawn(move || drained.drain(&mut All::default()));
        said.recv().unwrap();
        // While it is being drained, another kind goes through its whole life cycle.
        clocks.start("a", &false).unwrap();
        let mut sink = All::default();
        clocks.drain(&mut sink);
        clocks.stop("a", &mut sink).unwrap();
        assert_eq!(sink.0.len(), 2);
        go.send(()).unwrap();
        draining.join().unwrap();
    }

    #[test]
    fn who_waits_for_any_is_woken_by_the_first() {
        let count = Count::default();
        let clocks = Arc::new(Residents::<Clock>::new(&count));
        let waiting = {
            let count = count.clone();
            thread::spawn(move || count.wait_for_any())
        };
        clocks.start("a", &false).unwrap();
        waiting.join().unwrap();
    }
}
