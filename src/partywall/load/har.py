"""Converts a browser's recording (HAR 1.2) to a load plan with thinking times. Pure, from text to text.

The recording is one session of one user. Values from an earlier response, which differ in the next session, are
extracted (`load.correlation`); comments mark those that are left. Cookies are handled by the user's cookie jar. The
generator follows redirects itself. Images, scripts, styles and fonts of a page are a group of their own.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import io
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import PurePath
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from partywall.errors import Problem, UsageError
from partywall.load.correlation import Correlations, Exchange, correlate, generated, replaced
from partywall.scenario.documents import refuse_other

THINK_LEAST_S = 0.1
"""Shorter gaps come from the browser, not its user."""
ACTION_LEAST_S = 0.5
"""After a longer gap, a request without a page is taken for an action of the user."""
STATIC = "static files"
"""Name of requests for images, scripts, styles and fonts, in reports. No transaction has a name with a space."""

_STATIC_USES = ("style", "script", "image", "font", "audio", "video", "track", "manifest")
_STATIC_KINDS = re.compile(
    r"(text/css|image/.*|font/.*|audio/.*|video/.*|.*javascript|application/font.*)", re.IGNORECASE
)
_TITLE = re.compile(r"<title[^>]*>([^<]*)", re.IGNORECASE)

_OWN = re.compile(  # headers handled by generator, jar and cache; a browser's hints about itself
    r"host|cookie|connection|content-length|transfer-encoding|accept-encoding|upgrade.*|if-.*|cache-control|pragma|te"
    r"|sec-.*|dnt|priority|proxy-.*|:.*|keep-alive",
    re.IGNORECASE,
)
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
REDIRECTS = range(300, 400)


@dataclass(frozen=True)
class Entry:
    """One exchange. start_s: seconds since the first one; end_s: when its response was complete.

    kind: the content type of the response. use: what the browser wanted it for (Sec-Fetch-Dest), if known.
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

    @property
    def is_static(self) -> bool:
        return self.method == "GET" and (self.use in _STATIC_USES or bool(_STATIC_KINDS.fullmatch(self.kind)))

    @property
    def is_page(self) -> bool:
        return self.use == "document" if self.use else self.kind == "text/html"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""


@dataclass(frozen=True)
class Imported:
    """The plan's text, and notes for people. hosts: number of included requests to each host."""

    text: str
    notes: tuple[str, ...]
    hosts: dict[str, int]


def plan_of(content: str, file: str, leave_out: Sequence[str] = (), tls: Mapping[str, Any] | None = None) -> Imported:
    """The plan. UsageError for a file that is not a HAR file, or has nothing to send.

    leave_out: hosts, which may contain `*`. tls: the plan's settings for certificates.
    """
    reader = _Reader(file)
    everything = reader.entries(content)
    unwanted = [entry for entry in everything if any(fnmatch(entry.host, pattern) for pattern in leave_out)]
    entries = [entry for entry in everything if entry not in unwanted]
    kept = list(_without_redirected(entries))
    if not kept:
        seen = ", ".join(sorted({entry.host for entry in everything})) or "none"
        remedy = "record again with the network panel open, or leave out fewer hosts"
        raise UsageError(Problem(f"there is no request to send; hosts in it: {seen}", remedy, file))
    notes = [f"{number} × {why}" for why, number in reader.skipped.items()]
    if unwanted:
        notes.append(f"{len(unwanted)} × to hosts left out")
    if len(entries) > len(kept):
        notes.append(f"{len(entries) - len(kept)} × targets of redirects, which the generator follows itself")
    if not any(entry.page for entry in kept):
        kept, reader.titles = _paged(kept)
    correlations = correlate([_exchange(entry) for entry in kept])
    text = _Writer(kept, reader.titles, correlations, dict(tls or {})).text(file)
    if correlations.variables:
        notes.append(f"{correlations.variables} × a value of an earlier response, extracted there into a variable")
    if correlations.unknown:
        notes.append(f"{correlations.unknown} × a value of an earlier response; extract it there, see comments")
    return Imported(text, tuple(notes), dict(Counter(entry.host for entry in kept)))


def _without_redirected(entries: Sequence[Entry]) -> Iterator[Entry]:
    """All entries except targets of a redirect in the previous entry, whose response takes the redirect's place."""
    waiting: Entry | None = None
    expected = ""
    for entry in entries:
        if waiting is not None and expected and entry.url == expected and entry.method == "GET":
            answer = {name: getattr(entry, name) for name in ("received", "received_headers", "kind", "end_s")}
            location = ("location", waiting.redirect)
            answer["received_headers"] = (*entry.received_headers, location)
            waiting = dataclasses.replace(waiting, **answer)
        else:
            yield from [waiting] if waiting is not None else []
            waiting = entry
        expected = entry.redirect if _followed(entry) else ""
    yield from [waiting] if waiting is not None else []


