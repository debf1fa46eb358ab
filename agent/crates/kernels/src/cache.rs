//! `cache`: the circular linked list of VITS (section 4.2), slightly larger than a cache, one element per line. In sequential order
//! every access displaces the line that is needed last. In random order no prefetcher helps either.

use schemars::{schema_for, JsonSchema};
use serde::Deserialize;
use serde_json::json;

use crate::blocks::Pages;
use crate::cpu_cache::{self, CpuCache};
use crate::ring::{Access, Order, Plan, RingWalk, LINE_BYTES};
use crate::{
    Entry, Environment, Figure, Held, Holder, Implied, KernelError, KernelInfo, Latency, Needs, Resource, Roles, Settle, Source, Unit,
};

/// Size of the ring, relative to the cache that it exceeds.
const RING_PERCENT: usize = 125;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Params {
    /// The cache that the ring exceeds by a quarter; `L3` if neither this nor `bytes` is given.
    level: Option<Level>,
    /// Size of the ring itself, instead of `level`.
    #[schemars(range(min = 128, max = 1_099_511_627_776_u64))]
    bytes: Option<usize>,
    /// Order of the elements.
    order: Order,
    /// Action per element.
    visit: Access,
    /// Number of independent chains that walk at once: 1, 2, 4, 8 or 16. One waits for each access; many keep the cache busy.
    #[schemars(extend("enum" = [1, 2, 4, 8, 16]))]
    chains: usize,
    /// Request transparent huge pages.
    huge_pages: bool,
}

