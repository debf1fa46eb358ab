"""What is done on each stock host: one function a capability, in the order in which a new user would try them.

A check runs commands as a user would and judges what they say and leave. It returns one line for the matrix, with the
figure it saw. It raises `LackingError` if Partywall named a reason why the capability is not there, and `FailedError`
if anything else came of it. Everything runs in a folder of the user's own, outside any clone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labs.hosts import image
from labs.hosts.catalogue import Host
from labs.hosts.machine import Machine, Output

HERE = Path(__file__).parent
INSIDE = HERE / "inside"
# Exit codes with which a run has measured: holds, violated, inconclusive.
MEASURED = (0, 1, 3)
CAPABILITY, USAGE = 4, 2
TRACEBACK = "Traceback (most recent call last)"
# An emulated host's timers are late, so a sender may miss what it could have; a ceiling is never passed.
GUARD_BELOW, GUARD_ABOVE = 0.08, 0.02
# Under emulation, in a short run; benches/limits_v2.py asks for more.
LIMIT_POINTS = 0.08
# Netem counts for longer than the trace lasts, so the shares differ by chance.
LOSS_POINTS = 0.03


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
                inner = f"systemd-run --user --scope --quiet -p Delegate=yes bash -c {_quoted(inner)}"
            case "docker":
                inner = f"docker run --rm --network none {BOX_MOUNTS} box bash -c {_quoted(inner)}"
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
            raise LackingError(_message(output))
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


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _message(output: Output) -> str:
    """What Partywall said, without its name, in one line."""
    lines = [line.strip() for line in output.text.splitlines() if line.strip()]
    said = [line.removeprefix("partywall: ") for line in lines if line.startswith("partywall: ")]
    return (said or lines[-1:] or ["nothing was said"])[-1]


def install(bench: Bench) -> str:
    """The wheel, in the prepared environment; an ordinary user installs it and all it needs in an empty one."""
    machine = bench.machine
    machine.bring([bench.wheel, INSIDE, HERE / "scenarios"], "/opt/try")
    bench.as_root(f"mkdir -p {bench.home}/work && chown -R {bench.user}: {bench.home}/work && chmod -R a+rX /opt/try")
    wheel = f"/opt/try/{bench.wheel.name}"
    if bench.host.place == "user":
        new = f"python3 -m venv {bench.environment}"
        bench.shell(f"{new} && pip install --quiet --no-index --find-links {image.WHEELS} {wheel}", timeout_s=900)
    else:
        pip = f"{image.VENV}/bin/pip install --quiet --no-index --no-deps --force-reinstall"
        bench.as_root(f"{pip} {wheel}")
    if bench.host.place == "docker":
        bench.as_root(BOX)
    version = bench.partywall("--version").last
    return f"{version} from the wheel, Python {bench.host.image.python}"


def doctor(bench: Bench) -> str:
    text = bench.partywall("doctor").text
    _expect("agent: answers" in text, f"doctor: {text.splitlines()[0]}")
    return f"{text.count('✓')} there, {text.count('get it:')} missing with a remedy"


def tour(bench: Bench) -> str:
    """README's five minutes, without what has a check of its own."""
    steps = (
        "kernels",
        "kernels cache",
        "probe cache --level L2 --order random --for 1s",
        "stress memory-copy --intensity 50% --for 1s",
        "scenario check /opt/try/scenarios/limits.yaml",
        "run demo --dry-run",
        "study",
        "load schema",
    )
    for step in steps:
        accepted = (0, CAPABILITY) if step.startswith("scenario check") else (0,)
        bench.partywall(step, *accepted)
    return f"{len(steps)} commands"


def demo(bench: Bench) -> str:
    """The main job in a shortened form, then all that is made of its run."""
    bench.shell("rm -rf short")
    bench.partywall("run /opt/try/scenarios/short.yaml --out short", *MEASURED, timeout_s=600)
    bench.partywall("report short -f csv -f parquet", *MEASURED)
    bench.partywall("sql short 'SELECT count(*) FROM slices'")
    cells = bench.findings("short")["cells"]
    kept = next(cell["isolation"]["value"] for cell in cells if _is(cell, "integer", "same-core"))
    _expect(0.3 < kept < 0.7, f"beside a neighbour on its own core the victim kept {kept:.2f}")
    return f"{len(cells)} cells; beside a neighbour on its own core a victim keeps {kept:.2f}"


