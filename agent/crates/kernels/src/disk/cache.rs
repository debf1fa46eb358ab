//! How each disk kernel handles the page cache, so that it measures the disk.
//!
//! * `disk-read` drops the pages that it has read. The cache may hold a file in pieces of up to 2 MiB, which can only be dropped as
//!   a whole. In sequential order it drops whole windows. In random order there is no read-ahead, and so no large piece.
//! * Buffered writers limit dirty bytes: after each half of the limit they wait for the half before and start writing this one.
//!   Without a limit, a small file would be overwritten in memory repeatedly and hardly reach the disk.
//! * `disk-write` frees blocks just before it writes them, so that each write allocates new ones.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;

use partywall_sys::page_cache;
use rustix::fs::{fadvise, fallocate, Advice, FallocateFlags};

use super::job::{Job, Kind, Order, Sync};

const WINDOW_BYTES: u64 = 2 << 20;
const PAGE_BYTES: u64 = 4096;

/// The part of the cache's state that this kernel manages.
pub(super) struct Cache {
    file: File,
    kind: Kind,
    order: Order,
    len: u64,
    /// Half of the limit on dirty bytes, if there is one.
    half: Option<u64>,
    dirtied: u64,
    /// How far requests may still be out of order behind the newest.
    lag: u64,
    /// In sequential order: the end of the dropped or freed windows.
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
            // Bytes that each request makes durable are not dirty afterwards.
            half: (buffered_writer && job.sync == Sync::None).then(|| (job.dirty / 2).max(1)),
            dirtied: 0,
            lag: (job.depth * job.request) as u64,
            edge: 0,
        }
    }

    /// Whether a lap must wait until the requests of the last one have completed.
    pub fn drops(&self) -> bool {
        self.kind == Kind::Read
    }

    /// Starts a lap: no page of the file may remain in the cache.
    pub fn lap(&mut self) -> io::Result<()> {
        self.edge = 0;
        if self.drops() {
            self.drop_range(0..self.len)?;
        }
        Ok(())
    }

    /// Called before a request at `offset` starts.
    pub fn before(&mut self, offset: u64, len: usize) -> io::Result<()> {
        let end = offset + len as u64;
        match (self.kind, self.order) {
            (Kind::Write, Order::Random) => self.free(offset..end),
            (Kind::Write, Order::Sequential) if end > self.edge => {
                // At most a quarter of the file, so that requests in flight from the end of the last lap are outside the window.
                let window = WINDOW_BYTES.min(self.len / 4);
                let fresh = self.edge..(self.edge + window).max(end).min(self.len);
                self.edge = fresh.end;
                self.free(fresh)
            }
            _ => Ok(()),
        }
    }

    /// Called after a request of `len` bytes has completed. Waits if there are too many dirty bytes.
    pub fn written(&mut self, len: usize) -> io::Result<()> {
        let Some(half) = self.half else { return Ok(()) };
        self.dirtied += len as u64;
        if self.dirtied < half {
            return Ok(());
        }
        self.dirtied = 0;
        page_cache::turn_over(&self.file)
    }

    /// Called after a request at `offset` has completed. Drops the pages that were read.
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

    /// Writes out all dirty bytes and waits for them.
    pub fn settle(&mut self) -> io::Result<()> {
        if self.half.is_none() {
            return Ok(());
        }
        self.dirtied = 0;
        page_cache::write_out(&self.file, 0..0)
    }

    /// Bytes of the file in the cache. None if the host does not report it.
    pub fn resident_bytes(&self) -> Option<u64> {
        page_cache::resident_bytes(&self.file, self.len as usize).ok()
    }

    fn drop_range(&self, range: Range<u64>) -> io::Result<()> {
        Ok(fadvise(&self.file, range.start, NonZeroU64::new(range.end - range.start), Advice::DontNeed)?)
    }

    /// Frees blocks. Dirty bytes there are written first, or they would never have loaded the disk.
    fn free(&self, range: Range<u64>) -> io::Result<()> {
        page_cache::write_out(&self.file, range.clone())?;
        Ok(fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, range.start, range.end - range.start)?)
    }
}
