"""Plans, lists and tables on a terminal."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from partywall import units
from partywall.agent.catalogue import Catalogue, KernelInfo
from partywall.core.report import figures
from partywall.core.report.terminal import Rows
from partywall.run.check import Expected
from partywall.run.document.scenario import Scenario
from partywall.run.plan import forecasts, order, shares
from partywall.run.plan.pace import BlockKind, Forecast, needed_ns
from partywall.run.plan.requirements import commands
from partywall.run.values.plan import Plan, Treatment, Trial, null_cpus

HOW = (
    "A trial repeats blocks until it is precise enough. In a block, each treatment (a neighbour at an intensity, or "
    "none) gets one slot of time, in random order; a short time after each switch (guard) is not counted. Short "
    "blocks contain the treatments whose slots can be short, slow blocks the others, and both contain the baseline. "
    "Counters are read in long and slow blocks. A treatment is judged by the blocks listed beside it."
)


def plan(console: Console, plan: Plan, first: Sequence[str] = ()) -> None:
    """Shows what would be done, and how long it would take. Trials with the same plan are shown once.

    first: what a run would have to do before.
    """
    scenario, parts, blocks = plan.scenario, shares(plan), forecasts(plan)
    console.print(
        f"{scenario.name}: {units.counted(len(plan.trials), 'trial')} in {units.counted(plan.rounds, 'round')}, "
        f"seed {plan.seed}; measuring {units.format_duration(scenario.budget)}, "
        f"with set-up about {units.format_duration(plan.estimate_ns)}{_grows(scenario)}",
        highlight=False,
    )
    console.print(HOW, style="dim", highlight=False)
    alike: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in plan.trials:
        key = (trial.victim_cpus, parts[trial.id], blocks[trial.id], _treatments(trial, plan, blocks[trial.id]))
        alike.setdefault(key, []).append(trial)
    for (_, share_ns, forecast, rows), trials in alike.items():
        console.print(_planned(trials, rows, share_ns, forecast))
        for number in range(2):
            console.print(Padding(Text(_block(plan, trials[0], forecast, number), style="dim"), (0, 0, 0, 2)))
    short = [trial.id for trial in plan.trials if blocks[trial.id].fewest(parts[trial.id]) < scenario.min_blocks]
    if short:
        console.print(_too_short(plan, short, blocks), style="yellow", highlight=False)
    for warning in (*plan.warnings, *first):
        console.print(f"\n{warning}", style="yellow", highlight=False)
    if listed := commands(scenario):
        console.print("\nIt would run these commands, with --allow-commands:")
        for command in listed:
            console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)
    console.print("\nNothing was measured. Leave out --dry-run to measure.")


def _planned(trials: Sequence[Trial], rows: Sequence[Sequence[str]], share_ns: int, forecast: Forecast) -> Group:
    """Trials with the same structure: their time, and the treatments of each."""
    table = Table("treatment", "on CPU", "guard", "slot", "blocks", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for row in rows:
        table.add_row(*row)
    where = f"victim on CPU {_list(trials[0].victim_cpus)}; {_counted(len(trials), share_ns, forecast)}"
    return Group(Text(f"\n{'; '.join(map(_named, trials))}: {where}", style="bold"), Padding(table, (0, 0, 0, 2)))


def _counted(trials: int, share_ns: int, forecast: Forecast) -> str:
    """The time that trials of one structure get, and the number of blocks that fit."""
    counts = forecast.blocks(share_ns)
    said = [
        f"{counts[kind]} {'' if kind is BlockKind.WHOLE else f'{kind} '}blocks of {units.format_duration(took_ns)}"
        for kind, took_ns in forecast.took_ns.items()
    ]
    return f"{units.format_duration(share_ns)}{' each' if trials > 1 else ''}: about {', '.join(said)}"


def checked(
    console: Console,
    name: str,
    scenario: Scenario,
    expected: Sequence[Expected],
    unfit: str,
    others: Sequence[str] = (),
) -> None:
    """Shows a valid scenario: the expected content of its trials, and what prevents it from running on this host.

    others: machines that were not contacted.
    """
    victims, aggressors = (
        units.counted(len(members), what)
        for members, what in ((scenario.victims, "victim"), (scenario.aggressors, "aggressor"))
    )
    console.print(f"{name}: no mistakes: {victims}, {aggressors}", highlight=False)
    for trial, trials in Counter(expected).items():
        held = f"{units.counted(trials, 'trial')} of {units.counted(trial.treatments, 'treatment')}"
        counted = _counted(trials, trial.share_ns, trial.blocks)
        console.print(f"  {trial.victim}: {held}; {counted}", highlight=False, soft_wrap=True)
    if others:
        names = ", ".join(others)
        said = f"{names}: not contacted, so some requirements were not checked; to check them: partywall run --dry-run"
        console.print(said, highlight=False, soft_wrap=True)
    if unfit:
        console.print(f"It cannot run on this host:\n{unfit}", style="yellow", highlight=False, soft_wrap=True)


def _block(plan: Plan, trial: Trial, forecast: Forecast, number: int) -> str:
    beat = forecast.beat
    kind = "" if beat.kind(number) is BlockKind.WHOLE else f" ({beat.kind(number)})"
    held = [id_ for id_ in order(plan.seed, trial, number) if beat.holds(number, id_)]
    return f"block {number + 1}{kind} of {trial.id}: {', '.join(_labels(trial.treatments, held))}"


def _grows(scenario: Scenario) -> str:
    """How much longer a run may take than its budget says; empty if it keeps to it."""
    if scenario.budget_grows is None:
        return ""
    longer = units.format_duration(int(scenario.budget * scenario.budget_grows))
    return f"; up to {longer} more if the host is too noisy to know most effects by then"


def _too_short(plan: Plan, trials: Sequence[str], blocks: Mapping[str, Forecast]) -> str:
    """A warning if the budget is too small: a host's CPUs can make blocks longer than the scenario suggests."""
    needed = sum(needed_ns(list(blocks.values()), plan.scenario.min_blocks))
    return (
        f"\nThe budget is too small for {plan.scenario.min_blocks} blocks of {', '.join(trials)}: with fewer "
        f"blocks, no goal can be judged. Give --budget {math.ceil(needed / 1e9)}s or more."
    )


