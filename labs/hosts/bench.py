"""What checks on a stock host have in common: how commands get to where Partywall runs, and how they are judged."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labs.hosts import image
from labs.hosts.catalogue import Host
from labs.hosts.machine import Machine, Output

# Exit codes with which a run has measured: holds, violated, inconclusive.
MEASURED = (0, 1, 3)
CAPABILITY, USAGE = 4, 2
TRACEBACK = "Traceback (most recent call last)"


class FailedError(Exception):
    """Something came out that Partywall does not promise."""


class LackingError(Exception):
    """The host, or the user, lacks something, and Partywall said what."""


@dataclass(frozen=True)
class Bench:
    """A host that is up, and how commands get to where Partywall runs on it."""

    machine: Machine
    wheel: Path

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
                inner = f"docker run --rm --network none {BOX_MOUNTS} box bash -c {quoted(inner)}"
        output = self.machine.run(inner, user=self.user, timeout_s=timeout_s)
        if TRACEBACK in output.text:
            raise FailedError(f"a traceback: {command}: {output.last}")
        if output.code == 124:
            raise FailedError(f"took longer than {timeout_s:.0f} s: {command}")
        return output

    def partywall(self, arguments: str, *accepted: int, timeout_s: float = 300) -> Output:
        """Runs `partywall`; exit code 4 is the host's lack, any other that is not accepted a failure."""
        output = self.shell(f"partywall {arguments}", timeout_s)
        if output.code == CAPABILITY and CAPABILITY not in accepted:
            raise LackingError(message_of(output))
        if output.code not in (accepted or (0,)):
            raise FailedError(f"partywall {arguments}: exit code {output.code}: {output.last}")
        return output

    def as_root(self, command: str) -> Output:
        """Prepares or looks at something outside of what is tried."""
        output = self.machine.run(command)
        if output.code:
            raise FailedError(f"{command}: {output.last}")
        return output

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


def message_of(output: Output) -> str:
    """What Partywall said, without its name, in one line."""
    lines = [line.strip() for line in output.text.splitlines() if line.strip()]
    said = [line.removeprefix("partywall: ") for line in lines if line.startswith("partywall: ")]
    return (said or lines[-1:] or ["nothing was said"])[-1]


def expect(holds: bool, otherwise: str) -> None:
    """FailedError with what was seen, if it is not what was expected."""
    if not holds:
        raise FailedError(otherwise)
