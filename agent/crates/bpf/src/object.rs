//! The compiled programs, which are embedded in the executable.

use thiserror::Error;

include!(concat!(env!("OUT_DIR"), "/objects.rs"));

/// How to get an agent that contains them. The text also suits users of a package, who may have no Makefile.
pub const REMEDY: &str = "use an agent built with clang, libbpf-dev and linux-libc-dev; \
    'make setup' in a clone of Partywall installs these and builds it";

/// Reason why an object is missing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("this agent was built without eBPF programs ({why}); {REMEDY}")]
pub struct Absent {
    /// The message of the build.
    pub why: &'static str,
}

/// Checks that the programs are embedded.
///
/// # Errors
/// [`Absent`] if the agent was built without clang.
pub fn built() -> Result<(), Absent> {
    ABSENT.map_or(Ok(()), |why| Err(Absent { why }))
}

/// The object compiled from `agent/bpf/NAME.bpf.c`.
///
/// # Errors
/// [`Absent`] if the agent was built without clang.
///
/// # Panics
/// If no source has this name, which is a bug in the agent.
pub fn object(name: &str) -> Result<&'static [u8], Absent> {
    built()?;
    let object = OBJECTS.iter().find(|(known, _)| *known == name);
    Ok(object.unwrap_or_else(|| panic!("agent/bpf/{name}.bpf.c does not exist")).1)
}

#[cfg(test)]
mod tests {
    const WEAKLY_ORDERED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/trace.weakly_ordered.o"));
    /// `BPF_STX | BPF_ATOMIC | BPF_DW`.
    const ATOMIC: u8 = 0xdb;
    const EXCHANGE: u32 = 0xe1;
    const EXECUTABLE: u64 = 4;

    fn number<const BYTES: usize>(at: usize) -> u64 {
        WEAKLY_ORDERED[at..at + BYTES].iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
    }

    /// The instructions of every program in a little-endian 64-bit ELF object.
    fn instructions() -> Vec<&'static [u8]> {
        let (headers, size, count) = (number::<8>(0x28), number::<2>(0x3a), number::<2>(0x3c));
        let sections = (0..count).map(|section| (headers + section * size) as usize);
        let programs = sections.filter(|&at| number::<8>(at + 8) & EXECUTABLE != 0);
        let ranges = programs.map(|at| (number::<8>(at + 0x18) as usize, number::<8>(at + 0x20) as usize));
        ranges.flat_map(|(start, length)| WEAKLY_ORDERED[start..start + length].chunks_exact(8)).collect()
    }

    /// Only atomic instructions that fetch order the stores around them (Documentation/bpf/standardization).
    #[test]
    fn without_ordered_stores_the_tracer_publishes_records_behind_a_barrier() {
        if WEAKLY_ORDERED.is_empty() {
            eprintln!("skipped: built without clang");
            return;
        }
        let kinds = instructions().into_iter().filter(|instruction| instruction[0] == ATOMIC);
        let kinds: Vec<u32> = kinds.map(|instruction| u32::from_le_bytes(instruction[4..8].try_into().unwrap())).collect();
        assert_eq!(kinds, [EXCHANGE; 17], "one in the program of each place, one in what they share, and no other");
    }
}
