//! `memory-dirty`: changes pages of a working set at a set rate, like a service during migration. Each turn changes one word of one
//! page. That makes the whole page dirty and uses almost no memory bandwidth. `memory-space` measures allocation.

use std::hint::black_box;

use partywall_clock::{self as clock, Nanos};
use partywall_sys::memory::Block;
use schemars::{schema_for, JsonSchema};
use serde::Deserialize;
use serde_json::json;

use crate::blocks::{self, Pages};
use crate::chance::Chance;
use crate::limits::{multiple, within};
use crate::pace::{Turn, Turns};
use crate::{
    noise, Entry, Environment, Figure, Held, Holder, Kernel, KernelError, KernelInfo, Latency, Needs, PacedBy, Resource, Roles, Settle,
    Sink, Unit,
};

const PAGE_BYTES: usize = 4096;
const WORD_BYTES: usize = 8;
/// Pages changed between two clock readings: some 2 to 30 µs.
const BATCH: usize = 256;
/// Minimum time between two wake-ups of a set rate. A wake-up costs as much as hundreds of pages, and migration reads dirty pages at
/// intervals of tens of milliseconds or more.
const BEAT_NS: Nanos = 2_000_000;
/// Maximum wait of a step before it checks whether it must stop.
const NAP_NS: Nanos = 10_000_000;
/// An odd number, so that a word returns to an earlier value only after 2⁶⁴ changes.
const CHANGE: u64 = 0x9E37_79B9_7F4A_7C15;
const RATE_MAX: f64 = 1e12;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Params {
    /// Bytes whose pages are changed, divided among the worker threads.
    #[schemars(range(min = 4_096, max = 1_099_511_627_776_u64), extend("multipleOf" = 4096))]
    working_set_bytes: usize,
    /// Bytes of changed pages per second of all worker threads together, 4096 per page. Default: as fast as possible.
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 1_000_000_000_000_u64))]
    rate_bytes_per_s: Option<f64>,
    /// Order of pages.
    order: Order,
    /// Initial content of the pages.
    content: Content,
}

