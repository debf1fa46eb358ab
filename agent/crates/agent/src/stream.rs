//! Standard input with a limit on silence. A controller on another machine can disappear without closing the connection, and the
//! agent must not outlive it by hours. The bytes are not interpreted here.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};

/// Reads a file, and treats silence as its end. Only waiting time counts: while the reader is busy, the limit does not apply.
pub(crate) struct Patient {
    file: File,
    patience: Option<Duration>,
}

impl Patient {
    pub(crate) fn new(file: File, patience: Option<Duration>) -> Self {
        Self { file, patience }
    }

    /// Standard input, without a limit if no patience is given.
    pub(crate) fn stdin(patience: Option<Duration>) -> io::Result<Self> {
        Ok(Self::new(io::stdin().as_fd().try_clone_to_owned()?.into(), patience))
    }

    fn speaks_in_time(&self, patience: Duration) -> io::Result<bool> {
        let timeout = Timespec::try_from(patience).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut fds = [PollFd::new(&self.file, PollFlags::IN)];
        Ok(poll(&mut fds, Some(&timeout))? > 0)
    }
}

impl Read for Patient {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.patience {
            Some(patience) if !self.speaks_in_time(patience)? => Ok(0),
            _ => self.file.read(into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_comes_in_time_is_read_and_silence_ends_the_stream() {
        let (ours, mut theirs) = io::pipe().unwrap();
        let mut patient = Patient::new(std::os::fd::OwnedFd::from(ours).into(), Some(Duration::from_millis(20)));
        theirs.write_all(b"hello").unwrap();
        let mut got = Vec::new();
        patient.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"hello", "and the end came though nobody closed the pipe");
    }
}
