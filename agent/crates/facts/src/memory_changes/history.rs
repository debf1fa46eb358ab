//! Counts pages by the sample at which they changed last. Pure.

/// Samples are numbered by the intervals since the first.
pub(super) struct History {
    /// Number of pages that changed last at each sample, without pages that never changed.
    last: Vec<u64>,
    taken: Vec<bool>,
    now: usize,
}

impl History {
    pub(super) fn new(samples: usize) -> Self {
        Self { last: vec![0; samples], taken: vec![false; samples], now: 0 }
    }

    /// Begins sample `now`.
    pub(super) fn begin(&mut self, now: u32) {
        self.now = now as usize;
        self.taken[self.now] = true;
    }

    /// Records a change of a page that changed last at sample `before`; 0 means never.
    pub(super) fn changed(&mut self, before: u32) {
        if before > 0 {
            self.last[before as usize] -= 1;
        }
        self.last[self.now] += 1;
    }

    /// Number of pages that changed in the last `window` intervals. None if no sample was taken at the start of the window.
    pub(super) fn changed_within(&self, window: u32) -> Option<u64> {
        let begin = self.now.checked_sub(window as usize)?;
        self.taken[begin].then(|| self.last[begin + 1..=self.now].iter().sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_counts_once_in_each_window_that_it_changed_in() {
        let mut history = History::new(10);
        history.begin(0);
        assert_eq!(history.changed_within(1), None);
        history.begin(1);
        history.changed(0);
        history.changed(0);
        assert_eq!(history.changed_within(1), Some(2));
        history.begin(2);
        history.changed(1);
        assert_eq!((history.changed_within(1), history.changed_within(2), history.changed_within(3)), (Some(1), Some(2), None));
        history.begin(3);
        assert_eq!([1, 2, 3].map(|window| history.changed_within(window)), [Some(0), Some(1), Some(2)]);
    }

    #[test]
    fn a_window_that_begins_at_a_skipped_sample_is_unknown() {
        let mut history = History::new(10);
        history.begin(0);
        history.begin(3);
        history.changed(0);
        assert_eq!([1, 2, 3].map(|window| history.changed_within(window)), [None, None, Some(1)]);
    }
}
