"""Plans, lists and tables on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from partywall import units
from partywall.agent.catalogue import Catalogue
from partywall.model.plan import Plan, Treatment, null_cpus
from partywall.model.scenario import Scenario
from partywall.plan import order


def plan(console: Console, plan: Plan) -> None:
    """What would be done, and how long it would take."""
    scenario = plan.scenario
    blocks = scenario.budget // sum(trial.block_ns for trial in plan.trials)
    console.print(
        f"{scenario.name}: {len(plan.trials)} trials in {plan.rounds} rounds, seed {plan.seed}; "
        f"measuring {units.format_duration(scenario.budget)}, about {blocks} blocks a trial; "
        f"with set-up about {units.format_duration(plan.estimate_ns)}",
        highlight=False,
    )
    for trial in plan.trials:
        levels = ", ".join(f"{path} = {level}" for path, level in trial.levels.items())
        where = f"{trial.id} on CPU {_list(trial.victim_cpus)}{f' ({levels})' if levels else ''}"
        title = f"{where}, one block {units.format_duration(trial.block_ns)}"
        table = Table("treatment", "on CPU", "guard", "slot", title=title, title_justify="left")
        for treatment in trial.treatments:
            null = null_cpus(trial) if treatment.role == "null" else ()
            cpus = trial.aggressor_cpus.get(treatment.aggressor or "", null)
            table.add_row(
                treatment.label, _list(cpus), *map(units.format_duration, (treatment.guard_ns, treatment.slot_ns))
            )
        console.print(table)
        console.print(
            f"first blocks: {'  |  '.join(_labels(trial.treatments, order(plan.seed, trial, n)) for n in range(2))}\n",
            highlight=False,
        )
    console.print("Nothing was measured. Leave out --dry-run to measure.")


def _labels(treatments: Sequence[Treatment], ids: Sequence[str]) -> str:
    labels = {treatment.id: treatment.label for treatment in treatments}
    return ", ".join(labels[id_] for id_ in ids)


def _list(cpus: Sequence[int]) -> str:
    return ",".join(map(str, cpus)) or "–"


def kernels(console: Console, catalogue: Catalogue) -> None:
    """Every kernel in a line."""
    table = Table("kernel", "resource", "as", "what it does")
    for name in catalogue.names():
        if info := catalogue.kernel(name):
            table.add_row(name, info.resource, {"both": "probe, stressor"}.get(info.roles, info.roles), info.summary)
    console.print(table)
    console.print(
        "partywall probe NAME --help shows how to use one; docs/kernels has a page for each.", highlight=False
    )


def scenarios(console: Console, found: Mapping[str, Scenario]) -> None:
    """The shipped scenarios in a line each."""
    table = Table("name", "time", "what it shows")
    for name, scenario in found.items():
        table.add_row(name, units.format_duration(scenario.budget), scenario.description)
    console.print(table)


def table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A query's result."""
    shown = Table(*columns)
    for row in rows:
        shown.add_row(*("" if value is None else str(value) for value in row))
    console.print(shown)


def written(console: Console, files: Sequence[Path]) -> None:
    """Documents by name, and one line for a folder of charts."""
    charts = [file for file in files if file.parent.name == "charts"]
    for file in files:
        if file not in charts:
            console.print(f"written: {file}", highlight=False, soft_wrap=True)
    if charts:
        console.print(f"written: {len(charts)} charts in {charts[0].parent}", highlight=False, soft_wrap=True)
