"""Keeps the limit that helps most after an experiment, and has it taken back at some time.

A process of its own takes it back. If that is killed, the next start of Partywall does; a restart of the host forgets
the limit by itself.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence

from partywall import units
from partywall.blame.findings import best_help, findings_of
from partywall.blame.job import until_ns
from partywall.blame.measure.levers import launch_watchdog, tell
from partywall.blame.measure.owners import Refused
from partywall.blame.measure.places import undoing
from partywall.blame.measure.suspects import Suspect
from partywall.blame.record import Applied, BlameRecord
from partywall.errors import TrialError
from partywall.events import Emit, Note
from partywall.host.settings import ledger
from partywall.host.settings.ledger import Undo


def keep(record: BlameRecord, suspects: Sequence[Suspect], emit: Emit) -> None:
    """Sets the limit that helps most and leaves it. Says so, and how to undo it; says why if there is none."""
    best = best_help(findings_of(record))
    if best is None:
        emit(Note("nothing is kept: no limit surely helps"))
        return
    suspect = next(each for each in suspects if each.name == best.suspect)
    until = until_ns(record.job.until, datetime.datetime.now().astimezone()) if record.job.until else None
    owner = suspect.lever.owner
    keeper = None if until is None else _keeper(record, suspect.name, owner.undo, until)
    record.stream.append(
        Applied(
            at_ns=time.time_ns(),
            suspect=suspect.name,
            limit=best.use,
            writes=owner.writes,
            until_ns=until,
            keeper=keeper,
        )
    )
    try:
        owner.hold(best.use)
    except Refused as refused:
        raise TrialError(f"{suspect.name}: the limit cannot be kept: {refused}") from None
    held = _held(record.job.lever, best.use, suspect.place.cpus)
    if until is None:
        emit(Note(f"{suspect.name} is {held} from now on; to undo it: {undoing(suspect.lever)}"))
    else:
        when = datetime.datetime.fromtimestamp(until / 1e9).astimezone()
        emit(Note(f"{suspect.name} is {held} until {when:%Y-%m-%d %H:%M}; to end it sooner: kill {keeper}"))


def _held(lever: str, use: float, cpus: tuple[int, ...]) -> str:
    if lever == "cpuset":
        return f"moved to CPU {','.join(map(str, cpus))}"
    return f"held to {use:.2f} CPUs" if lever == "cpu" else f"held to {units.format_bytes(use)}/s"


def _keeper(record: BlameRecord, suspect: str, undo: Undo, until: int) -> int:
    """Starts the process that takes a limit back, before it is set. Returns its number."""
    keeper = launch_watchdog()
    note = ledger.keep(keeper.pid, undo)
    about = {"note": str(note), "pid": keeper.pid, "until": until / 1e9}
    audit = {"record": str((record.path / record.LINES).resolve()), "line": {"kind": "taken_back", "suspect": suspect}}
    tell(keeper, about | audit | undo.noted)
    return keeper.pid
