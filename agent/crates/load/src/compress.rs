//! Compresses a file in the generator: the disk and CPU work of the load generator of Netto et al. Separate threads do it, so that
//! other users' requests leave on time.

use std::fs::File;
use std::io::{self, BufReader, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use flate2::write::GzEncoder;
use flate2::Compression as Level;
use partywall_clock::{Nanos, SessionClock};

use crate::controls::Controls;
use crate::program::Compression;

/// A user's compression job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub thread: u32,
    pub user: u32,
    pub epoch: u32,
    pub compression: u32,
}

/// The result of a job.
#[derive(Debug)]
pub(crate) struct Done {
    pub job: Job,
    pub end_ns: Nanos,
    pub outcome: io::Result<()>,
}

type Finished = Arc<Mutex<Vec<Vec<Done>>>>;

/// The compression threads.
pub(crate) struct Pool {
    jobs: Option<Sender<Job>>,
    finished: Finished,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Creates the files in `folder` and starts the threads. They wake workers through `controls`.
    pub(crate) fn start(
        compressions: &[Compression],
        folder: &Path,
        workers: u32,
        controls: &Arc<Controls>,
        clock: &SessionClock,
    ) -> io::Result<Self> {
        let files = compressions.iter().map(|c| source(folder, c.file_bytes)).collect::<io::Result<Vec<_>>>()?;
        let files = Arc::new(files);
        let levels: Arc<Vec<u32>> = Arc::new(compressions.iter().map(|c| c.level).collect());
        let finished: Finished = Arc::new(Mutex::new((0..workers).map(|_| Vec::new()).collect()));
        let (jobs, queue) = mpsc::channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        let mut threads = Vec::new();
        for _ in 0..number(compressions) {
            let (files, levels, finished, queue) = (files.clone(), levels.clone(), finished.clone(), queue.clone());
            let (controls, clock, mut result) = (controls.clone(), clock.clone(), unlinked(folder)?);
            let body = move || loop {
                let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(job) = job else { return };
                let at = job.compression as usize;
                let outcome = compress(&files[at], levels[at], &mut result);
                let done = Done { job, end_ns: clock.now(), outcome };
                finished.lock().unwrap_or_else(PoisonError::into_inner)[job.thread as usize].push(done);
                controls.wake(job.thread);
            };
            threads.push(std::thread::Builder::new().name("compress".into()).spawn(body)?);
        }
        Ok(Self { jobs: Some(jobs), finished, threads })
    }

    pub(crate) fn submit(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // The threads exist as long as the pool.
            let _ = jobs.send(job);
        }
    }

    /// Whether a thread has ended, and with it a job that a user waits for.
    pub(crate) fn has_died(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Finished jobs of worker `thread`.
    pub(crate) fn take(&self, thread: u32) -> Vec<Done> {
        std::mem::take(&mut self.finished.lock().unwrap_or_else(PoisonError::into_inner)[thread as usize])
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// As many threads as the largest step asks for; by default one for each CPU that the caller may use.
fn number(compressions: &[Compression]) -> u32 {
    let cpus = || partywall_sys::affinity::allowed().map_or(1, |cpus| cpus.len() as u32);
    compressions.iter().filter_map(|compression| compression.threads).max().unwrap_or_else(cpus)
}

/// Reads the file, compresses it, and syncs the result to disk.
fn compress(source: &File, level: u32, result: &mut File) -> io::Result<()> {
    result.set_len(0)?;
    result.seek(SeekFrom::Start(0))?;
    let mut encoder = GzEncoder::new(result, Level::new(level));
    let mut reader = BufReader::with_capacity(1 << 16, At { file: source, at: 0 });
    io::copy(&mut reader, &mut encoder)?;
    encoder.finish()?.sync_data()
}

/// Reads a file that several threads share, each from its own position.
struct At<'f> {
    file: &'f File,
    at: u64,
}

impl io::Read for At<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = std::os::unix::fs::FileExt::read_at(self.file, into, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// A file of text-like content, which compresses to about half.
fn source(folder: &Path, bytes: u64) -> io::Result<File> {
    let mut file = unlinked(folder)?;
    let mut chance = fastrand::Rng::with_seed(bytes);
    let mut left = bytes as usize;
    while left > 0 {
        let piece: Vec<u8> =
            (0..left.min(1 << 16)).map(|_| b"etaoin shrdlucmfwypv0123456789\n.,"[chance.usize(..33).min(chance.usize(..33))]).collect();
        file.write_all(&piece)?;
        left -= piece.len();
    }
    file.sync_data()?;
    Ok(file)
}

/// A file without a name, which disappears with the process.
fn unlinked(folder: &Path) -> io::Result<File> {
    let path = folder.join(format!("partywall-compress-{}-{:x}", std::process::id(), fastrand::u64(..)));
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let file = File::options().read(true).write(true).create_new(true).open(&path).map_err(named)?;
    std::fs::remove_file(&path).map_err(named)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn there_are_as_many_threads_as_the_largest_step_asks_for() {
        let step = |threads| Compression { label: 0, file_bytes: 1, level: 6, threads };
        assert_eq!(number(&[step(Some(3)), step(Some(40)), step(None)]), 40);
        assert_eq!(number(&[step(None)]) as usize, partywall_sys::affinity::allowed().unwrap().len());
    }

    #[test]
    fn a_folder_that_is_not_writable_is_named() {
        let error = unlinked(Path::new("/nonexistent")).unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent/partywall-compress-"), "{error}");
    }

    #[test]
    fn the_compressed_result_is_smaller_and_decompresses_to_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let (source, mut result) = (source(folder.path(), 300_000).unwrap(), unlinked(folder.path()).unwrap());
        compress(&source, 6, &mut result).unwrap();
        result.seek(SeekFrom::Start(0)).unwrap();
        let (mut back, mut original) = (Vec::new(), Vec::new());
        flate2::read::GzDecoder::new(&result).read_to_end(&mut back).unwrap();
        At { file: &source, at: 0 }.read_to_end(&mut original).unwrap();
        assert!(back == original && back.len() == 300_000);
        assert!((50_000..250_000).contains(&result.metadata().unwrap().len()));
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }
}
