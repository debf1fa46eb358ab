//! Commands from a load's owner to its workers: future changes, and the end. The workers carry them out.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use partywall_clock::Nanos;
use rustix::event::{eventfd, EventfdFlags};

/// What holds from `at_ns` on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Switch {
    pub at_ns: Nanos,
    pub to: Setting,
}

/// A property of a load that changes while it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Setting {
    /// The share of users or arrivals that is switched on.
    Intensity(f64),
    /// Users, or arrivals a second, until the end of the last stage.
    Level(f64),
}

/// One for each load, shared by its workers.
pub(crate) struct Controls {
    switches: Mutex<Vec<VecDeque<Switch>>>,
    wakers: Vec<OwnedFd>,
    ended: AtomicBool,
}

impl Controls {
    pub(crate) fn new(threads: u32) -> io::Result<Self> {
        let waker = |_| eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let wakers = (0..threads).map(waker).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { switches: Mutex::new(vec![VecDeque::new(); threads as usize]), wakers, ended: AtomicBool::new(false) })
    }

    fn switches(&self) -> MutexGuard<'_, Vec<VecDeque<Switch>>> {
        self.switches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a switch for all workers.
    pub(crate) fn switch(&self, switch: Switch) {
        self.switches().iter_mut().for_each(|queue| queue.push_back(switch));
        self.wake_all();
    }

    /// The switches that worker `thread` has not received yet.
    pub(crate) fn take(&self, thread: u32) -> VecDeque<Switch> {
        std::mem::take(&mut self.switches()[thread as usize])
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake_all();
    }

    #[inline]
    pub(crate) fn ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// File descriptor that worker `thread` polls. It is readable after a wake-up.
    pub(crate) fn waker(&self, thread: u32) -> BorrowedFd<'_> {
        self.wakers[thread as usize].as_fd()
    }

    pub(crate) fn wake(&self, thread: u32) {
        let _ = rustix::io::write(self.waker(thread), &1_u64.to_ne_bytes());
    }

    /// Clears the wake-up of `thread`.
    pub(crate) fn rest(&self, thread: u32) {
        let _ = rustix::io::read(self.waker(thread), &mut [0; 8]);
    }

    fn wake_all(&self) {
        (0..self.wakers.len()).for_each(|thread| self.wake(thread as u32));
    }
}
