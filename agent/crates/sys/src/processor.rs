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
        let end = counted();
        Some(u64::try_from(u128::from(end.0 - begin.0) * 1_000_000 / u128::from(end.1 - begin.1)).unwrap_or(u64::MAX))
    }
    #[cfg(not(target_arch = "x86_64"))]
    return None;
}

/// Counter and nanoseconds at one moment: the fastest of several attempts.
#[cfg(target_arch = "x86_64")]
fn counted() -> (u64, u64) {
    use rustix::time::{clock_gettime, ClockId};
    let measure = || {
        // SAFETY: every x86-64 processor has the instruction.
        let before = unsafe { std::arch::x86_64::_rdtsc() };
        let now = clock_gettime(ClockId::MonotonicRaw);
        // SAFETY: as above.
        let took = unsafe { std::arch::x86_64::_rdtsc() }.saturating_sub(before);
        let nanos = u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0);
        (took, before + took / 2, nanos)
    };
    let (_, count, nanos) = (0..20).map(|_| measure()).min().unwrap_or_default();
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
    fn the_signature_is_that_of_a_hypervisor_or_none() {
        let guest = std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" hypervisor"));
        assert_eq!(super::signature().is_some(), guest);
    }
}