impl Default for Params {
    fn default() -> Self {
        Self { level: None, bytes: None, order: Order::Sequential, visit: Access::Read, chains: 1, huge_pages: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
enum Level {
    L1,
    L2,
    L3,
}

impl Level {
    fn number(self) -> u8 {
        match self {
            Self::L1 => 1,
            Self::L2 => 2,
            Self::L3 => 3,
        }
    }
}

fn plan(params: &Params, environment: &Environment) -> Result<Plan, KernelError> {
    let (bytes, cache) = match (params.bytes, params.level) {
        (Some(bytes), Some(level)) => return Err(both(bytes, level)),
        (Some(bytes), None) => (bytes, None),
        (None, level) => {
            let cache = largest(level.unwrap_or(Level::L3), environment)?;
            (cache.bytes * RING_PERCENT / 100, Some(cache))
        }
    };
    let mut facts = crate::Params::new();
    facts.insert("cache_bytes".into(), json!(cache.map(|cache| cache.bytes)));
    facts.insert("cache_level".into(), json!(cache.map(|cache| cache.level)));
    Ok(Plan {
        bytes,
        line_bytes: cache.and_then(|cache| cache.line_bytes).unwrap_or(LINE_BYTES),
        order: params.order,
        chains: params.chains,
        visit: params.visit,
        pages: Pages::from_parameter(params.huge_pages),
        facts,
    })
}

fn largest(level: Level, environment: &Environment) -> Result<CpuCache, KernelError> {
    let folder = environment.root.join("sys/devices/system/cpu/cpu*/cache");
    let why = format!("has an unknown size, {} has no data cache of it; give bytes instead", folder.display());
    cpu_cache::of_level(&environment.root, level.number()).ok_or_else(|| KernelError::Parameter {
        key: "level",
        value: format!("{level:?}"),
        why,
    })
}

fn both(bytes: usize, level: Level) -> KernelError {
    KernelError::Parameter { key: "bytes", value: bytes.to_string(), why: format!("contradicts level {level:?}; give one of them") }
}

pub(crate) const ENTRY: Entry = Entry {
    name: "cache",
    info: || KernelInfo {
        name: "cache",
        resource: Resource::Cache,
        summary: "walks a circular linked list a bit larger than a cache",
        doing: "cache-walking",
        loses: None,
        unit: Unit::Accesses,
        figure: Figure::PerOperation { label: "ns per access" },
        also: None,
        latency: Latency::Step("a walk of 2048 to 16384 accesses, the same number each time"),
        roles: Roles::Both,
        // Rise and release each take one round of a ring. On the way in it is our own: 640 Ki lines of a 40 MiB ring at 80 ns each
        // without prefetching. On the way out it is the neighbour's, whose lines were displaced. Private caches take microseconds.
        settle: Settle { rise_ns: 5_000_000, release_ns: 1_000_000 },
        needs: Needs {
            implied: &[Implied { parameter: "bytes", from: Source::Cache { level: "level", otherwise: 3, percent: RING_PERCENT as u64 } }],
            memory: &[Held { by: Holder::EachThread, times: 1, parameters: &["bytes"] }],
            ..Needs::NOTHING
        },
        warnings: &[],
        params: schema_for!(Params),
    },
    build: |params, environment| {
        let params: Params = serde_json::from_value(params.clone().into())?;
        Ok(Box::new(RingWalk::build(plan(&params, environment)?, environment)?))
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu_cache::testing::root;
    use crate::testing::{environment, parsed, Latencies};

    fn on(root: &tempfile::TempDir) -> Environment {
        Environment { root: root.path().into(), ..environment() }
    }

    fn error(json: &str, environment: &Environment) -> String {
        (ENTRY.build)(&parsed(json), environment).map(drop).expect_err(json).to_string()
    }

    #[test]
    fn the_ring_is_a_quarter_larger_than_the_cache_of_the_host() {
        let root = root(&[(0, 1, "Data", "32K"), (0, 2, "Unified", "1024K")]);
        for (level, bytes) in [("L1", 40 << 10), ("L2", 1280 << 10)] {
            let kernel = (ENTRY.build)(&parsed(&format!(r#"{{"level": "{level}"}}"#)), &on(&root)).expect("known caches");
            assert_eq!(kernel.facts()["ring_bytes"], json!(bytes));
            assert_eq!(kernel.facts()["elements"], json!(bytes / 64));
        }
    }

    #[test]
    fn a_level_that_the_host_does_not_report_is_refused_with_the_remedy() {
        let root = root(&[(0, 1, "Data", "32K")]);
        for json in ["{}", r#"{"level": "L3"}"#] {
            let error = error(json, &on(&root));
            assert!(error.starts_with("parameter level: L3 has an unknown size") && error.ends_with("give bytes instead"), "{error}");
        }
    }

    #[test]
    fn bytes_need_no_known_cache() {
        let kernel = (ENTRY.build)(&parsed(r#"{"bytes": 65536, "order": "random"}"#), &on(&root(&[]))).expect("bytes are enough");
        assert_eq!((&kernel.facts()["ring_bytes"], &kernel.facts()["cache_bytes"]), (&json!(65536), &json!(null)));
    }

    #[test]
    fn wrong_parameters_are_refused_by_name() {
        for (json, why) in [
            (r#"{"bytes": 65536, "level": "L1"}"#, "contradicts level L1"),
            (r#"{"bytes": 64}"#, "out of range"),
            (r#"{"bytes": 65536, "chains": 5}"#, "is not supported"),
            (r#"{"bytes": 65536, "order": "backwards"}"#, "unknown variant `backwards`"),
            (r#"{"level": "L4"}"#, "unknown variant `L4`"),
        ] {
            let error = error(json, &environment());
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_step_counts_the_accesses_of_all_chains() {
        for chains in [1, 16] {
            let json = format!(r#"{{"bytes": 65536, "chains": {chains}, "visit": "write"}}"#);
            let mut kernel = (ENTRY.build)(&parsed(&json), &environment()).expect("a small ring");
            let work = kernel.step(&mut Latencies::default()).expect("memory does not fail");
            assert_eq!(json!(work as u64), kernel.facts()["accesses_per_step"]);
        }
    }
}
