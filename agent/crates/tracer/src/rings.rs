//! The kernel's rings, one for each CPU, and its counts. The kernel writes a record and moves `written`; we read it and move
//! `taken`; a full ring drops the new record and counts it.

use std::io;

use aya::maps::Map;
use aya::Ebpf;
use partywall_sys::shared::Shared;

use crate::record::Raw;

/// Places in the kernel's count of each CPU; see `PLACES` in the program.
pub(crate) const PLACES: usize = 16;
/// Words from one CPU's cursor, or one place's count, to the next: a line of cache.
const STRIDE: usize = 8;
/// Room is given back this often while a full ring is read.
const BATCH: u64 = 1024;

pub(crate) struct Rings {
    records: Shared,
    written: Shared,
    taken: Shared,
    counts: Shared,
    control: Shared,
    cpus: usize,
    length: u64,
    read: Vec<u64>,
}

/// What the kernel's side counted at one place since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub recorded: u64,
    pub lost: u64,
    pub untraced: u64,
}

fn shared(loaded: &mut Ebpf, name: &str, words: usize) -> io::Result<Shared> {
    let absent = || io::Error::other(format!("the eBPF object has no map {name}"));
    let map: Map = loaded.take_map(name).ok_or_else(absent)?;
    // Checked as an array of whatever; only its file descriptor is of use.
    let Map::Array(data) = map else { return Err(absent()) };
    Shared::new(data.fd(), words)
}

impl Rings {
    /// The rings of a loaded program, each of `length` records.
    pub(crate) fn open(loaded: &mut Ebpf, cpus: usize, length: u32) -> io::Result<Self> {
        Ok(Self {
            records: shared(loaded, "rings", cpus * length as usize * Raw::WORDS)?,
            written: shared(loaded, "written", cpus * STRIDE)?,
            taken: shared(loaded, "taken", cpus * STRIDE)?,
            counts: shared(loaded, "counts", cpus * PLACES * STRIDE)?,
            control: shared(loaded, "control", 1)?,
            cpus,
            length: u64::from(length),
            read: vec![0; cpus],
        })
    }

    pub(crate) fn cpus(&self) -> usize {
        self.cpus
    }

    /// Hands over what CPU `cpu` has written.
    pub(crate) fn drain(&mut self, cpu: usize, mut take: impl FnMut(Raw)) {
        let end = self.written.acquire(cpu * STRIDE);
        while self.read[cpu] != end {
            let until = end.min(self.read[cpu] + BATCH);
            for at in self.read[cpu]..until {
                let start = (cpu as u64 * self.length + (at & (self.length - 1))) as usize * Raw::WORDS;
                take(Raw(std::array::from_fn(|word| self.records.read(start + word))));
            }
            self.read[cpu] = until;
            self.taken.release(cpu * STRIDE, until);
        }
    }

    /// Counts of one place over all CPUs.
    pub(crate) fn count(&self, place: usize) -> Count {
        let mut sum = Count::default();
        for cpu in 0..self.cpus {
            let at = (cpu * PLACES + place) * STRIDE;
            sum.recorded += self.counts.read(at);
            sum.lost += self.counts.read(at + 1);
            sum.untraced += self.counts.read(at + 2);
        }
        sum
    }

    /// From now on only flows whose hash's upper half is below are recorded.
    pub(crate) fn sample_below(&self, below: u64) {
        self.control.release(0, below);
    }

    /// Forgets all counts.
    pub(crate) fn reset(&mut self) {
        for cpu in 0..self.cpus {
            self.drain(cpu, |_| ());
        }
        (0..self.cpus * PLACES * STRIDE).for_each(|word| self.counts.release(word, 0));
    }
}
