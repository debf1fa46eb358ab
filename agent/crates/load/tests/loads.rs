//! Whole loads against small servers with scripted responses.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use partywall_clock::{self as clock, SessionClock};
use partywall_load::{Load, Options};
use partywall_wire::load::{LoadErrorKind, LoadProgram, LoadSecond, LoadStarted};
use serde_json::{json, Value};

const MS: u64 = 1_000_000;

/// Response of a scripted server to a request: bytes to send, and whether it closes the connection afterwards.
type Script = fn(&str, &str) -> (String, bool);

/// Serves on its own port for the duration of the test. Keeps the requests' first lines, cookies and bodies, and their heads.
struct Server {
    port: u16,
    heard: Log,
    heads: Log,
}

type Log = Arc<Mutex<Vec<String>>>;

impl Server {
    fn start(script: Script) -> Self {
        Self::start_with(script, usize::MAX)
    }

    /// A server that closes a connection when one more request than this arrives over it, without a response.
    fn start_with(script: Script, requests_most: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, heard, heads) = (listener.local_addr().unwrap().port(), Log::default(), Log::default());
        let kept = (heard.clone(), heads.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let kept = kept.clone();
                thread::spawn(move || drop(serve(&stream, script, requests_most, &kept.0, &kept.1)));
            }
        });
        Self { port, heard, heads }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }

    /// The heads of requests for a path, in lower case.
    fn heads(&self, path: &str) -> Vec<String> {
        let heads = self.heads.lock().unwrap();
        heads.iter().filter(|head| head.split(' ').nth(1) == Some(path)).map(|head| head.to_ascii_lowercase()).collect()
    }
}

fn serve(mut stream: &TcpStream, script: Script, requests_most: usize, log: &Log, heads: &Log) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    for number in 0.. {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line == "\r\n" {
                break;
            }
            if let Some(digits) = line.strip_prefix("Content-Length: ") {
                length = digits.trim().parse().unwrap();
            }
            head += &line;
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let body = String::from_utf8_lossy(&body).into_owned();
        let first = head.lines().next().unwrap_or_default().to_string();
        let cookie = head.lines().find(|line| line.starts_with("Cookie:")).unwrap_or_default();
        log.lock().unwrap().push(format!("{first}|{cookie}|{body}"));
        heads.lock().unwrap().push(head.clone());
        if number == requests_most {
            return stream.shutdown(std::net::Shutdown::Both);
        }
        let (answer, closes) = script(first.split(' ').nth(1).unwrap_or_default(), &body);
        stream.write_all(answer.as_bytes())?;
        if closes {
            return stream.shutdown(std::net::Shutdown::Both);
        }
    }
    Ok(())
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn get(name: &str, url: &str) -> Value {
    json!({"http": {"name": name, "method": "GET", "url": url}})
}

/// One user that repeats `actions` for a while.
fn program(actions: &Value) -> Value {
    json!({
        "kinds": [{"name": "user", "actions": actions}],
        "pacing": {"closed": {"stages": [{"to": 1, "for_ns": 0}, {"to": 1, "for_ns": 500 * MS}], "every_ns": 20 * MS}},
        "grace_ns": 1000 * MS,
    })
}

fn options() -> Options {
    Options { threads: 1, slice_ns: 10 * MS, work_dir: std::env::temp_dir(), seed: 1 }
}

/// Runs a program to its end.
fn run(program: Value) -> (Vec<LoadSecond>, LoadStarted) {
    let program: LoadProgram = serde_json::from_value(program).unwrap();
    let (mut load, started) = Load::prepare(program, &options(), &SessionClock::default()).unwrap();
    load.switch(clock::monotonic(), 1.0).unwrap();
    (ended(&mut load), started)
}

/// The records of a load that began, when it has ended.
fn ended(load: &mut Load) -> Vec<LoadSecond> {
    let deadline = clock::monotonic() + 20_000 * MS;
    while load.ended().is_none() {
        assert!(clock::monotonic() < deadline, "the load never ended");
        clock::sleep_until(clock::monotonic() + MS);
    }
    load.take()
}

fn errors(seconds: &[LoadSecond]) -> BTreeMap<(LoadErrorKind, String), u64> {
    let mut counts = BTreeMap::new();
    for error in seconds.iter().flat_map(|second| &second.errors) {
        *counts.entry((error.kind, error.detail.clone())).or_default() += error.count;
    }
    counts
}

