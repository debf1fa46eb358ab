"""Correlation: finds values that a recorded user received and sent back later, and how to extract them. Pure.

Takes time in proportion to the recording: each response is read once for the words of all values, and once more for
those that came in it.

A session's identifiers and tokens differ in the next session. A value that looks generated and came in an earlier
response is therefore extracted from that response, and replaced by a variable where it was sent. Cookies are not
handled here: each user's cookie jar sends them back.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

SHORTEST = 8
"""Characters of a value that is taken for generated."""
CONTEXT = 32
"""Characters before a value that a regular expression looks for."""

_WORD = re.compile(r"[^\W_]+")
_ESCAPES = re.compile(r"\\u[0-9A-Fa-f]{4}|\\[a-z]|%[0-9A-Fa-f]{2}")
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
    sent = [list(dict.fromkeys(sent_values(exchange))) for exchange in exchanges]
    sources = _sources(exchanges, sent)
    responses: dict[int, Response] = {}
    names: dict[str, str] = {}
    numbers: Counter[str] = Counter()
    for number, values in enumerate(sent):
        for value in values:
            source = sources.get(value, number)
            if source >= number:
                continue
            if value not in names:
                response = responses.setdefault(source, Response(exchanges[source]))
                names[value] = _named(response.extraction_of(value), source, correlations, numbers)
            correlations.uses.setdefault(number, []).append(Use(value, names[value], source))
    return correlations


def _sources(exchanges: Sequence[Exchange], sent: Sequence[Sequence[str]]) -> dict[str, int]:
    """The first response with each value. Values that the user had sent before it, or with it, are left out.

    A value is found if the longest of its words is a word of the response, not a part of one.
    """
    by_word: defaultdict[str, dict[str, None]] = defaultdict(dict)
    first_sent: dict[str, int] = {}
    for number, values in enumerate(sent):
        for value in values:
            if first_sent.setdefault(value, number) == number:
                by_word[max(_WORD.findall(value), key=_rarity)][value] = None
    sources: dict[str, int] = {}
    for number, exchange in enumerate(exchanges):
        text = "\0".join((exchange.received, *(content for _, content in exchange.received_headers)))
        for word in _words(text) & by_word.keys():
            for value in [value for value in by_word[word] if value in text]:
                # Whichever came first decides, so the value need not be looked for again.
                del by_word[word][value]
                if number < first_sent[value]:
                    sources[value] = number
            if not by_word[word]:
                del by_word[word]
    return sources


def _rarity(word: str) -> int:
    """How unlikely a word is in another value: longer ones, and those with digits."""
    return len(word) + (SHORTEST if any(char.isdigit() for char in word) else 0)


def _words(text: str) -> set[str]:
    """The words of a response, also beside characters that JSON or a URL escapes."""
    words = set(_WORD.findall(text))
    return words | set(_WORD.findall(_ESCAPES.sub(" ", text))) if "\\" in text or "%" in text else words


def _named(
    extraction: tuple[str, dict[str, str]] | None, source: int, correlations: Correlations, numbers: Counter[str]
) -> str:
    """The variable for a value, after adding its extraction; empty if it cannot be extracted.

    numbers: of each name, the last one given.
    """
    if extraction is None:
        return ""
    hint, extract = extraction
    base = re.sub(r"[^A-Za-z0-9]+", "_", hint).strip("_").lower() or "value"
    base = f"value_{base}" if base[0].isdigit() else base[:40]
    name = ""
    while not name or (name != base and name in numbers):
        numbers[base] += 1
        name = base if numbers[base] == 1 else f"{base}_{numbers[base]}"
    numbers[name] = max(numbers[name], 1)
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


@dataclass(frozen=True)
class Response:
    """A response, read once for all values that are extracted from it."""

    exchange: Exchange

    def extraction_of(self, value: str) -> tuple[str, dict[str, str]] | None:
        """(a name for it, keys of `extract`) that give this value for the recorded response; None if there are none."""
        finders = (self._from_json, self._from_html, lambda value: _from_text(value, self.exchange.received))
        extraction = next((extraction for finder in finders if (extraction := finder(value))), None)
        if extraction is not None:
            return extraction
        headers = self.exchange.received_headers
        return next(((name, {"header": name}) for name, content in headers if content == value), None)

    @functools.cached_property
    def _paths(self) -> dict[str, str]:
        """The first JSON path of each text and number."""
        text = self.exchange.received
        paths: dict[str, str] = {}
        for value, path in _paths(_json(text) if text.lstrip()[:1] in ("{", "[") else None, "$"):
            paths.setdefault(value, path)
        return paths

    def _from_json(self, value: str) -> tuple[str, dict[str, str]] | None:
        if (path := self._paths.get(value)) is None:
            return None
        keys = re.findall(r"[A-Za-z_]\w*", path)
        return (keys[-1] if keys else "value"), {"json": path}

    @functools.cached_property
    def _selectors(self) -> dict[str, tuple[str, dict[str, str]]]:
        """How to extract the values of attributes."""
        return _selectors(self.exchange.received)

    def _from_html(self, value: str) -> tuple[str, dict[str, str]] | None:
        return self._selectors.get(value)


def _paths(body: Any, path: str) -> Iterator[tuple[str, str]]:
    """Texts and numbers of a JSON value, with their paths."""
    items = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, inner in items:
        plain = isinstance(key, str) and re.fullmatch(r"[A-Za-z_]\w*", key)
        at = f"{path}.{key}" if plain else f"{path}[{json.dumps(key)}]"
        if isinstance(inner, str | int):
            yield str(inner), at
        yield from _paths(inner, at)


class _Tags(HTMLParser):
    """All tags of a page, with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: content or "" for name, content in attrs}))


def _selectors(text: str) -> dict[str, tuple[str, dict[str, str]]]:
    """By value of an attribute, a name and the selector whose first match has it."""
    if "<" not in text:
        return {}
    parser = _Tags()
    with contextlib.suppress(AssertionError):
        # Python's parser gives up at `<![` before anything that is no marked section; the tags before it count.
        parser.feed(text)
    selectors: dict[str, tuple[str, dict[str, str]]] = {}
    seen: set[tuple[str, str, str]] = set()
    for tag, attributes in parser.tags:
        naming = [(by, own) for by in _NAMING if (own := attributes.get(by, ""))]
        for by, own in naming:
            # A selector gives the first of the tags that it matches.
            if (tag, by, own) in seen or '"' in own:
                continue
            for at, content in attributes.items():
                if content != own and content not in selectors:
                    selectors[content] = own, {"css": f'{tag}[{by}="{own}"]', "attribute": at}
        seen |= {(tag, by, own) for by, own in naming}
    return selectors


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
