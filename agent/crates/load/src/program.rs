//! Compiles the program from the wire into one that workers carry out. Operations become flat lists, names become numbers, and
//! constant parts of requests become bytes. It reports all errors before anything is sent. `prepare` resolves names and connects to
//! servers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use partywall_wire::load::{
    Body, Branch, Check, Compress, FormPart, Http, Label, LabelSort, LoadProgram, Pacing, PartContent, Stage, Step, Think, UserKind,
};

use crate::address::{self, Place};
use crate::extract::{Extraction, Test};
use crate::feeder::Table;
use crate::template::Template;

/// Variables that every user has.
pub(crate) const USER: u16 = 0;
pub(crate) const ITERATION: u16 = 1;
const USERS_MOST: f64 = 10_000_000.0;
const RATE_MOST: f64 = 10_000_000.0;
const COMPRESS_THREADS_MOST: u32 = 1024;

/// All errors in a program, each with its key.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ProgramError(pub Vec<String>);

/// A compiled program.
#[derive(Debug)]
pub(crate) struct Program {
    pub kinds: Vec<Kind>,
    pub requests: Vec<Request>,
    pub thinks: Vec<Think>,
    pub choices: Vec<Choice>,
    pub compressions: Vec<Compression>,
    pub feeders: Vec<Arc<Table>>,
    pub labels: Vec<Label>,
    pub places: Vec<Place>,
    /// Whether users need any variables, including their own number.
    pub variables: bool,
    pub pacing: Pacing,
    pub source: LoadProgram,
}

/// A kind of user.
#[derive(Debug)]
pub(crate) struct Kind {
    pub weight: f64,
    pub cookies: bool,
    pub initial: Vec<(u16, Box<str>)>,
    pub init: Vec<Op>,
    pub actions: Vec<Op>,
    pub end: Vec<Op>,
}

/// One operation. Numbers are indexes into the program's lists; `to` is an index into the same list of operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Op {
    Request(u32),
    Think(u32),
    Compress(u32),
    /// Enters a loop, or skips it if there is nothing to repeat.
    Repeat {
        times: u32,
        to: u32,
    },
    /// Jumps back unless the loop is done.
    Again {
        to: u32,
    },
    Choose(u32),
    Jump {
        to: u32,
    },
    Begin {
        label: u32,
    },
    End {
        label: u32,
    },
    Feed(u32),
}

/// Branches by cumulative weight.
#[derive(Debug)]
pub(crate) struct Choice {
    pub branches: Vec<(f64, u32)>,
}

#[derive(Debug)]
pub(crate) struct Compression {
    pub label: u32,
    pub file_bytes: u64,
    pub level: u32,
    pub threads: Option<u32>,
}

/// The constant parts of a request.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each follows from another key")]
pub(crate) struct Request {
    pub label: u32,
    pub place: u16,
    pub method: Box<str>,
    pub target: Template,
    pub headers: Vec<(Box<str>, Template)>,
    pub body: Payload,
    pub content_type: Option<Box<str>>,
    /// The whole HTTP/1.1 request, if it contains no variable.
    pub fixed: Option<Arc<[u8]>>,
    /// Each request uses its own connection.
    pub closes: bool,
    pub timeout_ns: u64,
    pub redirects: u32,
    pub extractions: Vec<(u16, Extraction)>,
    pub tests: Vec<(Box<str>, Test)>,
    pub status_tested: bool,
    pub wants_head: bool,
    pub wants_body: bool,
}

/// The body of a request.
#[derive(Debug)]
pub(crate) enum Payload {
    None,
    Bytes(Arc<[u8]>),
    /// Pieces in order.
    Pieces(Vec<PayloadPiece>),
}

#[derive(Debug)]
pub(crate) enum PayloadPiece {
    Bytes(Arc<[u8]>),
    Text(Template),
    /// Values are encoded, so that they cannot change the structure of the surrounding text.
    Encoded(Template, Encode),
}

/// Appends bytes in an encoding.
pub(crate) type Encode = fn(&[u8], &mut Vec<u8>);

