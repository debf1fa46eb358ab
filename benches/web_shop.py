"""A small shop over HTTPS for benchmarks: log-in form, session cookie, CSRF tokens, JSON calls, static files.

Every session gets tokens, item numbers and order numbers of its own, and a request with another session's value is
refused. A replay of recorded values therefore fails.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import trustme

STATIC = {
    "/style.css": ("text/css", "body { font-family: sans-serif } #log { color: gray }"),
    "/logo.svg": (
        "image/svg+xml",
        '<svg xmlns="http://www.w3.org/2000/svg" width="8" height="8"><rect width="8" height="8"/></svg>',
    ),
    "/shop.js": (
        "text/javascript",
        """
const token = document.querySelector('meta[name=csrf-token]').content
let item, order
async function call(path, body) {
  const answer = await fetch(path, {method: 'POST', body: JSON.stringify(body),
    headers: {'Content-Type': 'application/json', 'X-CSRF-Token': token}})
  return answer.json()
}
fetch('/api/items').then(answer => answer.json()).then(found => { item = found.items[0].id; document.title = 'Ready' })
document.querySelector('#add').onclick = async () => {
  order = (await call('/api/cart', {item})).order; document.title = 'Added' }
document.querySelector('#pay').onclick = async () => {
  const paid = await call('/api/orders/' + order + '/pay', {amount: 5}); document.title = paid.ok ? 'Paid' : 'Failed' }
""",
    ),
}
LOGIN = """<!doctype html><title>Log in</title><link rel="stylesheet" href="/style.css"><img src="/logo.svg" alt="">
<form method="post" action="/login"><input name="user"><input name="password" type="password">
<input type="hidden" name="csrf" value="{token}"><button id="go">Log in</button></form>"""
SHOP = """<!doctype html><title>Shop</title><meta name="csrf-token" content="{token}">
<link rel="stylesheet" href="/style.css"><button id="add">Add</button><button id="pay">Pay</button>
<script src="/shop.js"></script>"""


@dataclass
class Session:
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    item: str = field(default_factory=lambda: f"item-{secrets.randbelow(10**9):09}")
    order: str = ""
    logged_in: bool = False


@dataclass
class Shop:
    """The service. refused: requests with a wrong value; paid: sessions that have paid.

    log: (path, arrival, end of the response) of every request, in s.
    """

    url: str
    authority: Path
    refused: int = 0
    paid: int = 0
    sessions: dict[str, Session] = field(default_factory=dict)
    log: list[tuple[str, float, float]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextlib.contextmanager
def shop(folder: Path) -> Iterator[Shop]:
    """The shop while the block runs. folder: for its certificates."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    made = Shop(f"https://localhost:{server.server_port}", folder / "ca.pem")
    server.shop = made  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def handle_one_request(self) -> None:
        self.arrived = 0.0
        super().handle_one_request()
        if self.arrived:
            self.server.shop.log.append((self.path, self.arrived, time.monotonic()))

    def parse_request(self) -> bool:
        self.arrived = time.monotonic()
        return super().parse_request()

    def log_message(self, *_: object) -> None:
        """Prints nothing."""

    def do_GET(self) -> None:
        if self.path in STATIC:
            kind, text = STATIC[self.path]
            self._send(200, kind, text)
            return
        name, session = self._session()
        match self.path:
            case "/":
                self._send(200, "text/html", LOGIN.format(token=session.token), cookie=name)
            case "/shop" if session.logged_in:
                self._send(200, "text/html", SHOP.format(token=session.token))
            case "/api/items" if session.logged_in:
                self._json(200, {"items": [{"id": session.item, "price": 5}]})
            case _:
                self._send(404, "text/plain", "not here")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        _, session = self._session()
        if self.path == "/login":
            sent = parse_qs(body)
            if sent.get("csrf") != [session.token] or sent.get("user") != ["ada"]:
                self._refuse()
                return
            session.logged_in, session.token = True, secrets.token_hex(16)
            self._send(302, "text/plain", "", location="/shop")
            return
        if self.headers.get("X-CSRF-Token") != session.token or not session.logged_in:
            self._refuse()
        elif self.path == "/api/cart" and json.loads(body).get("item") == session.item:
            session.order = f"ord-{secrets.token_hex(6)}7"
            self._json(200, {"order": session.order})
        elif session.order and self.path == f"/api/orders/{session.order}/pay":
            with self.server.shop.lock:
                self.server.shop.paid += 1
            self._json(200, {"ok": True})
        else:
            self._refuse()

    def _session(self) -> tuple[str, Session]:
        cookie = SimpleCookie(self.headers.get("Cookie", "")).get("sid")
        name = cookie.value if cookie else secrets.token_hex(16)
        with self.server.shop.lock:
            return name, self.server.shop.sessions.setdefault(name, Session())

    def _refuse(self) -> None:
        with self.server.shop.lock:
            self.server.shop.refused += 1
        self._json(403, {"ok": False})

    def _json(self, status: int, body: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(body))

    def _send(self, status: int, kind: str, text: str, *, cookie: str = "", location: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        if cookie:
            self.send_header("Set-Cookie", f"sid={cookie}; Path=/; HttpOnly; Secure")
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(text.encode())
