//! How requests reach the operating system: by `pread`/`pwrite` for a queue depth of 1, and by `io_uring` for a deeper queue. If
//! `io_uring` is missing, forbidden (as in container runtimes) or lacks an option, by `pread`/`pwrite` on threads.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{channel, sync_channel, Receiver, Sender, SyncSender};

use partywall_sys::memory::Block;
use partywall_sys::ring::FileRing;

use super::job::{Job, Sync, Via};
use crate::peer::Peer;
use crate::{noise, KernelError};

/// The slot of a completed request, and its result.
pub(super) type Completion = (usize, io::Result<()>);

/// Keeps up to a queue's depth of requests in flight.
pub(super) trait Engine: Send {
    /// Starts the request of `slot`, which must not be in flight.
    fn submit(&mut self, slot: usize, offset: u64) -> io::Result<()>;

    /// Waits for at least one request and appends all completed ones to `done`. Returns an error, instead of waiting indefinitely, if
    /// none is in flight.
    fn complete(&mut self, done: &mut Vec<Completion>) -> io::Result<()>;

    /// Name for the facts.
    fn name(&self) -> &'static str;
}

/// Starts the requested engine, or the one that the host supports.
pub(super) fn start(job: &Job, file: &File) -> Result<Box<dyn Engine>, KernelError> {
    let transfer = Transfer { write: job.kind.writes(), sync: job.sync };
    let expressible = !matches!(job.sync, Sync::Fsync | Sync::Fdatasync);
    let wanted = job.via == Via::IoUring || (job.via == Via::Auto && job.depth > 1 && expressible);
    if wanted {
        match Ring::start(job, file) {
            Ok(ring) => return Ok(Box::new(ring)),
            Err(error) if job.via == Via::IoUring => {
                let why = format!("cannot be used here ({error}); use engine threads, or allow it in the sandbox");
                return Err(KernelError::Parameter { key: "engine", value: "io_uring".into(), why });
            }
            Err(_) => {}
        }
    }
    let started = if job.depth == 1 { Single::start(job, file, transfer) } else { Threads::start(job, file, transfer) };
    started.map_err(KernelError::host(format!("preparing {} requests of {} bytes", job.depth, job.request)))
}

/// A single request, carried out synchronously.
#[derive(Clone, Copy)]
struct Transfer {
    write: bool,
    sync: Sync,
}

impl Transfer {
    fn run(self, file: &File, buffer: &mut Block, offset: u64) -> io::Result<()> {
        if !self.write {
            return file.read_exact_at(buffer.bytes_mut(), offset);
        }
        file.write_all_at(buffer.bytes(), offset)?;
        match self.sync {
            Sync::None | Sync::Dsync => Ok(()),
            Sync::Fsync => file.sync_all(),
            Sync::Fdatasync => file.sync_data(),
        }
    }
}

fn buffer(job: &Job, seed: u64) -> io::Result<Block> {
    let mut block = Block::new(job.request)?;
    noise::fill(block.bytes_mut(), job.seed ^ mark(seed));
    Ok(block)
}

/// Makes written data differ from the file's initial content.
fn mark(seed: u64) -> u64 {
    noise::mix(seed.wrapping_add(0x5757))
}

struct Single {
    file: File,
    transfer: Transfer,
    buffer: Block,
}

impl Single {
    fn start(job: &Job, file: &File, transfer: Transfer) -> io::Result<Box<dyn Engine>> {
        Ok(Box::new(Self { file: file.try_clone()?, transfer, buffer: buffer(job, 0)? }))
    }
}

impl Engine for Single {
    fn submit(&mut self, _: usize, offset: u64) -> io::Result<()> {
        self.transfer.run(&self.file, &mut self.buffer, offset)
    }

    fn complete(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        done.push((0, Ok(())));
        Ok(())
    }

    fn name(&self) -> &'static str {
        if self.transfer.write {
            "pwrite"
        } else {
            "pread"
        }
    }
}

struct Ring {
    ring: FileRing,
    write: bool,
}

impl Ring {
    fn start(job: &Job, file: &File) -> io::Result<Self> {
        let content = |bytes: &mut [u8]| noise::fill(bytes, job.seed ^ mark(0));
        let ring = FileRing::new(file.try_clone()?, job.depth as u32, job.request as u32, content)?;
        Ok(Self { ring, write: job.kind.writes() })
    }
}

impl Engine for Ring {
    fn submit(&mut self, slot: usize, offset: u64) -> io::Result<()> {
        if self.write {
            self.ring.write(slot, offset)
        } else {
            self.ring.read(slot, offset)
        }
    }

    fn complete(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        self.ring.complete(1, done)
    }

    fn name(&self) -> &'static str {
        "io_uring"
    }
}

/// A thread for each request in flight. Dropping the senders ends them.
struct Threads {
    requests: Vec<SyncSender<u64>>,
    finished: Receiver<Completion>,
    in_flight: usize,
    write: bool,
    _peers: Vec<Peer>,
}

impl Threads {
    fn start(job: &Job, file: &File, transfer: Transfer) -> io::Result<Box<dyn Engine>> {
        let (finish, finished) = channel();
        let (mut requests, mut peers) = (Vec::new(), Vec::new());
        for slot in 0..job.depth {
            let (send, receive) = sync_channel(1);
            let (file, finish, buffer) = (file.try_clone()?, finish.clone(), buffer(job, slot as u64)?);
            peers.push(Peer::spawn("disk request", move || serve(slot, &receive, &finish, &file, transfer, buffer))?);
            requests.push(send);
        }
        Ok(Box::new(Self { requests, finished, in_flight: 0, write: transfer.write, _peers: peers }))
    }
}

fn serve(slot: usize, requests: &Receiver<u64>, finish: &Sender<Completion>, file: &File, transfer: Transfer, mut buffer: Block) {
    for offset in requests {
        if finish.send((slot, transfer.run(file, &mut buffer, offset))).is_err() {
            return;
        }
    }
}

impl Engine for Threads {
    fn submit(&mut self, slot: usize, offset: u64) -> io::Result<()> {
        self.requests[slot].send(offset).map_err(|_| io::ErrorKind::BrokenPipe)?;
        self.in_flight += 1;
        Ok(())
    }

    fn complete(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        if self.in_flight == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let first = self.finished.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
        let before = done.len();
        done.extend(std::iter::once(first).chain(self.finished.try_iter()));
        self.in_flight -= done.len() - before;
        Ok(())
    }

    fn name(&self) -> &'static str {
        if self.write {
            "pwrite on threads"
        } else {
            "pread on threads"
        }
    }
}
