//! A console as the stream to the controller, for guests without a virtio port, such as Xen's. The kernel's messages go to the same
//! console, so a line marks where the stream begins.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use rustix::termios::{tcgetattr, tcsetattr, OptionalActions};

use crate::device::wait_for;
use crate::InitError;

/// The line after which only messages follow.
const BEGINS: &[u8] = b"\npartywall-stream\n";

/// Opens the terminal at `path`, silences the kernel, and writes the line that begins the stream.
pub(crate) fn open(path: &Path) -> Result<File, InitError> {
    quietly_open(path).map_err(|error| InitError::Other("opening the console", error))
}

fn quietly_open(path: &Path) -> io::Result<File> {
    wait_for(path)?;
    let mut console = File::options().read(true).write(true).open(path)?;
    let mut settings = tcgetattr(&console)?;
    settings.make_raw();
    tcsetattr(&console, OptionalActions::Now, &settings)?;
    // Only messages before a panic justify breaking the stream.
    fs::write("/proc/sys/kernel/printk", "1")?;
    console.write_all(BEGINS)?;
    Ok(console)
}
