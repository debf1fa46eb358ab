//! Programs linked to an interface (tcx, kernel 6.6 on). Cheaper than a filter of `clsact`, nothing stays when this process ends
//! in whatever way, and the link says when the interface is gone without keeping its namespace alive. Linked programs run before
//! filters of tc.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use partywall_sys::bpf;

use crate::tc::Direction;
use crate::Namespace;

const TCX_INGRESS: u32 = 46;
const TCX_EGRESS: u32 = 47;

/// A program on one side of an interface, until dropped.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl Link {
    /// Links `program` to interface number `index` of `namespace`, after others that are there.
    ///
    /// # Errors
    /// What the kernel says: `EINVAL` before 6.6, `ENODEV`, `EPERM`.
    pub fn new(namespace: &Namespace, index: u32, direction: Direction, program: BorrowedFd) -> io::Result<Self> {
        let attach_type = match direction {
            Direction::Ingress => TCX_INGRESS,
            Direction::Egress => TCX_EGRESS,
        };
        namespace.inside(|| bpf::link(program, index, attach_type)).map(Self)
    }

    /// Whether the interface is gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(bpf::linked_interface(self.0.as_fd()), Ok(None))
    }
}
