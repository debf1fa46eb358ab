//! How much memory may be touched without harm: available memory less a reserve, and the room below the cgroup's limit.

use std::fmt;
use std::path::Path;

use partywall_clock::{self as clock, Nanos};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{host, MemoryError};
use crate::cgroup::MemoryRoom;
use crate::memory::{available, limit, meminfo};
use crate::{survey, under};

const POLL_NS: Nanos = 50_000_000;
/// Minimum that is left to the rest of the host, for hosts so small that a twentieth is less.
const LEAST_RESERVE_BYTES: u64 = 32 << 20;

/// How much memory may be touched, and what limits it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Room {
    /// Bytes that may be touched.
    pub bytes: u64,
    /// What limits them.
    pub bound: Bound,
    /// Memory available on the host without swapping.
    pub available_bytes: u64,
    /// The part of it that is left to the rest of the host.
    pub reserve_bytes: u64,
}

/// Limit of the memory that may be touched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Bound {
    /// The memory available on the host, less the reserve.
    Host,
    /// The limit of a cgroup.
    Cgroup(MemoryRoom),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Host => f.write_str("the host's available memory less a reserve"),
            Self::Cgroup(room) => write!(f, "the limit of {} bytes on cgroup {}", room.limit_bytes, room.folder),
        }
    }
}

/// How much memory this process may touch now.
///
/// # Errors
/// The host does not report available memory.
pub fn room(root: &Path) -> Result<Room, MemoryError> {
    let available_bytes = available(root).map_err(host("reading the memory available from /proc/meminfo"))?;
    let total = survey::text(&under(root, "/proc/meminfo")).ok().and_then(|text| meminfo(&text, "MemTotal"));
    let reserve_bytes = (total.unwrap_or(available_bytes) / 20).max(LEAST_RESERVE_BYTES);
    Ok(tightest(available_bytes, reserve_bytes, limit(root)))
}

fn tightest(available_bytes: u64, reserve_bytes: u64, limit: Option<MemoryRoom>) -> Room {
    let of_host = available_bytes.saturating_sub(reserve_bytes);
    let (bytes, bound) = match limit.map(|limit| (of_cgroup(&limit), limit)) {
        Some((of_cgroup, limit)) if of_cgroup < of_host => (of_cgroup, Bound::Cgroup(limit)),
        _ => (of_host, Bound::Host),
    };
    Room { bytes, bound, available_bytes, reserve_bytes }
}

/// Page tables and the kernel's own memory are also charged to the cgroup.
fn of_cgroup(limit: &MemoryRoom) -> u64 {
    limit.left_bytes().saturating_sub((limit.limit_bytes / 64).max(1 << 20))
}

/// Waits until `bytes` may be touched. Returns the duration of the wait.
///
/// # Errors
/// There is not enough by `deadline_ns`, or the host does not report available memory.
pub fn wait_until_free(root: &Path, bytes: u64, deadline_ns: Nanos) -> Result<Nanos, MemoryError> {
    let pause = |now_ns: Nanos| {
        clock::sleep_until(now_ns.saturating_add(POLL_NS).min(deadline_ns));
        clock::monotonic()
    };
    wait(bytes, clock::monotonic(), deadline_ns, || room(root), pause)
}

fn wait(
    asked_bytes: u64,
    start_ns: Nanos,
    deadline_ns: Nanos,
    mut room: impl FnMut() -> Result<Room, MemoryError>,
    mut pause: impl FnMut(Nanos) -> Nanos,
) -> Result<Nanos, MemoryError> {
    let mut now_ns = start_ns;
    loop {
        let Room { bytes: room_bytes, bound, .. } = room()?;
        let waited_ns = now_ns.saturating_sub(start_ns);
        if asked_bytes <= room_bytes {
            return Ok(waited_ns);
        }
        if now_ns >= deadline_ns {
            return Err(MemoryError::NotFree { asked_bytes, room_bytes, bound, waited_ms: waited_ns / 1_000_000 });
        }
        now_ns = pause(now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn limited(limit_bytes: u64, used_bytes: u64) -> MemoryRoom {
        MemoryRoom { folder: "/sys/fs/cgroup/box".into(), limit_bytes, used_bytes }
    }

    fn with(bytes: u64) -> Room {
        tightest(bytes, 0, None)
    }

    #[test]
    fn waiting_ends_when_memory_is_free() {
        let mut rooms = [10, 20, 30].into_iter();
        let waited = wait(25, 100, 1000, || Ok(with(rooms.next().unwrap())), |now| now + 7);
        assert_eq!(waited.unwrap(), 14);
    }

    #[test]
    fn waiting_ends_at_the_deadline_with_both_numbers() {
        let error = wait(25, 0, 20_000_000, || Ok(with(24)), |now| now + 5_000_000).unwrap_err();
        assert!(matches!(error, MemoryError::NotFree { asked_bytes: 25, room_bytes: 24, waited_ms: 20, .. }), "{error}");
    }

    #[test]
    fn the_cgroup_is_named_if_it_is_the_tighter_limit() {
        let room = tightest(10 << 30, 1 << 30, Some(limited(128 << 20, 28 << 20)));
        assert_eq!(room.bytes, 98 << 20);
        assert!(room.bound.to_string().contains("/sys/fs/cgroup/box"));
    }

    proptest! {
        #[test]
        fn the_room_never_exceeds_any_limit(available: u64, reserve: u64, limit: u64, used: u64) {
            let room = tightest(available, reserve, Some(limited(limit, used)));
            prop_assert!(room.bytes <= available.saturating_sub(reserve));
            prop_assert!(room.bytes <= limit.saturating_sub(used));
        }
    }
}
