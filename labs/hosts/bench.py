"""What checks on a stock host have in common: how commands get to where Partywall runs, and how they are judged."""

from __future__ import annotations

import contextlib
import json
import re
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labs.hosts import image
from labs.hosts.catalogue import Host
from labs.hosts.machine import Machine, Output

# Exit codes with which a run has measured: holds, violated, inconclusive.
MEASURED = (0, 1, 3)
CAPABILITY, USAGE = 4, 2
# Stands between what is missing and what to do about it, in every message.
REMEDY = " — "
# What no output may hold: a traceback of Python, a panic of the agent, a death by signal.
TRACEBACK = re.compile(r"Traceback \(most recent call last\)|panicked at|Segmentation fault|Illegal instruction")


class FailedError(Exception):
    """Something came out that Partywall does not promise."""


class LackingError(Exception):
    """The host, or the user, lacks something, and Partywall said what."""


@dataclass(frozen=True)
class Bench:
    """A host that is up, and how commands get to where Partywall runs on it. out: where records are kept."""

    machine: Machine
    wheel: Path
    out: Path

    @property
    def host(self) -> Host:
        return self.machine.host

    @property
    def user(self) -> str:
        return "root" if self.host.place in ("root", "docker") else image.USER

    @property
    def home(self) -> str:
        return "/root" if self.user == "root" else f"/home/{self.user}"

    @property
    def environment(self) -> str:
        """The virtual environment that Partywall is installed in."""
        return f"{self.home}/environment" if self.host.place == "user" else image.VENV

    def shell(self, command: str, timeout_s: float = 300) -> Output:
        """Runs a command where Partywall runs; a traceback fails, whatever the exit code."""
        inner = f"cd {self.home}/work && export PATH={self.environment}/bin:$PATH && {command}"
        match self.host.place:
            case "scope":
                inner = f"systemd-run --user --scope --quiet -p Delegate=yes bash -c {quoted(inner)}"
            case "docker":
                options = f"--rm --network none -e NPY_DISABLE_CPU_FEATURES {BOX_MOUNTS}"
                inner = f"docker run {options} box bash -c {quoted(inner)}"
        output = self.machine.run(inner, user=self.user, timeout_s=timeout_s)
        if match := TRACEBACK.search(output.text):
            raise FailedError(f"{match[0]}: {command}: {output.last}")
        if output.code == 124:
            raise FailedError(f"took longer than {timeout_s:.0f} s: {command}")
        return output

    def partywall(self, arguments: str, *accepted: int, timeout_s: float = 300, before: str = "") -> Output:
        """Runs `partywall`; exit code 4 is the host's lack, any other that is not accepted a failure.

        before: shell commands that go first in the same place, and must succeed.
        """
        output = self.shell(f"{before} && partywall {arguments}" if before else f"partywall {arguments}", timeout_s)
        if output.code in (CAPABILITY, USAGE) and output.code not in accepted and self._is_expected(output):
            raise lacking(self, output)
        if output.code not in (accepted or (0,)):
            raise FailedError(f"partywall {arguments}: exit code {output.code}: {output.last}")
        return output

    def _is_expected(self, output: Output) -> bool:
        """Whether a refusal is one of the host's lack: exit code 4, or the words of a shortfall."""
        says = [shortfall.says for shortfall in self.host.shortfalls.values() if shortfall.says]
        return output.code == CAPABILITY or any(re.search(words, output.text) for words in says)

    def as_root(self, command: str) -> Output:
        """Prepares or looks at something that is not tried itself."""
        output = self.machine.run(command)
        if output.code:
            raise FailedError(f"{command}: {output.last}")
        return output

    def tested(self, names: Sequence[str], timeout_s: float, setting: str = "") -> str:
        """What came of these tests of this clone, run by root. FailedError too if all skip: that shows nothing.

        setting: assignments of environment variables.
        """
        clone = image.CLONE
        parts = ("tests", "pyproject.toml", "schema", "benches", "labs", "docs")
        self.machine.bring([clone / part for part in parts], "/opt/clone")
        files = " ".join(f"tests/{name}" for name in names)
        command = f"{image.VENV}/bin/python -m pytest {files} -m host -rs -p no:cacheprovider --timeout=900"
        output = self.machine.run(f"cd /opt/clone && {setting} {command}", timeout_s=timeout_s)
        skipped = "; ".join(line for line in output.text.splitlines() if line.startswith("SKIPPED"))
        expect(output.code == 0 and " passed" in output.last, f"{output.last} {skipped}".strip())
        return output.last.strip("= ")

    @contextlib.contextmanager
    def taken(self, record: str) -> Iterator[Path]:
        """A copy of a record, in a folder that ends with the context."""
        self.shell(f"tar -cf {record}.tar {record}")
        with tempfile.TemporaryDirectory() as folder:
            packed = Path(folder) / "record.tar"
            self.machine.take(f"{self.home}/work/{record}.tar", packed)
            with tarfile.open(packed) as archive:
                archive.extractall(folder, filter="data")
            yield Path(folder) / record

    def findings(self, run: str) -> dict[str, Any]:
        """What a run found."""
        return json.loads(self.shell(f"cat {run}/findings.json").text)


BOX_MOUNTS = " ".join(f"-v {folder}:{folder}:ro" for folder in ("/usr", "/opt", "/etc")) + " -v /root:/root"
BOX = (
    "mkdir -p /tmp/box && cd /tmp/box && mkdir -p usr etc opt proc sys dev run tmp var/tmp root && "
    "ln -sfn usr/bin bin && ln -sfn usr/sbin sbin && ln -sfn usr/lib lib && ln -sfn usr/lib64 lib64 && "
    "tar -c . | docker import - box"
)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def lacking(bench: Bench, output: Output) -> LackingError:
    """Partywall's own words for what is not there; FailedError if it did not name what the catalogue says it names."""
    lines = [line.strip() for line in output.text.splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if line.startswith("partywall: ")), "")
    expected = {shortfall.says for shortfall in bench.host.shortfalls.values() if shortfall.says}
    if not said or REMEDY not in said or (expected and not any(re.search(words, said) for words in expected)):
        raise FailedError(f"exit code {output.code} without the reason and its remedy: {said or output.last}")
    return LackingError(said.removeprefix("partywall: "))


def expect(holds: bool, otherwise: str) -> None:
    """FailedError with what was seen, if it is not what was expected."""
    if not holds:
        raise FailedError(otherwise)
