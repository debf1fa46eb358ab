"""Who may do what: sessions, tokens and keys, and the checks that every request must pass. Knows no page.

* A launch link has a token that works once and sets a cookie (HttpOnly, SameSite=Strict). A link to share works as
  often as it is opened, and its sessions may only look. Cookies are signed with a
  secret in a file that only the server's user can read, so a restart ends no session. Removing the file ends all.
  Sessions that may only look also end when the server is started without them.
* The Host header must name this server, which defeats DNS rebinding. A change must come from this origin, and carry a
  key that this server signed. The key is also the idempotency key of the change.
* A program sends `Authorization: Bearer TOKEN` instead of a cookie. A browser never does so by itself, so its requests
  need no origin and choose their own keys.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from partywall.errors import PartywallError
from partywall.web.jobs import KEY

POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; frame-src 'self'; "
    "form-action 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
)
RECORD_POLICY = (
    "sandbox allow-scripts allow-popups; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
)
"""For files of records. They have no origin: their scripts can draw, but read no cookie and reach no server."""
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    # With no-referrer, a form would send "Origin: null".
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"permissions-policy": b"camera=(), microphone=(), geolocation=()",
    b"cache-control": b"no-store",
}
SAFE_METHODS = ("GET", "HEAD")
TARGET_BYTES_MAX = 8192


class Role(StrEnum):
    """What a session may do."""

    FULL = "full"
    LOOK = "look"


class Secrets:
    """The secret that signs cookies and keys, the launch token, and the tokens of programs and viewers.

    role: what the launch link and the token of programs grant. shares_view: whether others may look beside it.
    """

    def __init__(self, folder: Path, role: Role = Role.FULL, *, shares_view: bool = False) -> None:
        self._secret = _kept(folder / "session-secret")
        self.role = role
        self._roles = (role, Role.LOOK) if shares_view else (role,)
        self.launch_token = secrets.token_urlsafe(24)

    @property
    def bearer(self) -> str:
        """The token of programs. It stays the same as long as the secret."""
        return self._mac("bearer", self.role)

    @property
    def view_token(self) -> str | None:
        """The token of the link to share. It stays the same as long as the secret. None if nothing is shared."""
        return self._mac("view")[:48] if Role.LOOK in self._roles[1:] else None

    def redeem(self, token: str) -> str | None:
        """The cookie for a token of a link. The launch token is used up. None if it is neither of the current ones."""
        if self.view_token is not None and _same(token, self.view_token):
            return self._cookie(Role.LOOK)
        if not _same(token, self.launch_token):
            return None
        self.launch_token = secrets.token_urlsafe(24)
        return self._cookie(self.role)

    def _cookie(self, role: Role) -> str:
        identity = secrets.token_urlsafe(12)
        return f"{role}.{identity}.{self._mac('session', role, identity)}"

    def session(self, cookie: str) -> Role | None:
        """The role of a cookie. None if it was not made here, or for a role that this server does not grant."""
        role, _, rest = cookie.partition(".")
        identity, _, mac = rest.partition(".")
        if role not in (Role.FULL, Role.LOOK) or not _same(mac, self._mac("session", role, identity)):
            return None
        if self.role is Role.LOOK:
            return Role.LOOK
        return Role(role) if role in self._roles else None

    def key(self, *of: object) -> str:
        """A signed key. of: the action and the state that it applies to, so a repetition has the same key."""
        nonce = self._mac("nonce", *of)[:16] if of else secrets.token_hex(8)
        return f"{nonce}-{self._mac('key', nonce)[:24]}"

    def is_ours(self, key: str) -> bool:
        """True if a key was signed here."""
        nonce, _, mac = key.partition("-")
        return _same(mac, self._mac("key", nonce)[:24])

    def of_program(self, token: str) -> Role | None:
        """The role of a program's token. None if it is not valid."""
        return next((role for role in self._roles if _same(token, self._mac("bearer", role))), None)

    def _mac(self, *parts: object) -> str:
        return hmac.new(self._secret, repr(tuple(map(str, parts))).encode(), hashlib.sha256).hexdigest()


def _same(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), right.encode())


def _kept(file: Path) -> bytes:
    """The content of a secret file, which is created if it does not exist."""
    if not file.exists():
        _make(file)
    secret = file.read_bytes()
    if len(secret) < 32 or file.stat().st_mode & 0o077 or file.is_symlink():
        raise PartywallError(f"{file} can be read by others, or is damaged; remove it and start again") from None
    return secret


