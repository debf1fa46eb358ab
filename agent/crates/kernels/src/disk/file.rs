//! The file a disk kernel works on: nameless, written to its end before the work starts, and on something that is a disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use partywall_sys::memory::Block;
use partywall_sys::page_cache;
use rustix::fs::{fadvise, fcntl_getfl, fcntl_setfl, fstatfs, fstatvfs, open, unlink, Advice, Mode, OFlags};
use rustix::io::Errno;

use super::job::{Job, Kind, Order, Sync};
use crate::{noise, KernelError};

const CHUNK_BYTES: usize = 4 << 20;
/// File systems that keep their files in memory, by their magic number (`statfs(2)`).
const IN_MEMORY: [(u32, &str); 3] = [(0x0102_1994, "tmpfs"), (0x8584_58F6, "ramfs"), (0x9584_58F6, "hugetlbfs")];

/// A file ready to be worked on.
pub(super) struct Made {
    pub file: File,
    /// What offsets and sizes must be multiples of; only known for direct access.
    pub align_bytes: Option<usize>,
}

/// Makes the file of `job`.
pub(super) fn make(job: &Job) -> Result<Made, KernelError> {
    let file = open_nameless(job)?;
    check_disk(job, &file)?;
    check_space(job, &file)?;
    check_droppable(job, &file)?;
    let tried = |what: &str| KernelError::host(format!("{what} a file of {} bytes in {}", job.file_bytes, job.folder.display()));
    match job.kind {
        // New blocks are what it is about: the first lap makes them.
        Kind::Write => file.set_len(0).and_then(|()| file.set_len(job.file_bytes)).map_err(tried("sizing"))?,
        _ => fill(&file, job).map_err(tried("filling"))?,
    }
    let align_bytes = if job.kind.direct() { Some(aligned(job, &file)?) } else { None };
    match job.kind {
        // Read-ahead would bring in what nobody asked for, in pieces too large to be dropped one request at a time.
        Kind::Read if job.order == Order::Random => {
            fadvise(&file, 0, None, Advice::Random).map_err(io::Error::from).map_err(tried("advising on"))?;
        }
        Kind::Reread | Kind::Rewrite => warm(&file, job.file_bytes).map_err(tried("reading"))?,
        Kind::Read | Kind::Write | Kind::DirectRead | Kind::DirectWrite => {}
    }
    Ok(Made { file, align_bytes })
}

fn open_nameless(job: &Job) -> Result<File, KernelError> {
    let mut flags = OFlags::RDWR | OFlags::CLOEXEC;
    flags.set(OFlags::DSYNC, job.sync == Sync::Dsync);
    let opened = match open(&job.folder, flags | OFlags::TMPFILE, Mode::RUSR | Mode::WUSR) {
        // Not every file system can make a file without a name, and EISDIR is how old kernels say so.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => open_and_unlink(job, flags),
        opened => opened,
    };
    let file = opened.map_err(io::Error::from).map_err(KernelError::host(format!("making a file in {}", job.folder.display())))?;
    Ok(file.into())
}

fn open_and_unlink(job: &Job, flags: OFlags) -> rustix::io::Result<std::os::fd::OwnedFd> {
    let mut state = job.seed ^ u64::from(std::process::id());
    loop {
        let path = job.folder.join(format!(".partywall-disk-{:016x}", noise::next(&mut state)));
        match open(&path, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR) {
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
            Ok(file) => return unlink(&path).map(|()| file),
        }
    }
}

fn wrong_place(job: &Job, why: String) -> KernelError {
    KernelError::Parameter { key: "path", value: job.folder.display().to_string(), why }
}

fn check_disk(job: &Job, file: &File) -> Result<(), KernelError> {
    let kind = fstatfs(file).map_err(io::Error::from).map_err(KernelError::host("asking for the kind of file system"))?.f_type as u32;
    match IN_MEMORY.iter().find(|(magic, _)| *magic == kind) {
        Some((_, name)) => Err(wrong_place(job, format!("is on {name}, which is memory and not a disk; give a folder on a disk"))),
        None => Ok(()),
    }
}

