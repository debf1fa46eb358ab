//! Reports at once when interfaces appear, or lose a hook or queue. The caller decides how to respond.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags};

use crate::message::{u32_at, Socket};
use crate::{tc, Namespace};

const LINKS_AND_TC: u32 = 0x1 | 0x8;
const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const DELETE_QDISC: u16 = 37;
const DELETE_FILTER: u16 = 45;

/// Messages read from one socket at once. The others wait for the next call. If the kernel's buffer overflows, the loss is reported
/// as [`Change::Much`].
const DATAGRAMS_AT_ONCE: usize = 64;

/// A change in the namespace at place `place` of the list. `index` is the interface's number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// An interface appeared or changed.
    Interface {
        /// Place of the namespace.
        place: usize,
        /// Number of the interface.
        index: u32,
        /// Current name of the interface.
        name: String,
    },
    /// A hook or queue was removed, or the interface is gone.
    Unhooked {
        /// Place of the namespace.
        place: usize,
        /// Number of the interface.
        index: u32,
    },
    /// There were more changes than could be reported.
    Much {
        /// Place of the namespace.
        place: usize,
    },
}

impl Change {
    /// The place of its namespace in the list.
    #[must_use]
    pub fn place(&self) -> usize {
        let (Self::Interface { place, .. } | Self::Unhooked { place, .. } | Self::Much { place }) = self;
        *place
    }
}

/// Watches several namespaces, and keeps them alive.
#[derive(Debug)]
pub struct Watch {
    sockets: Mutex<Vec<Option<Arc<Socket>>>>,
    wake: OwnedFd,
    ended: AtomicBool,
}

fn listen(namespace: &Namespace) -> io::Result<Arc<Socket>> {
    Ok(Arc::new(namespace.inside(|| Socket::listening(LINKS_AND_TC))?))
}

impl Watch {
    /// Watches `namespaces`. Reports refer to each by its place in this list.
    ///
    /// # Errors
    /// A namespace cannot be entered.
    pub fn new(namespaces: &[Namespace]) -> io::Result<Self> {
        let sockets = namespaces.iter().map(|namespace| listen(namespace).map(Some)).collect::<io::Result<_>>()?;
        Ok(Self { sockets: Mutex::new(sockets), wake: eventfd(0, EventfdFlags::CLOEXEC)?, ended: AtomicBool::new(false) })
    }

    /// Watches another namespace, or none, at a place of the list from now on.
    ///
    /// # Errors
    /// The namespace cannot be entered. The place then has none.
    pub fn follow(&self, place: usize, namespace: Option<&Namespace>) -> io::Result<()> {
        let listening = namespace.map(listen).transpose();
        let (socket, outcome) = listening.map_or_else(|error| (None, Err(error)), |socket| (socket, Ok(())));
        if let Some(slot) = self.sockets().get_mut(place) {
            *slot = socket;
        }
        self.wake();
        outcome
    }

    fn sockets(&self) -> MutexGuard<'_, Vec<Option<Arc<Socket>>>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for changes and returns them. None after [`Watch::end`].
    ///
    /// # Errors
    /// The kernel's error.
    pub fn wait(&self) -> io::Result<Option<Vec<Change>>> {
        let sockets = self.sockets().clone();
        let present: Vec<(usize, &Socket)> =
            sockets.iter().enumerate().filter_map(|(at, socket)| Some((at, &**socket.as_ref()?))).collect();
        let fds = present.iter().map(|(_, socket)| PollFd::from_borrowed_fd(socket.fd(), PollFlags::IN));
        let mut all: Vec<PollFd> = std::iter::once(PollFd::new(&self.wake, PollFlags::IN)).chain(fds).collect();
        match poll(&mut all, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Some(Vec::new())),
            Err(error) => return Err(error.into()),
        }
        if self.ended.load(Ordering::Acquire) {
            return Ok(None);
        }
        if !all[0].revents().is_empty() {
            rustix::io::read(&self.wake, &mut [0; 8])?;
        }
        let mut changes = Vec::new();
        let ready = present.iter().zip(&all[1..]).filter(|(_, polled)| !polled.revents().is_empty());
        for (&(place, socket), _) in ready {
            let (received, lost) = socket.received(DATAGRAMS_AT_ONCE)?;
            changes.extend(received.iter().filter_map(|(kind, body)| change(place, *kind, body)));
            changes.extend(lost.then_some(Change::Much { place }));
        }
        Ok(Some(changes))
    }

    /// Ends [`Watch::wait`].
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        // If the write fails, an earlier wake-up is still pending.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// The interface number has the same offset in messages about links and about tc.
fn change(place: usize, kind: u16, body: &[u8]) -> Option<Change> {
    let index = u32_at(body, 4);
    match kind {
        NEW_LINK => Some(Change::Interface { place, index, name: tc::interface(body).name }),
        DELETE_QDISC | DELETE_FILTER | DELETE_LINK => Some(Change::Unhooked { place, index }),
        _ => None,
    }
}
