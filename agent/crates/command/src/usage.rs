//! Resource usage of a command: CPU time and disk traffic of its process and all descendants, read from `/proc`. It shows whether a
//! continued command did anything, and whether a stopped one really stopped: a process that leaves the group is not stopped with it.
//! It does not judge the values.
//!
//! A reaped process is counted by its parent. A process is missed if a daemon's double fork hides it before it was seen, or if it ends
//! unreaped. So the values are lower bounds. CPU time comes in the kernel's ticks of 10 ms: sums over many slots are accurate, single
//! slots are not.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use partywall_clock::Nanos;
use partywall_facts::process;

/// Maximum processes to follow. Reading more would take too long before a switch.
const MOST: usize = 256;

/// Resource usage between two switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Time of the switch before.
    pub start_ns: Nanos,
    /// Time of the next switch.
    pub end_ns: Nanos,
    /// Whether it was on in between.
    pub on: bool,
    /// Processes at the end.
    pub processes: u32,
    /// CPU time of all processes.
    pub cpu_ns: u64,
    /// Bytes read from and written to block devices. `None` if the kernel does not report them.
    pub disk_bytes: Option<u64>,
}

/// Usage since the start, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Total {
    processes: u32,
    cpu_ns: u64,
    disk_bytes: Option<u64>,
}

/// Follows the processes of one command.
pub(crate) struct Meter {
    root: PathBuf,
    leader: u32,
    tick_ns: u64,
    /// Every process seen so far with its start time, because process IDs are reused.
    known: BTreeMap<u32, u64>,
    last: Option<(Nanos, Total)>,
}

/// Queue of intervals.
#[derive(Clone, Default)]
pub struct Tape(Arc<Mutex<Vec<Used>>>);

impl Tape {
    /// Takes the queued intervals.
    #[must_use]
    pub fn take(&self) -> Vec<Used> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn push(&self, used: Used) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(used);
    }
}

impl Meter {
    pub fn new(root: &Path, leader: u32) -> Self {
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
        Self { root: root.to_owned(), leader, tick_ns, known: BTreeMap::new(), last: None }
    }

    /// Usage since the last reading, during which the command was `on`. `None` for the first reading, and if `/proc` does not report it.
    pub fn read(&mut self, now_ns: Nanos, on: bool) -> Option<Used> {
        let total = self.total()?;
        let (start_ns, before) = self.last.replace((now_ns, total))?;
        // The counts of a process that ended unreaped disappear, so a difference may be negative. It counts as 0.
        let disk_bytes = total.disk_bytes.zip(before.disk_bytes).map(|(now, before)| now.saturating_sub(before));
        let cpu_ns = total.cpu_ns.saturating_sub(before.cpu_ns);
        Some(Used { start_ns, end_ns: now_ns, on, processes: total.processes, cpu_ns, disk_bytes })
    }

    fn total(&mut self) -> Option<Total> {
        let mut descendants = BTreeMap::new();
        let mut open: Vec<u32> = self.known.keys().copied().chain([self.leader]).collect();
        let mut total = Total { disk_bytes: Some(0), ..Total::default() };
        while let Some(pid) = open.pop() {
            if descendants.contains_key(&pid) || descendants.len() >= MOST {
                continue;
            }
            let Some(process) = self.process(pid) else { continue };
            if self.known.get(&pid).is_some_and(|&start| start != process.start) {
                continue;
            }
            descendants.insert(pid, process.start);
            total.processes += 1;
            total.cpu_ns += process.ticks * self.tick_ns;
            total.disk_bytes = total.disk_bytes.zip(process.disk_bytes).map(|(sum, more)| sum + more);
            open.extend(self.children(pid));
        }
        self.known = descendants;
        (total.processes > 0).then_some(total)
    }

    fn folder(&self, pid: u32) -> PathBuf {
        self.root.join("proc").join(pid.to_string())
    }

    fn process(&self, pid: u32) -> Option<Process> {
        let folder = self.folder(pid);
        let wanted = [process::USER, process::SYSTEM, process::CHILDREN_USER, process::CHILDREN_SYSTEM, process::START];
        let [ticks @ .., start] = process::fields(&fs::read(folder.join("stat")).ok()?, wanted);
        let ticks = ticks.into_iter().try_fold(0_u64, |sum, ticks| sum.checked_add(ticks?))?;
        let disk_bytes = fs::read_to_string(folder.join("io")).ok().and_then(|text| parse_io(&text));
        Some(Process { ticks, start: start?, disk_bytes })
    }

    fn children(&self, pid: u32) -> Vec<u32> {
        let threads = fs::read_dir(self.folder(pid).join("task")).into_iter().flatten().flatten();
        let texts = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        texts.flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
    }
}

struct Process {
    /// Ticks of the process and its reaped children.
    ticks: u64,
    start: u64,
    disk_bytes: Option<u64>,
}

fn parse_io(text: &str) -> Option<u64> {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
    value("read_bytes:")?.checked_add(value("write_bytes:")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Processes in a folder.
    struct Host(tempfile::TempDir);

    impl Host {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a folder"))
        }

        fn process(&self, pid: u32, start: u64, ticks: u64, children: &str) {
            let folder = self.0.path().join(format!("proc/{pid}"));
            fs::create_dir_all(folder.join(format!("task/{pid}"))).expect("a folder");
            let line = format!("{pid} (a (b) c) S 1 1 1 0 -1 0 0 0 0 0 {ticks} 0 1 0 20 0 1 0 {start} 0 0\n");
            fs::write(folder.join("stat"), line).expect("a file");
            fs::write(folder.join("io"), format!("rchar: 9\nread_bytes: {ticks}\nwrite_bytes: 1\n")).expect("a file");
            fs::write(folder.join(format!("task/{pid}/children")), children).expect("a file");
        }

        fn meter(&self) -> Meter {
            Meter::new(self.0.path(), 10)
        }
    }

    #[test]
    fn descendants_count_even_after_they_left_their_parent() {
        let host = Host::new();
        let mut meter = host.meter();
        host.process(10, 1, 5, "11");
        host.process(11, 2, 5, "12 13");
        host.process(12, 3, 0, "");
        host.process(13, 3, 0, "");
        assert_eq!(meter.read(100, true), None, "the first reading only begins");
        host.process(10, 1, 7, "");
        host.process(11, 2, 6, "");
        let used = meter.read(200, true).expect("known");
        assert_eq!((used.start_ns, used.end_ns, used.on, used.processes), (100, 200, true, 4));
        assert_eq!((used.cpu_ns, used.disk_bytes), (3 * meter.tick_ns, Some(3)));
    }

    #[test]
    fn another_process_of_the_same_number_is_not_counted() {
        let host = Host::new();
        let mut meter = host.meter();
        host.process(10, 1, 5, "11");
        host.process(11, 2, 5, "");
        meter.read(0, false);
        host.process(10, 1, 5, "");
        host.process(11, 999, 500, "");
        assert_eq!(meter.read(1, false).map(|used| (used.processes, used.cpu_ns)), Some((1, 0)));
    }

    #[test]
    fn a_host_without_values_gives_none() {
        assert_eq!(Host::new().meter().read(0, true), None);
        let host = Host::new();
        host.process(10, 1, 5, "");
        fs::remove_file(host.0.path().join("proc/10/io")).expect("there");
        let mut meter = host.meter();
        meter.read(0, true);
        assert_eq!(meter.read(1, true).map(|used| used.disk_bytes), Some(None));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "(\\)|read_bytes:|[0-9 ]|.|\n)*") {
            let _ = parse_io(&text);
        }
    }
}