/// Compiles a whole program. Also reads the files that it names.
pub(crate) fn compile(source: LoadProgram) -> Result<Program, ProgramError> {
    let mut compiler =
        Compiler { variables: vec!["user".into(), "iteration".into()], closes: !source.connections.keep_alive, ..Compiler::default() };
    compiler.feeders(&source);
    compiler.pacing(&source.pacing);
    compiler.rest(&source);
    let kinds = source.kinds.iter().enumerate().filter_map(|(number, kind)| compiler.kind(&format!("kinds[{number}]"), kind)).collect();
    if source.kinds.is_empty() {
        compiler.problem("kinds", "the list is empty; give at least one kind of user");
    }
    if !compiler.problems.is_empty() {
        return Err(ProgramError(compiler.problems));
    }
    Ok(Program {
        kinds,
        requests: compiler.requests,
        thinks: compiler.thinks,
        choices: compiler.choices,
        compressions: compiler.compressions,
        feeders: compiler.feeders.into_iter().map(|(_, table)| table).collect(),
        labels: compiler.labels,
        places: compiler.places,
        variables: compiler.templated || compiler.variables.len() > 2,
        pacing: source.pacing.clone(),
        source,
    })
}

impl Program {
    /// The place and target that a redirect's Location header names. An error says why it cannot be followed.
    pub(crate) fn destination(&self, from: u16, target: &str, location: &[u8]) -> Result<(u16, String), String> {
        let shown = String::from_utf8_lossy(location);
        let (to, target) = address::redirected(&self.places[usize::from(from)], target, location)
            .map_err(|_| format!("to {shown}, which is not a URL of a server"))?;
        let at = self.places.iter().position(|known| *known == to);
        let at = at.ok_or_else(|| format!("to {shown}, a server that the plan does not contain"))?;
        Ok((at as u16, target))
    }
}

#[derive(Default)]
struct Compiler {
    problems: Vec<String>,
    requests: Vec<Request>,
    thinks: Vec<Think>,
    choices: Vec<Choice>,
    compressions: Vec<Compression>,
    feeders: Vec<(String, Arc<Table>)>,
    labels: Vec<Label>,
    places: Vec<Place>,
    variables: Vec<String>,
    files: BTreeMap<PathBuf, Arc<[u8]>>,
    closes: bool,
    // Whether any text contains a variable.
    templated: bool,
    // Variables that the current kind may use.
    known: Vec<String>,
}

impl Compiler {
    fn problem(&mut self, key: &str, what: impl std::fmt::Display) {
        self.problems.push(format!("{key}: {what}"));
    }

    /// The value. Records a problem at `key` if there is none.
    fn checked<T, E: std::fmt::Display>(&mut self, key: &str, outcome: Result<T, E>) -> Option<T> {
        outcome.map_err(|error| self.problem(key, error)).ok()
    }

    fn feeders(&mut self, source: &LoadProgram) {
        for (name, feeder) in &source.feeders {
            let key = format!("feeders.{name}");
            if let Some(mut table) = self.checked(&key, Table::read(feeder, source.share)) {
                table.variables = table.columns.iter().map(|column| self.variable(column)).collect();
                self.feeders.push((name.clone(), Arc::new(table)));
            }
        }
    }

    fn pacing(&mut self, pacing: &Pacing) {
        let (key, stages, most) = match pacing {
            Pacing::Closed { stages, .. } => ("pacing.closed", stages, USERS_MOST),
            Pacing::Open { stages, .. } => ("pacing.open", stages, RATE_MOST),
        };
        for (number, Stage { to, .. }) in stages.iter().enumerate() {
            if !(0.0..=most).contains(to) {
                self.problem(&format!("{key}.stages[{number}].to"), format!("{to} is out of range; give 0 to {most}"));
            }
        }
        if stages.iter().map(|stage| stage.for_ns).fold(0, u64::saturating_add) == 0 {
            self.problem(&format!("{key}.stages"), "the stages take no time; give one of them a duration");
        }
        if matches!(pacing, Pacing::Open { users_max: 0, .. }) {
            self.problem("pacing.open.users_max", "0 users send no requests; give at least 1");
        }
    }