def _paged(entries: Sequence[Entry]) -> tuple[list[Entry], dict[str, str]]:
    """Entries with pages, and the titles of these, for a recording without any.

    A document begins a page. So does a request after a pause of the user, such as a script's call after a click.
    """
    made: list[Entry] = []
    titles: dict[str, str] = {}
    until_s = -math.inf
    for entry in entries:
        acted = not entry.is_static and entry.start_s - until_s >= ACTION_LEAST_S
        if entry.is_page or acted or not made:
            titles[f"page-{len(titles)}"] = _title(entry)
        made.append(dataclasses.replace(entry, page=f"page-{len(titles) - 1}"))
        until_s = max(until_s, entry.end_s)
    return made, titles


def _title(entry: Entry) -> str:
    """The title of a document; for others, the method and path."""
    match = _TITLE.search(entry.received) if entry.is_page else None
    segments = urlsplit(entry.url).path.strip("/").split("/")
    path = "/".join("id" if generated(unquote(segment)) else segment for segment in segments) or "home"
    return (match and match.group(1).strip()) or (path if entry.method == "GET" else f"{entry.method} {path}")


def _exchange(entry: Entry) -> Exchange:
    """Static files are requested by their own names, which are not values of a session."""
    url = "" if entry.is_static else entry.url
    return Exchange(url, entry.headers, entry.body, entry.received, entry.received_headers)


def _followed(entry: Entry) -> bool:
    """True if the generator follows the redirect: it knows the servers of the plan's own requests."""
    return entry.status in REDIRECTS and _origin(entry.redirect) == _origin(entry.url)


@dataclass
class _Reader:
    """Reads entries. skipped: number of unusable entries, by reason. titles: titles of pages, by their id."""

    file: str
    skipped: Counter[str] = field(default_factory=Counter)
    titles: dict[str, str] = field(default_factory=dict)

    def entries(self, content: str) -> list[Entry]:
        log = self._log(content)
        for page in _list(log.get("pages")):
            self.titles[_text(page.get("id"))] = _text(page.get("title"))
        entries = [entry for raw in _list(log.get("entries")) if (entry := self._entry(raw))]
        entries.sort(key=lambda entry: entry.start_s)
        return entries

    def _log(self, content: str) -> dict[str, Any]:
        remedy = "save it from the browser's network panel: 'Save all as HAR'"
        refuse_other(content, ("log",), self.file)
        try:
            whole = json.loads(content.removeprefix("\ufeff"))
        except (json.JSONDecodeError, RecursionError) as error:
            line = getattr(error, "lineno", None)
            said = getattr(error, "msg", "nested too deeply")
            raise UsageError(Problem(f"this is not JSON: {said}", remedy, self.file, line)) from None
        log = whole.get("log") if isinstance(whole, dict) else None
        if not isinstance(log, dict) or not isinstance(log.get("entries"), list):
            raise UsageError(
                Problem("this is not a HAR file: it has no log.entries", remedy, self.file, key="log.entries")
            )
        return log

    def _entry(self, raw: dict[str, Any]) -> Entry | None:
        request, response = _dict(raw.get("request")), _dict(raw.get("response"))
        url, method = _text(request.get("url")), _text(request.get("method")).upper()
        start_s, status = _moment(raw.get("startedDateTime")), _number(response.get("status"))
        if why := self._unusable(url, method, start_s, status):
            self.skipped[why] += 1
            return None
        content = _dict(response.get("content"))
        data = _dict(request.get("postData"))
        body = _body(data) or self._form_with_files(data)
        headers = tuple(self._headers(request))
        if body and "multipart" in body:
            # Its boundary belongs to the original body.
            headers = tuple((name, value) for name, value in headers if name.lower() != "content-type")
        return Entry(
            start_s=start_s or 0.0,
            end_s=(start_s or 0.0) + max(_number(raw.get("time")), 0.0) / 1e3,
            method=method,
            url=_clean(url),
            headers=headers,
            body=body,
            status=int(status),
            redirect=_absolute(url, _text(response.get("redirectURL"))),
            page=_text(raw.get("pageref")),
            kind=_text(content.get("mimeType")).partition(";")[0].strip().lower(),
            use=_sent_header(request, "sec-fetch-dest"),
            received=_text(content.get("text")) if content.get("encoding") != "base64" else "",
            received_headers=tuple(
                (_text(header.get("name")), _text(header.get("value"))) for header in _list(response.get("headers"))
            ),
        )

    def _form_with_files(self, data: dict[str, Any]) -> dict[str, Any] | None:
        """Form fields. Browsers record these, but usually not the content of files."""
        if not _text(data.get("mimeType")).lower().startswith("multipart/form-data"):
            return None
        parts = {}
        for param in _list(data.get("params")):
            name, value = _text(param.get("name")), _text(param.get("value"))
            if name in parts or not _plain(name + value):
                self.skipped["a field of a form with files that cannot be sent"] += 1
                continue
            if param.get("fileName") and not value:
                self.skipped["a file that was sent, whose content the recording lacks: name one in the plan"] += 1
            parts[name] = _literal(value)
        return {"multipart": parts} if parts else None

    @staticmethod
    def _unusable(url: str, method: str, start_s: float | None, status: float) -> str:
        try:
            parts = urlsplit(url)
            whole = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
        except ValueError:
            whole = False
        if not whole or "$" in urlsplit(url).netloc or not urlsplit(url).netloc.isprintable():
            return "not of http or https"
        if not re.fullmatch(r"[A-Z]+", method):
            return "without a method that can be sent"
        if start_s is None:
            return "without a time"
        return "an upgrade to another protocol" if status == 101 else ""

    def _headers(self, request: dict[str, Any]) -> Iterator[tuple[str, str]]:
        seen = set()
        for header in _list(request.get("headers")):
            name, value = _text(header.get("name")), _text(header.get("value"))
            if _OWN.fullmatch(name) or name.lower() in seen:
                continue
            if not _HEADER.fullmatch(name) or not value.isprintable():
                self.skipped["a header that cannot be sent"] += 1
                continue
            seen.add(name.lower())
            yield name, value


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


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
    """Removes the fragment, and encodes characters that a URL may not contain."""
    return quote(url.partition("#")[0], safe="%/:?#[]@!$&'()*+,;=-._~")


