"""What an ordinary user gets, and how the rest is refused.

As a user without root: doctor, a scenario of processes and a load against a local server finish; containers,
limits, a guard and a trace are refused with exit code 4 and a message that names the remedy. No command leaves a
process, a cgroup, a network namespace, an interface or a file outside the user's own folder; one that is refused leaves
nothing there either. Where systemd runs a manager for the user, a container with a CPU and a memory limit runs in a
delegated scope. Started by root, the benchmark becomes a user that nobody else is, for whom systemd runs no
manager; it says that the scope was not tried.

What is expected is written here word by word; nothing of it is taken from the code that is judged.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import left_behind
import partywall
from common import MUTE, served
from frame import Options, Outcome, Plant, bench

# A user that no other program of this host is: what is his was made here.
NOBODY = 2_000_000 + os.getpid()
SCENARIO = """\
partywall: 1
name: {name}
victims: {{v: {{probe: integer, sandbox: {{{sandbox}}}}}}}
aggressors: {{a: {{stressor: memory-copy, sandbox: {{backend: {backend}}}}}}}
budget: {budget}
min_blocks: 8
"""
POLICY = """\
partywall_guard: 1
name: p
link: {interface: lo, capacity: 100Mbit/s}
service_classes: {gold: 1}
vifs: {a: {interface: lo, service_class: gold, send: {guarantee: 1Mbit/s}}}
"""
DONE = (0, 1, 3)
"""A measurement that came to its end, whatever it found."""

# The remedies that messages must name.
IN_SCOPE = r"run with sudo, or in a delegated scope: .*systemd-run --user --scope .*Delegate=yes .*partywall"
LOG_IN = r"run with sudo; or log in over ssh or at a console"
VERSION_2 = r"needs cgroup version 2.* run with sudo, or boot with systemd\.unified_cgroup_hierarchy=1"
AS_ROOT = r"lacks CAP_NET_ADMIN, CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF — run: sudo \S.* {}"
ON_THE_HOST = r"lacks CAP_NET_ADMIN, CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF — run on the host itself with sudo"
SCOPE = ("systemd-run", "--user", "--scope", "--quiet", "-p", "Delegate=yes")


@dataclass(frozen=True)
class Case:
    """A command as the user, the exit codes that will do, and a pattern that its output must match."""

    name: str
    arguments: Sequence[str]
    exits: Sequence[int]
    says: str = ""
    prefix: Sequence[str] = ()
    python: str = sys.executable

    @property
    def refused(self) -> bool:
        return 4 in self.exits


class User:
    """An ordinary user with a folder of its own, in which all it makes should lie."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.uid = os.geteuid() or NOBODY
        self._drop: tuple[str, ...] = ()
        if os.geteuid() == 0:
            self._drop = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
            for path in (folder, *folder.rglob("*")):
                os.chown(path, NOBODY, NOBODY)

    @property
    def environment(self) -> Mapping[str, str]:
        own = {"PARTYWALL_STATE": str(self.state), "HOME": str(self.folder), "COLUMNS": "4000"}
        # Where this Partywall is, as seen from any folder.
        before = f"{os.environ['PYTHONPATH']}:" if os.environ.get("PYTHONPATH") else ""
        own["PYTHONPATH"] = f"{before}{Path(partywall.__file__).parents[1]}:{sysconfig.get_path('purelib')}"
        dropped = {key for key in ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS") if self._drop}
        return {key: value for key, value in os.environ.items() if key not in dropped} | own

    def run(self, case: Case) -> tuple[int, str]:
        argv = [*self._drop, *case.prefix, case.python, "-m", "partywall", *case.arguments]
        done = self._started(argv)
        return done.returncode, done.stdout + done.stderr

    def starts(self, argv: Sequence[str]) -> bool:
        """Whether the user can run a program at all."""
        return self._started([*self._drop, *argv]).returncode == 0

    def _started(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        where: dict[str, Any] = {"cwd": self.folder, "env": self.environment, "stdin": subprocess.DEVNULL}
        return subprocess.run(argv, capture_output=True, text=True, check=False, **where)

    def files(self) -> set[Path]:
        return {path for path in self.folder.rglob("*") if ".cache" not in path.parts}

    def elsewhere(self) -> set[left_behind.Thing]:
        """All that is this user's outside of the folder."""
        return left_behind.of(self.uid, self.folder)


def judged(user: User, case: Case) -> bool:
    """Runs a case and says how it went."""
    before, elsewhere = user.files(), user.elsewhere()
    code, output = user.run(case)
    made = user.files() - before if case.refused else set()
    wrong = []
    if code not in case.exits:
        wrong.append(f"exit code {code}")
    if not re.search(case.says, output):
        wrong.append(f"does not say {case.says}")
    came = left_behind.after(elsewhere, user.elsewhere)
    if left := [*made, *(thing for thing in came if thing.is_users)]:
        wrong.append(f"left {', '.join(map(str, left))}")
    lines = output.strip().splitlines()
    refusal = next((line for line in lines if line.startswith("partywall: ")), "")
    reason = f": {refusal.removeprefix('partywall: ')}" if case.refused else ""
    print(f"{'ok  ' if not wrong else 'FAIL'} {case.name}{reason}", flush=True)
    if others := [thing for thing in came if not thing.is_users]:
        print(f"     others made meanwhile: {', '.join(map(str, others))}", flush=True)
    if wrong:
        print(f"     {'; '.join(wrong)}\n     " + "\n     ".join(lines[-6:]), flush=True)
    return not wrong


def write_inputs(folder: Path, budget: str) -> None:
    boxes = {
        "process": ("backend: process", "process"),
        "box": ("backend: container, cpu_limit: 50%, memory: 256MiB", "container"),
        "disk": ("backend: container, disk: {read_bps: 2MB/s}", "container"),
        "guest": ("backend: qemu, accel: tcg, cpu_limit: 50%", "process"),
    }
    for name, (sandbox, backend) in boxes.items():
        # A limit takes slots of half a second, so no shorter budget is accepted.
        took = budget if name == "process" else "30s"
        text = SCENARIO.format(name=name, sandbox=sandbox, backend=backend, budget=took)
        (folder / f"{name}.yaml").write_text(text)
    (folder / "policy.yaml").write_text(POLICY)


def uses(url: str, seconds: int) -> list[Case]:
    return [
        Case("doctor", ["doctor"], [0], r"✓ backend container: |– backend container: .*\n.*costs: .*\n.*get it: "),
        Case("run, processes", ["run", "process.yaml", "--out", "run"], DONE),
        Case("load", ["load", url, "--users", "4", "--for", f"{seconds}s", "--out", "load"], DONE),
        Case("reap", ["reap"], [0]),
    ]


def manager_runs() -> bool:
    """Whether systemd runs a manager for this user, which can make scopes."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    return os.geteuid() != 0 and shutil.which("systemd-run") is not None and Path(runtime, "systemd/private").exists()


def offered(folder: str = "") -> set[str]:
    """The controllers of cgroup version 2 in a folder; none where another version has them."""
    try:
        return set(Path("/sys/fs/cgroup", folder, "cgroup.controllers").read_text().split())
    except OSError:
        return set()


def in_delegated_scope() -> bool:
    """Whether this process may make groups below its own."""
    line = Path("/proc/self/cgroup").read_text().partition("0::/")[2].strip()
    return os.geteuid() != 0 and "cpu" in offered() and os.access(f"/sys/fs/cgroup/{line}/cgroup.procs", os.W_OK)


def refusals(user: User, *, in_scope: bool) -> list[Case]:
    scoped = VERSION_2 if "cpu" not in offered() else IN_SCOPE if manager_runs() else LOG_IN
    containers = [
        Case("run, containers", ["run", "box.yaml", "--out", "no"], [4], scoped),
        Case("run, a disk limit", ["run", "disk.yaml", "--out", "no"], [4], scoped),
        Case("run, a guest's CPU limit", ["run", "guest.yaml", "--out", "no"], [4], scoped),
        Case("load in a container", ["load", "http://127.0.0.1:9/", "--sandbox", "container"], [4], scoped),
    ]
    guard, trace = ["guard", "run", "policy.yaml"], ["trace", "lo", "eth0", "--for", "1s"]
    hooks = [
        Case("guard run", guard, [4], AS_ROOT.format(r"guard run policy\.yaml")),
        Case("guard remove", ["guard", "remove", "policy.yaml"], [4], AS_ROOT.format(r"guard remove policy\.yaml")),
        Case("trace", trace, [4], AS_ROOT.format("trace lo eth0 --for 1s")),
        Case("study of a guard", ["study", "papers/dba-vm", "--out", "no"], [4], r"need root; run with sudo"),
    ]
    namespaced = ("unshare", "-Urn")
    # In a namespace of its own a user may not reach a Python that lies in another's home.
    pythons = (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}")
    python = next(
        (candidate for candidate in pythons if user.starts([*namespaced, candidate, "-c", "import partywall.cli.app"])),
        "",
    )
    if python:
        hooks += [
            Case("trace as root of a namespace", trace, [4], ON_THE_HOST, namespaced, python),
            Case("guard as root of a namespace", guard, [4], ON_THE_HOST, namespaced, python),
        ]
    else:
        print("not tried: root of a user namespace (it cannot start this Python)")
    return hooks if in_scope else [*containers, *hooks]


def scoped(user: User) -> tuple[int, int]:
    """(passed, tried) of the uses that need a delegated scope."""
    if not manager_runs():
        print("not tried: containers in a delegated scope (systemd runs no manager for this user)")
        return 0, 0
    there = offered(f"user.slice/user-{os.getuid()}.slice/user@{os.getuid()}.service")
    if missing := {"cpu", "memory"} - there:
        print(f"not tried: containers in a delegated scope (it would lack {', '.join(sorted(missing))})")
        return 0, 0
    return int(
        judged(user, Case("run, containers in a scope", ["run", "box.yaml", "--out", "box"], DONE, "", SCOPE))
    ), 1


@bench(plants={"mute": Plant("refusals that name no remedy", python=MUTE)})
def main(options: Options) -> Outcome:
    in_scope = in_delegated_scope()
    if in_scope:
        print("not tried: that containers are refused outside a delegated scope (this is one)")
    with served() as url, tempfile.TemporaryDirectory(prefix="no-root-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        write_inputs(folder, "5s" if options.quick else "30s")
        user = User(folder)
        verdicts = [judged(user, case) for case in refusals(user, in_scope=in_scope)]
        used = [judged(user, case) for case in uses(url, 2 if options.quick else 10)]
        passed, tried = scoped(user)
    refused = f"{sum(verdicts)} of {len(verdicts)} refusals name a remedy"
    figure = f"{sum(used) + passed} of {len(used) + tried} uses work, {refused}"
    return Outcome(figure, all(verdicts) and all(used) and passed == tried)


if __name__ == "__main__":
    main()
