"""Reads a browser's recording (HAR 1.2) as one list of requests with their responses. Pure.

Recorders differ: the forms of Chromium, Firefox, Safari, Charles, mitmproxy, Playwright, Insomnia and others are read.
What cannot be sent, and what the browser did by itself, is left out, and counted with the reason.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urljoin, urlsplit, urlunsplit

from partywall.core.document.formats import refuse_other
from partywall.errors import Problem, UsageError
from partywall.load.urls import ascii_host

KEY_MOST = 200
"""Characters of the name of a header or a field."""
REDIRECTS = (301, 302, 303, 307, 308)
"""Statuses that the generator follows."""
NOT_MODIFIED = 304
FORM, FORM_WITH_FILES = "application/x-www-form-urlencoded", "multipart/form-data"

_STATIC_USES = ("style", "script", "image", "font", "audio", "video", "track", "manifest")
_STATIC_KINDS = re.compile(
    r"(text/css|image/.*|font/.*|audio/.*|video/.*|.*javascript|application/font.*)", re.IGNORECASE
)
_OWN = re.compile(  # headers handled by generator, jar and cache; a browser's hints about itself
    r"host|cookie|connection|content-length|transfer-encoding|accept-encoding|upgrade.*|if-.*|cache-control|pragma|te"
    r"|sec-.*|dnt|priority|proxy-.*|:.*|keep-alive",
    re.IGNORECASE,
)
_HEADER = re.compile(rf"[!#$%&'*+.^_`|~0-9A-Za-z-]{{1,{KEY_MOST}}}")
_TEXTS = re.compile(r"text/.*|.*(json|xml|javascript|x-www-form-urlencoded).*", re.IGNORECASE)
_URL_ALPHABET = str.maketrans("-_", "+/")
_UPLOAD_HEADERS = re.compile(r"\A(?:Content-[A-Za-z-]+:[^\r\n]*\r?\n)+\r?\n")
"""Some recorders write a form's own headers before its body."""


@dataclass(frozen=True)
class Entry:
    """One exchange. start_s: seconds since the first one; end_s: when its response was complete.

    kind: the content type of the response. use: what the browser wanted it for (Sec-Fetch-Dest), if known.
    cached: why no server was asked for it, if none was. cookies: names that it sent. set_cookies: names that its
    response set. follows: the generator follows its redirect. quiet_s: how long nothing happened before it.
    """

    start_s: float
    end_s: float
    method: str
    url: str
    headers: tuple[tuple[str, str], ...]
    body: dict[str, Any] | None
    status: int
    redirect: str
    page: str
    kind: str
    use: str
    received: str
    received_headers: tuple[tuple[str, str], ...]
    cached: bool = False
    cookies: tuple[str, ...] = ()
    set_cookies: tuple[str, ...] = ()
    follows: bool = False
    quiet_s: float = 0.0

    @property
    def is_static(self) -> bool:
        return self.method == "GET" and (self.use in _STATIC_USES or bool(_STATIC_KINDS.fullmatch(self.kind)))

    @property
    def is_page(self) -> bool:
        return self.use == "document" if self.use else self.kind == "text/html"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""


