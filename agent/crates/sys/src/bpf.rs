//! Trying an eBPF program on a packet of ours, to learn what it costs here.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const PROG_TEST_RUN: libc::c_int = 10;

/// The part of `union bpf_attr` that `BPF_PROG_TEST_RUN` reads, as of its first kernel (4.12).
#[repr(C)]
#[derive(Default)]
struct TestRun {
    program: u32,
    returned: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration_ns: u32,
}

/// Runs `program` so many times on `packet`, attached to nothing; what one run took, in nanoseconds on average.
///
/// # Errors
/// What the kernel says: `EPERM`, or `ENOTSUPP` for a sort of program that cannot be tried.
pub fn test_run(program: BorrowedFd, packet: &[u8], repeat: u32) -> io::Result<u32> {
    let mut attributes = TestRun {
        program: program.as_raw_fd() as u32,
        data_size_in: packet.len() as u32,
        data_in: packet.as_ptr() as u64,
        repeat,
        ..TestRun::default()
    };
    // SAFETY: the kernel reads and writes `attributes` within its size, and reads `data_in` within `data_size_in`; both live
    // until the call returns, which is when the program has run for the last time.
    let done = unsafe { libc::syscall(libc::SYS_bpf, PROG_TEST_RUN, &raw mut attributes, size_of::<TestRun>()) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(attributes.duration_ns)
}
