"""Groups with a network of their own: what their interface sends is shaped.

The lever is the kernel's token bucket (tbf) as the root queue of the interface, inside the group's own network
namespace. Only an interface without a queue, as those of containers are, is shaped, and only in a network where nobody
else is. What the group receives is left alone. One `tc` in the namespace carries out all changes, because a pulse has
no time to start one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any

from partywall.blame.measure.owners import Refused, lack
from partywall.files import kernel_text
from partywall.host import shaping
from partywall.host.settings.ledger import Command, Undo
from partywall.sandbox import tenants
from partywall.sandbox.cgroups import Cgroups
from partywall.sandbox.networks import in_namespace

FREE_BPS, FREE_BURST = 12_500_000_000, 16_000_000
"""Between pulses: a rate that no interface reaches. Removing the queue would drop what waits in it."""
REMEDY = "use --lever cpu, which reaches every group"
TOOLS = ("ip", "tc", "nsenter")
TOOL_S = 30.0
SHOWN = 3


@dataclass(frozen=True)
class Interface:
    """The interface of a group's own network. pid: of one of its processes. number: the namespace's inode.

    mtu: in bytes. length: of its usual queue, in packets.
    """

    folder: Path
    pid: int
    number: int
    interface: str
    mtu: int
    length: int
    name = ""

    @property
    def namespace(self) -> Path:
        """A file of the namespace, by name if it has one: a process may end, and its number be given to another."""
        return next(shaping.entrances(self.number, proc="/nowhere"), namespace_of(self.pid))

    @property
    def writes(self) -> str:
        """What is changed, for people."""
        return f"the queue of {self.interface} in its network (tc qdisc, tbf)"

    @property
    def undo(self) -> Undo:
        """Removes the queue, and sets the length of the usual one."""
        words = (str(Path(shaping.__file__)), str(self.number), self.interface, str(self.length))
        return Undo((Command((sys.executable, "-I", "-S", *words), "/proc"),))

    @property
    def undo_text(self) -> str:
        """The same as a command to paste."""
        return f"nsenter --net={self.namespace} tc qdisc del dev {quote(self.interface)} root"

    def hold(self, limit: float) -> None:
        """Shapes what the interface sends. limit: bytes a second. `Refused` if that fails."""
        self._shape(limit, shaping.burst(limit, self.mtu))

    def release(self) -> None:
        """Lets the interface send at any rate. `Refused` if that fails."""
        self._shape(FREE_BPS, FREE_BURST)

    @cached_property
    def sent(self) -> Sent:
        """Reads what the interface has sent so far."""
        return Sent(self)

    def _shape(self, rate: float, burst_bytes: int) -> None:
        # The namespace may last for longer than the group.
        if not self.folder.exists():
            raise Refused("the group has ended")
        words = f"dev {self.interface} root handle {shaping.HANDLE} {shaping.bucket(rate, burst_bytes)}"
        if why := self._tc.ask(f"qdisc replace {words}"):
            raise Refused(f"{self.interface}: tc refuses: {why}")

    @cached_property
    def _tc(self) -> Tc:
        try:
            return Tc(self.namespace, self.number)
        except OSError as error:
            raise Refused(f"its network cannot be entered: {error.strerror}") from None


class Sent:
    """The bytes that an interface has sent so far. What cannot be read counts as the reading before."""

    def __init__(self, of: Interface) -> None:
        self._of, self._last = of, 0.0

    def __call__(self) -> float:
        of = self._of
        for pid in self._pids():
            if shaping.inode(namespace_of(pid)) == of.number:
                counted = sent_by(kernel_text(f"/proc/{pid}/net/dev") or "")
                self._last = float(counted.get(of.interface, self._last))
                break
        return self._last

    def _pids(self) -> Iterator[int]:
        """The process that is known, and only if that has ended, all others: to look for them takes longer."""
        yield self._of.pid
        yield from tenants.all_processes(self._of.folder)


class Tc:
    """A `tc` of iproute2 in a network namespace, which carries out one command after the other until it is dropped."""

    def __init__(self, namespace: Path, number: int) -> None:
        """number: the namespace's inode. OSError if it cannot be entered, or is another one by now."""

        def start() -> subprocess.Popen[str]:
            if shaping.inode(Path("/proc/thread-self/ns/net")) != number:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            # In a session of its own, Ctrl-C does not end it before everything is put back.
            argv, pipe, both = ["tc", "-force", "-batch", "-"], subprocess.PIPE, subprocess.STDOUT
            return subprocess.Popen(
                argv, stdin=pipe, stdout=pipe, stderr=both, text=True, errors="replace", start_new_session=True
            )

        self._process, self._line = in_namespace(namespace, start), 0
        weakref.finalize(self, _end, self._process)

    def ask(self, command: str) -> str:
        """Carries out a command. Returns why it failed; empty if it did not."""
        sent, heard = self._process.stdin, self._process.stdout
        if sent is None or heard is None:
            return "it has no pipes"
        # A command that succeeds says nothing. The line after it always fails, and its number ends the answer.
        self._line += 2
        with contextlib.suppress(BrokenPipeError):
            sent.write(f"{command}\nend\n")
            sent.flush()
        said = failed = ""
        for line in heard:
            if line.rstrip() == f"Command failed -:{self._line}":
                return failed
            if line.rstrip() == f"Command failed -:{self._line - 1}":
                failed = said or "it does not say why"
            said = said or line.strip()
        return said or "it has ended"


