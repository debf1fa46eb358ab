//! `disk-read`, `disk-reread`, `disk-write`, `disk-rewrite`, `disk-direct-read`, `disk-direct-write`: requests of one size on a file
//! that the kernel creates (VITS, section 4.4 and figures 8 and 9). The file has no name after it was opened, so nothing is left
//! behind however the agent ends. Kernels that measure the disk bypass the page cache or empty it as they go; only `disk-reread`
//! measures the cache. It does not use raw devices or the user's files.

mod cache;
mod engine;
mod file;
mod job;
mod offsets;
#[cfg(test)]
mod tests;

use partywall_clock::{self as clock, Nanos};
use schemars::{schema_for, Schema};
use serde_json::json;

use self::cache::Cache;
use self::engine::{Completion, Engine};
use self::job::{Job, Kind};
use self::offsets::Offsets;
use crate::batch::STEP_NS;
use crate::{
    schema, Direction, Entry, Environment, Figure, Held, Holder, Implied, Kernel, KernelError, KernelInfo, Latency, Needs, Requests,
    Resource, Roles, Settle, Sink, Source, Unit, Waits, Warning,
};

/// Linux's read-ahead for a sequential reader, unless the device's `read_ahead_kb` was changed.
const READ_AHEAD_BYTES: u64 = 128 << 10;

struct Disk {
    job: Job,
    align_bytes: Option<usize>,
    offsets: Offsets,
    cache: Cache,
    engine: Box<dyn Engine>,
    started: Vec<(Nanos, u64)>,
    idle: Vec<usize>,
    done: Vec<Completion>,
    // Completed while switched off. Counted with the next step, or the requests in flight at each switch would be lost.
    carried: f64,
}

impl Disk {
    fn new(job: Job, made: file::Made, engine: Box<dyn Engine>) -> Self {
        Self {
            align_bytes: made.align_bytes,
            offsets: Offsets::new(job.order, job.requests(), job.request as u64, job.seed),
            cache: Cache::new(&job, made.file),
            engine,
            started: vec![(0, 0); job.depth],
            idle: (0..job.depth).rev().collect(),
            done: Vec::with_capacity(job.depth),
            carried: 0.0,
            job,
        }
    }

    fn refill(&mut self) -> Result<(), KernelError> {
        while let Some(&slot) = self.idle.last() {
            let all_idle = self.idle.len() == self.job.depth;
            if self.offsets.at_lap_start() && self.cache.drops() && !all_idle {
                return Ok(());
            }
            if self.offsets.at_lap_start() {
                self.cache.lap().map_err(KernelError::host("starting again at the beginning of the file"))?;
            }
            let offset = self.offsets.next();
            self.cache.before(offset, self.job.request).map_err(KernelError::host("freeing blocks to write again"))?;
            self.started[slot] = (clock::monotonic(), offset);
            self.engine.submit(slot, offset).map_err(self.failed(offset))?;
            self.idle.pop();
        }
        Ok(())
    }

    fn reap(&mut self, sink: &mut dyn Sink) -> Result<f64, KernelError> {
        let from = self.job.kind.name();
        self.engine.complete(&mut self.done).map_err(KernelError::host(format!("{from} request")))?;
        let mut bytes = 0.0;
        let mut first = Ok(());
        // Every completed request frees its slot, even a failed one. All completions are recorded before an error is returned.
        let mut done = std::mem::take(&mut self.done);
        for (slot, result) in done.drain(..) {
            self.idle.push(slot);
            let (start_ns, offset) = self.started[slot];
            let outcome = result.map_err(self.failed(offset)).and_then(|()| self.completed(start_ns, offset, sink));
            bytes += if outcome.is_ok() { self.job.request as f64 } else { 0.0 };
            first = first.and(outcome);
        }
        self.done = done;
        first.map(|()| bytes)
    }

    fn completed(&mut self, start_ns: Nanos, offset: u64, sink: &mut dyn Sink) -> Result<(), KernelError> {
        // Waiting for write-back is part of the write that had to wait. Dropping pages is part of no request.
        self.cache.written(self.job.request).map_err(KernelError::host("write-back"))?;
        sink.latency(clock::monotonic() - start_ns);
        self.cache.read(offset, self.job.request).map_err(KernelError::host("dropping the page cache"))
    }

    fn failed(&self, offset: u64) -> impl FnOnce(std::io::Error) -> KernelError {
        KernelError::host(format!("{} of {} bytes at {offset}", self.job.kind.name(), self.job.request))
    }
}

impl Kernel for Disk {
    fn step(&mut self, sink: &mut dyn Sink) -> Result<f64, KernelError> {
        let begin = clock::monotonic();
        let mut bytes = std::mem::take(&mut self.carried);
        loop {
            self.refill()?;
            bytes += self.reap(sink)?;
            if clock::monotonic() - begin >= STEP_NS {
                return Ok(bytes);
            }
        }
    }

    fn pause(&mut self) -> Result<(), KernelError> {
        struct Unheard;
        impl Sink for Unheard {
            fn latency(&mut self, _: Nanos) {}
        }
        let mut first = Ok(());
        while self.idle.len() < self.job.depth {
            let in_flight = self.job.depth - self.idle.len();
            match self.reap(&mut Unheard) {
                Ok(bytes) => self.carried += bytes,
                Err(error) => first = first.and(Err(error)),
            }
            if self.job.depth - self.idle.len() == in_flight {
                // The engine itself failed: no more requests will complete.
                break;
            }
        }
        first?;
        self.cache.settle().map_err(KernelError::host("writing out what is dirty"))
    }