fn done(seconds: &[LoadSecond], label: u32) -> (u64, u64) {
    let timings = seconds.iter().flat_map(|second| &second.timings).filter(|timing| timing.label == label);
    timings.fold((0, 0), |(done, failed), timing| (done + timing.done, failed + timing.failed))
}

#[test]
fn every_request_of_a_good_load_is_counted_once_with_its_times() {
    let server = Server::start(|_, _| (ok("hello"), false));
    let (seconds, started) = run(program(&json!([get("home", &server.url("/"))])));
    let (good, failed) = done(&seconds, 0);
    assert_eq!((good, failed, errors(&seconds).len()), (server.heard().len() as u64, 0, 0));
    assert!(good > 1);
    for second in &seconds {
        for timing in &second.timings {
            let counts = [&timing.corrected, &timing.raw, &timing.first_byte, &timing.body].map(partywall_record::Histogram::count);
            assert_eq!(counts, [timing.done; 4]);
        }
    }
    assert_eq!(seconds.iter().map(|second| second.requests).sum::<u64>(), good);
    assert_eq!(seconds.iter().map(|second| second.connections_opened).sum::<u64>(), 1);
    assert_eq!(seconds.iter().map(|second| second.connect.count()).sum::<u64>(), 1);
    assert_eq!((started.labels[0].name.as_str(), started.origins[0].protocol.as_str()), ("home", "HTTP/1.1"));
    assert_eq!(seconds.last().unwrap().users, 0);
}

#[test]
fn errors_are_counted_by_kind() {
    use LoadErrorKind as Kind;
    let server = Server::start(|path, _| match path {
        "/short" => ("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort".into(), true),
        "/long" => ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more".into(), false),
        "/garbage" => ("220 mail ESMTP\r\n".into(), true),
        "/closed" => (String::new(), true),
        "/missing" => ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".into(), false),
        "/silent" => (String::new(), false),
        _ => (ok("hello"), false),
    });
    for (path, kind, detail) in [
        ("/short", Kind::Truncated, ""),
        ("/long", Kind::ExcessBytes, ""),
        ("/garbage", Kind::BadResponse, "the response does not begin with an HTTP/1 status line"),
        ("/closed", Kind::Closed, ""),
        ("/missing", Kind::Status, "404"),
        ("/silent", Kind::Timeout, ""),
    ] {
        let timeout_ns = if kind == Kind::Timeout { 50 * MS } else { 900 * MS };
        let step = json!({"http": {"name": "one", "method": "GET", "url": server.url(path), "timeout_ns": timeout_ns}});
        let (seconds, _) = run(program(&json!([step])));
        let (good, failed) = done(&seconds, 0);
        let counts = errors(&seconds);
        assert_eq!(counts.keys().cloned().collect::<Vec<_>>(), [(kind, detail.to_string())], "{path}");
        assert!(good == 0 && failed > 1 && counts.values().sum::<u64>() == failed, "{path}: {good} good, {failed} failed");
    }
}

