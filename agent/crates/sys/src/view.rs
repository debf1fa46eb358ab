//! A file in memory, mapped for reading while others change it, such as the memory of a guest. It is accessed in atomic words, not
//! slices, because the other side may change it at any time. `shared` also supports writing.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;

use rustix::fs::SeekFrom;
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};

const WORD_BYTES: usize = size_of::<AtomicU64>();

/// A mapping of the whole words at the start of a file. If the file was truncated, a read past its end kills the process with `SIGBUS`.
/// Check [`View::bytes`] before reading.
#[derive(Debug)]
pub struct View {
    file: File,
    start: *const AtomicU64,
    words: usize,
}

// SAFETY: the mapping is only accessed through atomic words, and belongs to no thread.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// Maps the first `words` words of `file`.
    ///
    /// # Errors
    /// What the kernel says; `EINVAL` for none.
    pub fn new(file: File, words: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap(std::ptr::null_mut(), words * WORD_BYTES, ProtFlags::READ, MapFlags::SHARED, file.as_fd(), 0)? };
        Ok(Self { file, start: start.cast(), words })
    }

    /// The words, for relaxed loads only: the mapping cannot be written to.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: within the mapping, which is page-aligned and lives as long as `self`; any bits are a word, and relaxed loads of
        // words are allowed on memory that cannot be written to.
        unsafe { std::slice::from_raw_parts(self.start, self.words) }
    }

    /// Current length of the file.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// The next allocated range of the file from `offset` on. After it there is a hole, which reading would fill with pages. None if only a
    /// hole follows. If a file system does not report holes, everything counts as allocated.
    #[must_use]
    pub fn held_from(&self, offset: u64) -> Option<std::ops::Range<u64>> {
        let begin = match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(begin) => begin,
            Err(rustix::io::Errno::NXIO) => return None,
            Err(_) => return Some(offset..u64::MAX),
        };
        Some(begin..rustix::fs::seek(&self.file, SeekFrom::Hole(begin)).unwrap_or(u64::MAX))
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`, which nothing uses any more.
        let _ = unsafe { munmap(self.start.cast_mut().cast(), self.words * WORD_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::Ordering;

    fn file(bytes: u64) -> File {
        let fd = rustix::fs::memfd_create("view", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        fd.into()
    }

    #[test]
    fn changes_of_the_file_are_visible() {
        let file = file(8192);
        let view = View::new(file.try_clone().unwrap(), 1024).unwrap();
        file.write_all_at(&7_u64.to_ne_bytes(), 4096).unwrap();
        assert_eq!((view.words().len(), view.words()[512].load(Ordering::Relaxed)), (1024, 7));
        assert_eq!(view.bytes().unwrap(), 8192);
    }

    #[test]
    fn holes_are_known() {
        let file = file(65536);
        let view = View::new(file.try_clone().unwrap(), 8192).unwrap();
        assert_eq!(view.held_from(0), None);
        file.write_all_at(&[1; 5000], 8192).unwrap();
        assert_eq!(view.held_from(0), Some(8192..16384));
        assert_eq!(view.held_from(12288), Some(12288..16384));
        assert_eq!(view.held_from(16384), None);
    }
}
