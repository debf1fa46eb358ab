//! The operating system's accounting of the calling thread.

/// How often the calling thread gave up its CPU to wait. 0 if the kernel does not report it.
#[must_use]
pub fn voluntary_switches() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a complete `rusage`, which the call fills. The kernel keeps no pointer to it.
    let answered = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) } == 0;
    // SAFETY: all of it was set to zero, which is a valid `rusage`, and the call may have filled it since.
    let usage = unsafe { usage.assume_init() };
    if answered {
        usage.ru_nvcsw.cast_unsigned()
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_counts() {
        let before = voluntary_switches();
        let condition = std::sync::Condvar::new();
        let lock = std::sync::Mutex::new(());
        drop(condition.wait_timeout(lock.lock().unwrap(), std::time::Duration::from_millis(1)));
        assert!(voluntary_switches() > before);
    }
}
