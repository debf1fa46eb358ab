//! On which CPUs this thread, and every thread it starts, may run.

use std::io;

use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};

/// Pins the calling thread to `cpus`; threads started later inherit it.
///
/// # Errors
/// What the kernel says, `EINVAL` if none of `cpus` is online and allowed.
pub fn pin(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// The CPUs the calling thread may run on, in rising order.
///
/// # Errors
/// What the kernel says.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}
