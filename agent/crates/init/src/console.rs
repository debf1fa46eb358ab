//! A console as the stream to the controller, for guests that have no virtio port, as those of Xen: what the kernel says goes
//! there too, so a line tells where the stream begins.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use rustix::termios::{tcgetattr, tcsetattr, OptionalActions};

use crate::device::wait_for;
use crate::InitError;

/// The line after which nothing but messages comes.
const BEGINS: &[u8] = b"\npartywall-stream\n";

/// Opens the terminal at `path`, quietens the kernel, and says that the stream begins.
pub(crate) fn open(path: &Path) -> Result<File, InitError> {
    quietly_open(path).map_err(|error| InitError::Other("opening the console", error))
}

fn quietly_open(path: &Path) -> io::Result<File> {
    wait_for(path)?;
    let mut console = File::options().read(true).write(true).open(path)?;
    let mut settings = tcgetattr(&console)?;
    settings.make_raw();
    tcsetattr(&console, OptionalActions::Now, &settings)?;
    // Only what comes before a panic is still worth breaking the stream for.
    fs::write("/proc/sys/kernel/printk", "1")?;
    console.write_all(BEGINS)?;
    Ok(console)
}
