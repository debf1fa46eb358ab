use std::collections::HashSet;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

const MS: Nanos = 1_000_000;

fn plan(file: &Path) -> Plan {
    Plan { file: file.into(), interval_ns: 20 * MS, samples: 6, stride: 1, windows: vec![1, 2, 5] }
}

fn count(plan: &Plan) -> MemoryChanges {
    memory_changes(Path::new("/"), plan).expect("a file of pages")
}

/// A file of this many pages, without holes.
fn file(folder: &Path, pages: usize) -> File {
    let file = File::options().read(true).write(true).create_new(true).open(folder.join("memory")).expect("a new file");
    file.write_all_at(&vec![7; pages * PAGE_BYTES as usize], 0).expect("room");
    file
}

fn refused(change: impl FnOnce(&mut Plan)) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    file(folder.path(), 1);
    let mut plan = plan(&folder.path().join("memory"));
    change(&mut plan);
    memory_changes(Path::new("/"), &plan).expect_err("a plan that makes no sense").to_string()
}

#[test]
fn a_file_without_writers_has_no_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = file(folder.path(), 64);
    file.set_len(200 * PAGE_BYTES + 17).expect("a longer file");
    let counted = count(&plan(&folder.path().join("memory")));
    assert_eq!((counted.page_bytes, counted.pages, counted.looked_at), (4096, 200, 200));
    assert_eq!(counted.samples[0].changed, [None, None, None]);
    assert!(counted.samples.iter().all(|sample| sample.changed.iter().flatten().all(|&count| count == 0)));
    assert!(counted.samples.is_sorted_by(|before, after| after.at_ns >= before.at_ns + before.scan_ns));
}

#[test]
fn pages_changed_between_scans_are_counted_exactly() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = file(folder.path(), 100);
    let mut pages = Pages::new(file.try_clone().expect("a file"), 100, 2);
    let mut history = History::new(10);
    let mut counts = Vec::new();
    for (sample, changed) in [(0, 0..0), (1, 0..30), (2, 20..40), (4, 90..100), (5, 0..0)] {
        for page in changed {
            file.write_all_at(&[sample as u8], page * PAGE_BYTES + 37 * page).expect("room");
        }
        pages.scan(folder.path(), &mut history, sample).expect("a whole file");
        counts.push([1, 2, 4].map(|window| history.changed_within(window)));
    }
    let expected = [
        [None, None, None],
        [Some(15), None, None],
        [Some(10), Some(20), None],
        // Sample 3 was skipped.
        [None, Some(5), Some(25)],
        [Some(0), None, Some(15)],
    ];
    assert_eq!(counts, expected);
}

/// Changes one page per millisecond in sequence, until `stop`. Returns the times around each change.
fn change(file: &File, pages: u64, started: &AtomicBool, stop: &AtomicBool) -> Vec<(Nanos, Nanos)> {
    let mut log = Vec::new();
    let begin_ns = clock::monotonic();
    while !stop.load(Ordering::Acquire) && (log.len() as u64) < pages {
        let page = log.len() as u64;
        clock::sleep_until(begin_ns + page * MS);
        let before_ns = clock::monotonic();
        file.write_all_at(&before_ns.to_ne_bytes(), page * PAGE_BYTES + 8 * page).expect("room");
        log.push((before_ns, clock::monotonic()));
        started.store(true, Ordering::Release);
    }
    log
}

#[test]
fn pages_that_a_thread_changes_at_a_known_rate_are_counted() {
    const PAGES: u64 = 400;
    let folder = tempfile::tempdir().expect("a folder");
    let file = file(folder.path(), PAGES as usize);
    let (started, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let (counted, log) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| change(&file, PAGES, &started, &stop));
        while !started.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let counted = count(&Plan { samples: 2, interval_ns: 200 * MS, windows: vec![1], ..plan(&folder.path().join("memory")) });
        stop.store(true, Ordering::Release);
        (counted, writer.join().expect("no panic"))
    });
    // A host too busy to scan 1.6 MB within 200 ms skips the second sample.
    let [first, second] = &counted.samples[..] else { return };
    let changed = second.changed[0].expect("the window began at the first sample");
    let surely = log.iter().filter(|(from, to)| *from > first.at_ns + first.scan_ns && *to < second.at_ns).count() as u64;
    let perhaps = log.iter().filter(|(from, to)| *to >= first.at_ns && *from <= second.at_ns + second.scan_ns).count() as u64;
    assert!((surely..=perhaps).contains(&changed), "{changed} changed, not {surely} to {perhaps}");
}

#[test]
fn a_page_that_changes_constantly_counts_once_and_a_stride_skips_pages() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = file(folder.path(), 30);
    let stop = AtomicBool::new(false);
    let counted = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut count = 0_u64;
            while !stop.load(Ordering::Acquire) {
                count += 1;
                for page in [0, 6, 7] {
                    file.write_all_at(&count.to_ne_bytes(), page * PAGE_BYTES).expect("room");
                }
                clock::sleep_until(clock::monotonic() + MS / 10);
            }
        });
        // A scan whose page changes takes longer than one change, so every scan detects one.
        let counted = count(&Plan { stride: 3, interval_ns: 50 * MS, ..plan(&folder.path().join("memory")) });
        stop.store(true, Ordering::Release);
        counted
    });
    assert_eq!((counted.pages, counted.looked_at), (30, 10));
    let counts: HashSet<_> = counted.samples.iter().flat_map(|sample| sample.changed.clone()).flatten().collect();
    assert!(counts.iter().all(|&count| count <= 2) && counts.contains(&2), "{counted:?}");
}

