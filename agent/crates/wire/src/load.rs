//! A compiled load program, which defines what virtual users do and when they arrive, and the records of its results. The controller
//! compiles it from the user's plan.
//!
//! A program is a workload like any other. `workload.start` prepares it: it resolves names, reads files, connects to servers and
//! checks limits. The result is [`LoadStarted`]. With pace `flat_out` it begins at once. With pace `scheduled` it begins with its
//! first switch above 0, and pauses while switched to 0. Its records arrive as `load` notifications. It ends after its last stage.
//!
//! Texts marked *template* may contain `${name}`, which stands for a variable; `$$` stands for `$`. Every user has the variables
//! `user` (its number, from 0) and `iteration` (from 0).

use std::collections::BTreeMap;
use std::path::PathBuf;

use partywall_record::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Virtual users as a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadProgram {
    /// Kinds of users. Each new user has one of them.
    pub kinds: Vec<UserKind>,
    /// When users or requests arrive.
    pub pacing: Pacing,
    /// Data that users read, by name.
    #[serde(default)]
    pub feeders: BTreeMap<String, Feeder>,
    /// How connections are opened and reused.
    #[serde(default)]
    pub connections: Connections,
    /// How servers are verified.
    #[serde(default)]
    pub tls: Tls,
    /// Addresses to use instead of name resolution: `host:port` to `address:port` or `unix:/path`. Several are used in turn.
    #[serde(default)]
    pub addresses: BTreeMap<String, Vec<String>>,
    /// Maximum time for pending requests and `end` steps after the last stage.
    #[serde(default = "defaults::grace_ns")]
    pub grace_ns: u64,
    /// A scheduled request that leaves later than this after its intended start counts as late.
    #[serde(default = "defaults::late_after_ns")]
    pub late_after_ns: u64,
    /// Maximum time to spin instead of sleep before a scheduled request; 0 never spins.
    #[serde(default = "defaults::spin_ns")]
    pub spin_ns: u64,
    /// Also send slices, as a victim of a trial does. Their work is the number of requests.
    #[serde(default)]
    pub slices: bool,
    /// This generator's part, if several share the load.
    #[serde(default)]
    pub share: Share,
}

/// A generator's part of a load that several share. Users, arrivals and rows of shared feeders are numbered over all generators, and
/// each generator takes every `of`th.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// Number of this generator, from 0.
    pub number: u32,
    /// Number of generators.
    pub of: u32,
}

impl Default for Share {
    fn default() -> Self {
        Self { number: 0, of: 1 }
    }
}

/// A kind of user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UserKind {
    /// Name in messages and reports.
    pub name: String,
    /// Weight of this kind among all users.
    #[serde(default = "defaults::weight")]
    pub weight: f64,
    /// Initial variables of a user.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
    /// Whether each user stores cookies and sends them back.
    #[serde(default = "defaults::yes")]
    pub cookies: bool,
    /// Steps before the first iteration.
    #[serde(default)]
    pub init: Vec<Step>,
    /// One iteration.
    pub actions: Vec<Step>,
    /// Steps when the user leaves.
    #[serde(default)]
    pub end: Vec<Step>,
}

/// When users or requests arrive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Pacing {
    /// A number of users, each of which begins its next iteration when the last has ended.
    Closed {
        /// The number of users over time.
        stages: Vec<Stage>,
        /// Interval between starts of iterations, instead of back to back. An overdue iteration begins at once, and counts from
        /// its due time.
        #[serde(default)]
        every_ns: Option<u64>,
    },
    /// A number of iterations that begin per second, whether or not earlier ones have ended.
    Open {
        /// How arrivals are spaced.
        arrivals: Arrivals,
        /// Arrivals per second over time.
        stages: Vec<Stage>,
        /// Maximum users. Further arrivals wait for a free user, and count from their due time.
        users_max: u32,
    },
}

/// How arrivals are spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// Evenly spaced.
    Constant,
    /// Random and independent of each other.
    Poisson,
}

/// A level, reached on a straight line from the level before. The first stage starts from 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Users, or arrivals per second, at the end of the stage.
    pub to: f64,
    /// Duration of the stage; 0 is a jump.
    pub for_ns: u64,
}

