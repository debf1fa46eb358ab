//! `syscall`: repeats the cheapest system calls. It uses none that the vDSO answers without entering the kernel.

use partywall_sys::syscall::enter_kernel;
use schemars::{schema_for, JsonSchema};
use serde::Deserialize;

use crate::{Entry, Figure, Kernel, KernelError, KernelInfo, Latency, Needs, Resource, Roles, Settle, Sink, Unit};

const CALLS: u32 = 256;

/// Takes no parameters.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {}

struct Syscall;

impl Kernel for Syscall {
    fn step(&mut self, _: &mut dyn Sink) -> Result<f64, KernelError> {
        for _ in 0..CALLS {
            enter_kernel();
        }
        Ok(f64::from(CALLS))
    }
}

pub(crate) const ENTRY: Entry = Entry {
    name: "syscall",
    info: || KernelInfo {
        name: "syscall",
        resource: Resource::Kernel,
        summary: "enters the kernel and leaves it, as often as it can",
        doing: "system-calling",
        loses: None,
        unit: Unit::Operations,
        figure: Figure::PerOperation { label: "ns per call" },
        also: None,
        latency: Latency::Step("256 system calls"),
        roles: Roles::Both,
        // It only uses a processor and its predictors.
        settle: Settle { rise_ns: 100_000, release_ns: 1_000_000 },
        needs: Needs::NOTHING,
        warnings: &[],
        params: schema_for!(Params),
    },
    build: |params, _| {
        let Params {} = serde_json::from_value(params.clone().into())?;
        Ok(Box::new(Syscall))
    },
};

#[cfg(test)]
mod tests {
    use crate::testing::{build, error, steps, Latencies};
    use serde_json::json;

    #[test]
    fn a_step_counts_its_calls_and_takes_time_for_each() {
        let before = partywall_clock::thread_cpu();
        let work = steps(build("syscall", json!({})).as_mut(), 2000, &mut Latencies::default());
        assert!((work - 512_000.0).abs() < 0.5);
        // No processor enters and leaves a kernel within 20 ns, so omitted calls would be detected.
        assert!(partywall_clock::thread_cpu() - before > 512_000 * 20);
    }

    #[test]
    fn it_has_no_parameters() {
        assert!(error("syscall", json!({ "calls": 5 })).contains("unknown field `calls`"));
    }
}
