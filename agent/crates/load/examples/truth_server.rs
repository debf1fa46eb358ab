//! A server whose behaviour is known, with a log of its own: what a load generator says is compared with it. A thread a connection,
//! nothing clever. It prints its port, serves until its input ends, and then prints its log: one line a request, with the path, when
//! its head had been read, when its last byte was written, and what was done.
//!
//! `/ok` at once; `/fixed` after 50 ms; `/bimodal` after 50 ms, every tenth after 250 ms; `/freeze` at once, but not in the third and
//! fourth second after the first request; `/reset` resets every hundredth connection; `/slow` has a body in five pieces 10 ms apart;
//! `/short` ends before its length; `/long` goes on after its length; `/garbage` is no HTTP; `/silent` never answers.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use partywall_clock as clock;

const MS: u64 = 1_000_000;

#[derive(Default)]
struct Log {
    lines: Mutex<Vec<(String, u64, u64, &'static str)>>,
    requests: AtomicU64,
    first_ns: AtomicU64,
}

fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    writeln!(io::stdout(), "{}", listener.local_addr()?.port())?;
    let log = Arc::new(Log::default());
    thread::spawn({
        let log = log.clone();
        move || {
            for stream in listener.incoming().flatten() {
                let log = log.clone();
                thread::spawn(move || serve(&stream, &log));
            }
        }
    });
    io::stdin().read_to_end(&mut Vec::new())?;
    let mut out = io::BufWriter::new(io::stdout());
    for (path, read_ns, written_ns, what) in log.lines.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        writeln!(out, "{path} {read_ns} {written_ns} {what}")?;
    }
    out.flush()
}

fn serve(stream: &TcpStream, log: &Log) {
    // A client that goes away ends its thread, and nothing else.
    let _ = stream.set_nodelay(true).and_then(|()| serve_until_closed(stream, log));
}

fn serve_until_closed(mut stream: &TcpStream, log: &Log) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let mut line = String::new();
        while reader.read_line(&mut line)? > 2 {
            line.clear();
        }
        let read_ns = clock::now();
        let path = first.split(' ').nth(1).unwrap_or("/").to_string();
        let number = log.requests.fetch_add(1, Ordering::Relaxed);
        let _ = log.first_ns.compare_exchange(0, read_ns, Ordering::Relaxed, Ordering::Relaxed);
        let (what, goes_on) = answer(&mut stream, &path, read_ns, number, log.first_ns.load(Ordering::Relaxed))?;
        let written_ns = clock::now();
        log.lines.lock().unwrap_or_else(PoisonError::into_inner).push((path, read_ns, written_ns, what));
        if !goes_on {
            return Ok(());
        }
    }
}

/// Answers one request; returns what was done, and whether the connection goes on.
fn answer(stream: &mut &TcpStream, path: &str, read_ns: u64, number: u64, first_ns: u64) -> io::Result<(&'static str, bool)> {
    let freeze = first_ns + 2000 * MS..first_ns + 4000 * MS;
    match path {
        "/fixed" => clock::sleep_until(read_ns + 50 * MS),
        "/bimodal" => clock::sleep_until(read_ns + if number % 10 == 9 { 250 } else { 50 } * MS),
        "/freeze" if freeze.contains(&read_ns) => clock::sleep_until(freeze.end),
        "/reset" if number % 100 == 99 => {
            rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO))?;
            return Ok(("reset", false));
        }
        "/slow" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")?;
            for piece in 1..=5 {
                clock::sleep_until(read_ns + piece * 10 * MS);
                stream.write_all(b"x")?;
            }
            return Ok(("ok", true));
        }
        "/short" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nnot as much")?;
            return Ok(("short", false));
        }
        "/long" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more")?;
            return Ok(("long", true));
        }
        "/garbage" => {
            stream.write_all(b"220 mail.example ESMTP\r\n")?;
            return Ok(("garbage", false));
        }
        "/silent" => {
            let _ = stream.read(&mut [0; 1]);
            return Ok(("silent", false));
        }
        _ => {}
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
    Ok(("ok", true))
}
