//! `memory-space`: allocates continuously (VITS, section 4.3), up to a limit that protects the host. Untouched memory, as in VITS,
//! uses up addresses and the time of memory management; touched memory uses up pages. At the limit it frees its memory while it
//! continues to allocate, and starts again.

use std::collections::VecDeque;

use partywall_sys::memory::Block;
use schemars::{schema_for, JsonSchema};
use serde::Deserialize;
use serde_json::json;

use crate::blocks::available;
use crate::limits::within;
use crate::{
    Entry, Environment, Figure, Held, Holder, Kernel, KernelError, KernelInfo, Latency, Needs, Resource, Roles, Settle, Sink, Unit,
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Params {
    /// Write to every page of allocated memory.
    touch: bool,
    /// Maximum memory of all worker threads together. Default: half of the memory available on the host and in the cgroup.
    #[schemars(range(min = 4_096, max = 1_099_511_627_776_u64))]
    bound_bytes: Option<u64>,
    /// Bytes of one allocation.
    #[schemars(range(min = 4_096, max = 67_108_864))]
    chunk_bytes: usize,
}

impl Default for Params {
    fn default() -> Self {
        Self { touch: false, bound_bytes: None, chunk_bytes: 256 << 10 }
    }
}

/// Divisor of the initially available memory. That part is left to others, even if they started later and used the rest.
const RESERVE: u64 = 8;
/// Chunks freed per allocated chunk in the emptying phase.
const FREED: usize = 8;
/// Untouched chunks in a step: a mapping alone takes about a microsecond.
const UNTOUCHED: usize = 32;
/// Touched bytes between two checks of the reserve; at a few GB/s some tens of milliseconds.
const LOOK_BYTES: u64 = 64 << 20;

enum Phase {
    Filling,
    Emptying,
}

struct MemorySpace {
    environment: Environment,
    touch: bool,
    chunk_bytes: usize,
    chunks_max: usize,
    reserve_bytes: u64,
    held: VecDeque<Block>,
    phase: Phase,
    unlooked_bytes: u64,
    rounds: u64,
}

impl MemorySpace {
    fn build(params: &Params, environment: &Environment) -> Result<Self, KernelError> {
        within("chunk_bytes", params.chunk_bytes, 4096..=64 << 20)?;
        let available = available(environment)?;
        let bound = bound(params.bound_bytes, available)?;
        let chunks_max = (bound / u64::from(environment.threads.max(1)) / params.chunk_bytes as u64) as usize;
        if chunks_max == 0 {
            let why = format!("leaves no chunk of {} bytes to each of {} workers; give more", params.chunk_bytes, environment.threads);
            return Err(KernelError::Parameter { key: "bound_bytes", value: bound.to_string(), why });
        }
        Ok(Self {
            environment: environment.clone(),
            touch: params.touch,
            chunk_bytes: params.chunk_bytes,
            chunks_max,
            reserve_bytes: available / RESERVE,
            held: VecDeque::new(),
            phase: Phase::Filling,
            unlooked_bytes: 0,
            rounds: 0,
        })
    }

    /// Allocates a chunk and returns its size in bytes.
    fn allocate(&mut self) -> Result<usize, KernelError> {
        let allocation = Block::new(self.chunk_bytes).map_err(KernelError::host(format!("allocating {} bytes", self.chunk_bytes)));
        match allocation {
            Ok(mut block) => {
                if self.touch {
                    block.touch();
                }
                self.held.push_back(block);
                Ok(self.chunk_bytes)
            }
            // A limit on addresses below the configured limit acts as the limit.
            Err(_) if !self.held.is_empty() => {
                self.phase = Phase::Emptying;
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }

    /// Checks the reserve again, because other processes may have taken memory since the start.
    fn keeps_reserve(&mut self) -> Result<bool, KernelError> {
        if !self.touch {
            return Ok(true);
        }
        self.unlooked_bytes += self.chunk_bytes as u64;
        if self.unlooked_bytes < LOOK_BYTES {
            return Ok(true);
        }
        self.unlooked_bytes = 0;
        Ok(available(&self.environment)? > self.reserve_bytes)
    }

    /// Frees memory for the next allocation if there is no room.
    fn make_room(&mut self) -> Result<(), KernelError> {
        if matches!(self.phase, Phase::Filling) {
            if self.held.len() < self.chunks_max && self.keeps_reserve()? {
                return Ok(());
            }
            self.phase = Phase::Emptying;
        }
        if self.held.len() > FREED {
            self.held.drain(..FREED);
        } else {
            self.held.clear();
            self.phase = Phase::Filling;
            self.rounds += 1;
        }
        Ok(())
    }
}

impl Kernel for MemorySpace {
    fn step(&mut self, _: &mut dyn Sink) -> Result<f64, KernelError> {
        let chunks = if self.touch { 1 } else { UNTOUCHED };
        let mut bytes = 0;
        for _ in 0..chunks {
            self.make_room()?;
            bytes += self.allocate()?;
        }
        Ok(bytes as f64)
    }

    fn pause(&mut self) -> Result<(), KernelError> {
        self.held = VecDeque::new();
        self.phase = Phase::Filling;
        Ok(())
    }

    fn facts(&self) -> crate::Params {
        let facts = json!({
            "bound_bytes_of_this_worker": self.chunks_max * self.chunk_bytes,
            "reserve_bytes": self.reserve_bytes,
            "touch": self.touch,
            "rounds": self.rounds,
        });
        facts.as_object().cloned().unwrap_or_default()
    }
}

/// The limit for all workers together.
fn bound(requested: Option<u64>, available: u64) -> Result<u64, KernelError> {
    let most = available - available / RESERVE;
    let bound = requested.unwrap_or(available / 2);
    if bound <= most {
        return Ok(bound);
    }
    let why = format!("exceeds the {most} bytes that may be used of the {available} available on the host and in the cgroup; give less");
    Err(KernelError::Parameter { key: "bound_bytes", value: bound.to_string(), why })
}

pub(crate) const ENTRY: Entry = Entry {
    name: "memory-space",
    info: || KernelInfo {
        name: "memory-space",
        resource: Resource::MemoryCapacity,
        summary: "allocates without end, up to a bound",
        doing: "memory-hoarding",
        loses: None,
        unit: Unit::Bytes,
        figure: Figure::Rate { label: "MB/s allocated", divisor: 1e6 },
        also: None,
        latency: Latency::Step("one touched allocation, or 32 untouched ones, of chunk_bytes each"),
        roles: Roles::Stressor,
        // Page faults and zeroing have an effect at once; a shortage only near the limit: GiBs at a few GB/s. Freeing all memory takes
        // about a second for 10 GiB, and a neighbour whose pages were reclaimed must read them again.
        settle: Settle { rise_ns: 1_000_000_000, release_ns: 2_000_000_000 },
        needs: Needs { memory: &[Held { by: Holder::AllThreads, times: 1, parameters: &["bound_bytes"] }], ..Needs::NOTHING },
        warnings: &[],
        params: schema_for!(Params),
    },
    build: |params, environment| {
        let params: Params = serde_json::from_value(params.clone().into())?;
        Ok(Box::new(MemorySpace::build(&params, environment)?))
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu_cache::testing::root;
    use crate::testing::{parsed, Latencies};

    /// A kernel on a root that reports 4 GiB as available.
    fn kernel(root: &tempfile::TempDir, json: &str, threads: u32) -> Result<MemorySpace, KernelError> {
        let environment = Environment { root: root.path().into(), work_dir: root.path().into(), seed: 0, thread: 0, threads };
        MemorySpace::build(&serde_json::from_value(parsed(json).into())?, &environment)
    }

    fn step(kernel: &mut MemorySpace) -> usize {
        kernel.step(&mut Latencies::default()).expect("there is room") as usize
    }

    #[test]
    fn by_default_the_workers_together_hold_at_most_half_of_the_available_memory() {
        let kernel = kernel(&root(&[]), "{}", 4).expect("there is room");
        assert_eq!(kernel.facts()["bound_bytes_of_this_worker"], json!(512 << 20));
    }

    #[test]
    fn a_limit_above_the_available_memory_is_refused_with_the_figures() {
        let error = kernel(&root(&[]), r#"{"bound_bytes": 4000000000}"#, 1).map(drop).expect_err("no room").to_string();
        assert!(error.contains("4000000000 exceeds the 3758096384 bytes that may be used of the 4294967296"), "{error}");
    }

    #[test]
    fn a_limit_that_leaves_a_worker_nothing_is_refused() {
        let error = kernel(&root(&[]), r#"{"bound_bytes": 2097152}"#, 9).map(drop).expect_err("no chunk").to_string();
        assert!(error.contains("leaves no chunk of 262144 bytes to each of 9 workers"), "{error}");
        let error = kernel(&root(&[]), r#"{"chunk_bytes": 1}"#, 1).map(drop).expect_err("no chunk").to_string();
        assert!(error.starts_with("parameter chunk_bytes: 1 is out of range"), "{error}");
    }

    #[test]
    fn it_fills_to_its_limit_empties_and_restarts_and_counts_all_allocations() {
        for (touch, step_chunks) in [(true, 1), (false, UNTOUCHED)] {
            let json = format!(r#"{{"touch": {touch}, "bound_bytes": 262144, "chunk_bytes": 4096}}"#);
            let mut kernel = kernel(&root(&[]), &json, 1).expect("there is room");
            let mut held_most = 0;
            while kernel.rounds < 3 {
                assert_eq!(step(&mut kernel), step_chunks * 4096);
                assert!(kernel.held.len() <= 64, "{} chunks", kernel.held.len());
                held_most = held_most.max(kernel.held.len());
            }
            assert!(held_most > 64 - UNTOUCHED, "touch: {touch}, at most {held_most} chunks");
        }
    }

    #[test]
    fn touched_chunks_are_written_and_untouched_ones_are_not() {
        for touch in [true, false] {
            let mut kernel = kernel(&root(&[]), &format!(r#"{{"touch": {touch}, "chunk_bytes": 8192}}"#), 1).expect("there is room");
            step(&mut kernel);
            let bytes = kernel.held[0].bytes();
            assert_eq!((bytes[0], bytes[4096]), (u8::from(touch), u8::from(touch)));
        }
    }

    #[test]
    fn a_pause_frees_everything() {
        let mut kernel = kernel(&root(&[]), r#"{"touch": true}"#, 1).expect("there is room");
        (0..5).for_each(|_| assert_eq!(step(&mut kernel), 256 << 10));
        kernel.pause().unwrap();
        assert!(kernel.held.is_empty());
        step(&mut kernel);
        assert_eq!(kernel.held.len(), 1);
    }

    #[test]
    fn it_shrinks_when_others_take_the_rest() {
        let root = root(&[]);
        let mut kernel = kernel(&root, r#"{"touch": true, "chunk_bytes": 16777216}"#, 1).expect("there is room");
        (0..3).for_each(|_| assert_eq!(step(&mut kernel), 16 << 20));
        std::fs::write(root.path().join("proc/meminfo"), "MemAvailable: 1024 kB\n").expect("a file");
        step(&mut kernel);
        assert_eq!((kernel.rounds, kernel.held.len()), (1, 1));
    }
}
