"""`partywall load model`: predicts results on the bare host from a study of load generation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from partywall import units
from partywall.cli import output
from partywall.errors import Exit, Problem, UsageError

MAKE = "partywall study papers/load-generation-netto"


def model(
    run: Annotated[Path, typer.Argument(help="The directory of the study to fit models to.", metavar="STUDY_RUN")],
    users: Annotated[
        int | None, typer.Option(help="Number of users of the load to predict from.", min=1, max=1_000_000)
    ] = None,
    response: Annotated[str | None, typer.Option(help="Mean response time measured in the sandbox, e.g. 45ms.")] = None,
    used: Annotated[str | None, typer.Option(help="Share of its CPUs' time that the sandbox used, e.g. 40%.")] = None,
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Predict what the bare host would have measured, from what a generator in a sandbox measured.

    Shows how well the model of a study predicts numbers of users that it was not fitted to. With --users, --response
    and --used, it makes a prediction for a load of the same script that was measured only in the sandbox.
    """
    # Slow to import, and every other `partywall load` imports this module.
    from rich.table import Table

    from partywall import study as studies
    from partywall.load import overhead
    from partywall.study.generation import Generation
    from partywall.study.generation import kind as generation
    from partywall.study.record import FILE, StudyDirectory

    directory = StudyDirectory.open(run)
    kept = run / FILE
    kind = studies.kind_of(kept)
    if not isinstance(kind, Generation):
        raise UsageError(Problem(f"{run} is not a study of load generation", "make one: " + MAKE))
    pairs = generation.pairs(kind.read(directory.content, str(kept)), directory)
    section = generation.model_section(pairs)
    if section is None:
        remedy = f"measure at more than {overhead.LEVELS_LEAST} numbers of users, from a process and from a sandbox"
        raise UsageError(
            Problem(f"{run} has too few numbers of users measured both ways, or a pause without a plain mean", remedy)
        )
    console = output.console(format_)
    result = {"columns": section.columns, "rows": section.rows, "forecast": None}
    table = Table(*section.columns, box=None)
    for row in section.rows:
        table.add_row(*row)
    console.print(table)
    output.say(console, section.lead)
    given = {"--users": users, "--response": response, "--used": used}
    if missing := [option for option, value in given.items() if value is None]:
        if len(missing) < len(given):
            raise UsageError(Problem(f"{' and '.join(missing)}: missing", "give all three or none"))
        return output.write("load model", result) if format_ == output.Format.JSON else Exit.HOLDS
    response_s, used_cpus = _requested(response or "", used or "")
    forecast = overhead.fit(pairs).forecast(overhead.Pair(users or 1, pairs[0].think_s, response_s, used_cpus))
    said = f"{generation.time_span(forecast)} on the bare host, {generation.rate_span(forecast)} iterations/s"
    output.say(console, f"{users} users: {said}")
    return output.write("load model", {**result, "forecast": forecast}) if format_ == output.Format.JSON else Exit.HOLDS


def _requested(response: str, used: str) -> tuple[float, float]:
    """The response time in s, and the share of the CPUs' time."""
    problems = []
    values: dict[str, float] = {}
    for option, text, parse in (("--response", response, units.parse_duration_ns), ("--used", used, units.parse_share)):
        try:
            values[option] = float(parse(text))
        except ValueError as error:
            problems.append(Problem(str(error), key=option))
    if not problems and values["--response"] <= 0:
        problems.append(Problem("must be greater than 0", "give for example 45ms", key="--response"))
    if not problems and values["--used"] <= 0:
        problems.append(Problem("must be greater than 0", "give for example 40%", key="--used"))
    if problems:
        raise UsageError(*problems)
    return values["--response"] / 1e9, values["--used"]
