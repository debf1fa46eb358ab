//! A compiled load program, which says what virtual users do and when they come, and the records that say what became of it.
//! Deliberately not here: the plan that people write, which the controller compiles into this, and carrying it out.
//!
//! A program is a workload like any other: `workload.start` prepares it (names are resolved, files read, servers reached, limits
//! checked) and answers with [`LoadStarted`]; paced `flat_out` it begins at once, paced `scheduled` it begins with its first switch
//! to more than 0 and rests while switched to 0. Its records come as `load` notifications. It ends by itself after its last stage.
//!
//! Texts marked *template* may hold `${name}`, which stands for a variable; `$$` stands for `$`. Every user has the variables `user`
//! (its number, from 0) and `iteration` (from 0).

use std::collections::BTreeMap;
use std::path::PathBuf;

use partywall_record::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Virtual users as a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadProgram {
    /// Kinds of users; each new user is of one of them.
    pub kinds: Vec<UserKind>,
    /// When users come, or when requests do.
    pub pacing: Pacing,
    /// Data that users read, by name.
    #[serde(default)]
    pub feeders: BTreeMap<String, Feeder>,
    /// How connections are made and kept.
    #[serde(default)]
    pub connections: Connections,
    /// How servers are trusted.
    #[serde(default)]
    pub tls: Tls,
    /// Where to connect instead of asking the resolver: `host:port` to `address:port` or `unix:/path`. Several are used in turn.
    #[serde(default)]
    pub addresses: BTreeMap<String, Vec<String>>,
    /// How long requests in flight and `end` steps may take after the last stage.
    #[serde(default = "defaults::grace_ns")]
    pub grace_ns: u64,
    /// A timed request that leaves later than this after its intended start counts as late.
    #[serde(default = "defaults::late_after_ns")]
    pub late_after_ns: u64,
    /// The last stretch before a timed request is spun rather than slept, at most so long; 0 never spins.
    #[serde(default = "defaults::spin_ns")]
    pub spin_ns: u64,
    /// Also send slices, as a victim of a trial does; their work is requests.
    #[serde(default)]
    pub slices: bool,
    /// Which part of it this generator does, of several that share it.
    #[serde(default)]
    pub share: Share,
}

/// A generator's part of a load that several share: users, arrivals and rows of shared feeders are numbered over all of them, and each
/// takes every `of`th.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// Which, from 0.
    pub number: u32,
    /// Of how many.
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
    /// For people.
    pub name: String,
    /// How many of all users are of this kind, relative to the other kinds.
    #[serde(default = "defaults::weight")]
    pub weight: f64,
    /// Variables that a user begins with.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
    /// Whether each user keeps the cookies it is given and sends them back.
    #[serde(default = "defaults::yes")]
    pub cookies: bool,
    /// Done once, before the first iteration.
    #[serde(default)]
    pub init: Vec<Step>,
    /// One iteration.
    pub actions: Vec<Step>,
    /// Done once, when the user leaves.
    #[serde(default)]
    pub end: Vec<Step>,
}

/// When users come, or when requests do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Pacing {
    /// So many users, each of which begins its next iteration when the last has ended.
    Closed {
        /// The number of users over time.
        stages: Vec<Stage>,
        /// Begin iterations this far apart rather than back to back; one that is overdue begins at once, and counts from when it was due.
        #[serde(default)]
        every_ns: Option<u64>,
    },
    /// So many iterations begin each second, whether or not earlier ones have ended.
    Open {
        /// How arrivals are spaced.
        arrivals: Arrivals,
        /// Arrivals a second over time.
        stages: Vec<Stage>,
        /// Users there are at most; arrivals beyond wait for one to come free, and count from when they were due.
        users_max: u32,
    },
}

/// How arrivals are spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// Evenly.
    Constant,
    /// At random and independent of each other.
    Poisson,
}

