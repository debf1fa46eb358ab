//! Parameters of the disk kernels, validated as far as possible without accessing the disk.

use std::fmt::Display;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{limits, Environment, KernelError};

pub(super) const BLOCK_BYTES: u64 = 8192;
/// Default limit of bytes that a buffered writer has written but that are not yet on disk.
pub(super) const DIRTY_BYTES: u64 = 8 << 20;
const MAX_REQUEST_BYTES: u64 = 16 << 20;
const MAX_BUFFER_BYTES: u64 = 256 << 20;
const MAX_DEPTH: u32 = 1024;

/// The six disk kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Reread,
    Write,
    Rewrite,
    DirectRead,
    DirectWrite,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "disk-read",
            Self::Reread => "disk-reread",
            Self::Write => "disk-write",
            Self::Rewrite => "disk-rewrite",
            Self::DirectRead => "disk-direct-read",
            Self::DirectWrite => "disk-direct-write",
        }
    }

    pub const fn summary(self) -> &'static str {
        match self {
            Self::Read => "reads a file that is dropped from the page cache as it goes: the disk, with read-ahead",
            Self::Reread => "reads a file that is in the page cache: memory, not the disk",
            Self::Write => "writes new blocks of a file through the page cache, with a bound on what is not yet on the disk",
            Self::Rewrite => "overwrites blocks of a file through the page cache, with a bound on what is not yet on the disk",
            Self::DirectRead => "reads a file past the page cache (O_DIRECT)",
            Self::DirectWrite => "overwrites blocks of a file past the page cache (O_DIRECT)",
        }
    }

    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Rewrite | Self::DirectWrite)
    }

    pub const fn direct(self) -> bool {
        matches!(self, Self::DirectRead | Self::DirectWrite)
    }
}

/// Order of requests in the file. Each place is used once per lap in either order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    #[default]
    Sequential,
    Random,
}

/// How a write becomes durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Sync {
    /// Not at all.
    #[default]
    None,
    /// `fsync` after each request, inside its latency.
    Fsync,
    /// `fdatasync` after each request, inside its latency.
    Fdatasync,
    /// The file is open with `O_DSYNC`.
    Dsync,
}

/// How requests reach the operating system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Via {
    /// `pread`/`pwrite` for a queue depth of 1, `io_uring` above, threads where that is missing or cannot express `sync`.
    #[default]
    Auto,
    /// `io_uring` or an error.
    IoUring,
    /// `pread`/`pwrite`, on as many threads as the queue is deep.
    Threads,
}

/// Parameters of the six disk kernels. Each worker thread has a file of its own.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Params {
    /// Size of a request in blocks of 8 KiB, 1 to 16. Default: 1, unless `request_bytes` is set.
    #[schemars(range(min = 1, max = 16))]
    request_blocks: Option<u64>,
    /// Size of a request in bytes, up to 16 MiB. Replaces `request_blocks`.
    #[schemars(range(min = 1, max = 16_777_216))]
    request_bytes: Option<u64>,
    /// Order of requests in the file.
    order: Order,
    /// Requests in flight, 1 to 1024.
    #[schemars(range(min = 1, max = 1_024))]
    queue_depth: u32,
    /// How requests reach the operating system.
    engine: Via,
    /// How a write becomes durable; writers only.
    sync: Sync,
    /// Buffered writers only: maximum bytes written but not yet on disk. Default: 8 MiB.
    #[schemars(range(min = 1, max = 17_592_186_044_416_u64))]
    dirty_bytes: Option<u64>,
    /// Size of the file.
    #[schemars(range(min = 1_048_576, max = 17_592_186_044_416_u64))]
    file_bytes: u64,
    /// Bytes of another file that are read through the page cache before the work starts, by all worker threads together. Reading as
    /// much as the host has memory displaces what the page cache holds.
    #[schemars(range(min = 1_048_576, max = 17_592_186_044_416_u64))]
    read_before_bytes: Option<u64>,
    /// A folder on the disk to use, instead of the sandbox's folder.
    path: Option<PathBuf>,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            request_blocks: None,
            request_bytes: None,
            order: Order::Sequential,
            queue_depth: 1,
            engine: Via::Auto,
            sync: Sync::None,
            dirty_bytes: None,
            file_bytes: 256 << 20,
            read_before_bytes: None,
            path: None,
        }
    }
}

/// The work of one worker.
#[derive(Debug)]
pub(super) struct Job {
    pub kind: Kind,
    pub request: usize,
    pub order: Order,
    pub depth: usize,
    pub via: Via,
    pub sync: Sync,
    pub dirty: u64,
    pub file_bytes: u64,
    /// Bytes that this worker reads before it starts.
    pub read_before: Option<u64>,
    pub folder: PathBuf,
    pub workers: u32,
    pub seed: u64,
}

