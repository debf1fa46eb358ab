use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::Arc;
use std::time::Duration;

use partywall_clock as clock;
use serde_json::{json, Value};

use super::engine::{Completion, Engine};
use super::job::{Job, Kind};
use super::{file, Disk};
use crate::testing::{disk_folder, environment, error, fact, steps, try_build, Latencies};
use crate::{Kernel, KernelError};

const KINDS: [&str; 6] = ["disk-read", "disk-reread", "disk-write", "disk-rewrite", "disk-direct-read", "disk-direct-write"];

/// Builds a kernel on a small file, or prints which capability the disk of the tests lacks.
fn on_disk(name: &str, mut params: Value) -> Option<Box<dyn Kernel>> {
    if params.get("file_bytes").is_none() {
        params["file_bytes"] = json!(4 << 20);
    }
    match try_build(name, params) {
        Ok(kernel) => Some(kernel),
        Err(KernelError::Parameter { key: "path", value, why }) => {
            eprintln!("skipped: {name}: {value} {why}");
            None
        }
        Err(error) => panic!("{name}: {error}"),
    }
}

fn files_here() -> Vec<String> {
    let names = std::fs::read_dir(disk_folder()).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(".partywall")).collect()
}

#[test]
fn every_kind_processes_its_file_in_both_orders_at_every_depth_and_leaves_no_file() {
    for name in KINDS {
        for (order, depth, engine) in
            [("sequential", 1, "auto"), ("random", 8, "auto"), ("sequential", 3, "threads"), ("random", 1, "io_uring")]
        {
            let params = json!({ "order": order, "queue_depth": depth, "engine": engine, "request_blocks": 2 });
            let Some(mut kernel) = on_disk(name, params) else { continue };
            let mut latencies = Latencies::default();
            let mut bytes = 0.0;
            // More than a lap, to reach the end of the file.
            while bytes < f64::from(6 << 20) {
                bytes += steps(kernel.as_mut(), 1, &mut latencies);
            }
            assert_eq!(latencies.count() * 16384, bytes as usize, "{name} {order} {depth}");
            assert_eq!(files_here(), Vec::<String>::new());
        }
    }
}

#[test]
fn reading_leaves_almost_nothing_in_the_cache_and_rereading_nearly_all() {
    for (order, depth) in [("sequential", 1), ("sequential", 4), ("random", 1), ("random", 4)] {
        let params = json!({ "order": order, "queue_depth": depth, "file_bytes": 64 << 20, "request_bytes": 100_000 });
        let Some(mut kernel) = on_disk("disk-read", params) else { return };
        let mut bytes = 0.0;
        while bytes < f64::from(150 << 20) {
            bytes += steps(kernel.as_mut(), 1, &mut Latencies::default());
            let cached = fact(kernel.as_ref(), "cached_bytes");
            // Hosts read ahead by up to 8 MiB or so; no page that was read may remain.
            assert!(cached <= f64::from(20 << 20), "{order} {depth}: {cached} bytes are cached");
        }
    }
    let Some(mut kernel) = on_disk("disk-reread", json!({ "file_bytes": 8 << 20 })) else { return };
    steps(kernel.as_mut(), 10, &mut Latencies::default());
    // A kernel may reclaim pages at any time; some constantly reclaim pages that were not read for a while.
    let cached = fact(kernel.as_ref(), "cached_bytes");
    assert!(cached >= f64::from(6 << 20), "{cached} bytes are cached");
}

#[test]
fn another_file_is_read_first_and_freed() {
    for name in KINDS {
        let Some(kernel) = on_disk(name, json!({ "read_before_bytes": 5_000_001 })) else { return };
        assert_eq!(kernel.facts()["read_before_bytes_of_this_worker"], json!(5_000_001), "{name}");
        assert_eq!(files_here(), Vec::<String>::new());
    }
    assert!(error("disk-read", json!({ "read_before_bytes": 1 })).contains("read_before_bytes"));
    assert!(error("disk-read", json!({ "read_before_bytes": 16_u64 << 40 })).contains("read_before_bytes"), "more than the disk has");
}