/// A level to be reached along a straight line from the level before; the first stage starts from 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Users, or arrivals a second, at the stage's end.
    pub to: f64,
    /// How long the stage takes; 0 is a jump.
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
    /// Compresses a file in the generator: disk and CPU work of its own (Netto et al.).
    Compress(Compress),
    /// The same steps several times.
    Repeat {
        /// How many times.
        times: u32,
        /// What.
        steps: Vec<Step>,
    },
    /// One of several branches, by chance.
    Choose(Vec<Branch>),
    /// Steps timed together, from the intended start of the first to the end of the last; thinking inside is not counted.
    Transaction {
        /// Its name in records.
        name: String,
        /// What is timed.
        steps: Vec<Step>,
    },
    /// Takes the next row of a feeder into variables named after its columns.
    Feed {
        /// Which feeder.
        feeder: String,
    },
}

/// One branch of a choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Branch {
    /// How often, relative to the other branches.
    pub weight: f64,
    /// What; may be nothing.
    pub steps: Vec<Step>,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Http {
    /// Its name in records; requests of the same name are told together.
    pub name: String,
    /// For example `GET`.
    pub method: String,
    /// Template; the part before the path may hold no variable.
    pub url: String,
    /// Sent as given, after those that every request needs.
    #[serde(default)]
    pub headers: Vec<Header>,
    /// What is sent.
    #[serde(default)]
    pub body: Option<Body>,
    /// From when it is sent until its response is complete.
    #[serde(default = "defaults::timeout_ns")]
    pub timeout_ns: u64,
    /// Redirects followed, as part of the request.
    #[serde(default)]
    pub redirects: u32,
    /// Taken from the response into variables.
    #[serde(default)]
    pub extract: Vec<Extract>,
    /// What must hold of the response. Where none speaks of the status, 400 and above is an error.
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

/// What a request sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// Template.
    Text(String),
    /// Template of JSON whose variables stand in strings; their values are escaped.
    Json(String),
    /// Bytes in base 64, sent decoded and otherwise as they are.
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
    /// Told for files.
    #[serde(default)]
    pub content_type: Option<String>,
}

/// Content of one part of a form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartContent {
    /// Template.
    Text(String),
    /// The content of a file, read once before the start; its last component is the name told.
    File(PathBuf),
    /// The same where the file cannot be reached.
    Content {
        /// The file's name, as it is told.
        file_name: String,
        /// Its bytes.
        base64: String,
    },
}

/// How long a pause is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Think {
    /// Always so long.
    ConstantNs(u64),
    /// Any length in a range, equally likely.
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
    /// Size of the file, which is made before the start.
    pub file_bytes: u64,
    /// 1 (fast) to 9 (small), as gzip has them.
    #[serde(default = "defaults::compress_level")]
    pub level: u32,
}

/// Takes a value from a response into a variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Extract {
    /// The variable.
    pub into: String,
    /// Where the value is found.
    pub from: Source,
    /// Which, where there are several.
    #[serde(default)]
    pub pick: Pick,
    /// Used if there is none; without it none is an error, and the iteration ends.
    #[serde(default)]
    pub default: Option<String>,
}

/// Where in a response a value is found.
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

/// What must hold of a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Check {
    /// The status lies in a range.
    Status {
        /// Lowest.
        from: u16,
        /// Highest.
        to: u16,
    },
    /// The body holds this text.
    Contains(String),
    /// The body does not hold this text.
    Lacks(String),
    /// The body matches this regular expression.
    Matches(String),
    /// A header holds this text.
    Header {
        /// Which header.
        name: String,
        /// What it holds; empty asks only that the header is there.
        contains: String,
    },
    /// A JSON path (RFC 9535) finds exactly this, compared as text.
    JsonPath {
        /// The path.
        path: String,
        /// What it finds.
        equals: String,
    },
    /// The body's size lies in a range.
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
    /// Where rows come from.
    pub rows: Rows,
    /// In which order.
    #[serde(default)]
    pub order: Order,
    /// Whether all users take from one sequence; otherwise each has a sequence of its own.
    #[serde(default = "defaults::yes")]
    pub shared: bool,
    /// What happens after the last row.
    #[serde(default)]
    pub when_spent: WhenSpent,
}

/// Where rows come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Rows {
    /// In the program.
    Inline {
        /// Names of the columns.
        columns: Vec<String>,
        /// As many texts a row as there are columns.
        rows: Vec<Vec<String>>,
    },
    /// A CSV file with a head line, read once before the start.
    Csv(PathBuf),
    /// A file with one JSON object a line, read once before the start; every line has the keys of the first.
    JsonLines(PathBuf),
}

