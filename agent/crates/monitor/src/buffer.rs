//! Reads small kernel files repeatedly: each is opened once, and read at offset 0 into one buffer.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

/// Far above the size of any kernel file that is read here.
const LARGEST: usize = 16 << 20;

/// The kernel ends a read early only if the next record does not fit into a page of 4096 bytes after the previous ones. No record read
/// here is longer than half a page. So a shorter read is complete, and another read is not needed.
const SHORT: usize = 2048;

/// Holds the text of the file read last.
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    pub fn new() -> Self {
        Self(vec![0; 64 << 10])
    }

    /// The whole current text of `file`. `ESRCH` or `ENODEV` if its subject is gone.
    pub fn read(&mut self, file: &File) -> io::Result<&[u8]> {
        let mut len = 0;
        // A short read need not be the end: the kernel returns some files record by record.
        loop {
            if len == self.0.len() {
                self.grow()?;
            }
            match file.read_at(&mut self.0[len..], len as u64) {
                Ok(0) => return Ok(&self.0[..len]),
                Ok(count) if len == 0 && count <= SHORT => return Ok(&self.0[..count]),
                Ok(count) => len += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn grow(&mut self) -> io::Result<()> {
        if self.0.len() >= LARGEST {
            return Err(ErrorKind::FileTooLarge.into());
        }
        self.0.resize(self.0.len() * 2, 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_larger_than_the_buffer_is_read_whole() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let text: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &text).unwrap();
        assert_eq!(Buffer::new().read(path.as_file()).unwrap(), text);
    }

    #[test]
    fn a_file_without_end_is_an_error() {
        let endless = File::open("/dev/zero").unwrap();
        assert_eq!(Buffer::new().read(&endless).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }
}
