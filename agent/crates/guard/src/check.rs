//! The independent check: what the interface itself counted against what the hook says passed, and against what the policy
//! allows. Pure; `guard` reads the counters.
//!
//! The interface counts a large segmented packet once, with one header, so its bytes are never more than the hook's.

use partywall_clock::Nanos;

/// Bytes that counters read a moment apart may differ by, whatever the rate.
const SLACK_BYTES: u64 = 256 << 10;

/// What both sides had counted at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub at_ns: Nanos,
    /// The interface's own.
    pub interface_bytes: u64,
    /// What the hook let through, and where the interface counts before the hook drops, what it dropped too.
    pub hook_bytes: u64,
}

/// What a hook allows: the sum over its leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub ceiling_bps: u64,
    /// What may pass at once, and what a queue may have held back from the time before.
    pub burst_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    Fine,
    /// Bytes the interface carried and the hook never saw.
    Bypassed(u64),
    /// Bytes above ceiling and burst.
    Exceeded(u64),
}

/// Judges the time between two readings. `limited`: whether the interface counts only what passed.
pub(crate) fn judge(before: Reading, now: Reading, allowed: Allowed, limited: bool) -> Judgement {
    // Counters begin anew with an interface.
    let Some(carried) = now.interface_bytes.checked_sub(before.interface_bytes) else { return Judgement::Fine };
    let seen = now.hook_bytes.saturating_sub(before.hook_bytes);
    let known = seen + seen / 50 + allowed.burst_bytes + SLACK_BYTES;
    if carried > known {
        return Judgement::Bypassed(carried - seen);
    }
    let elapsed = u128::from(now.at_ns - before.at_ns);
    let ceiling = (u128::from(allowed.ceiling_bps) * elapsed / 8_000_000_000) as u64;
    let most = ceiling + ceiling / 50 + allowed.burst_bytes + SLACK_BYTES;
    if limited && carried > most {
        return Judgement::Exceeded(carried - ceiling);
    }
    Judgement::Fine
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGA: u64 = 1_000_000;

    fn after_a_second(interface_bytes: u64, hook_bytes: u64) -> Judgement {
        let before = Reading { at_ns: 5, interface_bytes: 100, hook_bytes: 70 };
        let now = Reading { at_ns: 1_000_000_005, interface_bytes: 100 + interface_bytes, hook_bytes: 70 + hook_bytes };
        judge(before, now, Allowed { ceiling_bps: 80 * MEGA, burst_bytes: MEGA / 10 }, true)
    }

    #[test]
    fn what_passed_the_hook_and_no_more_is_fine() {
        assert_eq!(after_a_second(9 * MEGA, 9 * MEGA), Judgement::Fine);
        assert_eq!(after_a_second(0, 5 * MEGA), Judgement::Fine);
    }

    #[test]
    fn traffic_the_hook_never_saw_is_told_with_its_size() {
        assert_eq!(after_a_second(9 * MEGA, MEGA), Judgement::Bypassed(8 * MEGA));
    }

    #[test]
    fn more_than_the_ceiling_is_told_though_the_hook_saw_it() {
        assert_eq!(after_a_second(11 * MEGA, 11 * MEGA), Judgement::Exceeded(MEGA));
    }

    #[test]
    fn an_interface_made_anew_counts_from_zero_and_is_no_finding() {
        let before = Reading { at_ns: 0, interface_bytes: 900, hook_bytes: 0 };
        let now = Reading { at_ns: 1, interface_bytes: 10, hook_bytes: 0 };
        assert_eq!(judge(before, now, Allowed { ceiling_bps: 1, burst_bytes: 0 }, true), Judgement::Fine);
    }
}
