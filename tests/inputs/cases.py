"""Inputs from public reports about programs like this one, and what Partywall has to do with each.

A folder here is a case: the input, what it needs (a server, a program), and `case.yaml`, which says what is odd, which
command is given the input, and what must come out. README.md has the keys.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field
from ruamel.yaml import YAML

from partywall.agent import binary
from partywall.errors import PartywallError
from partywall.values import Frozen
from tests.cli import corpus

HERE = Path(__file__).parent
WORDS = {"partywall": corpus.PARTYWALL, "python": (sys.executable,)}
"""Words of a command that stand for the programs under test."""


class Texts(Frozen):
    """Parts of a text, whose spaces and line ends count as one space, that have to be in it, or must not be."""

    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    def complaints(self, text: str, of: str) -> list[str]:
        whole = " ".join(text.split())
        missing = [f"{of} does not have {part!r}" for part in self.has if part not in whole]
        return missing + [f"{of} has {part!r}" for part in self.lacks if part in whole]


class Case(Frozen):
    """What case.yaml may have."""

    about: str = Field(description="what is odd about the input, and what is right", min_length=20)
    run: str | tuple[str, ...] = Field(description="a command, or several, all but the last of which have to succeed")
    exit: int = Field(0, description="exit code of the last command")
    output: Texts = Field(Texts(), description="everything that the commands print")
    files: dict[str, Texts] = Field(default_factory=dict, description="files that have to exist afterwards")
    serve: str = Field("", description="a command that runs meanwhile; the first line it prints replaces {served}")
    environment: dict[str, str] = Field(default_factory=dict, description="{folder} is the case's folder")
    needs: tuple[str, ...] = Field((), description="root, agent, or programs on the path")

    @property
    def commands(self) -> tuple[str, ...]:
        return (self.run,) if isinstance(self.run, str) else self.run

    @property
    def missing(self) -> str:
        """What the host lacks for this case; empty if nothing."""
        return ", ".join(need for need in self.needs if not _exists(need))


def names() -> list[str]:
    """All cases."""
    return sorted(file.parent.name for file in HERE.glob("*/case.yaml"))


def case(name: str) -> Case:
    return Case.model_validate(YAML(typ="safe").load(HERE / name / "case.yaml"))


def complaints(name: str, folder: Path) -> list[str]:
    """What is wrong with how a case was answered. `folder` must not exist; everything happens there."""
    wanted = case(name)
    shutil.copytree(HERE / name, folder)
    (folder / "work").mkdir()
    with _served(wanted, folder) as served:
        outcomes = [_ended(wanted, command, folder, served) for command in wanted.commands]
    *before, last = outcomes
    result = [f"command {number} ended with {each.exit}" for number, each in enumerate(before, 1) if each.exit]
    result += corpus.complaints(corpus.Case(name, (), wanted.exit, ()), last)
    result += wanted.output.complaints(" ".join(each.text for each in outcomes), "the output")
    for file, texts in wanted.files.items():
        with contextlib.suppress(FileNotFoundError):
            result += texts.complaints((folder / file).read_text("utf-8"), file)
            continue
        result.append(f"there is no {file}")
    return [*result, *(f"it said: {last.text[-600:]}" for _ in result[:1])]


def _exists(need: str) -> bool:
    if need == "agent":
        with contextlib.suppress(PartywallError):
            return bool(binary.find())
        return False
    return os.geteuid() == 0 if need == "root" else shutil.which(need) is not None


def _argv(command: str, folder: Path, served: str) -> list[str]:
    for name, value in {"folder": str(folder), "cases": str(HERE), "served": served}.items():
        command = command.replace(f"{{{name}}}", value)
    return [part for word in shlex.split(command) for part in WORDS.get(word, (word,))]


def _environment(wanted: Case, folder: Path) -> dict[str, str]:
    """Programs of the case's own `bin`, then those of this Python, come before the host's."""
    path = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {"PATH": path, "TMPDIR": str(folder / "work")} | wanted.environment


def _ended(wanted: Case, command: str, folder: Path, served: str) -> corpus.Outcome:
    return corpus.ended(folder, _argv(command, folder, served), _environment(wanted, folder))


@contextlib.contextmanager
def _served(wanted: Case, folder: Path) -> Iterator[str]:
    """Runs the case's server. Gives the first line that it prints, such as its port."""
    if not wanted.serve:
        yield ""
        return
    environment = os.environ | _environment(wanted, folder)
    argv = _argv(wanted.serve, folder, "")
    with subprocess.Popen(argv, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            if not (line := server.stdout.readline().strip()):
                raise RuntimeError(f"{wanted.serve} printed no first line")
            yield line
        finally:
            server.kill()
