//! Shared by kernels that need much memory: blocks that fit into the available memory, and passes through a block in chunks short
//! enough for a step.

use std::fs;
use std::ops::Range;
use std::path::Path;

use partywall_facts::memory;
use partywall_sys::memory::Block;
use serde_json::{json, Value};

use crate::{Environment, KernelError, Params};

/// More than any kernel needs; prevents overflow in sums of sizes.
pub(crate) const BYTES_MAX: usize = 1 << 40;

/// Bytes per block and step: short enough to pace finely, long enough that the cost of reading the clock is negligible.
pub(crate) const CHUNK_BYTES: usize = 512 << 10;

/// The kind of pages of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// The host's default.
    Ordinary,
    /// Transparent huge pages, requested with `madvise`.
    Huge,
}

impl Pages {
    pub(crate) fn from_parameter(huge_pages: bool) -> Self {
        if huge_pages {
            Self::Huge
        } else {
            Self::Ordinary
        }
    }
}

/// Bytes that can be allocated now.
pub(crate) fn available(environment: &Environment) -> Result<u64, KernelError> {
    memory::usable(&environment.root).map_err(KernelError::host("reading the available memory"))
}

/// Returns an error if there is no room for `bytes`, the given or derived value of parameter `key`.
fn claim(key: &'static str, bytes: u64, environment: &Environment) -> Result<(), KernelError> {
    let available = available(environment)?;
    if bytes <= available {
        return Ok(());
    }
    let why =
        format!("needs {bytes} bytes in this worker, but the host and the cgroup leave {available}; give less or raise the memory limit");
    Err(KernelError::Parameter { key, value: bytes.to_string(), why })
}

/// Maps a block of `bytes` without touching it. `key` is the parameter with its size. Its kind of pages goes into `facts`.
pub(crate) fn untouched(
    key: &'static str,
    bytes: usize,
    pages: Pages,
    environment: &Environment,
    facts: &mut Params,
) -> Result<Block, KernelError> {
    claim(key, bytes as u64, environment)?;
    let mut block = Block::new(bytes).map_err(KernelError::host(format!("allocating a block of {bytes} bytes")))?;
    if pages == Pages::Huge {
        block.advise_huge_pages().map_err(KernelError::host("requesting transparent huge pages (parameter huge_pages)"))?;
    }
    facts.insert("transparent_huge_pages".into(), huge_pages_fact(&environment.root, pages));
    Ok(block)
}

/// `COUNT` touched blocks of numbers, all 1: neither zero nor denormal, because some CPUs compute with those at another speed.
pub(crate) fn of_ones<const COUNT: usize>(
    key: &'static str,
    bytes: usize,
    pages: Pages,
    environment: &Environment,
    facts: &mut Params,
) -> Result<[Block; COUNT], KernelError> {
    claim(key, (bytes * COUNT) as u64, environment)?;
    let mut blocks = Vec::with_capacity(COUNT);
    for _ in 0..COUNT {
        let mut block = untouched(key, bytes, pages, environment, facts)?;
        block.floats_mut().fill(1.0);
        blocks.push(block);
    }
    Ok(blocks.try_into().unwrap_or_else(|_| unreachable!("as many as the loop made")))
}

/// Whether the block gets transparent huge pages, which depends on the host's mode and on the request.
fn huge_pages_fact(root: &Path, pages: Pages) -> Value {
    let path = root.join("sys/kernel/mm/transparent_hugepage/enabled");
    let text = fs::read_to_string(path).unwrap_or_default();
    let mode = text.split('[').nth(1).and_then(|rest| rest.split(']').next());
    let apply = match (mode, pages) {
        (None, _) => return json!({ "mode": null, "why": "the host does not say", "asked": pages == Pages::Huge }),
        (Some("always"), _) | (Some("madvise"), Pages::Huge) => true,
        (Some(_), _) => false,
    };
    json!({ "mode": mode, "asked": pages == Pages::Huge, "apply": apply })
}

/// Passes through a block in chunks, repeatedly.
pub(crate) struct Round {
    at: usize,
    len: usize,
    chunk: usize,
}

impl Round {
    /// Passes through a block of `len` numbers in chunks of at most `chunk`.
    pub(crate) fn new(len: usize, chunk: usize) -> Self {
        Self { at: 0, len, chunk }
    }

    /// The next chunk. After the end it starts again.
    pub(crate) fn next(&mut self) -> Range<usize> {
        let end = (self.at + self.chunk).min(self.len);
        let range = self.at..end;
        self.at = if end == self.len { 0 } else { end };
        range
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu_cache::testing;

    #[test]
    fn a_round_covers_the_block_and_starts_again() {
        let mut round = Round::new(10, 4);
        assert_eq!([round.next(), round.next(), round.next(), round.next()], [0..4, 4..8, 8..10, 0..4]);
    }

    #[test]
    fn the_hosts_mode_and_the_request_decide_about_huge_pages() {
        let root = testing::root(&[]);
        let folder = root.path().join("sys/kernel/mm/transparent_hugepage");
        fs::create_dir_all(&folder).expect("a folder");
        for (mode, ordinary, huge) in
            [("[always] madvise never", true, true), ("always [madvise] never", false, true), ("always madvise [never]", false, false)]
        {
            fs::write(folder.join("enabled"), mode).expect("a file");
            assert_eq!(huge_pages_fact(root.path(), Pages::Ordinary)["apply"], json!(ordinary), "{mode}");
            assert_eq!(huge_pages_fact(root.path(), Pages::Huge)["apply"], json!(huge), "{mode}");
        }
    }

    #[test]
    fn huge_pages_are_unknown_on_a_host_that_does_not_report_them() {
        let fact = huge_pages_fact(testing::root(&[]).path(), Pages::Huge);
        assert_eq!((&fact["mode"], fact.get("apply")), (&Value::Null, None));
    }

    #[test]
    fn blocks_larger_than_the_available_memory_are_refused_before_allocation() {
        let root = testing::root(&[]);
        let environment = Environment { root: root.path().into(), work_dir: root.path().into(), seed: 0, thread: 0, threads: 1 };
        let error =
            of_ones::<2>("block_bytes", 3 << 30, Pages::Ordinary, &environment, &mut Params::new()).map(drop).expect_err("6 GiB of 4");
        assert!(error.to_string().starts_with("parameter block_bytes: 6442450944 needs"), "{error}");
    }
}
