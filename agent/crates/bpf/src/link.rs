//! Programs linked to an interface (tcx, since kernel 6.6). A link costs less than a `clsact` filter, and ends with this process
//! in any case. It reports when its interface is gone, without keeping the namespace alive. Linked programs run before tc filters.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use partywall_sys::bpf;

use crate::tc::Direction;
use crate::Namespace;

const TCX_INGRESS: u32 = 46;
const TCX_EGRESS: u32 = 47;

/// A program on one side of an interface, until it is dropped.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl Link {
    /// Links `program` to interface number `index` of `namespace`, after existing programs.
    ///
    /// # Errors
    /// The kernel's error: `EINVAL` before 6.6, `ENODEV`, `EPERM`.
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
