//! Preparations before a load starts, so that problems appear before the run and not during it. It resolves names, connects to every
//! server once, and raises the limit of open files. `program` checks the program itself.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use partywall_clock as clock;
use partywall_wire::load::{Origin, Pacing, Protocol, Stage};
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

use crate::address::Place;
use crate::http2;
use crate::link::Address;
use crate::pacing::Seat;
use crate::program::Program;
use crate::tls::{self, Trust};

const HTTP1: &str = "HTTP/1.1";
const HTTP2: &str = "HTTP/2";
/// Open files of the agent other than its connections.
const FILES_OTHER: u64 = 64;

/// The addresses of each of the program's places, and facts about the server.
pub(crate) type Reached = (Vec<Vec<Address>>, Vec<Origin>);

/// Resolves and connects to every server of the program. Reports all unreachable ones at once.
pub(crate) fn reach(program: &Program, trust: Option<&Trust>) -> Result<Reached, Vec<String>> {
    let (mut addresses, mut origins, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for place in &program.places {
        match find(program, place).and_then(|found| reach_any(program, place, trust, found)) {
            Ok((own, origin)) => {
                addresses.push(own);
                origins.push(origin);
            }
            Err(why) => problems.push(why),
        }
    }
    if problems.is_empty() {
        Ok((addresses, origins))
    } else {
        Err(problems)
    }
}

/// Which certificates are trusted, if any request uses TLS.
pub(crate) fn trust(program: &Program) -> Result<Option<Trust>, String> {
    program.places.iter().any(|place| place.tls).then(|| Trust::new(&program.source.tls, program.source.connections.protocol)).transpose()
}

/// The addresses of a name are tried in turn. Those that do not answer are left out, and so are those of another family than the first
/// one that answers, because they usually lead to the same server. Addresses that the plan lists must all answer.
fn reach_any(
    program: &Program,
    place: &Place,
    trust: Option<&Trust>,
    (addresses, resolve_ns): Found,
) -> Result<(Vec<Address>, Origin), String> {
    let connections = &program.source.connections;
    let mut left = Duration::from_nanos(connections.connect_timeout_ns.max(1));
    let mut origin = Origin {
        name: place.to_string(),
        addresses: Vec::new(),
        unreachable: Vec::new(),
        resolve_ns,
        connect_ns: 0,
        tls_ns: None,
        protocol: HTTP1.into(),
    };
    let (mut used, mut failures) = (Vec::<Address>::new(), Vec::new());
    for (number, address) in addresses.iter().enumerate() {
        if used.first().is_some_and(|first| resolve_ns.is_some() && !first.is_of_family(address)) {
            continue;
        }
        let began_ns = clock::monotonic();
        // A silent address leaves as much time for the others.
        let patience = if number + 1 < addresses.len() { left / 2 } else { left };
        let outcome = if has_local(address, &connections.local_addresses) {
            connect(address, patience).map_err(|error| remedied(address, &error))
        } else {
            Err("no local address is of its family; add one to from_addresses".into())
        };
        let connected_ns = clock::monotonic();
        let mut stream = match outcome {
            Ok(stream) => stream,
            Err(why) => {
                failures.push((address.to_string(), why));
                left = left.saturating_sub(Duration::from_nanos(connected_ns - began_ns)).max(Duration::from_millis(1));
                continue;
            }
        };
        origin.connect_ns = connected_ns - began_ns;
        let protocol = connections.protocol;
        if let Some(trust) = trust.filter(|_| place.tls) {
            origin.protocol = secured(trust, place, protocol, &mut *stream).map_err(|why| format!("{place} at {address}: {why}"))?;
            origin.tls_ns = Some(clock::monotonic() - connected_ns);
        } else if protocol == Protocol::Http2 {
            http2::greet(&mut *stream)
                .map_err(|why| format!("{place} at {address} does not support HTTP/2 without TLS: {why}; use HTTP/1.1 or https"))?;
            origin.protocol = HTTP2.into();
        }
        used.push(address.clone());
    }
    if used.is_empty() || resolve_ns.is_none() && !failures.is_empty() {
        return Err(format!("{place} cannot be reached {}", listed(&failures)));
    }
    origin.addresses = used.iter().map(ToString::to_string).collect();
    origin.unreachable = failures.into_iter().map(|(address, why)| format!("{address}: {why}")).collect();
    Ok((used, origin))
}

/// Whether the plan lets users connect to an address. If it names no local addresses, the system chooses one.
fn has_local(address: &Address, locals: &[String]) -> bool {
    locals.is_empty() || matches!(address, Address::Unix(_)) || address.local_for(locals, 0).is_some()
}

/// Addresses with the reasons why they cannot be reached. Addresses with the same reason share it.
fn listed(failures: &[(String, String)]) -> String {
    let one = |same: &[(String, String)]| {
        let addresses: Vec<_> = same.iter().map(|(address, _)| &**address).collect();
        format!("at {}: {}", addresses.join(", "), same[0].1)
    };
    failures.chunk_by(|a, b| a.1 == b.1).map(one).collect::<Vec<_>>().join("; and ")
}

/// Negotiates TLS and the protocol. Returns both as text.
fn secured(trust: &Trust, place: &Place, protocol: Protocol, stream: &mut dyn Stream) -> Result<String, String> {
    let (version, agreed_on_http2) = shake_hands(trust, place, stream)?;
    match (agreed_on_http2, protocol) {
        (true, _) => Ok(format!("{version}, {HTTP2}")),
        (false, Protocol::Http2) => Err("the server does not support HTTP/2; use protocol http1 or negotiated".into()),
        (false, _) => Ok(format!("{version}, {HTTP1}")),
    }
}

trait Stream: Read + Write {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

fn connect(address: &Address, patience: Duration) -> io::Result<Box<dyn Stream>> {
    Ok(match address {
        Address::Ip(ip) => {
            let stream = TcpStream::connect_timeout(ip, patience)?;
            stream.set_read_timeout(Some(patience))?;
            stream.set_write_timeout(Some(patience))?;
            Box::new(stream)
        }
        Address::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(patience))?;
            Box::new(stream)
        }
    })
}

