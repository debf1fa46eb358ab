//! The memory check before a run (VITS, section 4.1). It touches every page of the required memory, times that, and detects where
//! access becomes sharply slower. From there on, memory is not really available.
//!
//! Every page is touched twice. The first touch makes the kernel (and a hypervisor below it) provide the page. It is timed, so that the
//! check stops before it forces the host to swap. The second touch shows whether the page is still there. If memory is short,
//! [`wait_until_free`] only waits; the caller decides what else to do.

mod jump;
mod room;

use std::path::Path;

use partywall_clock::{self as clock, Nanos};
use partywall_sys::memory::Block;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use jump::{find, median, Jump, JumpFinder, Rule};
pub use room::{room, wait_until_free, Bound, Room};

use crate::process;
use crate::survey;
use crate::under;

const PAGE_BYTES: usize = 4096;
/// Pages are timed in groups, because reading the clock costs about as much as touching a page.
const GROUP_PAGES: usize = 64;
const RULE: Rule = Rule { ratio: 4.0, window: 16, history: 256 };

/// Reason why no check was made.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// Touching that much would harm the host or trigger the out-of-memory killer.
    #[error("{asked_bytes} bytes exceed the {room_bytes} bytes that {bound} leaves; request less or free memory")]
    TooMuch {
        /// The requested bytes.
        asked_bytes: u64,
        /// The available bytes.
        room_bytes: u64,
        /// What limits them.
        bound: Bound,
    },
    /// There was not enough free memory at the deadline.
    #[error("waited {waited_ms} ms for {asked_bytes} bytes of memory, but {bound} leaves only {room_bytes}; free memory or request less")]
    NotFree {
        /// The requested bytes.
        asked_bytes: u64,
        /// The available bytes.
        room_bytes: u64,
        /// What limits them.
        bound: Bound,
        /// Duration of the wait.
        waited_ms: u64,
    },
    /// There is nothing to check.
    #[error("a memory check of {asked_bytes} bytes is too small; request at least 4096, one page")]
    TooLittle {
        /// The requested bytes.
        asked_bytes: u64,
    },
    /// An operation failed on this host.
    #[error("{what}: {source}")]
    Host {
        /// The operation.
        what: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

/// Result of a memory check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryCheck {
    /// The requested bytes.
    pub asked_bytes: u64,
    /// Memory available at the start of the check.
    pub room: Room,
    /// The touch that makes the kernel provide the pages.
    pub first_touch: Pass,
    /// The touch that shows whether they are still there. `None` if the first was incomplete.
    pub second_touch: Option<Pass>,
    /// Major page faults of this process during the check. `None` if the host does not report them.
    pub major_faults: Option<u64>,
    /// Pages that the host read from swap during the check.
    pub swapped_in_pages: Option<u64>,
    /// Pages that the host wrote to swap during the check.
    pub swapped_out_pages: Option<u64>,
    /// Duration of the check.
    pub took_ns: Nanos,
    /// Reason why the memory is not available, or not known to be. `None` if it is available.
    pub doubt: Option<Warning>,
}

/// One pass through all pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pass {
    /// Pages touched.
    pub pages: u64,
    /// Median over groups of pages.
    pub median_ns_per_page: f64,
    /// Where access became sharply slower.
    pub jump: Option<MemoryJump>,
    /// Whether all pages were touched before the deadline.
    pub complete: bool,
}

/// Where access became sharply slower.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryJump {
    /// Bytes touched before the jump.
    pub at_bytes: u64,
    /// Median before the jump.
    pub before_ns_per_page: f64,
    /// Median after the jump.
    pub after_ns_per_page: f64,
}

/// Reason why memory is not available, or not known to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Warning {
    /// Time ran out before every page was touched twice. There was no problem until then.
    TimeUp,
    /// Pages of this process had to be read back from a disk.
    MajorFaults,
    /// The host wrote pages to swap during the check.
    Swapped,
    /// Part of the memory became much slower to access than the rest.
    Jump,
    /// All of it is slower to access again than at first: something below, such as a hypervisor, takes it away.
    NotResident,
}

