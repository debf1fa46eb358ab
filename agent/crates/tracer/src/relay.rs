//! Hops for a tracer elsewhere, in a guest or any place with its own agent. Records are passed on unchanged.

use std::sync::{Arc, Mutex, PoisonError};

use partywall_clock::SessionClock;

use crate::engine::HopLoss;
use crate::error::TraceError;
use crate::hooks::Hooks;
use crate::hop::Settings;
use crate::record::{Raw, Tuple};
use crate::tracer::{losses, FLOWS_REPORTED_MAX, SLACK_NS};

/// A relay's records since the last call.
#[derive(Debug, Default)]
pub struct Batch {
    /// In order of time, by the session's clock.
    pub records: Vec<Raw>,
    /// All records before this time have been reported.
    pub told_ns: u64,
    /// By hop, since the start.
    pub hops: Vec<HopLoss>,
    /// Newly seen flows.
    pub flows: Vec<(u64, Tuple)>,
}

/// Hooks whose records are aligned elsewhere.
pub struct Relay(Arc<Mutex<State>>);

struct State {
    hooks: Hooks,
    clock: SessionClock,
    hops: usize,
    reported: std::collections::HashSet<u64>,
}

impl Relay {
    /// Attaches hooks to the path of `settings`, under `name`. Records get times of `clock`.
    ///
    /// # Errors
    ///
    /// [`TraceError`].
    pub fn start(settings: &Settings, name: &str, clock: &SessionClock) -> Result<Self, TraceError> {
        let hooks = Hooks::new(settings, name)?;
        hooks.rings.sample_below(crate::budget::ALL);
        let (hops, reported) = (settings.hops.len(), std::collections::HashSet::new());
        Ok(Self(Arc::new(Mutex::new(State { hooks, clock: clock.clone(), hops, reported }))))
    }

    /// The cost of one record in the kernel of its host, if it could be measured.
    #[must_use]
    pub fn record_ns(&self) -> Option<u32> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.hooks.price.map(|price| price.record_ns as u32)
    }

    /// Takes the available records.
    #[must_use]
    pub fn take(&self) -> Batch {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let State { hooks, clock, .. } = &mut *state;
        let told_ns = clock.now().saturating_sub(SLACK_NS);
        let mut records = Vec::new();
        for cpu in 0..hooks.rings.cpus() {
            hooks.rings.drain(cpu, |raw| records.push(raw.by(clock)));
        }
        records.sort_by_key(Raw::time_ns);
        let mut new = Vec::new();
        for flow in records.iter().map(Raw::flow) {
            if state.reported.len() < FLOWS_REPORTED_MAX && state.reported.insert(flow) {
                new.push(flow);
            }
        }
        let flows = new.into_iter().filter_map(|flow| Some((flow, state.hooks.tuple(flow)?))).collect();
        Batch { records, told_ns, hops: losses(&state.hooks, state.hops), flows }
    }

    /// Records only flows whose hash's upper half is below this limit from now on.
    pub fn sample_below(&self, below: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).hooks.rings.sample_below(below);
    }
}