#[test]
fn a_script_with_all_kinds_of_steps_carries_them_out() {
    let server = Server::start(|path, body| match path {
        "/login" => ("HTTP/1.1 200 OK\r\nSet-Cookie: session=s1; Path=/\r\nContent-Length: 21\r\n\r\n<input value='tok&1'>".into(), false),
        "/old" => ("HTTP/1.1 302 Found\r\nLocation: /new?x=1\r\nContent-Length: 0\r\n\r\n".into(), false),
        "/chunks" => {
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n".into(), false)
        }
        _ => (ok(&format!("got {body}")), false),
    });
    let login = json!({"http": {"name": "login", "method": "GET", "url": server.url("/login"),
        "extract": [{"into": "token", "from": {"css": {"selector": "input", "attribute": "value"}}}]}});
    let buy = json!({"http": {"name": "buy", "method": "POST", "url": server.url("/buy/${item}?u=${user}"),
        "body": {"form": [{"name": "t", "value": "${token}"}]}, "checks": [{"contains": "got t=tok%261"}, {"status": {"from": 200, "to": 200}}]}});
    let old = json!({"http": {"name": "old", "method": "POST", "url": server.url("/old"), "body": {"text": "x"}, "redirects": 3}});
    let actions = json!([
        {"feed": {"feeder": "items"}},
        {"transaction": {"name": "shop", "steps": [{"repeat": {"times": 2, "steps": [buy]}}, {"think": {"constant_ns": 2 * MS}}, old]}},
        {"choose": [{"weight": 1, "steps": [get("chunks", &server.url("/chunks"))]}, {"weight": 0, "steps": [get("never", &server.url("/never"))]}]},
    ]);
    let mut whole = program(&actions);
    whole["kinds"][0]["init"] = json!([login]);
    whole["kinds"][0]["end"] = json!([get("bye", &server.url("/bye"))]);
    whole["feeders"] = json!({"items": {"rows": {"inline": {"columns": ["item"], "rows": [["a b"], ["c"]]}}}});
    let (seconds, started) = run(whole);
    assert_eq!(errors(&seconds), BTreeMap::new());
    let heard = server.heard();
    let expected = [
        "GET /login HTTP/1.1||",
        "POST /buy/a%20b?u=0 HTTP/1.1|Cookie: session=s1|t=tok%261",
        "POST /buy/a%20b?u=0 HTTP/1.1|Cookie: session=s1|t=tok%261",
        "POST /old HTTP/1.1|Cookie: session=s1|x",
        "GET /new?x=1 HTTP/1.1|Cookie: session=s1|",
        "GET /chunks HTTP/1.1|Cookie: session=s1|",
        "POST /buy/c?u=0 HTTP/1.1|Cookie: session=s1|t=tok%261",
    ];
    assert_eq!(heard[..expected.len()], expected);
    assert_eq!(heard.last().map(String::as_str), Some("GET /bye HTTP/1.1|Cookie: session=s1|"));
    let number = |name: &str| started.labels.iter().position(|label| label.name == name).unwrap() as u32;
    assert!(done(&seconds, number("shop")).0 >= 2);
    assert_eq!((done(&seconds, number("login")), done(&seconds, number("never"))), ((1, 0), (0, 0)));
}

#[test]
fn failed_checks_and_missing_values_are_named() {
    let server = Server::start(|_, _| (ok("hello"), false));
    let step = json!({"http": {"name": "one", "method": "GET", "url": server.url("/"), "checks": [{"contains": "welcome"}],
        "extract": [{"into": "id", "from": {"regex": "id=(.)"}}]}});
    let (seconds, _) = run(program(&json!([step, get("after", &server.url("/after"))])));
    let kinds: Vec<_> = errors(&seconds).into_keys().collect();
    assert_eq!(kinds, [(LoadErrorKind::Check, "body contains \"welcome\"".into()), (LoadErrorKind::Extract, "id".into())]);
    assert!(server.heard().iter().all(|line| line.starts_with("GET / ")), "the rest of an iteration without its value was done");
}

#[test]
fn arrivals_without_a_free_user_wait_and_count_from_their_due_time() {
    let server = Server::start(|_, _| {
        clock::sleep_until(clock::monotonic() + 40 * MS);
        (ok(""), false)
    });
    let mut whole = program(&json!([get("one", &server.url("/"))]));
    whole["pacing"] =
        json!({"open": {"arrivals": "constant", "stages": [{"to": 50, "for_ns": 0}, {"to": 50, "for_ns": 400 * MS}], "users_max": 1}});
    let (seconds, _) = run(whole);
    // Numbers and sums of response times: the least and the most that the buckets allow.
    let sums = |pick: fn(&partywall_wire::load::Timing) -> &partywall_record::Histogram| {
        let buckets = seconds.iter().flat_map(|second| &second.timings).flat_map(|timing| &pick(timing).0);
        buckets.fold((0_u64, 0, 0), |(number, least, most), &(bucket, count)| {
            let ((low, high), count) = (partywall_record::bucket_bounds(bucket), u64::from(count));
            (number + count, least + low * count, most + high * count)
        })
    };
    let ((_, _, corrected), (answered, raw, _)) = (sums(|timing| &timing.corrected), sums(|timing| &timing.raw));
    assert!(answered >= 2 && raw >= answered * 40 * MS * 63 / 64, "{answered} answered, raw {raw}");
    // However slow the host is: one is due every 20 ms, and each takes 40 ms or longer, so each waits 20 ms more than the last.
    let waited = 20 * MS * answered * (answered - 1) / 2;
    assert!(corrected >= raw + waited, "{answered} answered, corrected {corrected}, raw {raw}");
    assert!(errors(&seconds).contains_key(&(LoadErrorKind::NotServed, String::new())));
}

