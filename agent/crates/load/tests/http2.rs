//! Loads over unencrypted HTTP/2, against a server with scripted streams.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex};
use std::thread;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{Request, Response};
use partywall_clock::{self as clock, SessionClock};
use partywall_load::{Load, LoadError, Options};
use partywall_wire::load::{LoadErrorKind, LoadProgram, LoadSecond, LoadStarted};
use serde_json::{json, Value};
use tokio::net::{TcpListener, TcpStream};

const MS: u64 = 1_000_000;
/// More than the initial windows of a connection and a stream.
const LARGE: usize = 20 << 20;

type Heard = Arc<Mutex<Vec<String>>>;

/// Serves HTTP/2 without TLS for the duration of the test. Returns its port and the received requests.
fn start() -> (u16, Heard) {
    start_after(|_| ())
}

/// Serves after something else has had the listener.
fn start_after(first: fn(&std::net::TcpListener)) -> (u16, Heard) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, heard) = (listener.local_addr().unwrap().port(), Heard::default());
    let kept = heard.clone();
    thread::spawn(move || {
        first(&listener);
        listener.set_nonblocking(true).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                tokio::task::spawn_local(serve(stream, kept.clone()));
            }
        });
    });
    (port, heard)
}

async fn serve(stream: TcpStream, heard: Heard) {
    // A client that only checks the connection ends here.
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        if request.uri().path() == "/goodbye" {
            connection.graceful_shutdown();
        }
        tokio::task::spawn_local(answer(request, respond, heard.clone()));
    }
}

async fn answer(request: Request<RecvStream>, mut respond: SendResponse<Bytes>, heard: Heard) {
    let header = |name| request.headers().get(name).map_or("", |value| value.to_str().unwrap()).to_string();
    let said = format!("{} {} {} cookie={}", request.method(), request.uri(), header("content-length"), header("cookie"));
    let path = request.uri().path().to_string();
    let mut body = request.into_body();
    let mut content = Vec::new();
    while let Some(Ok(piece)) = body.data().await {
        content.extend_from_slice(&piece);
        let _ = body.flow_control().release_capacity(piece.len());
    }
    heard.lock().unwrap().push(format!("{said} body={}", content.len()));
    let answer = Response::builder().status(if path == "/moved" { 302 } else { 200 });
    let answer = answer.header("set-cookie", "s=1; Path=/").header("location", "/home").header("x-token", "t0k3n").body(()).unwrap();
    match path.as_str() {
        "/reset" => respond.send_reset(Reason::INTERNAL_ERROR),
        "/full" => respond.send_reset(Reason::REFUSED_STREAM),
        "/busy" if heard.lock().unwrap().len() % 2 == 1 => respond.send_reset(Reason::REFUSED_STREAM),
        "/silent" => std::future::pending().await,
        "/cut" => {
            let mut stream = respond.send_response(answer, false).unwrap();
            stream.send_data("half".into(), false).unwrap();
            stream.send_reset(Reason::INTERNAL_ERROR);
        }
        "/large" => {
            let mut stream = respond.send_response(answer, false).unwrap();
            stream.send_data(vec![b'x'; LARGE].into(), true).unwrap();
        }
        _ => {
            let mut stream = respond.send_response(answer, false).unwrap();
            stream.send_data("hello".into(), true).unwrap();
        }
    }
}

fn get(name: &str, port: u16) -> Value {
    json!({"http": {"name": name, "method": "GET", "url": format!("http://127.0.0.1:{port}/{name}")}})
}

fn program(actions: &Value, connections: &Value) -> Value {
    json!({
        "kinds": [{"name": "user", "cookies": true, "actions": actions}],
        "pacing": {"closed": {"stages": [{"to": 1, "for_ns": 0}, {"to": 1, "for_ns": 150 * MS}], "every_ns": 20 * MS}},
        "connections": connections,
        "grace_ns": 20_000 * MS,
    })
}

fn prepare(program: Value) -> Result<(Load, LoadStarted), LoadError> {
    let program: LoadProgram = serde_json::from_value(program).unwrap();
    Load::prepare(program, &Options { threads: 1, slice_ns: 10 * MS, work_dir: std::env::temp_dir(), seed: 1 }, &SessionClock::default())
}

fn run(actions: &Value) -> (Vec<LoadSecond>, LoadStarted) {
    run_with(actions, &json!({"protocol": "http2"}))
}

fn run_with(actions: &Value, connections: &Value) -> (Vec<LoadSecond>, LoadStarted) {
    let (mut load, started) = prepare(program(actions, connections)).unwrap();
    load.switch(clock::monotonic(), 1.0).unwrap();
    let deadline = clock::monotonic() + 60_000 * MS;
    while load.ended().is_none() {
        assert!(clock::monotonic() < deadline, "the load never ended");
        clock::sleep_until(clock::monotonic() + MS);
    }
    (load.take(), started)
}

fn errors(seconds: &[LoadSecond]) -> BTreeMap<LoadErrorKind, u64> {
    let mut counts = BTreeMap::new();
    for error in seconds.iter().flat_map(|second| &second.errors) {
        *counts.entry(error.kind).or_default() += error.count;
    }
    counts
}

fn total(seconds: &[LoadSecond], count: impl Fn(&LoadSecond) -> u64) -> u64 {
    seconds.iter().map(count).sum()
}