    fn rest(&mut self, source: &LoadProgram) {
        let share = source.share;
        if share.number >= share.of {
            self.problem("share", format!("part {} of {} does not exist; parts are numbered from 0", share.number, share.of));
        }
        for address in &source.connections.local_addresses {
            if address.parse::<std::net::IpAddr>().is_err() {
                self.problem("connections.local_addresses", format!("{address:?} is not an IP address; write for example 192.0.2.7"));
            }
        }
    }

    fn kind(&mut self, key: &str, kind: &UserKind) -> Option<Kind> {
        if !(kind.weight.is_finite() && kind.weight > 0.0) {
            self.problem(&format!("{key}.weight"), format!("{} is not a weight; give a number above 0", kind.weight));
        }
        self.learn_variables(kind);
        let before = self.problems.len();
        let initial = kind.variables.iter().map(|(name, value)| (self.variable(name), value.as_str().into())).collect();
        let mut lists = Vec::new();
        for (name, steps) in [("init", &kind.init), ("actions", &kind.actions), ("end", &kind.end)] {
            let mut ops = Vec::new();
            self.steps(&format!("{key}.{name}"), steps, &mut ops);
            lists.push(ops);
        }
        let takes_time = |op: &Op| matches!(op, Op::Request(_) | Op::Think(_) | Op::Compress(_));
        if self.problems.len() == before && !lists[1].iter().any(takes_time) {
            self.problem(&format!("{key}.actions"), "the actions take no time; add a request, a pause or a compression");
        }
        let [init, actions, end] = lists.try_into().ok()?;
        Some(Kind { weight: kind.weight, cookies: kind.cookies, initial, init, actions, end })
    }

    /// Collects the variables that the kind's templates may use.
    fn learn_variables(&mut self, kind: &UserKind) {
        self.known = vec!["user".into(), "iteration".into()];
        self.known.extend(kind.variables.keys().cloned());
        for (_, table) in &self.feeders {
            self.known.extend(table.columns.iter().cloned());
        }
        let mut names = Vec::new();
        for steps in [&kind.init, &kind.actions, &kind.end] {
            extracted(steps, &mut names);
        }
        self.known.append(&mut names);
    }

    fn variable(&mut self, name: &str) -> u16 {
        let at = self.variables.iter().position(|known| known == name).unwrap_or_else(|| {
            self.variables.push(name.into());
            self.variables.len() - 1
        });
        u16::try_from(at).unwrap_or_else(|_| {
            self.problem(name, "there are more than 65535 variables; use fewer");
            0
        })
    }

    fn template(&mut self, key: &str, text: &str) -> Template {
        let known = self.known.clone();
        let parsed = Template::parse(text, |name| known.iter().any(|k| k == name).then(|| self.variable(name)));
        let template = self.checked(key, parsed).unwrap_or_default();
        self.templated |= template.fixed().is_none();
        template
    }

    fn label(&mut self, name: &str, sort: LabelSort) -> u32 {
        let at = self.labels.iter().position(|label| label.name == name && label.sort == sort).unwrap_or_else(|| {
            self.labels.push(Label { name: name.into(), sort });
            self.labels.len() - 1
        });
        at as u32
    }

    fn steps(&mut self, key: &str, steps: &[Step], ops: &mut Vec<Op>) {
        for (number, step) in steps.iter().enumerate() {
            self.step(&format!("{key}[{number}]"), step, ops);
        }
    }