fn kind(name: &str, weight: f64, url: &str) -> Value {
    json!({"name": name, "weight": weight, "init": [get(&format!("hello {name}"), url)], "actions": [get(name, url)], "end": [get(&format!("bye {name}"), url)]})
}

fn label(started: &LoadStarted, name: &str) -> u32 {
    started.labels.iter().position(|label| label.name == name).unwrap() as u32
}

#[test]
fn arrivals_have_kinds_by_weight_however_few_users_serve_them() {
    let server = Server::start(|_, _| (ok(""), false));
    let url = server.url("/");
    for users_max in [1, 50] {
        let mut whole = program(&json!([]));
        whole["kinds"] = json!([kind("visitor", 3.0, &url), kind("buyer", 1.0, &url)]);
        whole["pacing"] = json!({"open": {"arrivals": "constant", "stages": [{"to": 50, "for_ns": 0}, {"to": 50, "for_ns": 2_000 * MS}], "users_max": users_max}});
        let (seconds, started) = run(whole);
        let of = |name: &str| done(&seconds, label(&started, name)).0;
        let (visitors, buyers) = (of("visitor"), of("buyer"));
        assert!(visitors + buyers > 90 && visitors.abs_diff(3 * buyers) <= 8, "{visitors} visitors, {buyers} buyers, {users_max} users");
        // A user that changes its kind has left, and arrives again.
        assert_eq!((of("hello visitor"), of("hello buyer")), (of("bye visitor"), of("bye buyer")));
        assert_eq!(seconds.last().unwrap().users, 0);
    }
}

#[test]
fn end_steps_are_timed_from_the_end_of_the_load_whatever_their_user_waited_for() {
    let server = Server::start(|_, _| {
        clock::sleep_until(clock::monotonic() + 5 * MS);
        (ok(""), false)
    });
    let thinks = json!([get("in", &server.url("/")), {"think": {"constant_ns": 60_000 * MS}}]);
    let mut closed = program(&thinks);
    closed["kinds"][0]["end"] = json!([get("out", &server.url("/out"))]);
    let mut open = program(&json!([get("in", &server.url("/"))]));
    open["kinds"][0]["end"] = json!([get("out", &server.url("/out"))]);
    // One arrival, and then none for a third of a second.
    open["pacing"] = json!({"open": {"arrivals": "constant", "stages": [{"to": 20, "for_ns": 0}, {"to": 20, "for_ns": 60 * MS}, {"to": 0, "for_ns": 0}, {"to": 0, "for_ns": 300 * MS}], "users_max": 1}});
    for whole in [closed, open] {
        let (seconds, started) = run(whole);
        let out = label(&started, "out");
        let timing = seconds.iter().flat_map(|second| &second.timings).find(|timing| timing.label == out && timing.done > 0).unwrap();
        let corrected = partywall_record::bucket_bounds(timing.corrected.0[0].0);
        assert!(corrected.1 >= 5 * MS && corrected.0 < 150 * MS, "{corrected:?}");
    }
}

#[test]
fn a_users_own_numbers_exist_without_other_variables() {
    let server = Server::start(|_, _| (ok(""), false));
    run(program(&json!([get("item", &server.url("/item/${user}/${iteration}"))])));
    let heard = server.heard();
    assert!(heard[0].starts_with("GET /item/0/0 ") && heard[1].starts_with("GET /item/0/1 "), "{heard:?}");
}

/// One user whose iterations follow each other without a pause of their own, for half a second.
fn back_to_back(actions: &Value) -> Value {
    let mut whole = program(actions);
    whole["pacing"] = json!({"closed": {"stages": [{"to": 1, "for_ns": 0}, {"to": 1, "for_ns": 500 * MS}]}});
    whole
}