/// One TLS handshake. Returns the version and whether HTTP/2 was negotiated, or the reason for the failure and a remedy.
fn shake_hands(trust: &Trust, place: &Place, mut stream: &mut dyn Stream) -> Result<(&'static str, bool), String> {
    let mut connection = tls::connection(trust.of_user(), place)?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).map_err(|error| match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(rustls::Error::InvalidCertificate(why)) => tls::not_trusted(why, place),
            Some(rustls::Error::AlertReceived(rustls::AlertDescription::NoApplicationProtocol)) => {
                "the server supports none of the requested protocols; use protocol http1 or negotiated".into()
            }
            _ => format!("the TLS handshake failed: {error}; check that the server uses TLS on this port"),
        })?;
    }
    Ok((tls::version(&connection), tls::agreed_on_http2(&connection)))
}

/// Why an address cannot be reached, and what to do about it.
fn remedied(address: &Address, error: &io::Error) -> String {
    let remedy = match (error.kind(), address) {
        (io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound, Address::Unix(_)) => {
            "nobody listens there; check that the server runs, and its path"
        }
        (io::ErrorKind::ConnectionRefused, Address::Ip(_)) => "nobody listens there; check that the server runs, and its port",
        (io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock, _) => {
            "it did not answer in time; check for a firewall or an overloaded server"
        }
        _ => "check the address and the network",
    };
    format!("{error}; {remedy}")
}

/// A place's addresses, and the duration of name resolution if there was one.
type Found = (Vec<Address>, Option<u64>);