    fn step(&mut self, key: &str, step: &Step, ops: &mut Vec<Op>) {
        match step {
            Step::Http(http) => {
                if let Some(request) = self.request(&format!("{key}.http"), http) {
                    ops.push(Op::Request(add(&mut self.requests, request)));
                }
            }
            Step::Think(think) => {
                self.check_think(&format!("{key}.think"), think);
                ops.push(Op::Think(add(&mut self.thinks, think.clone())));
            }
            Step::Compress(compress) => self.compress(&format!("{key}.compress"), compress, ops),
            Step::Repeat { times, steps } => {
                let start = ops.len();
                ops.push(Op::Repeat { times: *times, to: 0 });
                self.steps(&format!("{key}.repeat.steps"), steps, ops);
                ops.push(Op::Again { to: start as u32 + 1 });
                ops[start] = Op::Repeat { times: *times, to: ops.len() as u32 };
            }
            Step::Choose(branches) => self.choose(&format!("{key}.choose"), branches, ops),
            Step::Transaction { name, steps } => {
                let label = self.label(name, LabelSort::Transaction);
                ops.push(Op::Begin { label });
                self.steps(&format!("{key}.transaction.steps"), steps, ops);
                ops.push(Op::End { label });
            }
            Step::Feed { feeder } => match self.feeders.iter().position(|(name, _)| name == feeder) {
                Some(number) => ops.push(Op::Feed(number as u32)),
                None => self.problem(&format!("{key}.feed.feeder"), format!("no feeder is called {feeder:?}; add it under feeders")),
            },
        }
    }

    fn choose(&mut self, key: &str, branches: &[Branch], ops: &mut Vec<Op>) {
        let bad = |branch: &&Branch| !(branch.weight.is_finite() && branch.weight >= 0.0);
        if let Some(branch) = branches.iter().find(bad) {
            self.problem(key, format!("{} is not a weight; give 0 or more", branch.weight));
        }
        let total: f64 = branches.iter().map(|branch| branch.weight).sum();
        if total.is_nan() || total <= 0.0 {
            self.problem(key, "all branches have weight 0; give one of them more");
            return;
        }
        let choice = add(&mut self.choices, Choice { branches: Vec::new() });
        ops.push(Op::Choose(choice));
        let (mut sum, mut ends, mut starts) = (0.0, Vec::new(), Vec::new());
        for (number, branch) in branches.iter().enumerate() {
            sum += branch.weight / total;
            starts.push((sum, ops.len() as u32));
            self.steps(&format!("{key}[{number}].steps"), &branch.steps, ops);
            ends.push(ops.len());
            ops.push(Op::Jump { to: 0 });
        }
        let after = ops.len() as u32;
        for end in ends {
            ops[end] = Op::Jump { to: after };
        }
        self.choices[choice as usize].branches = starts;
    }

    fn check_think(&mut self, key: &str, think: &Think) {
        match think {
            Think::Uniform { from_ns, to_ns } if from_ns > to_ns => {
                self.problem(key, format!("from {from_ns} to {to_ns} ns is an empty range; give the shorter time first"));
            }
            Think::LogNormal { sigma, .. } if !(sigma.is_finite() && *sigma >= 0.0) => {
                self.problem(&format!("{key}.sigma"), format!("{sigma} is not a standard deviation; give 0 or more"));
            }
            Think::AnyOfNs(values) if values.is_empty() => self.problem(key, "the list is empty; give at least one time"),
            _ => {}
        }
    }

    fn compress(&mut self, key: &str, compress: &Compress, ops: &mut Vec<Op>) {
        if !(1..=9).contains(&compress.level) {
            self.problem(&format!("{key}.level"), format!("{} is out of range; give 1 to 9", compress.level));
        }
        if !(1..=1 << 30).contains(&compress.file_bytes) {
            self.problem(&format!("{key}.file_bytes"), format!("{} is out of range; give 1 byte to 1 GiB", compress.file_bytes));
        }
        if let Some(threads) = compress.threads.filter(|threads| !(1..=COMPRESS_THREADS_MOST).contains(threads)) {
            self.problem(&format!("{key}.threads"), format!("{threads} is out of range; give 1 to {COMPRESS_THREADS_MOST}"));
        }
        let label = self.label(&compress.name, LabelSort::Compress);
        let Compress { file_bytes, level, threads, .. } = *compress;
        let compression = Compression { label, file_bytes, level, threads };
        ops.push(Op::Compress(add(&mut self.compressions, compression)));
    }

