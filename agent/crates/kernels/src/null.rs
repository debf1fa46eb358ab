//! `null`: uses no resource. It wakes when it is switched on like any stressor, then sleeps: the A/A check of every block.

use partywall_clock as clock;
use schemars::{schema_for, JsonSchema};
use serde::Deserialize;

use crate::{Entry, Figure, Kernel, KernelError, KernelInfo, Latency, Needs, Resource, Roles, Settle, Sink, Unit};

/// Takes no parameters.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {}

struct Null;

impl Kernel for Null {
    fn step(&mut self, _: &mut dyn Sink) -> Result<f64, KernelError> {
        const NAP_NS: u64 = 50_000_000;
        let start = clock::monotonic();
        clock::sleep_until(start + NAP_NS);
        Ok((clock::monotonic() - start) as f64 / 1e9)
    }
}

pub(crate) const ENTRY: Entry = Entry {
    name: "null",
    info: || KernelInfo {
        name: "null",
        resource: Resource::None,
        summary: "presses on nothing: the A/A check",
        doing: "idling",
        loses: None,
        unit: Unit::Seconds,
        figure: Figure::Rate { label: "s/s", divisor: 1.0 },
        also: None,
        latency: Latency::Step("a nap of 50 ms"),
        roles: Roles::Stressor,
        settle: Settle { rise_ns: 0, release_ns: 0 },
        needs: Needs::NOTHING,
        warnings: &[],
        params: schema_for!(Params),
    },
    build: |params, _| {
        let Params {} = serde_json::from_value(params.clone().into())?;
        Ok(Box::new(Null))
    },
};
