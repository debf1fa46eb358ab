"""Correlation: finds values that a recorded user received and sent back later, and how to extract them. Pure.

A session's identifiers and tokens differ in the next session. A value that looks generated and came in an earlier
response is therefore extracted from that response, and replaced by a variable where it was sent. Cookies are not
handled here: each user's cookie jar sends them back.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

SHORTEST = 8
"""Characters of a value that is taken for generated."""
CONTEXT = 32
"""Characters before a value that a regular expression looks for."""

_PIECE = re.compile(r"[A-Za-z0-9._~+/=-]{8,}")
_NAMING = ("name", "id", "property", "class")


@dataclass(frozen=True)
class Exchange:
    """A request and its response, as far as values are concerned. body: JSON value of the plan's body, if any."""

    url: str
    headers: Sequence[tuple[str, str]]
    body: Mapping[str, Any] | None
    received: str
    received_headers: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Use:
    """A value that a request sends. variable: empty if it is not known how to extract it. source: the exchange."""

    value: str
    variable: str
    source: int


@dataclass
class Correlations:
    """extracts: for each exchange, the variables taken from its response; uses: the values that it sends."""

    extracts: dict[int, dict[str, dict[str, str]]] = field(default_factory=dict)
    uses: dict[int, list[Use]] = field(default_factory=dict)

    @property
    def variables(self) -> int:
        return sum(map(len, self.extracts.values()))

    @property
    def unknown(self) -> int:
        return sum(not use.variable for uses in self.uses.values() for use in uses)


def correlate(exchanges: Sequence[Exchange]) -> Correlations:
    """All values that came in a response and were sent later, but not before."""
    correlations = Correlations()
    names: dict[str, str] = {}
    for number, exchange in enumerate(exchanges):
        for value in dict.fromkeys(sent_values(exchange)):
            source = _source(value, exchanges[:number])
            if source is None:
                continue
            if value not in names:
                names[value] = _named(value, source, exchanges[source], correlations, set(names.values()))
            correlations.uses.setdefault(number, []).append(Use(value, names[value], source))
    return correlations


def _source(value: str, earlier: Sequence[Exchange]) -> int | None:
    """The first response with the value; None if the user had sent it before, or it never came."""
    for number, exchange in enumerate(earlier):
        if value in list(sent_values(exchange)):
            return None
        if value in exchange.received or any(value in content for _, content in exchange.received_headers):
            return number
    return None


def _named(value: str, source: int, exchange: Exchange, correlations: Correlations, taken: set[str]) -> str:
    """The variable for a value, after adding its extraction; empty if it cannot be extracted."""
    extraction = extraction_of(value, exchange)
    if extraction is None:
        return ""
    hint, extract = extraction
    base = re.sub(r"[^A-Za-z0-9]+", "_", hint).strip("_").lower() or "value"
    base = f"value_{base}" if base[0].isdigit() else base[:40]
    name = next(
        name
        for number in range(1, len(taken) + 2)
        if (name := base if number == 1 else f"{base}_{number}") not in taken
    )
    correlations.extracts.setdefault(source, {})[name] = extract
    return name


# What a request sends


def sent_values(exchange: Exchange) -> Iterator[str]:
    """Values of a request that look generated: whole ones where the format shows them, and else pieces."""
    parts = urlsplit(exchange.url)
    texts = [unquote(segment) for segment in parts.path.split("/")]
    texts += [value for _, value in parse_qsl(parts.query)]
    texts += [value.removeprefix("Bearer ") for name, value in exchange.headers if name.lower() != "referer"]
    texts += list(_leaves(exchange.body))
    for text in texts:
        if generated(text):
            yield text
        else:
            yield from (piece for piece in _PIECE.findall(text) if len(piece) < len(text) and generated(piece))


def _leaves(body: Any) -> Iterator[str]:
    """Texts and long numbers of a body. Text that is JSON is read."""
    if isinstance(body, Mapping):
        for key, value in body.items():
            inner = _json(value) if key == "text" else None
            yield from _leaves(value if inner is None else inner)
    elif isinstance(body, list):
        for value in body:
            yield from _leaves(value)
    elif isinstance(body, str | int) and not isinstance(body, bool):
        yield str(body).replace("$$", "$")