#[test]
fn a_hole_reads_as_zeros_and_is_not_filled() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let file = File::options().read(true).write(true).create_new(true).open(folder.path().join("memory")).expect("a new file");
    file.set_len(1000 * PAGE_BYTES).expect("a long file");
    file.write_all_at(&[0; 4096], 5 * PAGE_BYTES).expect("room");
    let held = file.metadata().expect("a file").blocks();
    let counted = count(&Plan { samples: 3, windows: vec![1], ..plan(&folder.path().join("memory")) });
    assert!(counted.samples[1..].iter().all(|sample| sample.changed.iter().all(|&count| count.is_none_or(|count| count == 0))));
    assert_eq!(file.metadata().expect("a file").blocks(), held);
}

#[test]
fn samples_begin_at_multiples_of_the_interval_and_late_ones_are_skipped() {
    assert_eq!((next(0, 0), next(3, 3), next(3, 7), next(3, u64::MAX - 1)), (1, 4, 8, u32::MAX));
    let folder = tempfile::tempdir().expect("a folder");
    file(folder.path(), 2000);
    // Every scan of 8 MB takes longer than a microsecond.
    let counted = count(&Plan { interval_ns: 1000, samples: 4096, windows: vec![1], ..plan(&folder.path().join("memory")) });
    assert!(counted.samples.len() < 4096);
    assert!(counted.samples.iter().all(|sample| sample.changed == [None]));
}

#[test]
fn invalid_plans_are_refused_by_name() {
    assert_eq!(refused(|plan| plan.samples = 0), "samples: 0 is out of range; give 1 to 4096");
    assert_eq!(refused(|plan| plan.stride = 4097), "stride: 4097 is out of range; give 1 to 4096");
    assert!(refused(|plan| plan.interval_ns = 0).starts_with("interval_ns: 0 is out of range"));
    assert_eq!(refused(|plan| plan.windows = vec![1, 7]), "windows: 7 is out of range; give 1 to 6");
    assert!(refused(|plan| plan.windows = vec![2, 2]).starts_with("windows: [2, 2] do not ascend"));
    let long = refused(|plan| (plan.interval_ns, plan.samples) = (1_000_000_000, 121));
    assert_eq!(long, "samples × interval_ns is 121000000000 ns; give at most 120000000000");
}

#[test]
fn a_file_without_pages_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = |path: &Path| memory_changes(Path::new("/"), &plan(path)).expect_err("no pages");
    assert!(matches!(error(folder.path()), ChangesError::NotAFile(_)));
    assert!(matches!(error(Path::new("/dev/zero")), ChangesError::NotAFile(_)));
    let missing = error(&folder.path().join("missing"));
    assert!(missing.to_string().starts_with("opening ") && missing.to_string().contains("missing: No such file"), "{missing}");
    std::fs::write(folder.path().join("short"), "x").expect("room");
    assert!(matches!(error(&folder.path().join("short")), ChangesError::Empty { bytes: 1, .. }));
    let huge = File::create(folder.path().join("huge")).expect("a new file");
    huge.set_len(LOOKED_AT_MAX * PAGE_BYTES + PAGE_BYTES).expect("a sparse file");
    assert!(error(&folder.path().join("huge")).to_string().ends_with("give a stride of 2 or more"));
}

#[test]
fn a_file_that_becomes_shorter_during_a_scan_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = file(folder.path(), 200);
    for (stride, left) in [(1, 199), (1, 64), (3, 198), (1, 0)] {
        file.set_len(200 * PAGE_BYTES).expect("a longer file");
        file.write_all_at(&vec![7; 200 * PAGE_BYTES as usize], 0).expect("room");
        let mut pages = Pages::new(file.try_clone().expect("a file"), 200, stride);
        pages.scan(folder.path(), &mut History::new(3), 0).expect("a whole file");
        file.set_len(left * PAGE_BYTES).expect("a shorter file");
        let outcome = pages.scan(folder.path(), &mut History::new(3), 1);
        assert!(matches!(outcome, Err(ChangesError::Shrunk { bytes, .. }) if bytes == left * PAGE_BYTES), "{stride} {left} {outcome:?}");
    }
}

#[test]
fn a_count_survives_an_owner_that_cuts_its_file_off_again_and_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = file(folder.path(), 500);
    let stop = AtomicBool::new(false);
    let short = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                file.set_len(PAGE_BYTES).expect("a shorter file");
                file.write_all_at(&vec![7; 499 * PAGE_BYTES as usize], PAGE_BYTES).expect("room");
            }
        });
        let plan = Plan { interval_ns: MS / 10, samples: 20, windows: vec![], ..plan(&folder.path().join("memory")) };
        let short = (0..200).filter(|_| matches!(memory_changes(Path::new("/"), &plan), Err(ChangesError::Shrunk { .. }))).count();
        stop.store(true, Ordering::Release);
        short
    });
    assert!(short > 0);
}
