//! Hops for a tracer elsewhere: in a guest, or in any place with an agent of its own. Records are handed on as they are.

use std::sync::{Arc, Mutex, PoisonError};

use partywall_clock as clock;

use crate::engine::HopLoss;
use crate::error::TraceError;
use crate::hooks::Hooks;
use crate::hop::Settings;
use crate::record::{Raw, Tuple};
use crate::tracer::{losses, FLOWS_TOLD_MAX, SLACK_NS};

/// What a relay saw since the last time.
#[derive(Debug, Default)]
pub struct Batch {
    /// In order of time, of this host's clock.
    pub records: Vec<Raw>,
    /// All before was told.
    pub told_ns: u64,
    /// By hop, since the start.
    pub hops: Vec<HopLoss>,
    /// Flows not told before.
    pub flows: Vec<(u64, Tuple)>,
}

/// Hooks whose records are taken by somebody else.
pub struct Relay(Arc<Mutex<State>>);

struct State {
    hooks: Hooks,
    hops: usize,
    told: std::collections::HashSet<u64>,
}

impl Relay {
    /// Hooks to the path of `settings`, under `name`.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn start(settings: &Settings, name: &str) -> Result<Self, TraceError> {
        let hooks = Hooks::new(settings, name)?;
        hooks.rings.sample_below(crate::budget::ALL);
        Ok(Self(Arc::new(Mutex::new(State { hooks, hops: settings.hops.len(), told: std::collections::HashSet::new() }))))
    }

    /// Takes what there is.
    #[must_use]
    pub fn take(&self) -> Batch {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told_ns = clock::now().saturating_sub(SLACK_NS);
        let mut records = Vec::new();
        for cpu in 0..state.hooks.rings.cpus() {
            state.hooks.rings.drain(cpu, |raw| records.push(raw));
        }
        records.sort_by_key(Raw::time_ns);
        let mut new = Vec::new();
        for flow in records.iter().map(Raw::flow) {
            if state.told.len() < FLOWS_TOLD_MAX && state.told.insert(flow) {
                new.push(flow);
            }
        }
        let flows = new.into_iter().filter_map(|flow| Some((flow, state.hooks.tuple(flow)?))).collect();
        Batch { records, told_ns, hops: losses(&state.hooks, state.hops), flows }
    }

    /// From now on only flows whose hash's upper half is below are recorded.
    pub fn sample_below(&self, below: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).hooks.rings.sample_below(below);
    }
}
