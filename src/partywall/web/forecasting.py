"""A forecast with the rights of the runner, for a server that runs as another user.

What an order needs depends on who carries it out. The runner starts this as a process: an order on standard input, and
the forecast, or the problems of the order, on standard output.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from partywall.errors import PartywallError, Problem, ProblemsError, UsageError
from partywall.plain import plain
from partywall.web.documents import Forecast, forecast
from partywall.web.jobs import Order

FORECAST_S = 120.0
FORM = TypeAdapter(Forecast)


def answered(order: Order, *, allow_commands: bool) -> dict[str, Any]:
    """The forecast of an order by a process of its own, as plain values: {"forecast": ...} or {"problems": [...]}."""
    words = [sys.executable, "-P", "-m", __name__, *(["--allow-commands"] if allow_commands else [])]
    given = order.model_dump_json().encode()
    try:
        done = subprocess.run(words, input=given, capture_output=True, check=False, timeout=FORECAST_S)
    except subprocess.TimeoutExpired:
        raise PartywallError(
            f"the host could not be examined within {FORECAST_S:.0f} s; run the command in a terminal with --dry-run"
        ) from None
    if done.returncode:
        said = done.stderr.decode(errors="replace")
        raise RuntimeError(f"a bug in a forecast (exit status {done.returncode}): {said}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def read(answer: dict[str, Any]) -> Forecast:
    """The forecast in an answer. UsageError with the problems of the order, if it has any."""
    if "problems" in answer:
        raise UsageError(*(Problem(**problem) for problem in answer["problems"]))
    return FORM.validate_python(answer["forecast"])


def main(words: Sequence[str]) -> None:
    """The process: [--allow-commands]."""
    from partywall.core import here  # noqa: PLC0415 - of the process alone

    order = Order.model_validate_json(sys.stdin.buffer.read())
    try:
        made = forecast(order, here.this_host(), allow_commands="--allow-commands" in words)
        answer = {"forecast": FORM.dump_python(made, mode="json")}
    except ProblemsError as error:
        answer = {"problems": [plain(problem) for problem in error.problems]}
    except PartywallError as error:
        answer = {"problems": [plain(Problem(str(error)))]}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1:])
