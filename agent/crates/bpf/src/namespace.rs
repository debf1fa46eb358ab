//! Network namespaces: identifies them, and runs code inside them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use partywall_sys::namespace::{enter_network, new_network};

/// A network namespace. It exists at least as long as this value.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<File>);

impl Namespace {
    /// The namespace of this thread.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn current() -> io::Result<Self> {
        Self::at(Path::new("/proc/thread-self/ns/net"))
    }

    /// The namespace of process `pid`.
    ///
    /// # Errors
    /// There is no such process, or access is denied.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        Self::at(Path::new(&format!("/proc/{pid}/ns/net")))
    }

    /// The namespace that `ip netns add NAME` created.
    ///
    /// # Errors
    /// There is no namespace with that name.
    pub fn named(name: &str) -> io::Result<Self> {
        Self::at(&Path::new("/run/netns").join(name))
    }

    /// The namespace of a file, such as `/run/netns/NAME`.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn at(path: &Path) -> io::Result<Self> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        Ok(Self(Arc::new(File::open(path).map_err(named)?)))
    }

    /// Creates a namespace that contains only a loopback interface, which is down. The kernel removes it with the last handle.
    ///
    /// # Errors
    /// `EPERM` without the privilege to create one.
    pub fn fresh() -> io::Result<Self> {
        thread::scope(|scope| scope.spawn(|| new_network().and_then(|()| Self::current())).join().unwrap_or_else(|p| resume_unwind(p)))
    }

    /// A number that identifies the namespace.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn number(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.ino())
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Calls `act` inside this namespace, on a separate thread. If a thread failed to switch back, all its later work would happen in
    /// the wrong namespace. Sockets opened by `act` stay in the namespace.
    ///
    /// # Errors
    /// `EPERM` without the privilege to enter, `EINVAL` if this is no network namespace, or the error of `act`.
    ///
    /// # Panics
    /// If `act` panics.
    pub fn inside<T: Send>(&self, act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let worker = scope.spawn(|| enter_network(self.0.as_fd()).and_then(|()| act()));
            worker.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_namespace_is_an_error_that_names_its_file() {
        let error = Namespace::named("no-such-space").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().starts_with("/run/netns/no-such-space: No such file"), "{error}");
    }
}