/// In which order rows are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// As they stand.
    #[default]
    Sequential,
    /// Any row each time, equally likely; never spent.
    Random,
}

/// What happens after the last row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhenSpent {
    /// From the first again.
    #[default]
    Repeat,
    /// The user that asked for a row leaves.
    Leave,
}

/// How connections are made and kept. Every user has connections of its own, as browsers do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Connections {
    /// Whether a connection is used again; otherwise each request makes one and closes it.
    #[serde(default = "defaults::yes")]
    pub keep_alive: bool,
    /// Which protocol is spoken.
    #[serde(default)]
    pub protocol: Protocol,
    /// How long connecting, with its TLS handshake, may take.
    #[serde(default = "defaults::connect_timeout_ns")]
    pub connect_timeout_ns: u64,
    /// Addresses to connect from, used in turn; each brings ports of its own. The system's choice if empty.
    #[serde(default)]
    pub local_addresses: Vec<String>,
    /// Whether a user keeps its connections from one iteration to the next.
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

/// Which protocol is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2; with TLS it must be agreed on there, without TLS it is presumed.
    Http2,
    /// With TLS whichever the server prefers, without TLS HTTP/1.1.
    Negotiated,
}

/// How servers are trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// Whether certificates are verified.
    #[serde(default = "defaults::yes")]
    pub verify: bool,
    /// Certificates of authorities trusted besides those of the host, in PEM.
    #[serde(default)]
    pub authorities_pem: Option<String>,
    /// Whether a user takes up earlier sessions again, as browsers do.
    #[serde(default = "defaults::yes")]
    pub resume: bool,
}

impl Default for Tls {
    fn default() -> Self {
        Self { verify: true, authorities_pem: None, resume: true }
    }
}

/// What a load says of itself when it has been prepared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadStarted {
    /// What records tell of, in the order in which records number them.
    pub labels: Vec<Label>,
    /// The servers, each of which was reached once.
    pub origins: Vec<Origin>,
    /// Files and sockets it may have open at once, and how many the host allows it.
    pub files_needed: u64,
    /// The limit, after it was raised as far as allowed.
    pub files_limit: u64,
    /// Bytes of the generator's own records for one user, without what the kernel keeps for its sockets.
    pub user_bytes: u64,
    /// How long all stages take.
    pub stages_ns: u64,
}

/// What a record tells of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Label {
    /// As the program has it.
    pub name: String,
    /// What it is.
    pub sort: LabelSort,
}

/// What a label stands for.
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

/// A server as it was found before the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Origin {
    /// Scheme, host and port.
    pub name: String,
    /// Where it is.
    pub addresses: Vec<String>,
    /// How long asking for its addresses took; null if nobody had to be asked.
    pub resolve_ns: Option<u64>,
    /// How long connecting took.
    pub connect_ns: u64,
    /// How long the TLS handshake took; null without TLS.
    pub tls_ns: Option<u64>,
    /// What is spoken, for example `HTTP/1.1` or `TLS 1.3, HTTP/2`.
    pub protocol: String,
}

/// What one thread of a load did in one second. Seconds are cut at multiples of 1 s of monotonic time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadSecond {
    /// Worker thread, from 0.
    pub thread: u32,
    /// Monotonic start.
    pub start_ns: u64,
    /// Monotonic end.
    pub end_ns: u64,
    /// Users there were at its end.
    pub users: u32,
    /// Users who waited for a response at its end.
    pub in_flight: u32,
    /// Arrivals of the open model that waited for a user at its end.
    pub waiting: u32,
    /// Iterations that ended.
    pub iterations: u64,
    /// Requests sent, those after redirects included.
    pub requests: u64,
    /// Bytes handed to and taken from sockets, before encryption.
    pub sent_bytes: u64,
    /// See `sent_bytes`.
    pub received_bytes: u64,
    /// Connections made.
    pub connections_opened: u64,
    /// Connections there were at its end.
    pub connections_open: u32,
    /// Time to connect, without TLS.
    pub connect: Histogram,
    /// Time of TLS handshakes.
    pub tls: Histogram,
    /// Times by label, of labels that have any.
    pub timings: Vec<Timing>,
    /// Responses by status.
    pub statuses: Vec<(u16, u64)>,
    /// What went wrong, by label, kind and detail.
    pub errors: Vec<LoadError>,
    /// How the generator itself did.
    pub health: GeneratorHealth,
}