def _end(process: subprocess.Popen[str]) -> None:
    try:
        process.communicate(timeout=1)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        process.kill()


def interface_of(cgroup: str, groups: Cgroups) -> Interface:
    """The interface of a group. CapabilityError if it has no network of its own, or one that cannot be shaped."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise lack(cgroup, f"there is no {missing[0]}", "install iproute2 and util-linux")
    folder, by_number = groups.folder("cpu", cgroup), dict[int, int]()
    own = tenants.all_processes(folder)
    for pid in sorted(own):
        if (number := shaping.inode(namespace_of(pid))) is not None:
            # The first process of a container lives longest.
            by_number.setdefault(number, pid)
    if not by_number:
        raise lack(cgroup, "none of its processes shows its network", "start them, and run it as root")
    if not by_number.keys().isdisjoint({shaping.inode(namespace_of(pid)) for pid in (1, os.getpid())}):
        raise lack(cgroup, "it uses the host's own network", REMEDY)
    if len(by_number) > 1:
        raise lack(cgroup, f"it has {len(by_number)} networks", "name a group below it")
    ((number, pid),) = by_number.items()
    if others := others_in(number, set(own)):
        said = f"others are in its network too, such as process {others[0]}"
        raise lack(cgroup, said, "name the group around all of them, such as the pod's, or use --lever cpu")
    link = _link(cgroup, namespace_of(pid))
    return Interface(folder, pid, number, link["ifname"], link["mtu"], link.get("txqlen", 0))


def namespace_of(pid: int) -> Path:
    """The file of a process's network."""
    return Path(f"/proc/{pid}/ns/net")


def others_in(number: int, own: set[int]) -> list[int]:
    """Processes in a namespace that are not among `own`."""
    inside = (int(file.parts[2]) for file in shaping.entrances(number, named="/nowhere"))
    return [pid for pid in inside if pid not in own][:SHOWN]


def _link(cgroup: str, namespace: Path) -> dict[str, Any]:
    """The one interface of a network that can be shaped, as `ip` shows it."""
    every = _shown(cgroup, namespace, "ip", "link")
    up = [each for each in every if "LOOPBACK" not in each["flags"] and "UP" in each["flags"]]
    if len(up) != 1:
        there = ", ".join(each["ifname"] for each in up[:SHOWN]) or "none"
        raise lack(cgroup, f"its network has not one interface that is up ({there})", REMEDY)
    (link,) = up
    roots = [each for each in _shown(cgroup, namespace, "tc", "qdisc") if each.get("root")]
    queue = next((each for each in roots if each["dev"] == link["ifname"]), {"kind": "noqueue"})
    if shaping.is_ours(queue):
        raise lack(cgroup, "an earlier --apply holds what it sends", "undo that first, as it said")
    if queue["kind"] != "noqueue":
        why = f"its interface {link['ifname']} has a queue ({queue['kind']}) that could not be put back as it is"
        raise lack(cgroup, why, REMEDY)
    return link


def _shown(cgroup: str, namespace: Path, program: str, what: str) -> list[dict[str, Any]]:
    argv = [program, "-json", what, "show"]
    try:
        done = in_namespace(namespace, lambda: subprocess.run(argv, capture_output=True, check=True, timeout=TOOL_S))
        shown: list[dict[str, Any]] = json.loads(done.stdout or b"[]")
    except PermissionError:
        raise lack(cgroup, "you may not enter its network", "run it as root") from None
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise lack(cgroup, f"{program} {what} show in its network failed: {error}", REMEDY) from None
    return shown


def sent_by(text: str) -> dict[str, int]:
    """The bytes that each interface has sent, from /proc/PID/net/dev. Pure."""
    rows = (line.split(":", 1) for line in text.split("\n") if ":" in line)
    return {name.strip(): int(counts.split()[8]) for name, counts in rows}
