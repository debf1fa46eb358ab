//! What goes on after the request that began it was answered, of one kind under one lock, by the id it was started with; who
//! asks for what is not there is told by name. A kind that is slow holds up no other. Deliberately not here: what it does.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use partywall_wire::{Ended, Event, Fault};

/// Where a resident pushes what it has to tell.
pub(crate) trait Sink {
    /// Takes an event, or counts it as dropped.
    fn push(&mut self, event: Event);

    /// Whether events are dropped at present: who can keep them elsewhere, and count what is lost there, waits.
    fn is_full(&self) -> bool;
}

/// What goes on after its answer. Dropping it ends it too, and what it had left is lost.
pub(crate) trait Resident: Sized + Send {
    /// What messages call it.
    const KIND: &'static str;
    /// What it is started with.
    type Start;
    /// What is answered to its start.
    type Started;
    /// What is answered to its stop.
    type Stopped;

    /// Starts it.
    fn start(start: &Self::Start) -> Result<(Self, Self::Started), Fault>;

    /// Pushes what came since the last time.
    fn drain(&self, id: &str, sink: &mut dyn Sink);

    /// Why it ended by itself, once it has.
    fn ended(&mut self) -> Option<String> {
        None
    }

    /// Ends it, and only then pushes what is left: it may write its last as it ends.
    fn stop(self, id: &str, sink: &mut dyn Sink) -> Self::Stopped;
}

/// How many residents there are, of all kinds; its clones are the same.
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

    /// Starts one. This takes as long as it does, so the others are not locked meanwhile.
    pub(crate) fn start(&self, id: &str, start: &T::Start) -> Result<T::Started, Fault> {
        if self.lock().contains_key(id) {
            return Err(Fault::passing(format_args!("{} {id:?} is running already", T::KIND)));
        }
        let (one, started) = T::start(start)?;
        self.lock().insert(id.into(), one);
        self.count.change(1);
        Ok(started)
    }

    /// Does something with one of them; what keeps it from that is told with its name.
    pub(crate) fn with<R>(&self, id: &str, act: impl FnOnce(&mut T) -> Result<R, Fault>) -> Result<R, Fault> {
        let mut by_id = self.lock();
        let one = by_id.get_mut(id).ok_or_else(|| missing::<T>(id))?;
        act(one).map_err(|fault| fault.about(format_args!("{} {id:?}", T::KIND)))
    }

    /// Ends one. It is taken out first, so that nobody else drains it, and what it pushes here is the last of it.
    pub(crate) fn stop(&self, id: &str, sink: &mut dyn Sink) -> Result<T::Stopped, Fault> {
        let one = self.lock().remove(id).ok_or_else(|| missing::<T>(id))?;
        self.count.change(-1);
        Ok(one.stop(id, sink))
    }

    /// Pushes what all have to tell, and ends those that ended by themselves. They stay locked meanwhile, so that nothing of
    /// one that is being stopped comes after the answer that says so.
    pub(crate) fn drain(&self, sink: &mut dyn Sink) {
        let mut by_id = self.lock();
        let over: Vec<(String, String)> = by_id.iter_mut().filter_map(|(id, one)| Some((id.clone(), one.ended()?))).collect();
        let over: Vec<_> = over.into_iter().filter_map(|(id, reason)| by_id.remove(&id).map(|one| (id, one, reason))).collect();
        by_id.iter().for_each(|(id, one)| one.drain(id, sink));
        for (id, one, reason) in over {
            self.count.change(-1);
            one.stop(&id, sink);
            sink.push(Event::Ended(Ended { id, reason }));
        }
    }

    /// Ends all; what they had left is lost.
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

    /// A sink that takes all.
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

    /// Says one sample when it is drained and another when it is stopped; ends by itself once told.
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
        assert_eq!(clocks.start("a", &false), Err(Fault::new(CODE_PASSING, "clock \"a\" is running already")));
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

    /// Says that it is being drained, and is until it is told to go on.
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
        // While it is drained, which ends only below, another kind goes through its whole life.
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