/// Touches `bytes` of fresh memory twice, stops after `budget_ns`, and returns whether the memory is really available. `root` is the
/// folder that contains `proc` and `sys`. The memory is freed before it returns.
///
/// # Errors
/// There is not enough room (nothing is touched then), or the host refuses the memory.
pub fn memory_check(root: &Path, bytes: u64, budget_ns: Nanos) -> Result<MemoryCheck, MemoryError> {
    if bytes < PAGE_BYTES as u64 {
        return Err(MemoryError::TooLittle { asked_bytes: bytes });
    }
    let space = room(root)?;
    if bytes > space.bytes {
        return Err(MemoryError::TooMuch { asked_bytes: bytes, room_bytes: space.bytes, bound: space.bound });
    }
    let start_ns = clock::monotonic();
    let deadline_ns = start_ns.saturating_add(budget_ns);
    let before = Paging::read(root);
    let mut block =
        usize::try_from(bytes).map_err(std::io::Error::other).and_then(Block::new).map_err(host("allocating the memory to check"))?;
    let first_touch = touch(block.bytes_mut(), deadline_ns, || Paging::read(root).since(before).is_harm());
    let second_touch = first_touch.complete.then(|| touch(block.bytes_mut(), deadline_ns, || true));
    let paging = Paging::read(root).since(before);
    Ok(MemoryCheck {
        asked_bytes: bytes,
        room: space,
        doubt: doubt(&first_touch, second_touch.as_ref(), paging),
        first_touch,
        second_touch,
        major_faults: paging.major_faults,
        swapped_in_pages: paging.swapped_in,
        swapped_out_pages: paging.swapped_out,
        took_ns: clock::monotonic().saturating_sub(start_ns),
    })
}

/// Waits until `bytes` are free and then checks them. `budget_ns` limits both together.
///
/// # Errors
/// See [`wait_until_free`] and [`memory_check`].
pub fn check_when_free(root: &Path, bytes: u64, budget_ns: Nanos) -> Result<MemoryCheck, MemoryError> {
    let waited_ns = wait_until_free(root, bytes, clock::monotonic().saturating_add(budget_ns))?;
    memory_check(root, bytes, budget_ns.saturating_sub(waited_ns))
}

/// Writes to each page in turn until `deadline_ns`, or until the first jump if `stop_at_jump` then returns true.
fn touch(memory: &mut [u8], deadline_ns: Nanos, stop_at_jump: impl Fn() -> bool) -> Pass {
    let total_pages = memory.len().div_ceil(PAGE_BYTES) as u64;
    let mut finder = JumpFinder::new(RULE);
    let mut times = Vec::new();
    let mut jump = None;
    let mut pages = 0;
    for group in memory.chunks_mut(GROUP_PAGES * PAGE_BYTES) {
        let (ns_per_page, end_ns) = touch_group(group);
        pages += group.len().div_ceil(PAGE_BYTES) as u64;
        times.push(ns_per_page);
        let news = if jump.is_none() { finder.push(ns_per_page) } else { None };
        jump = jump.or(news);
        if end_ns > deadline_ns || (news.is_some() && stop_at_jump()) {
            break;
        }
    }
    let median_ns_per_page = median(&times).unwrap_or(0.0);
    Pass { pages, median_ns_per_page, jump: jump.map(memory_jump), complete: pages == total_pages }
}

/// Nanoseconds per page, and the time at the end.
fn touch_group(group: &mut [u8]) -> (f64, Nanos) {
    let start_ns = clock::monotonic();
    for page in group.chunks_mut(PAGE_BYTES) {
        page[0] = std::hint::black_box(page[0].wrapping_add(1));
    }
    let end_ns = clock::monotonic();
    (end_ns.saturating_sub(start_ns) as f64 / group.len().div_ceil(PAGE_BYTES) as f64, end_ns)
}

fn memory_jump(jump: Jump) -> MemoryJump {
    MemoryJump {
        at_bytes: (jump.at * GROUP_PAGES * PAGE_BYTES) as u64,
        before_ns_per_page: jump.before_ns,
        after_ns_per_page: jump.after_ns,
    }
}

fn doubt(first: &Pass, second: Option<&Pass>, paging: Paging) -> Option<Warning> {
    let slower = |second: &Pass| second.median_ns_per_page > RULE.ratio * first.median_ns_per_page;
    if paging.is_read_back() {
        Some(Warning::MajorFaults)
    } else if paging.is_harm() {
        Some(Warning::Swapped)
    } else if second.is_some_and(|second| second.jump.is_some()) {
        Some(Warning::Jump)
    } else if second.is_some_and(slower) {
        Some(Warning::NotResident)
    } else {
        (!second.is_some_and(|second| second.complete)).then_some(Warning::TimeUp)
    }
}

/// Paging counters, or their differences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Paging {
    major_faults: Option<u64>,
    swapped_in: Option<u64>,
    swapped_out: Option<u64>,
}

impl Paging {
    fn read(root: &Path) -> Self {
        let vmstat = survey::text(&under(root, "/proc/vmstat")).unwrap_or_default();
        let count = |key| survey::field(&vmstat, key).and_then(|value| value.parse().ok());
        let stat = survey::text(&under(root, "/proc/self/stat")).unwrap_or_default();
        let [major_faults] = process::fields(stat.as_bytes(), [process::MAJOR_FAULTS]);
        Self { major_faults, swapped_in: count("pswpin"), swapped_out: count("pswpout") }
    }

    fn since(self, before: Self) -> Self {
        let moved = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        Self {
            major_faults: moved(self.major_faults, before.major_faults),
            swapped_in: moved(self.swapped_in, before.swapped_in),
            swapped_out: moved(self.swapped_out, before.swapped_out),
        }
    }