def _named(trial: Trial) -> str:
    levels = ", ".join(f"{path} = {level}" for path, level in trial.levels.items())
    return f"{trial.id} ({levels})" if levels else trial.id


def _treatments(trial: Trial, plan: Plan, forecast: Forecast) -> tuple[tuple[str, ...], ...]:
    """Table rows. Slots and blocks are those by which a treatment is judged: the short ones if it has any."""
    null, beat = null_cpus(trial), forecast.beat
    return tuple(
        (
            treatment.label,
            _list(trial.aggressor_cpus.get(treatment.aggressor or "", null if treatment.role == "null" else ())),
            units.format_duration(treatment.guard_ns),
            units.format_duration(
                treatment.slot_ns if kind is BlockKind.SHORT else max(treatment.slot_ns, plan.timing.long)
            ),
            "all" if kind is BlockKind.WHOLE else str(kind),
        )
        for treatment in trial.treatments
        for kind in (beat.judging(treatment.id),)
    )


def _labels(treatments: Sequence[Treatment], ids: Sequence[str]) -> list[str]:
    labels = {treatment.id: treatment.label for treatment in treatments}
    return [labels[id_] for id_ in ids]


def _list(cpus: Sequence[int]) -> str:
    return ",".join(map(str, cpus)) or "–"


def kernels(console: Console, catalogue: Catalogue) -> None:
    """Lists every kernel, grouped by resource."""
    every = [info for name in catalogue.names() if (info := catalogue.kernel(name))]
    listed = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    listed.add_column("kernel", no_wrap=True)
    listed.add_column("as", no_wrap=True)
    listed.add_column("what it does")
    for resource, kernels in itertools.groupby(every, key=lambda info: info.resource):
        listed.add_row(Text(f"\n{resource.replace('_', ' ')}", style="bold"))
        for info in kernels:
            listed.add_row(f"  {info.name}", _roles(info), info.summary)
    console.print(listed)
    console.print(
        f"\n{len(every)} kernels. A probe measures, a stressor applies load; most kernels can be either. "
        "To show one with its parameters: partywall kernels NAME",
        highlight=False,
    )


def kernel(console: Console, info: KernelInfo) -> None:
    """Shows one kernel with its parameters, and how to try it."""
    figure = figures.scale_of_kernel(info.figure)
    console.print(f"{info.name}: {info.summary}", style="bold", highlight=False, markup=False)
    facts = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    facts.add_row("resource", info.resource.replace("_", " "))
    facts.add_row("as", _roles(info))
    facts.add_row("figure", f"{figure.label} ({figure.direction})")
    facts.add_row("latency", f"of {info.latency.get('of', 'one operation')}")
    console.print(facts)
    if info.parameters:
        listed = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
        listed.add_column("\nparameter", no_wrap=True)
        listed.add_column("\nwhat it is")
        for parameter in info.parameters:
            listed.add_row(parameter.option, Text(parameter.help))
        console.print(listed)
    role, command = ("probe", "probe") if info.can_be("probe") else ("stressor", "stress")
    console.print(f"\nTry: partywall {command} {info.name}", highlight=False, markup=False, soft_wrap=True)
    if set_one := next((parameter for parameter in info.parameters if parameter.default), None):
        console.print(
            f"In a scenario: {{{role}: {info.name}, params: {{{set_one.name}: {set_one.default}}}}}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _roles(info: KernelInfo) -> str:
    return {"both": "probe, stressor"}.get(info.roles, info.roles)


def scenarios(console: Console, by_name: Mapping[str, Scenario]) -> None:
    """Lists the shipped scenarios, one a line."""
    table = Table("name", "time", "what it shows")
    for name, scenario in by_name.items():
        table.add_row(name, units.format_duration(scenario.budget), scenario.description)
    console.print(table)


def table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Shows the result of a query. In a pipe the table is as wide as it must be."""
    texts = [["" if value is None else str(value) for value in row] for row in rows]
    whole = Table(*columns)
    for row in texts:
        whole.add_row(*map(Text, row))
    shown = Rows(whole, [(f"row {number}", row) for number, row in enumerate(texts, start=1)])
    if not console.is_terminal:
        console.width = max(shown.natural_width(console), console.width)
    console.print(shown)


def written(console: Console, files: Sequence[Path]) -> None:
    """Lists written files: the page first, other documents by name, and one line for a folder of charts."""
    charts = [file for file in files if file.parent.name == "charts"]
    for file in files:
        if file.suffix == ".html":
            said = Text.assemble("The whole report, with charts: ", (str(file), "underline"), overflow="fold")
            console.print(said, soft_wrap=True)
        elif file not in charts:
            console.print(f"written: {file}", highlight=False, soft_wrap=True)
    if charts:
        console.print(f"written: {len(charts)} charts in {charts[0].parent}", highlight=False, soft_wrap=True)
