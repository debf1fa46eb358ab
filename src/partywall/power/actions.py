"""The commands that measure nothing: they list meters and profiles, and say what moves cost in joules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar

from partywall.core.job import Action, Option
from partywall.core.report.value import Column, Report, Table
from partywall.core.stats.estimate import Estimate
from partywall.errors import TrialError
from partywall.power.profiles import PROFILES, find
from partywall.power.values import MoveEnergy


class Meters(Action):
    """List the meters of this host, those that need a name, and what is missing for the others."""

    verb: ClassVar[str] = "meters"

    def act(self, host: Callable[[], Any]) -> Report:
        from partywall.power import meters

        places = meters.find(host())
        columns = (
            Column("name", "meter"), Column("what", "what it is"), Column("here", "here"), Column("remedy", "remedy"),
        )  # fmt: skip
        rows = [
            {"name": place.name, "what": place.what, "here": place.missing or "yes", "remedy": place.remedy}
            for place in places
        ]
        note = "Fill in names in capitals. Passwords come from PARTYWALL_METER_PASSWORD (docs/power.md)."
        return Report("", sections=(Table("meters", "", columns, rows),), notes=(note,), values={"meters": places})


class Profiles(Action):
    """List the published power profiles that stand in for a model, with their watts."""

    verb: ClassVar[str] = "profiles"

    def act(self, host: Callable[[], Any]) -> Report:
        del host
        columns = (
            Column("profile", "profile"),
            Column("source", "source"),
            Column("cpus", "cores", ""),
            Column("idle", "idle", "W"),
            Column("full", "full", "W"),
            Column("off", "off", "W"),
            Column("even", "break-even", "s"),
        )
        rows = [
            {"profile": each.name, "source": each.source, "cpus": each.cpus, "idle": each.points[0][1]}
            | {"full": each.points[-1][1], "off": each.off_watts, "even": each.break_even_s}
            for each in PROFILES.values()
        ]
        values = {"profiles": list(PROFILES.values())}
        return Report("", sections=(Table("profiles", "", columns, rows),), values=values)


class Moves(Action):
    """Show what the moves of a migration record cost in joules: source, destination, and the stretched service.

    partywall power migration runs/migration-… --model cervera-dl120-g6

    The CPU time of both QEMUs is measured; the watts are those of the model. Power that does not depend on CPU time,
    such as that of a network card, is not included.
    """

    verb: ClassVar[str] = "migration"

    record: Annotated[Path, Option("A record of 'partywall migrate'.", metavar="RECORD")]
    model: Annotated[str, Option("A model file of 'partywall power calibrate', or a profile's name.")]

    def act(self, host: Callable[[], Any]) -> Report:
        from partywall.power.findings.moving import PARTS

        del host
        costs = move_energy(self.record, self.model)
        columns = (
            Column("workload", "workload"),
            Column("method", "method"),
            Column("moves", "moves", ""),
            Column("seconds", "time of a move", "s"),
            *(Column(name, name) for name in (*PARTS, "in total")),
        )
        rows = [
            {"workload": each.workload, "method": each.method, "moves": each.moves, "seconds": each.seconds}
            | {name: _joules(each.parts[name]) for name in PARTS}
            | {"in total": _joules(each.total)}
            for each in costs
        ]
        notes = [f"energy of one move, {costs[0].origin} from {costs[0].model}; from the cheapest to the dearest core"]
        if bounds := [each.workload for each in costs if not each.own_known]:
            notes.append(f"{', '.join(bounds)}: the source includes the guest's own work, so it is an upper bound")
        values = {"moves": [each.model_dump(mode="json") for each in costs]}
        return Report("", sections=(Table("moves", "", columns, rows),), notes=tuple(notes), values=values)


def move_energy(path: Path, model: str) -> tuple[MoveEnergy, ...]:
    """Joules of the moves of a migration record. model: a model file, or the name of a profile. Raises UsageError."""
    from partywall.migrate.findings.cost import findings
    from partywall.migrate.record import MigrationDirectory
    from partywall.power.findings.moving import energy

    chosen = find(model)
    record = MigrationDirectory.open(path)
    costs = energy(findings(record.evidence(), record.table).moves, chosen)
    if not costs:
        raise TrialError(f"{path}: no completed move with CPU times; move a guest first")
    return costs


def _joules(estimate: Estimate) -> str:
    """Joules with their interval, which is not symmetric."""
    return f"{estimate.value:.1f} J ({estimate.low:.1f} to {estimate.high:.1f})"
