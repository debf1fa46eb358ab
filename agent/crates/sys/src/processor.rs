//! What the processor says of itself beyond what the kernel tells.

/// Whether the processor is QEMU's emulation (TCG), by the signature it shows instead of a hypervisor's; `None` where
/// processors show none.
#[must_use]
pub fn emulated() -> Option<bool> {
    #[cfg(target_arch = "x86_64")]
    return Some(signature() == Some(*b"TCGTCGTCGTCG"));
    #[cfg(not(target_arch = "x86_64"))]
    return None;
}

/// Leaf `0x4000_0000`, which hypervisors answer; only meaningful where bit 31 of leaf 1 says that there is one.
#[cfg(target_arch = "x86_64")]
fn signature() -> Option<[u8; 12]> {
    use std::arch::x86_64::__cpuid;
    // SAFETY: every x86-64 processor has the instruction and leaf 1; the other leaf is asked for only where it is defined.
    #[allow(unused_unsafe)]
    let found = unsafe { (__cpuid(1).ecx >> 31 & 1 == 1).then(|| __cpuid(0x4000_0000)) }?;
    let mut text = [0; 12];
    for (part, register) in text.chunks_exact_mut(4).zip([found.ebx, found.ecx, found.edx]) {
        part.copy_from_slice(&register.to_le_bytes());
    }
    Some(text)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    #[test]
    fn the_signature_is_that_of_a_hypervisor_or_none() {
        let guest = std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" hypervisor"));
        assert_eq!(super::signature().is_some(), guest);
    }
}