def _absolute(url: str, redirect: str) -> str:
    """Where a redirect leads. Recorders differ in whether they keep a relative address."""
    try:
        return _clean(urljoin(url, redirect)) if redirect else ""
    except ValueError:
        return ""


def _body(data: dict[str, Any]) -> dict[str, Any] | None:
    text, mime = _text(data.get("text")), _text(data.get("mimeType")).partition(";")[0].strip().lower()
    params = [(_text(p.get("name")), _text(p.get("value"))) for p in _list(data.get("params"))]
    plain = all(_plain(name) and _plain(value) for name, value in params)
    if mime == "application/x-www-form-urlencoded" and params and plain and len(dict(params)) == len(params):
        # Browsers differ in whether these values are encoded. The text of the body resolves it.
        form = {unquote(n.replace("+", " ")): unquote(v.replace("+", " ")) for n, v in params} if text else dict(params)
        if all(_plain(part) for pair in form.items() for part in pair):
            return {"form": {name: _literal(value) for name, value in form.items()}}
    if not text:
        return None
    return {"text": _literal(text)} if _plain(text) else {"base64": _base64(text)}


def _base64(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "replace")).decode()


def _plain(text: str) -> bool:
    """True if it can be in a plan as text."""
    return all(char.isprintable() or char == "\n" for char in text)


def _literal(text: str) -> str:
    return text.replace("$", "$$")


def _sent_header(request: dict[str, Any], name: str) -> str:
    headers = _list(request.get("headers"))
    return next((_text(h.get("value")) for h in headers if _text(h.get("name")).lower() == name), "")


