//! `memory-latency`: the walk of `cache` through a ring far larger than the last cache. So it times memory accesses, and in random
//! order over small pages also address translation.

use schemars::{schema_for, JsonSchema};
use serde::Deserialize;
use serde_json::json;

use crate::blocks::Pages;
use crate::cpu_cache;
use crate::ring::{Access, Order, Plan, RingWalk, LINE_BYTES};
use crate::{Entry, Environment, Figure, Held, Holder, Implied, KernelInfo, Latency, Needs, Resource, Roles, Settle, Source, Unit};

const BYTES_LEAST: usize = 256 << 20;
/// Size of the ring in multiples of the last cache.
const CACHES: usize = 4;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Params {
    /// Size of the ring. Default: four times the last cache, at least 256 MiB and at most `bound_bytes`.
    #[schemars(range(min = 128, max = 1_099_511_627_776_u64))]
    bytes: Option<usize>,
    /// Maximum default size of the ring.
    #[schemars(range(min = 128, max = 1_099_511_627_776_u64))]
    bound_bytes: usize,
    /// Order of the elements.
    order: Order,
    /// Request transparent huge pages, which excludes address translation from the result.
    huge_pages: bool,
}

impl Default for Params {
    fn default() -> Self {
        Self { bytes: None, bound_bytes: 1 << 30, order: Order::Random, huge_pages: false }
    }
}

fn plan(params: &Params, environment: &Environment) -> Plan {
    let cache = cpu_cache::last(&environment.root);
    let far = cache.map_or(BYTES_LEAST, |cache| BYTES_LEAST.max(CACHES * cache.bytes));
    let mut facts = crate::Params::new();
    facts.insert("last_cache_bytes".into(), json!(cache.map(|cache| cache.bytes)));
    Plan {
        bytes: params.bytes.unwrap_or(far.min(params.bound_bytes)),
        line_bytes: cache.and_then(|cache| cache.line_bytes).unwrap_or(LINE_BYTES),
        order: params.order,
        chains: 1,
        visit: Access::Read,
        pages: Pages::from_parameter(params.huge_pages),
        facts,
    }
}

pub(crate) const ENTRY: Entry = Entry {
    name: "memory-latency",
    info: || KernelInfo {
        name: "memory-latency",
        resource: Resource::MemoryBandwidth,
        summary: "walks a linked list far larger than the last cache",
        doing: "memory-walking",
        loses: Some("memory access speed"),
        unit: Unit::Accesses,
        figure: Figure::PerOperation { label: "ns per access" },
        also: None,
        latency: Latency::Step("a walk of 2048 accesses in random order, of 16384 in sequential"),
        roles: Roles::Both,
        // As a neighbour it displaces a line every 100 ns: a last cache of 32 MiB (512 Ki lines) in some 50 ms. After the end the neighbour
        // fetches its lines again at the same rate.
        settle: Settle { rise_ns: 5_000_000, release_ns: 1_000_000 },
        needs: Needs {
            implied: &[Implied {
                parameter: "bytes",
                from: Source::LargestCache { percent: 100 * CACHES as u64, least: BYTES_LEAST as u64, most: "bound_bytes" },
            }],
            memory: &[Held { by: Holder::EachThread, times: 1, parameters: &["bytes"] }],
            ..Needs::NOTHING
        },
        warnings: &[],
        params: schema_for!(Params),
    },
    build: |params, environment| {
        let params: Params = serde_json::from_value(params.clone().into())?;
        Ok(Box::new(RingWalk::build(plan(&params, environment), environment)?))
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu_cache::testing::root;
    use crate::testing::{environment, parsed, Latencies};

    fn default_bytes(last_cache: &str, bound_bytes: usize) -> usize {
        let root = root(&[(0, 3, "Unified", last_cache)]);
        let environment = Environment { root: root.path().into(), ..environment() };
        plan(&Params { bound_bytes, ..Params::default() }, &environment).bytes
    }

    #[test]
    fn the_ring_is_far_larger_than_the_last_cache_within_its_bound() {
        assert_eq!(default_bytes("8192K", 1 << 30), 256 << 20);
        assert_eq!(default_bytes("98304K", 1 << 30), 384 << 20);
        assert_eq!(default_bytes("786432K", 1 << 30), 1 << 30);
        assert_eq!(default_bytes("8192K", 64 << 20), 64 << 20);
    }

    #[test]
    fn a_step_counts_its_accesses_and_facts_describe_the_ring() {
        let mut kernel = (ENTRY.build)(&parsed(r#"{"bytes": 1048576}"#), &environment()).expect("a small ring");
        let work = kernel.step(&mut Latencies::default()).expect("memory does not fail");
        let facts = kernel.facts();
        assert_eq!(facts["accesses_per_step"], json!(work as u64));
        assert_eq!(facts["ring_bytes"], json!(1 << 20));
        assert_eq!(facts["transparent_huge_pages"]["asked"], json!(false));
    }

    #[test]
    fn a_ring_of_less_than_two_elements_is_refused() {
        let error = (ENTRY.build)(&parsed(r#"{"bytes": 100}"#), &environment()).map(drop).expect_err("too small").to_string();
        assert!(error.starts_with("parameter bytes: 100 is out of range"), "{error}");
    }
}
