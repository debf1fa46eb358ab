//! Concurrent reads and writes of one file over `io_uring`. The ring owns the buffers, because the kernel continues to use them after
//! the call that submits them.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use io_uring::{cqueue, opcode, squeue, types::Fd, IoUring};

use crate::memory::Block;

/// Requests of one size on one file. Each uses a buffer, identified by a number below the depth.
pub struct FileRing {
    ring: IoUring,
    file: File,
    // Only freed when no request is in flight; see `drop`. Only accessed through `start`, never by reference.
    buffers: ManuallyDrop<Block>,
    start: NonNull<u8>,
    len: u32,
    stride: usize,
    busy: Vec<bool>,
    in_flight: usize,
}

// SAFETY: `start` points into `buffers`, which the ring owns and which does not move with it.
unsafe impl Send for FileRing {}

impl FileRing {
    /// A ring for up to `depth` requests of `len` bytes in flight. `prepare` initialises the content of the buffers.
    ///
    /// # Errors
    /// `ENOSYS` or `EPERM` where `io_uring` is missing or forbidden, `ENOMEM`.
    pub fn new(file: File, depth: u32, len: u32, prepare: impl FnOnce(&mut [u8])) -> io::Result<Self> {
        let stride = (len as usize).next_multiple_of(4096);
        let mut buffers = Block::new(stride * depth as usize)?;
        prepare(buffers.bytes_mut());
        let start = NonNull::from(buffers.bytes_mut()).cast();
        // Completions are read whenever the ring is entered. Without this option, the kernel interrupts the thread for each completion.
        // Kernels before 5.19 lack it.
        let ring = IoUring::builder().setup_coop_taskrun().build(depth).or_else(|_| IoUring::new(depth))?;
        Ok(Self { ring, file, buffers: ManuallyDrop::new(buffers), start, len, stride, busy: vec![false; depth as usize], in_flight: 0 })
    }

    /// Submits a read into buffer `slot`.
    ///
    /// # Errors
    /// `ResourceBusy` if `slot` is in flight, or the kernel's error.
    pub fn read(&mut self, slot: usize, offset: u64) -> io::Result<()> {
        let buffer = self.claim(slot)?;
        self.push(slot, &opcode::Read::new(Fd(self.file.as_raw_fd()), buffer, self.len).offset(offset).build())
    }

    /// Submits a write of buffer `slot`.
    ///
    /// # Errors
    /// See [`FileRing::read`].
    pub fn write(&mut self, slot: usize, offset: u64) -> io::Result<()> {
        let buffer = self.claim(slot)?;
        self.push(slot, &opcode::Write::new(Fd(self.file.as_raw_fd()), buffer, self.len).offset(offset).build())
    }

    fn claim(&self, slot: usize) -> io::Result<*mut u8> {
        if self.busy[slot] {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        Ok(self.start.as_ptr().wrapping_add(slot * self.stride))
    }

    fn push(&mut self, slot: usize, entry: &squeue::Entry) -> io::Result<()> {
        let entry = entry.clone().user_data(slot as u64);
        // SAFETY: the entry's buffer is `len` bytes inside `buffers`, which `drop` keeps until the request has completed;
        // `claim` made sure that no other request uses it, and no reference to it is ever given out.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| io::ErrorKind::ResourceBusy)?;
        self.busy[slot] = true;
        self.in_flight += 1;
        // Submit at once, as fio does: requests collected until the next wait would reach the device in waves, and its queue
        // would run low in
        // between. Requests that the kernel cannot accept now stay in the ring until the next call.
        match self.ring.submit() {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::EINTR)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Submits pending requests, waits until `wanted` requests have completed, and appends the numbers of all completed ones to `done` with
    /// their results: `UnexpectedEof` for a short transfer.
    ///
    /// # Errors
    /// An error of the ring itself. `InvalidInput`, instead of waiting indefinitely, if fewer than `wanted` are in flight.
    /// Of the ring itself. `InvalidInput` instead of waiting indefinitely if fewer than `wanted` are in flight.
    pub fn complete(&mut self, wanted: usize, done: &mut Vec<(usize, io::Result<()>)>) -> io::Result<()> {
        if self.in_flight < wanted {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        loop {
            match self.ring.submit_and_wait(wanted) {
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        for entry in self.ring.completion() {
            let slot = entry.user_data() as usize;
            self.busy[slot] = false;
            self.in_flight -= 1;
            done.push((slot, moved(&entry, self.len)));
        }
        Ok(())
    }

    /// Number of requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }
}

fn moved(entry: &cqueue::Entry, len: u32) -> io::Result<()> {
    match u32::try_from(entry.result()) {
        Ok(bytes) if bytes == len => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::from_raw_os_error(-entry.result())),
    }
}

impl Drop for FileRing {
    fn drop(&mut self) {
        let mut done = Vec::new();
        while self.in_flight > 0 {
            let before = self.in_flight;
            let failed = self.complete(1, &mut done).is_err();
            if failed && self.in_flight == before {
                // The ring itself failed. Leak the buffers, because a device may still write to them.
                return;
            }
        }
        // SAFETY: nothing is in flight any more, and `buffers` is not used after this.
        unsafe { ManuallyDrop::drop(&mut self.buffers) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn scratch() -> File {
        let path = std::env::current_exe().unwrap().with_extension(format!("ring-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file
    }

    #[test]
    fn writes_arrive_where_they_were_sent_and_a_busy_buffer_is_refused() {
        let file = scratch();
        let Ok(mut ring) = FileRing::new(file.try_clone().unwrap(), 2, 512, |bytes| bytes.fill(9)) else {
            eprintln!("skipped: this host has no io_uring");
            return;
        };
        ring.write(0, 0).unwrap();
        ring.write(1, 1024).unwrap();
        assert_eq!(ring.write(0, 0).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        let mut done = Vec::new();
        ring.complete(2, &mut done).unwrap();
        let mut slots: Vec<usize> = done.into_iter().map(|(slot, result)| result.map(|()| slot).unwrap()).collect();
        slots.sort_unstable();
        assert_eq!((slots, ring.in_flight()), (vec![0, 1], 0));
        let mut read = [0; 512];
        file.read_exact_at(&mut read, 1024).unwrap();
        assert_eq!(read, [9; 512]);
    }

    #[test]
    fn a_read_past_the_end_is_an_error() {
        let Ok(mut ring) = FileRing::new(scratch(), 1, 512, |_| ()) else {
            eprintln!("skipped: this host has no io_uring");
            return;
        };
        ring.read(0, 4096).unwrap();
        let mut done = Vec::new();
        ring.complete(1, &mut done).unwrap();
        assert_eq!(done[0].1.as_ref().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn every_failed_request_is_reported_with_its_slot_and_its_own_error() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let Ok(mut ring) = FileRing::new(full, 3, 512, |_| ()) else {
            eprintln!("skipped: this host has no io_uring");
            return;
        };
        (0..3).for_each(|slot| ring.write(slot, 0).unwrap());
        let mut done = Vec::new();
        ring.complete(3, &mut done).unwrap();
        let mut completed: Vec<(usize, Option<i32>)> =
            done.iter().map(|(slot, result)| (*slot, result.as_ref().unwrap_err().raw_os_error())).collect();
        completed.sort_unstable();
        assert_eq!(completed, [0, 1, 2].map(|slot| (slot, Some(libc::ENOSPC))));
        assert!(ring.write(1, 0).is_ok(), "the slot is still busy");
    }
}
