//! One scan of all hashed pages.

use std::path::Path;
use std::sync::atomic::AtomicU64;

use partywall_sys::view::View;

use super::hash::of_page;
use super::history::History;
use super::{host, ChangesError, PAGE_BYTES};

const PAGE_WORDS: usize = PAGE_BYTES as usize / 8;

/// Pages of a file, with their hashes.
pub(super) struct Pages {
    view: View,
    stride: usize,
    seen: Vec<Seen>,
    /// The hash of a page of zeros, which is the content of a hole.
    zeros: u64,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    hash: u64,
    /// Sample of the last change; 0 means never.
    last: u32,
}

impl Pages {
    pub(super) fn new(view: View, looked_at: usize, stride: usize) -> Self {
        let zeros = of_page(&std::array::from_fn::<_, PAGE_WORDS, _>(|_| AtomicU64::new(0)));
        Self { view, stride, seen: vec![Seen::default(); looked_at], zeros }
    }

    /// Returns an error if the file was truncated, because its last pages cannot be read.
    pub(super) fn check_length(&self, path: &Path) -> Result<(), ChangesError> {
        let bytes = self.view.bytes().map_err(host("reading the length of", path))?;
        if bytes < self.view.words().len() as u64 * 8 {
            return Err(ChangesError::Shrunk { file: path.into(), bytes });
        }
        Ok(())
    }

    /// Hashes each page and reports changes since the previous sample to `history`. There are none at sample 0.
    pub(super) fn scan(&mut self, history: &mut History, sample: u32) {
        history.begin(sample);
        let mut held = Some(0..0);
        for (at, seen) in self.seen.iter_mut().enumerate() {
            let page = at * self.stride;
            let offset = page as u64 * PAGE_BYTES;
            if held.as_ref().is_some_and(|held| held.end <= offset) {
                held = self.view.held_from(offset);
            }
            let words = &self.view.words()[page * PAGE_WORDS..][..PAGE_WORDS];
            let hash = if held.as_ref().is_some_and(|held| held.contains(&offset)) { of_page(words) } else { self.zeros };
            if hash != seen.hash && sample > 0 {
                history.changed(seen.last);
                seen.last = sample;
            }
            seen.hash = hash;
        }
    }
}
