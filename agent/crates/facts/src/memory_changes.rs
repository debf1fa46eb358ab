//! Counts which pages of a file in memory change over time, such as the memory of a guest before its migration. Each page is hashed at
//! set times and compared with its earlier hash.
//!
//! Holes of a file are skipped.

mod hash;
mod history;
mod scan;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use partywall_clock::{self as clock, Nanos};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use history::History;
use scan::Pages;

/// The unit of changes: the smallest page size of all architectures.
pub const PAGE_BYTES: u64 = 4096;
/// Maximum duration of a count.
pub const LONGEST_NS: Nanos = 120_000_000_000;
const SAMPLES_MAX: u32 = 4096;
const STRIDE_MAX: u32 = 4096;
const WINDOWS_MAX: usize = 64;
/// Maximum pages to hash. Each needs 12 bytes.
const LOOKED_AT_MAX: u64 = 1 << 24;

/// Parameters of a count.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The file.
    pub file: PathBuf,
    /// Time from one sample to the next.
    pub interval_ns: Nanos,
    /// Maximum samples, including the first.
    pub samples: u32,
    /// One of this many pages is hashed.
    pub stride: u32,
    /// Windows as numbers of intervals, ascending.
    pub windows: Vec<u32>,
}

/// Reason why nothing was counted.
#[derive(Debug, thiserror::Error)]
pub enum ChangesError {
    /// A number is out of range.
    #[error("{key}: {value} is out of range; give {least} to {most}")]
    Range {
        /// Name of the parameter.
        key: &'static str,
        /// The requested value.
        value: u64,
        /// The minimum.
        least: u64,
        /// The maximum.
        most: u64,
    },
    /// The windows are not ascending.
    #[error("windows: {0:?} do not ascend; give each number of intervals once, the smallest first")]
    Windows(Vec<u32>),
    /// The count would take longer than a request may take.
    #[error("samples × interval_ns is {0} ns; give at most {LONGEST_NS}")]
    Long(u128),
    /// Not a regular file but a folder, a device or a pipe.
    #[error("{} is not a regular file; give the file that contains the memory", .0.display())]
    NotAFile(PathBuf),
    /// The file is smaller than a page.
    #[error("{} holds {bytes} bytes, less than a page of {PAGE_BYTES}; give the file once it holds the memory", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// The file needs too many hashes.
    #[error("{} has {pages} pages; give a stride of {stride} or more", file.display())]
    Large {
        /// The file.
        file: PathBuf,
        /// Its pages.
        pages: u64,
        /// The minimum stride for it.
        stride: u64,
    },
    /// The file was truncated meanwhile.
    #[error("{} became shorter while its pages were read: {bytes} bytes are left", file.display())]
    Shrunk {
        /// The file.
        file: PathBuf,
        /// Its current length.
        bytes: u64,
    },
    /// An operation failed on this host.
    #[error("{what}: {source}")]
    Host {
        /// The operation and its object.
        what: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

/// Result of a count of changed pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryChanges {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Whole pages of the file.
    pub pages: u64,
    /// Hashed pages. With a stride, not all.
    pub looked_at: u64,
    /// Samples in order of time. The first is the reference for the others.
    pub samples: Vec<ChangesSample>,
}

/// Changes up to one sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangesSample {
    /// Start of the sample. Samples begin at multiples of the interval after the first. A sample is skipped if the scan before it takes
    /// longer.
    pub at_ns: Nanos,
    /// Time to read the pages.
    pub scan_ns: Nanos,
    /// For each window, how many of the hashed pages have changed within that many intervals before this sample. Null if no sample was
    /// taken at the start of the window.
    pub changed: Vec<Option<u64>>,
}

/// Counts according to `plan`; `file` is below `root`.
///
/// # Errors
/// The plan is invalid, or the file cannot be read.
pub fn memory_changes(root: &Path, plan: &Plan) -> Result<MemoryChanges, ChangesError> {
    check(plan)?;
    let path = crate::under(root, &plan.file.to_string_lossy());
    let (file, pages) = open(&path, plan)?;
    let mut hashed = Pages::new(file, pages, plan.stride);
    let samples = watch(&mut hashed, plan, &path)?;
    Ok(MemoryChanges { page_bytes: PAGE_BYTES, pages, looked_at: hashed.looked_at(), samples })
}

fn watch(pages: &mut Pages, plan: &Plan, path: &Path) -> Result<Vec<ChangesSample>, ChangesError> {
    let start_ns = clock::monotonic();
    let mut history = History::new(plan.samples as usize);
    let mut samples = Vec::new();
    let mut index = 0;
    while index < plan.samples {
        clock::sleep_until(start_ns + u64::from(index) * plan.interval_ns);
        let at_ns = clock::monotonic();
        pages.scan(path, &mut history, index)?;
        let end_ns = clock::monotonic();
        let changed = plan.windows.iter().map(|&window| history.changed_within(window)).collect();
        samples.push(ChangesSample { at_ns, scan_ns: end_ns - at_ns, changed });
        index = next(index, (end_ns - start_ns) / plan.interval_ns);
    }
    Ok(samples)
}

/// The next sample after `index` that is not late, if this many intervals have passed.
fn next(index: u32, passed: u64) -> u32 {
    u32::try_from(passed + 1).unwrap_or(u32::MAX).max(index + 1)
}

fn check(plan: &Plan) -> Result<(), ChangesError> {
    within("samples", plan.samples.into(), 1, SAMPLES_MAX.into())?;
    within("stride", plan.stride.into(), 1, STRIDE_MAX.into())?;
    within("interval_ns", plan.interval_ns, 1, LONGEST_NS)?;
    within("the number of windows", plan.windows.len() as u64, 0, WINDOWS_MAX as u64)?;
    plan.windows.iter().try_for_each(|&window| within("windows", window.into(), 1, plan.samples.into()))?;
    if !plan.windows.is_sorted_by(|before, after| before < after) {
        return Err(ChangesError::Windows(plan.windows.clone()));
    }
    match u128::from(plan.samples) * u128::from(plan.interval_ns) {
        long if long > u128::from(LONGEST_NS) => Err(ChangesError::Long(long)),
        _ => Ok(()),
    }
}

fn within(key: &'static str, value: u64, least: u64, most: u64) -> Result<(), ChangesError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(ChangesError::Range { key, value, least, most })
}

/// The file, and its whole pages.
fn open(path: &Path, plan: &Plan) -> Result<(File, u64), ChangesError> {
    let metadata = fs::metadata(path).map_err(host("opening", path))?;
    if !metadata.is_file() {
        return Err(ChangesError::NotAFile(path.into()));
    }
    let no_wait = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(no_wait).open(path).map_err(host("opening", path))?;
    let bytes = file.metadata().map_err(host("reading the length of", path))?.len();
    let pages = bytes / PAGE_BYTES;
    if pages == 0 {
        return Err(ChangesError::Empty { file: path.into(), bytes });
    }
    if pages.div_ceil(plan.stride.into()) > LOOKED_AT_MAX {
        return Err(ChangesError::Large { file: path.into(), pages, stride: pages.div_ceil(LOOKED_AT_MAX) });
    }
    Ok((file, pages))
}

fn host(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> ChangesError {
    let what = format!("{doing} {}", path.display());
    move |source| ChangesError::Host { what, source }
}

#[cfg(test)]
mod tests;
