"""What the benchmarks of `partywall blame` on a real host share: neighbours in groups of their own, a victim, a run."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from frame import NotMeasured
from partywall.sandbox import cgroups

SPIN = "while True: pass"
VICTIM = "import sys\nwhile True:\n  for _ in range(3000): pass\n  print('x', flush=True)"


def expect_host() -> list[int]:
    """The CPUs of this host. NotMeasured if there are fewer than two, or no group can be made."""
    cpus = sorted(os.sched_getaffinity(0))
    if os.geteuid() or cgroups.read().why_not() or len(cpus) < 2:
        raise NotMeasured("it needs root, cgroups and two CPUs")
    return cpus


@contextlib.contextmanager
def neighbours(cpus: Mapping[str, int]) -> Iterator[dict[str, str]]:
    """Groups that each use a CPU. cpus: by name. Yields the groups by name."""
    here = cgroups.read()
    made = {name: f"/partywall-bench-{os.getpid()}-{name}" for name in cpus}
    with contextlib.ExitStack() as stack:
        for name, group in made.items():
            folders = {
                here.folder(controller, group) for controller in ("cpu", "cpuacct") if here.v1 or controller == "cpu"
            }
            for folder in folders:
                folder.mkdir()
                stack.callback(folder.rmdir)
            argv = ["taskset", "-c", str(cpus[name]), sys.executable, "-c", SPIN]
            process = stack.enter_context(subprocess.Popen(argv))
            stack.callback(process.wait)
            stack.callback(process.kill)
            for folder in folders:
                (folder / "cgroup.procs").write_text(str(process.pid))
        yield made


def victim(cpu: int) -> list[str]:
    """A command that uses a CPU, and prints a line for each unit of work."""
    return ["taskset", "-c", str(cpu), sys.executable, "-c", VICTIM]


def experiment(folder: Path, cpu: int, groups: list[str], *options: str) -> dict[str, Any]:
    """Runs the command, and returns the result that it prints."""
    script = folder / "victim.py"
    script.write_text(VICTIM)
    command = [sys.executable, "-m", "partywall", "blame", *groups, "--out", str(folder / "record"), "--format", "json"]
    command += ["--victim", f"taskset -c {cpu} {sys.executable} {script}", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1, 3):
        raise SystemExit(f"partywall blame: exit status {done.returncode}: {done.stderr}")
    return dict(json.loads(done.stdout)["result"])


def lines_per_s(process: subprocess.Popen[bytes], seconds: float) -> float:
    """How many lines a victim prints a second. What it printed before is left out."""
    stream = process.stdout
    assert stream is not None
    os.set_blocking(stream.fileno(), False)
    _printed(stream.fileno())
    begin, lines = time.monotonic(), 0
    while (passed := time.monotonic() - begin) < seconds:
        time.sleep(0.05)
        lines += _printed(stream.fileno())
    return lines / passed


def _printed(descriptor: int) -> int:
    lines = 0
    with contextlib.suppress(BlockingIOError):
        while data := os.read(descriptor, 65536):
            lines += data.count(b"\n")
    return lines
