//! Records as the kernel's side writes them (`agent/bpf/trace.bpf.c`).

use std::net::Ipv6Addr;

use partywall_alignment::{Kind, Seen};
use partywall_bpf::tc::Direction;
use partywall_clock::SessionClock;

/// A record, word by word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw(pub [u64; 4]);

impl Raw {
    /// Words of a record.
    pub const WORDS: usize = 4;

    /// Its time.
    #[must_use]
    pub fn time_ns(&self) -> u64 {
        self.0[0]
    }

    /// Its flow.
    #[must_use]
    pub fn flow(&self) -> u64 {
        self.0[1]
    }

    /// Its hop.
    #[must_use]
    pub fn hop(&self) -> usize {
        usize::from(self.place() >> 1)
    }

    /// The hook of its hop.
    #[must_use]
    pub fn hook(&self) -> Direction {
        if self.place() & 1 == 0 {
            Direction::Ingress
        } else {
            Direction::Egress
        }
    }

    fn place(&self) -> u8 {
        (self.0[3] >> 40) as u8
    }

    /// The record with the kernel's time converted to the session's.
    pub(crate) fn by(mut self, clock: &SessionClock) -> Self {
        self.0[0] = clock.at(self.0[0]);
        self
    }

    /// The record for another hop, with its time converted to another clock.
    #[must_use]
    pub fn moved(mut self, hop: usize, offset_ns: i64) -> Self {
        self.0[0] = self.0[0].saturating_add_signed(offset_ns);
        let place = (hop as u64) << 1 | u64::from(self.place() & 1);
        self.0[3] = self.0[3] & 0xff_ffff_ffff | place << 40;
        self
    }

    /// The record for the alignment, at place `hop` of a direction.
    #[must_use]
    pub fn seen(&self, hop: u8) -> Seen {
        let kind = if (self.0[3] >> 32) as u8 == 1 { Kind::Range } else { Kind::Whole };
        Seen { time_ns: self.0[0], flow: self.0[1], tag: self.0[2], length: self.0[3] as u32, hop, kind }
    }
}

/// The class that tc passes to the program.
pub(crate) fn place(hop: usize, hook: Direction) -> u16 {
    (hop as u16) << 1 | u16::from(hook == Direction::Egress)
}

/// The addresses of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// The sender; IPv4 within `::ffff:0:0/96`.
    pub from: (Ipv6Addr, u16),
    /// The receiver.
    pub to: (Ipv6Addr, u16),
    /// The protocol's number in IP.
    pub protocol: u8,
}

/// Words of a tuple in the kernel's map.
pub(crate) type TupleWords = [u64; 7];

impl From<TupleWords> for Tuple {
    fn from(words: TupleWords) -> Self {
        let end = |at: usize| {
            let address = u128::from(words[at]) << 64 | u128::from(words[at + 1]);
            (Ipv6Addr::from(address), u16::from_be(words[at + 2] as u16))
        };
        Self { from: end(0), to: end(3), protocol: words[6] as u8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_where_it_is_from_also_after_a_move() {
        let raw = Raw([100, 2, 3, 1448 + (1 << 32) + (u64::from(place(3, Direction::Egress)) << 40)]);
        assert_eq!((raw.hop(), raw.hook()), (3, Direction::Egress));
        let moved = raw.moved(5, -30);
        assert_eq!((moved.hop(), moved.hook(), moved.time_ns()), (5, Direction::Egress, 70));
        assert_eq!(moved.seen(1), Seen { time_ns: 70, flow: 2, tag: 3, length: 1448, hop: 1, kind: Kind::Range });
    }
}