def _is(cell: dict[str, Any], victim: str, aggressor: str) -> bool:
    return (cell["victim"], cell["aggressor"]) == (victim, aggressor) and cell["isolation"] is not None


def limits(bench: Bench) -> str:
    """Containers: a CPU ceiling switched live, and a weight."""
    bench.shell("rm -rf limits")
    bench.partywall("run /opt/try/scenarios/limits.yaml --out limits", *MEASURED, timeout_s=600)
    cells = {cell["treatment"]: cell for cell in bench.findings("limits")["cells"]}
    ceiling, weight = cells["cpu_limit=0.5"]["isolation"]["value"], cells["beside@1"]["isolation"]["value"]
    _expect(abs(ceiling - 0.5) < LIMIT_POINTS, f"a ceiling of 50 % kept {ceiling:.1%}")
    _expect(abs(weight - 0.75) < LIMIT_POINTS, f"a weight of 300 to 100 kept {weight:.1%}")
    return f"ceiling of 50 %: {ceiling:.1%}; weight of 300 to 100: {weight:.1%}"


def load(bench: Bench) -> str:
    bench.as_root("systemctl start nginx")
    bench.shell("rm -rf load")
    bench.partywall("load http://127.0.0.1/ --users 5 --for 5s --out load", *MEASURED)
    table = bench.partywall("sql load 'SELECT sum(requests) FROM seconds'").text
    requests = max(map(int, re.findall(r"\d+", table)), default=0)
    _expect(requests > 0, "no request was answered")
    return f"{requests} requests in 5 s"


def _refused(bench: Bench, arguments: str) -> str:
    """Where interfaces may not be hooked the command itself must say so, before it looks for any."""
    if bench.host.place == "root":
        return ""
    bench.partywall(arguments)
    return "works without root"


def guard(bench: Bench) -> str:
    if said := _refused(bench, "guard run /opt/try/inside/policy.yaml --for 1s"):
        return said
    output = bench.shell("python3 /opt/try/inside/guard.py", timeout_s=180)
    if output.code == CAPABILITY:
        raise LackingError(_message(output))
    _expect(output.code == 0, f"guard: {output.last}")
    result = json.loads(output.last)
    said = f"{result['bps'] / 1e6:.3f} of {result['ceiling'] / 1e6:g} Mbit/s, {result['left'] or 'nothing'} left"
    _expect(-GUARD_BELOW < result["kept"] - 1 < GUARD_ABOVE and not result["left"], said)
    return said


def trace(bench: Bench) -> str:
    if said := _refused(bench, "trace lo:out lo:in --for 1s"):
        return said
    output = bench.shell("python3 /opt/try/inside/trace.py", timeout_s=180)
    if output.code == CAPABILITY:
        raise LackingError(_message(output))
    _expect(output.code == 0, f"trace: {output.last}")
    seen = json.loads(output.last)
    _expect(seen["netem"], "this kernel has no netem, so there is no truth to hold the trace against")
    said = f"netem's 5 ms and {seen['dropped']:.1%} seen as {seen['delay_ms']:.2f} ms and {seen['lost']:.1%}"
    _expect(4.9 < seen["delay_ms"] < 8 and abs(seen["lost"] - seen["dropped"]) < LOSS_POINTS, said)
    return said


def reap(bench: Bench) -> str:
    """A run that is killed leaves things behind, and the next start takes them away."""
    output = bench.shell("bash /opt/try/inside/killed.sh", timeout_s=240)
    _expect(output.code == 0, f"after kill -9: {output.last}")
    return output.last


def tests(bench: Bench) -> str:
    """The tests that touch the host, from this clone."""
    clone = image.CLONE
    bench.machine.bring([clone / "tests", clone / "pyproject.toml", clone / "schema", clone / "benches"], "/opt/clone")
    bench.machine.bring([clone / "labs", clone / "docs"], "/opt/clone")
    command = f"cd /opt/clone && {image.VENV}/bin/python -m pytest -m host -q -p no:cacheprovider --timeout=900"
    output = bench.machine.run(command, timeout_s=3600)
    _expect(output.code == 0, output.last)
    return output.last


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise FailedError(otherwise)


CHECKS: dict[str, Callable[[Bench], str]] = {
    "install": install,
    "doctor": doctor,
    "tour": tour,
    "run": demo,
    "container-limits": limits,
    "load": load,
    "guard": guard,
    "trace": trace,
    "reap": reap,
    "tests": tests,
}
