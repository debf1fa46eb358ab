//! Parses HTTP/1.1 responses (RFC 9112) incrementally, in pieces of any size. Callers that need the head or the body request it
//! beforehand. It uses no sockets and no clock.

use std::borrow::Cow;
use std::io::Read;

use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use memchr::memchr;

/// Maximum length of a head.
const HEAD_MAX: usize = 64 << 10;
/// Maximum length of a body that is kept for checks or extraction. A longer one ends the connection.
pub(crate) const KEPT_MAX: usize = 64 << 20;
/// Maximum length of a chunk-size line, including extensions.
const CHUNK_LINE_MAX: usize = 4 << 10;

/// The parts of a response to keep, in addition to its status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is requested separately")]
pub(crate) struct Wanted {
    /// The request was HEAD, so no body follows, whatever the head contains.
    pub no_body: bool,
    /// Keep the header lines.
    pub head: bool,
    /// Keep the header lines if they contain a cookie.
    pub cookies: bool,
    /// Keep the header lines of a redirect.
    pub redirects: bool,
    /// Keep the body.
    pub body: bool,
}

/// Reason why bytes are not a valid response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadResponse {
    #[error("the response does not begin with an HTTP/1 status line")]
    StatusLine,
    #[error("a header line has no colon or an invalid name")]
    Header,
    #[error("Content-Length is not a number, or several differ")]
    Length,
    #[error("the size of a chunk is invalid")]
    Chunk,
    #[error("the head is larger than 64 KiB")]
    LongHead,
    #[error("the server switches protocols without a request to do so")]
    Upgrade,
    #[error("the body is larger than 64 MiB, too large for checks and extraction")]
    LongBody,
}

/// Progress of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The response is incomplete.
    More,
    /// It is complete, and used this many of the given bytes.
    Complete(usize),
}

/// State of a response at the end of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtEnd {
    /// No byte had arrived.
    Nothing,
    /// The end of the stream completes it, as its head declared.
    Complete,
    /// It was incomplete.
    Truncated,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    /// This many body bytes are left.
    Counted(u64),
    UntilClose,
    /// Its end is signalled outside its bytes.
    UntilSignalled,
    ChunkSize,
    ChunkData(u64),
    ChunkEnd,
    Trailer,
    Done,
}

/// One response that is being received.
#[derive(Clone, Debug, Default)]
pub(crate) struct Response {
    state: State,
    wanted: Wanted,
    status: u16,
    keep_alive: bool,
    // An incomplete line or head.
    partial: Vec<u8>,
    head: Vec<u8>,
    body: Vec<u8>,
    body_bytes: u64,
}

/// Framing of the response, as declared in its head.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each has a header of its own")]
struct Framing {
    length: Option<u64>,
    coded: bool,
    chunked: bool,
    close: bool,
    keep_alive: bool,
    cookies: bool,
}

impl Response {
    /// Resets the state for the next response.
    pub(crate) fn begin(&mut self, wanted: Wanted) {
        self.state = State::Head;
        self.wanted = wanted;
        self.status = 0;
        self.body_bytes = 0;
        for kept in [&mut self.partial, &mut self.head, &mut self.body] {
            if kept.capacity() > 64 << 10 {
                *kept = Vec::new();
            } else {
                kept.clear();
            }
        }
    }

    pub(crate) fn status(&self) -> u16 {
        self.status
    }

    /// Whether the connection may be used again.
    pub(crate) fn keeps_alive(&self) -> bool {
        self.keep_alive
    }

    /// The body, if it was requested.
    #[cfg(test)]
    fn body(&self) -> &[u8] {
        &self.body
    }

