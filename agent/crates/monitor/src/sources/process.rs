//! Counters of a process: CPU, faults, and, summed over its threads, waiting and switching.
//!
//! The kernel reports faults for a whole process, but waiting and switching only per thread. When a thread ends, its counters
//! disappear. So its last values are kept, and the sums never decrease. A thread that starts and ends between two samples is missed.
//! Values are `None` after the process has ended. Its files never refer to a later process with the same ID, because they stay open.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use partywall_facts::{process, under};
use partywall_kernels::Resource::{Cpu, Kernel, MemoryCapacity};

use super::header;
use crate::buffer::Buffer;
use crate::counter::{scaled, Column, Group, COUNT, NANOSECONDS, TICKS};
use crate::keyed::Keyed;
use crate::reader::{Builder, Row, Source};
use crate::text::{number, numbers_at};

const REMEDY: &str = "check that the process runs and that it is this user's";

pub(crate) const STAT: Group = Group {
    file: "/proc/PID/stat",
    subject: "each process",
    columns: &[
        Column::total(
            "minflt",
            "process_minor_faults_count",
            "page faults without a disk",
            COUNT,
            MemoryCapacity,
            "pages touched that were not mapped, without a disk",
        ),
        Column::total(
            "majflt",
            "process_major_faults_count",
            "page faults that waited for a disk",
            COUNT,
            MemoryCapacity,
            "pages touched that had to be read from a disk",
        ),
        Column::total("utime", "process_user_ns", "time in its own code", TICKS, Cpu, "the process ran"),
        Column::total("stime", "process_system_ns", "time in the operating system", TICKS, Cpu, "the kernel worked for the process"),
        Column::gauge("num_threads", "process_threads_count", "threads", COUNT, Kernel, "threads of the process"),
    ],
    cost: "nothing is known of the process",
    remedy: REMEDY,
};

pub(crate) const SCHEDSTAT: Group = Group {
    file: "/proc/PID/task/*/schedstat",
    subject: "each process of at most 64 threads",
    columns: &[
        Column::total("1st", "process_run_ns", "CPU time", NANOSECONDS, Cpu, "the process ran; finer than ticks"),
        Column::total(
            "2nd",
            "process_run_queue_wait_ns",
            "wait for its CPU",
            NANOSECONDS,
            Cpu,
            "the process could run, but waited for a CPU",
        ),
        Column::total("3rd", "process_timeslices_count", "turns on a CPU", COUNT, Kernel, "the process was given a CPU"),
    ],
    cost: "waiting for a CPU is not seen",
    remedy: "a kernel built with CONFIG_SCHED_INFO",
};

pub(crate) const STATUS: Group = Group {
    file: "/proc/PID/task/*/status",
    subject: "each process of at most 64 threads",
    columns: &[
        Column::total(
            "voluntary_ctxt_switches",
            "process_voluntary_switches_count",
            "waits for something else",
            COUNT,
            Kernel,
            "the process gave up its CPU to wait for something",
        ),
        Column::total(
            "nonvoluntary_ctxt_switches",
            "process_involuntary_switches_count",
            "losses of its CPU to others",
            COUNT,
            Cpu,
            "the process was taken off its CPU while it wanted to run on",
        ),
    ],
    cost: "switching is not seen",
    remedy: REMEDY,
};

/// Reading each thread costs some 6 µs. Above this number, the monitor would disturb the process.
const MOST_THREADS: usize = 64;
const OF_PROCESS: usize = STAT.columns.len();
const OF_RUNNING: usize = SCHEDSTAT.columns.len();
const OF_THREADS: usize = OF_RUNNING + STATUS.columns.len();

pub(crate) fn open(builder: &mut Builder) {
    for pid in &builder.targets.pids {
        let Some((stat, _)) = builder.open(&STAT, &format!("/proc/{pid}/stat")) else { continue };
        let tasks = under(builder.root, &format!("/proc/{pid}/task"));
        let subject = pid.to_string();
        let parts = [&STAT, &SCHEDSTAT, &STATUS].map(|group| (group, header(group.columns, Some(&subject))));
        let process = Process { stat, threads: Some(Threads::new(tasks)) };
        builder.add(parts.into(), Box::new(process));
    }
}

struct Process {
    stat: File,
    /// `None` permanently once there were too many threads or no more files: a sum with gaps would not be a total.
    threads: Option<Threads>,
}

impl Source for Process {
    fn read(&mut self, buffer: &mut Buffer, row: &mut Row) {
        let Ok(stat) = buffer.read(&self.stat).map(columns) else { return };
        let (of_process, of_threads) = row.split_at_mut(OF_PROCESS);
        scaled(stat, STAT.columns, of_process);
        let alive = stat[4].unwrap_or(0.0) as usize;
        match self.threads.as_mut().and_then(|threads| threads.read(alive, buffer).ok()) {
            Some(sums) => of_threads.copy_from_slice(&sums),
            None => self.threads = None,
        }
    }
}

/// The columns of [`STAT`] as raw numbers.
fn columns(stat: &[u8]) -> [Option<f64>; 5] {
    use process::{MAJOR_FAULTS, MINOR_FAULTS, SYSTEM, THREADS, USER};
    process::fields(stat, [MINOR_FAULTS, MAJOR_FAULTS, USER, SYSTEM, THREADS]).map(|number| number.map(|number| number as f64))
}

type Sums = [Option<f64>; OF_THREADS];

fn add(a: Sums, b: Sums) -> Sums {
    std::array::from_fn(|place| Some(a[place]? + b[place]?))
}