/// One step of a user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// A request.
    Http(Box<Http>),
    /// A pause.
    Think(Think),
    /// Compresses a file in the generator, as disk and CPU work (Netto et al.).
    Compress(Compress),
    /// Repeats steps.
    Repeat {
        /// Number of repetitions.
        times: u32,
        /// Steps to repeat.
        steps: Vec<Step>,
    },
    /// One of several branches, chosen at random.
    Choose(Vec<Branch>),
    /// Steps timed together, from the intended start of the first to the end of the last. Think time inside is excluded.
    Transaction {
        /// Its name in records.
        name: String,
        /// Steps to time.
        steps: Vec<Step>,
    },
    /// Reads the next row of a feeder into variables named after its columns.
    Feed {
        /// Name of the feeder.
        feeder: String,
    },
}

/// One branch of a choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Branch {
    /// Weight among the branches.
    pub weight: f64,
    /// Steps of the branch; may be empty.
    pub steps: Vec<Step>,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Http {
    /// Its name in records. Requests of the same name are reported together.
    pub name: String,
    /// For example `GET`.
    pub method: String,
    /// Template. The part before the path may not contain a variable.
    pub url: String,
    /// Sent unchanged, after the headers that every request needs.
    #[serde(default)]
    pub headers: Vec<Header>,
    /// Body of the request.
    #[serde(default)]
    pub body: Option<Body>,
    /// Timeout, from sending until the response is complete.
    #[serde(default = "defaults::timeout_ns")]
    pub timeout_ns: u64,
    /// Maximum redirects to follow, as part of the request.
    #[serde(default)]
    pub redirects: u32,
    /// Values to extract from the response into variables.
    #[serde(default)]
    pub extract: Vec<Extract>,
    /// Checks of the response. If none checks the status, 400 and above is an error.
    #[serde(default)]
    pub checks: Vec<Check>,
}

/// One header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Its name.
    pub name: String,
    /// Template.
    pub value: String,
}

/// The body of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// Template.
    Text(String),
    /// Template of JSON with variables inside strings; their values are escaped.
    Json(String),
    /// Bytes in base64, sent decoded.
    Base64(String),
    /// The content of a file, read once before the start.
    File(PathBuf),
    /// A form as browsers encode it; values are templates.
    Form(Vec<Header>),
    /// A form with files, as browsers encode it.
    Multipart(Vec<FormPart>),
}

/// One part of a form with files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FormPart {
    /// The field's name.
    pub name: String,
    /// Its content, a template or a file.
    pub content: PartContent,
    /// Content type, for files.
    #[serde(default)]
    pub content_type: Option<String>,
}

/// Content of one part of a form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartContent {
    /// Template.
    Text(String),
    /// The content of a file, read once before the start. The last component of the path is sent as its name.
    File(PathBuf),
    /// A file's content in the program, if the file cannot be accessed.
    Content {
        /// The file's name, as it is sent.
        file_name: String,
        /// Its bytes.
        base64: String,
    },
}

/// Length of a pause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Think {
    /// A constant length.
    ConstantNs(u64),
    /// Uniformly distributed in a range.
    Uniform {
        /// Shortest.
        from_ns: u64,
        /// Longest.
        to_ns: u64,
    },
    /// Exponentially distributed.
    Exponential {
        /// Its mean.
        mean_ns: u64,
    },
    /// Log-normally distributed.
    LogNormal {
        /// Its median.
        median_ns: u64,
        /// Standard deviation of its natural logarithm.
        sigma: f64,
    },
    /// One of these, equally likely.
    AnyOfNs(Vec<u64>),
}

/// Compression of a file in the generator. Each user's step reads the file, compresses it and writes the result to the work folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Compress {
    /// Its name in records.
    pub name: String,
    /// Size of the file, which is created before the start.
    pub file_bytes: u64,
    /// Level 1 (fast) to 9 (small), as in gzip.
    #[serde(default = "defaults::compress_level")]
    pub level: u32,
    /// How many users compress at the same time, the others wait. Default: one for each CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
}

/// Extracts a value from a response into a variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Extract {
    /// Name of the variable.
    pub into: String,
    /// Location of the value.
    pub from: Source,
    /// Which of several values to use.
    #[serde(default)]
    pub pick: Pick,
    /// Default if nothing is found. Without a default, that is an error and the iteration ends.
    #[serde(default)]
    pub default: Option<String>,
}