    fn request(&mut self, key: &str, http: &Http) -> Option<Request> {
        let split = self.checked(&format!("{key}.url"), address::split(&http.url));
        let method = self.method(&format!("{key}.method"), &http.method);
        let headers = self.headers(key, http);
        let (body, content_type) = self.body(&format!("{key}.body"), http.body.as_ref());
        let extractions = http.extract.iter().enumerate().filter_map(|(n, extract)| {
            let extraction = self.checked(&format!("{key}.extract[{n}]"), Extraction::new(extract))?;
            Some((self.variable(&extract.into), extraction))
        });
        let extractions: Vec<_> = extractions.collect();
        let tests: Vec<_> = http
            .checks
            .iter()
            .enumerate()
            .filter_map(|(n, check)| {
                let test = self.checked(&format!("{key}.checks[{n}]"), Test::new(check))?;
                Some((test.to_string().into_boxed_str(), test))
            })
            .collect();
        let (place, target) = split?;
        let target = self.template(&format!("{key}.url"), &target);
        let mut request = Request {
            label: self.label(&http.name, LabelSort::Http),
            place: self.place(place),
            method: method?.into(),
            target,
            headers,
            body,
            content_type,
            fixed: None,
            closes: self.closes,
            timeout_ns: http.timeout_ns,
            redirects: http.redirects,
            status_tested: http.checks.iter().any(|check| matches!(check, Check::Status { .. })),
            wants_head: extractions.iter().any(|(_, e)| e.wants_head()) || tests.iter().any(|(_, t)| t.wants_head()),
            wants_body: extractions.iter().any(|(_, e)| e.wants_body()) || tests.iter().any(|(_, t)| t.wants_body()),
            extractions,
            tests,
        };
        request.fixed = request.fix(&self.places[usize::from(request.place)]);
        Some(request)
    }

    fn method(&mut self, key: &str, method: &str) -> Option<String> {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if method.is_empty() || !method.bytes().all(token) || method == "CONNECT" {
            self.problem(key, format!("{method:?} is not a supported method; write for example GET"));
            return None;
        }
        Some(method.into())
    }

    fn headers(&mut self, key: &str, http: &Http) -> Vec<(Box<str>, Template)> {
        const OURS: [&str; 4] = ["content-length", "transfer-encoding", "connection", "expect"];
        let mut headers = Vec::new();
        for (number, header) in http.headers.iter().enumerate() {
            let key = format!("{key}.headers[{number}]");
            let odd = |byte: u8| byte <= b' ' || byte >= 0x7f || byte == b':';
            if header.name.is_empty() || header.name.bytes().any(odd) {
                self.problem(&key, format!("{:?} is not a header name; write for example Accept", header.name));
            }
            if OURS.iter().any(|ours| header.name.eq_ignore_ascii_case(ours)) {
                self.problem(&key, format!("{} is set from the body and connections.keep_alive; leave it out", header.name));
            }
            if header.value.contains(['\r', '\n', '\0']) {
                self.problem(&key, format!("the value of {} contains a line break or a zero byte; remove it", header.name));
            }
            headers.push((header.name.as_str().into(), self.template(&key, &header.value)));
        }
        headers
    }

    fn body(&mut self, key: &str, body: Option<&Body>) -> (Payload, Option<Box<str>>) {
        match body {
            None => (Payload::None, None),
            Some(Body::Text(text)) => (Payload::Pieces(vec![PayloadPiece::Text(self.template(key, text))]), None),
            Some(Body::Json(text)) => (Payload::Pieces(vec![PayloadPiece::Encoded(self.template(key, text), json_escape)]), None),
            Some(Body::Base64(text)) => (Payload::Bytes(self.base64(key, text)), None),
            Some(Body::File(path)) => (Payload::Bytes(self.file(key, path)), None),
            Some(Body::Form(fields)) => {
                let mut pieces = Vec::new();
                for (number, field) in fields.iter().enumerate() {
                    let mut name = if number > 0 { b"&".to_vec() } else { Vec::new() };
                    form_encode(field.name.as_bytes(), &mut name);
                    name.push(b'=');
                    pieces.push(PayloadPiece::Bytes(name.into()));
                    let template = self.template(key, &field.value);
                    // The constant part is already encoded, as values will be.
                    match template.fixed() {
                        Some(text) => {
                            let mut bytes = Vec::new();
                            form_encode(text.as_bytes(), &mut bytes);
                            pieces.push(PayloadPiece::Bytes(bytes.into()));
                        }
                        None => pieces.push(PayloadPiece::Encoded(template, form_encode)),
                    }
                }
                (Payload::Pieces(pieces), Some("application/x-www-form-urlencoded".into()))
            }
            Some(Body::Multipart(parts)) => self.multipart(key, parts),
        }
    }

