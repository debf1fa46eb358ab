//! The slowest packets, to show where they waited.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::unit::Passage;
use crate::Sink;

/// Keeps the slowest delivered packets.
#[derive(Debug)]
pub struct Slowest {
    most: usize,
    kept: BinaryHeap<Reverse<(i64, u64)>>,
    passages: Vec<(u64, Passage)>,
    number: u64,
}

impl Slowest {
    /// Keeps this many.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most, kept: BinaryHeap::new(), passages: Vec::new(), number: 0 }
    }

    /// Returns the kept packets, slowest first, and starts again.
    pub fn take(&mut self) -> Vec<Passage> {
        self.kept.clear();
        let mut taken: Vec<Passage> = std::mem::take(&mut self.passages).into_iter().map(|(_, passage)| passage).collect();
        taken.sort_by_key(|passage| Reverse(passage.total()));
        taken
    }

    fn keep(&mut self, total_ns: i64, passage: &Passage) {
        self.number += 1;
        self.kept.push(Reverse((total_ns, self.number)));
        self.passages.push((self.number, *passage));
        if self.kept.len() > self.most {
            if let Some(Reverse((_, quickest))) = self.kept.pop() {
                self.passages.retain(|(number, _)| *number != quickest);
            }
        }
    }
}

impl Sink for Slowest {
    fn duplicate(&mut self, _: usize) {}

    fn reordered(&mut self, _: usize) {}

    fn finished(&mut self, passage: &Passage) {
        let Some(total_ns) = passage.total() else { return };
        if self.kept.len() < self.most || self.kept.peek().is_some_and(|Reverse((least, _))| *least < total_ns) {
            self.keep(total_ns, passage);
        }
    }
}
