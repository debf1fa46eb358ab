"""The command line. Connects stages, shows their progress, and turns outcomes and errors into exit codes."""

from __future__ import annotations

import itertools
import re
import sys
import traceback
from typing import NoReturn

import typer

from partywall import streams
from partywall.cli import output
from partywall.cli.app import app
from partywall.errors import Exit, PartywallError, Problem, ProblemsError
from partywall.processor import check_baseline

INTERRUPTED = 130
_ANOTHER = {"partywall watch": ("partywall-watch", ("--port", "--address", "--ring", "--from"))}
"""Programs that are easily taken for a command: their names, and those of their options."""


def main() -> NoReturn:
    """Runs the command line and ends the process with an exit code (see `partywall.errors`)."""
    streams.open_streams()
    # A terminal without line-drawing characters shows question marks instead of an error.
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        check_baseline()
        # Shells request completion under this name, whatever name the program was started under.
        outcome = app(prog_name="partywall", standalone_mode=False)
    except PartywallError as error:
        sys.stderr.write(f"partywall: {error}\n")
        problems = error.problems if isinstance(error, ProblemsError) else (Problem(str(error)),)
        sys.exit(_failed(error.exit, *problems))
    except KeyboardInterrupt:
        sys.stderr.write("partywall: interrupted\n")
        sys.exit(
            _failed(
                INTERRUPTED,
                Problem("interrupted by Ctrl-C", "run the same command again, with --resume if it kept a record"),
            )
        )
    except BrokenPipeError as error:
        # The reader of our output, such as `head`, has closed the pipe.
        sys.exit(streams.unwritten("partywall", error))
    except Exception as error:  # noqa: BLE001 - the last stop
        sys.exit(_unexpected(error))
    sys.exit(streams.flushed("partywall", outcome if isinstance(outcome, int) else Exit.HOLDS))


def _failed(code: int, *problems: Problem) -> int:
    """Prints the error as JSON if the command line asks for JSON. Returns the exit code."""
    if output.requested(sys.argv[1:]):
        try:
            output.failed(sys.argv[1:], code, problems)
            sys.stdout.flush()
        except OSError:
            streams.stop_output()
    return code


# Typer contains its own copy of click. This is the base class of its errors about a command line.
_Complaint = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _unexpected(error: Exception) -> int:
    """Reports an error of the command line to the user. Any other error is a bug, shown with its traceback."""
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, typer.Abort):
        return INTERRUPTED
    if isinstance(error, _Complaint):
        message = str(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
        if wrong := _wrong_value(message):
            sys.stderr.write(f"partywall: {wrong}\n")
            return _failed(Exit.USAGE, wrong)
        remedy = _remedy(error)
        # A group without a command prints its help, which needs no further advice.
        sys.stderr.write(f"{message}\n" if "\n" in message else f"partywall: {message}; {remedy}\n")
        return _failed(Exit.USAGE, Problem(message, remedy))
    if isinstance(error, OSError) and error.errno in streams.CANNOT_WRITE:
        return streams.unwritten("partywall", error)
    traceback.print_exc()
    sys.stderr.write(f"partywall: this is a bug: {error!r}; please report it with the lines above\n")
    return _failed(Exit.BUG, Problem(f"this is a bug: {error!r}", "please report it with the lines on standard error"))


def _remedy(error: Exception) -> str:
    """Where to look after a mistake in a command line: perhaps it is meant for another program."""
    path = getattr(getattr(error, "ctx", None), "command_path", "")
    program, options = _ANOTHER.get(path, ("", ()))
    if getattr(error, "option_name", None) in options:
        return f"that is an option of {program}, another program: see {program} --help"
    return "see --help"


_NAMED = re.compile(r"Invalid value for '(--[a-z0-9-]+)'(?: / '(-[A-Za-z])')?: ", re.ASCII)


def _wrong_value(message: str) -> Problem | None:
    """Rewrites Typer's message about an invalid value as a sentence: option, accepted values, given value."""
    named = _NAMED.match(message)
    if named is None:
        return None
    option, short = named[1], named[2]
    given = _given(option, short)
    return Problem(f"must be {_wanted(message[named.end() :], given)}, not {_shown(given)}", "see --help", key=option)


def _given(option: str, short: str | None) -> str:
    """The last value of an option on the command line."""
    value_text = ""
    for word, following in itertools.pairwise([*sys.argv[1:], ""]):
        name, equals, value = word.partition("=")
        if name in (option, short):
            value_text = value if equals else following
        elif short and word.startswith(short) and not word.startswith("--"):
            value_text = word.removeprefix(short)
    return value_text


def _wanted(said: str, given: str) -> str:
    """What a value must be, derived from Typer's message. Its wording differs between versions."""
    if choices := re.search(r"is not one of (.+)", said):
        names = [name.strip().strip("'") for name in choices[1].split(",")]
        return " or ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
    if "valid integer" in said:
        return "a whole number"
    if "valid number" in said or "valid float" in said:
        return "a number"
    low = re.search(r"greater than or equal to (\S+)|(\S+)<=x|x>=(\S+)", said)
    high = re.search(r"less than or equal to (\S+)|x<=(\S+)", said)
    ends = [next(filter(None, match.groups())).rstrip(".") if match else None for match in (low, high)]
    if ends[0] is not None and (ends[1] is None or float(given) < float(ends[0])):
        return f"at least {ends[0]}"
    return f"at most {ends[1]}" if ends[1] is not None else f"another value ({said})"


def _shown(given: str) -> str:
    """Numbers as they are, text in quotes."""
    return given if re.fullmatch(r"[+-]?[0-9][0-9.]*", given) else repr(given)