#[test]
fn users_wait_as_written_in_whichever_way_their_requests_fail() {
    let server = Server::start(|path, _| match path {
        "/short" => ("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort".into(), true),
        "/long" => ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more".into(), false),
        "/garbage" => ("220 mail ESMTP\r\n".into(), true),
        "/closed" => (String::new(), true),
        "/missing" => ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".into(), false),
        "/silent" => (String::new(), false),
        "/elsewhere" => ("HTTP/1.1 302 Found\r\nLocation: http://other.test/\r\nContent-Length: 0\r\n\r\n".into(), false),
        _ => (ok("hello"), false),
    });
    let paths = ["/short", "/long", "/garbage", "/closed", "/missing", "/silent", "/elsewhere", "/no-value"];
    for (path, first) in paths.map(|path| (path, false)).into_iter().chain([("/closed", true), ("/no-value", true)]) {
        let extract = if path == "/no-value" { json!([{"into": "id", "from": {"regex": "id=(.)"}}]) } else { json!([]) };
        let step = json!({"http": {"name": "one", "method": "GET", "url": server.url(path), "timeout_ns": 20 * MS, "redirects": 1, "extract": extract}});
        let steps = json!([step, get("next", &server.url("/next")), {"think": {"constant_ns": 100 * MS}}]);
        let mut whole = back_to_back(&if first { json!([get("never", &server.url("/never"))]) } else { steps.clone() });
        if first {
            whole["kinds"][0]["init"] = steps;
        }
        let (seconds, started) = run(whole);
        let (good, failed) = done(&seconds, label(&started, "one"));
        assert!((2..=7).contains(&(good + failed)), "{path}: {good} + {failed} requests in 500 ms with pauses of 100 ms, first={first}");
    }
    assert!(!server.heard().iter().any(|line| line.starts_with("GET /never ")));
}

#[test]
fn users_wait_as_written_while_nobody_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let whole = back_to_back(&json!([get("one", &url), {"think": {"constant_ns": 150 * MS}}]));
    let (mut load, _) = Load::prepare(serde_json::from_value(whole).unwrap(), &options(), &SessionClock::default()).unwrap();
    drop(listener);
    load.switch(clock::monotonic(), 1.0).unwrap();
    let seconds = ended(&mut load);
    let refused = errors(&seconds)[&(LoadErrorKind::ConnectionRefused, String::new())];
    assert!((2..=4).contains(&refused), "{refused}");
}

#[test]
fn a_request_goes_to_the_next_address_of_its_server_if_one_does_not_answer() {
    let server = Server::start(|_, _| (ok(""), false));
    let gone = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut whole = program(&json!([get("one", "http://shop.test/")]));
    whole["connections"] = json!({"keep_alive": false});
    whole["addresses"] = json!({"shop.test:80": [gone.local_addr().unwrap().to_string(), format!("127.0.0.1:{}", server.port)]});
    let (mut load, _) = Load::prepare(serde_json::from_value(whole).unwrap(), &options(), &SessionClock::default()).unwrap();
    drop(gone);
    load.switch(clock::monotonic(), 1.0).unwrap();
    let seconds = ended(&mut load);
    let (good, failed) = done(&seconds, 0);
    assert_eq!((failed, errors(&seconds)), (0, BTreeMap::new()));
    assert_eq!(seconds.iter().map(|second| second.rerouted).sum::<u64>(), good);
    assert!(good > 1);
}

#[test]
fn a_request_into_a_connection_that_was_closed_is_sent_once_more_if_that_does_no_harm() {
    for (method, harmless) in [("GET", true), ("PUT", true), ("DELETE", true), ("POST", false), ("PATCH", false)] {
        let server = Server::start_with(|_, _| (ok(""), false), 1);
        let step = json!({"http": {"name": "one", "method": method, "url": server.url("/")}});
        let (seconds, _) = run(program(&json!([step])));
        let (good, failed) = done(&seconds, 0);
        let resent = seconds.iter().map(|second| second.resent).sum::<u64>();
        let closed =
            errors(&seconds).into_iter().filter(|((kind, _), _)| *kind == LoadErrorKind::Closed).map(|(_, count)| count).sum::<u64>();
        assert!(good > 2, "{method}");
        assert_eq!((failed, closed, resent), if harmless { (0, 0, good - 1) } else { (closed, failed, 0) }, "{method}");
        assert_eq!(failed == 0, harmless, "{method}");
        assert_eq!(seconds.iter().map(|second| second.requests).sum::<u64>(), server.heard().len() as u64);
    }
}

#[test]
fn a_request_that_is_never_answered_is_sent_no_more_than_twice() {
    let server = Server::start(|path, _| if path == "/" { (ok(""), false) } else { (String::new(), true) });
    let (seconds, started) = run(program(&json!([get("one", &server.url("/")), get("two", &server.url("/closes"))])));
    let (good, failed) = done(&seconds, label(&started, "two"));
    assert!(good == 0 && failed > 1);
    assert_eq!(server.heard().iter().filter(|line| line.starts_with("GET /closes ")).count() as u64, 2 * failed);
}

