"""`partywall consolidate`: which guests share a host, and which hosts can be off."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from partywall.cli.arguments import SEED_MOST
from partywall.cli.execution import carry_out
from partywall.cli.live import Live, wide_console
from partywall.consolidate import load
from partywall.kinds.consolidation import Consolidations, PlanJob, SimulationJob
from partywall.kinds.kind import Options

app = typer.Typer(
    help="Plan which guests share a host and which hosts are off, and simulate policies.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

ClusterFile = Annotated[
    str,
    typer.Argument(
        help="A cluster file (YAML, see docs/consolidate.md), or the name of a shipped one: cluster, data-centre.",
        metavar="CLUSTER",
    ),
]
Out = Annotated[Path | None, typer.Option(help="Directory to make. Default: runs/consolidation-NAME-TIME-CHANCE.")]


class SolverName(StrEnum):
    AUTO = "auto"
    EXACT = "exact"
    HEURISTIC = "heuristic"


@app.command()
def plan(
    context: typer.Context,
    cluster: ClusterFile,
    solver: Annotated[
        SolverName,
        typer.Option(help="exact: OR-tools; auto: exact for up to 40 hosts and 200 guests, else the heuristic."),
    ] = SolverName.AUTO,
    out: Out = None,
) -> int:
    """Show which guests would move and which hosts would be switched, what that saves, and what it costs.

    partywall consolidate plan cluster

    Changes nothing. Figures of energy come from power curves, so they are modelled. Each has an interval.
    """
    console = wide_console()
    job = PlanJob.read(load.find(cluster), solver.value)
    options = Options(context.obj(), out)
    return carry_out(lambda emit: Consolidations().measure(job, options, emit), options, Live(console), console)


@app.command()
def simulate(
    context: typer.Context,
    cluster: ClusterFile,
    traces: Annotated[
        list[Path] | None,
        typer.Option(
            help="Load of guests: a folder or tar archive in PlanetLab's format; may be repeated. Default: generated.",
            exists=True,
        ),
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="A policy; may be repeated. Default: all, published ones included.")
    ] = None,
    days: Annotated[int, typer.Option(help="Number of generated days.", min=1, max=100)] = 1,
    orders: Annotated[
        int, typer.Option(help="Random assignments of traces to guests, for intervals.", min=1, max=100)
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.", min=0, max=SEED_MOST)] = 1,
    out: Out = None,
) -> int:
    """Simulate policies over load traces: energy, violations and moves side by side.

      partywall consolidate simulate data-centre
      partywall consolidate simulate data-centre --traces 20110303.tar.gz --orders 3

    Every policy starts from the same placement. Exit code: 1 if a published policy takes less energy, or violates
    less, than Partywall's.
    """
    console = wide_console()
    job = SimulationJob.read(load.find(cluster), tuple(traces or ()), tuple(policy or ()), days, orders, seed)
    options = Options(context.obj(), out)
    return carry_out(lambda emit: Consolidations().measure(job, options, emit), options, Live(console), console)
