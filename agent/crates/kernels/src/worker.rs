//! How a thread that steps a kernel ended. The threads themselves belong to the capabilities above.

use std::thread::JoinHandle;

use crate::KernelError;

/// Why one of `workers` ended by itself, once one has; it is taken from the list then.
pub fn ended(workers: &mut Vec<JoinHandle<Result<(), KernelError>>>) -> Option<String> {
    let at = workers.iter().position(JoinHandle::is_finished)?;
    Some(match workers.swap_remove(at).join() {
        Ok(Ok(())) => "stopped".into(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the kernel panicked, which is a bug".into(),
    })
}
