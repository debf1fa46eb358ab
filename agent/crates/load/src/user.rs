//! One virtual user: a small record of its position in its script. `engine` advances it.

use std::sync::Arc;

use partywall_clock::Nanos;
use rustls::ClientConfig;

use crate::cookie::Jar;
use crate::feeder::Places;
use crate::link::LinkKey;
use crate::pacing::Arrival;
use crate::program::{Kind, Op, Request};
use crate::record::Moments;

/// The list of operations that a user carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Init,
    Actions,
    End,
}

/// State of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Absent: before it arrives, or after it left.
    Away,
    /// Between iterations of the open model.
    Free,
    /// Waits for a time.
    Waiting,
    /// Waits for a response.
    Asking,
    /// Waits for a compression.
    Compressing,
    /// Waits until the load is switched on again.
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

/// A pending request, except its times.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    pub request: u32,
    pub hops: u32,
    /// Addresses of the server at which connecting failed.
    pub tries: u32,
    /// It was sent once more, because the server had closed its kept connection.
    pub repeated: bool,
    pub deadline_ns: Nanos,
    /// Destination of a redirect. None for the request's own place and target.
    pub detour: Option<Box<Detour>>,
}

impl Pending {
    /// The method to send, which a redirect may have changed.
    pub(crate) fn method<'r>(&self, request: &'r Request) -> &'r str {
        if self.detour.as_ref().is_some_and(|detour| detour.plain_get) {
            "GET"
        } else {
            &request.method
        }
    }
}

/// Destination of a redirect.
#[derive(Clone, Debug)]
pub(crate) struct Detour {
    pub place: u16,
    pub target: String,
    /// The method changed to GET, without a body.
    pub plain_get: bool,
    /// The redirects led to another origin, even if they came back.
    pub elsewhere: bool,
}

/// A virtual user.
pub(crate) struct User {
    pub number: u64,
    pub kind: u16,
    pub part: Part,
    pub doing: Doing,
    pub leaving: bool,
    /// A step failed without which the rest of the part cannot be done. Only its pauses are carried out.
    pub skips: bool,
    /// Its next request is sent no earlier.
    pub rests_until_ns: Nanos,
    /// The arrival for which it returns as soon as it has left.
    pub next: Option<Arrival>,
    /// Whether its next request has a scheduled time, instead of following a response at once.
    pub timed: bool,
    /// Next check of its deadline, if there is an entry in the heap; otherwise a time that never occurs.
    pub armed_ns: Nanos,
    pub at: u32,
    /// Changes with each event that the user waits for, to detect obsolete events.
    pub epoch: u32,
    pub iteration: u64,
    pub iteration_due_ns: Nanos,
    /// Since when it could have continued.
    pub free_ns: Nanos,
    pub moments: Moments,
    pub pending: Pending,
    pub links: Vec<(u16, LinkKey)>,
    pub loops: Vec<u32>,
    pub transactions: Vec<Transaction>,
    pub personal: Option<Box<Personal>>,
    pub chance: fastrand::Rng,
}

/// State that only users with variables, cookies, TLS or their own feeders need.
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
            skips: false,
            rests_until_ns: 0,
            next: None,
            timed: false,
            armed_ns: Nanos::MAX,
            at: 0,
            epoch: 0,
            iteration: 0,
            iteration_due_ns: 0,
            free_ns: 0,
            moments: Moments::default(),
            pending: Pending::default(),
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

    /// Jumps to the start of a part.
    pub(crate) fn enter(&mut self, part: Part) {
        self.part = part;
        self.at = 0;
        self.skips = false;
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