#[test]
fn an_empty_line_after_a_body_is_no_part_of_a_response() {
    let server = Server::start(|path, _| match path {
        "/after" => (ok("hello") + "\r\n", false),
        "/before" => ("\r\n\r\n".to_owned() + &ok("hello"), false),
        _ => (ok("hello") + "\r\nx", false),
    });
    let step = |path: &str| json!({"http": {"name": path, "method": "GET", "url": server.url(path), "checks": [{"contains": "hello"}]}});
    let (seconds, _) = run(program(&json!([step("/after"), step("/before"), step("/after")])));
    assert_eq!((errors(&seconds), seconds.iter().map(|second| second.connections_opened).sum::<u64>()), (BTreeMap::new(), 1));
    let (seconds, _) = run(program(&json!([step("/more")])));
    assert_eq!(errors(&seconds).into_keys().map(|(kind, _)| kind).collect::<Vec<_>>(), [LoadErrorKind::ExcessBytes]);
}

#[test]
fn headers_of_a_body_or_an_origin_stay_with_it_when_a_request_is_redirected() {
    let script: Script = |path, _| match path.strip_prefix("/to/") {
        Some(rest) => {
            let (status, url) = rest.split_once('/').unwrap();
            (format!("HTTP/1.1 {status} Moved\r\nLocation: http://{url}\r\nContent-Length: 0\r\n\r\n"), false)
        }
        None => (ok(""), false),
    };
    let (first, second) = (Server::start(script), Server::start(script));
    let place = |server: &Server| format!("127.0.0.1:{}", server.port);
    let headers = json!([{"name": "Authorization", "value": "Bearer a"}, {"name": "cookie", "value": "a=1"}, {"name": "Host", "value": "virtual.test"},
        {"name": "Content-Language", "value": "en"}, {"name": "X-Mine", "value": "stays"}]);
    for (number, (method, status, to)) in [
        ("POST", 302, &first),
        ("POST", 307, &first),
        ("POST", 301, &second),
        ("PUT", 308, &second),
        ("PUT", 302, &second),
        ("PUT", 303, &first),
    ]
    .into_iter()
    .enumerate()
    {
        let target = format!("/end{number}");
        let url = first.url(&format!("/to/{status}/{}{target}", place(to)));
        let step = json!({"http": {"name": "one", "method": method, "url": url, "redirects": 2, "headers": headers, "body": {"form": [{"name": "a", "value": "b"}]}}});
        let (seconds, _) = run(program(&json!([step, get("known", &second.url("/known"))])));
        assert_eq!(errors(&seconds), BTreeMap::new());
        let head = to.heads(&target).swap_remove(0);
        let elsewhere = to.port == second.port;
        let becomes_get = status == 303 || method == "POST" && status < 307;
        let case = format!("{method} {status} elsewhere={elsewhere}: {head}");
        assert_eq!(head.starts_with("get "), becomes_get, "{case}");
        for name in ["content-type", "content-language", "content-length"] {
            assert_eq!(head.contains(name), !becomes_get, "{name} of {case}");
        }
        for name in ["authorization", "cookie: a=1", "host: virtual.test"] {
            assert_eq!(head.contains(name), !elsewhere, "{name} of {case}");
        }
        assert!(head.contains("x-mine: stays") && head.matches("host:").count() == 1, "{case}");
    }
    // What stayed behind does not come back.
    let back = format!("/to/307/{}/to/307/{}/back", place(&second), place(&first));
    let step = json!({"http": {"name": "one", "method": "GET", "url": first.url(&back), "redirects": 2, "headers": headers}});
    run(program(&json!([step, get("known", &second.url("/known"))])));
    assert!(!first.heads("/back").swap_remove(0).contains("authorization"));
}

#[test]
fn a_short_timeout_applies_after_a_long_one() {
    let server = Server::start(|path, _| (if path == "/silent" { String::new() } else { ok("") }, false));
    let step =
        |path: &str, timeout_ns: u64| json!({"http": {"name": path, "method": "GET", "url": server.url(path), "timeout_ns": timeout_ns}});
    let (seconds, started) = run(program(&json!([step("/", 60_000 * MS), step("/silent", 30 * MS)])));
    let silent = started.labels.iter().position(|label| label.name == "/silent").unwrap() as u32;
    let (_, failed) = done(&seconds, silent);
    // Far below the first timeout of a minute, within which this load would end.
    assert!(failed > 1 && errors(&seconds)[&(LoadErrorKind::Timeout, String::new())] == failed, "{:?}", errors(&seconds));
}

