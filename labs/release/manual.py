"""Manual pages and shell completions, from the commands themselves: nothing here repeats a word of their help."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.completion import get_completion_script

from partywall import __version__
from partywall.cli.app import app, command, commands

SHELLS = {
    "bash": "bash-completion/completions/partywall",
    "zsh": "zsh/vendor-completions/_partywall",
    "fish": "fish/vendor_completions.d/partywall.fish",
}
"""Shells, each with its file below share/."""
EXIT_CODES = (
    ("0", "all goals hold, or there are none"),
    ("1", "a goal is violated"),
    ("2", "the scenario or the command line cannot be used"),
    ("3", "inconclusive: it never counts as a pass"),
    ("4", "the host lacks a capability; the message names it, and how to get it"),
    ("5", "a trial or a sandbox failed"),
    ("70", "a bug: please report it"),
)


def write_completions(share: Path) -> None:
    """Writes one file for each shell, where the distributions' shells look for it."""
    for shell, place in SHELLS.items():
        script = get_completion_script(prog_name="partywall", complete_var="_PARTYWALL_COMPLETE", shell=shell)
        _write(share / place, script + "\n")


def write_pages(folder: Path, epoch_s: int) -> list[str]:
    """Writes partywall.1 and a page for each command, dated by `epoch_s`. Returns their names."""
    names = []
    for words, shown, context in _commands():
        name = "-".join(words)
        _write(folder / f"{name}.1", page(words, shown, context, epoch_s))
        names.append(name)
    return names


def page(words: list[str], shown: Any, context: Any, epoch_s: int) -> str:
    """The page of one command, as man(7) describes the format."""
    day = time.strftime("%Y-%m-%d", time.gmtime(epoch_s))
    name = "-".join(words)
    text = shown.help or ""
    lines = [
        f'.TH "{name.upper()}" "1" "{day}" "Partywall {__version__}" "Partywall"',
        *(".SH NAME", f"{escaped(name)} \\- {escaped(' '.join(text.partition(chr(10) * 2)[0].split()).rstrip('.'))}"),
        *(
            ".SH SYNOPSIS",
            f"\\fB{escaped(' '.join(words))}\\fR {escaped(' '.join(shown.collect_usage_pieces(context)))}",
        ),
        ".SH DESCRIPTION",
        *_paragraphs(text),
    ]
    rows = [(each.param_type_name, each.get_help_record(context)) for each in shown.get_params(context)]
    for title, kind in (("ARGUMENTS", "argument"), ("OPTIONS", "option")):
        lines += _list(title, [record for each, record in rows if each == kind and record])
    if below := [(other, help_text) for other, help_text in _below(shown, context)]:
        lines += _list("COMMANDS", below)
    if len(words) == 1:
        lines += _list("EXIT STATUS", list(EXIT_CODES))
        lines += [".SH FILES", ".I /usr/share/doc/partywall", "has the documentation that messages name as docs/."]
    if len(words) > 1:
        lines += [".SH SEE ALSO", f".BR {escaped('-'.join(words[:-1]))} (1)"]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text for roff: a hyphen can be copied, and no line is a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in text.split("\n"))


def _commands() -> Iterator[tuple[list[str], Any, Any]]:
    """Every command with its words and click's context, the root first."""
    root = typer.main.get_command(app)
    context = root.context_class(root, info_name="partywall")
    yield ["partywall"], root, context
    for name in commands():
        yield from _within(["partywall"], name, command(name), context)


def _within(above: list[str], name: str, shown: Any, parent: Any) -> Iterator[tuple[list[str], Any, Any]]:
    context = shown.context_class(shown, info_name=name, parent=parent)
    yield [*above, name], shown, context
    for below in shown.list_commands(context) if hasattr(shown, "list_commands") else ():
        yield from _within([*above, name], below, shown.get_command(context, below), context)


def _below(shown: Any, context: Any) -> list[tuple[str, str]]:
    """Names and help of the commands of a group."""
    if not hasattr(shown, "list_commands"):
        return []
    found = {name: shown.get_command(context, name) for name in shown.list_commands(context)}
    return [(name, " ".join((each.help or "").partition("\n\n")[0].split())) for name, each in found.items()]


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs are filled; those that are indented or marked as such stay as they are."""
    for block in text.strip("\n").split("\n\n"):
        lines = [line for line in block.split("\n") if line.strip() != "\b"]
        if len(lines) < len(block.split("\n")) or all(line.startswith(" ") for line in lines):
            yield from (".PP", ".nf", escaped("\n".join(lines)), ".fi")
        else:
            yield from (".PP", escaped(" ".join(" ".join(lines).split())))


def _list(title: str, rows: list[tuple[str, str]]) -> list[str]:
    body = [
        line for name, text in rows for line in (".TP", f"\\fB{escaped(name)}\\fR", escaped(" ".join(text.split())))
    ]
    return [f".SH {title}", *body] if body else []


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
