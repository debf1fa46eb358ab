//! One virtual user: a small record of where it is in its script. Deliberately not here: moving it on, which `engine` does.

use std::sync::Arc;

use partywall_clock::Nanos;
use rustls::ClientConfig;

use crate::cookie::Jar;
use crate::feeder::Places;
use crate::pacing::Arrival;
use crate::program::{Kind, Op};
use crate::record::Moments;

/// Which list of operations a user is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Init,
    Actions,
    End,
}

/// What a user is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Not there: before it comes, and after it left.
    Away,
    /// Between iterations of the open model.
    Free,
    /// Waits for a time.
    Waiting,
    /// Waits for a response.
    Asking,
    /// Waits for a compression.
    Compressing,
    /// Waits for the load to be switched on again.
    Held,
}

/// Steps that are timed together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transaction {
    pub label: u32,
    pub moments: Moments,
    pub thought_ns: Nanos,
    pub good: bool,
}

/// A request on its way, beyond its moments.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    pub request: u32,
    pub hops: u32,
    pub deadline_ns: Nanos,
    /// Where a redirect led; the request's own place and target if none.
    pub detour: Option<Box<Detour>>,
}

/// Where a redirect led.
#[derive(Clone, Debug)]
pub(crate) struct Detour {
    pub place: u16,
    pub target: String,
    /// The method became GET, and the body is gone.
    pub plain_get: bool,
}

/// A virtual user.
pub(crate) struct User {
    pub number: u64,
    pub kind: u16,
    pub part: Part,
    pub doing: Doing,
    pub leaving: bool,
    /// What it comes again for as soon as it has left.
    pub next: Option<Arrival>,
    /// Whether its next request has a time to leave at, rather than following at once upon a response.
    pub timed: bool,
    /// When its deadline is looked at next; a time that never comes if it is not. There is an entry in the heap for it.
    pub armed_ns: Nanos,
    pub at: u32,
    /// Changes with all that is waited for, so that what comes too late is known.
    pub epoch: u32,
    pub iteration: u64,
    pub iteration_due_ns: Nanos,
    /// Since when it could have gone on.
    pub free_ns: Nanos,
    pub moments: Moments,
    pub asked: Asked,
    pub links: Vec<(u16, u64)>,
    pub loops: Vec<u32>,
    pub transactions: Vec<Transaction>,
    pub personal: Option<Box<Personal>>,
    pub chance: fastrand::Rng,
}

/// What only users have who use variables, cookies, TLS or feeders of their own.
#[derive(Default)]
pub(crate) struct Personal {
    pub variables: Vec<Option<Box<str>>>,
    pub jar: Jar,
    pub places: Places,
    pub tls: Option<Arc<ClientConfig>>,
}

impl User {
    pub(crate) fn new(number: u64, kind: u16, seed: u64) -> Self {
        Self {
            number,
            kind,
            part: Part::Init,
            doing: Doing::Away,
            leaving: false,
            next: None,
            timed: false,
            armed_ns: Nanos::MAX,
            at: 0,
            epoch: 0,
            iteration: 0,
            iteration_due_ns: 0,
            free_ns: 0,
            moments: Moments::default(),
            asked: Asked::default(),
            links: Vec::new(),
            loops: Vec::new(),
            transactions: Vec::new(),
            personal: None,
            chance: fastrand::Rng::with_seed(seed),
        }
    }

    pub(crate) fn ops<'k>(&self, kind: &'k Kind) -> &'k [Op] {
        match self.part {
            Part::Init => &kind.init,
            Part::Actions => &kind.actions,
            Part::End => &kind.end,
        }
    }

    /// Goes to the beginning of a part.
    pub(crate) fn enter(&mut self, part: Part) {
        self.part = part;
        self.at = 0;
        self.loops.clear();
    }

    /// The value of a variable; empty if it has none yet.
    pub(crate) fn value(&self, number: u16) -> &str {
        let variables = self.personal.as_ref().map_or(&[][..], |personal| &personal.variables);
        variables.get(usize::from(number)).and_then(Option::as_deref).unwrap_or_default()
    }

    pub(crate) fn set(&mut self, number: u16, value: Box<str>) {
        let personal = self.personal.get_or_insert_default();
        let at = usize::from(number);
        if personal.variables.len() <= at {
            personal.variables.resize(at + 1, None);
        }
        personal.variables[at] = Some(value);
    }
}