struct Threads {
    folder: PathBuf,
    alive: Vec<Thread>,
    /// Final counts of threads that have ended.
    ended: Sums,
    status: Keyed,
}

impl Threads {
    fn new(folder: PathBuf) -> Self {
        Self { folder, alive: Vec::new(), ended: [Some(0.0); OF_THREADS], status: Keyed::new(STATUS.columns) }
    }

    /// Sums over all threads, including ended ones. `alive` is the current number of threads.
    fn read(&mut self, alive: usize, buffer: &mut Buffer) -> io::Result<Sums> {
        let some_ended = self.read_alive(buffer);
        // One thread may have ended and another started, with the number unchanged. Then the reading has shown it.
        if some_ended || alive != self.alive.len() {
            self.look_for_new(buffer)?;
        }
        Ok(self.alive.iter().map(|thread| thread.last).fold(self.ended, add))
    }

    /// Reads the known threads. Returns whether any of them has ended.
    fn read_alive(&mut self, buffer: &mut Buffer) -> bool {
        let before = self.alive.len();
        let (status, ended) = (&self.status, &mut self.ended);
        self.alive.retain_mut(|thread| {
            let alive = thread.read(status, buffer).is_ok();
            if !alive {
                *ended = add(*ended, thread.last);
            }
            alive
        });
        self.alive.len() < before
    }

    fn look_for_new(&mut self, buffer: &mut Buffer) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let Some(tid) = number(name.as_encoded_bytes()).map(|tid| tid as u32) else { continue };
            if self.alive.iter().any(|thread| thread.tid == tid) {
                continue;
            }
            if self.alive.len() >= MOST_THREADS {
                return Err(ErrorKind::QuotaExceeded.into());
            }
            match Thread::open(&self.folder, tid, &self.status, buffer) {
                Ok(thread) => self.alive.push(thread),
                Err(error) if has_ended(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn has_ended(error: &io::Error) -> bool {
    const ESRCH: i32 = 3;
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH)
}

struct Thread {
    tid: u32,
    /// `None` on kernels that lack it.
    schedstat: Option<File>,
    status: File,
    last: Sums,
}

impl Thread {
    fn open(folder: &Path, tid: u32, keyed: &Keyed, buffer: &mut Buffer) -> io::Result<Self> {
        let folder = folder.join(tid.to_string());
        let status = File::open(folder.join("status"))?;
        let schedstat = match File::open(folder.join("schedstat")) {
            Ok(file) => Some(file),
            Err(error) if has_ended(&error) => None,
            Err(error) => return Err(error),
        };
        let mut thread = Self { tid, schedstat, status, last: [None; OF_THREADS] };
        thread.read(keyed, buffer)?;
        Ok(thread)
    }

    fn read(&mut self, keyed: &Keyed, buffer: &mut Buffer) -> io::Result<()> {
        let mut now = [None; OF_THREADS];
        let (running, switching) = now.split_at_mut(OF_RUNNING);
        if let Some(file) = &self.schedstat {
            running.copy_from_slice(&numbers_at::<OF_RUNNING>(buffer.read(file)?, [0, 1, 2]));
        }
        keyed.fill(buffer.read(&self.status)?, switching);
        self.last = now;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Written by 6.18.
    const STAT_TEXT: &[u8] =
        b"8020 (cat (x) y) R 8016 8016 4646 0 -1 4194304 98 0 3 0 20 4 0 0 20 0 2 0 116348 3133440 407 18446744073709551615 1 1\n";

    #[test]
    fn fields_count_from_the_end_of_the_name() {
        assert_eq!(columns(STAT_TEXT), [98.0, 3.0, 20.0, 4.0, 2.0].map(Some));
    }

    /// Threads in a folder; a thread's counters are all `value`.
    struct Tasks(tempfile::TempDir);

    impl Tasks {
        fn write(&self, tid: u32, value: u32) {
            let folder = self.0.path().join(tid.to_string());
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("schedstat"), format!("{value} {value} {value}\n")).unwrap();
            let status = format!("Name:\tx\nvoluntary_ctxt_switches:\t{value}\nnonvoluntary_ctxt_switches:\t{value}\n");
            fs::write(folder.join("status"), status).unwrap();
        }
    }

    #[test]
    fn sums_cover_threads_that_start_later() {
        let tasks = Tasks(tempfile::tempdir().unwrap());
        let mut threads = Threads::new(tasks.0.path().to_owned());
        let mut buffer = Buffer::new();
        tasks.write(1, 10);
        assert_eq!(threads.read(1, &mut buffer).unwrap(), [Some(10.0); 5]);
        tasks.write(2, 5);
        assert_eq!(threads.read(2, &mut buffer).unwrap(), [Some(15.0); 5]);
    }

    #[test]
    fn without_schedstat_only_the_switches_are_reported() {
        let tasks = Tasks(tempfile::tempdir().unwrap());
        tasks.write(1, 10);
        fs::remove_file(tasks.0.path().join("1/schedstat")).unwrap();
        let sums = Threads::new(tasks.0.path().to_owned()).read(1, &mut Buffer::new()).unwrap();
        assert_eq!(sums, [None, None, None, Some(10.0), Some(10.0)]);
    }

    #[test]
    fn more_threads_than_are_read_make_no_sum() {
        let tasks = Tasks(tempfile::tempdir().unwrap());
        for tid in 0..=MOST_THREADS as u32 {
            tasks.write(tid, 1);
        }
        let sums = Threads::new(tasks.0.path().to_owned()).read(MOST_THREADS + 1, &mut Buffer::new());
        assert_eq!(sums.unwrap_err().kind(), ErrorKind::QuotaExceeded);
    }
}
