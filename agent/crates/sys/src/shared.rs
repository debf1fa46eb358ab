//! Memory shared with the kernel through a file descriptor, such as an eBPF map's. It is accessed in atomic words, not slices, because
//! the other side may change it at any time.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};

/// A mapping of whole words.
#[derive(Debug)]
pub struct Shared {
    start: *mut AtomicU64,
    words: usize,
}

// SAFETY: the mapping is only accessed through atomic words, and belongs to no thread.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps `words` words of `fd`.
    ///
    /// # Errors
    /// The kernel's error; `EINVAL` for 0 words, or more than there are.
    pub fn new(fd: impl AsFd, words: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap(std::ptr::null_mut(), words * 8, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0)? };
        Ok(Self { start: start.cast(), words })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.words, "word {at} of {}", self.words);
        // SAFETY: within the mapping, which is page-aligned and lives as long as `self`; any bits are a word.
        unsafe { &*self.start.add(at) }
    }

    /// Reads word `at` with acquire ordering: later reads see everything written before it.
    ///
    /// # Panics
    /// Beyond the end, as all of these.
    #[must_use]
    pub fn acquire(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    /// Word `at`.
    #[must_use]
    pub fn read(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Relaxed)
    }

    /// Sets word `at` if it is still `seen`. Returns whether it was.
    #[must_use]
    pub fn exchange(&self, at: usize, seen: u64, value: u64) -> bool {
        self.word(at).compare_exchange(seen, value, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Sets word `at` to the result of `change` without losing concurrent changes. Returns the old and the new value. None if `change`
    /// returns None, or if the other side won `tries` races.
    pub fn update(&self, at: usize, tries: usize, change: impl Fn(u64) -> Option<u64>) -> Option<(u64, u64)> {
        for _ in 0..tries {
            let seen = self.read(at);
            let value = change(seen)?;
            if self.exchange(at, seen, value) {
                return Some((seen, value));
            }
        }
        None
    }

    /// Sets word `at` with release ordering.
    pub fn release(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`, which nothing uses any more.
        let _ = unsafe { munmap(self.start.cast(), self.words * 8) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

    fn file(bytes: u64) -> OwnedFd {
        let fd = rustix::fs::memfd_create("shared", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        fd
    }

    #[test]
    fn a_value_written_by_one_side_is_read_by_the_other() {
        let fd = file(4096);
        let (ours, theirs) = (Shared::new(&fd, 512).unwrap(), Shared::new(&fd, 512).unwrap());
        ours.release(511, 7);
        assert_eq!((theirs.acquire(511), theirs.read(0)), (7, 0));
    }

    #[test]
    fn an_update_is_made_of_what_the_other_side_wrote_meanwhile() {
        let fd = file(4096);
        let (ours, theirs) = (Shared::new(&fd, 512).unwrap(), Shared::new(&fd, 512).unwrap());
        let first = std::cell::Cell::new(true);
        let updated = ours.update(3, 2, |seen| {
            if first.replace(false) {
                theirs.release(3, 40);
            }
            Some(seen + 2)
        });
        assert_eq!((updated, theirs.read(3)), (Some((40, 42)), 42));
        assert_eq!(ours.update(3, 2, |_| None), None);
        let always_slower = ours.update(3, 2, |seen| {
            theirs.release(3, seen + 1);
            Some(0)
        });
        assert_eq!((always_slower, ours.read(3)), (None, 44));
    }

    #[test]
    #[should_panic(expected = "word 512 of 512")]
    fn beyond_the_end_is_a_mistake() {
        let _ = Shared::new(file(4096), 512).unwrap().read(512);
    }
}
