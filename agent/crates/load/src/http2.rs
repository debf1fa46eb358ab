//! HTTP/2 (RFC 9113) on in-memory buffers; the caller reads and writes the connection. It polls the `h2` crate manually, because
//! the engine has no async runtime. It sends one request at a time, as a user's script does. It uses no sockets and no TLS, does not
//! interpret responses, and is as fast as `h2`.

use std::future::Future;
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use h2::client::{self, Connection, ResponseFuture, SendRequest};
use h2::RecvStream;
use partywall_wire::load::LoadErrorKind;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http1::Response;

/// Initial window: as large as in browsers, so that no download waits for this client.
const STREAM_WINDOW: u32 = 6 << 20;
const CONNECTION_WINDOW: u32 = 15 << 20;
/// Start of a connection (RFC 9113, section 3.4), and an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// A frame's length, type, flags and stream.
const FRAME_HEAD: usize = 9;
const SETTINGS: u8 = 4;

/// Buffers between the protocol and the socket.
#[derive(Debug, Default)]
struct Buffers {
    heard: Vec<u8>,
    read: usize,
    unsent: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
struct Pipe(Arc<Mutex<Buffers>>);

impl Pipe {
    fn buffers(&self) -> MutexGuard<'_, Buffers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncRead for Pipe {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut buffers = self.buffers();
        let left = &buffers.heard[buffers.read..];
        if left.is_empty() {
            return Poll::Pending;
        }
        let taken = left.len().min(into.remaining());
        into.put_slice(&left[..taken]);
        buffers.read += taken;
        if buffers.read == buffers.heard.len() {
            buffers.heard.clear();
            buffers.read = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        self.buffers().unsent.extend_from_slice(from);
        Poll::Ready(Ok(from.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Whether the protocol requested to be polled again.
#[derive(Debug, Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Progress of a response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    More,
    Complete,
}

/// Reason why there will be no response.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub(crate) struct Failed {
    pub kind: LoadErrorKind,
    pub why: String,
    /// The server said that it did not process the request (RFC 9113, 8.7), so another one does no harm, whatever its method.
    pub unprocessed: bool,
}

impl Failed {
    pub(crate) fn new(kind: LoadErrorKind, why: impl Into<String>) -> Self {
        Self { kind, why: why.into(), unprocessed: false }
    }

    /// Failure of a request, and not of its whole connection.
    fn of_request(error: h2::Error) -> Self {
        let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        // Only requests after the last one that the server names fail by its GOAWAY.
        let unprocessed = error.is_remote() && (refused || error.is_go_away());
        Self { unprocessed, ..error.into() }
    }
}

impl From<h2::Error> for Failed {
    fn from(error: h2::Error) -> Self {
        let kind = match &error {
            error if error.is_reset() && error.is_remote() => LoadErrorKind::Reset,
            error if error.is_go_away() && error.is_remote() => LoadErrorKind::Closed,
            _ => LoadErrorKind::BadResponse,
        };
        Self::new(kind, format!("HTTP/2: {error}"))
    }
}

/// Protocol state of one connection.
pub(crate) struct Http2 {
    pipe: Pipe,
    woken: Arc<Woken>,
    connection: Pin<Box<Connection<Pipe, Bytes>>>,
    /// None after this side sent GOAWAY.
    sender: Option<SendRequest<Bytes>>,
    answer: Option<ResponseFuture>,
    body: Option<RecvStream>,
    over: bool,
}

impl std::fmt::Debug for Http2 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http2").field("over", &self.over).finish_non_exhaustive()
    }
}

impl Http2 {
    /// Creates the state, with the preface ready to be sent.
    pub(crate) fn new() -> Result<Box<Self>, Failed> {
        let pipe = Pipe::default();
        let mut builder = client::Builder::new();
        builder.enable_push(false).initial_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
        let mut handshake = Box::pin(builder.handshake(pipe.clone()));
        let Poll::Ready(begun) = handshake.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            return Err(Failed::new(LoadErrorKind::System, "HTTP/2: a buffer in memory was not ready"));
        };
        let (sender, connection) = begun?;
        let connection = Box::pin(connection);
        let mut new = Self { pipe, woken: Arc::default(), connection, sender: Some(sender), answer: None, body: None, over: false };
        new.drive()?;
        Ok(Box::new(new))
    }

