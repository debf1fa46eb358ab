//! Facts from the processor that the kernel does not report.

/// Whether the processor is emulated by QEMU (TCG), according to its hypervisor signature. `None` if processors of this type have no
/// signature.
#[must_use]
pub fn emulated() -> Option<bool> {
    #[cfg(target_arch = "x86_64")]
    return Some(signature() == Some(*b"TCGTCGTCGTCG"));
    #[cfg(not(target_arch = "x86_64"))]
    return None;
}

/// Reads leaf `0x4000_0000`, the hypervisor's. Only valid if bit 31 of leaf 1 is set.
#[cfg(target_arch = "x86_64")]
fn signature() -> Option<[u8; 12]> {
    use std::arch::x86_64::__cpuid;
    // SAFETY: every x86-64 processor has the instruction and leaf 1. The other leaf is only read if it is defined.
    #[allow(unused_unsafe)]
    let leaf = unsafe { (__cpuid(1).ecx >> 31 & 1 == 1).then(|| __cpuid(0x4000_0000)) }?;
    let mut text = [0; 12];
    for (part, register) in text.chunks_exact_mut(4).zip([leaf.ebx, leaf.ecx, leaf.edx]) {
        part.copy_from_slice(&register.to_le_bytes());
    }
    Some(text)
}

/// Frequency of the time-stamp counter in kHz, by the kernel's raw clock. `None` if the processor has none. Takes 20 ms.
#[must_use]
pub fn tsc_khz() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        let begin = counted();
        // The duration may vary, because both ends are measured.
        #[allow(clippy::disallowed_methods)]
        std::thread::sleep(std::time::Duration::from_millis(20));
        khz(begin, counted())
    }
    #[cfg(not(target_arch = "x86_64"))]
    return None;
}

/// The rate between two moments, each a counter and nanoseconds. `None` unless both grew: counters of two processors may differ.
#[cfg(target_arch = "x86_64")]
fn khz(begin: (u64, i64), end: (u64, i64)) -> Option<u64> {
    let (counts, nanos) = (end.0.checked_sub(begin.0)?, end.1.checked_sub(begin.1)?);
    let nanos = u128::try_from(nanos).ok().filter(|&nanos| nanos > 0)?;
    u64::try_from(u128::from(counts) * 1_000_000 / nanos).ok()
}

/// Counter and nanoseconds at one moment: the fastest of several attempts. The raw clock of a time namespace may stand below 0.
#[cfg(target_arch = "x86_64")]
fn counted() -> (u64, i64) {
    use rustix::time::{clock_gettime, ClockId};
    let measure = || {
        // SAFETY: every x86-64 processor has the instruction.
        let before = unsafe { std::arch::x86_64::_rdtsc() };
        let now = clock_gettime(ClockId::MonotonicRaw);
        // SAFETY: as above.
        // None if the thread came to a processor whose counter is behind.
        let took = unsafe { std::arch::x86_64::_rdtsc() }.checked_sub(before)?;
        Some((took, before + took / 2, now.tv_sec * 1_000_000_000 + now.tv_nsec))
    };
    let (_, count, nanos) = (0..20).filter_map(|_| measure()).min().unwrap_or_default();
    (count, nanos)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    #[test]
    fn the_counter_has_one_rate() {
        let (first, second) = (super::tsc_khz().unwrap(), super::tsc_khz().unwrap());
        assert!(first > 100_000, "{first} kHz");
        assert!(first.abs_diff(second) * 1000 <= first, "{first} and {second} kHz");
    }

    #[test]
    fn a_clock_below_0_is_counted_from_and_one_that_stood_or_went_back_has_no_rate() {
        assert_eq!(super::khz((1000, -10_000_000), (41_000, 10_000_000)), Some(2000));
        assert_eq!(super::khz((1000, 5), (41_000, 5)), None);
        assert_eq!(super::khz((1000, 5), (41_000, 4)), None);
        assert_eq!(super::khz((41_000, 5), (1000, 10_000_005)), None);
    }

    #[test]
    fn the_signature_is_that_of_a_hypervisor_or_none() {
        let guest = std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" hypervisor"));
        assert_eq!(super::signature().is_some(), guest);
    }
}
