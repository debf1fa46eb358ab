//! The kernel's rings, one for each CPU, and its counters. The kernel writes a record and advances `written`; we read it and
//! advance `taken`. A full ring drops the new record and counts it.

use std::io;

use aya::maps::Map;
use aya::Ebpf;
use partywall_sys::shared::Shared;

use crate::record::Raw;

/// Places in the kernel's counters of each CPU; see `PLACES` in the program.
pub(crate) const PLACES: usize = 16;
/// Offsets of words in the program's `struct cpu`.
const WRITTEN: usize = 0;
const TAKEN: usize = 8;
const SAMPLED_BELOW: usize = 9;
const COUNTS: usize = 16;
/// Words between the counters of two places; some are spare.
const COUNT_WORDS: usize = 8;
const CPU_WORDS: usize = COUNTS + PLACES * COUNT_WORDS;
/// Space is released this often while a full ring is read.
const BATCH: u64 = 1024;

pub(crate) struct Rings {
    records: Shared,
    shared: Shared,
    cpus: usize,
    length: u64,
    read: Vec<u64>,
}

/// The kernel side's counters at one place since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub recorded: u64,
    pub lost: u64,
    pub untraced: u64,
    /// All packets, recorded or not.
    pub met: u64,
    /// Packets of traced flows, as segments on the wire.
    pub counted: u64,
}

fn shared(loaded: &mut Ebpf, name: &str, words: usize) -> io::Result<Shared> {
    let absent = || io::Error::other(format!("the eBPF object has no map {name}"));
    let map: Map = loaded.take_map(name).ok_or_else(absent)?;
    // Checked as a generic array; only its file descriptor is used.
    let Map::Array(data) = map else { return Err(absent()) };
    Shared::new(data.fd(), words)
}

impl Rings {
    /// The rings of a loaded program, each with `length` records.
    pub(crate) fn open(loaded: &mut Ebpf, cpus: usize, length: u32) -> io::Result<Self> {
        Ok(Self {
            records: shared(loaded, "rings", cpus * length as usize * Raw::WORDS)?,
            shared: shared(loaded, "cpus", cpus * CPU_WORDS)?,
            cpus,
            length: u64::from(length),
            read: vec![0; cpus],
        })
    }

    pub(crate) fn cpus(&self) -> usize {
        self.cpus
    }

    /// Passes on the records that CPU `cpu` has written, with the kernel's times.
    pub(crate) fn drain(&mut self, cpu: usize, mut take: impl FnMut(Raw)) {
        let end = self.shared.acquire(cpu * CPU_WORDS + WRITTEN);
        while self.read[cpu] != end {
            let until = end.min(self.read[cpu] + BATCH);
            for at in self.read[cpu]..until {
                let start = (cpu as u64 * self.length + (at & (self.length - 1))) as usize * Raw::WORDS;
                take(Raw(std::array::from_fn(|word| self.records.read(start + word))));
            }
            self.read[cpu] = until;
            self.shared.release(cpu * CPU_WORDS + TAKEN, until);
        }
    }

    /// Counters of one place over all CPUs.
    pub(crate) fn count(&self, place: usize) -> Count {
        let mut sum = Count::default();
        for cpu in 0..self.cpus {
            let at = cpu * CPU_WORDS + COUNTS + place * COUNT_WORDS;
            sum.recorded += self.shared.read(at);
            sum.lost += self.shared.read(at + 1);
            sum.untraced += self.shared.read(at + 2);
            sum.met += self.shared.read(at + 3);
            sum.counted += self.shared.read(at + 4);
        }
        sum
    }

    /// Recorded packets at all places, and all packets.
    pub(crate) fn work(&self) -> (u64, u64) {
        let counts = (0..PLACES).map(|place| self.count(place));
        counts.fold((0, 0), |(recorded, met), count| (recorded + count.recorded, met + count.met))
    }

    /// Records only flows whose hash's upper half is below this limit from now on.
    pub(crate) fn sample_below(&self, below: u64) {
        (0..self.cpus).for_each(|cpu| self.shared.release(cpu * CPU_WORDS + SAMPLED_BELOW, below));
    }

    /// Discards all records and counters.
    pub(crate) fn reset(&mut self) {
        for cpu in 0..self.cpus {
            self.drain(cpu, drop);
            (COUNTS..CPU_WORDS).for_each(|word| self.shared.release(cpu * CPU_WORDS + word, 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use partywall_bpf::Layout;

    use super::*;

    #[test]
    fn each_word_is_where_the_program_has_it() {
        let Ok(object) = partywall_bpf::object("trace") else { return eprintln!("skipped: no eBPF in this build") };
        let cpu = [
            ("written", WRITTEN),
            ("paid", WRITTEN + 1),
            ("unused", WRITTEN + 2),
            ("taken", TAKEN),
            ("sampled_below", SAMPLED_BELOW),
            ("spare", SAMPLED_BELOW + 1),
            ("counts", COUNTS),
        ];
        let count = [("recorded", 0), ("lost", 1), ("untraced", 2), ("met", 3), ("counted", 4), ("spare", 5)];
        let record = [("time_ns", 0), ("flow", 1), ("tag", 2), ("what", 3)];
        assert_eq!(Layout::of(object, "cpu"), Some(Layout::words(CPU_WORDS, &cpu)));
        assert_eq!(Layout::of(object, "count"), Some(Layout::words(COUNT_WORDS, &count)));
        assert_eq!(Layout::of(object, "record"), Some(Layout::words(Raw::WORDS, &record)));
    }
}
