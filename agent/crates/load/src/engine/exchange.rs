//! Requests and responses: connecting, sending, reading, and the effect of a response on its user.

use std::sync::Arc;

use partywall_wire::load::{LoadErrorKind, Protocol};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustls::ClientConfig;
use slotmap::Key;

use super::{Worker, SECOND_NS};
use crate::address;
use crate::extract::{header_values, View};
use crate::http1::{without_empty_lines, AtEnd, Progress, Response, Wanted};
use crate::http2::{Failed, Http2, Progress as Progress2};
use crate::link::{kind_of, Link, LinkKey, Phase};
use crate::program::{is_idempotent, Parts, Request};
use crate::tls;
use crate::user::{Detour, Doing, Pending, User};

/// Maximum time for a server to close a connection that both sides agreed to close.
const DRAIN_NS: u64 = SECOND_NS;
const GONE: EventFlags = EventFlags::RDHUP.union(EventFlags::HUP).union(EventFlags::ERR);

impl Worker<'_> {
    // ---- sending ----

    /// Sends a user's next request, on its existing connection or a new one.
    pub(super) fn request(&mut self, user: u32, number: u32) {
        let request = &self.program.requests[number as usize];
        let this = &mut self.users[user as usize];
        this.moments.late_ns = 0;
        if this.timed {
            self.now_ns = self.shared.clock.now();
            let free_ns = this.moments.intended_ns.max(this.free_ns);
            this.moments.late_ns = self.now_ns.saturating_sub(free_ns);
            self.recorder.left(this.moments.late_ns);
        }
        this.doing = Doing::Asking;
        this.moments.sent_ns = self.now_ns;
        this.pending = Pending { request: number, deadline_ns: self.now_ns.saturating_add(request.timeout_ns), ..Pending::default() };
        self.recorder.open.in_flight += 1;
        let this = &self.users[user as usize];
        match request.broken_header(|variable| this.value(variable)) {
            None => self.ask(user),
            Some(header) => self.fail(user, LoadErrorKind::BadHeader, header),
        }
    }

    /// Sends a user's current request, or the request that a redirect requires.
    fn ask(&mut self, user: u32) {
        let this = &mut self.users[user as usize];
        this.moments.first_ns = 0;
        this.pending.tries = 0;
        let request = &self.program.requests[this.pending.request as usize];
        let place = this.pending.detour.as_ref().map_or(request.place, |detour| detour.place);
        let repeatable = is_idempotent(this.pending.method(request));
        let kept = this.links.iter().find(|(known, _)| *known == place).map(|(_, key)| *key);
        // A request that cannot be repeated is not sent into a connection that has already been closed.
        let closed = |key: &LinkKey| !repeatable && self.links.get(*key).is_some_and(Link::is_closed_by_peer);
        match kept {
            Some(key) if !closed(&key) => {
                self.arm_deadline(user);
                self.transmit(key, user);
            }
            closed => {
                if let Some(key) = closed {
                    self.close_link(key);
                }
                self.connect(user, place);
            }
        }
    }

    fn connect(&mut self, user: u32, place: u16) {
        let this = &mut self.users[user as usize];
        let connections = &self.program.source.connections;
        let addresses = &self.shared.addresses[usize::from(place)];
        let address = &addresses[(this.number as usize).wrapping_add(this.pending.tries as usize) % addresses.len()];
        let local = address.local_for(&connections.local_addresses, this.number);
        let timeout_ns = self.program.requests[this.pending.request as usize].timeout_ns;
        let (whole_ns, connect_ns) =
            (this.moments.sent_ns.saturating_add(timeout_ns), self.now_ns.saturating_add(connections.connect_timeout_ns));
        this.pending.deadline_ns = whole_ns.min(connect_ns);
        self.arm_deadline(user);
        let opened = Link::open(address, local, user, place, self.now_ns).and_then(|link| self.keep_link(link));
        match opened {
            Ok(key) => {
                self.recorder.open.connections_opened += 1;
                self.users[user as usize].links.push((place, key));
            }
            Err(error) => self.not_connected(user, place, kind_of(error), &detail_of(error)),
        }
    }

    /// Tries the next address of a server if the last one does not answer. The request fails if there is none.
    fn not_connected(&mut self, user: u32, place: u16, kind: LoadErrorKind, detail: &str) {
        use LoadErrorKind as Kind;
        let this = &mut self.users[user as usize];
        let timeout_ns = self.program.requests[this.pending.request as usize].timeout_ns;
        this.pending.tries += 1;
        let left = (this.pending.tries as usize) < self.shared.addresses[usize::from(place)].len()
            && self.now_ns < this.moments.sent_ns.saturating_add(timeout_ns);
        if left && matches!(kind, Kind::ConnectionRefused | Kind::Unreachable | Kind::ConnectTimeout | Kind::Reset) {
            self.recorder.open.rerouted += 1;
            self.connect(user, place);
        } else {
            self.fail(user, kind, detail);
        }
    }

    /// Stores a link and polls it.
    fn keep_link(&mut self, link: Link) -> Result<LinkKey, Errno> {
        self.links.try_insert_with_key(|key: LinkKey| link.watch(&self.poll, key.data().as_ffi()).map(|()| link))
    }

    pub(super) fn close_link(&mut self, key: LinkKey) {
        if let Some(link) = self.links.remove(key) {
            if link.phase != Phase::Draining {
                self.users[link.user as usize].links.retain(|(_, known)| *known != key);
            }
        }
    }

    pub(super) fn close_links_of(&mut self, user: u32) {
        while let Some(&(_, key)) = self.users[user as usize].links.last() {
            self.close_link(key);
        }
    }

    /// Sends a user's request over its connection.
    fn transmit(&mut self, key: LinkKey, user: u32) {
        let this = &mut self.users[user as usize];
        let request = &self.program.requests[this.pending.request as usize];
        let kind = &self.program.kinds[usize::from(this.kind)];
        let Some(link) = self.links.get_mut(key) else { return };
        this.moments.written_ns = this.moments.sent_ns.max(self.now_ns);
        link.phase = Phase::Busy;
        link.response.begin(Wanted {
            no_body: &*request.method == "HEAD",
            head: request.wants_head || request.wants_body,
            cookies: kind.cookies,
            redirects: request.redirects > 0,
            body: request.wants_body,
        });
        let has_cookies = kind.cookies && this.personal.as_ref().is_some_and(|personal| !personal.jar.is_empty());
        if link.http2.is_some() {
            self.transmit_http2(key, user);
            return;
        }
        let (sent, bytes) = match &request.fixed {
            Some(bytes) if !has_cookies && this.pending.detour.is_none() => (link.send(bytes), bytes.len()),
            _ => {
                self.request_buffer.clear();
                let place = &self.program.places[usize::from(link.place)];
                let rendered = Rendered::new(request, place, this, kind.cookies);
                request.render(place, &rendered.parts(), |variable| this.value(variable), &mut self.request_buffer);
                (link.send(&self.request_buffer), self.request_buffer.len())
            }
        };
        self.recorder.open.requests += 1;
        self.recorder.open.sent_bytes += bytes as u64;
        match sent {
            Ok(true) => {}
            Ok(false) => self.recorder.open.health.back_pressure += 1,
            Err(error) => self.broken(key, error),
        }
    }

    /// Like `transmit`, over HTTP/2.
    fn transmit_http2(&mut self, key: LinkKey, user: u32) {
        let this = &self.users[user as usize];
        let request = &self.program.requests[this.pending.request as usize];
        let Some(link) = self.links.get_mut(key) else { return };
        let place = &self.program.places[usize::from(link.place)];
        let Some(http2) = &mut link.http2 else { return };
        let rendered = Rendered::new(request, place, this, self.program.kinds[usize::from(this.kind)].cookies);
        let http_request = request.as_http2(place, &rendered.parts(), |variable| this.value(variable));
        self.recorder.open.requests += 1;
        self.recorder.open.sent_bytes += (rendered.target.len() + rendered.body.len()) as u64;
        let http_request =
            http_request.map_err(|error| Failed::new(LoadErrorKind::System, format!("the request does not fit HTTP/2: {error}")));
        match http_request.and_then(|http_request| http2.ask(http_request, rendered.body)).map(|()| link.flush_http2()) {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => self.recorder.open.health.back_pressure += 1,
            Ok(Err(error)) => self.broken(key, error),
            Err(Failed { kind, why, .. }) => self.lose(key, user, kind, &why),
        }
    }

    // ---- receiving ----

    /// Handles an event on a connection.
    pub(super) fn event(&mut self, key: LinkKey, flags: EventFlags) {
        let Some(link) = self.links.get_mut(key) else { return };
        if link.phase == Phase::Connecting {
            if flags.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP) {
                self.connected(key);
            }
            return;
        }
        if flags.contains(EventFlags::OUT) && !link.is_flushed() {
            if let Err(error) = link.flush() {
                self.broken(key, error);
                return;
            }
        }
        if flags.intersects(EventFlags::IN | GONE) {
            self.readable(key, flags.intersects(GONE));
        }
    }

    fn connected(&mut self, key: LinkKey) {
        self.now_ns = self.shared.clock.now();
        let Some(link) = self.links.get_mut(key) else { return };
        let (user, place, started_ns, outcome) = (link.user, link.place, link.started_ns, link.connected());
        match outcome {
            Ok(()) => {
                self.recorder.connected(self.now_ns.saturating_sub(started_ns));
                match &self.shared.trust {
                    Some(trust) if self.program.places[usize::from(place)].tls => {
                        let this = &mut self.users[user as usize];
                        let config = this.personal.get_or_insert_default().tls.get_or_insert_with(|| trust.of_user()).clone();
                        self.secure(key, config);
                    }
                    _ => self.ready(key),
                }
            }
            Err(error) => self.broken(key, error),
        }
    }

    /// Starts the TLS handshake.
    fn secure(&mut self, key: LinkKey, config: Arc<ClientConfig>) {
        let now_ns = self.now_ns;
        let Some(link) = self.links.get_mut(key) else { return };
        link.started_ns = now_ns;
        let user = link.user;
        match tls::connection(config, &self.program.places[usize::from(link.place)]) {
            Ok(connection) => {
                if let Err(error) = link.secure(connection) {
                    self.broken(key, error);
                }
            }
            Err(why) => self.lose(key, user, LoadErrorKind::Tls, &why),
        }
    }

    /// The connection is established: sends the request that it was opened for.
    fn ready(&mut self, key: LinkKey) {
        let Some(link) = self.links.get_mut(key) else { return };
        let user = link.user;
        let this = &mut self.users[user as usize];
        let timeout_ns = self.program.requests[this.pending.request as usize].timeout_ns;
        this.pending.deadline_ns = this.moments.sent_ns.saturating_add(timeout_ns);
        match self.choose_protocol(key) {
            Ok(()) => self.transmit(key, user),
            Err(Failed { kind, why, .. }) => self.lose(key, user, kind, &why),
        }
    }

    /// HTTP/2 if TLS negotiated it, or without TLS if the program requires it.
    fn choose_protocol(&mut self, key: LinkKey) -> Result<(), Failed> {
        let wanted = self.program.source.connections.protocol;
        if wanted == Protocol::Http1 {
            return Ok(());
        }
        let Some(link) = self.links.get_mut(key) else { return Ok(()) };
        if link.agreed_on_http2().unwrap_or(wanted == Protocol::Http2) {
            link.http2 = Some(Http2::new()?);
        } else if wanted == Protocol::Http2 {
            return Err(Failed::new(LoadErrorKind::Tls, "the server did not agree on HTTP/2"));
        }
        Ok(())
    }

    /// Handles encrypted bytes.
    fn unseal(&mut self, key: LinkKey, sealed: &[u8]) {
        let mut plain = std::mem::take(&mut self.plain_buffer);
        plain.clear();
        let now_ns = self.now_ns;
        let Some(link) = self.links.get_mut(key) else { return };
        let (user, phase, started_ns) = (link.user, link.phase, link.started_ns);
        match link.unseal(sealed, &mut plain) {
            Err(why) => self.lose(key, user, LoadErrorKind::Tls, &why),
            Ok(agreed) => {
                if agreed && phase == Phase::Handshaking {
                    self.recorder.secured(now_ns.saturating_sub(started_ns));
                    self.ready(key);
                }
                if !plain.is_empty() {
                    self.hear(key, &plain);
                }
            }
        }
        self.plain_buffer = plain;
    }

    /// Reads all available bytes. A read that does not fill the buffer has emptied the socket, unless the stream is at its end.
    fn readable(&mut self, key: LinkKey, gone: bool) {
        let mut buffer = std::mem::take(&mut self.read_buffer);
        while let Some(link) = self.links.get_mut(key) {
            let secured = link.is_secured();
            match link.receive(&mut buffer) {
                Ok(0) => self.stream_ended(key),
                Ok(taken) => {
                    self.now_ns = self.shared.clock.now();
                    self.recorder.open.received_bytes += taken as u64;
                    if secured {
                        self.unseal(key, &buffer[..taken]);
                    } else {
                        self.hear(key, &buffer[..taken]);
                    }
                    if taken < buffer.len() && !gone {
                        break;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => self.broken(key, error),
            }
        }
        self.read_buffer = buffer;
    }

    /// Handles the next bytes of a response.
    fn hear(&mut self, key: LinkKey, bytes: &[u8]) {
        let now_ns = self.now_ns;
        let Some(link) = self.links.get_mut(key) else { return };
        let (user, phase) = (link.user, link.phase);
        if link.http2.is_some() {
            self.hear_http2(key, bytes);
            return;
        }
        let begun = phase == Phase::Busy && link.response.at_end() != AtEnd::Nothing;
        let bytes = if begun { bytes } else { without_empty_lines(bytes) };
        match phase {
            _ if bytes.is_empty() => return,
            Phase::Busy => {}
            // Nothing uses bytes that arrive while a connection closes.
            Phase::Draining => return,
            Phase::Connecting | Phase::Handshaking | Phase::Idle => {
                let label = self.program.requests[self.users[user as usize].pending.request as usize].label;
                self.recorder.error(Some(label), LoadErrorKind::ExcessBytes, "");
                self.close_link(key);
                return;
            }
        }
        let progress = link.response.take(bytes);
        let moments = &mut self.users[user as usize].moments;
        if moments.first_ns == 0 {
            moments.first_ns = now_ns;
        }
        match progress {
            Ok(Progress::More) => {}
            Ok(Progress::Complete(length)) if !without_empty_lines(&bytes[length..]).is_empty() => {
                let label = self.program.requests[self.users[user as usize].pending.request as usize].label;
                self.recorder.error(Some(label), LoadErrorKind::ExcessBytes, "");
                self.complete(key, false, false);
            }
            Ok(Progress::Complete(_)) => self.complete(key, true, true),
            Err(bad) => {
                self.close_link(key);
                self.fail(user, LoadErrorKind::BadResponse, &bad.to_string());
            }
        }
    }

    /// Like `hear`, over HTTP/2, where a server may send at any time.
    fn hear_http2(&mut self, key: LinkKey, bytes: &[u8]) {
        let now_ns = self.now_ns;
        let Some(link) = self.links.get_mut(key) else { return };
        let (user, phase) = (link.user, link.phase);
        let Some(http2) = &mut link.http2 else { return };
        let progress = http2.take(bytes, &mut link.response);
        let over = http2.is_over();
        if let (Err(error), Ok(Progress2::More)) = (link.flush_http2(), &progress) {
            self.broken(key, error);
            return;
        }
        if phase != Phase::Busy {
            if over || progress.is_err() {
                self.close_link(key);
            }
            return;
        }
        let moments = &mut self.users[user as usize].moments;
        if moments.first_ns == 0 && link.response.status() > 0 {
            moments.first_ns = now_ns;
        }
        match progress {
            Ok(Progress2::More) => {}
            Ok(Progress2::Complete) => self.complete(key, !over, true),
            Err(Failed { kind, why, unprocessed }) => {
                link.unprocessed = unprocessed;
                self.lose(key, user, kind, &why);
            }
        }
    }

    /// The server closed its side of the stream.
    fn stream_ended(&mut self, key: LinkKey) {
        self.now_ns = self.shared.clock.now();
        let Some(link) = self.links.get_mut(key) else { return };
        let (user, phase, at_end) = (link.user, link.phase, link.response.at_end());
        match (phase, at_end) {
            (Phase::Busy, AtEnd::Complete) => self.complete(key, false, true),
            (Phase::Busy, AtEnd::Nothing) => self.lose(key, user, LoadErrorKind::Closed, ""),
            (Phase::Busy, AtEnd::Truncated) => self.lose(key, user, LoadErrorKind::Truncated, ""),
            (Phase::Connecting, _) => self.lose(key, user, LoadErrorKind::Closed, "while connecting"),
            (Phase::Handshaking, _) => self.lose(key, user, LoadErrorKind::Tls, "the server closed the connection during the handshake"),
            // A server may close an unused connection.
            (Phase::Idle | Phase::Draining, _) => self.close_link(key),
        }
    }

    /// The connection failed.
    fn broken(&mut self, key: LinkKey, error: Errno) {
        let Some(link) = self.links.get_mut(key) else { return };
        let (user, phase) = (link.user, link.phase);
        match phase {
            Phase::Idle | Phase::Draining => self.close_link(key),
            Phase::Busy | Phase::Connecting | Phase::Handshaking => self.lose(key, user, kind_of(error), &detail_of(error)),
        }
    }

    /// A connection ended before a complete response.
    fn lose(&mut self, key: LinkKey, user: u32, kind: LoadErrorKind, detail: &str) {
        let (connecting, repeats) = match self.links.get(key) {
            Some(link) => ((link.phase == Phase::Connecting).then_some(link.place), self.may_repeat(link, kind)),
            None => (None, false),
        };
        self.close_link(key);
        if let Some(place) = connecting {
            self.not_connected(user, place, kind, detail);
        } else if repeats {
            self.users[user as usize].pending.repeated = true;
            self.recorder.open.resent += 1;
            self.ask(user);
        } else {
            self.fail(user, kind, detail);
        }
    }

    /// Whether to send a request once more: the server did not process it; or it may have closed its kept connection before the
    /// request arrived, and a second one does no harm if the first did arrive.
    fn may_repeat(&self, link: &Link, kind: LoadErrorKind) -> bool {
        let pending = &self.users[link.user as usize].pending;
        let request = &self.program.requests[pending.request as usize];
        let unheard = link.phase == Phase::Busy && link.response.at_end() == AtEnd::Nothing;
        let harmless = link.unprocessed || link.kept && is_idempotent(pending.method(request));
        unheard && harmless && matches!(kind, LoadErrorKind::Closed | LoadErrorKind::Reset) && !pending.repeated
    }

    /// A user's request timed out.
    pub(super) fn overdue(&mut self, user: u32) {
        let connecting = |key: &LinkKey| self.links.get(*key).map(|link| (*key, link.phase));
        let waits_on = self.users[user as usize].links.iter().filter_map(|(_, key)| connecting(key));
        let waits_on = waits_on.into_iter().find(|(_, phase)| matches!(phase, Phase::Connecting | Phase::Handshaking | Phase::Busy));
        let Some((key, phase)) = waits_on else { return };
        let kind = if phase == Phase::Busy { LoadErrorKind::Timeout } else { LoadErrorKind::ConnectTimeout };
        self.lose(key, user, kind, "");
    }

    /// The request got no complete response.
    fn fail(&mut self, user: u32, kind: LoadErrorKind, detail: &str) {
        let this = &mut self.users[user as usize];
        let label = self.program.requests[this.pending.request as usize].label;
        self.recorder.failed(label, this.moments.intended_ns, self.now_ns);
        self.recorder.error(Some(label), kind, detail);
        self.recorder.open.in_flight -= 1;
        self.abandon(user, kind);
    }

    // ---- evaluating a response ----

    /// A response is complete. `reusable`: the stream permits another request. `proper`: it ended as its framing declared.
    fn complete(&mut self, key: LinkKey, reusable: bool, proper: bool) {
        let Some(link) = self.links.get_mut(key) else { return };
        let user = link.user;
        let reusable = reusable && link.response.keeps_alive();
        let status = link.response.status();
        (link.phase, link.kept) = (Phase::Idle, true);
        self.recorder.status(status);
        let outcome = self.meaning(key, user, proper);
        if !(reusable && self.program.source.connections.keep_alive) {
            self.drain(key, user);
        }
        match outcome {
            Meaning::Redirected => self.ask(user),
            Meaning::Ended { good, extracted } => {
                self.recorder.open.in_flight -= 1;
                let request = &self.program.requests[self.users[user as usize].pending.request as usize];
                let this = &mut self.users[user as usize];
                self.recorder.timed(request.label, this.moments, self.now_ns, good);
                if !good {
                    this.transactions.iter_mut().for_each(|open| open.good = false);
                }
                this.moments.intended_ns = self.now_ns;
                this.timed = false;
                if extracted {
                    self.advance(user);
                } else {
                    self.abandon(user, LoadErrorKind::Extract);
                }
            }
        }
    }

    /// Closes a connection that is not used again.
    fn drain(&mut self, key: LinkKey, user: u32) {
        let until_ns = self.now_ns + DRAIN_NS;
        if let Some(link) = self.links.get_mut(key) {
            link.phase = Phase::Draining;
            if let Some(http2) = &mut link.http2 {
                http2.say_goodbye();
                // If the connection is already broken, a later event closes it.
                let _ = link.flush_http2();
            }
            self.users[user as usize].links.retain(|(_, known)| *known != key);
            self.draining.push_back((until_ns, key));
        }
    }

    /// Evaluates the response on a connection for its user.
    fn meaning(&mut self, key: LinkKey, user: u32, proper: bool) -> Meaning {
        let request = &self.program.requests[self.users[user as usize].pending.request as usize];
        let Some(link) = self.links.get_mut(key) else { return Meaning::Ended { good: false, extracted: true } };
        if !link.response.has_head() && request.tests.is_empty() && request.extractions.is_empty() {
            let status = link.response.status();
            return Meaning::Ended { good: self.has_good_status(request, status) && proper, extracted: true };
        }
        let response = std::mem::take(&mut link.response);
        let meaning = self.understand(user, &response, proper);
        if let Some(link) = self.links.get_mut(key) {
            link.response = response;
        }
        meaning
    }

    /// Whether the status is not an error. Counts it if it is.
    fn has_good_status(&mut self, request: &Request, status: u16) -> bool {
        let good = request.status_tested || status < 400;
        if !good {
            self.recorder.error(Some(request.label), LoadErrorKind::Status, &status.to_string());
        }
        good
    }

    /// Runs the checks on a response and extracts the requested values.
    fn understand(&mut self, user: u32, response: &Response, proper: bool) -> Meaning {
        let this = &mut self.users[user as usize];
        let request = &self.program.requests[this.pending.request as usize];
        let mut good = proper;
        if response.has_head() {
            take_cookies(this, request, &self.program.places, self.program.kinds[usize::from(this.kind)].cookies, response);
            if request.redirects > 0 {
                match self.redirect(user, response) {
                    Redirect::None => {}
                    Redirect::Follow => return Meaning::Redirected,
                    Redirect::Refused => good = false,
                }
            }
        }
        good &= self.has_good_status(request, response.status());
        if request.tests.is_empty() && request.extractions.is_empty() {
            return Meaning::Ended { good, extracted: true };
        }
        let (held, extracted) = self.examine(user, response);
        Meaning::Ended { good: good && held && extracted, extracted }
    }

    /// Runs checks and extractions. Returns whether all checks held, and whether all values were found.
    fn examine(&mut self, user: u32, response: &Response) -> (bool, bool) {
        let this = &mut self.users[user as usize];
        let request = &self.program.requests[this.pending.request as usize];
        let took_ns = self.now_ns.saturating_sub(this.moments.intended_ns);
        let headers = |name: &str| header_values(response, name);
        let body = match response.decoded_body() {
            Ok(body) => body,
            Err(bad) => {
                self.recorder.error(Some(request.label), LoadErrorKind::BadResponse, &bad.to_string());
                return (false, request.extractions.is_empty());
            }
        };
        let mut view = View::new(response.status(), &headers, &body, response.body_bytes(), took_ns);
        let (mut held, mut extracted) = (true, true);
        for (name, test) in &request.tests {
            if !test.holds(&mut view) {
                self.recorder.error(Some(request.label), LoadErrorKind::Check, name);
                held = false;
            }
        }
        for (variable, extraction) in &request.extractions {
            if let Some(value) = extraction.take(&mut view, &mut this.chance) {
                this.set(*variable, value.into());
            } else {
                self.recorder.error(Some(request.label), LoadErrorKind::Extract, &extraction.name);
                extracted = false;
            }
        }
        (held, extracted)
    }

    /// Whether a response is a redirect, and whether the program knows its destination.
    fn redirect(&mut self, user: u32, response: &Response) -> Redirect {
        let (Some(location), 301 | 302 | 303 | 307 | 308) = (response.header("location").next(), response.status()) else {
            return Redirect::None;
        };
        let this = &mut self.users[user as usize];
        let request = &self.program.requests[this.pending.request as usize];
        let (place, target) = last_target(this, request);
        let destination = if this.pending.hops < request.redirects {
            self.program.destination(place, &target, location)
        } else {
            Err("too many".to_owned())
        };
        match destination {
            Ok((to, target)) => {
                let method = this.pending.method(request);
                let becomes_get = match response.status() {
                    303 => !matches!(method, "GET" | "HEAD"),
                    301 | 302 => method == "POST",
                    _ => false,
                };
                let (plain_before, elsewhere_before) = this.pending.detour.as_ref().map_or((false, false), |d| (d.plain_get, d.elsewhere));
                this.pending.hops += 1;
                this.pending.repeated = false;
                let (plain_get, elsewhere) = (plain_before || becomes_get, elsewhere_before || to != place);
                this.pending.detour = Some(Box::new(Detour { place: to, target, plain_get, elsewhere }));
                Redirect::Follow
            }
            Err(why) => {
                self.recorder.error(Some(request.label), LoadErrorKind::Redirect, &why);
                Redirect::Refused
            }
        }
    }
}

enum Meaning {
    /// The response is a redirect.
    Redirected,
    Ended {
        good: bool,
        /// All values that the script needs were found.
        extracted: bool,
    },
}

enum Redirect {
    None,
    Follow,
    Refused,
}

/// Destination of the user's last request.
fn last_target(user: &User, request: &Request) -> (u16, String) {
    if let Some(detour) = &user.pending.detour {
        return (detour.place, detour.target.clone());
    }
    let mut target = Vec::new();
    request.target.render_encoded(|variable| user.value(variable), address::url_encode, &mut target);
    (request.place, String::from_utf8_lossy(&target).into_owned())
}

fn take_cookies(user: &mut User, request: &Request, places: &[address::Place], wanted: bool, response: &Response) {
    if !wanted || response.header("set-cookie").next().is_none() {
        return;
    }
    let (place, target) = last_target(user, request);
    let jar = &mut user.personal.get_or_insert_default().jar;
    response.header("set-cookie").for_each(|header| jar.take(header, &places[usize::from(place)], &target));
}

/// Values that change between two transmissions of a request.
struct Rendered {
    plain_get: bool,
    elsewhere: bool,
    target: Vec<u8>,
    body: Vec<u8>,
    cookies: Vec<u8>,
}

impl Rendered {
    /// The request with this user's current values.
    fn new(request: &Request, place: &address::Place, user: &User, with_cookies: bool) -> Self {
        let value = |variable: u16| user.value(variable);
        let (mut target, mut body, mut cookies) = (Vec::new(), Vec::new(), Vec::new());
        match &user.pending.detour {
            Some(detour) => target.extend_from_slice(detour.target.as_bytes()),
            None => request.target.render_encoded(value, address::url_encode, &mut target),
        }
        let (plain_get, elsewhere) = user.pending.detour.as_ref().map_or((false, false), |detour| (detour.plain_get, detour.elsewhere));
        if !plain_get {
            request.render_body(value, &mut body);
        }
        if let Some(personal) = user.personal.as_ref().filter(|_| with_cookies) {
            personal.jar.render(place, &target, &mut cookies);
        }
        Self { plain_get, elsewhere, target, body, cookies }
    }

    fn parts(&self) -> Parts<'_> {
        Parts { plain_get: self.plain_get, elsewhere: self.elsewhere, target: &self.target, body: &self.body, cookies: &self.cookies }
    }
}

/// The detail for counting an error, if the kind alone is not specific enough.
fn detail_of(error: Errno) -> String {
    match kind_of(error) {
        LoadErrorKind::System => std::io::Error::from(error).to_string(),
        _ => String::new(),
    }
}