#[test]
fn direct_access_stays_out_of_the_cache() {
    for name in ["disk-direct-read", "disk-direct-write"] {
        let Some(mut kernel) = on_disk(name, json!({ "request_blocks": 16 })) else { return };
        steps(kernel.as_mut(), 50, &mut Latencies::default());
        assert!(fact(kernel.as_ref(), "cached_bytes") < 1.0, "{name}");
        assert!(fact(kernel.as_ref(), "align_bytes") >= 512.0);
    }
}

#[test]
fn writes_are_made_durable_in_each_way() {
    for name in ["disk-write", "disk-rewrite", "disk-direct-write"] {
        for sync in ["none", "fsync", "fdatasync", "dsync"] {
            for depth in [1, 4] {
                let Some(mut kernel) = on_disk(name, json!({ "sync": sync, "queue_depth": depth })) else { continue };
                let mut latencies = Latencies::default();
                assert_eq!(steps(kernel.as_mut(), 3, &mut latencies) as usize, latencies.count() * 8192);
            }
        }
    }
}

#[test]
fn work_in_flight_at_a_pause_is_counted_with_the_next_step() {
    for engine in ["auto", "threads"] {
        let Some(mut kernel) = on_disk("disk-direct-read", json!({ "queue_depth": 8, "engine": engine })) else { return };
        let mut latencies = Latencies::default();
        let mut work = 0.0;
        let deadline = clock::monotonic() + 30_000_000_000;
        // Latencies of requests that ran while it was switched off are not recorded, so carried work has no latency.
        while work as usize == latencies.count() * 8192 && clock::monotonic() < deadline {
            work += steps(kernel.as_mut(), 1, &mut latencies);
            kernel.pause().unwrap();
        }
        assert!(work as usize > latencies.count() * 8192, "{engine}: nothing was ever in flight at a pause");
        kernel.pause().unwrap();
        kernel.pause().unwrap();
    }
}

/// Holds requests until it must complete them, and fails them while the disk is full.
struct Filling {
    held: Vec<usize>,
    full: Arc<AtomicBool>,
}

impl Engine for Filling {
    fn submit(&mut self, slot: usize, _: u64) -> std::io::Result<()> {
        self.held.push(slot);
        Ok(())
    }

    fn complete(&mut self, done: &mut Vec<Completion>) -> std::io::Result<()> {
        let result = || if self.full.load(Ordering::Relaxed) { Err(rustix::io::Errno::NOSPC.into()) } else { Ok(()) };
        done.extend(self.held.pop().map(|slot| (slot, result())));
        Ok(())
    }

    fn name(&self) -> &'static str {
        "filling"
    }
}

