"""The command line. It wires stages together, shows what they say, and turns outcomes and errors into exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn

import typer

from partywall.cli.app import app
from partywall.errors import Exit, PartywallError

INTERRUPTED = 130


def main() -> NoReturn:
    """Runs the command line and ends the process with the exit code that the errors' docstring explains."""
    try:
        outcome = app(standalone_mode=False)
    except PartywallError as error:
        sys.stderr.write(f"partywall: {error}\n")
        sys.exit(error.exit)
    except KeyboardInterrupt:
        sys.stderr.write("partywall: interrupted\n")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone, which is theirs to decide.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(Exit.HOLDS)
    except Exception as error:  # noqa: BLE001 - the last stop
        sys.exit(_unexpected(error))
    sys.exit(outcome if isinstance(outcome, int) else Exit.HOLDS)


# Typer carries a click of its own; this is the base of all its complaints about a command line.
_Complaint = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _unexpected(error: Exception) -> int:
    """Complaints about the command line are the user's; all else is a bug, shown whole."""
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, typer.Abort):
        return INTERRUPTED
    if isinstance(error, _Complaint):
        message = str(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
        # A group without a command answers with its help, which needs no advice.
        sys.stderr.write(f"{message}\n" if "\n" in message else f"partywall: {message}; see --help\n")
        return Exit.USAGE
    traceback.print_exc()
    sys.stderr.write(f"partywall: this is a bug: {error!r}; please report it with the lines above\n")
    return Exit.BUG
