"""Converts command-line options to a load program: one URL, requested by a number of users or at a rate."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partywall import units
from partywall.errors import Problem, UsageError
from partywall.load.urls import wrong_with

USERS_OPEN = 1000
# A method: a token in capital letters (RFC 9110).
METHOD = re.compile(r"[A-Z0-9!#$%&'*+.^_`|~-]+")
# The agent's limits.
RATE_MOST = 10_000_000
REDIRECTS = 5


@dataclass(frozen=True)
class Quick:
    """The options. rate: arrivals a second in the open model, None for the closed one; durations in ns.

    method: None for POST with a body and GET without, as in curl.
    """

    url: str
    for_ns: int
    users: int | None = None
    rate: float | None = None
    poisson: bool = False
    ramp_ns: int = 0
    think_ns: int = 0
    method: str | None = None
    headers: Sequence[str] = ()
    data: str | None = None
    data_file: Path | None = None
    timeout_ns: int = 30_000_000_000
    keep_alive: bool = True
    http2: bool = False
    verify: bool = True
    authorities: Path | None = None
    connect_to: str | None = None
    redirects: int = REDIRECTS
    addresses: Mapping[str, Sequence[str]] = field(default_factory=dict)


def program(quick: Quick) -> dict[str, Any]:
    """The load program. UsageError for all invalid options at once."""
    problems = [*_url_problems(quick.url), *_number_problems(quick), *_header_problems(quick.headers)]
    if quick.method is not None and not METHOD.fullmatch(quick.method):
        problems.append(Problem(f"{quick.method!r} is not an HTTP method", "write for example POST", key="--method"))
    if quick.data is not None and quick.data_file is not None:
        problems.append(Problem("a body is given twice", "give --data or --data-file", key="--data"))
    if quick.data_file is not None and not quick.data_file.is_file():
        remedy = "give the path of a file"
        problems.append(Problem(f"{str(quick.data_file)!r} is not a file that exists", remedy, key="--data-file"))
    if problems:
        raise UsageError(*problems)
    steps = [{"http": _request(quick)}]
    if quick.think_ns:
        steps.append({"think": {"constant_ns": quick.think_ns}})
    return {
        "kinds": [{"name": "user", "actions": steps}],
        "pacing": _pacing(quick),
        "connections": {"keep_alive": quick.keep_alive, "protocol": "http2" if quick.http2 else "http1"},
        "tls": {"verify": quick.verify, "authorities_pem": _authorities(quick.authorities)},
        "addresses": {key: list(resolved) for key, resolved in quick.addresses.items()} | _connect_to(quick),
        # No longer than a request may take, because there is nothing else to finish.
        "grace_ns": min(quick.timeout_ns, 5_000_000_000),
    }


def _url_problems(url: str) -> list[Problem]:
    wrong = wrong_with(url)
    if wrong is None:
        return []
    what, remedy = wrong
    return [Problem(what if "://" in url else f"{what}, and no such plan exists", remedy, key="URL")]


def _number_problems(quick: Quick) -> list[Problem]:
    problems = []
    if quick.rate is not None and not 0 < quick.rate <= RATE_MOST:
        problems.append(
            Problem(
                f"must be greater than 0 and at most {RATE_MOST:,}, not {quick.rate:g}",
                "give for example 100",
                key="--rate",
            )
        )
    if quick.poisson and quick.rate is None:
        problems.append(Problem("needs --rate: without it, users wait for responses", "add --rate", key="--poisson"))
    if quick.for_ns < 1_000_000_000:
        problems.append(
            Problem(
                f"must be at least 1s, not {units.format_duration(quick.for_ns)}", "give for example 30s", key="--for"
            )
        )
    if quick.timeout_ns <= 0:
        problems.append(
            Problem(
                f"must be greater than 0, not {units.format_duration(quick.timeout_ns)}",
                "give for example 10s",
                key="--timeout",
            )
        )
    for key, length_ns in (("--ramp", quick.ramp_ns), ("--think", quick.think_ns)):
        if length_ns < 0:
            shown = f"{length_ns / 1e9:g}s"
            problems.append(Problem(f"must be 0s or more, not {shown}", "give for example 10s", key=key))
    if quick.connect_to is not None and not re.search(r"^unix:.|.:\d+$", quick.connect_to):
        remedy = "write for example 127.0.0.1:8080 or unix:/run/shop.sock"
        problems.append(
            Problem(f"{quick.connect_to!r} is neither ADDRESS:PORT nor unix:PATH", remedy, key="--connect-to")
        )
    if quick.rate is not None and quick.think_ns:
        remedy = "leave out --think, or give --users without --rate"
        problems.append(
            Problem("cannot be combined with --rate, because requests then have fixed times", remedy, key="--think")
        )
    return problems


def _header_problems(headers: Sequence[str]) -> list[Problem]:
    remedy = 'write for example "Accept: text/html"'
    return [Problem(f"{header!r} is not a header", remedy, key="--header") for header in headers if ":" not in header]


def _request(quick: Quick) -> dict[str, Any]:
    pairs = [header.split(":", 1) for header in quick.headers]
    method = quick.method or ("GET" if quick.data is None and quick.data_file is None else "POST")
    body: dict[str, Any] | None = None
    if quick.data is not None:
        body = {"text": _literal(quick.data)}
    elif quick.data_file is not None:
        body = {"file": str(quick.data_file.resolve())}
    return {
        "name": f"{method} {quick.url}",
        "method": method,
        "url": _literal(quick.url),
        "headers": [{"name": name.strip(), "value": _literal(value.strip())} for name, value in pairs],
        "body": body,
        "timeout_ns": quick.timeout_ns,
        "redirects": quick.redirects,
    }


def _literal(text: str) -> str:
    """Text with literal dollar signs."""
    return text.replace("$", "$$")


def _pacing(quick: Quick) -> dict[str, Any]:
    level = quick.rate if quick.rate is not None else quick.users or 1
    stages = [{"to": level, "for_ns": quick.ramp_ns}, {"to": level, "for_ns": quick.for_ns}]
    if quick.rate is None:
        return {"closed": {"stages": stages}}
    arrivals = "poisson" if quick.poisson else "constant"
    return {"open": {"arrivals": arrivals, "stages": stages, "users_max": quick.users or USERS_OPEN}}


def _authorities(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return file.read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "this is not text"
        raise UsageError(Problem(f"{file}: {reason}", "give certificates in PEM", key="--ca-file")) from None


def _connect_to(quick: Quick) -> dict[str, list[str]]:
    if quick.connect_to is None:
        return {}
    scheme, _, rest = quick.url.partition("://")
    authority = rest.partition("/")[0].partition("?")[0]
    host, colon, port = authority.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = authority, "443" if scheme.lower() == "https" else "80"
    return {f"{host.lower()}:{port}": [quick.connect_to]}
