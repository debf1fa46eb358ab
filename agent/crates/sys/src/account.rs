//! What the operating system accounts to the calling thread.

/// How often the calling thread gave up its CPU because it had to wait for something; 0 where the kernel does not say.
#[must_use]
pub fn voluntary_switches() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a whole `rusage`, which the call fills; it keeps no pointer.
    let answered = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) } == 0;
    // SAFETY: all of it was set to zero, which is a valid `rusage`, and perhaps filled since.
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
