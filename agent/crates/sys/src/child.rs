//! Short-lived children: created, ended and reaped at once, in a process that may have many threads.

use std::io;

use crate::memory::Block;

/// Resources that a child shares with its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Nothing: the kernel copies the page tables, as for `fork`.
    Nothing,
    /// The address space; the parent waits, as for `vfork`.
    Memory,
}

/// Creates children one at a time.
pub struct Nursery {
    stack: Block,
}

extern "C" fn end(_: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `_exit` runs no handlers and touches no lock; it is safe in a child of a process with threads.
    unsafe { libc::_exit(0) }
}

impl Nursery {
    /// Allocates a stack for the children.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> io::Result<Self> {
        Ok(Self { stack: Block::touched(64 << 10)? })
    }

    /// Creates a child that ends at once, and waits for its end: no child outlives the call.
    ///
    /// The child is invisible to other waits of this process and raises no `SIGCHLD`.
    ///
    /// # Errors
    /// `EAGAIN` at a limit of processes, `ENOMEM`.
    pub fn raise(&mut self, sharing: Sharing) -> io::Result<()> {
        let flags = match sharing {
            Sharing::Nothing => 0,
            Sharing::Memory => libc::CLONE_VM | libc::CLONE_VFORK,
        };
        let stack = self.stack.bytes_mut();
        let top = stack.as_mut_ptr_range().end;
        let blocked = block_signals()?;
        // SAFETY: the child only runs `end`, on its own stack: `top` is the page-aligned end of a block that outlives the child
        // (see the wait
        // below) and that nothing else uses (`&mut self`). With `CLONE_VM` the parent thread is suspended meanwhile
        // (`CLONE_VFORK`), so only
        // one of them uses the shared thread-local storage at a time. Signals are blocked, so no signal handler runs in the child.
        let child = unsafe { libc::clone(end, top.cast(), flags, std::ptr::null_mut()) };
        let made = if child < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
        restore_signals(&blocked);
        made?;
        wait(child)
    }
}

fn wait(child: libc::pid_t) -> io::Result<()> {
    loop {
        // SAFETY: a null status is permitted. `__WALL` is required because ordinary waits ignore a child without an exit signal.
        if unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::__WALL) } == child {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn block_signals() -> io::Result<libc::sigset_t> {
    // SAFETY: both sets are memory of this function, written by the calls before they are read.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        match libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) {
            0 => Ok(before),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: `before` is a mask this thread had; the call cannot fail with a valid set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_of_both_kinds_end_and_leave_nothing_to_wait_for() {
        let mut nursery = Nursery::new().unwrap();
        for sharing in [Sharing::Nothing, Sharing::Memory] {
            for _ in 0..20 {
                nursery.raise(sharing).unwrap();
            }
        }
        // SAFETY: a null status is allowed.
        let left = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL | libc::WNOHANG | libc::__WNOTHREAD) };
        assert_eq!((left, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ECHILD)));
    }

    #[test]
    fn threads_can_raise_children_at_the_same_time() {
        std::thread::scope(|scope| {
            for sharing in [Sharing::Nothing, Sharing::Memory, Sharing::Nothing] {
                scope.spawn(move || {
                    let mut nursery = Nursery::new().unwrap();
                    for _ in 0..50 {
                        nursery.raise(sharing).unwrap();
                    }
                });
            }
        });
    }
}
