"""What users install: the wheel, in an empty environment, away from the clone.

Builds the wheel, installs it with pip into a new virtual environment, and runs there what a new user runs: what the
host can do, the kernels, a plan, a check, the studies, a measurement of five seconds, its report, and a guard on an
interface in a network namespace. Nothing there sees the clone: not the folder, not PYTHONPATH, not $PARTYWALL_AGENT.
--quick draws no charts and plans no studies; the long form also measures the demo. Without root, no guard runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from frame import Options, Outcome, bench
from stock import PLANTS, without_agent

ROOT = Path(__file__).parents[1]
SCENARIO = """\
partywall: 1
name: small
victims:
  api: {probe: memory-latency}
aggressors:
  batch: {stressor: memory-triad, intensity: [1]}
budget: 5s
"""
POLICY = """\
partywall_guard: 1
name: wheel
link: {capacity: 1Gbit/s}
vifs:
  vm: {interface: pw-wheel, side: inside, send: {guarantee: 10Mbit/s, ceiling: 20Mbit/s}}
"""
# A network namespace with an interface, which ends with its command.
INSIDE = (
    "unshare",
    "--net",
    "sh",
    "-c",
    'ip link add pw-wheel type veth peer name pw-peer && ip link set pw-wheel up && exec "$@"',
    "-",
)
# What a shell in the clone may have set, and a user's would not.
OURS = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "PARTYWALL_AGENT")


@dataclass(frozen=True)
class Step:
    """A command of an installed Partywall. says: what its output must hold; codes: how it may end; root: it needs root.

    inside: the command that starts it, with its arguments.
    """

    arguments: Sequence[str]
    says: str
    codes: Sequence[int] = (0,)
    root: bool = False
    inside: Sequence[str] = ()


QUICK = (
    Step(("--help",), "Usage"),
    Step(("doctor",), "agent: answers"),
    Step(("kernels",), "memory-latency"),
    Step(("run", "demo", "--dry-run"), "Nothing was measured"),
    Step(("scenario", "check", "small.yaml"), "no mistakes"),
    Step(("study",), "papers/vits"),
    # 3, inconclusive: a host with one CPU, or a busy one, may not tell in five seconds.
    Step(("run", "small.yaml", "--out", "run"), "report.html", (0, 3)),
    Step(("report", "run"), "report.html", (0, 3)),
    Step(("guard", "check", "policy.yaml"), "vm"),
    Step(("guard", "run", "policy.yaml", "--for", "2s", "--out", "guard"), "no problem was found", (0,), True, INSIDE),
    Step(("report", "guard"), "no problem was found", root=True),
)
LONG = (
    Step(("report", "run", "-f", "csv", "-f", "parquet", "-f", "svg", "-f", "png"), "charts", (0, 3)),
    Step(("study", "papers/vits", "--dry-run"), "cache"),
    Step(("study", "papers/hyperv-quality", "--dry-run"), "loading"),
    Step(("scenario", "schema"), "$schema"),
    Step(("load", "schema"), "$defs"),
    Step(("sql", "run", "SELECT count(*) FROM slices"), "count"),
    Step(("reap",), ""),
    Step(("run", "demo", "--out", "demo"), "report.html", (0, 1, 3)),
)


def timed(argv: Sequence[str], folder: Path, env: Mapping[str, str]) -> tuple[float, int, str]:
    """(seconds, exit code, output) of a command."""
    began = time.monotonic()
    done = subprocess.run(
        argv, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return time.monotonic() - began, done.returncode, done.stdout


def complaints(step: Step, code: int, output: str) -> list[str]:
    """What is wrong with how a command ended, in words; empty if nothing is."""
    wrong = [] if code in step.codes else [f"ended with {code}"]
    wrong += [] if step.says in output else [f"does not say {step.says!r}"]
    wrong += ["names a Makefile"] if "make build" in output or "make setup" in output else []
    return wrong + (["shows a traceback"] if "Traceback" in output else [])


@bench(plants=PLANTS)
def main(options: Options) -> Outcome:
    env = {key: value for key, value in os.environ.items() if key not in OURS}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        argv = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", name]
        build_s, code, output = timed(argv, ROOT, env)
        if code:
            print(output)
            return Outcome("it cannot be built", False)
        (wheel,) = folder.glob("*.whl")
        if options.plant:
            without_agent(wheel)
        subprocess.run([sys.executable, "-m", "venv", "venv"], cwd=folder, env=env, check=True)
        install_s, code, output = timed(["venv/bin/pip", "install", "--quiet", wheel.name], folder, env)
        if code:
            print(output)
            return Outcome("it cannot be installed", False)
        installed = ["venv/bin/partywall"]
        passed, steps = use(folder, env, QUICK if options.quick else QUICK + LONG, installed)
        size_mib = wheel.stat().st_size / 2**20
    figure = f"built in {build_s:.1f} s ({size_mib:.1f} MiB), installed in {install_s:.0f} s, {passed} of {steps} pass"
    return Outcome(figure, passed == steps)


def use(folder: Path, env: Mapping[str, str], steps: Sequence[Step], installed: Sequence[str]) -> tuple[int, int]:
    """Runs the steps in order, in a folder: (how many went well, how many there are). installed: starts Partywall."""
    (folder / "small.yaml").write_text(SCENARIO)
    (folder / "policy.yaml").write_text(POLICY)
    passed = 0
    for step in steps:
        if step.root and os.geteuid():
            print(f"partywall {' '.join(step.arguments)}: not tried: it needs root", flush=True)
            passed += 1
            continue
        took_s, code, output = timed([*step.inside, *installed, *step.arguments], folder, env)
        wrong = complaints(step, code, output)
        print(f"partywall {' '.join(step.arguments)}: {took_s:.1f} s: {', '.join(wrong) or 'good'}", flush=True)
        if wrong:
            print(output)
        passed += not wrong
    return passed, len(steps)


if __name__ == "__main__":
    main()
