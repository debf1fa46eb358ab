//! Devices that appear a moment after their driver was inserted.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use partywall_clock as clock;
use rustix::event::{poll, PollFd, PollFlags};

use crate::{InitError, PORT};

const PATIENCE_NS: u64 = 10_000_000_000;
const STEP_NS: u64 = 2_000_000;

/// Repeats an attempt until it succeeds or the time is up. Returns the last error then.
fn patiently<T, E>(mut attempt: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let deadline = clock::monotonic() + PATIENCE_NS;
    loop {
        match attempt() {
            Err(_) if clock::monotonic() < deadline => clock::sleep_until(clock::monotonic() + STEP_NS),
            outcome => return outcome,
        }
    }
}

/// Waits until `path` exists.
pub(crate) fn wait_for(path: &Path) -> io::Result<()> {
    patiently(|| fs::metadata(path).map(drop))
}

/// Opens the port to the controller when it exists and the host has opened it. It can be opened only once.
pub(crate) fn open_port(class: &Path, dev: &Path) -> Result<File, InitError> {
    let name = patiently(|| find_port(class))?;
    let path = dev.join(name);
    let port = patiently(|| File::options().read(true).write(true).open(&path)).map_err(|e| InitError::Other("opening the port", e))?;
    patiently(|| is_connected(&port)).map_err(|e| InitError::Other("waiting for the host to open the port", e))?;
    Ok(port)
}

/// The device of the port called [`PORT`].
fn find_port(class: &Path) -> Result<PathBuf, InitError> {
    let entries = fs::read_dir(class).map_err(|_| InitError::NoPort("none".into()))?;
    let mut others = Vec::new();
    for entry in entries.flatten() {
        match fs::read_to_string(entry.path().join("name")) {
            Ok(name) if name.trim() == PORT => return Ok(entry.file_name().into()),
            Ok(name) => others.push(name.trim().to_owned()),
            Err(_) => {}
        }
    }
    Err(InitError::NoPort(if others.is_empty() { "none".into() } else { others.join(", ") }))
}

/// A port whose other end is not open reads as ended, and polls as hung up.
fn is_connected(port: &File) -> io::Result<()> {
    let mut fds = [PollFd::new(port, PollFlags::OUT)];
    poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    if fds[0].revents().contains(PollFlags::HUP) {
        return Err(io::ErrorKind::NotConnected.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_found_by_its_name_and_others_are_named_if_it_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        assert!(find_port(folder.path()).unwrap_err().to_string().ends_with("the machine has: none"));
        for (device, name) in [("vport0p1", "org.qemu.guest_agent.0\n"), ("vport0p2", "partywall.agent\n")] {
            fs::create_dir(folder.path().join(device)).unwrap();
            fs::write(folder.path().join(device).join("name"), name).unwrap();
        }
        assert_eq!(find_port(folder.path()).unwrap(), PathBuf::from("vport0p2"));
        fs::remove_dir_all(folder.path().join("vport0p2")).unwrap();
        assert!(find_port(folder.path()).unwrap_err().to_string().contains("org.qemu.guest_agent.0"));
    }
}