    /// A major fault alone may be a page of the program itself, read for the first time.
    fn is_read_back(self) -> bool {
        self.major_faults.is_some_and(|count| count > 0) && self.swapped_in.is_none_or(|count| count > 0)
    }

    fn is_harm(self) -> bool {
        self.is_read_back() || self.swapped_out.is_some_and(|count| count > 0)
    }
}

fn host(what: &str) -> impl FnOnce(std::io::Error) -> MemoryError + '_ {
    move |source| MemoryError::Host { what: what.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEBI: u64 = 1 << 20;

    fn complete(median_ns_per_page: f64) -> Pass {
        Pass { pages: 100, median_ns_per_page, jump: None, complete: true }
    }

    fn paging(major_faults: u64, swapped_in: u64, swapped_out: u64) -> Paging {
        Paging { major_faults: Some(major_faults), swapped_in: Some(swapped_in), swapped_out: Some(swapped_out) }
    }

    #[test]
    fn every_page_of_the_requested_memory_is_touched_twice() {
        let check = memory_check(Path::new("/"), 16 * MEBI + 1, 60_000_000_000).unwrap();
        let second = check.second_touch.as_ref().unwrap();
        assert_eq!((check.first_touch.pages, check.first_touch.complete), (4097, true));
        // On a busy host the second touch may rightly end at a jump.
        assert!(if second.jump.is_none() { second.pages == 4097 && second.complete } else { check.doubt.is_some() }, "{check:?}");
        assert!(check.first_touch.median_ns_per_page > 0.0);
    }

    #[test]
    fn an_exhausted_budget_is_a_warning_and_not_a_verdict() {
        let check = memory_check(Path::new("/"), 16 * MEBI, 0).unwrap();
        assert_eq!(check.first_touch.pages, 64, "the first group is always touched");
        assert_eq!(check.doubt, Some(Warning::TimeUp));
        assert!(check.doubt.is_some());
    }

    #[test]
    fn too_large_a_request_is_refused_with_both_numbers() {
        let room = room(Path::new("/")).unwrap();
        let error = memory_check(Path::new("/"), u64::MAX, 1).unwrap_err();
        assert!(matches!(&error, MemoryError::TooMuch { asked_bytes: u64::MAX, .. }));
        assert!(error.to_string().contains(&u64::MAX.to_string()) && error.to_string().contains(&room.bound.to_string()), "{error}");
    }

    #[test]
    fn a_wait_for_memory_that_cannot_become_free_ends_with_the_budget() {
        let error = check_when_free(Path::new("/"), u64::MAX, 0).unwrap_err();
        assert!(matches!(error, MemoryError::NotFree { asked_bytes: u64::MAX, .. }), "{error}");
    }

    #[test]
    fn less_than_a_page_is_refused() {
        assert!(matches!(memory_check(Path::new("/"), 0, 1), Err(MemoryError::TooLittle { asked_bytes: 0 })));
    }

    #[test]
    fn pages_read_back_from_swap_are_the_most_serious_warning() {
        let jumped = Pass { jump: Some(MemoryJump { at_bytes: 1, before_ns_per_page: 1.0, after_ns_per_page: 9.0 }), ..complete(50.0) };
        assert_eq!(doubt(&complete(500.0), Some(&jumped), paging(3, 3, 9)), Some(Warning::MajorFaults));
        assert_eq!(doubt(&complete(500.0), Some(&jumped), paging(0, 0, 9)), Some(Warning::Swapped));
        assert_eq!(doubt(&complete(500.0), Some(&jumped), paging(0, 0, 0)), Some(Warning::Jump));
        assert_eq!(doubt(&complete(500.0), Some(&complete(5000.0)), paging(0, 0, 0)), Some(Warning::NotResident));
        assert_eq!(doubt(&complete(500.0), Some(&complete(50.0)), paging(0, 0, 0)), None);
    }

    #[test]
    fn a_major_fault_without_swapping_is_a_page_of_the_program() {
        assert_eq!(doubt(&complete(500.0), Some(&complete(50.0)), paging(1, 0, 0)), None);
    }

    #[test]
    fn a_jump_of_the_first_touch_alone_is_no_warning_because_the_pages_exist_afterwards() {
        let first = Pass { jump: Some(MemoryJump { at_bytes: 1, before_ns_per_page: 1.0, after_ns_per_page: 9.0 }), ..complete(500.0) };
        assert_eq!(doubt(&first, Some(&complete(50.0)), paging(0, 0, 0)), None);
    }

    #[test]
    fn counters_that_the_host_lacks_stay_unknown() {
        let unknown = Paging::read(Path::new("/nowhere")).since(Paging::default());
        assert_eq!(unknown, Paging::default());
        assert!(!unknown.is_harm());
    }
}