/// Keeps 5 % of the file system and at least 512 MiB free, with the files of all workers made.
fn check_space(job: &Job, file: &File) -> Result<(), KernelError> {
    let space = fstatvfs(file).map_err(io::Error::from).map_err(KernelError::host("asking for the free space"))?;
    let free = space.f_bavail * space.f_frsize;
    let reserve = (space.f_blocks * space.f_frsize / 20).max(512 << 20);
    let need = job.file_bytes * u64::from(job.workers.max(1));
    if free < need.saturating_add(reserve) {
        let why = format!(
            "for each of {} workers would leave less than {reserve} bytes of the {free} free in {}; at most {} fits",
            job.workers,
            job.folder.display(),
            free.saturating_sub(reserve) / u64::from(job.workers.max(1))
        );
        return Err(KernelError::Parameter { key: "file_bytes", value: job.file_bytes.to_string(), why });
    }
    Ok(())
}

fn set_direct(file: &File, direct: bool) -> io::Result<()> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, direct);
    Ok(fcntl_setfl(file, flags)?)
}

/// Writes the whole file, so that no hole is ever read, past the page cache where that is possible.
fn fill(file: &File, job: &Job) -> io::Result<()> {
    let direct = set_direct(file, true).is_ok();
    let mut chunk = Block::new(CHUNK_BYTES)?;
    // To a whole page: a direct write cannot end in the middle of a block.
    let end = job.file_bytes.next_multiple_of(4096);
    for offset in (0..end).step_by(CHUNK_BYTES) {
        noise::fill(chunk.bytes_mut(), job.seed.wrapping_add(offset));
        let len = CHUNK_BYTES.min((end - offset) as usize);
        file.write_all_at(&chunk.bytes()[..len], offset)?;
    }
    file.sync_all()?;
    if direct {
        set_direct(file, false)?;
    }
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

/// Switches to direct access and finds by trying what the device wants requests to be multiples of.
fn aligned(job: &Job, file: &File) -> Result<usize, KernelError> {
    if set_direct(file, true).is_err() {
        return Err(wrong_place(job, "is on a file system without direct access (O_DIRECT); give a folder on one that has it".into()));
    }
    let mut block = Block::new(64 << 10).map_err(KernelError::host("allocating a block"))?;
    let fits = |size: &usize| file.read_exact_at(&mut block.bytes_mut()[..*size], *size as u64).is_ok();
    let Some(align) = [512, 1024, 2048, 4096, 8192, 16384, 65536].into_iter().find(fits) else {
        return Err(wrong_place(
            job,
            "is on a file system that refuses direct reads of every size up to 64 KiB; give another folder".into(),
        ));
    };
    if !job.request.is_multiple_of(align) {
        let why = format!("is not a multiple of {align} bytes, the smallest request the device takes directly");
        return Err(KernelError::Parameter { key: "request_bytes", value: job.request.to_string(), why });
    }
    Ok(align)
}

/// Where what was written stays in memory after it has been synchronised and dropped, there is no disk behind, whatever the file
/// system is called: an overlay, say, over one that lives in memory.
fn check_droppable(job: &Job, file: &File) -> Result<(), KernelError> {
    const TRIAL: usize = 1 << 20;
    let left = || -> io::Result<u64> {
        let mut chunk = vec![0; TRIAL];
        noise::fill(&mut chunk, job.seed);
        file.write_all_at(&chunk, 0)?;
        file.sync_all()?;
        // A page that somebody else happens to hold, such as write-back on its last instructions, is let go a moment later.
        for _ in 0..2 {
            fadvise(file, 0, None, Advice::DontNeed)?;
        }
        page_cache::resident_bytes(file, TRIAL)
    };
    match left().map_err(KernelError::host("dropping the page cache of a file"))? {
        0 => Ok(()),
        left => Err(wrong_place(
            job,
            format!("keeps files in memory: {left} of {TRIAL} bytes stay there after synchronising and dropping them; give another folder"),
        )),
    }
}

fn warm(file: &File, bytes: u64) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    for offset in (0..bytes).step_by(CHUNK_BYTES) {
        let len = CHUNK_BYTES.min((bytes - offset) as usize);
        file.read_exact_at(&mut chunk[..len], offset)?;
    }
    Ok(())
}