def _json(text: Any) -> Any:
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        document = json.loads(str(text).replace("$$", "$"))
        return document if isinstance(document, dict | list) else None
    return None


def generated(value: str) -> bool:
    """True for an identifier or token: a long text without spaces, with digits."""
    plain = len(value) >= SHORTEST and value.isprintable() and not re.search(r"[\s$\"'<>;,]", value)
    return plain and any(char.isdigit() for char in value)


# How to extract a value from a response


def extraction_of(value: str, exchange: Exchange) -> tuple[str, dict[str, str]] | None:
    """(a name for it, keys of `extract`) that give this value for the recorded response; None if there are none."""
    finders = (_from_json, _from_html, _from_text)
    extraction = next((extraction for finder in finders if (extraction := finder(value, exchange.received))), None)
    if extraction is not None:
        return extraction
    return next(((name, {"header": name}) for name, content in exchange.received_headers if content == value), None)


def _from_json(value: str, text: str) -> tuple[str, dict[str, str]] | None:
    body = _json(text) if text.lstrip()[:1] in ("{", "[") else None
    path = next(_paths(body, value, "$"), None)
    if path is None:
        return None
    keys = re.findall(r"[A-Za-z_]\w*", path)
    return (keys[-1] if keys else "value"), {"json": path}


def _paths(body: Any, value: str, path: str) -> Iterator[str]:
    items = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, inner in items:
        plain = isinstance(key, str) and re.fullmatch(r"[A-Za-z_]\w*", key)
        at = f"{path}.{key}" if plain else f"{path}[{json.dumps(key)}]"
        if isinstance(inner, str | int) and str(inner) == value:
            yield at
        yield from _paths(inner, value, at)


class _Tags(HTMLParser):
    """All tags of a page, with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: content or "" for name, content in attrs}))


def _from_html(value: str, text: str) -> tuple[str, dict[str, str]] | None:
    if "<" not in text:
        return None
    parser = _Tags()
    parser.feed(text)
    for tag, attributes in parser.tags:
        at = next((name for name, content in attributes.items() if content == value), None)
        for by in _NAMING if at is not None else ():
            own = attributes.get(by, "")
            like = [other for kind, other in parser.tags if kind == tag and other.get(by) == own]
            if own and own != value and '"' not in own and like[0].get(at or "") == value:
                return own, {"css": f'{tag}[{by}="{own}"]', "attribute": at or ""}
    return None


def _from_text(value: str, text: str) -> tuple[str, dict[str, str]] | None:
    """A regular expression with the characters before the value on its line."""
    at = text.find(value)
    if at < 0:
        return None
    before = text[max(0, at - CONTEXT) : at].splitlines()[-1:] or [""]
    kind = "[0-9]" if value.isdigit() else "[0-9a-f]" if re.fullmatch("[0-9a-f]+", value) else r"[^\s\"'<>&;,]"
    pattern = f"{re.escape(before[0])}({kind}+)"
    match = re.search(pattern, text)
    if not before[0].strip() or match is None or match.group(1) != value:
        return None
    words = re.findall(r"[A-Za-z]\w*", before[0])
    return (words[-1] if words else "value"), {"regex": pattern}


# Replacing values by variables


def replaced(part: Any, uses: Sequence[Use]) -> Any:
    """A part of a request with `${variable}` in place of values. A URL's scheme and host stay as they are."""
    if isinstance(part, str):
        # The longest first, because one value may contain another.
        for use in sorted(uses, key=lambda use: -len(use.value)):
            if use.variable:
                for text in dict.fromkeys((use.value, quote(use.value, safe=""))):
                    part = part.replace(text, f"${{{use.variable}}}")
        return part
    if isinstance(part, Mapping):
        return {key: replaced(value, uses) for key, value in part.items()}
    return [replaced(value, uses) for value in part] if isinstance(part, list) else part
