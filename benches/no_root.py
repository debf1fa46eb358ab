"""What an ordinary user gets, and how the rest is refused.

As a user without root: doctor, a scenario of processes and a load against a local server come to their end; containers,
limits, a guard and a trace are refused with exit code 4 and a message that names the remedy, and leave no file behind.
Where systemd runs a manager for the user, a container with a CPU and a memory limit runs in a delegated scope, and
leaves no cgroup behind. Started by root, the benchmark becomes the user `nobody`, for whom systemd runs no manager; it
says that the scope was not tried.

Bar: all of it.
"""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import partywall
from common import arguments, conclude
from partywall.host import Host
from partywall.sandbox import cgroups, delegation, remedies

NOBODY = 65534
PARTYWALL = (sys.executable, "-m", "partywall")
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


@dataclass(frozen=True)
class Case:
    """A command as the user, the exit codes that will do, and words of which its output must hold one."""

    name: str
    arguments: Sequence[str]
    exits: Sequence[int]
    says: Sequence[str] = ()
    prefix: Sequence[str] = ()

    @property
    def refused(self) -> bool:
        return 4 in self.exits


class User:
    """An ordinary user with a folder of its own, in which all it makes should lie."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self._drop: tuple[str, ...] = ()
        if os.geteuid() == 0:
            self._drop = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
            for path in (folder, *folder.rglob("*")):
                os.chown(path, NOBODY, NOBODY)

    @property
    def environment(self) -> Mapping[str, str]:
        own = {"PARTYWALL_STATE": str(self.state), "HOME": str(self.folder), "COLUMNS": "4000"}
        # Where this Partywall is, as seen from any folder.
        own["PYTHONPATH"] = str(Path(partywall.__file__).parents[1])
        dropped = {key for key in ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS") if self._drop}
        return {key: value for key, value in os.environ.items() if key not in dropped} | own

    def run(self, case: Case) -> tuple[int, str]:
        argv = [*self._drop, *case.prefix, *PARTYWALL, *case.arguments]
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


def judged(user: User, case: Case) -> bool:
    """Runs a case and says how it went."""
    before = user.files()
    code, output = user.run(case)
    made = user.files() - before if case.refused else set()
    wrong = []
    if code not in case.exits:
        wrong.append(f"exit code {code}")
    if case.says and not any(word in output for word in case.says):
        wrong.append(f"says none of {', '.join(case.says)}")
    if made:
        wrong.append(f"left {', '.join(map(str, made))}")
    lines = output.strip().splitlines()
    refusal = next((line for line in lines if line.startswith("partywall: ")), "")
    told = f": {refusal.removeprefix('partywall: ')}" if case.refused else ""
    print(f"{'ok  ' if not wrong else 'FAIL'} {case.name}{told}", flush=True)
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
        Case("doctor", ["doctor"], [0], ["backend container"]),
        Case("run, processes", ["run", "process.yaml", "--out", "run"], DONE),
        Case("load", ["load", url, "--users", "4", "--for", f"{seconds}s", "--out", "load"], DONE),
        Case("reap", ["reap"], [0]),
    ]


def refusals(user: User, *, in_scope: bool) -> list[Case]:
    scoped = [remedies.SCOPE[0]] if remedies.manager_runs(Host.here()) and os.geteuid() != 0 else ["sudo"]
    containers = [
        Case("run, containers", ["run", "box.yaml", "--out", "no"], [4], scoped),
        Case("run, a disk limit", ["run", "disk.yaml", "--out", "no"], [4], scoped),
        Case("run, a guest's CPU limit", ["run", "guest.yaml", "--out", "no"], [4], scoped),
        Case("load in a container", ["load", "http://127.0.0.1:9/", "--sandbox", "container"], [4], scoped),
    ]
    hooks = [
        Case("guard run", ["guard", "run", "policy.yaml"], [4], ["sudo"]),
        Case("guard remove", ["guard", "remove", "policy.yaml"], [4], ["sudo"]),
        Case("trace", ["trace", "lo", "eth0", "--for", "1s"], [4], ["sudo"]),
        Case("study of a guard", ["study", "papers/dba-vm", "--out", "no"], [4], ["sudo"]),
    ]
    namespaced = ("unshare", "-Urn")
    if user.starts([*namespaced, sys.executable, "-c", ""]):
        hooks += [
            Case("trace as root of a namespace", ["trace", "lo", "eth0", "--for", "1s"], [4], ["sudo"], namespaced),
            Case("guard as root of a namespace", ["guard", "run", "policy.yaml"], [4], ["sudo"], namespaced),
        ]
    else:
        print("not tried: root of a user namespace (it cannot start this Python)")
    return hooks if in_scope else [*containers, *hooks]


def scoped(user: User) -> tuple[int, int]:
    """(passed, tried) of what a delegated scope is needed for."""
    if os.geteuid() == 0 or not remedies.manager_runs(Host.here()):
        print("not tried: containers in a delegated scope (systemd runs no manager for this user)")
        return 0, 0
    there = delegation.manager_controllers(cgroups.read(), Host.here())
    if missing := {"cpu", "memory"} - there:
        print(f"not tried: containers in a delegated scope (it would lack {', '.join(sorted(missing))})")
        return 0, 0
    ran = judged(
        user, Case("run, containers in a scope", ["run", "box.yaml", "--out", "box"], DONE, (), remedies.SCOPE)
    )
    left = [str(path) for path in Path("/sys/fs/cgroup").rglob("partywall*") if path.is_dir()]
    print(f"{'FAIL' if left else 'ok  '} no cgroup is left{': ' if left else ''}{', '.join(left)}", flush=True)
    return ran + (not left), 2


def served() -> http.server.ThreadingHTTPServer:
    class Quiet(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main() -> None:
    quick = arguments(__doc__ or "").quick
    server = served()
    in_scope = os.geteuid() != 0 and delegation.find(cgroups.read(), Host.here()) is not None
    if in_scope:
        print("not tried: that containers are refused outside a delegated scope (this is one)")
    with tempfile.TemporaryDirectory(prefix="no-root-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        write_inputs(folder, "5s" if quick else "30s")
        user = User(folder)
        told = [judged(user, case) for case in refusals(user, in_scope=in_scope)]
        used = [judged(user, case) for case in uses(f"http://127.0.0.1:{server.server_port}/", 2 if quick else 10)]
        passed, tried = scoped(user)
    figure = f"{sum(used) + passed} of {len(used) + tried} uses work, {sum(told)} of {len(told)} refusals name a remedy"
    conclude("no root", figure, met=all(told) and all(used) and passed == tried)


if __name__ == "__main__":
    main()
