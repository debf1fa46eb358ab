//! Blocks of page-aligned memory.

use std::io;
use std::ptr::NonNull;

/// Anonymous private memory, page-aligned and zeroed. Unmapped on drop.
pub struct Block {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a `Block` is the only owner of its mapping, and nothing else holds the pointer.
unsafe impl Send for Block {}
// SAFETY: shared access only reads through `&[u8]`.
unsafe impl Sync for Block {}

impl Block {
    /// Maps `len` bytes (at least one), untouched.
    ///
    /// # Errors
    /// `ENOMEM` when the host or the sandbox has no room.
    pub fn new(len: usize) -> io::Result<Self> {
        use rustix::mm::{mmap_anonymous, MapFlags, ProtFlags};
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len.max(1), ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE)?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len: len.max(1) })
    }

    /// Maps `len` bytes and writes one byte per page, so that later accesses use real memory and not the zero page.
    ///
    /// # Errors
    /// As [`Block::new`].
    pub fn touched(len: usize) -> io::Result<Self> {
        let mut block = Self::new(len)?;
        block.touch();
        Ok(block)
    }

    /// Writes one byte per page, so that later accesses use real memory and not the zero page.
    pub fn touch(&mut self) {
        for page in self.bytes_mut().chunks_mut(4096) {
            page[0] = 1;
        }
    }

    /// Requests transparent huge pages. Only pages touched later can become part of one.
    ///
    /// # Errors
    /// `EINVAL` from a kernel without them.
    pub fn advise_huge_pages(&mut self) -> io::Result<()> {
        use rustix::mm::{madvise, Advice};
        // SAFETY: exactly this block's mapping; the advice changes its kind of pages and not its content.
        unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxHugepage)? };
        Ok(())
    }

    /// Start of the memory, page-aligned.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The memory.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is `len` bytes long, readable, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The memory, writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// The memory as numbers, as many as fit.
    #[must_use]
    pub fn floats(&self) -> &[f64] {
        // SAFETY: as in `bytes`; a page is aligned for `f64`, and every pattern of bits is one.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len / size_of::<f64>()) }
    }

    /// The memory as writable numbers.
    pub fn floats_mut(&mut self) -> &mut [f64] {
        // SAFETY: as in `floats`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.len / size_of::<f64>()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped; no reference to it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