#[test]
fn a_record_is_cut_where_the_stages_end() {
    let server = Server::start(|_, _| {
        clock::sleep_until(clock::monotonic() + 120 * MS);
        (ok(""), false)
    });
    let mut whole = program(&json!([get("one", &server.url("/"))]));
    whole["pacing"] = json!({"closed": {"stages": [{"to": 1, "for_ns": 0}, {"to": 1, "for_ns": 100 * MS}]}});
    let program: LoadProgram = serde_json::from_value(whole).unwrap();
    let (mut load, started) = Load::prepare(program, &options(), &SessionClock::default()).unwrap();
    let begin_ns = clock::monotonic();
    load.switch(begin_ns, 1.0).unwrap();
    let (seconds, end_ns) = (ended(&mut load), begin_ns + started.stages_ns);
    assert!(seconds.iter().any(|second| second.end_ns == end_ns) && seconds.iter().any(|second| second.start_ns == end_ns));
    let (within, after): (Vec<_>, Vec<_>) = seconds.into_iter().partition(|second| second.end_ns <= end_ns);
    assert_eq!((done(&within, 0), done(&after, 0)), ((0, 0), (1, 0)));
}

#[test]
fn arrivals_match_the_rate_and_each_is_answered_or_reported() {
    let server = Server::start(|_, _| (ok(""), false));
    let mut whole = program(&json!([get("one", &server.url("/"))]));
    let stages = json!([{"to": 100, "for_ns": 0}, {"to": 100, "for_ns": 300 * MS}]);
    whole["pacing"] = json!({"open": {"arrivals": "constant", "stages": stages, "users_max": 50}});
    let (seconds, _) = run(whole);
    assert_eq!(done(&seconds, 0).0 + errors(&seconds).values().sum::<u64>(), 30);
}

#[test]
fn values_cannot_inject_headers_or_requests() {
    let server = Server::start(|_, _| (ok(""), false));
    let step = json!({"http": {"name": "one", "method": "GET", "url": server.url("/a?${value}"), "headers": [{"name": "X-Value", "value": "is ${value}"}]}});
    for (value, sent) in [("good", true), ("a\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x", false), ("a\nb", false), ("a\0b", false)] {
        let mut whole = program(&json!([step]));
        whole["kinds"][0]["variables"] = json!({"value": value});
        let before = server.heard().len();
        let (seconds, _) = run(whole);
        let heard = server.heard().split_off(before);
        assert!(heard.iter().all(|line| line.starts_with("GET /a?good ")), "{heard:?}");
        assert_eq!((heard.is_empty(), errors(&seconds).is_empty()), (!sent, sent), "{value:?}");
        let bad = errors(&seconds).into_keys().all(|error| error == (LoadErrorKind::BadHeader, "X-Value".into()));
        assert!(bad && done(&seconds, 0).1 == errors(&seconds).values().sum::<u64>(), "{:?}", errors(&seconds));
    }
}

#[test]
fn values_stay_values_in_json_and_inline_files_keep_their_names() {
    let server = Server::start(|_, _| (ok(""), false));
    let body = |body: Value| json!({"http": {"name": "one", "method": "POST", "url": server.url("/"), "body": body}});
    let value = "say \"hi\"\\\n\u{1}é";
    let content = json!({"file_name": "up \"1\".txt", "base64": "aGVsbG8="});
    let mut whole = program(&json!([
        body(json!({"json": "{\"m\": \"<${q}>\"}"})),
        body(json!({"multipart": [{"name": "f", "content": {"content": content}}]}))
    ]));
    whole["kinds"][0]["variables"] = json!({"q": value});
    let (seconds, _) = run(whole);
    assert_eq!(errors(&seconds), BTreeMap::new());
    let heard = server.heard();
    let sent: Value = serde_json::from_str(heard[0].rsplit('|').next().unwrap()).unwrap();
    assert_eq!(sent, json!({"m": format!("<{value}>")}));
    assert!(heard[1].contains("filename=\"up %221%22.txt\"\r\n\r\nhello\r\n--"), "{}", heard[1]);
}