#[test]
fn a_disk_that_is_full_at_a_pause_is_reported_as_full_and_no_slot_is_lost() {
    let params = json!({ "file_bytes": 4 << 20, "queue_depth": 8 }).as_object().cloned().unwrap();
    let job = Job::new(Kind::Rewrite, &params, &environment()).unwrap();
    let made = match file::make(&job) {
        Err(KernelError::Parameter { key: "path", why, .. }) => return eprintln!("skipped: {why}"),
        made => made.unwrap(),
    };
    let full = Arc::new(AtomicBool::new(true));
    let mut disk = Disk::new(job, made, Box::new(Filling { held: Vec::new(), full: full.clone() }));
    disk.refill().unwrap();
    match disk.pause() {
        Err(KernelError::Host { what, source }) => {
            assert_eq!(source.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()));
            assert!(what.starts_with("disk-rewrite of 8192 bytes at "), "{what}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(disk.idle.len(), 8);
    full.store(false, Ordering::Relaxed);
    assert!(steps(&mut disk, 1, &mut Latencies::default()) > 0.0);
    assert_eq!(disk.started.len(), 8);
}

#[test]
fn a_pause_writes_out_dirty_bytes() {
    for name in ["disk-write", "disk-rewrite"] {
        let Some(mut kernel) = on_disk(name, json!({ "dirty_bytes": 1 << 20 })) else { return };
        steps(kernel.as_mut(), 20, &mut Latencies::default());
        kernel.pause().unwrap();
        assert!(steps(kernel.as_mut(), 1, &mut Latencies::default()) > 0.0);
    }
}

#[test]
fn dropping_it_with_requests_in_flight_returns() {
    for engine in ["auto", "threads"] {
        let Some(mut kernel) = on_disk("disk-direct-write", json!({ "queue_depth": 32, "engine": engine })) else { return };
        steps(kernel.as_mut(), 2, &mut Latencies::default());
        let (tell, received) = channel::<()>();
        std::thread::spawn(move || {
            drop(kernel);
            drop(tell);
        });
        assert_eq!(received.recv_timeout(Duration::from_secs(30)), Err(RecvTimeoutError::Disconnected), "{engine}");
    }
}

#[test]
fn the_engine_in_use_is_a_fact() {
    let engine = |params: Value| on_disk("disk-rewrite", params).map(|kernel| kernel.facts()["engine"].clone());
    assert_eq!(engine(json!({})), Some(json!("pwrite")));
    assert_eq!(engine(json!({ "queue_depth": 2, "engine": "threads" })), Some(json!("pwrite on threads")));
    assert_eq!(engine(json!({ "queue_depth": 2, "sync": "fsync" })), Some(json!("pwrite on threads")));
    match partywall_sys::ring::FileRing::new(std::fs::File::open("/dev/zero").unwrap(), 1, 1, |_| ()) {
        Ok(_) => assert_eq!(engine(json!({ "queue_depth": 2 })), Some(json!("io_uring"))),
        Err(_) => assert_eq!(engine(json!({ "queue_depth": 2 })), Some(json!("pwrite on threads"))),
    }
}

#[test]
fn wrong_parameters_are_named_with_valid_values() {
    let cases = [
        (
            "disk-read",
            json!({ "request_blocks": 17 }),
            "parameter request_blocks: 17 is not 1 to 16 blocks of 8 KiB; for other sizes give request_bytes",
        ),
        ("disk-read", json!({ "request_blocks": 1, "request_bytes": 1 }), "give one of them"),
        ("disk-read", json!({ "request_bytes": 0 }), "parameter request_bytes: 0 is out of range; give 1 to 16777216"),
        ("disk-read", json!({ "queue_depth": 0 }), "parameter queue_depth: 0 is out of range; give 1 to 1024"),
        ("disk-read", json!({ "queue_depth": 1024, "request_bytes": 1 << 20 }), "at most 256 fits"),
        ("disk-read", json!({ "file_bytes": 4096 }), "parameter file_bytes: 4096 is too small"),
        ("disk-read", json!({ "sync": "fsync" }), "parameter sync: fsync does not apply to disk-read, which does not write"),
        ("disk-read", json!({ "dirty_bytes": 4096 }), "parameter dirty_bytes: 4096 does not apply to disk-read"),
        ("disk-write", json!({ "dirty_bytes": 0 }), "parameter dirty_bytes: 0 is out of range; give 1 to file_bytes (268435456)"),
        ("disk-write", json!({ "sync": "fsync", "engine": "io_uring" }), "use dsync, or engine auto"),
        ("disk-write", json!({ "order": "backwards" }), "unknown variant `backwards`"),
        ("disk-write", json!({ "size": 1 }), "unknown field `size`"),
        ("disk-rewrite", json!({ "path": "/nowhere-at-all" }), "creating a file in /nowhere-at-all: No such file or directory"),
        (
            "disk-rewrite",
            json!({ "file_bytes": 1_u64 << 60 }),
            "parameter file_bytes: 1152921504606846976 for each of 1 workers would leave less than",
        ),
    ];
    for (name, params, wanted) in cases {
        let said = error(name, params.clone());
        assert!(said.contains(wanted), "{name} {params}: {said}");
    }
}

#[test]
fn a_direct_request_that_is_not_a_multiple_of_the_devices_block_is_refused() {
    match try_build("disk-direct-read", json!({ "request_bytes": 1000, "file_bytes": 1 << 20 })) {
        Err(KernelError::Parameter { key: "request_bytes", why, .. }) => {
            assert!(why.contains("the smallest direct request of the device"), "{why}");
        }
        Err(KernelError::Parameter { key: "path", why, .. }) => eprintln!("skipped: {why}"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("1000 bytes were accepted"),
    }
}

#[test]
fn memory_is_not_accepted_as_a_disk() {
    if let Err(error) = std::fs::metadata("/dev/shm") {
        assert_eq!(error.kind(), ErrorKind::NotFound);
        eprintln!("skipped: no tmpfs at /dev/shm");
        return;
    }
    for name in KINDS {
        assert!(error(name, json!({ "path": "/dev/shm" })).contains("is on tmpfs, which is memory and not a disk"));
    }
}
