//! `verify`: finds writes that memory or a disk has lost. It writes a pattern that names the place and the pass of each page,
//! and reads every page back before it changes it again. Used while a guest migrates.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use partywall_clock::{self as clock, Nanos};
use rustix::fs::{fadvise, Advice};

const PAGE_BYTES: usize = 4096;
const WORDS: usize = PAGE_BYTES / 8;
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
/// Between two lines of output.
const REPORT_NS: Nanos = 250_000_000;
/// How often a rate is kept.
const BEAT_NS: Nanos = 10_000_000;

type Page = [u8; PAGE_BYTES];

/// Where pages are kept.
trait Store {
    fn read(&mut self, place: usize, page: &mut Page) -> io::Result<()>;
    fn write(&mut self, place: usize, page: &Page) -> io::Result<()>;
    /// Called after each pass.
    fn flush(&mut self) -> io::Result<()>;
}

struct Memory(Vec<Page>);

impl Store for Memory {
    fn read(&mut self, place: usize, page: &mut Page) -> io::Result<()> {
        page.copy_from_slice(&std::hint::black_box(&mut self.0)[place]);
        Ok(())
    }

    fn write(&mut self, place: usize, page: &Page) -> io::Result<()> {
        std::hint::black_box(&mut self.0)[place] = *page;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Disk(File);

impl Store for Disk {
    fn read(&mut self, place: usize, page: &mut Page) -> io::Result<()> {
        self.0.read_exact_at(page, (place * PAGE_BYTES) as u64)
    }

    fn write(&mut self, place: usize, page: &Page) -> io::Result<()> {
        self.0.write_all_at(page, (place * PAGE_BYTES) as u64)
    }

    /// Afterwards pages are read from the disk, not from the page cache.
    fn flush(&mut self) -> io::Result<()> {
        self.0.sync_data()?;
        fadvise(&self.0, 0, None, Advice::DontNeed).map_err(Into::into)
    }
}

/// Counts since the start.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    checked: u64,
    wrong: u64,
}

/// Writes and checks until the process is killed. Prints the counts four times a second, as `checked N wrong M`.
///
/// file: pages are kept in it, instead of in memory. `bytes_per_s`: pages are not checked faster than this.
pub(crate) fn run(bytes: usize, bytes_per_s: f64, file: Option<&Path>) -> Result<(), String> {
    if bytes < PAGE_BYTES || bytes_per_s.is_nan() || bytes_per_s < PAGE_BYTES as f64 {
        return Err(format!("--bytes and --rate must be at least {PAGE_BYTES}"));
    }
    let pages = bytes / PAGE_BYTES;
    let outcome = match file {
        None => check(&mut Memory(vec![[0; PAGE_BYTES]; pages]), pages, bytes_per_s),
        Some(path) => File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .and_then(|opened| check(&mut Disk(opened), pages, bytes_per_s)),
    };
    outcome.map_err(|error| file.map_or_else(|| error.to_string(), |path| format!("{}: {error}", path.display())))
}

fn check(store: &mut dyn Store, pages: usize, bytes_per_s: f64) -> io::Result<()> {
    let mut counts = Counts::default();
    pass(store, pages, 0, &mut counts, |_| Ok(()))?;
    let began_ns = clock::monotonic();
    let mut reported_ns = began_ns;
    for generation in 1.. {
        pass(store, pages, generation, &mut counts, |so_far| {
            let now_ns = clock::monotonic();
            let due_ns = began_ns + (so_far.checked as f64 * PAGE_BYTES as f64 / bytes_per_s * 1e9) as Nanos;
            if due_ns > now_ns + BEAT_NS {
                clock::sleep_until(due_ns);
            }
            if now_ns - reported_ns >= REPORT_NS {
                reported_ns = now_ns;
                writeln!(io::stdout(), "checked {} wrong {}", so_far.checked, so_far.wrong)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Checks each page, if there was a pass before, and writes its next content.
fn pass(
    store: &mut dyn Store,
    pages: usize,
    generation: u64,
    counts: &mut Counts,
    mut after: impl FnMut(&Counts) -> io::Result<()>,
) -> io::Result<()> {
    let mut page = [0; PAGE_BYTES];
    for place in 0..pages {
        if let Some(last) = generation.checked_sub(1) {
            store.read(place, &mut page)?;
            counts.checked += 1;
            counts.wrong += u64::from(page != content(place, last));
            after(counts)?;
        }
        store.write(place, &content(place, generation))?;
    }
    store.flush()
}

/// What a page holds after a pass: no two pages of any two passes are alike.
fn content(place: usize, generation: u64) -> Page {
    let mut page = [0; PAGE_BYTES];
    let first = (place as u64 ^ generation.rotate_left(32)).wrapping_mul(FACTOR);
    for (index, word) in page.chunks_exact_mut(PAGE_BYTES / WORDS).enumerate() {
        word.copy_from_slice(&first.wrapping_add(index as u64).to_le_bytes());
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts_after(spoil: impl FnOnce(&mut Memory)) -> Counts {
        let mut memory = Memory(vec![[0; PAGE_BYTES]; 8]);
        let mut counts = Counts::default();
        pass(&mut memory, 8, 0, &mut counts, |_| Ok(())).expect("memory");
        pass(&mut memory, 8, 1, &mut counts, |_| Ok(())).expect("memory");
        spoil(&mut memory);
        pass(&mut memory, 8, 2, &mut counts, |_| Ok(())).expect("memory");
        counts
    }

    #[test]
    fn pages_that_keep_what_was_written_are_not_wrong() {
        assert_eq!(counts_after(|_| ()), Counts { checked: 16, wrong: 0 });
    }

    #[test]
    fn a_page_of_an_earlier_pass_or_of_another_place_is_wrong() {
        let stale = counts_after(|memory| memory.0[3] = content(3, 0));
        let moved = counts_after(|memory| memory.0.swap(1, 2));
        assert_eq!((stale.wrong, moved.wrong), (1, 2));
    }

    #[test]
    fn a_file_is_checked_as_memory_is() {
        let path = std::env::temp_dir().join(format!("partywall-verify-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).expect("a file");
        std::fs::remove_file(&path).expect("removed");
        let (mut disk, mut counts) = (Disk(file), Counts::default());
        for generation in 0..3 {
            pass(&mut disk, 5, generation, &mut counts, |_| Ok(())).expect("a disk");
        }
        assert_eq!(counts, Counts { checked: 10, wrong: 0 });
        disk.write(2, &content(2, 0)).expect("a disk");
        pass(&mut disk, 5, 3, &mut counts, |_| Ok(())).expect("a disk");
        assert_eq!(counts, Counts { checked: 15, wrong: 1 });
    }

    #[test]
    fn sizes_below_a_page_are_refused() {
        assert!(run(100, 1e6, None).unwrap_err().contains("at least 4096"));
        assert!(run(1 << 20, f64::NAN, None).unwrap_err().contains("at least 4096"));
    }
}
