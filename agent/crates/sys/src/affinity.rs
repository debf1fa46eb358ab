//! CPUs on which this thread, and every thread that it starts, may run.

use std::io;

use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};

/// Pins the calling thread to `cpus`. Threads started later inherit this.
///
/// # Errors
/// The kernel's error; `EINVAL` if none of `cpus` is online and permitted.
pub fn pin(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// The CPUs on which the calling thread may run, in ascending order.
///
/// # Errors
/// The kernel's error.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}