@dataclass
class _Writer:
    """Writes the plan."""

    entries: Sequence[Entry]
    titles: dict[str, str]
    values: Correlations
    tls: dict[str, Any]

    def text(self, file: str) -> str:
        origin = Counter(_origin(entry.url) for entry in self.entries).most_common(1)[0][0]
        plan = CommentedMap(
            partywall_load=1,
            name="recorded",
            description=f"recorded in {_shown(PurePath(file).name)}",
            base=origin,
            users={"visitor": {"actions": self._actions(origin)}},
            closed={"users": 1, "hold": "1min"},
            **({"tls": self.tls} if self.tls else {}),
        )
        plan.yaml_set_start_comment(
            "Made by Partywall from one recorded session. Set the number of users under closed, read every comment\n"
            "that begins with 'dynamic', and check the plan: partywall load check PLAN"
        )
        out = io.StringIO()
        yaml = YAML()
        yaml.width = 10_000
        yaml.allow_unicode = True
        yaml.dump(plan, out)
        return out.getvalue()

    def _actions(self, origin: str) -> CommentedSeq:
        actions = CommentedSeq()
        names: Counter[str] = Counter()
        until_s = self.entries[0].start_s
        for page, group in itertools.groupby(enumerate(self.entries), key=lambda pair: pair[1].page):
            members = list(group)
            if think := _think(members[0][1].start_s - until_s):
                actions.append(think)
            name = _slug(_titled(self.titles.get(page) or page))
            names[name] += 1
            name = name if names[name] == 1 else f"{name}-{names[name]}"
            steps, until_s = self._steps(members, origin, until_s, name)
            if not page:
                for step in range(len(steps)):
                    self._move(steps, step, actions)
                continue
            actions.append({"transaction": {"name": name, "steps": steps}})
        return actions

    @staticmethod
    def _move(steps: CommentedSeq, number: int, into: CommentedSeq) -> None:
        into.append(steps[number])
        if comment := steps.ca.items.get(number):
            into.ca.items[len(into) - 1] = comment

    def _steps(
        self, members: Sequence[tuple[int, Entry]], origin: str, until_s: float, page: str
    ) -> tuple[CommentedSeq, float]:
        """The steps of one page with the thinking times between them, and when its last response was complete."""
        steps = CommentedSeq()
        first = True
        for is_static, group in itertools.groupby(members, key=lambda member: member[1].is_static):
            own = CommentedSeq() if is_static else steps
            for number, entry in group:
                # A browser requests a page's files by itself, whatever the gap.
                if not first and not is_static and (think := _think(entry.start_s - until_s)):
                    own.append(think)
                first = False
                own.append({"http": self._request(number, entry, origin)})
                self._remark(number, own)
                until_s = max(until_s, entry.end_s)
            if is_static:
                steps.append({"transaction": {"name": f"{page}-static", "steps": own}})
        return steps, until_s

    def _request(self, number: int, entry: Entry, origin: str) -> dict[str, Any]:
        """Keys of an http step, with variables for values of earlier responses."""
        made = _request(entry, origin)
        if entry.is_static:
            made["name"] = STATIC
        elif uses := self.values.uses.get(number):
            scheme, separator, rest = made["url"].partition("://")
            host, slash, path = rest.partition("/") if separator else ("", "", scheme)
            fixed = f"{scheme}://{host}{slash}" if separator else ""
            made |= {"url": fixed + replaced(path, uses)}
            # A session's values would make another name of the same request in each recording.
            named = replaced(_shown(urlsplit(entry.url).path or "/"), uses).replace("${", "{")
            made["name"] = f"{entry.method} {named}"[:120]
            made |= {key: replaced(made[key], uses) for key in ("headers", "body") if key in made}
        if extracts := self.values.extracts.get(number):
            made["extract"] = extracts
        return made

    def _remark(self, number: int, steps: CommentedSeq) -> None:
        for use in self.values.uses.get(number, ()):
            source = self.entries[use.source]
            came = f"dynamic: {use.value[:60]!r} came in the response to {source.method} "
            came += _shown(urlsplit(source.url).path or "/")
            remark = (
                f"{came}; extracted there as ${{{use.variable}}}" if use.variable else f"{came}; {_hint(use.value)}"
            )
            steps.yaml_set_comment_before_after_key(len(steps) - 1, before=remark, indent=6)


def _hint(value: str) -> str:
    kind = "[0-9]+" if value.isdigit() else "[0-9a-f]+" if re.fullmatch("[0-9a-f]+", value) else "[A-Za-z0-9._-]+"
    return f"there extract: {{token: {{regex: 'BEFORE({kind})AFTER'}}}}, here write ${{token}}"


def _origin(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc}"


def _request(entry: Entry, origin: str) -> dict[str, Any]:
    """Keys of an http step, without defaults."""
    own = _origin(entry.url) == origin
    rest = entry.url.removeprefix(origin) if own else entry.url
    url = _literal(rest if not own or rest.startswith("/") else f"/{rest}")
    request: dict[str, Any] = {"url": url}
    if "?" in url or len(url) > 80:
        request["name"] = f"{entry.method} {_shown(urlsplit(entry.url).path or '/')}"[:120]
    if entry.method != "GET":
        request["method"] = entry.method
    if entry.redirect and entry.status in REDIRECTS and not _followed(entry):
        request["redirects"] = 0
    if entry.headers:
        request["headers"] = {name: _literal(value) for name, value in entry.headers}
    if entry.body:
        request["body"] = entry.body
    # Redirects are followed. 'Not modified' answers a cache, which virtual users do not have.
    if 200 <= entry.status <= 599 and entry.status not in REDIRECTS:
        request["checks"] = [{"status": entry.status}]
    return request


def _think(seconds: float) -> dict[str, str] | None:
    return {"think": f"{round(seconds * 1e3)}ms"} if seconds >= THINK_LEAST_S else None


def _titled(title: str) -> str:
    """A page's title. Browsers use the URL of a page without a title; its path is shorter."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(title)
        return parts.path if parts.scheme in ("http", "https") and parts.netloc else title
    return title


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[:48] or "page"


def _shown(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
