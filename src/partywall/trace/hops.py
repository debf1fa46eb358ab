"""Converts command-line arguments to a request to the tracer. All mistakes are reported at once."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from partywall import units
from partywall.agent.commands import commands
from partywall.core.document.formats import refuse_document
from partywall.errors import Problem, UsageError
from partywall.trace.request import HOPS_MOST, PROTOCOLS, End, Hook, Hop, Only, TraceRequest, Translation

EXAMPLE = "write for example eth0, br0:in, web/eth0 or /proc/123/ns/net/eth0"
HORIZON_MOST_NS = 4_000_000_000
TRANSLATIONS_MOST = 4
PACKETS_MOST = 1_000_000
ONE_IN_MOST = 1_000_000
# The kernel's rules for interface names. Colons and slashes are our own separators.
INTERFACE = re.compile(r"[^\s/:]{1,15}")


class _Reader:
    """Collects problems, to report all of them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def wrong(self, key: str, message: str, remedy: str) -> None:
        self.problems.append(Problem(message, remedy, key=key))


def ask(
    hops: Sequence[str],
    *,
    horizon: str = "500ms",
    budget: str | None = "10%",
    one_in: int = 1,
    protocol: str | None = None,
    port: int | None = None,
    address: str | None = None,
    nat: Sequence[str] = (),
    packets: int = 2000,
    agents: Sequence[str] = (),
    present: Sequence[str] = (),
) -> TraceRequest:
    """Parses the description of a trace. UsageError with every problem.

    present: names of agents that run already, and need no command.
    """
    reader = _Reader()
    started, problems = commands(agents)
    reader.problems += problems
    known = dict.fromkeys(present, ()) | started
    places = [_hop(text, known, reader) for text in hops]
    if not 2 <= len(hops) <= HOPS_MOST:
        reader.wrong(
            "HOP", f"{len(hops)} given", f"a path has 2 to {HOPS_MOST} hops, in the order in which packets pass"
        )
    names = [place.name for place in places if place]
    sides = [name.removesuffix(":in").removesuffix(":out") for name in names]
    again = {side for side, name in zip(sides, names, strict=True) if side != name and side in names}
    for twice in sorted(again | {name for name in names if names.count(name) > 1}):
        reader.wrong(
            "HOP", f"{twice} is given twice", "a path passes each hop once; distinguish hooks with :in and :out"
        )
    fields: dict[str, Any] = {
        "horizon_ns": _within("--horizon", horizon, units.parse_duration_ns, 1, HORIZON_MOST_NS, reader),
        "budget": budget if budget is None else _within("--budget", budget, units.parse_share, 0.001, 1, reader),
        "one_in": _within("--one-in", str(one_in), int, 1, ONE_IN_MOST, reader),
        "only": Only(protocol=_protocol(protocol, reader), port=port, address=_address("--host", address, reader)),
        "translations": tuple(_translations(nat, reader)),
        "packets": _within("--packets", str(packets), int, 0, PACKETS_MOST, reader),
    }
    if one_in > 1 and any(place.agent for place in places if place):
        reader.wrong(
            "--one-in",
            f"{one_in}, but a hop is on another agent, whose counts begin and end at other moments",
            "leave it out, or trace only hops of this host",
        )
    for unused in sorted(set(known) - {place.agent for place in places if place}):
        reader.wrong("--agent", f"{unused!r} has no hop", f"write a hop as {unused}/INTERFACE, or leave it out")
    if reader.problems:
        raise UsageError(*reader.problems)
    return TraceRequest(hops=tuple(place for place in places if place), agents=known, **fields)


def _hop(text: str, agents: dict[str, tuple[str, ...]], reader: _Reader) -> Hop | None:
    refuse_document(Path(text))
    where, slash, rest = text.rpartition("/")
    interface, colon, hook = rest.partition(":")
    if not INTERFACE.fullmatch(interface) or (slash and not where):
        reader.wrong("HOP", f"{text!r} is not a hop", EXAMPLE)
        return None
    if colon and hook not in ("in", "out"):
        reader.wrong(
            "HOP", f"{text!r}: {hook!r} is not a hook", "add :in for received packets, or :out for sent packets"
        )
        return None
    return Hop(
        name=text,
        interface=interface,
        agent=where if where in agents else None,
        namespace=where if where and where not in agents else None,
        hook=cast("Hook", hook) if colon else None,
    )


def _within(key: str, text: str, parse: Any, least: float, most: float, reader: _Reader) -> Any:
    try:
        value = parse(text)
    except ValueError as error:
        reader.wrong(key, str(error), "")
        return least
    if not least <= value <= most:
        low, high = (_bound(value, parse) for value in (least, most))
        reader.wrong(key, f"must be from {low} to {high}, not {text}", "write a value in this range")
        return least
    return value


def _bound(value: float, parse: Any) -> str:
    if parse is units.parse_duration_ns:
        return units.format_duration(value)
    return f"{100 * value:g}%" if parse is units.parse_share else f"{value:,}"


def _protocol(text: str | None, reader: _Reader) -> int | None:
    if text is None or text.lower() in PROTOCOLS:
        return PROTOCOLS[text.lower()] if text else None
    # Not isdigit: a superscript is a digit too, but int() refuses it.
    if text.isdecimal() and 0 < int(text) < 256:
        return int(text)
    reader.wrong("--protocol", f"{text!r} is not known", f"there are {', '.join(PROTOCOLS)} and numbers from 1 to 255")
    return None


def _address(key: str, text: str | None, reader: _Reader) -> str | None:
    if text is None:
        return None
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        reader.wrong(key, f"{text!r} is not an address", "write for example 192.0.2.1 or 2001:db8::1")
        return None


def _translations(given: Sequence[str], reader: _Reader) -> Iterable[Translation]:
    if len(given) > TRANSLATIONS_MOST:
        reader.wrong("--nat", f"{len(given)} are too many", f"{TRANSLATIONS_MOST} are possible")
    for text in given:
        outside, equals, inside = text.partition("=")
        ends = [_end(part, reader) for part in (outside, inside)] if equals else [None]
        if all(ends):
            yield Translation(outside=cast("End", ends[0]), inside=cast("End", ends[1]))
        elif not equals:
            reader.wrong("--nat", f"{text!r} is not a translation", "write for example 198.51.100.1:4000=10.0.0.5:4000")


def _end(text: str, reader: _Reader) -> End | None:
    """192.0.2.1, 192.0.2.1:80, 2001:db8::1 or [2001:db8::1]:80."""
    match = re.fullmatch(
        r"\[(?P<six>[^\]]+)\](?::(?P<a>\d+))?|(?P<four>[\d.]+)(?::(?P<b>\d+))?|(?P<bare>[\da-fA-F:.]+)", text
    )
    groups = match.groupdict() if match else {}
    address = _address("--nat", next((groups[k] for k in ("six", "four", "bare") if groups.get(k)), text), reader)
    port = next((int(groups[k]) for k in "ab" if groups.get(k)), None)
    if port is not None and not 0 < port < 65536:
        reader.wrong("--nat", f"{text!r}: {port} is not a port", "give 1 to 65535")
    return End(address=address, port=port) if address else None