    fn multipart(&mut self, key: &str, parts: &[FormPart]) -> (Payload, Option<Box<str>>) {
        // Long enough not to occur in content by chance, and constant, so that every run sends the same bytes.
        const BOUNDARY: &str = "----partywall7d1b0c5e42a94f3b8e6f";
        let mut pieces = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            let key = format!("{key}.multipart[{number}]");
            let mut head = format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{}\"", quoted(&part.name));
            let file_name = match &part.content {
                PartContent::Text(_) => None,
                PartContent::File(path) => Some(path.file_name().unwrap_or_default().to_string_lossy()),
                PartContent::Content { file_name, .. } => Some(file_name.into()),
            };
            if let Some(name) = file_name {
                head = format!("{head}; filename=\"{}\"", quoted(&name));
            }
            if let Some(content_type) = &part.content_type {
                head = format!("{head}\r\nContent-Type: {content_type}");
            }
            head.push_str("\r\n\r\n");
            pieces.push(PayloadPiece::Bytes(head.into_bytes().into()));
            pieces.push(match &part.content {
                PartContent::Text(text) => PayloadPiece::Text(self.template(&key, text)),
                PartContent::File(path) => PayloadPiece::Bytes(self.file(&key, path)),
                PartContent::Content { base64, .. } => PayloadPiece::Bytes(self.base64(&key, base64)),
            });
            pieces.push(PayloadPiece::Bytes(b"\r\n".as_slice().into()));
        }
        pieces.push(PayloadPiece::Bytes(format!("--{BOUNDARY}--\r\n").into_bytes().into()));
        (Payload::Pieces(pieces), Some(format!("multipart/form-data; boundary={BOUNDARY}").into()))
    }

    fn base64(&mut self, key: &str, text: &str) -> Arc<[u8]> {
        let bytes = self.checked(key, base64::engine::general_purpose::STANDARD.decode(text.as_bytes()));
        bytes.unwrap_or_default().into()
    }

    fn file(&mut self, key: &str, path: &Path) -> Arc<[u8]> {
        if let Some(content) = self.files.get(path) {
            return content.clone();
        }
        let read = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
        let content: Arc<[u8]> = self.checked(key, read).unwrap_or_default().into();
        self.files.insert(path.into(), content.clone());
        content
    }

    fn place(&mut self, place: Place) -> u16 {
        let at = self.places.iter().position(|known| *known == place).unwrap_or_else(|| {
            self.places.push(place);
            self.places.len() - 1
        });
        u16::try_from(at).unwrap_or_else(|_| {
            self.problem("kinds", "there are more than 65535 servers; use fewer");
            0
        })
    }
}

/// The parts of a request that are set for each transmission.
#[derive(Default)]
pub(crate) struct Parts<'p> {
    /// A redirect changed it to a GET without a body.
    pub plain_get: bool,
    /// A redirect led to another origin.
    pub elsewhere: bool,
    pub target: &'p [u8],
    pub body: &'p [u8],
    pub cookies: &'p [u8],
}