/// Location of a value in a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    /// The first group of a regular expression over the body, or its whole match if it has none.
    Regex(String),
    /// A JSON path (RFC 9535) in the body.
    JsonPath(String),
    /// A CSS selector in the body.
    Css {
        /// Selects elements.
        selector: String,
        /// The value of this attribute, or the element's text if not given.
        #[serde(default)]
        attribute: Option<String>,
    },
    /// A header's value.
    Header(String),
}

/// Which of several values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Pick {
    /// The first.
    #[default]
    First,
    /// The last.
    Last,
    /// Any, equally likely.
    Random,
}

/// A check of a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Check {
    /// The status is in a range.
    Status {
        /// Lowest.
        from: u16,
        /// Highest.
        to: u16,
    },
    /// The body contains this text.
    Contains(String),
    /// The body does not contain this text.
    Lacks(String),
    /// The body matches this regular expression.
    Matches(String),
    /// A header contains this text.
    Header {
        /// Name of the header.
        name: String,
        /// Expected text. If it is empty, the header only has to exist.
        contains: String,
    },
    /// A JSON path (RFC 9535) finds exactly this, compared as text.
    JsonPath {
        /// The path.
        path: String,
        /// Expected result.
        equals: String,
    },
    /// The body's size is in a range.
    BodyBytes {
        /// Smallest.
        from: u64,
        /// Largest.
        to: u64,
    },
    /// The response was complete within this time of the intended start.
    WithinNs(u64),
}

/// Data that users read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Feeder {
    /// Source of the rows.
    pub rows: Rows,
    /// Order of the rows.
    #[serde(default)]
    pub order: Order,
    /// Whether all users take rows from one sequence. Otherwise each user has its own.
    #[serde(default = "defaults::yes")]
    pub shared: bool,
    /// What happens after the last row.
    #[serde(default)]
    pub when_spent: WhenSpent,
}

/// Source of the rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Rows {
    /// In the program.
    Inline {
        /// Names of the columns.
        columns: Vec<String>,
        /// Rows with one text per column.
        rows: Vec<Vec<String>>,
    },
    /// A CSV file with a header line, read once before the start.
    Csv(PathBuf),
    /// A file with one JSON object per line, read once before the start. Every line must have the keys of the first.
    JsonLines(PathBuf),
}

/// Order of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// In the order of the file or list.
    #[default]
    Sequential,
    /// A random row each time, equally likely; rows never run out.
    Random,
}

/// What happens after the last row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhenSpent {
    /// Start again from the first row.
    #[default]
    Repeat,
    /// The user that requested a row leaves.
    Leave,
}

/// How connections are opened and reused. Every user has its own connections, like a browser.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Connections {
    /// Whether connections are reused. Otherwise each request opens and closes one.
    #[serde(default = "defaults::yes")]
    pub keep_alive: bool,
    /// Protocol to use.
    #[serde(default)]
    pub protocol: Protocol,
    /// Timeout for connecting, including the TLS handshake.
    #[serde(default = "defaults::connect_timeout_ns")]
    pub connect_timeout_ns: u64,
    /// Local addresses, used in turn; each has its own ports. If empty, the system chooses.
    #[serde(default)]
    pub local_addresses: Vec<String>,
    /// Whether a user keeps its connections between iterations.
    #[serde(default = "defaults::yes")]
    pub across_iterations: bool,
}

impl Default for Connections {
    fn default() -> Self {
        Self {
            keep_alive: true,
            protocol: Protocol::default(),
            connect_timeout_ns: defaults::connect_timeout_ns(),
            local_addresses: Vec::new(),
            across_iterations: true,
        }
    }
}

/// Protocol to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2. With TLS it must be negotiated; without TLS it is assumed.
    Http2,
    /// With TLS the server's preference, without TLS HTTP/1.1.
    Negotiated,
}

/// How servers are verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// Whether certificates are verified.
    #[serde(default = "defaults::yes")]
    pub verify: bool,
    /// PEM certificates of authorities to trust in addition to the host's.
    #[serde(default)]
    pub authorities_pem: Option<String>,
    /// Whether a user resumes TLS sessions, like a browser.
    #[serde(default = "defaults::yes")]
    pub resume: bool,
}

