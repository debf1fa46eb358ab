//! How a thread that steps a kernel ended. The capabilities own the threads.

use std::thread::JoinHandle;

use crate::KernelError;

/// The reason why one of `workers` ended without a stop, if one has. Removes it from the list.
pub fn ended(workers: &mut Vec<JoinHandle<Result<(), KernelError>>>) -> Option<String> {
    let at = workers.iter().position(JoinHandle::is_finished)?;
    Some(match workers.swap_remove(at).join() {
        Ok(Ok(())) => "stopped".into(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the kernel panicked, which is a bug".into(),
    })
}