/// Times of one label. A request's end is when the last byte of its response was read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timing {
    /// Its place in [`LoadStarted::labels`].
    pub label: u32,
    /// How many ended well.
    pub done: u64,
    /// How many did not.
    pub failed: u64,
    /// Sum of corrected times, for an exact mean.
    pub sum_ns: u64,
    /// Sum of squares of corrected times in seconds, for an exact standard deviation.
    pub sum_squares_s2: f64,
    /// From the intended start. Of every response that came whole, whether or not its checks held.
    pub corrected: Histogram,
    /// From when it was sent, connecting included.
    pub raw: Histogram,
    /// From when the request was handed to the socket until the first byte of the response; none for other sorts.
    pub first_byte: Histogram,
    /// From the first byte to the last.
    pub body: Histogram,
    /// From the intended start to the failure, of those that got no whole response.
    pub failures: Histogram,
}

/// How often something went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoadError {
    /// Its place in [`LoadStarted::labels`]; null if no request was concerned.
    pub label: Option<u32>,
    /// What.
    pub kind: LoadErrorKind,
    /// Which check, variable or system error; empty if the kind says it all.
    pub detail: String,
    /// How often.
    pub count: u64,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoadErrorKind {
    /// Nobody listens there.
    ConnectionRefused,
    /// The server cannot be reached.
    Unreachable,
    /// Connecting took too long.
    ConnectTimeout,
    /// The TLS handshake failed, or its certificate is not trusted.
    Tls,
    /// The connection was reset.
    Reset,
    /// The connection was closed before a response began.
    Closed,
    /// The connection was closed in the middle of a response, which is shorter than it said.
    Truncated,
    /// More came than the response said there was.
    ExcessBytes,
    /// What came is no HTTP response.
    BadResponse,
    /// The response was not complete in time.
    Timeout,
    /// A status of 400 or above where no check asked for it.
    Status,
    /// A check did not hold.
    Check,
    /// Nothing was found to extract.
    Extract,
    /// More redirects than are followed, or one to where no request of the program goes.
    Redirect,
    /// The generator had no port left to connect from.
    NoPorts,
    /// The generator could open no more files.
    NoFiles,
    /// Compressing a file failed.
    Compress,
    /// Any other error of the system.
    System,
    /// A variable brought a line break or a zero into a header, which would have made other headers of it.
    BadHeader,
    /// An arrival got no user before the end.
    NotServed,
    /// Not ended when the time for it was over.
    CutOff,
}

/// How the generator itself did in a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GeneratorHealth {
    /// Requests that had a time to leave at: after thinking, or by an arrival. Not those that follow at once upon a response.
    pub timed: u64,
    /// How many of them left late, see [`LoadProgram::late_after_ns`].
    pub late: u64,
    /// How late each left after the user was free to send it; waiting for a user is the server's doing and not counted here.
    pub lateness: Histogram,
    /// Time the thread spent working, waiting and spinning left out.
    pub busy_ns: u64,
    /// CPU time it used, spinning included.
    pub cpu_ns: u64,
    /// Time it was ready to run and did not, by the scheduler's account; null if the kernel does not tell.
    pub run_delay_ns: Option<u64>,
    /// The longest time between two looks at the sockets.
    pub stall_ns_max: u64,
    /// Sends that the socket did not take whole at once.
    pub back_pressure: u64,
    /// Response times of requests as they would be had each left when its user was free to send it. Beside `corrected` it tells how much
    /// the generator's lateness adds to percentiles.
    #[serde(default)]
    pub undelayed: Histogram,
    /// Time for which a CPU limit kept the generator from running, all limits above it included. Told by the first thread; null from
    /// others, and where no cgroup tells.
    #[serde(default)]
    pub throttled_ns: Option<u64>,
    /// Ports that wait out the time TCP asks for, in the generator's network namespace. Told by the first thread; null from others.
    #[serde(default)]
    pub ports_waiting: Option<u64>,
    /// Ports there are to connect from, to all servers. Told by the first thread; null from others, and where no ports are needed.
    #[serde(default)]
    pub ports_most: Option<u64>,
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
