//! eBPF operations that aya lacks: test runs of a program on a packet, to measure its cost, and links to an interface by number, which
//! report when it is gone.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const PROG_TEST_RUN: libc::c_int = 10;
const LINK_CREATE: libc::c_int = 28;
const OBJECT_INFO: libc::c_int = 15;

/// The part of `union bpf_attr` that `BPF_PROG_TEST_RUN` reads. The context exists since kernel 5.2.
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
    context_size_in: u32,
    context_size_out: u32,
    context_in: u64,
    context_out: u64,
}

/// Size before the context was added. Older kernels refuse a larger one.
const TEST_RUN_BARE: usize = 40;

/// Words of `struct __sk_buff`, and the indexes of a segmented packet's number and size of segments.
const CONTEXT: usize = 48;
const SEGMENTS: usize = 41;
const SEGMENT_SIZE: usize = 44;

/// A packet that a network card, or the kernel, segments later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmented {
    /// Number of segments; 0 if the sender did not set it.
    pub count: u32,
    /// Bytes per segment.
    pub size: u32,
}

/// Runs `program` `repeat` times on `packet`, attached to nothing. Returns the mean duration in nanoseconds.
///
/// # Errors
/// The kernel's error: `EPERM`, or `ENOTSUPP` for a type of program that cannot be tested.
pub fn test_run(program: BorrowedFd, packet: &[u8], repeat: u32) -> io::Result<u32> {
    let mut attributes = TestRun {
        program: program.as_raw_fd() as u32,
        data_size_in: packet.len() as u32,
        data_in: packet.as_ptr() as u64,
        repeat,
        ..TestRun::default()
    };
    run(&mut attributes, TEST_RUN_BARE)?;
    Ok(attributes.duration_ns)
}

/// Runs `program` once on a packet to be segmented. Returns the program's result.
///
/// # Errors
/// The kernel's error.
pub fn test_segmented(program: BorrowedFd, packet: &[u8], segments: Segmented) -> io::Result<u32> {
    let mut context = [0_u32; CONTEXT];
    (context[SEGMENTS], context[SEGMENT_SIZE]) = (segments.count, segments.size);
    let mut attributes = TestRun {
        program: program.as_raw_fd() as u32,
        data_size_in: packet.len() as u32,
        data_in: packet.as_ptr() as u64,
        repeat: 1,
        context_size_in: size_of_val(&context) as u32,
        context_in: context.as_ptr() as u64,
        ..TestRun::default()
    };
    run(&mut attributes, size_of::<TestRun>())?;
    Ok(attributes.returned)
}

fn run(attributes: &mut TestRun, size: usize) -> io::Result<()> {
    // SAFETY: the kernel reads and writes `attributes` within `size`, which is at most its own size. It reads `data_in` and `context_in`
    // within their sizes, and writes neither back without an output buffer. All of them outlive the call, which ends after the last run.
    let done = unsafe { libc::syscall(libc::SYS_bpf, PROG_TEST_RUN, &raw mut *attributes, size) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The part of `union bpf_attr` that `BPF_LINK_CREATE` reads for an interface.
#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// The part of `union bpf_attr` that `BPF_OBJ_GET_INFO_BY_FD` reads. It writes back the length of the information.
#[repr(C)]
struct ObjectInfo {
    object: u32,
    length: u32,
    into: u64,
}

/// The beginning of `struct bpf_link_info`, of a link to an interface.
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    unused: u32,
    interface: u32,
    attach_type: u32,
}

/// Links `program` to interface number `interface` of this thread's network namespace. Closing the descriptor, also by the end of the
/// process, removes the link.
///
/// # Errors
/// The kernel's error: `EINVAL` for an unknown type of attachment, `ENODEV`, `EPERM`.
pub fn link(program: BorrowedFd, interface: u32, attach_type: u32) -> io::Result<OwnedFd> {
    let attributes = LinkCreate { program: program.as_raw_fd() as u32, interface, attach_type, flags: 0 };
    // SAFETY: the kernel reads `attributes` within its size, and assumes zeros after it.
    let made = unsafe { libc::syscall(libc::SYS_bpf, LINK_CREATE, &raw const attributes, size_of::<LinkCreate>()) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor (with close-on-exec), and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(made as i32) })
}

/// The number of a link's interface. None once the interface is gone.
///
/// # Errors
/// The kernel's error.
pub fn linked_interface(link: BorrowedFd) -> io::Result<Option<u32>> {
    let mut info = LinkInfo::default();
    let length = size_of::<LinkInfo>() as u32;
    let mut attributes = ObjectInfo { object: link.as_raw_fd() as u32, length, into: (&raw mut info) as u64 };
    // SAFETY: the kernel reads and writes `attributes` within its size, and writes at most `length` bytes to `info`. Both are plain
    // numbers and outlive the call.
    let done = unsafe { libc::syscall(libc::SYS_bpf, OBJECT_INFO, &raw mut attributes, size_of::<ObjectInfo>()) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((info.interface != 0).then_some(info.interface))
}