#[test]
fn many_requests_share_one_connection_and_each_is_timed() {
    let (port, heard) = start();
    let (seconds, started) = run(&json!([get("home", port)]));
    let answered = heard.lock().unwrap().len() as u64;
    assert!(answered > 1);
    assert_eq!((errors(&seconds), total(&seconds, |s| s.requests)), (BTreeMap::new(), answered));
    assert_eq!(total(&seconds, |s| s.connections_opened), 1);
    assert_eq!(total(&seconds, |s| s.timings.iter().map(|t| t.first_byte.count()).sum()), answered);
    assert_eq!(started.origins[0].protocol, "HTTP/2");
    let second = &heard.lock().unwrap()[1];
    assert_eq!(second, &format!("GET http://127.0.0.1:{port}/home  cookie=s=1 body=0"));
}

#[test]
fn bodies_larger_than_any_window_pass_in_both_directions() {
    let (port, heard) = start();
    let mut step = get("large", port);
    step["http"]["method"] = "POST".into();
    step["http"]["body"] = json!({"text": "y".repeat(3 << 20)});
    step["http"]["checks"] = json!([{"body_bytes": {"from": LARGE, "to": LARGE}}]);
    let (seconds, _) = run(&json!([step]));
    assert_eq!(errors(&seconds), BTreeMap::new());
    let size = 3 << 20;
    assert_eq!(heard.lock().unwrap()[0], format!("POST http://127.0.0.1:{port}/large {size} cookie= body={size}"));
    assert!(total(&seconds, |s| s.received_bytes) > LARGE as u64);
}

#[test]
fn errors_are_counted_by_kind_and_nothing_hangs() {
    use LoadErrorKind as Kind;
    for (path, kind) in [("reset", Kind::Reset), ("full", Kind::Reset), ("cut", Kind::Reset), ("silent", Kind::Timeout)] {
        let (port, _) = start();
        let mut step = get(path, port);
        let timeout_ms = if kind == Kind::Timeout { 50 } else { 10_000 };
        step["http"]["timeout_ns"] = (timeout_ms * MS).into();
        let (seconds, _) = run(&json!([step]));
        assert_eq!(errors(&seconds).into_keys().collect::<Vec<_>>(), [kind], "{path}");
    }
}

#[test]
fn a_request_that_the_server_did_not_process_is_sent_once_more_whatever_its_method() {
    for (path, harmless) in [("busy", true), ("reset", false)] {
        let (port, heard) = start();
        let mut step = get(path, port);
        step["http"]["method"] = "POST".into();
        let (seconds, _) = run(&json!([step]));
        let heard = heard.lock().unwrap().len() as u64;
        assert!(heard > 2);
        let resent = total(&seconds, |second| second.resent);
        assert_eq!((errors(&seconds).is_empty(), resent), (harmless, if harmless { heard / 2 } else { 0 }), "{path}");
    }
}

/// Accepts the check of the start and one connection, and excludes its request by GOAWAY.
fn leave(listener: &std::net::TcpListener) {
    for _ in 0..2 {
        let (mut stream, _) = listener.accept().unwrap();
        let (settings, goaway) = ([0, 0, 0, 4, 0, 0, 0, 0, 0], [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        stream.write_all(&settings).unwrap();
        // Until the request is here: a frame of headers, type 1.
        let mut heard = Vec::new();
        let mut piece = [0; 1024];
        while let Ok(count @ 1..) = stream.read(&mut piece) {
            heard.extend_from_slice(&piece[..count]);
            if heard.windows(5).any(|part| part == [1, 4, 0, 0, 0] || part == [1, 5, 0, 0, 0]) {
                stream.write_all(&goaway).unwrap();
                break;
            }
        }
    }
}

#[test]
fn a_request_that_goaway_excludes_is_sent_once_more_whatever_its_method() {
    let (port, heard) = start_after(leave);
    let mut step = get("home", port);
    step["http"]["method"] = "POST".into();
    let (seconds, _) = run(&json!([step]));
    assert!(!heard.lock().unwrap().is_empty());
    assert_eq!((errors(&seconds), total(&seconds, |second| second.resent)), (BTreeMap::new(), 1));
}

#[test]
fn a_server_that_sends_goaway_gets_a_new_connection_and_no_error() {
    let (port, heard) = start();
    let (seconds, _) = run(&json!([get("goodbye", port)]));
    let answered = heard.lock().unwrap().len() as u64;
    assert!(answered > 1);
    assert_eq!((errors(&seconds), total(&seconds, |s| s.connections_opened)), (BTreeMap::new(), answered));
}

#[test]
fn without_keep_alive_each_request_has_its_own_connection() {
    let (port, heard) = start();
    let (seconds, _) = run_with(&json!([get("home", port)]), &json!({"protocol": "http2", "keep_alive": false}));
    let answered = heard.lock().unwrap().len() as u64;
    assert_eq!((errors(&seconds), total(&seconds, |s| s.connections_opened)), (BTreeMap::new(), answered));
}

#[test]
fn redirects_are_followed_and_headers_extracted() {
    let (port, heard) = start();
    let mut step = get("moved", port);
    step["http"]["redirects"] = 3.into();
    step["http"]["extract"] = json!([{"into": "token", "from": {"header": "x-token"}}]);
    let after = json!({"http": {"name": "after", "method": "GET", "url": format!("http://127.0.0.1:{port}/a?t=${{token}}")}});
    let (seconds, _) = run(&json!([step, after]));
    assert_eq!(errors(&seconds), BTreeMap::new());
    let heard = heard.lock().unwrap();
    let paths: Vec<_> = heard.iter().take(3).map(|line| line.split(' ').nth(1).unwrap().rsplit('/').next().unwrap()).collect();
    assert_eq!(paths, ["moved", "home", "a?t=t0k3n"]);
}

#[test]
fn a_server_without_http2_is_refused_before_the_start() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let refused = prepare(program(&json!([get("home", port)]), &json!({"protocol": "http2"}))).err().unwrap().to_string();
    assert!(refused.contains("does not support HTTP/2 without TLS") && refused.contains("HTTP/1.1 "), "{refused}");
}