    /// The body, if it was requested, without its content and transfer codings. Codings that are not supported stay.
    /// An error if it is too long without them.
    pub(crate) fn decoded_body(&self) -> Result<Cow<'_, [u8]>, BadResponse> {
        let codings = ["content-encoding", "transfer-encoding"].into_iter().flat_map(|name| self.header(name)).flat_map(elements);
        let codings: Vec<_> = codings.filter(|coding| !coding.eq_ignore_ascii_case(b"chunked")).collect();
        let mut body = Cow::Borrowed(&*self.body);
        for coding in codings.into_iter().rev().filter(|coding| !is_identity(coding)) {
            match decoded(coding, &body, KEPT_MAX)? {
                Some(plain) => body = Cow::Owned(plain),
                None => break,
            }
        }
        Ok(body)
    }

    /// Whether lines of the head were kept.
    pub(crate) fn has_head(&self) -> bool {
        !self.head.is_empty()
    }

    pub(crate) fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// The values of a header, in order. Empty if the head was not requested.
    pub(crate) fn header<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> + 'a {
        headers(&self.head)
            .flatten()
            .filter(move |(known, _)| known.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, value)| value.trim_ascii())
    }

    /// Parses the next bytes of the stream.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<Progress, BadResponse> {
        let mut at = 0;
        while self.state != State::Done {
            let used = self.step(&bytes[at..])?;
            at += used;
            if at == bytes.len() && self.state != State::Done {
                return Ok(Progress::More);
            }
        }
        Ok(Progress::Complete(at))
    }

    /// Sets the head of a response that did not arrive as HTTP/1.
    pub(crate) fn head_came<'h>(&mut self, status: u16, headers: impl Iterator<Item = (&'h str, &'h [u8])>) {
        // The response is incomplete if the connection ends now.
        (self.status, self.keep_alive, self.state) = (status, true, State::UntilSignalled);
        let wanted = self.wanted;
        if wanted.head || wanted.cookies || wanted.redirects && (300..400).contains(&status) {
            for (name, value) in headers {
                for part in [name.as_bytes(), b": ", value, b"\r\n"] {
                    self.head.extend_from_slice(part);
                }
            }
        }
    }

    /// The next bytes of the body of such a response.
    pub(crate) fn body_came(&mut self, bytes: &[u8]) -> Result<(), BadResponse> {
        self.take_body(bytes, u64::MAX).map(drop)
    }

    /// The state of the response if the stream ends here.
    pub(crate) fn at_end(&self) -> AtEnd {
        match self.state {
            State::Head if self.partial.is_empty() && self.status == 0 => AtEnd::Nothing,
            State::UntilClose | State::Done => AtEnd::Complete,
            _ => AtEnd::Truncated,
        }
    }

    /// Parses some of `bytes`, all of them unless the state changes.
    fn step(&mut self, bytes: &[u8]) -> Result<usize, BadResponse> {
        match self.state {
            State::Head => self.take_head(bytes),
            State::Counted(left) => {
                let used = self.take_body(bytes, left)?;
                self.state = if left == used as u64 { State::Done } else { State::Counted(left - used as u64) };
                Ok(used)
            }
            State::UntilClose => self.take_body(bytes, u64::MAX),
            State::ChunkSize => self.take_chunk_size(bytes),
            State::ChunkData(left) => {
                let used = self.take_body(bytes, left)?;
                self.state = if left == used as u64 { State::ChunkEnd } else { State::ChunkData(left - used as u64) };
                Ok(used)
            }
            State::ChunkEnd => {
                let (used, line) = self.line(bytes, BadResponse::Chunk)?;
                match line {
                    Some(line) if line.is_empty() => self.state = State::ChunkSize,
                    Some(_) => return Err(BadResponse::Chunk),
                    None => {}
                }
                Ok(used)
            }
            State::Trailer => {
                let (used, line) = self.line(bytes, BadResponse::Header)?;
                if line.is_some_and(|line| line.is_empty()) {
                    self.state = State::Done;
                }
                Ok(used)
            }
            State::UntilSignalled | State::Done => Ok(0),
        }
    }

    fn take_body(&mut self, bytes: &[u8], left: u64) -> Result<usize, BadResponse> {
        let used = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        self.body_bytes += used as u64;
        if self.wanted.body {
            if self.body.len() + used > KEPT_MAX {
                return Err(BadResponse::LongBody);
            }
            self.body.extend_from_slice(&bytes[..used]);
        }
        Ok(used)
    }

    fn take_chunk_size(&mut self, bytes: &[u8]) -> Result<usize, BadResponse> {
        let (used, line) = self.line(bytes, BadResponse::Chunk)?;
        if let Some(line) = line {
            let digits = line.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
            let size = number(digits, 16).ok_or(BadResponse::Chunk)?;
            self.state = if size == 0 { State::Trailer } else { State::ChunkData(size) };
        }
        Ok(used)
    }

    /// Number of used bytes, and the line without its end if it is complete.
    fn line(&mut self, bytes: &[u8], too_long: BadResponse) -> Result<(usize, Option<Vec<u8>>), BadResponse> {
        let end = memchr(b'\n', bytes);
        let piece = &bytes[..end.unwrap_or(bytes.len())];
        if self.partial.len() + piece.len() > CHUNK_LINE_MAX {
            return Err(too_long);
        }
        self.partial.extend_from_slice(piece);
        let Some(end) = end else { return Ok((bytes.len(), None)) };
        let mut line = std::mem::take(&mut self.partial);
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok((end + 1, Some(line)))
    }

    fn take_head(&mut self, bytes: &[u8]) -> Result<usize, BadResponse> {
        if self.partial.is_empty() {
            return match head_end(bytes, 0) {
                Some(end) => self.read_head(&bytes[..end]).map(|()| end),
                None => self.keep_partial(bytes),
            };
        }
        // The line end may span pieces, so search again from the start of the last line.
        let before = self.partial.len();
        is_beginning(&self.partial, bytes)?;
        let from = self.partial.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let room = (HEAD_MAX + 1).saturating_sub(before).min(bytes.len());
        self.partial.extend_from_slice(&bytes[..room]);
        let Some(end) = head_end(&self.partial, from) else {
            return if self.partial.len() > HEAD_MAX { Err(BadResponse::LongHead) } else { Ok(room) };
        };
        let mut head = std::mem::take(&mut self.partial);
        head.truncate(end);
        self.read_head(&head).map(|()| end - before)
    }

    fn keep_partial(&mut self, bytes: &[u8]) -> Result<usize, BadResponse> {
        is_beginning(&[], bytes)?;
        if bytes.len() > HEAD_MAX {
            return Err(BadResponse::LongHead);
        }
        self.partial.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// Parses a whole head, including its empty line.
    fn read_head(&mut self, head: &[u8]) -> Result<(), BadResponse> {
        let first_end = memchr(b'\n', head).ok_or(BadResponse::StatusLine)?;
        let (minor, status) = status_line(trim_line(&head[..first_end])).ok_or(BadResponse::StatusLine)?;
        let framing = framing(&head[first_end + 1..])?;
        self.status = status;
        match status {
            101 => return Err(BadResponse::Upgrade),
            // Interim response: the final one follows.
            100..=199 => return Ok(()),
            _ => {}
        }
        // HTTP/1.0 has no transfer codings: the framing of such a response may be wrong (RFC 9112, section 6.1).
        self.keep_alive = !framing.close && (minor > 0 || framing.keep_alive && !framing.coded);
        let wanted = self.wanted;
        if wanted.head || wanted.cookies && framing.cookies || wanted.redirects && (300..400).contains(&status) {
            self.head.extend_from_slice(&head[first_end + 1..]);
        }
        self.state = match framing {
            _ if wanted.no_body || status == 204 || status == 304 => State::Done,
            Framing { chunked: true, .. } => State::ChunkSize,
            Framing { coded: false, length: Some(0), .. } => State::Done,
            Framing { coded: false, length: Some(length), .. } => State::Counted(length),
            Framing { .. } => self.until_close(),
        };
        Ok(())
    }

    fn until_close(&mut self) -> State {
        self.keep_alive = false;
        State::UntilClose
    }
}

