//! The other end of a network kernel that talks over a real interface (`to`): the same programme that such a kernel starts for itself
//! on loopback, but listening, for as many connections as come. Deliberately not here: what is measured; this end only answers.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;

use crate::request::{self, Sizes};
use crate::{KernelError, Params};

/// What is thrown away at once.
const CHUNK_BYTES: usize = 256 << 10;

/// Starts threads that are the peer of the kernel called `name` with these parameters, until the process ends; where they listen.
///
/// # Errors
/// For a kernel that talks to nobody elsewhere, for wrong parameters, and for what the host says to listening there.
pub fn listen(at: SocketAddr, name: &str, params: &Params) -> Result<SocketAddr, KernelError> {
    let failed = KernelError::host(format!("listening at {at}"));
    match name {
        "udp-send" => on_datagrams(at, "peer", |socket| receive(&socket)).map_err(failed),
        "udp-request" => {
            let sizes = request::sizes(params)?;
            on_datagrams(at, "peer", move |socket| request::respond_to_datagrams(&socket, sizes)).map_err(failed)
        }
        "tcp-stream" => on_connections(at, throw_away).map_err(failed),
        "tcp-request" => {
            let sizes = request::sizes(params)?;
            on_connections(at, move |stream| answer(stream, sizes)).map_err(failed)
        }
        _ => Err(KernelError::Parameter { key: "kernel", value: name.into(), why: "talks to nobody elsewhere".into() }),
    }
}

fn on_datagrams(at: SocketAddr, name: &str, serve: impl FnOnce(UdpSocket) + Send + 'static) -> io::Result<SocketAddr> {
    let socket = UdpSocket::bind(at)?;
    let bound = socket.local_addr()?;
    thread::Builder::new().name(name.into()).spawn(move || serve(socket))?;
    Ok(bound)
}

fn on_connections(at: SocketAddr, serve: impl Fn(TcpStream) + Clone + Send + 'static) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(at)?;
    let bound = listener.local_addr()?;
    thread::Builder::new().name("peer".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            // A connection that gets no thread is closed, which its other end tells.
            let _ = thread::Builder::new().name("peer".into()).spawn(move || serve(stream));
        }
    })?;
    Ok(bound)
}

fn receive(socket: &UdpSocket) {
    let mut datagram = vec![0; 1 << 16];
    loop {
        // What comes of a datagram of ours that nobody took is told as an error of the next call.
        let _ = socket.recv(&mut datagram);
    }
}

fn throw_away(mut stream: TcpStream) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while matches!(stream.read(&mut chunk), Ok(1..)) {}
}

fn answer(stream: TcpStream, sizes: Sizes) {
    if stream.set_nodelay(true).is_ok() {
        request::respond(stream, sizes);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, Value};

    use super::*;
    use crate::testing::{build, fact, steps, Latencies};

    fn started(name: &str, params: &Value) -> SocketAddr {
        listen("127.0.0.1:0".parse().unwrap(), name, params.as_object().unwrap()).unwrap()
    }

    #[test]
    fn every_kernel_that_talks_finds_its_peer() {
        let sizes = json!({ "request_bytes": 100, "response_bytes": 9000, "to": "peer" });
        for (name, mut params) in
            [("udp-send", json!({})), ("tcp-stream", json!({})), ("udp-request", sizes.clone()), ("tcp-request", sizes)]
        {
            params["to"] = json!(started(name, &params).to_string());
            let (mut first, mut second) = (build(name, params.clone()), build(name, params));
            for kernel in [first.as_mut(), second.as_mut()] {
                assert!(steps(kernel, 5, &mut Latencies::default()) >= 1.0, "{name}");
                if name.ends_with("request") {
                    assert!(fact(kernel, "lost") < 0.5, "{name}");
                }
            }
        }
    }

    #[test]
    fn a_kernel_that_talks_to_nobody_has_no_peer() {
        let error = listen("127.0.0.1:0".parse().unwrap(), "integer", &Params::new()).unwrap_err().to_string();
        assert!(error.contains("integer") && error.contains("talks to nobody"), "{error}");
    }
}