    /// Queues a request for sending.
    pub(crate) fn ask(&mut self, request: http::Request<()>, body: Vec<u8>) -> Result<(), Failed> {
        let gone = || Failed::new(LoadErrorKind::Closed, "HTTP/2: the connection has ended");
        let sender = self.sender.as_mut().ok_or_else(gone)?;
        let (answer, mut stream) = sender.send_request(request, body.is_empty())?;
        if !body.is_empty() {
            stream.send_data(body.into(), true)?;
        }
        self.answer = Some(answer);
        self.body = None;
        self.drive()
    }

    /// Announces that no more requests follow.
    pub(crate) fn say_goodbye(&mut self) {
        (self.sender, self.answer, self.body) = (None, None, None);
        // A failure at this point has no effect.
        let _ = self.drive();
    }

    /// Whether no more requests are possible, because the server or this side sent GOAWAY.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Takes the bytes to send.
    pub(crate) fn take_unsent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.pipe.buffers().unsent)
    }

    /// Handles the next bytes of the stream, and updates `response`.
    pub(crate) fn take(&mut self, bytes: &[u8], response: &mut Response) -> Result<Progress, Failed> {
        self.pipe.buffers().heard.extend_from_slice(bytes);
        let driven = self.drive();
        // A response that arrived before the connection failed is valid.
        let progress = self.hear(response)?;
        if progress == Progress::More {
            driven?;
        }
        // Reading freed window space, which must be announced to the server.
        match self.drive() {
            Err(failed) if progress == Progress::More => Err(failed),
            _ => Ok(progress),
        }
    }

    fn hear(&mut self, response: &mut Response) -> Result<Progress, Failed> {
        let waker = self.waker();
        let mut context = Context::from_waker(&waker);
        if let Some(answer) = &mut self.answer {
            let Poll::Ready(head) = Pin::new(answer).poll(&mut context) else { return Ok(Progress::More) };
            let (parts, body) = head.map_err(Failed::of_request)?.into_parts();
            response.head_came(parts.status.as_u16(), parts.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())));
            self.answer = None;
            self.body = Some(body);
        }
        let Some(body) = &mut self.body else { return Ok(Progress::More) };
        loop {
            match body.poll_data(&mut context) {
                Poll::Pending => return Ok(Progress::More),
                Poll::Ready(None) => break,
                Poll::Ready(Some(piece)) => {
                    let piece = piece?;
                    let too_much = |bad: crate::http1::BadResponse| Failed::new(LoadErrorKind::BadResponse, bad.to_string());
                    response.body_came(&piece).map_err(too_much)?;
                    body.flow_control().release_capacity(piece.len())?;
                }
            }
        }
        self.body = None;
        Ok(Progress::Complete)
    }

    /// Lets the protocol process all received bytes and queued requests.
    fn drive(&mut self) -> Result<(), Failed> {
        if self.over {
            return Ok(());
        }
        let waker = self.waker();
        loop {
            self.woken.0.store(false, Ordering::Relaxed);
            match self.connection.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(outcome) => {
                    self.over = true;
                    return Ok(outcome?);
                }
                Poll::Pending if self.woken.0.load(Ordering::Relaxed) => {}
                Poll::Pending => return Ok(()),
            }
        }
    }

    fn waker(&self) -> Waker {
        Waker::from(self.woken.clone())
    }
}

/// For fuzzing: handles `bytes` in pieces of `size` as a server's answer to one request.
#[doc(hidden)]
pub fn check_http2(bytes: &[u8], size: usize) {
    let request = http::Request::builder().uri("http://h.test/").body(());
    let (Ok(mut http2), Ok(request)) = (Http2::new(), request) else { return };
    let mut response = Response::default();
    response.begin(crate::http1::Wanted { head: true, body: true, ..Default::default() });
    if http2.ask(request, Vec::new()).is_err() {
        return;
    }
    for piece in bytes.chunks(size.max(1)) {
        let progress = http2.take(piece, &mut response);
        let _ = http2.take_unsent();
        if progress != Ok(Progress::More) {
            return;
        }
    }
}

/// Checks that the server accepts HTTP/2 without negotiation. Returns the reason if it does not.
pub(crate) fn greet(stream: &mut (impl Read + Write + ?Sized)) -> Result<(), String> {
    let mut head = [0; FRAME_HEAD];
    let greeted = stream.write_all(PREFACE).and_then(|()| stream.read_exact(&mut head));
    match greeted {
        Ok(()) if head[3] == SETTINGS && head[5..] == [0; 4] => Ok(()),
        Ok(()) => Err(format!("its first bytes are {:?}", String::from_utf8_lossy(&head))),
        Err(error) => Err(error.to_string()),
    }
}
