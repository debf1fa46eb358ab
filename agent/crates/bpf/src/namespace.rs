//! Network namespaces: which one is meant, and doing something inside it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use partywall_sys::namespace::{enter_network, new_network};

/// A network namespace; it lives at least as long as this value.
#[derive(Clone, Debug)]
pub struct Namespace(Arc<File>);

impl Namespace {
    /// The one this thread is in.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn current() -> io::Result<Self> {
        Self::at(Path::new("/proc/thread-self/ns/net"))
    }

    /// The one process `pid` is in.
    ///
    /// # Errors
    /// There is no such process, or it is not ours to look at.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        Self::at(Path::new(&format!("/proc/{pid}/ns/net")))
    }

    /// The one that `ip netns add NAME` made.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn named(name: &str) -> io::Result<Self> {
        Self::at(&Path::new("/run/netns").join(name))
    }

    /// The one a file stands for, such as `/run/netns/NAME`.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn at(path: &Path) -> io::Result<Self> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        Ok(Self(Arc::new(File::open(path).map_err(named)?)))
    }

    /// A new one with nothing but a loopback interface that is down; it goes when the last value for it does.
    ///
    /// # Errors
    /// `EPERM` without the privilege to make one.
    pub fn fresh() -> io::Result<Self> {
        thread::scope(|scope| scope.spawn(|| new_network().and_then(|()| Self::current())).join().unwrap_or_else(|p| resume_unwind(p)))
    }

    /// Tells namespaces apart.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn number(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.ino())
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Calls `act` inside this namespace, on a thread of its own: a thread that failed to come back would do all that
    /// follows in the wrong place. Sockets opened there stay in the namespace.
    ///
    /// # Errors
    /// `EPERM` without the privilege to enter, `EINVAL` if this is no network namespace; else what `act` returns.
    ///
    /// # Panics
    /// If `act` does.
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
    fn a_namespace_that_is_not_there_is_an_error_that_names_its_file() {
        let error = Namespace::named("no-such-space").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().starts_with("/run/netns/no-such-space: No such file"), "{error}");
    }
}