    fn facts(&self) -> crate::Params {
        let mut facts = self.job.facts();
        facts.insert("engine".into(), self.engine.name().into());
        facts.insert("align_bytes".into(), json!(self.align_bytes));
        facts.insert("cached_bytes".into(), json!(self.cache.resident_bytes()));
        facts
    }
}

fn build(kind: Kind, params: &crate::Params, environment: &Environment) -> Result<Box<dyn Kernel>, KernelError> {
    let job = Job::new(kind, params, environment)?;
    let made = file::make(&job)?;
    let engine = engine::start(&job, &made.file)?;
    Ok(Box::new(Disk::new(job, made, engine)))
}

fn info(kind: Kind) -> KernelInfo {
    KernelInfo {
        name: kind.name(),
        resource: Resource::Disk,
        summary: kind.summary(),
        doing: kind.doing(),
        loses: None,
        unit: Unit::Bytes,
        figure: Figure::Rate { label: "MB/s", divisor: 1e6 },
        also: None,
        latency: Latency::Own("one request, from its submission to its completion"),
        roles: Roles::Both,
        settle: kind.settle(),
        needs: kind.needs(),
        warnings: kind.warnings(),
        params: kind.params(),
    }
}

macro_rules! entry {
    ($name:ident, $kind:expr) => {
        pub(crate) const $name: Entry =
            Entry { name: $kind.name(), info: || info($kind), build: |params, environment| build($kind, params, environment) };
    };
}

entry!(READ, Kind::Read);
entry!(REREAD, Kind::Reread);
entry!(WRITE, Kind::Write);
entry!(REWRITE, Kind::Rewrite);
entry!(DIRECT_READ, Kind::DirectRead);
entry!(DIRECT_WRITE, Kind::DirectWrite);

impl Kind {
    /// The parameters of this kind, shared by all six.
    fn params(self) -> Schema {
        let schema = schema_for!(job::Params);
        let schema = if self.writes() { schema } else { schema::without(schema, &["sync", "dirty_bytes"]) };
        if !self.direct() {
            return schema;
        }
        // No device has sectors smaller than 512 bytes. Larger ones are detected when the file is created.
        schema::stepped(schema::without(schema, &["dirty_bytes"]), "request_bytes", 512..=16 << 20)
    }

    const fn doing(self) -> &'static str {
        match self {
            Self::Read => "disk-reading",
            Self::Reread => "file-rereading",
            Self::Write => "file-writing",
            Self::Rewrite => "file-rewriting",
            Self::DirectRead => "direct-disk-reading",
            Self::DirectWrite => "disk-writing",
        }
    }

    const fn needs(self) -> Needs {
        const REQUEST: Implied = Implied {
            parameter: "request_bytes",
            from: Source::Parameter { parameter: "request_blocks", otherwise: 1, times: job::BLOCK_BYTES },
        };
        const DIRTY: Implied = Implied { parameter: "dirty_bytes", from: Source::Constant { value: job::DIRTY_BYTES } };
        let buffered_writer = self.writes() && !self.direct();
        Needs {
            implied: if buffered_writer { &[REQUEST, DIRTY] } else { &[REQUEST] },
            memory: &[Held { by: Holder::EachThread, times: 1, parameters: &["queue_depth", "request_bytes"] }],
            requests: self.requests(),
        }
    }

    const fn requests(self) -> Option<Requests> {
        let (direction, waits) = match self {
            // After its file exists, it only reads memory.
            Self::Reread => return None,
            Self::Read => (Direction::Read, Waits::ReadAhead { bytes: READ_AHEAD_BYTES }),
            Self::DirectRead => (Direction::Read, Waits::Request),
            // After each half of the limit on dirty bytes, it waits for the half before.
            Self::Write | Self::Rewrite => (Direction::Write, Waits::WriteBack { bound: "dirty_bytes" }),
            Self::DirectWrite => (Direction::Write, Waits::Request),
        };
        Some(Requests { direction, size: "request_bytes", depth: "queue_depth", waits, direct: self.direct() })
    }

    /// A reader measures the disk only if the page cache holds none of its file. `disk-reread` uses the cache on purpose.
    const fn warnings(self) -> &'static [Warning] {
        match self {
            Self::Read | Self::DirectRead => {
                &[Warning { warning: "shared_disk_cache", fact: "cached_bytes", of: "file_bytes", above_percent: 10 }]
            }
            Self::Reread | Self::Write | Self::Rewrite | Self::DirectWrite => &[],
        }
    }

    const fn settle(self) -> Settle {
        let (rise_ns, release_ns) = match self {
            // It only uses the processor's cache and the path to memory.
            Self::Reread => (2_000_000, 2_000_000),
            // `pause` waits for requests in flight. The device's queue and one lap of the victim's own requests remain.
            Self::Read | Self::DirectRead => (5_000_000, 10_000_000),
            // The device continues to empty its cache, and to collect garbage, after it has acknowledged the last write. Buffered rewriting
            // leaves no more than that, because `pause` has written out the data.
            Self::DirectWrite | Self::Rewrite => (100_000_000, 1_000_000_000),
            // New blocks also change metadata, which the journal commits when it is 5 s old (ext4; others within 30 s).
            Self::Write => (1_000_000_000, 5_000_000_000),
        };
        Settle { rise_ns, release_ns }
    }
}
