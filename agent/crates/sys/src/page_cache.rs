//! Page cache of a file: its resident pages, and write-back. Dropping pages needs no `unsafe`: see `fadvise` of `rustix`.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Waits for the running write-back of `file`, and starts it for every dirty page without waiting for that.
///
/// # Errors
/// The kernel's error; it includes I/O errors of earlier writes.
pub fn turn_over(file: &File) -> io::Result<()> {
    sync_range(file, 0..0, libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE)
}

/// Writes the dirty pages of `range` and waits until the device has accepted them; `0..0` is the whole file. It flushes neither metadata
/// nor the device's own cache, so it does not make data durable.
///
/// # Errors
/// See [`turn_over`].
pub fn write_out(file: &File, range: Range<u64>) -> io::Result<()> {
    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    sync_range(file, range, all)
}

fn sync_range(file: &File, range: Range<u64>, flags: libc::c_uint) -> io::Result<()> {
    let too_far = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let offset = i64::try_from(range.start).map_err(too_far)?;
    let len = i64::try_from(range.end - range.start).map_err(too_far)?;
    // SAFETY: the call takes numbers only, and `file` is open as long as it is borrowed.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How many of the first `len` bytes of `file` are in the page cache, in whole pages.
///
/// # Errors
/// `ENODEV` for a file that cannot be mapped. If the kernel hides the pages from other users, `EPERM` or a result of 0.
pub fn resident_bytes(file: &File, len: usize) -> io::Result<u64> {
    use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
    let page = rustix::param::page_size();
    let mut resident = vec![0_u8; len.div_ceil(page)];
    // SAFETY: a fresh shared mapping at an address of the kernel's choice; nothing ever reads through it.
    let start = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0)? };
    // SAFETY: `start` is the page-aligned mapping of `len` bytes just made; `resident` has one byte for each of its pages.
    let outcome = match unsafe { libc::mincore(start, len, resident.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: exactly the range mapped above, to which nothing else refers.
    unsafe { munmap(start, len)? };
    outcome.map(|()| (resident.iter().filter(|&&state| state & 1 == 1).count() * page) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn just_written_pages_are_resident_and_can_be_written_out() {
        let path = std::env::current_exe().unwrap().with_extension(format!("page-cache-{}", std::process::id()));
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(&vec![7; 64 << 10]).unwrap();
        turn_over(&file).unwrap();
        write_out(&file, 0..0).unwrap();
        assert_eq!(resident_bytes(&file, 64 << 10).unwrap(), 64 << 10);
    }
}