impl Parts<'_> {
    /// Whether a header of the request goes along with its redirects: those of a body end with it, and those of an origin stay there
    /// (the Fetch standard's HTTP-redirect fetch; RFC 9110, section 15.4).
    fn has(&self, name: &str) -> bool {
        const OF_A_BODY: [&str; 6] =
            ["content-encoding", "content-language", "content-location", "content-type", "digest", "last-modified"];
        const OF_AN_ORIGIN: [&str; 4] = ["authorization", "cookie", "host", "proxy-authorization"];
        let among = |names: &[&str]| names.iter().any(|known| name.eq_ignore_ascii_case(known));
        !(self.plain_get && among(&OF_A_BODY) || self.elsewhere && among(&OF_AN_ORIGIN))
    }
}

impl Request {
    /// The whole request, if all of it is constant.
    fn fix(&self, place: &Place) -> Option<Arc<[u8]>> {
        self.target.fixed()?;
        if !self.headers.iter().all(|(_, value)| value.fixed().is_some()) {
            return None;
        }
        let fixed = |piece: &PayloadPiece| match piece {
            PayloadPiece::Bytes(_) => true,
            PayloadPiece::Text(text) | PayloadPiece::Encoded(text, _) => text.fixed().is_some(),
        };
        if matches!(&self.body, Payload::Pieces(pieces) if !pieces.iter().all(fixed)) {
            return None;
        }
        let (mut bytes, mut target, mut body) = (Vec::new(), Vec::new(), Vec::new());
        let none = |_: u16| "";
        self.target.render(none, &mut target);
        self.render_body(none, &mut body);
        self.render(place, &Parts { target: &target, body: &body, ..Parts::default() }, none, &mut bytes);
        Some(bytes.into())
    }

    /// Appends the request for HTTP/1.1.
    pub(crate) fn render<'v>(&self, place: &Place, parts: &Parts<'_>, value: impl Fn(u16) -> &'v str + Copy, into: &mut Vec<u8>) {
        let method = if parts.plain_get { "GET" } else { &*self.method };
        for part in [method.as_bytes(), b" ", parts.target, b" HTTP/1.1\r\n"] {
            into.extend_from_slice(part);
        }
        for (name, default) in self.usual_headers(place, parts) {
            header(name, default.as_bytes(), into);
        }
        for (name, template) in self.own_headers(parts) {
            into.extend_from_slice(name.as_bytes());
            into.extend_from_slice(b": ");
            template.render(value, into);
            into.extend_from_slice(b"\r\n");
        }
        if !parts.body.is_empty() || says_that_it_has_no_body(method) {
            header("Content-Length", parts.body.len().to_string().as_bytes(), into);
        }
        if !parts.cookies.is_empty() {
            header("Cookie", parts.cookies, into);
        }
        into.extend_from_slice(b"\r\n");
        into.extend_from_slice(parts.body);
    }

    /// The request for HTTP/2, without its body.
    pub(crate) fn as_http2<'v>(
        &self,
        place: &Place,
        parts: &Parts<'_>,
        value: impl Fn(u16) -> &'v str + Copy,
    ) -> Result<http::Request<()>, http::Error> {
        let mut authority = Vec::new();
        match self.own_headers(parts).find(|(own, _)| own.eq_ignore_ascii_case("host")) {
            Some((_, host)) => host.render(value, &mut authority),
            None => authority.extend_from_slice(place.authority().as_bytes()),
        }
        let uri = [place.scheme().as_bytes(), b"://", &*authority, parts.target].concat();
        let method = if parts.plain_get { "GET" } else { &*self.method };
        let mut request = http::Request::builder().version(http::Version::HTTP_2).method(method).uri(uri);
        for (name, usual) in self.usual_headers(place, parts).filter(|(name, _)| !of_a_connection(name)) {
            request = request.header(name, usual);
        }
        for (name, template) in self.own_headers(parts).filter(|(name, _)| !of_a_connection(name)) {
            let mut rendered = Vec::new();
            template.render(value, &mut rendered);
            request = request.header(&**name, rendered);
        }
        if !parts.body.is_empty() || says_that_it_has_no_body(method) {
            request = request.header("content-length", parts.body.len());
        }
        if !parts.cookies.is_empty() {
            request = request.header("cookie", parts.cookies);
        }
        request.body(())
    }

    /// The first header in which a variable's value contains a line end. Such a value could inject headers or a whole request. In the
    /// target, such bytes are encoded.
    pub(crate) fn broken_header<'v>(&self, value: impl Fn(u16) -> &'v str + Copy) -> Option<&str> {
        let ends = |template: &Template| template.any_value(value, |value| value.contains(['\r', '\n', '\0']));
        self.headers.iter().find(|(_, template)| ends(template)).map(|(name, _)| &**name)
    }

    /// The headers that the plan sets.
    fn own_headers<'p>(&'p self, parts: &'p Parts<'_>) -> impl Iterator<Item = &'p (Box<str>, Template)> {
        self.headers.iter().filter(|(name, _)| parts.has(name))
    }

    /// Default headers, unless the request sets its own.
    fn usual_headers<'p>(&'p self, place: &Place, parts: &'p Parts<'_>) -> impl Iterator<Item = (&'static str, String)> + 'p {
        let usual = [
            ("Host", Some(place.authority())),
            ("User-Agent", Some("partywall".into())),
            ("Connection", self.closes.then(|| "close".into())),
            ("Content-Type", self.content_type.as_deref().filter(|_| !parts.plain_get).map(Into::into)),
        ];
        let set = |name: &str| self.own_headers(parts).any(|(own, _)| own.eq_ignore_ascii_case(name));
        usual.into_iter().filter_map(|(name, value)| Some((name, value?))).filter(move |(name, _)| !set(name))
    }

    /// Appends the body.
    pub(crate) fn render_body<'v>(&self, value: impl Fn(u16) -> &'v str + Copy, into: &mut Vec<u8>) {
        match &self.body {
            Payload::None => {}
            Payload::Bytes(bytes) => into.extend_from_slice(bytes),
            Payload::Pieces(pieces) => pieces.iter().for_each(|piece| match piece {
                PayloadPiece::Bytes(bytes) => into.extend_from_slice(bytes),
                PayloadPiece::Text(text) => text.render(value, into),
                PayloadPiece::Encoded(text, encode) => text.render_encoded(value, *encode, into),
            }),
        }
    }
}

