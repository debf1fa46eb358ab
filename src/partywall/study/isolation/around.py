"""Commands around the runs of a part, such as those that set a limit of a hypervisor that Partywall does not drive."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
from collections.abc import Iterator, Sequence

from partywall.errors import TrialError
from partywall.events import Doing, Emit

DEADLINE_S = 120
"""A command of another hypervisor's shell may start slowly. One that waits for an answer never ends."""
SAID = 500
"""So many characters of a failed command's messages are shown."""


def listed(name: str, before: Sequence[str], after: Sequence[str]) -> list[str]:
    """The commands of a run, for its user to review."""
    commands = {"before": before, "after": after}
    return [f"part {name}, {when} it, on this host: {shlex.join(argv)}" for when, argv in commands.items() if argv]


@contextlib.contextmanager
def held(name: str, before: Sequence[str], after: Sequence[str], emit: Emit) -> Iterator[None]:
    """Carries out one command before a run, and the other when it ended, also after an error or Ctrl-C.

    TrialError if a command fails. A command that failed may have changed something, so the other one follows too.
    """
    try:
        if before:
            emit(Doing(f"{name}: {shlex.join(before)}"))
            _carry_out(name, before)
        yield
    finally:
        if after:
            _carry_out(name, after)


def _carry_out(name: str, argv: Sequence[str]) -> None:
    where = f"{name}: {shlex.join(argv)}"
    remedy = "try it by hand, then continue with --resume"
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=DEADLINE_S,
        )
    except OSError as error:
        raise TrialError(f"{where}: {error.strerror or error} — {remedy}") from error
    except subprocess.TimeoutExpired as error:
        raise TrialError(f"{where}: did not end within {DEADLINE_S} s — {remedy}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-SAID:]
        raise TrialError(f"{where}: exit code {done.returncode}: {said} — {remedy}")
