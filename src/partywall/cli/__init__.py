"""The command line. It wires stages together, shows what they say, and turns outcomes and errors into exit codes."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from partywall.cli.app import app
from partywall.errors import Exit, PartywallError


def main() -> NoReturn:
    """Runs the command line and ends the process with the exit code that the errors' docstring explains."""
    try:
        outcome = app(standalone_mode=False)
    except PartywallError as error:
        sys.stderr.write(f"partywall: {error}\n")
        sys.exit(error.exit)
    except KeyboardInterrupt:
        sys.stderr.write("partywall: interrupted\n")
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has gone, which is theirs to decide.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(Exit.HOLDS)
    except Exception as error:  # noqa: BLE001 - the last stop
        sys.exit(_unexpected(error))
    sys.exit(outcome if isinstance(outcome, int) else Exit.HOLDS)


def _unexpected(error: Exception) -> int:
    """Click's own errors are the user's; all else is a bug, shown whole."""
    import traceback  # noqa: PLC0415 - only needed here

    import click  # noqa: PLC0415

    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.exceptions.Abort):
        return 130
    if isinstance(error, click.ClickException):
        error.show()
        return Exit.USAGE
    traceback.print_exc()
    sys.stderr.write(f"partywall: this is a bug: {error!r}; please report it with the lines above\n")
    return Exit.BUG