impl Default for Tls {
    fn default() -> Self {
        Self { verify: true, authorities_pem: None, resume: true }
    }
}

/// Description of a prepared load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadStarted {
    /// Labels of records, in the order of their numbers.
    pub labels: Vec<Label>,
    /// The servers. The agent has connected to each of them once.
    pub origins: Vec<Origin>,
    /// Maximum files and sockets that it may open at once.
    pub files_needed: u64,
    /// Limit of open files, after it was raised as far as permitted.
    pub files_limit: u64,
    /// Bytes of the generator's records per user, excluding the kernel's memory for sockets.
    pub user_bytes: u64,
    /// Duration of all stages.
    pub stages_ns: u64,
}

/// A label of records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Label {
    /// Name in the program.
    pub name: String,
    /// Kind of the label.
    pub sort: LabelSort,
}

/// Kind of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LabelSort {
    /// A request.
    Http,
    /// A transaction.
    Transaction,
    /// Compression of a file in the generator.
    Compress,
}

/// A server, as seen before the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Origin {
    /// Scheme, host and port.
    pub name: String,
    /// Its addresses that are used.
    pub addresses: Vec<String>,
    /// Addresses of its name that cannot be reached, each with the reason.
    #[serde(default)]
    pub unreachable: Vec<String>,
    /// Duration of name resolution. Null if none was needed.
    pub resolve_ns: Option<u64>,
    /// Time to connect.
    pub connect_ns: u64,
    /// Duration of the TLS handshake. Null without TLS.
    pub tls_ns: Option<u64>,
    /// Protocols, for example `HTTP/1.1` or `TLS 1.3, HTTP/2`.
    pub protocol: String,
}

/// Results of one thread of a load in one second. Seconds are cut at multiples of 1 s of monotonic time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadSecond {
    /// Worker thread, from 0.
    pub thread: u32,
    /// Monotonic start.
    pub start_ns: u64,
    /// Monotonic end.
    pub end_ns: u64,
    /// Number of users at its end.
    pub users: u32,
    /// Users that waited for a response at its end.
    pub in_flight: u32,
    /// Arrivals of the open model that waited for a user at its end.
    pub waiting: u32,
    /// Completed iterations.
    pub iterations: u64,
    /// Requests sent, including those after redirects and those sent once more.
    pub requests: u64,
    /// Requests sent once more on a new connection, because the server had closed the kept one.
    #[serde(default)]
    pub resent: u64,
    /// Bytes written to and read from sockets, before encryption.
    pub sent_bytes: u64,
    /// See `sent_bytes`.
    pub received_bytes: u64,
    /// Connections opened.
    pub connections_opened: u64,
    /// Addresses of servers at which connecting failed, after which the next address was tried.
    #[serde(default)]
    pub rerouted: u64,
    /// Open connections at its end.
    pub connections_open: u32,
    /// Time to connect, without TLS.
    pub connect: Histogram,
    /// Time of TLS handshakes.
    pub tls: Histogram,
    /// Times by label, for labels that have any.
    pub timings: Vec<Timing>,
    /// Responses by status.
    pub statuses: Vec<(u16, u64)>,
    /// Errors by label, kind and detail.
    pub errors: Vec<LoadError>,
    /// Health of the generator.
    pub health: GeneratorHealth,
}

/// Times of one label. A request ends when the last byte of its response is read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timing {
    /// Index in [`LoadStarted::labels`].
    pub label: u32,
    /// Number of successes.
    pub done: u64,
    /// Number of failures.
    pub failed: u64,
    /// Sum of corrected times, for an exact mean.
    pub sum_ns: u64,
    /// Sum of squares of corrected times in seconds, for an exact standard deviation.
    pub sum_squares_s2: f64,
    /// Time from the intended start, for every complete response, whether or not its checks passed.
    pub corrected: Histogram,
    /// Time from sending, including connecting.
    pub raw: Histogram,
    /// Time from writing the request to the socket until the first byte of the response. Empty for other kinds.
    pub first_byte: Histogram,
    /// Time from the first byte to the last.
    pub body: Histogram,
    /// Time from the intended start to the failure, for requests without a complete response.
    pub failures: Histogram,
}