def _make(file: Path) -> None:
    """Makes a secret whole or not at all. If another server makes it at the same time, its secret counts."""
    fresh = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(secrets.token_bytes(32))
            stream.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            file.hardlink_to(fresh)
    finally:
        fresh.unlink()


@dataclass(frozen=True)
class Site:
    """The addresses under which the server may be reached. names: host names, the one to open first; port: its port."""

    port: int
    names: Sequence[str] = ("127.0.0.1", "localhost", "[::1]")
    scheme: str = "http"

    def is_host(self, header: str) -> bool:
        """True if a Host header names this server."""
        usual = "443" if self.scheme == "https" else "80"
        name, _, port = header.rpartition(":") if re.search(r":\d+$", header) else (header, "", usual)
        return name.lower() in map(str.lower, self.names) and port == str(self.port)

    def is_origin(self, header: str) -> bool:
        """True if an Origin header is that of this server's own pages."""
        try:
            parts = urlsplit(header)
        except ValueError:
            return False
        return (
            parts.scheme == self.scheme and self.is_host(parts.netloc) and header == f"{self.scheme}://{parts.netloc}"
        )

    @property
    def cookie(self) -> str:
        """The name of the session's cookie. Browsers send cookies to all ports of a host, so it has the port."""
        return f"partywall_{self.port}"


@dataclass
class Checks:
    """The outermost layer: refuses what is not allowed, and adds headers to every answer."""

    app: ASGIApp
    site: Site
    secrets: Secrets
    public: Sequence[str] = field(default=("/login", "/assets/"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})
            return

        async def sends(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                extra = [(name, value) for name, value in HEADERS.items() if name not in own]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        status, text = self._refused(scope, headers)
        if status:
            await _answer(sends, status, text)
        else:
            await self.app(scope, receive, sends)

    def _refused(  # noqa: PLR0911 - one for each check
        self, scope: Scope, headers: Mapping[str, str]
    ) -> tuple[int, str]:
        """The status and text of a refusal; 0 if the request is allowed. Stores the role in the scope."""
        scope["state"] = scope.get("state", {}) | {"role": None, "bearer": False}
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not self.site.is_host(headers.get("host", "")):
            return 421, "This server is not reachable under that name. Open it under the address that it printed."
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > TARGET_BYTES_MAX:
            return 414, "The address is too long."
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not _is_navigation(scope, headers):
            return 403, "This request came from another site."
        token = headers.get("authorization", "")
        if token.lower().startswith("bearer "):
            if (granted := self.secrets.of_program(token[7:].strip())) is None:
                return 401, "The token is not valid."
            scope["state"] |= {"role": granted, "bearer": True}
        elif cookie := _cookie(headers.get("cookie", ""), self.site.cookie):
            scope["state"]["role"] = self.secrets.session(cookie)
        role, is_change = scope["state"]["role"], scope["method"] not in SAFE_METHODS
        if is_change and not scope["state"]["bearer"] and not self.site.is_origin(headers.get("origin", "")):
            return 403, "This change did not come from a page of this server."
        if role is None and not scope["path"].startswith(tuple(self.public)):
            return 401, "Open the link that 'partywall serve' printed."
        if is_change and role is Role.LOOK and scope["path"] != "/login":
            return 403, "This session may only look."
        return 0, ""


def _is_navigation(scope: Scope, headers: Mapping[str, str]) -> bool:
    """True if a person followed a link on another site. SameSite=Strict withholds the cookie."""
    return scope["method"] in SAFE_METHODS and headers.get("sec-fetch-mode") == "navigate" and scope["path"] == "/login"


def _cookie(header: str, name: str) -> str:
    """The value of a cookie; empty if there is none, or several."""
    values = [part.strip().partition("=")[2] for part in header.split(";") if part.strip().partition("=")[0] == name]
    return values[0] if len(values) == 1 else ""


async def _answer(send: Send, status: int, text: str) -> None:
    body = f"{text}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def form_of(body: bytes) -> dict[str, list[str]]:
    """The fields of a form, as browsers send it. ValueError if there are too many."""
    text = body.decode("utf-8", "replace")
    return parse_qs(text, keep_blank_values=True, max_num_fields=200)


def is_key(text: str) -> bool:
    return re.fullmatch(KEY, text) is not None
