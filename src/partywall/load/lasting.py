"""Virtual users as a workload of a trial: the plan's highest number of users, for as long as the trial takes.

The program is self-contained: a container sees no files of the host and uses no resolver.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from partywall.errors import Problem, UsageError
from partywall.load import check as plans
from partywall.load.compiling import program as compiled
from partywall.load.document import Load
from partywall.load.quick import Quick
from partywall.load.quick import program as quick

# Longer than any run. A trial ends its workloads itself.
FOR_EVER_NS = 30 * 24 * 3600 * 10**9
RAMP_NS = 500_000_000


def lasting(load: Load, folder: Path) -> dict[str, Any]:
    """The program. UsageError with all mistakes."""
    if load.plan is not None:
        loaded = plans.load(folder / load.plan)
        if loaded.plan.generators:
            remedy = "leave generators out: these users are where their sandbox is"
            raise UsageError(Problem("a workload has no generators of its own", remedy, loaded.file, key="generators"))
        program = compiled(loaded, inline=True)
    else:
        users = None if load.rate is not None else load.users
        program = quick(Quick(load.url or "", FOR_EVER_NS, users=users, rate=load.rate, think_ns=load.think))
    return held(program) | {"slices": True, "addresses": addresses(program)}


def held(program: Mapping[str, Any]) -> dict[str, Any]:
    """The program with its highest level held indefinitely, after a short ramp."""
    model, said = next(iter(program["pacing"].items()))
    top = max(stage["to"] for stage in said["stages"])
    stages = [{"to": top, "for_ns": RAMP_NS}, {"to": top, "for_ns": FOR_EVER_NS}]
    return {**program, "pacing": {model: said | {"stages": stages}}}


def addresses(program: Mapping[str, Any], *, literal: bool = False) -> dict[str, list[str]]:
    """The resolved address of each server. UsageError for unknown names. literal: includes URLs with an address."""
    known: dict[str, list[str]] = {key: list(to) for key, to in program.get("addresses", {}).items()}
    problems = []
    for url in dict.fromkeys(_urls(program["kinds"])):
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = parts.hostname or ""
        shown = f"[{host}]" if ":" in host else host
        if f"{shown}:{port}" in known or (_is_address(host) and not literal):
            continue
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        # The resolver does not accept names with an empty or too long part.
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "this is not a host name"
            problems.append(Problem(f"{host} cannot be resolved: {why}", "check the name, or the resolver"))
            continue
        # Addresses of one family, as the agent chooses them: a name with both usually leads to the same server.
        family = socket.AF_INET if any(place[0] == socket.AF_INET for place in infos) else socket.AF_INET6
        places = dict.fromkeys(str(place[4][0]) for place in infos if place[0] == family)
        known[f"{shown}:{port}"] = [f"[{place}]:{port}" if ":" in place else f"{place}:{port}" for place in places]
    if problems:
        raise UsageError(*problems)
    return known


def for_guest(program: Mapping[str, Any], gateway: str) -> dict[str, list[str]]:
    """The address of each server as a guest sees it: the host's loopback is at the gateway.

    UsageError for servers that a guest cannot reach.
    """
    resolved = addresses(program, literal=True)
    problems = [
        Problem(f"{place} is a socket on this host, which a guest cannot reach", "use --sandbox process or container")
        for places in resolved.values()
        for place in places
        if place.startswith("unix:")
    ]
    if problems:
        raise UsageError(*problems)
    return {
        key: list(dict.fromkeys(_from_guest(place, gateway) for place in places)) for key, places in resolved.items()
    }


def _from_guest(place: str, gateway: str) -> str:
    host, _, port = place.rpartition(":")
    return f"{gateway}:{port}" if _is_loopback(host.strip("[]")) else place


def _is_loopback(host: str) -> bool:
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _urls(part: Any) -> Iterator[str]:
    """Origins of all requests in a part of the program."""
    if isinstance(part, list):
        for item in part:
            yield from _urls(item)
    elif isinstance(part, dict):
        if isinstance(part.get("http"), dict):
            parts = urlsplit(part["http"]["url"].partition("$")[0])
            yield f"{parts.scheme}://{parts.netloc}"
        for value in part.values():
            yield from _urls(value)
