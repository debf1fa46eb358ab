"""Converts a recorded session to a load plan with thinking times. Pure, from text to text.

The recording is one session of one user. Values from an earlier response, which differ in the next session, are
extracted (`correlation`); comments mark those that are left. Cookies are handled by the user's cookie jar. The
generator follows redirects itself. Images, scripts, styles and fonts of a page are a group of their own. What no
server was asked for, such as an answer of the browser's cache, is no request. Notes say what is left out, and why.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import PurePath
from typing import Any
from urllib.parse import unquote, urlsplit

from partywall.errors import Problem, UsageError
from partywall.load.check import BYTES_MAX as PLAN_BYTES_MAX
from partywall.load.recorder.correlation import Correlations, Exchange, correlate, generated, replaced
from partywall.load.recorder.har import NOT_MODIFIED, REDIRECTS, Entry, Reader, literal

THINK_LEAST_S = 0.1
"""Shorter gaps come from the browser, not its user."""
ACTION_LEAST_S = 0.5
"""After a longer gap, a request without a page is taken for an action of the user."""
REDIRECT_MOST_S = 1.0
"""A browser follows a redirect within this time. What comes later is a request of its own."""
NAMES_MOST = 5
"""Names of cookies in a note."""
STATIC = "static files"
"""Name of requests for images, scripts, styles and fonts, in reports. No transaction has a name with a space."""
ABOUT = (
    "Made by Partywall from one recorded session. Set the number of users under closed, read every comment",
    "that begins with 'dynamic', and check the plan: partywall load check PLAN",
)

_TITLE = re.compile(r"<title[^>]*>([^<]*)", re.IGNORECASE)
_PLAIN = re.compile(r"[0-9]+(?:ms|min)|[A-Za-z/](?:[A-Za-z0-9_/.,;?&%+=~*(){}!@$-]|:(?=\S)|(?<=\S) (?=[A-Za-z0-9/(]))*")
_WORDS = re.compile(r"true|false|null|yes|no|on|off|y|n", re.IGNORECASE)
"""Texts that some versions of YAML take for other values."""


@dataclass(frozen=True)
class Imported:
    """The plan as text and as its values, and notes for people. hosts: number of included requests to each host."""

    text: str
    plan: dict[str, Any]
    notes: tuple[str, ...]
    hosts: dict[str, int]


def plan_of(
    content: str | bytes, file: str, leave_out: Sequence[str] = (), tls: Mapping[str, Any] | None = None
) -> Imported:
    """The plan. UsageError for a file that is not a HAR file, or has nothing to send.

    leave_out: hosts, which may contain `*`. tls: the plan's settings for certificates.
    """
    reader = Reader(file)
    everything = reader.entries(content)
    wanted = [entry for entry in everything if not any(fnmatch(entry.host, pattern) for pattern in leave_out)]
    merged = _with_redirects_followed(wanted)
    kept = _with_quiet_times([entry for entry in merged if not entry.cached])
    left_out = reader.skipped + Counter(
        {
            "answered by the browser's cache; to send them, record with the cache disabled": len(merged) - len(kept),
            "to hosts left out": len(everything) - len(wanted),
            "targets of redirects, which the generator follows itself": len(wanted) - len(merged),
        }
    )
    notes = [f"{number} × {why}" for why, number in left_out.items()]
    if not kept:
        seen = ", ".join(sorted({entry.host for entry in everything if entry not in wanted}))
        why = f": {'; '.join(notes)}" if notes else ", it has no entries"
        where, remedy = (f"; hosts in it: {seen}", ", or leave out fewer hosts") if seen else ("", "")
        remedy = f"record again with the network panel open{remedy}"
        raise UsageError(Problem(f"there is no request to send{why}{where}", remedy, file))
    by_page, titles = _pages_of(kept, reader.titles)
    if beside := sum(before.page not in ("", after.page) for before, after in zip(kept, by_page, strict=True)):
        notes.append(f"{beside} × a request of a page that loads beside another, in one transaction with it")
    kept = by_page
    correlations = correlate([_exchange(entry) for entry in kept])
    plan = _Writer(kept, titles, correlations, dict(tls or {})).plan(file)
    text = "".join(f"{line}\n" for line in (*(f"# {line}" for line in ABOUT), *_yaml(plan)))
    if (size := len(text.encode())) > PLAN_BYTES_MAX:
        said = f"its plan would have {size} bytes, and {PLAN_BYTES_MAX} are the most"
        raise UsageError(Problem(said, "record a shorter session, or leave out hosts", file))
    notes += _unknown_cookies(kept)
    if correlations.variables:
        notes.append(f"{correlations.variables} × a value of an earlier response, extracted there into a variable")
    if correlations.unknown:
        notes.append(f"{correlations.unknown} × a value of an earlier response; extract it there, see comments")
    return Imported(text, plan, tuple(notes), dict(Counter(entry.host for entry in kept)))


def _unknown_cookies(entries: Sequence[Entry]) -> Iterator[str]:
    """A note about cookies that the browser had before the recording, or that a script set."""
    known = {name for entry in entries for name in entry.set_cookies}
    names = list(dict.fromkeys(name for entry in entries for name in entry.cookies if name not in known))
    if names:
        shown = ", ".join(map(_shown, names[:NAMES_MOST])) + (", …" if len(names) > NAMES_MOST else "")
        yield f"{len(names)} × a cookie that no response set, so users lack it ({shown}); record from before the log-in"


# Redirects, pauses and pages


def _with_redirects_followed(entries: Sequence[Entry]) -> list[Entry]:
    """The entries without targets of redirects that the generator follows; their responses take the redirect's place.

    A target is the first request of its URL and method that the browser sent within `REDIRECT_MOST_S`, whatever else it
    sent meanwhile. If a chain of redirects leads to another server in the end, each of its requests is kept.
    """
    places: defaultdict[tuple[str, str], deque[int]] = defaultdict(deque)
    for number, entry in enumerate(entries):
        places[entry.url, entry.method].append(number)
    taken: set[int] = set()
    kept: list[Entry] = []
    for number, first in enumerate(entries):
        if number in taken:
            continue
        chain = [number]
        while _leads_on(last := entries[chain[-1]]):
            found = _target(entries, places[last.redirect, _method_after(last)], chain, taken)
            if found is None:
                break
            chain.append(found)
        last = entries[chain[-1]]
        if (last.redirect and not _leads_on(last)) or not first.redirect:
            kept.append(first)
            continue
        taken |= set(chain[1:])
        kept.append(_merged(first, last) if len(chain) > 1 else dataclasses.replace(first, follows=True))
    return kept


def _target(entries: Sequence[Entry], places: deque[int], chain: Sequence[int], taken: set[int]) -> int | None:
    """The request that follows the last redirect of a chain; None if it was not recorded."""
    # Entries are visited in order, so what lies before the chain is never needed again.
    while places and (places[0] <= chain[0] or places[0] in taken):
        places.popleft()
    until_s = entries[chain[-1]].end_s + REDIRECT_MOST_S
    for place in places:
        if entries[place].start_s > until_s:
            return None
        if place > chain[-1] and place not in taken:
            return place
    return None


def _leads_on(entry: Entry) -> bool:
    """True if the generator follows the redirect: it knows the servers of the plan's own requests."""
    return bool(entry.redirect) and _origin(entry.redirect) == _origin(entry.url)


