//! Packets stored for export: the first ones of each report, with any fate.

use partywall_alignment::{Fate, Passage, Sink};

#[derive(Debug)]
pub(crate) struct Kept {
    most: usize,
    passages: Vec<Passage>,
}

impl Kept {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, passages: Vec::new() }
    }

    pub(crate) fn take(&mut self) -> Vec<Passage> {
        std::mem::take(&mut self.passages)
    }
}

impl Sink for Kept {
    fn duplicate(&mut self, _: usize) {}

    fn reordered(&mut self, _: usize) {}

    fn finished(&mut self, passage: &Passage) {
        if self.passages.len() < self.most && passage.fate != Fate::Other {
            self.passages.push(*passage);
        }
    }
}