@dataclass
class Reader:
    """Reads entries. skipped: number of unusable entries, by reason. titles: titles of pages, by their id."""

    file: str
    skipped: Counter[str] = field(default_factory=Counter)
    titles: dict[str, str] = field(default_factory=dict)
    creator: str = ""

    def entries(self, content: str | bytes) -> list[Entry]:
        log = self._log(content)
        self.creator = _text(_dict(log.get("creator")).get("name"))
        for page in _list(log.get("pages")):
            self.titles[_text(page.get("id"))] = _text(page.get("title"))
        entries = [entry for raw in _list(log.get("entries")) if (entry := self._entry(raw))]
        entries.sort(key=lambda entry: entry.start_s)
        return entries

    def _log(self, content: str | bytes) -> dict[str, Any]:
        remedy = "save it from the browser's network panel: 'Save all as HAR'"
        if isinstance(content, bytes):
            if content.startswith((b"PK\x03\x04", b"\x1f\x8b")):
                raise UsageError(Problem("this is compressed", "unpack it, and give the HAR file in it", self.file))
            # Browsers write UTF-8; a shell that copies it may not.
            content = content.decode(json.detect_encoding(content), "replace")
        refuse_other(content, ("log",), self.file)
        try:
            whole = json.loads(content.removeprefix("\ufeff"))
        except (ValueError, RecursionError) as error:
            line = getattr(error, "lineno", None)
            said = getattr(error, "msg", "nested too deeply" if isinstance(error, RecursionError) else str(error))
            raise UsageError(Problem(f"this is not JSON: {said}", remedy, self.file, line)) from None
        log = whole.get("log") if isinstance(whole, dict) else None
        if not isinstance(log, dict) or not isinstance(log.get("entries"), list):
            raise UsageError(
                Problem("this is not a HAR file: it has no log.entries", remedy, self.file, key="log.entries")
            )
        return log

    def _entry(self, raw: dict[str, Any]) -> Entry | None:
        request, response = _dict(raw.get("request")), _dict(raw.get("response"))
        url, method = self._url(request), _text(request.get("method")).upper()
        start_s = _moment(raw.get("startedDateTime"))
        if why := _unusable(raw, url, method, start_s):
            self.skipped[why] += 1
            return None
        content, status = _dict(response.get("content")), int(_number(response.get("status")))
        headers, body = self._sent(request)
        location = _text(response.get("redirectURL")) or _header(response, "location")
        return Entry(
            start_s=start_s or 0.0,
            end_s=(start_s or 0.0) + max(_number(raw.get("time")), 0.0) / 1e3,
            method=method,
            url=url,
            headers=headers,
            body=body,
            status=status,
            redirect=_absolute(url, location) if status in REDIRECTS else "",
            page=_text(raw.get("pageref")),
            kind=_kind(_text(content.get("mimeType"))),
            use=_header(request, "sec-fetch-dest"),
            received=_received(content),
            received_headers=tuple(_pairs(response.get("headers"))),
            cached=self._is_cached(raw, response),
            cookies=tuple(_cookies(request, "cookie", ";")),
            set_cookies=tuple(_cookies(response, "set-cookie", "\n")),
        )

    def _url(self, request: dict[str, Any]) -> str:
        """The URL with its parameters, as it can be sent; empty if it cannot."""
        url = self._mended(_text(request.get("url")).strip())
        if "?" not in url.partition("#")[0] and (parameters := list(_pairs(request.get("queryString")))):
            url = f"{url.partition('#')[0]}?{urlencode([(self._mended(n), self._mended(v)) for n, v in parameters])}"
        return _clean(url)

    def _mended(self, text: str) -> str:
        """A text that can be encoded. Half a character becomes what browsers send for it."""
        mended = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if not text.isascii() else text
        self._note(
            "a text with half a character (a lone surrogate), sent as U+FFFD, as browsers do", when=mended != text
        )
        return mended

    def _note(self, what: str, *, when: bool = True) -> None:
        self.skipped[what] += when

    def _is_cached(self, raw: dict[str, Any], response: dict[str, Any]) -> bool:
        """True if the browser, or a test that drives it, answered by itself. A response 304 came from the server."""
        kept = "cache" in _text(raw.get("_fetchType")).lower() or raw.get("_fromCache") or raw.get("_wasFulfilled")
        # Firefox writes this key only for what its cache answered; others write what the cache held afterwards.
        kept = kept or (self.creator == "Firefox" and "afterRequest" in _dict(raw.get("cache")))
        source = _text(response.get("_serviceWorkerResponseSource"))
        worker = bool(response.get("_fetchedViaServiceWorker")) and source not in ("", "network")
        return bool(kept or worker) and response.get("status") != NOT_MODIFIED

    # What was sent

    def _sent(self, request: dict[str, Any]) -> tuple[tuple[tuple[str, str], ...], dict[str, Any] | None]:
        """Headers and body as keys of an http step. A body has the type that the recording says."""
        headers = dict(self._headers(request))
        data = _dict(request.get("postData"))
        given = next((name for name in headers if name.lower() == "content-type"), "")
        mime = headers.get(given) or _text(data.get("mimeType"))
        body, own = self._body(data, mime)
        measured = _number(request.get("bodySize")) > 0 or _header(request, "content-length") > "0"
        self._note("a body that the recording lacks", when=body is None and measured and not _is_recorded(data))
        self._note("a body whose recorded form is damaged or unknown", when=body is None and _is_recorded(data))
        if body and "multipart" in body:
            # Its boundary belongs to the original body.
            headers.pop(given, None)
        elif own:
            headers[given or "Content-Type"] = own
        elif body and "form" not in body and not given and mime and mime.isprintable():
            headers["Content-Type"] = mime
        return tuple(headers.items()), body

    def _headers(self, request: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Names and values; several of one name are one, with commas, as HTTP has it (RFC 9110, 5.3)."""
        found: dict[str, tuple[str, str]] = {}
        for name, value in _pairs(request.get("headers")):
            if _OWN.fullmatch(name):
                continue
            if not _HEADER.fullmatch(name) or not value.isprintable():
                self._note("a header that cannot be sent")
                continue
            first, before = found.get(name.lower(), (name, ""))
            found[name.lower()] = first, f"{before}, {value}" if before else value
        with contextlib.suppress(ValueError):
            parts = urlsplit(_text(request.get("url")))
            if parts.username is not None and "authorization" not in found:
                secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
                found["authorization"] = "Authorization", f"Basic {_base64(secret)}"
                self._note("a name and password in a URL, sent as the header Authorization")
        yield from found.values()

    def _body(self, data: dict[str, Any], mime: str) -> tuple[dict[str, Any] | None, str]:
        """The body, and its content type if that is another than the recorded one."""
        content = _text(data.get("text"))
        if data.get("encoding") == "base64" and content:
            raw = _bytes(content)
            if (decoded := _utf8(raw)) is None:
                return {"base64": base64.b64encode(raw).decode()}, ""
            content = decoded
        params = _params(data)
        kind, own = _kind(mime), ""
        if not kind and params and not content:
            # A recorder that lists fields has read them from a form.
            kind = own = FORM_WITH_FILES if any(p.get("fileName") for p in params) else FORM
        if kind == FORM:
            content = _UPLOAD_HEADERS.sub("", content)
        self._note("a body with bytes that the recording lost; U+FFFD is in their place", when="\ufffd" in content)
        content = self._mended(content)
        if kind == FORM_WITH_FILES and params and not content:
            return self._form_with_files(params)
        if kind == FORM and (content or params):
            given = _fields(content) if content else [(_text(p.get("name")), _text(p.get("value"))) for p in params]
            fields = [(self._mended(name), self._mended(value)) for name, value in given or ()]
            form = dict(fields)
            is_form = len(form) == len(fields) > 0 and all(map(_is_key, form)) and all(map(_plain, form.values()))
            if is_form and not _is_document(fields):
                return {"form": {name: literal(value) for name, value in fields}}, ""
            content = content or (fields[0][0] if _is_document(fields) else urlencode(fields))
        if not content:
            return None, ""
        return ({"text": literal(content)} if _plain(content) else {"base64": _base64(content)}), own

    def _form_with_files(self, params: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], str]:
        """Form fields. Browsers record these, but usually not the content of files."""
        parts = [(self._mended(_text(p.get("name"))), self._mended(_text(p.get("value"))), p) for p in params]
        for _, value, param in parts:
            self._note(
                "a file that was sent, whose content the recording lacks: name one in the plan",
                when=bool(param.get("fileName")) and not value,
            )
        as_keys = len({name for name, _, _ in parts}) == len(parts) and all(
            _is_key(name + _text(param.get("contentType"))) and _plain(value) and not (param.get("fileName") and value)
            for name, value, param in parts
        )
        if as_keys:
            return {"multipart": {name: _part(value, param) for name, value, param in parts}}, ""
        # What the plan's keys cannot say, such as a file's name, is sent as it would be on the wire (RFC 7578).
        lines = []
        for name, value, param in parts:
            file = f'; filename="{_quoted(_text(param.get("fileName")))}"' if param.get("fileName") else ""
            kind = _text(param.get("contentType"))
            typed = f"Content-Type: {kind}\r\n" if kind and kind.isprintable() else ""
            lines.append(f'Content-Disposition: form-data; name="{_quoted(name)}"{file}\r\n{typed}\r\n{value}\r\n')
        boundary = "partywall-" + hashlib.sha256("".join(lines).encode("utf-8", "replace")).hexdigest()[:24]
        content = "".join(f"--{boundary}\r\n{line}" for line in lines) + f"--{boundary}--\r\n"
        body = {"text": literal(content)} if _plain(content) else {"base64": _base64(content)}
        return body, f"{FORM_WITH_FILES}; boundary={boundary}"


def _unusable(raw: dict[str, Any], url: str, method: str, start_s: float | None) -> str:
    """Why an entry is no request that users can send; empty if it is one."""
    request, response = _dict(raw.get("request")), _dict(raw.get("response"))
    status, kind = _number(response.get("status")), _kind(_text(_dict(response.get("content")).get("mimeType")))
    internal = _header(response, "non-authoritative-reason") or response.get("statusText") == "Internal Redirect"
    stream = kind == "text/event-stream" or raw.get("_resourceType") == "eventsource"
    reasons = {
        "tunnels through a proxy (CONNECT)": method == "CONNECT",
        "not of http or https": not re.match(r"https?://", _text(request.get("url")).strip(), re.IGNORECASE),
        "with a URL that cannot be sent": not url,
        "without a method that can be sent": not re.fullmatch(r"[A-Z]+", method),
        "without a time": start_s is None,
        "an upgrade to another protocol": status == 101 or raw.get("_resourceType") == "websocket",
        "redirects inside the browser": internal and status in REDIRECTS,
        "without a response: blocked, aborted or failed": status <= 0 or raw.get("_wasAborted"),
        "streams of events, which last as long as their page": method == "GET" and stream,
    }
    return next((why for why, holds in reasons.items() if holds), "")


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _pairs(value: Any) -> Iterator[tuple[str, str]]:
    """Names and values of a list of headers, cookies or parameters."""
    return ((_text(item.get("name")), _text(item.get("value"))) for item in _list(value))


def _params(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields of a form, as recorders list them."""
    return [p for p in _list(data.get("params")) if _text(p.get("name")) or _text(p.get("value"))]


def _is_recorded(data: dict[str, Any]) -> bool:
    """True if anything of a body is in the recording."""
    return bool(_text(data.get("text")) or _params(data))


def _header(message: dict[str, Any], wanted: str) -> str:
    return next((value for name, value in _pairs(message.get("headers")) if name.lower() == wanted), "")


def _cookies(message: dict[str, Any], header: str, between: str) -> Iterator[str]:
    """Names of cookies. Recorders have them in a list, in headers, or in both."""
    yield from (name for name, _ in _pairs(message.get("cookies")))
    for name, value in _pairs(message.get("headers")):
        if name.lower() == header:
            yield from (part.partition("=")[0].strip() for part in value.split(between) if "=" in part)


def _kind(mime: str) -> str:
    return mime.partition(";")[0].strip().lower()


def _received(content: dict[str, Any]) -> str:
    """A response's text. Some recorders have every one in base 64."""
    text = _text(content.get("text"))
    if content.get("encoding") != "base64":
        return text
    return (_utf8(_bytes(text)) or "") if _TEXTS.fullmatch(_text(content.get("mimeType"))) else ""


def _number(value: Any) -> float:
    """A finite, plausible number; 0 for anything else, which means unknown in HAR."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if abs(value) < 1e12 and math.isfinite(value) else 0.0


def _moment(value: Any) -> float | None:
    try:
        return datetime.datetime.fromisoformat(_text(value)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _clean(url: str) -> str:
    """A URL as browsers send it, so that equal ones are the same text; empty if it cannot be sent.

    Without fragment, name and password, with a host in ASCII, and with encoded characters that a URL may not contain.
    """
    try:
        parts = urlsplit(url)
        host, port = ascii_host(unquote(parts.hostname or "")), parts.port
    except ValueError:
        return ""
    scheme = parts.scheme.lower()
    if scheme not in ("http", "https") or not host or port == 0:
        return ""
    usual = {"http": 80, "https": 443}[scheme]
    place = host if port in (None, usual) else f"{host}:{port}"
    path, query = (quote(part, safe="%/:?#[]@!$&'()*+,;=-._~") for part in (parts.path or "/", parts.query))
    return urlunsplit((scheme, place, path, query, ""))


def _absolute(url: str, redirect: str) -> str:
    """Where a redirect leads. Recorders differ in whether they keep a relative address."""
    try:
        return _clean(urljoin(url, redirect)) if redirect else ""
    except ValueError:
        return ""


def _fields(text: str) -> list[tuple[str, str]] | None:
    """Names and values of a form's body; None if writing them again would give another body."""
    parts = text.split("&")
    if re.search(r"%(?![0-9A-Fa-f]{2})|[\r\n]", text) or not all("=" in part for part in parts):
        return None
    try:
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=None)
    except ValueError:
        return None


