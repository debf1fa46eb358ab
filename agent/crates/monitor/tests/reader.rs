//! The reader on hosts represented as folders, and on the test host.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use partywall_clock::{thread_cpu, SessionClock};
use partywall_facts::{cgroup, under};
use partywall_monitor::{catalogue, CgroupTarget, CounterInfo, Kind, Reader, Resource, Sample, Targets};
use tempfile::TempDir;

struct Host(TempDir);

impl Host {
    fn with(files: &[(&str, &str)]) -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        for (path, text) in files {
            host.write(path, text);
        }
        host
    }

    fn write(&self, path: &str, text: &str) {
        let path = under(self.0.path(), path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn reader(&self, targets: &Targets) -> Reader {
        Reader::new(self.0.path(), targets).0
    }
}

fn value(header: &[CounterInfo], sample: &Sample, name: &str, subject: Option<&str>) -> Option<f64> {
    let is_it = |counter: &CounterInfo| counter.name == name && counter.subject.as_deref() == subject;
    sample.values[header.iter().position(is_it).unwrap_or_else(|| panic!("no counter {name} of {subject:?}"))]
}

fn read(reader: &mut Reader, name: &str, subject: Option<&str>) -> Option<f64> {
    let sample = reader.read(&SessionClock::default());
    value(reader.header(), &sample, name, subject)
}

const STAT: &str = "cpu  3 0 0 9 0 0 0 5 0 0\ncpu0 1 0 0 5 0 0 0 2 0 0\ncpu1 2 0 0 4 0 0 0 3 0 0\nctxt 7\n";

#[test]
fn a_counter_that_moved_shows_in_the_next_sample() {
    let host = Host::with(&[("/proc/stat", STAT)]);
    let mut reader = host.reader(&Targets::default());
    assert_eq!(read(&mut reader, "context_switches_count", None), Some(7.0));
    host.write("/proc/stat", &STAT.replace("ctxt 7", "ctxt 12"));
    assert_eq!(read(&mut reader, "context_switches_count", None), Some(12.0));
}

#[test]
fn only_requested_cpus_are_reported_but_always_their_sum() {
    let host = Host::with(&[("/proc/stat", STAT)]);
    let reader = host.reader(&Targets { cpus: Some(vec![1]), ..Targets::default() });
    let of_cpus = reader.header().iter().filter(|counter| counter.name == "cpu_steal_ns");
    assert_eq!(of_cpus.filter_map(|counter| counter.subject.as_deref()).collect::<Vec<_>>(), ["cpu", "cpu1"]);
}

#[test]
fn disks_are_whole_ones_that_hold_something_unless_named() {
    let host = Host::with(&[("/sys/block/sda/size", "8\n"), ("/sys/block/loop0/size", "0\n")]);
    for name in ["sda", "sda1", "loop0"] {
        host.write(&format!("/sys/class/block/{name}/stat"), "1 2 3 4 5 6 7 8 9 10 11\n");
    }
    let subjects = |disks: Option<Vec<String>>| {
        let reader = host.reader(&Targets { disks, ..Targets::default() });
        reader
            .header()
            .iter()
            .filter(|counter| counter.name == "disk_busy_ns")
            .filter_map(|counter| counter.subject.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(subjects(None), ["sda"]);
    assert_eq!(subjects(Some(vec!["sda1".into()])), ["sda1"]);
}

#[test]
fn a_disk_or_interface_that_is_not_there_is_missing_by_name() {
    let host = Host::with(&[("/proc/net/dev", "")]);
    let targets = Targets { disks: Some(vec!["sdz".into()]), interfaces: Some(vec!["eth9".into()]), ..Targets::default() };
    let (_, missing) = Reader::new(host.0.path(), &targets);
    for name in ["sdz", "eth9"] {
        assert!(missing.iter().any(|missing| missing.why.contains(name)), "{name}");
    }
}

#[test]
fn every_empty_column_and_every_absent_file_has_its_reason() {
    let host = Host::with(&[("/proc/stat", "cpu0 1 2 3\n"), ("/proc/vmstat", "pgfault 1\n")]);
    let (mut reader, missing) = Reader::new(host.0.path(), &Targets { pids: vec![77], ..Targets::default() });
    let sample = reader.read(&SessionClock::default());
    for (counter, _) in reader.header().iter().zip(&sample.values).filter(|(_, value)| value.is_none()) {
        assert!(missing.iter().any(|missing| missing.what.contains(&counter.name)), "{counter:?}");
    }
    for file in ["/proc/meminfo", "/proc/pressure/cpu", "/proc/77/stat", "/sys/block"] {
        assert!(
            missing.iter().any(|missing| missing.why.contains(file) && !missing.cost.is_empty() && !missing.remedy.is_empty()),
            "{file}"
        );
    }
}

#[test]
fn loopback_is_evidence_of_local_communication() {
    let host = Host::with(&[("/proc/net/dev", "lo: 1 2 3 4 5 6 7 8 9 10 11 12\neth0: 1 2 3 4 5 6 7 8 9 10 11 12\n")]);
    let reader = host.reader(&Targets::default());
    let resource = |subject: &str| reader.header().iter().find(|counter| counter.subject.as_deref() == Some(subject)).unwrap().resource;
    assert_eq!((resource("lo"), resource("eth0")), (Resource::LocalCommunication, Resource::Network));
}

#[test]
fn a_cgroup_that_is_removed_leaves_its_columns_empty_or_still() {
    let host = Host::with(&[("/c/cpu.stat", "usage_usec 5\nnr_periods 1\nnr_throttled 1\nthrottled_usec 9\n")]);
    let folders = cgroup::CgroupFolders { v2: Some("/c".into()), ..Default::default() };
    let targets = Targets { cgroups: vec![CgroupTarget { label: "victim".into(), folders }], ..Targets::default() };
    assert_eq!(read(&mut host.reader(&targets), "cgroup_cpu_throttled_ns", Some("victim")), Some(9000.0));
}

/// A child of this test, ended when it goes out of scope.
struct Running(Child);

impl Running {
    fn start() -> Self {
        Self(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn a_process_that_ends_leaves_its_columns_empty_and_the_rest_goes_on() {
    let mut child = Running::start();
    let pid = child.0.id();
    let (mut reader, _) = Reader::new(Path::new("/"), &Targets { pids: vec![pid], ..Targets::default() });
    let subject = pid.to_string();
    assert!(read(&mut reader, "process_minor_faults_count", Some(&subject)).is_some());
    child.end();
    let sample = reader.read(&SessionClock::default());
    for (counter, value) in reader.header().iter().zip(&sample.values) {
        if counter.subject.as_ref() == Some(&subject) {
            assert_eq!(*value, None, "{counter:?}");
        }
    }
    assert!(value(reader.header(), &sample, "context_switches_count", None).is_some());
}

#[test]
fn sums_over_threads_do_not_fall_when_a_thread_ends() {
    let pid = std::process::id();
    let (mut reader, _) = Reader::new(Path::new("/"), &Targets { pids: vec![pid], ..Targets::default() });
    let (started, wait_started) = mpsc::channel();
    let (end, wait_end) = mpsc::channel::<()>();
    let worker = std::thread::spawn(move || {
        started.send(()).unwrap();
        let _ = wait_end.recv();
    });
    wait_started.recv().unwrap();
    let names = ["process_run_ns", "process_voluntary_switches_count", "process_timeslices_count"];
    let mut read_all = || names.map(|name| read(&mut reader, name, Some(&pid.to_string())));
    let with = read_all();
    end.send(()).unwrap();
    worker.join().unwrap();
    for (before, after) in with.iter().zip(read_all()) {
        // A kernel without CONFIG_SCHED_INFO reports neither value.
        assert!(before.is_some() == after.is_some() && after >= *before, "{before:?} {after:?}");
    }
}

/// This process, its own cgroup, and the whole host.
fn everything() -> Targets {
    let folders = cgroup::own(Path::new("/")).unwrap_or_default();
    Targets { pids: vec![std::process::id()], cgroups: vec![CgroupTarget { label: "own".into(), folders }], ..Targets::default() }
}

#[test]
fn totals_of_this_host_never_fall() {
    let (mut reader, _) = Reader::new(Path::new("/"), &everything());
    let (first, second) = (reader.read(&SessionClock::default()), reader.read(&SessionClock::default()));
    assert!(first.at_ns <= first.until_ns && first.until_ns <= second.at_ns);
    // By design, the kernel's idle and iowait may decrease; nothing else may.
    let falls_by_design = |name: &str| matches!(name, "cpu_idle_ns" | "cpu_iowait_ns");
    for ((counter, before), after) in reader.header().iter().zip(&first.values).zip(&second.values) {
        if counter.kind == Kind::Total && !falls_by_design(&counter.name) {
            assert!(after >= before, "{counter:?}: {before:?} {after:?}");
        }
    }
}

#[test]
fn header_and_sample_survive_the_wire() {
    let (mut reader, _) = Reader::new(Path::new("/"), &everything());
    let sample = reader.read(&SessionClock::default());
    assert_eq!(sample.values.len(), reader.header().len());
    let back: Sample = serde_json::from_str(&serde_json::to_string(&sample).unwrap()).unwrap();
    assert_eq!(back, sample);
    let header: Vec<CounterInfo> = serde_json::from_str(&serde_json::to_string(reader.header()).unwrap()).unwrap();
    assert_eq!(header, reader.header());
}

#[test]
fn each_name_and_subject_is_there_once() {
    let (reader, _) = Reader::new(Path::new("/"), &everything());
    let mut seen = BTreeSet::new();
    for counter in reader.header() {
        assert!(seen.insert((&counter.name, &counter.subject)), "{counter:?}");
    }
}

#[test]
fn every_counter_that_can_be_read_is_in_the_catalogue() {
    let names: BTreeSet<_> = catalogue().into_iter().map(|entry| entry.name.to_owned()).collect();
    let (reader, _) = Reader::new(Path::new("/"), &everything());
    for counter in reader.header() {
        assert!(names.contains(&counter.name), "{counter:?}");
    }
}

/// Prints a measurement instead of checking, for `cargo test --release -- --ignored --nocapture cost`.
#[test]
#[ignore = "prints a figure; run it alone and in release mode"]
fn cost_of_a_sample() {
    let (mut reader, _) = Reader::new(Path::new("/"), &everything());
    let mut costs_ns: Vec<u64> = (0..2000).map(|_| cost_ns(&mut reader)).collect();
    costs_ns.sort_unstable();
    let [least, median] = [costs_ns[0], costs_ns[costs_ns.len() / 2]].map(|cost_ns| cost_ns as f64 / 1e3);
    let counters = reader.header().len();
    eprintln!("{counters} counters: {median:.1} µs of CPU a sample, at least {least:.1}; at ten a second {:.3} % of a core", median / 1e3);
}

fn cost_ns(reader: &mut Reader) -> u64 {
    let start_ns = thread_cpu();
    std::hint::black_box(reader.read(&SessionClock::default()));
    thread_cpu() - start_ns
}