/// Rejects an invalid status line by its first bytes, without waiting for its end.
fn is_beginning(before: &[u8], bytes: &[u8]) -> Result<(), BadResponse> {
    let mut first = before.iter().chain(bytes);
    let same = b"HTTP/".iter().all(|wanted| first.next().is_none_or(|byte| byte == wanted));
    if same {
        Ok(())
    } else {
        Err(BadResponse::StatusLine)
    }
}

/// Index after the head's empty line. `from` is the start of a line.
fn head_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut start = from;
    while let Some(length) = memchr(b'\n', &bytes[start..]) {
        if length == 0 || (length == 1 && bytes[start] == b'\r') {
            return Some(start + length + 1);
        }
        start += length + 1;
    }
    None
}

/// The rest of `bytes` after empty lines. Some servers end a body with one that its length does not include.
pub(crate) fn without_empty_lines(bytes: &[u8]) -> &[u8] {
    let begin = bytes.iter().position(|byte| !b"\r\n".contains(byte));
    &bytes[begin.unwrap_or(bytes.len())..]
}

fn trim_line(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Minor version and status of `HTTP/1.x NNN reason`.
fn status_line(line: &[u8]) -> Option<(u8, u16)> {
    let [b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor @ (b'0' | b'1'), b' ', a, b, c, rest @ ..] = line else { return None };
    let digits = [a, b, c];
    if !digits.iter().all(|digit| digit.is_ascii_digit()) || rest.first().is_some_and(|&byte| byte != b' ') {
        return None;
    }
    let status = digits.iter().fold(0, |status, &&digit| status * 10 + u16::from(digit - b'0'));
    (status >= 100).then_some((minor - b'0', status))
}

/// Names and values of a head without its status line. Folded continuation lines are skipped.
fn headers(mut rest: &[u8]) -> impl Iterator<Item = Result<(&[u8], &[u8]), BadResponse>> {
    std::iter::from_fn(move || loop {
        let end = memchr(b'\n', rest)?;
        let line = trim_line(&rest[..end]);
        rest = &rest[end + 1..];
        if !matches!(line.first(), None | Some(b' ' | b'\t')) {
            let colon = memchr(b':', line).filter(|&colon| colon > 0 && line[colon - 1] != b' ');
            return Some(colon.map(|colon| (&line[..colon], &line[colon + 1..])).ok_or(BadResponse::Header));
        }
    })
}

fn framing(head: &[u8]) -> Result<Framing, BadResponse> {
    let mut framing = Framing::default();
    for header in headers(head) {
        let (name, value) = header?;
        // Few names concern framing, and the length excludes most others.
        match name.len() {
            14 if name.eq_ignore_ascii_case(b"content-length") => framing.add_length(value)?,
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => framing.add_codings(value),
            10 if name.eq_ignore_ascii_case(b"connection") => framing.add_options(value),
            10 if name.eq_ignore_ascii_case(b"set-cookie") => framing.cookies = true,
            _ => {}
        }
    }
    Ok(framing)
}

impl Framing {
    fn add_length(&mut self, value: &[u8]) -> Result<(), BadResponse> {
        for part in value.split(|&byte| byte == b',') {
            let length = number(part.trim_ascii(), 10).ok_or(BadResponse::Length)?;
            if self.length.is_some_and(|before| before != length) {
                return Err(BadResponse::Length);
            }
            self.length = Some(length);
        }
        Ok(())
    }

    /// The last coding of all lines decides. `identity`, which RFC 2616 still had, is no coding.
    fn add_codings(&mut self, value: &[u8]) {
        for coding in elements(value).filter(|coding| !is_identity(coding)) {
            self.coded = true;
            self.chunked = coding.eq_ignore_ascii_case(b"chunked");
        }
    }

    fn add_options(&mut self, value: &[u8]) {
        for option in elements(value) {
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }
}

/// The elements of a list, of which empty ones do not count (RFC 9110, section 5.6.1).
fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

fn is_identity(coding: &[u8]) -> bool {
    coding.eq_ignore_ascii_case(b"identity")
}

/// `None` if the coding is not supported, or if the bytes are not in it. An error if they take more than `max` bytes without it.
fn decoded(coding: &[u8], bytes: &[u8], max: usize) -> Result<Option<Vec<u8>>, BadResponse> {
    let all = |stream: &mut dyn Read| {
        let mut plain = Vec::new();
        stream.take(max as u64 + 1).read_to_end(&mut plain).ok().map(|_| plain)
    };
    let plain = match coding.to_ascii_lowercase().as_slice() {
        b"gzip" | b"x-gzip" => all(&mut MultiGzDecoder::new(bytes)),
        // Some servers leave out the zlib wrapper (RFC 9110, section 8.4.1.2).
        b"deflate" => all(&mut ZlibDecoder::new(bytes)).or_else(|| all(&mut DeflateDecoder::new(bytes))),
        _ => None,
    };
    if plain.as_ref().is_some_and(|plain| plain.len() > max) {
        return Err(BadResponse::LongBody);
    }
    Ok(plain)
}

fn number(digits: &[u8], base: u32) -> Option<u64> {
    let add = |number: u64, &digit: &u8| {
        let value = char::from(digit).to_digit(base)?;
        number.checked_mul(u64::from(base))?.checked_add(u64::from(value))
    };
    (!digits.is_empty()).then(|| digits.iter().try_fold(0, add))?
}

/// For fuzzing: parses `bytes` as a response, whole and in pieces of `size`.
///
/// # Panics
/// If the result depends on the pieces, or if the parser uses more bytes than there are.
#[doc(hidden)]
pub fn check_response(bytes: &[u8], size: usize, to_head: bool) {
    let wanted = Wanted { no_body: to_head, head: true, cookies: true, redirects: true, body: true };
    let whole = read(bytes, wanted, usize::MAX);
    let pieces = read(bytes, wanted, size.max(1));
    match (whole, pieces) {
        (Ok((first, used, end)), Ok((second, used_too, end_too))) => {
            assert!(used <= bytes.len());
            assert_eq!((used, end, first.status, first.keep_alive), (used_too, end_too, second.status, second.keep_alive));
            assert_eq!((&first.head, &first.body, first.body_bytes), (&second.head, &second.body, second.body_bytes));
            // A body that does not match its declared compression is kept unchanged.
            let _ = (first.decoded_body(), first.header("set-cookie").count());
        }
        // A head that arrives in one piece may have any length; one in pieces is limited.
        (_, Err(BadResponse::LongHead)) => {}
        (Err(why), Err(why_too)) => assert_eq!(why, why_too),
        (first, second) => panic!("whole it is {first:?}, and in pieces of {size} {second:?}"),
    }
}

/// The parsed response, number of used bytes, and the state at the end of the stream if the response was open then.
type Outcome = Result<(Response, usize, Option<AtEnd>), BadResponse>;

/// Parses `stream` in pieces of `size`, then its end if the response is still open.
fn read(stream: &[u8], wanted: Wanted, size: usize) -> Outcome {
    let mut response = Response::default();
    response.begin(wanted);
    let mut at = 0;
    for piece in stream.chunks(size) {
        match response.take(piece)? {
            Progress::More => at += piece.len(),
            Progress::Complete(used) => return Ok((response, at + used, None)),
        }
    }
    let end = response.at_end();
    Ok((response, at, Some(end)))
}

#[cfg(test)]
mod tests {
    use flate2::read::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use flate2::Compression;

    use super::*;
    use proptest::prelude::*;

    const ALL: Wanted = Wanted { no_body: false, head: true, cookies: true, redirects: true, body: true };

    fn whole(stream: &str) -> Outcome {
        read(stream.as_bytes(), ALL, usize::MAX)
    }

    #[test]
    fn a_counted_body_ends_where_its_length_says() {
        let stream = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1";
        let (response, used, end) = whole(stream).unwrap();
        assert_eq!((response.status(), response.body(), end, response.keeps_alive()), (200, b"hello".as_slice(), None, true));
        assert_eq!(&stream[used..], "HTTP/1.1");
        assert_eq!(response.header("content-type").collect::<Vec<_>>(), [b"text/plain"]);
    }

    #[test]
    fn chunks_extensions_and_trailers_are_read() {
        let (response, _, end) =
            whole("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n5;x=y\r\nhello\r\n6 \r\n world\r\n0\r\nA: b\r\n\r\n")
                .unwrap();
        assert_eq!((response.body(), response.body_bytes(), end), (b"hello world".as_slice(), 11, None));
    }

    #[test]
    fn the_last_transfer_coding_frames_the_body_and_identity_is_none() {
        for (head, framing) in [
            ("Transfer-Encoding: identity\r\nContent-Length: 2", "counted"),
            ("Content-Length: 2\r\nTransfer-Encoding: Identity", "counted"),
            ("Transfer-Encoding:\r\nContent-Length: 2", "counted"),
            ("Transfer-Encoding: identity, chunked", "chunked"),
            ("Transfer-Encoding: chunked, identity", "chunked"),
            ("Transfer-Encoding: chunked,", "chunked"),
            ("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", "chunked"),
            ("Transfer-Encoding: chunked\r\nContent-Length: 2", "chunked"),
            ("Transfer-Encoding: chunked, gzip", "until the end"),
            ("Transfer-Encoding: gzip\r\nContent-Length: 2", "until the end"),
            ("Transfer-Encoding: identity", "until the end"),
        ] {
            let stream = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{}", if framing == "chunked" { "2\r\nok\r\n0\r\n\r\n" } else { "ok" });
            let (response, _, end) = whole(&stream).unwrap();
            assert_eq!(response.body(), b"ok", "{head}");
            assert_eq!(
                (end.is_none(), response.keeps_alive()),
                if framing == "until the end" { (false, false) } else { (true, true) },
                "{head}"
            );
        }
    }

    #[test]
    fn a_coded_response_of_http_1_0_is_the_last_of_its_connection() {
        let head = "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        assert!(!whole(head).unwrap().0.keeps_alive());
    }

    fn coded(mut stream: impl Read) -> Vec<u8> {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        coded(GzEncoder::new(bytes, Compression::fast()))
    }

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        coded(ZlibEncoder::new(bytes, Compression::fast()))
    }

    fn raw(bytes: &[u8]) -> Vec<u8> {
        coded(DeflateEncoder::new(bytes, Compression::fast()))
    }

    #[test]
    fn bodies_are_decoded_from_their_last_coding_to_their_first() {
        for (head, body) in [
            ("Content-Encoding: GZIP", gzip(b"plain")),
            ("Content-Encoding: identity", b"plain".to_vec()),
            ("Content-Encoding: deflate", zlib(b"plain")),
            ("Content-Encoding: deflate", raw(b"plain")),
            ("Content-Encoding: deflate, gzip", gzip(&zlib(b"plain"))),
            ("Content-Encoding: gzip\r\nTransfer-Encoding: gzip", gzip(&gzip(b"plain"))),
            ("Content-Encoding: br", b"plain".to_vec()),
            ("Content-Encoding: gzip", b"plain".to_vec()),
        ] {
            let stream = [format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n").as_bytes(), &body].concat();
            let (response, _, _) = read(&stream, ALL, usize::MAX).unwrap();
            assert_eq!(response.decoded_body().as_deref(), Ok(b"plain".as_slice()), "{head}");
        }
    }

    #[test]
    fn a_body_that_is_too_long_without_its_coding_is_refused() {
        for (coding, bytes) in [(b"gzip".as_slice(), gzip(b"plain")), (b"deflate", zlib(b"plain")), (b"deflate", raw(b"plain"))] {
            assert_eq!(decoded(coding, &bytes, 5), Ok(Some(b"plain".to_vec())));
            assert_eq!(decoded(coding, &bytes, 4), Err(BadResponse::LongBody));
        }
        let bomb = gzip(&vec![b' '; KEPT_MAX + 1]);
        let stream = [b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n".as_slice(), &bomb].concat();
        let (response, _, _) = read(&stream, ALL, usize::MAX).unwrap();
        assert_eq!(response.decoded_body(), Err(BadResponse::LongBody));
    }

    #[test]
    fn a_body_without_length_ends_with_the_stream() {
        let (response, _, end) = whole("HTTP/1.0 200 OK\r\n\r\nall there is").unwrap();
        assert_eq!((response.body(), end, response.keeps_alive()), (b"all there is".as_slice(), Some(AtEnd::Complete), false));
    }

    #[test]
    fn responses_without_a_body_end_with_their_head() {
        for status in ["204 No Content", "304 Not Modified", "200 OK\r\nContent-Length: 0"] {
            assert_eq!(whole(&format!("HTTP/1.1 {status}\r\n\r\n")).unwrap().2, None, "{status}");
        }
        let head = Wanted { no_body: true, ..ALL };
        assert_eq!(read(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", head, 7).unwrap().2, None);
    }

    #[test]
    fn interim_responses_are_skipped() {
        let (response, _, _) = whole(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 1\r\n\r\nx",
        )
        .unwrap();
        assert_eq!((response.status(), response.body(), response.header("link").count()), (201, b"x".as_slice(), 0));
    }

    #[test]
    fn a_truncated_response_is_distinguished_from_one_that_never_began() {
        assert_eq!(whole("").unwrap().2, Some(AtEnd::Nothing));
        for cut in ["HTT", "HTTP/1.1 200 OK\r\nA", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", "HTTP/1.1 100 Continue\r\n\r\n"] {
            assert_eq!(whole(cut).unwrap().2, Some(AtEnd::Truncated), "{cut}");
        }
        assert_eq!(whole("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n").unwrap().2, Some(AtEnd::Truncated));
    }

    #[test]
    fn an_invalid_response_is_refused_by_name() {
        for (stream, why) in [
            ("SSH-2.0-x\r\n", BadResponse::StatusLine),
            ("HTTP/2 200\r\n\r\n", BadResponse::StatusLine),
            ("HTTP/1.1 20\r\n\r\n", BadResponse::StatusLine),
            ("HTTP/1.1 2000 OK\r\n\r\n", BadResponse::StatusLine),
            ("HTTP/1.1 200 OK\r\nno colon\r\n\r\n", BadResponse::Header),
            ("HTTP/1.1 200 OK\r\nName : x\r\n\r\n", BadResponse::Header),
            ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", BadResponse::Length),
            ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", BadResponse::Length),
            ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", BadResponse::Length),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", BadResponse::Chunk),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", BadResponse::Chunk),
            ("HTTP/1.1 101 Switching Protocols\r\n\r\n", BadResponse::Upgrade),
        ] {
            assert_eq!(whole(stream).err(), Some(why), "{stream}");
        }
        let long = format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(HEAD_MAX));
        assert_eq!(whole(&long).err(), Some(BadResponse::LongHead));
        assert_eq!(read(long.as_bytes(), ALL, 1000).err(), Some(BadResponse::LongHead));
    }

    #[test]
    fn connections_are_kept_according_to_version_and_options() {
        for (head, kept) in [
            ("HTTP/1.1 200 OK", true),
            ("HTTP/1.1 200 OK\r\nConnection: Close", false),
            ("HTTP/1.1 200 OK\r\nconnection: upgrade, close", false),
            ("HTTP/1.0 200 OK", false),
            ("HTTP/1.0 200 OK\r\nConnection: keep-alive", true),
        ] {
            assert_eq!(whole(&format!("{head}\r\nContent-Length: 0\r\n\r\n")).unwrap().0.keeps_alive(), kept, "{head}");
        }
    }

    fn any_response() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
        let body = proptest::collection::vec(any::<u8>(), 0..300);
        (body, proptest::option::of(1..40_usize), "[a-zA-Z0-9-]{1,10}", "[ -~]{0,30}").prop_map(|(body, chunk, name, value)| {
            let framing = if chunk.is_some() { "Transfer-Encoding: chunked".into() } else { format!("Content-Length: {}", body.len()) };
            let mut stream = format!("HTTP/1.1 200 OK\r\nX-{name}: {value}\r\n{framing}\r\n\r\n").into_bytes();
            match chunk {
                None => stream.extend_from_slice(&body),
                Some(size) => {
                    for piece in body.chunks(size) {
                        stream.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
                        stream.extend_from_slice(piece);
                        stream.extend_from_slice(b"\r\n");
                    }
                    stream.extend_from_slice(b"0\r\n\r\n");
                }
            }
            (stream, body)
        })
    }

    proptest! {
        #[test]
        fn a_response_is_the_same_in_pieces_of_any_size((stream, body) in any_response(), size in 1..200_usize, after in "[ -~]{0,9}") {
            let mut longer = stream.clone();
            longer.extend_from_slice(after.as_bytes());
            let (response, used, end) = read(&longer, ALL, size).unwrap();
            prop_assert_eq!((response.body(), used, end), (body.as_slice(), stream.len(), None));
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..600), size in 1..64_usize, to_head: bool) {
            check_response(&bytes, size, to_head);
        }

        #[test]
        fn broken_responses_are_parsed_or_refused((mut stream, _) in any_response(), at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
            let place = at.index(stream.len());
            stream[place] = byte;
            stream.truncate(cut.index(stream.len()) + 1);
            for size in [1, 7, 1000] {
                check_response(&stream, size, false);
            }
        }
    }
}
