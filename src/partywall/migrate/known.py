"""What earlier records know of a guest that is to be moved."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partywall.errors import Problem, UsageError
from partywall.migrate.document import (
    POSTCOPY,
    PRECOPY,
    HostSpec,
    Method,
    MigrationEvidence,
    MigrationPlan,
    Move,
    MoveFinding,
)
from partywall.migrate.record import MigrationDirectory, Table

EARLIER_MOST = 8
"""Earlier moves that count, the newest first."""
UNLIMITED_SHARE = 0.9
"""A move that stayed below this share of its own limit was not held back by it."""
MISSING = object()


@dataclass(frozen=True)
class Earlier:
    """A move of an earlier record, as one that predictions rest on, with its tables."""

    move: Move
    tables: Mapping[str, Table]

    def finding(self) -> MoveFinding:
        """What it was to its guest and its clients."""
        from partywall.migrate.findings.cost import move_finding  # noqa: PLC0415 - slow to import

        return move_finding(self.move, self.tables)


def newest_first(runs: Path) -> list[MigrationDirectory]:
    """Records of migrations in a folder."""
    records = [path for path in runs.glob("*") if MigrationDirectory.is_one(path)] if runs.is_dir() else []
    return [MigrationDirectory(path) for path in sorted(records, key=lambda path: path.stat().st_mtime, reverse=True)]


def differs(known: MigrationPlan, wanted: MigrationPlan) -> str | None:
    """What of two plans differs so that figures of one do not hold for the other; None if nothing does."""
    for name in ("guest", "link", "clients"):
        if getattr(known, name) != getattr(wanted, name):
            return name
    missing = [name for name, activity in wanted.workloads.items() if known.workloads.get(name, MISSING) != activity]
    return f"workload {missing[0]}" if missing else None


def earlier_moves(plan: MigrationPlan, about: Mapping[str, Any], known: Path | None, runs: Path) -> list[Earlier]:
    """Moves of the same guest of the user's own between the same hosts, in either direction.

    about: of the guest as it is. known: the record that they are of; None for all in `runs`. UsageError if `known` has
    none.
    """
    if known is not None:
        record = MigrationDirectory.open(known)
        moves = list(_moves_of(record, plan, about))
        if not moves:
            evidence = record.evidence()
            why = _differs(evidence, plan, about) or "it has no completed move whose rate tells that of the link"
            remedy = "leave --known out, or name a record of a move of this guest"
            raise UsageError(Problem(f"nothing can be predicted from it: {why}", remedy, str(known)))
        return _numbered(moves)
    moves = []
    for record in newest_first(runs):
        # One that is damaged is passed over.
        with contextlib.suppress(UsageError):
            moves += _moves_of(record, plan, about)
        if len(moves) >= EARLIER_MOST:
            break
    return _numbered(moves[:EARLIER_MOST])


def _numbered(moves: Sequence[Earlier]) -> list[Earlier]:
    """With numbers below 0, which no move of a plan has."""
    return [
        Earlier(earlier.move.model_copy(update={"number": -count}), earlier.tables)
        for count, earlier in enumerate(moves, 1)
    ]


def _moves_of(record: MigrationDirectory, plan: MigrationPlan, about: Mapping[str, Any]) -> Iterator[Earlier]:
    evidence = record.evidence()
    if _differs(evidence, plan, about):
        return
    for move in evidence.moves:
        method = evidence.plan.methods.get(move.method)
        if method is None or move.outcome != "completed" or not _tells(move, method, evidence, plan, about):
            continue
        family = POSTCOPY if method.postcopy is not None else PRECOPY
        yield Earlier(move.model_copy(update={"method": family}), record.tables(move.number))


def _tells(
    move: Move, method: Method, evidence: MigrationEvidence, plan: MigrationPlan, about: Mapping[str, Any]
) -> bool:
    """Whether a move tells the costs of those of a plan: it sent plain pages, as fast as these may be sent."""
    from partywall.migrate.findings import own  # noqa: PLC0415 - slow to import
    from partywall.migrate.findings.advice import is_modelled  # noqa: PLC0415 - slow to import

    if not is_modelled(method) or not move.total_ns or not move.memory.get("transferred"):
        return False
    if own.copies_disks(plan):
        return False
    limit = _limit(method, evidence.about)
    rate = move.memory["transferred"] / (move.total_ns / 1e9)
    return rate < UNLIMITED_SHARE * limit or limit >= max(_limit(each, about) for each in plan.methods.values())


def _limit(method: Method, about: Mapping[str, Any]) -> float:
    """Bytes/s that a method may send."""
    if method.bandwidth is not None:
        return method.bandwidth / 8
    return float(about.get("defaults", {}).get("max-bandwidth", 0)) or float("inf")


def _differs(evidence: MigrationEvidence, plan: MigrationPlan, about: Mapping[str, Any]) -> str | None:
    """Why moves of a record are not of this guest between these hosts; None if they are."""
    known = evidence.plan
    if known.name != plan.name:
        return f"its plan is {known.name}, and this one is {plan.name}"
    for name in ("guest", "link"):
        if getattr(known, name) != getattr(plan, name):
            return f"its {name} is not that of the plan"
    if _places(known) != _places(plan):
        return "its hosts are not those of the plan"
    if evidence.about.get("memory_bytes") != about.get("memory_bytes"):
        return "its guest has another size of memory"
    return None


def _places(plan: MigrationPlan) -> frozenset[tuple[str | None, ...]]:
    """Its hosts, in either direction: a QEMU that waits for the guest has another monitor each time."""

    def place(host: HostSpec) -> tuple[str | None, ...]:
        return (host.uri, host.ssh, host.address)

    return frozenset() if plan.hosts is None else frozenset((place(plan.hosts.a), place(plan.hosts.b)))
