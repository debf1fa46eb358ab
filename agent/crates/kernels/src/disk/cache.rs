//! What each disk kernel does about the page cache, so that it measures what it says.
//!
//! * `disk-read` drops what it has read. The cache may hold a file in pieces of up to 2 MiB, which only go whole: in
//!   sequential order whole windows are dropped, in random order there is no read-ahead and so no large piece.
//! * Buffered writers bound what is dirty: after each half of the bound they wait for the half before and start this one.
//!   Without a bound a small file would be overwritten in memory again and again and hardly reach the disk.
//! * `disk-write` gives blocks back to the file system just before they are written, so that each write makes new ones.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;

use partywall_sys::page_cache;
use rustix::fs::{fadvise, fallocate, Advice, FallocateFlags};

use super::job::{Job, Kind, Order, Sync};

const WINDOW_BYTES: u64 = 2 << 20;
const PAGE_BYTES: u64 = 4096;

/// The cache's state as far as this kernel answers for it.
pub(super) struct Cache {
    file: File,
    kind: Kind,
    order: Order,
    len: u64,
    /// Half the bound on dirty bytes, where there is one.
    half: Option<u64>,
    dirtied: u64,
    /// How far requests may still be out of order behind the newest.
    lag: u64,
    /// In sequential order: where dropped or freed windows end.
    edge: u64,
}

impl Cache {
    pub fn new(job: &Job, file: File) -> Self {
        let buffered_writer = job.kind.writes() && !job.kind.direct();
        Self {
            file,
            kind: job.kind,
            order: job.order,
            len: job.file_bytes,
            // What each request makes durable is not dirty any more.
            half: (buffered_writer && job.sync == Sync::None).then(|| (job.dirty / 2).max(1)),
            dirtied: 0,
            lag: (job.depth * job.request) as u64,
            edge: 0,
        }
    }

    /// Whether a lap must not start before the requests of the last one are done.
    pub fn drops(&self) -> bool {
        self.kind == Kind::Read
    }

    /// A lap starts: nothing of the file may be left in the cache.
    pub fn lap(&mut self) -> io::Result<()> {
        self.edge = 0;
        if self.drops() {
            self.drop_range(0..self.len)?;
        }
        Ok(())
    }

    /// A request at `offset` is about to start.
    pub fn before(&mut self, offset: u64, len: usize) -> io::Result<()> {
        let end = offset + len as u64;
        match (self.kind, self.order) {
            (Kind::Write, Order::Random) => self.free(offset..end),
            (Kind::Write, Order::Sequential) if end > self.edge => {
                // A quarter of the file at most: what is still in flight from the end of the last lap is farther away.
                let window = WINDOW_BYTES.min(self.len / 4);
                let fresh = self.edge..(self.edge + window).max(end).min(self.len);
                self.edge = fresh.end;
                self.free(fresh)
            }
            _ => Ok(()),
        }
    }

    /// A request of `len` bytes has completed; waits if too much is dirty.
    pub fn written(&mut self, len: usize) -> io::Result<()> {
        let Some(half) = self.half else { return Ok(()) };
        self.dirtied += len as u64;
        if self.dirtied < half {
            return Ok(());
        }
        self.dirtied = 0;
        page_cache::turn_over(&self.file)
    }

    /// A request at `offset` has completed; drops what was read.
    pub fn read(&mut self, offset: u64, len: usize) -> io::Result<()> {
        if !self.drops() {
            return Ok(());
        }
        let end = offset + len as u64;
        if self.order == Order::Random {
            return self.drop_range(offset / PAGE_BYTES * PAGE_BYTES..end.next_multiple_of(PAGE_BYTES));
        }
        let behind = end.saturating_sub(self.lag) / WINDOW_BYTES * WINDOW_BYTES;
        if behind > self.edge {
            self.drop_range(self.edge..behind)?;
            self.edge = behind;
        }
        Ok(())
    }

    /// Writes out what is dirty and waits for it.
    pub fn settle(&mut self) -> io::Result<()> {
        if self.half.is_none() {
            return Ok(());
        }
        self.dirtied = 0;
        page_cache::write_out(&self.file, 0..0)
    }

    /// How much of the file is in the cache, unless the host does not say.
    pub fn resident_bytes(&self) -> Option<u64> {
        page_cache::resident_bytes(&self.file, self.len as usize).ok()
    }

    fn drop_range(&self, range: Range<u64>) -> io::Result<()> {
        Ok(fadvise(&self.file, range.start, NonZeroU64::new(range.end - range.start), Advice::DontNeed)?)
    }

    /// Gives blocks back. What is still dirty there is written first, or it would never have pressed on the disk.
    fn free(&self, range: Range<u64>) -> io::Result<()> {
        page_cache::write_out(&self.file, range.clone())?;
        Ok(fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, range.start, range.end - range.start)?)
    }
}
