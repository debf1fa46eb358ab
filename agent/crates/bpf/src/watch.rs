//! Being told at once when interfaces appear, or lose what is hooked to them. Deliberately not here: what is to be done then.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags};

use crate::message::{u32_at, Socket};
use crate::{tc, Namespace};

const LINKS_AND_TC: u32 = 0x1 | 0x8;
const NEW_LINK: u16 = 16;
const DELETE_QDISC: u16 = 37;
const DELETE_FILTER: u16 = 45;

/// What happened, in the namespace at that place of the list; `index` is of the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An interface appeared, or something about it changed.
    Interface {
        /// Where.
        place: usize,
        /// Its number.
        index: u32,
        /// Its name now.
        name: String,
    },
    /// A hook or queue went.
    Unhooked {
        /// Where.
        place: usize,
        /// The number of the interface.
        index: u32,
    },
    /// More than could be told.
    Much {
        /// Where.
        place: usize,
    },
}

/// Listens in some namespaces.
#[derive(Debug)]
pub struct Watch {
    sockets: Vec<Socket>,
    end: OwnedFd,
}

impl Watch {
    /// Listens in `namespaces`, which are from then on meant by their place.
    ///
    /// # Errors
    /// One cannot be entered.
    pub fn new(namespaces: &[Namespace]) -> io::Result<Self> {
        let listen = |namespace: &Namespace| namespace.inside(|| Socket::listening(LINKS_AND_TC));
        Ok(Self { sockets: namespaces.iter().map(listen).collect::<io::Result<_>>()?, end: eventfd(0, EventfdFlags::CLOEXEC)? })
    }

    /// Waits for something to happen, and tells it. None after [`Watch::end`].
    ///
    /// # Errors
    /// What the kernel says.
    pub fn wait(&self) -> io::Result<Option<Vec<Change>>> {
        let sockets = self.sockets.iter().map(|socket| PollFd::from_borrowed_fd(socket.fd(), PollFlags::IN));
        let mut all: Vec<PollFd> = std::iter::once(PollFd::new(&self.end, PollFlags::IN)).chain(sockets).collect();
        match poll(&mut all, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Some(Vec::new())),
            Err(error) => return Err(error.into()),
        }
        if !all[0].revents().is_empty() {
            return Ok(None);
        }
        let mut changes = Vec::new();
        for (place, socket) in self.sockets.iter().enumerate().filter(|(at, _)| !all[at + 1].revents().is_empty()) {
            let (told, lost) = socket.told()?;
            changes.extend(told.iter().filter_map(|(kind, body)| change(place, *kind, body)));
            changes.extend(lost.then_some(Change::Much { place }));
        }
        Ok(Some(changes))
    }

    /// Ends the waiting.
    pub fn end(&self) {
        // A number that can't be added is one that is there already.
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
    }
}

/// The number of the interface is at one place in the messages of links and of tc.
fn change(place: usize, kind: u16, body: &[u8]) -> Option<Change> {
    let index = u32_at(body, 4);
    match kind {
        NEW_LINK => Some(Change::Interface { place, index, name: tc::interface(body).name }),
        DELETE_QDISC | DELETE_FILTER => Some(Change::Unhooked { place, index }),
        _ => None,
    }
}
