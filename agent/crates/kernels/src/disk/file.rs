//! The file of a disk kernel: without a name, fully written before the work starts, and on a real disk.

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
/// Magic numbers (`statfs(2)`) of file systems that keep their files in memory.
const IN_MEMORY: [(u32, &str); 3] = [(0x0102_1994, "tmpfs"), (0x8584_58F6, "ramfs"), (0x9584_58F6, "hugetlbfs")];

/// A file that is ready for use.
pub(super) struct Made {
    pub file: File,
    /// Required alignment of offsets and sizes. Only known for direct access.
    pub align_bytes: Option<usize>,
}

/// Creates the file of `job`.
pub(super) fn make(job: &Job) -> Result<Made, KernelError> {
    let file = open_nameless(job)?;
    check_disk(job, &file)?;
    check_space(job, &file, "file_bytes", job.file_bytes)?;
    check_droppable(job, &file)?;
    let tried = |what: &str| KernelError::host(format!("{what} a file of {} bytes in {}", job.file_bytes, job.folder.display()));
    match job.kind {
        // It measures block allocation: the first lap allocates them.
        Kind::Write => file.set_len(0).and_then(|()| file.set_len(job.file_bytes)).map_err(tried("sizing"))?,
        _ => fill(&file, job.file_bytes, job.seed).map_err(tried("filling"))?,
    }
    read_before(job)?;
    let align_bytes = if job.kind.direct() { Some(aligned(job, &file)?) } else { None };
    match job.kind {
        // Read-ahead would cache pages that were not requested, in pieces too large to drop per request.
        Kind::Read if job.order == Order::Random => {
            fadvise(&file, 0, None, Advice::Random).map_err(io::Error::from).map_err(tried("advising on"))?;
        }
        Kind::Reread | Kind::Rewrite => warm(&file, job.file_bytes).map_err(tried("reading"))?,
        Kind::Read | Kind::Write | Kind::DirectRead | Kind::DirectWrite => {}
    }
    Ok(Made { file, align_bytes })
}

/// Reads a file of its own through the page cache, as the Hyper-V study does before each test of a disk. It is freed afterwards.
fn read_before(job: &Job) -> Result<(), KernelError> {
    let Some(bytes) = job.read_before else { return Ok(()) };
    let failed = || KernelError::host(format!("reading {bytes} bytes in {} before the work", job.folder.display()));
    let file = open_nameless(job)?;
    check_space(job, &file, "read_before_bytes", bytes)?;
    fill(&file, bytes, !job.seed).map_err(failed())?;
    warm(&file, bytes).map_err(failed())
}

fn open_nameless(job: &Job) -> Result<File, KernelError> {
    let mut flags = OFlags::RDWR | OFlags::CLOEXEC;
    flags.set(OFlags::DSYNC, job.sync == Sync::Dsync);
    let opened = match open(&job.folder, flags | OFlags::TMPFILE, Mode::RUSR | Mode::WUSR) {
        // Not every file system can create a file without a name. Old kernels report this as EISDIR.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => open_and_unlink(job, flags),
        opened => opened,
    };
    let file = opened.map_err(io::Error::from).map_err(KernelError::host(format!("creating a file in {}", job.folder.display())))?;
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
    let kind = fstatfs(file).map_err(io::Error::from).map_err(KernelError::host("reading the type of the file system"))?.f_type as u32;
    match IN_MEMORY.iter().find(|(magic, _)| *magic == kind) {
        Some((_, name)) => Err(wrong_place(job, format!("is on {name}, which is memory and not a disk; give a folder on a disk"))),
        None => Ok(()),
    }
}

/// Keeps 5 % of the file system and at least 512 MiB free, with the files of all workers.
fn check_space(job: &Job, file: &File, key: &'static str, bytes: u64) -> Result<(), KernelError> {
    let space = fstatvfs(file).map_err(io::Error::from).map_err(KernelError::host("reading the free space"))?;
    let free = space.f_bavail * space.f_frsize;
    let reserve = (space.f_blocks * space.f_frsize / 20).max(512 << 20);
    let need = bytes * u64::from(job.workers.max(1));
    if free < need.saturating_add(reserve) {
        let why = format!(
            "for each of {} workers would leave less than {reserve} bytes of the {free} free in {}; at most {} fits",
            job.workers,
            job.folder.display(),
            free.saturating_sub(reserve) / u64::from(job.workers.max(1))
        );
        return Err(KernelError::Parameter { key, value: bytes.to_string(), why });
    }
    Ok(())
}

fn set_direct(file: &File, direct: bool) -> io::Result<()> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, direct);
    Ok(fcntl_setfl(file, flags)?)
}

/// Writes the whole file, so that no hole is ever read. Bypasses the page cache if possible.
fn fill(file: &File, bytes: u64, seed: u64) -> io::Result<()> {
    let direct = set_direct(file, true).is_ok();
    let mut chunk = Block::new(CHUNK_BYTES)?;
    // Round up to a whole page: a direct write cannot end in the middle of a block.
    let end = bytes.next_multiple_of(4096);
    for offset in (0..end).step_by(CHUNK_BYTES) {
        noise::fill(chunk.bytes_mut(), seed.wrapping_add(offset));
        let len = CHUNK_BYTES.min((end - offset) as usize);
        file.write_all_at(&chunk.bytes()[..len], offset)?;
    }
    file.sync_all()?;
    if direct {
        set_direct(file, false)?;
    }
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

/// Switches to direct access, and tests which alignment the device requires.
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
        let why = format!("is not a multiple of {align} bytes, the smallest direct request of the device; give a multiple");
        return Err(KernelError::Parameter { key: "request_bytes", value: job.request.to_string(), why });
    }
    Ok(align)
}

/// If written data stays in memory after it was synchronised and dropped, there is no disk, whatever the file system is called. An
/// example is an overlay over a file system in memory.
fn check_droppable(job: &Job, file: &File) -> Result<(), KernelError> {
    const TRIAL: usize = 1 << 20;
    let left = || -> io::Result<u64> {
        let mut chunk = vec![0; TRIAL];
        noise::fill(&mut chunk, job.seed);
        file.write_all_at(&chunk, 0)?;
        file.sync_all()?;
        // A page that another thread briefly holds, such as write-back in its last instructions, is released a moment later.
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
