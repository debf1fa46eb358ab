//! CPU time and waits of a worker thread, and the limits that all workers share. It only measures; the controller judges whether the
//! resources were sufficient.

use std::fs;
use std::path::{Path, PathBuf};

use partywall_clock::{self as clock, Nanos};

/// Reads the calling thread's CPU accounting.
pub(crate) struct ThreadClock {
    cpu_ns: Nanos,
    run_delay_ns: Option<Nanos>,
}

impl ThreadClock {
    pub(crate) fn new() -> Self {
        Self { cpu_ns: clock::thread_cpu(), run_delay_ns: run_delay() }
    }

    /// CPU time used and time spent waiting for a CPU since the last step.
    pub(crate) fn step(&mut self) -> (Nanos, Option<Nanos>) {
        let before = std::mem::replace(self, Self::new());
        let delay = self.run_delay_ns.zip(before.run_delay_ns).map(|(now, then)| now.saturating_sub(then));
        (self.cpu_ns.saturating_sub(before.cpu_ns), delay)
    }
}

/// The second value of schedstat: time on a run queue without running. None if the kernel has no such accounting.
fn run_delay() -> Option<Nanos> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Shared resources of all threads of the generator. One thread reads them.
pub(crate) struct Surroundings {
    /// Last content of `/proc/self/cgroup`, because a process may be moved to another cgroup at any time.
    cgroup: String,
    /// `cpu.stat` of the generator's cgroup and its ancestors: a limit applies to the whole subtree.
    accounts: Vec<PathBuf>,
    throttled_ns: Option<Nanos>,
    pub ports_most: Option<u64>,
}

impl Surroundings {
    pub(crate) fn new(ports_most: Option<u64>) -> Self {
        let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let accounts = cpu_accounts(&cgroup, &mounts);
        Self { cgroup, throttled_ns: throttled(&accounts), accounts, ports_most }
    }

    /// Time for which CPU limits throttled the generator since the last call.
    pub(crate) fn throttled_ns(&mut self) -> Option<Nanos> {
        if fs::read_to_string("/proc/self/cgroup").unwrap_or_default() != self.cgroup {
            *self = Self::new(self.ports_most);
            return None;
        }
        let now = throttled(&self.accounts);
        let before = std::mem::replace(&mut self.throttled_ns, now);
        now.zip(before).map(|(now, before)| now.saturating_sub(before))
    }

    /// Local ports of this network namespace in `TIME_WAIT`.
    #[expect(clippy::unused_self, reason = "a reading of the surroundings like the other")]
    pub(crate) fn ports_waiting(&self) -> Option<u64> {
        time_waits(&fs::read_to_string("/proc/net/sockstat").ok()?)
    }
}

/// The `cpu.stat` files with a process's limits, from `/proc/self/cgroup` and `/proc/self/mounts`. Uses cgroup version 1 if its CPU
/// controller is mounted, otherwise version 2.
fn cpu_accounts(own: &str, mounts: &str) -> Vec<PathBuf> {
    let line = |wanted: fn(&str) -> bool| own.lines().filter_map(|line| line.split_once(':')?.1.split_once(':')).find(|(c, _)| wanted(c));
    let v1 = line(|controllers| controllers.split(',').any(|controller| controller == "cpu"));
    let Some((_, path)) = v1.or_else(|| line(str::is_empty)) else { return Vec::new() };
    let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).filter(|fields| fields.len() > 3);
    let mount = fields.find(|fields| match v1 {
        Some(_) => fields[2] == "cgroup" && fields[3].split(',').any(|option| option == "cpu"),
        None => fields[2] == "cgroup2",
    });
    let Some(root) = mount.map(|fields| PathBuf::from(fields[1])) else { return Vec::new() };
    let below = Path::new(path.trim_start_matches('/'));
    below.ancestors().map(|folder| root.join(folder).join("cpu.stat")).filter(|file| file.exists()).collect()
}

fn throttled(accounts: &[PathBuf]) -> Option<Nanos> {
    let read = |file: &PathBuf| throttled_in(&fs::read_to_string(file).ok()?);
    accounts.iter().filter_map(read).reduce(|sum, each| sum + each)
}

/// `throttled_time` in ns of version 1, `throttled_usec` of version 2.
fn throttled_in(text: &str) -> Option<Nanos> {
    text.lines().find_map(|line| match line.split_once(' ')? {
        ("throttled_time", ns) => ns.trim().parse().ok(),
        ("throttled_usec", us) => us.trim().parse::<Nanos>().ok().map(|us| us * 1000),
        _ => None,
    })
}

/// The `tw` of the TCP line of `/proc/net/sockstat`.
fn time_waits(text: &str) -> Option<u64> {
    let mut words = text.lines().find(|line| line.starts_with("TCP:"))?.split_ascii_whitespace().skip_while(|word| *word != "tw");
    words.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttled_time_is_read_in_both_versions_and_is_none_if_it_is_missing() {
        assert_eq!(throttled_in("nr_periods 10\nnr_throttled 4\nthrottled_time 123456789\n"), Some(123_456_789));
        assert_eq!(throttled_in("usage_usec 5\nnr_throttled 4\nthrottled_usec 123\n"), Some(123_000));
        assert_eq!(throttled_in("usage_usec 5\n"), None);
    }

    #[test]
    fn accounts_cover_the_cgroup_and_its_ancestors() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b");
        fs::create_dir_all(&deep).unwrap();
        for folder in [root.path().to_path_buf(), root.path().join("a"), deep] {
            fs::write(folder.join("cpu.stat"), "throttled_usec 7\n").unwrap();
        }
        let at = root.path().display();
        let v2 = cpu_accounts("0::/a/b\n", &format!("proc /proc proc rw 0 0\ncgroup2 {at} cgroup2 rw 0 0\n"));
        let v1 = cpu_accounts("4:cpu,cpuacct:/a/b\n0::/\n", &format!("c {at} cgroup rw,cpu,cpuacct 0 0\n"));
        assert_eq!((v2.len(), throttled(&v2)), (3, Some(21_000)));
        assert_eq!((v1, cpu_accounts("4:memory:/x\n", "").len()), (v2, 0));
    }

    #[test]
    fn time_waits_are_those_of_tcp() {
        let text = "sockets: used 9\nTCP: inuse 5 orphan 0 tw 12 alloc 7 mem 1\nUDP: inuse 1 mem 0\n";
        assert_eq!((time_waits(text), time_waits("UDP: inuse 1\n")), (Some(12), None));
    }
}
