//! `process-creation`: creates a process that ends at once, waits for its end, and creates the next. It is bounded by construction:
//! one child per worker at a time, no child outlives a step, and the rate has a ceiling. It starts no programs.

use partywall_clock as clock;
use partywall_sys::child::{Nursery, Sharing};
use schemars::{schema_for, JsonSchema};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::pace::{Turn, Turns};
use crate::{Entry, Environment, Figure, Kernel, KernelError, KernelInfo, Latency, Needs, Resource, Roles, Settle, Sink, Unit};

const RATE_MAX: f64 = 1e6;
const NAP_NS: u64 = 10_000_000;

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum How {
    /// The child gets a copy of the page tables: the cost of `fork`.
    #[default]
    Fork,
    /// The child borrows the address space and its parent waits: the cost of `vfork` and `posix_spawn`.
    Vfork,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Params {
    /// How a child is created.
    how: How,
    /// Maximum children per second of all worker threads together.
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 1_000_000))]
    rate_max: f64,
}

impl Default for Params {
    fn default() -> Self {
        Self { how: How::Fork, rate_max: 50_000.0 }
    }
}

struct ProcessCreation {
    nursery: Nursery,
    pace: Turns,
    params: Params,
    children: u64,
}

impl Kernel for ProcessCreation {
    fn step(&mut self, sink: &mut dyn Sink) -> Result<f64, KernelError> {
        let start_ns = clock::monotonic();
        if let Turn::Wait(until) = self.pace.turn(start_ns, 1) {
            clock::sleep_until(until.min(start_ns + NAP_NS));
            return Ok(0.0);
        }
        let sharing = match self.params.how {
            How::Fork => Sharing::Nothing,
            How::Vfork => Sharing::Memory,
        };
        self.nursery.raise(sharing).map_err(KernelError::host("creating a child process"))?;
        sink.latency(clock::monotonic() - start_ns);
        self.children += 1;
        Ok(1.0)
    }

    fn facts(&self) -> crate::Params {
        let mut facts = crate::Params::new();
        facts.insert("how".into(), json!(self.params.how));
        facts.insert("rate_max".into(), json!(self.params.rate_max));
        facts.insert("children".into(), json!(self.children));
        facts
    }
}

fn build(params: &crate::Params, environment: &Environment) -> Result<Box<dyn Kernel>, KernelError> {
    let params: Params = serde_json::from_value(params.clone().into())?;
    if !(params.rate_max > 0.0 && params.rate_max <= RATE_MAX) {
        let why = format!("is out of range; give a number above 0, at most {RATE_MAX}");
        return Err(KernelError::Parameter { key: "rate_max", value: params.rate_max.to_string(), why });
    }
    let nursery = Nursery::new().map_err(KernelError::host("allocating a stack for children"))?;
    let pace = Turns::new(params.rate_max / f64::from(environment.threads.max(1)));
    Ok(Box::new(ProcessCreation { nursery, pace, params, children: 0 }))
}

pub(crate) const ENTRY: Entry = Entry {
    name: "process-creation",
    info: || KernelInfo {
        name: "process-creation",
        resource: Resource::Kernel,
        summary: "makes processes that end at once, one at a time",
        doing: "process-creating",
        loses: None,
        unit: Unit::Operations,
        figure: Figure::Rate { label: "processes/s", divisor: 1.0 },
        also: None,
        latency: Latency::Own("making one process and waiting for its end"),
        roles: Roles::Both,
        // The last structures of a process are freed some grace periods (RCU) after its end.
        settle: Settle { rise_ns: 2_000_000, release_ns: 10_000_000 },
        needs: Needs::NOTHING,
        warnings: &[],
        params: schema_for!(Params),
    },
    build,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{build, error, fact, steps, Latencies};

    #[test]
    fn children_are_made_counted_and_timed() {
        for how in ["fork", "vfork"] {
            let mut kernel = build("process-creation", json!({ "how": how, "rate_max": 1e6 }));
            let mut latencies = Latencies::default();
            let work = steps(kernel.as_mut(), 30, &mut latencies);
            assert!(work >= 1.0);
            assert_eq!((latencies.count(), fact(kernel.as_ref(), "children") as usize), (work as usize, work as usize));
        }
    }

    #[test]
    fn the_rate_has_a_ceiling() {
        let mut kernel = build("process-creation", json!({ "rate_max": 200.0 }));
        let start = clock::monotonic();
        let made = steps(kernel.as_mut(), 20, &mut Latencies::default());
        let most = (clock::monotonic() - start) as f64 / 1e9 * 200.0 + 1.0;
        assert!(made > 0.0 && made <= most, "{made} made, {most} were due");
    }

    #[test]
    fn wrong_parameters_are_named() {
        assert!(error("process-creation", json!({ "rate_max": 0 })).contains("parameter rate_max: 0 is out of range"));
        assert!(error("process-creation", json!({ "how": "exec" })).contains("unknown variant `exec`"));
    }
}