impl Default for Params {
    fn default() -> Self {
        Self { working_set_bytes: 64 << 20, rate_bytes_per_s: None, order: Order::Sequential, content: Content::Random }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Order {
    /// From the first page to the last, repeatedly.
    Sequential,
    /// Each page with the same probability, independent of earlier pages.
    Random,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Content {
    /// Pseudo-random bytes, which do not compress.
    Random,
    /// Zeros, except one word of each changed page.
    Zero,
}

/// Selects the next page.
enum Next {
    Sequential(usize),
    Random(Chance),
}

impl Next {
    fn page(&mut self, pages: usize) -> usize {
        match self {
            Self::Random(chance) => chance.below(pages),
            Self::Sequential(next) => {
                let page = *next;
                *next = if page + 1 == pages { 0 } else { page + 1 };
                page
            }
        }
    }
}

struct MemoryDirty {
    block: Block,
    next: Next,
    pace: Option<Turns>,
    changed: u64,
    facts: crate::Params,
}

impl MemoryDirty {
    fn build(params: &Params, environment: &Environment) -> Result<Self, KernelError> {
        let bytes = part(params.working_set_bytes, environment.threads)?;
        let mut facts = crate::Params::new();
        let mut block = blocks::untouched("working_set_bytes", bytes, Pages::Ordinary, environment, &mut facts)?;
        match params.content {
            Content::Random => noise::fill(block.bytes_mut(), environment.seed.wrapping_add(u64::from(environment.thread))),
            Content::Zero => black_box(block.bytes_mut()).fill(0),
        }
        let next = match params.order {
            Order::Sequential => Next::Sequential(0),
            Order::Random => Next::Random(Chance::new(environment.seed, environment.thread)),
        };
        facts.insert("working_set_bytes_of_this_worker".into(), json!(bytes));
        Ok(Self { block, next, pace: pace(params.rate_bytes_per_s, environment.threads)?, changed: 0, facts })
    }

    /// Number of pages due now. Waits a short time if there are none.
    fn due(&mut self) -> usize {
        let Some(pace) = &mut self.pace else { return BATCH };
        let now = clock::monotonic();
        match pace.turn(now, BATCH) {
            Turn::Due(count) => count,
            Turn::Wait(until) => {
                clock::sleep_until(until.clamp(now + BEAT_NS, now + NAP_NS));
                match pace.turn(clock::monotonic(), BATCH) {
                    Turn::Due(count) => count,
                    Turn::Wait(_) => 0,
                }
            }
        }
    }

    fn change(&mut self, count: usize) {
        let bytes = self.block.bytes_mut();
        let pages = bytes.len() / PAGE_BYTES;
        for _ in 0..count {
            let page = self.next.page(pages);
            let at = page * PAGE_BYTES + word_of(page);
            if let Some(word) = bytes[at..].first_chunk_mut() {
                *word = u64::from_le_bytes(*word).wrapping_add(CHANGE).to_le_bytes();
            }
        }
        black_box(bytes);
    }
}

/// Offset of a page's word. It differs between pages, because words at one offset of all pages share a few cache sets.
fn word_of(page: usize) -> usize {
    (noise::mix(page as u64) as usize % (PAGE_BYTES / WORD_BYTES)) * WORD_BYTES
}

/// The part of the working set that one worker thread changes.
fn part(working_set_bytes: usize, threads: u32) -> Result<usize, KernelError> {
    within("working_set_bytes", working_set_bytes, PAGE_BYTES..=blocks::BYTES_MAX)?;
    multiple("working_set_bytes", working_set_bytes, PAGE_BYTES)?;
    let pages = working_set_bytes / PAGE_BYTES / threads.max(1) as usize;
    if pages == 0 {
        let why = format!("leaves no page to each of {threads} workers; give {} or more", threads as usize * PAGE_BYTES);
        return Err(KernelError::Parameter { key: "working_set_bytes", value: working_set_bytes.to_string(), why });
    }
    Ok(pages * PAGE_BYTES)
}

fn pace(rate_bytes_per_s: Option<f64>, threads: u32) -> Result<Option<Turns>, KernelError> {
    match rate_bytes_per_s {
        Some(rate) if !(rate > 0.0 && rate <= RATE_MAX) => Err(KernelError::Parameter {
            key: "rate_bytes_per_s",
            value: rate.to_string(),
            why: "is out of range; give a number above 0, at most 1e12, or leave it out for full speed".into(),
        }),
        rate => Ok(rate.map(|rate| Turns::new(rate / PAGE_BYTES as f64 / f64::from(threads.max(1))))),
    }
}

impl Kernel for MemoryDirty {
    fn step(&mut self, sink: &mut dyn Sink) -> Result<f64, KernelError> {
        let due = self.due();
        if due == 0 {
            return Ok(0.0);
        }
        let start_ns = clock::monotonic();
        self.change(due);
        sink.latency(clock::monotonic() - start_ns);
        self.changed += due as u64;
        Ok((due * PAGE_BYTES) as f64)
    }

    fn paced_by(&self) -> PacedBy {
        if self.pace.is_some() {
            PacedBy::Work
        } else {
            PacedBy::Time
        }
    }

    fn facts(&self) -> crate::Params {
        let mut facts = self.facts.clone();
        facts.insert("changed_pages".into(), json!(self.changed));
        facts
    }
}

pub(crate) const ENTRY: Entry = Entry {
    name: "memory-dirty",
    info: || KernelInfo {
        name: "memory-dirty",
        resource: Resource::MemoryCapacity,
        summary: "changes pages of a working set at a set rate",
        doing: "page-dirtying",
        loses: Some("page-dirtying speed"),
        unit: Unit::Bytes,
        figure: Figure::Rate { label: "MB/s dirtied", divisor: 1e6 },
        also: None,
        latency: Latency::Own("changing up to 256 pages, one word each"),
        roles: Roles::Both,
        // One cache line per page: 1 MiB of lines for the default working set, displaced and fetched again within 2 ms.
        settle: Settle { rise_ns: 2_000_000, release_ns: 2_000_000 },
        needs: Needs { memory: &[Held { by: Holder::AllThreads, times: 1, parameters: &["working_set_bytes"] }], ..Needs::NOTHING },
        warnings: &[],
        params: schema_for!(Params),
    },
    build: |params, environment| {
        let params: Params = serde_json::from_value(params.clone().into())?;
        Ok(Box::new(MemoryDirty::build(&params, environment)?))
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{build, environment, error, fact, steps, Latencies};

    fn kernel(params: &Params, threads: u32) -> MemoryDirty {
        MemoryDirty::build(params, &Environment { threads, ..environment() }).expect("there is room")
    }

    /// Which pages differ.
    fn changed(before: &[u8], after: &[u8]) -> Vec<usize> {
        let pages = before.chunks(PAGE_BYTES).zip(after.chunks(PAGE_BYTES)).enumerate();
        pages.filter(|(_, (before, after))| before != after).map(|(page, _)| page).collect()
    }

    #[test]
    fn sequential_order_changes_the_next_page_and_wraps_around() {
        let mut kernel = kernel(&Params { working_set_bytes: 8 * PAGE_BYTES, ..Params::default() }, 1);
        for expected in [vec![0, 1, 2, 3, 4], vec![0, 1, 5, 6, 7]] {
            let before = kernel.block.bytes().to_vec();
            kernel.change(5);
            assert_eq!(changed(&before, kernel.block.bytes()), expected);
        }
    }

    #[test]
    fn a_turn_changes_one_word_of_a_page_to_a_new_value() {
        for content in [Content::Random, Content::Zero] {
            let mut kernel = kernel(&Params { working_set_bytes: PAGE_BYTES, content, ..Params::default() }, 1);
            let first = kernel.block.bytes().to_vec();
            for _ in 0..1000 {
                kernel.change(1);
                let words = first.chunks(WORD_BYTES).zip(kernel.block.bytes().chunks(WORD_BYTES));
                assert_eq!(words.filter(|(before, after)| before != after).count(), 1);
            }
        }
    }

    #[test]
    fn random_pages_are_drawn_independently_and_all_are_reached() {
        let mut kernel = kernel(&Params { working_set_bytes: 1000 * PAGE_BYTES, order: Order::Random, ..Params::default() }, 1);
        let before = kernel.block.bytes().to_vec();
        kernel.change(1000);
        let share = changed(&before, kernel.block.bytes()).len() as f64 / 1000.0;
        // 1 - 1/e of the pages, with a deviation of 0.01.
        assert!((0.58..0.68).contains(&share), "{share}");
        kernel.change(12_000);
        assert_eq!(changed(&before, kernel.block.bytes()).len(), 1000);
    }

    #[test]
    fn pages_initially_contain_noise_or_zeros() {
        let noise = kernel(&Params { working_set_bytes: 4 * PAGE_BYTES, ..Params::default() }, 1);
        let pages: Vec<_> = noise.block.bytes().chunks(PAGE_BYTES).collect();
        assert!(pages.iter().all(|page| page.chunks(8).all(|word| word != [0; 8])));
        assert_ne!(pages[0], pages[1]);
        let zero = kernel(&Params { content: Content::Zero, ..Params::default() }, 1);
        assert!(zero.block.bytes().iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_set_rate_is_a_ceiling_and_a_stop_is_not_caught_up_beyond_50_ms() {
        const RATE: f64 = 40.96e6;
        let mut kernel = build("memory-dirty", json!({ "working_set_bytes": 1 << 20, "rate_bytes_per_s": RATE }));
        let start = clock::monotonic();
        let work = steps(kernel.as_mut(), 30, &mut Latencies::default());
        let most = (clock::monotonic() - start) as f64 / 1e9 * RATE + PAGE_BYTES as f64;
        assert!(work > 0.0 && work <= most, "{work} bytes, {most} were due");
        let stopped = clock::monotonic();
        clock::sleep_until(stopped + 200_000_000);
        let resumed = clock::monotonic();
        let work = steps(kernel.as_mut(), 3, &mut Latencies::default());
        let most = ((clock::monotonic() - resumed) as f64 + 50e6) / 1e9 * RATE + PAGE_BYTES as f64;
        assert!(work <= most, "{work} bytes after the stop, at most {most}");
        assert!(fact(kernel.as_ref(), "changed_pages") > 0.0);
    }

    #[test]
    fn worker_threads_share_working_set_and_rate() {
        let kernel = kernel(&Params { working_set_bytes: 10 * PAGE_BYTES, rate_bytes_per_s: Some(4096.0), ..Params::default() }, 3);
        assert_eq!(kernel.facts()["working_set_bytes_of_this_worker"], json!(3 * PAGE_BYTES));
        let mut pace = kernel.pace.expect("a rate");
        assert_eq!(pace.turn(10_000_000_000, 1), Turn::Due(1));
        assert_eq!(pace.turn(10_000_000_001, 1), Turn::Wait(13_000_000_000));
    }

    #[test]
    fn wrong_parameters_are_named() {
        assert!(error("memory-dirty", json!({ "working_set_bytes": 5000 })).contains("not a multiple of 4096"));
        assert!(error("memory-dirty", json!({ "working_set_bytes": 0 })).contains("out of range"));
        assert!(error("memory-dirty", json!({ "rate_bytes_per_s": 0 })).contains("leave it out for full speed"));
        assert!(error("memory-dirty", json!({ "order": "backwards" })).contains("unknown variant"));
        let two = Environment { threads: 2, ..environment() };
        let error =
            MemoryDirty::build(&Params { working_set_bytes: PAGE_BYTES, ..Params::default() }, &two).map(drop).expect_err("one page");
        assert!(error.to_string().contains("leaves no page to each of 2 workers; give 8192 or more"), "{error}");
    }
}
