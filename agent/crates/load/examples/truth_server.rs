//! A server with known behaviour and its own log, for comparison with a load generator's report. It listens at the address that it
//! is given (default 127.0.0.1), prints its port and serves until its input ends. Then it prints its log, one line per request: path, arrival time, time of the last written byte, action.
//!
//! The arrival time is the kernel's timestamp of the request's packet. A server's own clock starts only when the server reads.
//! Until then, a request may wait for its thread, or for a core that others use or the hypervisor took away. No log contains
//! that wait, yet it was the larger part of the client's latency beyond the delay. The server is one thread that does one small
//! thing at a time.
//!
//! `/ok` responds at once. `/fixed` responds after 50 ms. `/bimodal` responds after 50 ms, and every tenth time after 250 ms.
//! `/freeze` responds at once, except in the third and fourth second after the first request. `/reset` resets every hundredth
//! connection. `/slow` sends its body in five pieces 10 ms apart. `/short` ends before its length; `/long` continues after its
//! length. `/garbage` is not HTTP. `/silent` never responds.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{recvmsg, setsockopt, sockopt, ControlMessageOwned, MsgFlags};
use nix::sys::time::TimeSpec;
use partywall_clock as clock;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{clock_gettime, ClockId, Timespec};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const INPUT: u64 = 0;
const LISTENER: u64 = 1;
const FIRST_CONNECTION: u64 = 2;
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Action after the last piece of a response.
#[derive(Clone, Copy, PartialEq)]
enum After {
    NextRequest,
    Close,
    Reset,
}

struct Answer {
    what: &'static str,
    /// Pieces to write, with their times.
    pieces: VecDeque<(u64, &'static [u8])>,
    after: After,
}

struct Connection {
    stream: TcpStream,
    heard: Vec<u8>,
    arrived_ns: u64,
    /// Path of the current request.
    path: String,
    answer: Option<Answer>,
}

#[derive(Default)]
struct Server {
    connections: HashMap<u64, Connection>,
    /// Connections with bytes to read, in order of arrival.
    arrived: VecDeque<u64>,
    /// Connections with a piece to write, by time.
    due: BTreeSet<(u64, u64)>,
    log: Vec<(String, u64, u64, &'static str)>,
    requests: u64,
    first_ns: Option<u64>,
    next: u64,
}

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1".into());
    let listener = TcpListener::bind((address, 0))?;
    listener.set_nonblocking(true)?;
    writeln!(io::stdout(), "{}", listener.local_addr()?.port())?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&poll, io::stdin(), EventData::new_u64(INPUT), EventFlags::IN)?;
    epoll::add(&poll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let mut server = Server { next: FIRST_CONNECTION, ..Server::default() };
    let mut events = Vec::with_capacity(64);
    loop {
        events.clear();
        let timeout = server.patience();
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&timeout))?;
        for event in &events {
            match event.data.u64() {
                INPUT => return server.print(),
                LISTENER => server.accept(&listener, &poll)?,
                connection => server.note(connection),
            }
        }
        server.do_one_thing();
    }
}

impl Server {
    fn patience(&self) -> Timespec {
        let left_ns = match self.due.first() {
            _ if !self.arrived.is_empty() => 0,
            Some((at_ns, _)) => at_ns.saturating_sub(clock::monotonic()),
            None => SECOND,
        };
        Timespec { tv_sec: (left_ns / SECOND).cast_signed(), tv_nsec: (left_ns % SECOND).cast_signed() }
    }

    fn accept(&mut self, listener: &TcpListener, poll: &OwnedFd) -> io::Result<()> {
        while let Ok((stream, _)) = listener.accept() {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            setsockopt(&stream, sockopt::ReceiveTimestampns, &true)?;
            epoll::add(poll, &stream, EventData::new_u64(self.next), EventFlags::IN | EventFlags::ET)?;
            let connection = Connection { stream, heard: Vec::new(), arrived_ns: 0, path: String::new(), answer: None };
            self.connections.insert(self.next, connection);
            self.next += 1;
        }
        Ok(())
    }

    fn note(&mut self, number: u64) {
        if !self.arrived.contains(&number) {
            self.arrived.push_back(number);
        }
    }

    /// Writes a due piece, or else reads one arrived request.
    fn do_one_thing(&mut self) {
        let due = self.due.first().copied().filter(|(at_ns, _)| *at_ns <= clock::monotonic());
        let (number, goes_on) = if let Some((at_ns, number)) = due {
            self.due.remove(&(at_ns, number));
            (number, self.write(number))
        } else if let Some(number) = self.arrived.pop_front() {
            (number, self.read(number))
        } else {
            return;
        };
        if !goes_on {
            self.connections.remove(&number);
            self.due.retain(|(_, whose)| *whose != number);
        }
    }