def _is_document(fields: Sequence[tuple[str, str]]) -> bool:
    """True for JSON that a recorder took for the name of the only field of a form."""
    return len(fields) == 1 and not fields[0][1] and fields[0][0].lstrip().startswith(("{", "["))


def _bytes(text: str) -> bytes:
    """Decodes base 64, in either alphabet, with or without padding and line ends; empty if it is damaged."""
    digits = "".join(text.split()).translate(_URL_ALPHABET).rstrip("=")
    with contextlib.suppress(ValueError):
        return base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True)
    return b""


def _utf8(raw: bytes) -> str | None:
    with contextlib.suppress(UnicodeDecodeError):
        return raw.decode()
    return None


def _part(value: str, param: dict[str, Any]) -> str | dict[str, str]:
    """A part of a form with files, as the plan has it."""
    kind = _text(param.get("contentType"))
    return {"text": literal(value), "content_type": kind} if kind else literal(value)


def _quoted(text: str) -> str:
    """A name in a header of a part, as the HTML standard escapes it."""
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _is_key(name: str) -> bool:
    """True for a name that can be a key of a plan."""
    return len(name) <= KEY_MOST and name.isprintable()


def _plain(text: str) -> bool:
    """True if it can be in a plan as text."""
    return all(char.isprintable() or char in "\n\r\t" for char in text)


def literal(text: str) -> str:
    return text.replace("$", "$$")
