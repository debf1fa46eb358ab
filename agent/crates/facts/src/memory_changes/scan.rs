//! One scan of all hashed pages. They are read and not mapped: whoever owns the file may truncate it at any time, and reading a
//! mapping past the end of its file would kill the process.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::hash::of_page;
use super::history::History;
use super::{host, ChangesError, PAGE_BYTES};

/// Consecutive pages that are read at once.
const AT_ONCE: usize = 64;

/// Pages of a file, with their hashes.
pub(super) struct Pages {
    file: File,
    stride: u64,
    seen: Vec<Seen>,
    /// The hash of a page of zeros, which is the content of a hole.
    zeros: u64,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    hash: u64,
    /// Sample of the last change; 0 means never.
    last: u32,
}

impl Pages {
    /// Every `stride`th page of the first `pages` pages.
    pub(super) fn new(file: File, pages: u64, stride: u32) -> Self {
        let at_once = if stride == 1 { AT_ONCE } else { 1 };
        Self {
            file,
            stride: stride.into(),
            seen: vec![Seen::default(); pages.div_ceil(stride.into()) as usize],
            zeros: of_page(&[0; PAGE_BYTES as usize]),
            buffer: vec![0; at_once * PAGE_BYTES as usize],
        }
    }

    /// The number of pages that are hashed.
    pub(super) fn looked_at(&self) -> u64 {
        self.seen.len() as u64
    }

    /// Hashes each page and reports changes since the previous sample to `history`. There are none at sample 0.
    ///
    /// # Errors
    /// If the file cannot be read, for example because it became shorter.
    pub(super) fn scan(&mut self, path: &Path, history: &mut History, sample: u32) -> Result<(), ChangesError> {
        history.begin(sample);
        let (mut held, mut read) = (Some(0..0), 0..0);
        let end = ((self.seen.len() as u64 - 1) * self.stride + 1) * PAGE_BYTES;
        for (at, seen) in self.seen.iter_mut().enumerate() {
            let offset = at as u64 * self.stride * PAGE_BYTES;
            if held.as_ref().is_some_and(|held| held.end <= offset) {
                held = held_from(&self.file, offset);
            }
            let hash = if held.as_ref().is_some_and(|held| held.contains(&offset)) {
                if !read.contains(&offset) {
                    read = offset..end.min(offset + self.buffer.len() as u64);
                    let room = &mut self.buffer[..(read.end - read.start) as usize];
                    self.file.read_exact_at(room, offset).map_err(|error| unreadable(&self.file, path, error))?;
                }
                of_page(&self.buffer[(offset - read.start) as usize..][..PAGE_BYTES as usize])
            } else {
                self.zeros
            };
            if hash != seen.hash && sample > 0 {
                history.changed(seen.last);
                seen.last = sample;
            }
            seen.hash = hash;
        }
        Ok(())
    }
}

/// The next allocated range of the file from `offset` on. After it there is a hole. None if only a hole follows. If a file system does
/// not report holes, everything counts as allocated.
fn held_from(file: &File, offset: u64) -> Option<Range<u64>> {
    let begin = match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(begin) => begin,
        // Past the end of a file that became shorter, reading tells so.
        Err(Errno::NXIO) if file.metadata().is_ok_and(|now| now.len() > offset) => return None,
        Err(_) => return Some(offset..u64::MAX),
    };
    Some(begin..rustix::fs::seek(file, SeekFrom::Hole(begin)).unwrap_or(u64::MAX))
}

fn unreadable(file: &File, path: &Path, error: io::Error) -> ChangesError {
    match (error.kind(), file.metadata()) {
        (io::ErrorKind::UnexpectedEof, Ok(now)) => ChangesError::Shrunk { file: path.into(), bytes: now.len() },
        _ => host("reading", path)(error),
    }
}