#[test]
fn generators_that_share_a_load_have_separate_users_and_rows() {
    let server = Server::start(|_, _| (ok(""), false));
    for number in 0..2 {
        let mut whole = program(&json!([{"feed": {"feeder": "rows"}}, get("one", &server.url("/${row}/${user}"))]));
        whole["pacing"] = json!({"closed": {"stages": [{"to": 3, "for_ns": 0}, {"to": 3, "for_ns": 50 * MS}], "every_ns": 1000 * MS}});
        whole["feeders"] = json!({"rows": {"rows": {"inline": {"columns": ["row"], "rows": [["a"], ["b"], ["c"], ["d"]]}}}});
        whole["share"] = json!({"number": number, "of": 2});
        run(whole);
    }
    let mut heard: Vec<_> = server.heard().iter().map(|line| line.split(' ').nth(1).unwrap().to_string()).collect();
    heard.sort();
    assert_eq!(heard, ["/a/0", "/b/1", "/c/2"]);
}

#[test]
fn connections_without_keep_alive_are_opened_for_every_request() {
    let server = Server::start(|_, _| ("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end".into(), true));
    let mut whole = program(&json!([get("one", &server.url("/"))]));
    whole["connections"] = json!({"keep_alive": false});
    let (seconds, _) = run(whole);
    let opened: u64 = seconds.iter().map(|second| second.connections_opened).sum();
    assert_eq!((opened, errors(&seconds).len()), (done(&seconds, 0).0, 0));
    assert!(opened > 2);
}

#[test]
fn a_load_pauses_while_it_is_switched_off() {
    let server = Server::start(|_, _| (ok(""), false));
    let mut whole = program(&json!([get("one", &server.url("/")), {"think": {"constant_ns": MS}}]));
    whole["pacing"] = json!({"closed": {"stages": [{"to": 4, "for_ns": 0}, {"to": 4, "for_ns": 10_000 * MS}]}});
    let (load, _) = Load::prepare(serde_json::from_value(whole).unwrap(), &options(), &SessionClock::default()).unwrap();
    let start = clock::monotonic();
    load.switch(start, 1.0).unwrap();
    while server.heard().len() <= 4 {
        assert!(clock::monotonic() < start + 5_000 * MS, "it did not begin");
        clock::sleep_until(clock::monotonic() + MS);
    }
    let off = clock::monotonic() + 50 * MS;
    load.switch(off, 0.0).unwrap();
    assert!(load.switch(start, 1.0).is_err() && load.switch(off + 10 * MS, 2.0).is_err());
    let mut before = server.heard().len();
    loop {
        clock::sleep_until(clock::monotonic() + 50 * MS);
        let heard = server.heard().len();
        if clock::monotonic() > off + 50 * MS && heard == before {
            break;
        }
        assert!(clock::monotonic() < off + 5_000 * MS, "it went on though it was switched off");
        before = heard;
    }
    load.switch(clock::monotonic(), 0.5).unwrap();
    let deadline = clock::monotonic() + 5_000 * MS;
    while server.heard().len() < before + 10 {
        assert!(clock::monotonic() < deadline, "it did not go on");
        clock::sleep_until(clock::monotonic() + MS);
    }
}

#[test]
fn an_impossible_load_is_refused_before_the_start_with_all_reasons_at_once() {
    let refused = |program: Value| {
        Load::prepare(serde_json::from_value(program).unwrap(), &options(), &SessionClock::default()).err().unwrap().to_string()
    };
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let why = refused(program(&json!([get("one", &format!("http://127.0.0.1:{free}/"))])));
    assert!(why.contains("cannot be reached") && why.contains("nobody listens there"), "{why}");
    let why = refused(program(&json!([
        get("one", "ftp://a/"),
        {"http": {"name": "two", "method": "G ET", "url": "http://a/${missing}"}},
        {"feed": {"feeder": "none"}},
        {"choose": []},
    ])));
    assert_eq!(why.lines().count(), 5, "{why}");
    assert!(why.contains("kinds[0].actions[0].http.url: \"ftp://a/\""), "{why}");
    let mut many = program(&json!([get("one", "http://127.0.0.1:1/")]));
    many["pacing"] = json!({"closed": {"stages": [{"to": 9e6, "for_ns": 1}]}});
    let why = refused(many);
    assert!(why.contains("open files") || why.contains("cannot be reached"), "{why}");
}