    /// Returns whether the connection stays open.
    fn read(&mut self, number: u64) -> bool {
        let Some(connection) = self.connections.get_mut(&number) else { return true };
        let mut buffer = [0; 4096];
        loop {
            match receive(&connection.stream, &mut buffer) {
                Ok((0, _)) => return false,
                Ok((taken, arrived_ns)) => {
                    connection.heard.extend_from_slice(&buffer[..taken]);
                    connection.arrived_ns = arrived_ns;
                }
                Err(Errno::EAGAIN) => break,
                Err(_) => return false,
            }
        }
        if connection.answer.is_none() && connection.heard.ends_with(b"\r\n\r\n") {
            let heard = std::mem::take(&mut connection.heard);
            connection.path = String::from_utf8_lossy(&heard).split(' ').nth(1).unwrap_or("/").into();
            let arrived_ns = connection.arrived_ns;
            let first_ns = *self.first_ns.get_or_insert(arrived_ns);
            let answer = answer(&connection.path, arrived_ns, self.requests, first_ns);
            self.requests += 1;
            match answer.pieces.front() {
                Some((at_ns, _)) => {
                    self.due.insert((*at_ns, number));
                }
                // A request that never gets a response has no other time.
                None => self.log.push((connection.path.clone(), arrived_ns, arrived_ns, answer.what)),
            }
            connection.answer = Some(answer);
        }
        true
    }

    /// Returns whether the connection stays open.
    fn write(&mut self, number: u64) -> bool {
        let Some(connection) = self.connections.get_mut(&number) else { return true };
        let Some(answer) = &mut connection.answer else { return true };
        let Some((_, piece)) = answer.pieces.pop_front() else { return true };
        if answer.after == After::Reset {
            let _ = rustix::net::sockopt::set_socket_linger(&connection.stream, Some(Duration::ZERO));
        } else if connection.stream.write_all(piece).is_err() {
            return false;
        }
        if let Some((at_ns, _)) = answer.pieces.front() {
            self.due.insert((*at_ns, number));
            return true;
        }
        let (what, after) = (answer.what, answer.after);
        self.log.push((connection.path.clone(), connection.arrived_ns, clock::monotonic(), what));
        connection.answer = None;
        after == After::NextRequest
    }

    fn print(&self) -> io::Result<()> {
        let mut out = io::BufWriter::new(io::stdout());
        for (path, arrived_ns, written_ns, what) in &self.log {
            writeln!(out, "{path} {arrived_ns} {written_ns} {what}")?;
        }
        out.flush()
    }
}

/// Reads the available bytes. Returns the arrival time of the last one, in monotonic time.
fn receive(stream: &TcpStream, buffer: &mut [u8]) -> Result<(usize, u64), Errno> {
    let mut space = nix::cmsg_space!(TimeSpec);
    let mut into = [io::IoSliceMut::new(buffer)];
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut into, Some(&mut space), MsgFlags::empty())?;
    let (now_ns, wall) = (clock::monotonic(), clock_gettime(ClockId::Realtime));
    let came = message.cmsgs()?.find_map(|each| match each {
        ControlMessageOwned::ScmTimestampns(at) => Some(at),
        _ => None,
    });
    let ago_ns = came.map_or(0, |at| (wall.tv_sec - at.tv_sec()) * 1_000_000_000 + wall.tv_nsec - at.tv_nsec());
    Ok((message.bytes, now_ns.saturating_sub(ago_ns.max(0).cast_unsigned())))
}

fn answer(path: &str, arrived_ns: u64, number: u64, first_ns: u64) -> Answer {
    let at = |delay_ns: u64, piece: &'static [u8]| (arrived_ns + delay_ns, piece);
    let delayed = |delay_ns: u64| Answer { what: "ok", pieces: [at(delay_ns, OK)].into(), after: After::NextRequest };
    let odd = |what, piece, after| Answer { what, pieces: [at(0, piece)].into(), after };
    let freeze = first_ns + 2 * SECOND..first_ns + 4 * SECOND;
    match path {
        "/fixed" => delayed(50 * MS),
        "/bimodal" => delayed(if number % 10 == 9 { 250 } else { 50 } * MS),
        "/freeze" if freeze.contains(&arrived_ns) => delayed(freeze.end - arrived_ns),
        "/reset" if number % 100 == 99 => odd("reset", b"", After::Reset),
        "/slow" => {
            let head = at(0, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
            let body = (1..=5).map(|piece| at(piece * 10 * MS, b"x"));
            Answer { what: "ok", pieces: [head].into_iter().chain(body).collect(), after: After::NextRequest }
        }
        "/short" => odd("short", b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nnot as much", After::Close),
        "/long" => odd("long", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more", After::NextRequest),
        "/garbage" => odd("garbage", b"220 mail.example ESMTP\r\n", After::Close),
        "/silent" => Answer { what: "silent", pieces: VecDeque::new(), after: After::NextRequest },
        _ => delayed(0),
    }
}