/// Whether a request with this method may be sent once more if its outcome is unknown (RFC 9110, section 9.2.2).
pub(crate) fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}

/// Methods that usually have a body.
fn says_that_it_has_no_body(method: &str) -> bool {
    matches!(method, "POST" | "PUT" | "PATCH")
}

/// Headers that HTTP/2 replaces or forbids (RFC 9113, sections 8.2.2 and 8.3.1).
fn of_a_connection(name: &str) -> bool {
    const NAMES: [&str; 6] = ["host", "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

fn header(name: &str, value: &[u8], into: &mut Vec<u8>) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        into.extend_from_slice(part);
    }
}

fn add<T>(list: &mut Vec<T>, item: T) -> u32 {
    list.push(item);
    list.len() as u32 - 1
}

fn extracted(steps: &[Step], names: &mut Vec<String>) {
    for step in steps {
        match step {
            Step::Http(http) => names.extend(http.extract.iter().map(|extract| extract.into.clone())),
            Step::Repeat { steps, .. } | Step::Transaction { steps, .. } => extracted(steps, names),
            Step::Choose(branches) => branches.iter().for_each(|branch| extracted(&branch.steps, names)),
            Step::Think(_) | Step::Compress(_) | Step::Feed { .. } => {}
        }
    }
}

/// Encodes a form field as browsers do.
pub(crate) fn form_encode(bytes: &[u8], into: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in bytes {
        match byte {
            b' ' => into.push(b'+'),
            b'*' | b'-' | b'.' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => into.push(byte),
            _ => into.extend_from_slice(&[b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]),
        }
    }
}

/// A value inside a JSON string (RFC 8259, section 7).
fn json_escape(bytes: &[u8], into: &mut Vec<u8>) {
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => into.extend_from_slice(&[b'\\', byte]),
            0..b' ' => into.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => into.push(byte),
        }
    }
}

fn quoted(text: &str) -> String {
    text.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A")
}