def _method_after(entry: Entry) -> str:
    """The method of a redirect's target, by the Fetch standard."""
    changes = (entry.status in (301, 302) and entry.method == "POST") or (
        entry.status == 303 and entry.method not in ("GET", "HEAD")
    )
    return "GET" if changes else entry.method


def _merged(first: Entry, last: Entry) -> Entry:
    """A redirected request with the response that came in the end."""
    return dataclasses.replace(
        first,
        end_s=last.end_s,
        kind=last.kind,
        received=last.received,
        received_headers=(*last.received_headers, ("location", first.redirect)),
        set_cookies=(*first.set_cookies, *last.set_cookies),
        follows=True,
    )


def _with_quiet_times(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, each with how long nothing was sent and no response ended before it: the user's pause.

    While responses are in flight, the browser may still load a page, so a short pause is none. A longer one is: a
    response that lasts, such as a download, does not keep its user from acting.
    """
    timed: list[Entry] = []
    in_flight: list[float] = []
    last_s = entries[0].start_s if entries else 0.0
    for entry in entries:
        while in_flight and in_flight[0] <= entry.start_s:
            last_s = max(last_s, heapq.heappop(in_flight))
        quiet_s = entry.start_s - last_s
        timed.append(dataclasses.replace(entry, quiet_s=0.0 if in_flight and quiet_s < ACTION_LEAST_S else quiet_s))
        heapq.heappush(in_flight, entry.end_s)
        last_s = max(last_s, entry.start_s)
    return timed


def _acted(entry: Entry) -> bool:
    """True if the request comes from an action of the user."""
    return not entry.is_static and entry.quiet_s >= ACTION_LEAST_S


def _pages_of(entries: Sequence[Entry], titles: dict[str, str]) -> tuple[list[Entry], dict[str, str]]:
    """Entries with pages, and the pages' titles."""
    if not any(entry.page for entry in entries):
        return _paged(entries)
    bursts: list[list[Entry]] = []
    for entry in entries:
        if not bursts or _acted(entry):
            bursts.append([])
        bursts[-1].append(entry)
    return [entry for burst in bursts for entry in _joined(burst)], titles


def _joined(burst: Sequence[Entry]) -> Iterator[Entry]:
    """Requests without a pause between them. Pages that alternate there are one page: the one that began first."""
    ends = {entry.page: number for number, entry in enumerate(burst)}
    page, end = "", -1
    for number, entry in enumerate(burst):
        if number > end:
            page, end = entry.page, number
        if entry.page:
            end = max(end, ends[entry.page])
        yield dataclasses.replace(entry, page=page)


def _paged(entries: Sequence[Entry]) -> tuple[list[Entry], dict[str, str]]:
    """Entries with pages, and the titles of these, for a recording without any.

    A document begins a page. So does a request after a pause of the user, such as a script's call after a click.
    """
    made: list[Entry] = []
    titles: dict[str, str] = {}
    for entry in entries:
        if entry.is_page or _acted(entry) or not made:
            titles[f"page-{len(titles)}"] = _title(entry)
        made.append(dataclasses.replace(entry, page=f"page-{len(titles) - 1}"))
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


@dataclass
class _Writer:
    """Writes the plan."""

    entries: Sequence[Entry]
    titles: dict[str, str]
    values: Correlations
    tls: dict[str, Any]

    def plan(self, file: str) -> dict[str, Any]:
        origin = Counter(_origin(entry.url) for entry in self.entries).most_common(1)[0][0]
        return {
            "partywall_load": 1,
            "name": "recorded",
            "description": f"recorded in {_shown(PurePath(file).name)}",
            "base": origin,
            "users": {"visitor": {"actions": self._actions(origin)}},
            "closed": {"users": 1, "hold": "1min"},
            **({"tls": self.tls} if self.tls else {}),
        }

    def _actions(self, origin: str) -> list[dict[str, Any]]:
        actions: list[dict[str, Any]] = []
        names: Counter[str] = Counter()
        for page, group in itertools.groupby(enumerate(self.entries), key=lambda pair: pair[1].page):
            members = list(group)
            if think := _think(members[0][1].quiet_s):
                actions.append(think)
            name = _slug(_titled(self.titles.get(page) or page))
            names[name] += 1
            name = name if names[name] == 1 else f"{name}-{names[name]}"
            steps = self._steps(members, origin, name)
            actions += [{"transaction": {"name": name, "steps": steps}}] if page else steps
        return actions

    def _steps(self, members: Sequence[tuple[int, Entry]], origin: str, page: str) -> list[dict[str, Any]]:
        """The steps of one page with the thinking times between them."""
        steps: list[dict[str, Any]] = []
        first = True
        for is_static, group in itertools.groupby(members, key=lambda member: member[1].is_static):
            own: list[dict[str, Any]] = [] if is_static else steps
            for number, entry in group:
                # A browser requests a page's files by itself, whatever the gap.
                if not first and not is_static and (think := _think(entry.quiet_s)):
                    own.append(think)
                first = False
                own.append(_Step({"http": self._request(number, entry, origin)}, list(self._remarks(number))))
            if is_static:
                steps.append({"transaction": {"name": f"{page}-static", "steps": own}})
        return steps

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

    def _remarks(self, number: int) -> Iterator[str]:
        for use in self.values.uses.get(number, ()):
            source = self.entries[use.source]
            came = f"dynamic: {use.value[:60]!r} came in the response to {source.method} "
            came += _shown(urlsplit(source.url).path or "/")
            yield f"{came}; extracted there as ${{{use.variable}}}" if use.variable else f"{came}; {_hint(use.value)}"


class _Step(dict[str, Any]):
    """A step with remarks, which become comments above it."""

    def __init__(self, step: Mapping[str, Any], remarks: Sequence[str]) -> None:
        super().__init__(step)
        self.remarks = remarks


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
    url = literal(rest if not own or rest.startswith("/") else f"/{rest}")
    request: dict[str, Any] = {"url": url}
    if "?" in url or len(url) > 80:
        request["name"] = f"{entry.method} {_shown(urlsplit(entry.url).path or '/')}"[:120]
    if entry.method != "GET":
        request["method"] = entry.method
    if entry.redirect and not entry.follows:
        request["redirects"] = 0
    if entry.headers:
        request["headers"] = {name: literal(value) for name, value in entry.headers}
    if entry.body:
        request["body"] = entry.body
    # Redirects are followed. 'Not modified' answers a cache, which virtual users do not have.
    if 200 <= entry.status <= 599 and entry.status not in (*REDIRECTS, NOT_MODIFIED):
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


# YAML


def _yaml(value: Any, indent: str = "") -> Iterator[str]:
    """Lines of a mapping or list. Ruamel's writer takes several times as long, which matters for long sessions."""
    if isinstance(value, dict):
        for key, below in value.items():
            name = f"{indent}{_scalar(key)}:"
            if isinstance(below, dict | list) and below:
                yield name
                yield from _yaml(below, indent + "  " * isinstance(below, dict))
            else:
                yield f"{name} {_scalar(below)}"
        return
    for item in value:
        yield from (f"{indent}# {remark}" for remark in getattr(item, "remarks", ()))
        first, *rest = _yaml(item, f"{indent}  ")
        yield f"{indent}- {first[len(indent) + 2 :]}"
        yield from rest


def _scalar(value: Any) -> str:
    """A text, number or truth value. Texts are quoted unless they can be nothing else."""
    if not isinstance(value, str):
        return str(value).lower()
    if _PLAIN.fullmatch(value) and not _WORDS.fullmatch(value):
        return value
    if value.isprintable() and "'" not in value:
        return f"'{value}'"
    return '"' + "".join(map(_escaped, value)) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    if char.isprintable():
        return char
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char, f"\\U{ord(char):08X}")
