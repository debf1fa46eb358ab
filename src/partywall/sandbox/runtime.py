"""The OCI runtime: finds and calls it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partywall.errors import CapabilityError, TrialError
from partywall.host import Host, install
from partywall.sandbox.cgroups import Cgroups

RUNTIMES = ("crun", "runc")
"""OCI runtimes in order of preference."""
# crun refuses hosts that mount both versions of cgroups. In its own mount namespace, version 2's mount is covered.
_HIDE_UNIFIED = 'mount -t tmpfs none "$0" && exec "$@"'


@dataclass(frozen=True)
class Runtime:
    """An OCI runtime with a state folder for the run."""

    name: str
    prefix: tuple[str, ...]

    @classmethod
    def choose(
        cls,
        state: Path,
        cgroups: Cgroups,
        *,
        prefer: str | None = None,
        which: Callable[[str], str | None] = shutil.which,
        host: Host | None = None,
    ) -> Runtime:
        """Chooses crun, or else runc. CapabilityError if there is neither. which: searches the host's PATH."""
        candidates = [prefer] if prefer else RUNTIMES
        program = next((name for name in candidates if which(name)), None)
        if program is None:
            if prefer:
                raise CapabilityError(
                    f"$PARTYWALL_RUNTIME names {prefer!r}, which is not installed or not on the PATH; "
                    "unset it, or name an OCI runtime that is, such as crun"
                )
            raise CapabilityError(
                f"no OCI runtime was found (looked for {', '.join(candidates)}), so backend: container cannot run; "
                f"install one ({install(host or Host.here(), RUNTIMES[0])}) or use backend: process"
            )
        prefix: tuple[str, ...] = (program, "--root", str(state / "runtime"))
        if program == "crun" and cgroups.v1 and cgroups.unified:
            prefix = (
                "unshare",
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                _HIDE_UNIFIED,
                str(cgroups.unified),
                *prefix,
            )
        return cls(program, prefix)

    def run(self, *arguments: str, given: str | None = None, timeout_s: float = 20) -> str:
        """Runs a subcommand to its end. TrialError with its error message if it fails."""
        argv = [*self.prefix, *arguments]
        try:
            done = subprocess.run(
                argv, input=given, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise TrialError(f"{self.name} {arguments[0]} did not end within {timeout_s:g} s") from None
        if done.returncode:
            words = (done.stderr or done.stdout).strip().splitlines()
            raise TrialError(f"{self.name} {arguments[0]}: {words[-1] if words else f'exit status {done.returncode}'}")
        return done.stdout

    def state(self, container: str) -> dict[str, Any] | None:
        """The runtime's state of a container; None if there is none with this name."""
        try:
            return dict(json.loads(self.run("state", container)))
        except (TrialError, ValueError):
            return None

    def argv(self, *arguments: str) -> Sequence[str]:
        """A command line for a subcommand that keeps running."""
        return [*self.prefix, *arguments]