/// Finds a place's addresses.
fn find(program: &Program, place: &Place) -> Result<Found, String> {
    let key = place.host_and_port();
    if let Some(given) = program.source.addresses.get(&key) {
        let parsed = given
            .iter()
            .map(|text| parse(text).ok_or_else(|| format!("addresses.{key}: {text:?} is not an address; write ADDRESS:PORT or unix:PATH")));
        let parsed = parsed.collect::<Result<Vec<_>, _>>()?;
        return if parsed.is_empty() {
            Err(format!("addresses.{key}: the list is empty; give an address, or leave the key out"))
        } else {
            Ok((parsed, None))
        };
    }
    if let Ok(ip) = place.host.parse() {
        return Ok((vec![Address::Ip(SocketAddr::new(ip, place.port))], None));
    }
    let began_ns = clock::monotonic();
    let answer = (place.host.as_str(), place.port).to_socket_addrs();
    let resolved = answer
        .map_err(|error| format!("{place}: the name {:?} cannot be resolved: {error}; check its spelling, or set addresses", place.host))?;
    let mut resolved: Vec<SocketAddr> = resolved.collect();
    resolved.dedup();
    if resolved.is_empty() {
        return Err(format!("{place}: the name {:?} has no address; check its spelling, or set addresses", place.host));
    }
    Ok((resolved.into_iter().map(Address::Ip).collect(), Some(clock::monotonic() - began_ns)))
}

fn parse(text: &str) -> Option<Address> {
    match text.strip_prefix("unix:") {
        Some(path) => Some(Address::Unix(path.into())),
        None => text.parse().ok().map(Address::Ip),
    }
}

/// Maximum simultaneous users of this generator.
pub(crate) fn users_most(program: &Program) -> u64 {
    let total = match &program.pacing {
        Pacing::Open { users_max, .. } => u64::from(*users_max),
        Pacing::Closed { stages, .. } => stages.iter().map(|Stage { to, .. }| to.ceil() as u64).max().unwrap_or(0),
    };
    Seat::new(program.source.share, 0, 1).part_of(total)
}

/// Files and sockets needed, and the limit after it was raised as far as necessary and permitted.
pub(crate) fn room_for_files(program: &Program, users: u64) -> Result<(u64, u64), String> {
    let needed = users * program.places.len() as u64 + FILES_OTHER;
    let limit = raise(needed);
    if limit < needed {
        return Err(format!(
            "{users} users need {needed} open files, but this process may have {limit}; \
             raise the limit (ulimit -Hn, or LimitNOFILE of the service) or reduce the users"
        ));
    }
    Ok((needed, limit))
}

fn raise(needed: u64) -> u64 {
    let now = getrlimit(Resource::Nofile);
    let (current, maximum) = (now.current.unwrap_or(u64::MAX), now.maximum.unwrap_or(u64::MAX));
    if current >= needed {
        return current;
    }
    // Only a privileged process may exceed the hard limit.
    for wanted in [maximum.max(needed), maximum] {
        let limit = Rlimit { current: Some(wanted), maximum: Some(wanted.max(maximum)) };
        if setrlimit(Resource::Nofile, limit).is_ok() {
            return wanted;
        }
    }
    current
}

/// Local ports available for all servers. None if none are needed or the kernel does not report the range. An error if users need
/// more ports than there are.
pub(crate) fn room_for_ports(program: &Program, addresses: &[Vec<Address>], users: u64) -> Result<Option<u64>, String> {
    let Some(ports) = ports_of_a_host() else { return Ok(None) };
    let locals = program.source.connections.local_addresses.len().max(1) as u64;
    let mut most = None;
    for (place, own) in program.places.iter().zip(addresses) {
        if own.iter().any(|address| matches!(address, Address::Unix(_))) {
            continue;
        }
        let room = ports * locals * own.len() as u64;
        if users > room {
            return Err(format!(
                "{users} users need as many local ports to connect to {place}, but there are {room}; \
                 widen net.ipv4.ip_local_port_range, or set more local addresses (connections.from_addresses)"
            ));
        }
        most = Some(most.unwrap_or(0) + room);
    }
    Ok(most)
}