fn wrong<T>(key: &'static str, value: impl Display, why: impl Into<String>) -> Result<T, KernelError> {
    Err(KernelError::Parameter { key, value: value.to_string(), why: why.into() })
}

impl Job {
    pub fn new(kind: Kind, params: &crate::Params, environment: &Environment) -> Result<Self, KernelError> {
        let params: Params = serde_json::from_value(params.clone().into())?;
        let request = params.request()?;
        let depth = params.depth(request)?;
        params.check_file(request, depth)?;
        params.check_sync(kind)?;
        Ok(Self {
            kind,
            request: request as usize,
            order: params.order,
            depth: depth as usize,
            via: params.engine,
            sync: params.sync,
            dirty: params.dirty(kind)?,
            file_bytes: params.file_bytes / request * request,
            read_before: params.read_before(environment.threads)?,
            folder: params.path.unwrap_or_else(|| environment.work_dir.clone()),
            workers: environment.threads,
            seed: environment.seed ^ (u64::from(environment.thread) << 32),
        })
    }

    /// Number of requests in a lap.
    pub fn requests(&self) -> u64 {
        self.file_bytes / self.request as u64
    }

    pub fn facts(&self) -> crate::Params {
        let facts = json!({
            "request_bytes": self.request,
            "file_bytes": self.file_bytes,
            "read_before_bytes_of_this_worker": self.read_before,
            "order": self.order,
            "queue_depth": self.depth,
            "sync": self.sync,
            "dirty_bytes": (self.kind.writes() && !self.kind.direct()).then_some(self.dirty),
        });
        match facts {
            serde_json::Value::Object(facts) => facts,
            _ => crate::Params::new(),
        }
    }
}

impl Params {
    fn request(&self) -> Result<u64, KernelError> {
        match (self.request_blocks, self.request_bytes) {
            (Some(blocks), Some(_)) => wrong("request_blocks", blocks, "is given together with request_bytes; give one of them"),
            (Some(blocks), None) if !(1..=16).contains(&blocks) => {
                wrong("request_blocks", blocks, "is not 1 to 16 blocks of 8 KiB; for other sizes give request_bytes")
            }
            (None, Some(bytes)) => limits::within("request_bytes", bytes, 1..=MAX_REQUEST_BYTES),
            (blocks, None) => Ok(blocks.unwrap_or(1) * BLOCK_BYTES),
        }
    }

    fn depth(&self, request: u64) -> Result<u32, KernelError> {
        let depth = limits::within("queue_depth", self.queue_depth, 1..=MAX_DEPTH)?;
        if u64::from(depth) * request > MAX_BUFFER_BYTES {
            let fit = MAX_BUFFER_BYTES / request;
            return wrong(
                "queue_depth",
                depth,
                format!("times {request} bytes is more than {MAX_BUFFER_BYTES} bytes of buffers; at most {fit} fits"),
            );
        }
        Ok(depth)
    }

    fn check_file(&self, request: u64, depth: u32) -> Result<(), KernelError> {
        // Twice the queue separates the end of one lap from the start of the next.
        let least = (2 * u64::from(depth) * request).max(1 << 20);
        if self.file_bytes < least {
            return wrong(
                "file_bytes",
                self.file_bytes,
                format!("is too small for {depth} requests of {request} bytes; give at least {least}"),
            );
        }
        Ok(())
    }

    fn read_before(&self, workers: u32) -> Result<Option<u64>, KernelError> {
        let Some(bytes) = self.read_before_bytes else { return Ok(None) };
        let bytes = limits::within("read_before_bytes", bytes, 1 << 20..=16 << 40)?;
        Ok(Some(bytes / u64::from(workers.max(1))))
    }

    fn check_sync(&self, kind: Kind) -> Result<(), KernelError> {
        let name = serde_json::to_value(self.sync)?;
        let name = name.as_str().unwrap_or_default();
        if self.sync != Sync::None && !kind.writes() {
            return wrong("sync", name, format!("does not apply to {}, which does not write; leave it out", kind.name()));
        }
        if matches!(self.sync, Sync::Fsync | Sync::Fdatasync) && self.engine == Via::IoUring {
            return wrong("sync", name, "is a call after each write, which engine io_uring does not support; use dsync, or engine auto");
        }
        Ok(())
    }

    fn dirty(&self, kind: Kind) -> Result<u64, KernelError> {
        match self.dirty_bytes {
            Some(bytes) if !kind.writes() || kind.direct() => {
                wrong("dirty_bytes", bytes, format!("does not apply to {}; leave it out", kind.name()))
            }
            Some(bytes) if bytes == 0 || bytes > self.file_bytes => wrong(
                "dirty_bytes",
                bytes,
                format!("is out of range; give 1 to file_bytes ({}), because a page that changes twice is written once", self.file_bytes),
            ),
            given => Ok(given.unwrap_or(DIRTY_BYTES).min(self.file_bytes)),
        }
    }
}