/// Count of one kind of error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoadError {
    /// Index in [`LoadStarted::labels`]. Null if the error concerns no request.
    pub label: Option<u32>,
    /// Kind of the error.
    pub kind: LoadErrorKind,
    /// The check, variable or system error. Empty if the kind is sufficient.
    pub detail: String,
    /// Number of occurrences.
    pub count: u64,
}

/// Kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoadErrorKind {
    /// The server refused the connection.
    ConnectionRefused,
    /// The server cannot be reached.
    Unreachable,
    /// Connecting timed out.
    ConnectTimeout,
    /// The TLS handshake failed, or the certificate is not trusted.
    Tls,
    /// The connection was reset.
    Reset,
    /// The connection was closed before a response began.
    Closed,
    /// The connection was closed before the declared end of a response.
    Truncated,
    /// More bytes arrived than the response declared.
    ExcessBytes,
    /// The received bytes are not an HTTP response.
    BadResponse,
    /// The response was not complete in time.
    Timeout,
    /// A status of 400 or above that no check permits.
    Status,
    /// A check failed.
    Check,
    /// Nothing was found to extract.
    Extract,
    /// Too many redirects, or one to a place that no request of the program uses.
    Redirect,
    /// The generator had no local port left.
    NoPorts,
    /// The generator could open no more files.
    NoFiles,
    /// Compressing a file failed.
    Compress,
    /// Any other error of the system.
    System,
    /// A variable's value put a line break or a zero into a header, which would create other headers.
    BadHeader,
    /// No user was free for an arrival before the end.
    NotServed,
    /// Unfinished when the time for it was over.
    CutOff,
}

/// Health of the generator in one second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GeneratorHealth {
    /// Requests with a scheduled time: after think time, or by an arrival. Requests that directly follow a response do not count.
    pub timed: u64,
    /// How many of them left late, see [`LoadProgram::late_after_ns`].
    pub late: u64,
    /// How late each request left after its user was free to send it. Waiting for a user is caused by the server and excluded.
    pub lateness: Histogram,
    /// Time that the thread worked, excluding waiting and spinning.
    pub busy_ns: u64,
    /// CPU time used, including spinning.
    pub cpu_ns: u64,
    /// Time on a run queue without running, by the scheduler's accounting. Null if the kernel does not report it.
    pub run_delay_ns: Option<u64>,
    /// The longest time between two polls of the sockets.
    pub stall_ns_max: u64,
    /// Writes that the socket did not fully accept at once.
    pub back_pressure: u64,
    /// Response times as if each request had left when its user was free to send it. Compared with `corrected`, they show how much the
    /// generator's lateness adds to percentiles.
    #[serde(default)]
    pub undelayed: Histogram,
    /// Time for which CPU limits throttled the generator, including limits of parent cgroups. Reported by the first thread; null from
    /// others, and if no cgroup reports it.
    #[serde(default)]
    pub throttled_ns: Option<u64>,
    /// Ports in `TIME_WAIT` in the generator's network namespace. Reported by the first thread; null from others.
    #[serde(default)]
    pub ports_waiting: Option<u64>,
    /// Local ports available for all servers. Reported by the first thread; null from others, and if no ports are needed.
    #[serde(default)]
    pub ports_most: Option<u64>,
}

/// `load.level`: changes the number of users, or of arrivals a second, of a running load until the end of its last stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadLevel {
    /// The load's workload.
    pub id: String,
    /// From when on. A time that has passed means at once.
    pub at_ns: u64,
    /// Users of the closed model, or arrivals a second of the open model, over all generators of the load.
    pub level: f64,
}

mod defaults {
    pub(super) fn yes() -> bool {
        true
    }

    pub(super) fn weight() -> f64 {
        1.0
    }

    pub(super) fn grace_ns() -> u64 {
        30_000_000_000
    }

    pub(super) fn late_after_ns() -> u64 {
        50_000
    }

    pub(super) fn spin_ns() -> u64 {
        200_000
    }

    pub(super) fn timeout_ns() -> u64 {
        30_000_000_000
    }

    pub(super) fn connect_timeout_ns() -> u64 {
        10_000_000_000
    }

    pub(super) fn compress_level() -> u32 {
        6
    }
}
