//! The remote end of a network kernel that uses a real interface (`to`): the same program as on loopback, but listening, for any
//! number of connections. It only answers; it does not measure.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;

use crate::request::{self, Sizes};
use crate::{peer, KernelError, Params};

/// Size of the buffer for discarded data.
const CHUNK_BYTES: usize = 256 << 10;

/// Starts threads that serve the kernel `name` with these parameters until the process ends. Returns the listening address.
///
/// # Errors
/// The kernel uses no network, a parameter is invalid, or the host refuses to listen at this address.
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
        _ => Err(KernelError::Parameter {
            key: "kernel",
            value: name.into(),
            why: "has no peer; choose a kernel with the parameter peer".into(),
        }),
    }
}

fn on_datagrams(at: SocketAddr, name: &str, serve: impl FnOnce(UdpSocket) + Send + 'static) -> io::Result<SocketAddr> {
    let socket = UdpSocket::bind(at)?;
    let bound = socket.local_addr()?;
    peer::spawn(name, move || serve(socket))?;
    Ok(bound)
}

fn on_connections(at: SocketAddr, serve: impl Fn(TcpStream) + Clone + Send + 'static) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(at)?;
    let bound = listener.local_addr()?;
    peer::spawn("peer", move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            // A connection that gets no thread is closed, which its other end reports.
            let _ = thread::Builder::new().name("peer".into()).spawn(move || serve(stream));
        }
    })?;
    Ok(bound)
}

fn receive(socket: &UdpSocket) {
    let mut datagram = vec![0; 1 << 16];
    loop {
        // If a sent datagram was refused, the next call reports it as an error, which is ignored.
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
    fn every_network_kernel_reaches_its_peer() {
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
    fn a_kernel_without_a_network_has_no_peer() {
        let error = listen("127.0.0.1:0".parse().unwrap(), "integer", &Params::new()).unwrap_err().to_string();
        assert!(error.contains("integer") && error.contains("has no peer"), "{error}");
    }
}