fn ports_of_a_host() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut parts = text.split_ascii_whitespace().map(str::parse::<u64>);
    let (low, high) = (parts.next()?.ok()?, parts.next()?.ok()?);
    high.checked_sub(low).map(|between| between + 1)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_address_is_used_only_if_a_local_one_is_of_its_family() {
        let of = |text: &str| Address::Ip(text.parse().unwrap());
        let locals = ["192.0.2.7".to_owned(), "2001:db8::7".to_owned(), "192.0.2.8".to_owned()];
        let local = |to: &str, number| of(to).local_for(&locals, number).unwrap().to_string();
        assert_eq!([0, 1, 2].map(|number| local("127.0.0.1:1", number)), ["192.0.2.7", "192.0.2.8", "192.0.2.7"]);
        assert_eq!([0, 1].map(|number| local("[::1]:1", number)), ["2001:db8::7", "2001:db8::7"]);
        assert!(has_local(&of("[::1]:1"), &[]) && has_local(&Address::Unix("/run/x".into()), &locals));
        assert!(!has_local(&of("[::1]:1"), &locals[..1]));
    }

    fn program(url: &str) -> Program {
        let http = serde_json::json!({"http": {"name": "one", "method": "GET", "url": url}});
        let source = serde_json::json!({"kinds": [{"name": "user", "actions": [http]}],
            "pacing": {"closed": {"stages": [{"to": 1, "for_ns": 1}]}}, "connections": {"connect_timeout_ns": 2_000_000_000_u64}});
        crate::program::compile(serde_json::from_value(source).unwrap()).unwrap()
    }

    /// The addresses that are used of these, and those that are reported as unreachable.
    fn reached(addresses: &[SocketAddr], resolve_ns: Option<u64>) -> Result<(Vec<String>, Vec<String>), String> {
        let program = program("http://shop.test/");
        let found = addresses.iter().map(|address| Address::Ip(*address)).collect();
        let (used, origin) = reach_any(&program, &program.places[0], None, (found, resolve_ns))?;
        assert_eq!(origin.addresses, used.iter().map(ToString::to_string).collect::<Vec<_>>());
        Ok((origin.addresses, origin.unreachable))
    }

    #[test]
    fn the_addresses_of_a_name_are_tried_in_turn() {
        let listener = |ip: &str| TcpListener::bind((ip, 0)).unwrap();
        let (one, two, six) = (listener("127.0.0.1"), listener("127.0.0.2"), listener("::1"));
        let at = |listener: &TcpListener| listener.local_addr().unwrap();
        let (dead, dead_six) = (at(&listener("127.0.0.1")), at(&listener("::1")));
        let (one, two, six) = (at(&one), at(&two), at(&six));
        for (name, used, unreachable) in [
            (vec![six, one], vec![six], 0),
            (vec![dead_six, one], vec![one], 1),
            (vec![six, dead], vec![six], 0),
            (vec![dead, six], vec![six], 1),
            (vec![dead, one, six, two], vec![one, two], 1),
        ] {
            let (addresses, left_out) = reached(&name, Some(1)).unwrap();
            assert_eq!((addresses, left_out.len()), (used.iter().map(ToString::to_string).collect(), unreachable), "{name:?}");
            assert!(left_out.iter().all(|why| why.contains("Connection refused")), "{left_out:?}");
        }
        let why = reached(&[dead_six, dead], Some(1)).unwrap_err();
        assert!(why.starts_with(&format!("http://shop.test:80 cannot be reached at {dead_six}, {dead}: Connection refused")), "{why}");
        // Addresses that a plan lists are all meant.
        assert_eq!(reached(&[one, two], None).unwrap().0.len(), 2);
        assert!(reached(&[one, dead], None).unwrap_err().contains(&format!("at {dead}: ")));
    }
}
