"""Kills at random moments, and faults: what is left on the host, whether a run can be resumed, the user's messages.

A run with container sandboxes (process sandboxes where there is no root) is started as a user starts it. At a random
moment one of its processes is killed with SIGKILL: the controller, an agent, or the OCI runtime's process. Then
`partywall reap` is run and the host is searched for processes, cgroups, mounts and files of Partywall; then the run is
resumed to its end, and its blocks are counted. Faults: the disk under the run directory is full, an agent dies, a
command never prints its metric, a container hits its memory limit: each must end with an error that names it, and leave
nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import PARTYWALL, processes, program
from frame import Options, Outcome, bench
from partywall.host.label import VARIABLE, WORK_ROOT, state_root
from partywall.sandbox import cgroups, networks

ROOT = os.geteuid() == 0
BACKEND = "container" if ROOT else "process"
# What else every sandbox is given, and how long a run may take on a host that has other work.
SANDBOX: dict[str, Any] = {}
PATIENCE_S = 120
# Run directories are called so, and with them all that their runs make on the host.
NAME = "robust-run"
PLANTS = {"leaked": "a process of the run is left after each kill"}


def scenario(folder: Path, **changes: Any) -> Path:
    sandbox = {"backend": BACKEND} | SANDBOX
    content: dict[str, Any] = {
        "partywall": 1,
        "name": "robust",
        "victims": {
            "integer": {"probe": "integer", "sandbox": sandbox},
            "memory": {"probe": "memory-copy", "sandbox": sandbox},
        },
        "aggressors": {
            "memory": {"stressor": "memory-copy", "sandbox": sandbox},
            "disk": {
                "stressor": "disk-direct-write",
                "params": {"file_bytes": 8 << 20},
                "settle": "20ms",
                "sandbox": sandbox,
            },
        },
        "timing": {"slot": "30ms"},
        "min_blocks": 8,
        "precision": 0.0001,
        "budget": "6s",
    } | changes
    file = folder / "scenario.yaml"
    file.write_text(json.dumps(content))
    return file


def labelled() -> dict[int, str]:
    """Processes of these runs, by number, with their names."""
    own = processes(lambda folder: f"{VARIABLE}={NAME}".encode() in (folder / "environ").read_bytes())
    return {int(folder.name): (folder / "comm").read_text().strip() for folder in own if (folder / "comm").exists()}


def left_over() -> list[str]:
    """Everything of these runs on this host; other runs may be at work on it."""
    processes = [f"process {pid} {name}" for pid, name in labelled().items()]
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines() if NAME in line]
    groups = [str(path) for root in cgroups.read().paths("/partywall") for path in root.glob(f"{NAME}*")]
    empty = [str(root) for root in cgroups.read().paths("/partywall") if root.is_dir() and not any(root.glob("*/"))]
    states = [str(path) for path in state_root().glob(f"{NAME}*")]
    files = [str(path) for path in WORK_ROOT.glob(f"partywall-{NAME}*")]
    networks_left = [str(path) for path in networks.NETNS.glob(f"{NAME}*")]
    return [*processes, *mounts, *groups, *empty, *states, *files, *networks_left]


def partywall(*words: str, cwd: Path, timeout_s: float = 180) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PARTYWALL, *words], cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False)


def victims_of_kill(controller: int, chance: random.Random) -> int:
    """A random process of the run: the controller, one of its agents, or a container runtime."""
    mine = [controller, *labelled()]
    # The controller is one of many processes, and the one whose death leaves most behind.
    return controller if chance.random() < 0.4 else chance.choice(mine)


def one_kill(number: int, chance: random.Random, within_s: float = 9, *, leaks: bool = False, **changes: Any) -> str:
    """Kills once, reaps, resumes; returns what went wrong, or nothing. changes: to the scenario."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        command = [*PARTYWALL, "run", str(scenario(folder, **changes)), "--out", NAME]
        with subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            time.sleep(chance.uniform(0.5, within_s))
            target = victims_of_kill(process.pid, chance)
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, signal.SIGKILL)
            output, _ = process.communicate(timeout=PATIENCE_S)
        if "Traceback" in output:
            return f"kill {number}: a traceback: {output[-600:]}"
        reaped = partywall("reap", cwd=folder)
        with leaked() if leaks else contextlib.nullcontext():
            left = left_over()
        if left:
            return f"kill {number}: left: {left}"
        if reaped.returncode:
            return f"kill {number}: reap failed: {reaped.stderr}"
        return resumed(number, folder)


def leaked() -> contextlib.AbstractContextManager[object]:
    """A process that looks like one of the run."""
    return program("sleep", "60", env=os.environ | {VARIABLE: NAME})


def resumed(number: int, folder: Path) -> str:
    if not (folder / NAME / "plan.json").exists():
        return ""
    done = partywall("run", "--resume", NAME, cwd=folder, timeout_s=PATIENCE_S + 60)
    if done.returncode not in (0, 1, 3, 5) or "Traceback" in done.stderr:
        return f"kill {number}: resume ended with {done.returncode}: {done.stderr[-600:]}"
    events = [
        json.loads(line)
        for line in (folder / NAME / "events.jsonl").read_text().splitlines()
        if line.strip().endswith("}")
    ]
    blocks = Counter((e["trial"], e["block"]) for e in events if e["kind"] == "block_done")
    twice = [block for block, count in blocks.items() if count > 1]
    trials = Counter(trial for trial, _ in blocks)
    missing = [t for t in ("000-integer", "001-memory") if trials[t] < 8]
    ended = any(event["kind"] == "run_ended" for event in events)
    if twice or missing or not ended or left_over():
        reasons = [event["reason"] for event in events if event["kind"] == "trial_failed"]
        short = f"twice {twice}, too few blocks {missing} of {dict(trials)}, ended {ended}, left {left_over()}"
        return f"kill {number}: {short}; failed: {reasons}"
    return ""


@contextlib.contextmanager
def tiny_disk(folder: Path) -> Iterator[Path]:
    """A file system with room for the plan and little else."""
    full = folder / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "none", str(full)], check=True)
    try:
        yield full
    finally:
        subprocess.run(["umount", "-l", str(full)], check=True)


def fault(name: str, words: list[str], *arguments_: str, folder: Path, codes: tuple[int, ...] = (5,)) -> str:
    done = partywall("run", *arguments_, cwd=folder)
    output = done.stdout + done.stderr
    absent = [word for word in words if word not in " ".join(output.split())]
    if "Traceback" in output or absent or done.returncode not in codes:
        return f"fault {name}: exit code {done.returncode}, not said: {absent}: {output[-1200:]}"
    partywall("reap", cwd=folder)
    return f"fault {name}: left {left}" if (left := left_over()) else ""


def faults() -> list[str]:
    problems = []
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        silent = {
            "victims": {"silent": {"command": ["sleep", "1000"], "metric": {"regex": "rate ([0-9.]+)"}}},
            "aggressors": {},
        }
        problems.append(
            fault(
                "metric",
                ["silent", "metric"],
                str(scenario(folder, **silent)),
                "--out",
                "a",
                "--allow-commands",
                folder=folder,
            )
        )
        if ROOT:
            # A kernel's need is known, and refused before the run; a command's is not.
            greedy = {"command": ["sh", "-c", "head -c 256m /dev/zero | tail"], "metric": {"regex": "rate ([0-9.]+)"}}
            limited = {"sandbox": {"backend": "container", "memory": "64MiB"}}
            hungry = {"victims": {"buffer": greedy | limited}, "aggressors": {}}
            problems.append(
                fault(
                    "memory limit",
                    ["buffer", "memory limit of"],
                    str(scenario(folder, **hungry)),
                    "--out",
                    "b",
                    "--allow-commands",
                    folder=folder,
                )
            )
            with tiny_disk(folder) as full:
                text = ["No space left", "--resume"]
                problems.append(
                    fault("disk full", text, str(scenario(folder)), "--out", str(full / NAME), folder=folder)
                )
        problems.append(dead_agent(folder))
    return [text for text in problems if text]


def dead_agent(folder: Path) -> str:
    """The victim's agent dies once: the trial fails by name, the run goes on and ends."""
    command = [*PARTYWALL, "run", str(scenario(folder)), "--out", f"{NAME}-c"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        deadline = time.monotonic() + 30
        agents: list[int] = []
        while not agents and time.monotonic() < deadline:
            time.sleep(0.5)
            agents = [pid for pid, name in labelled().items() if name.startswith("partywall-agent")]
        time.sleep(1.5)
        for pid in agents[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=180)
    named = "failed:" in output and ("signal 9" in output or "ended" in output)
    return "" if named and "Traceback" not in output else f"fault dead agent: {output[-1200:]}"


@bench(plants=PLANTS, unjudged="whether faults are named")
def main(options: Options) -> Outcome:
    kills = 3 if options.quick else 50
    chance = random.Random(time.time_ns() if not options.quick else 7)
    subprocess.run([*PARTYWALL, "reap"], check=False, capture_output=True)
    wrong = []
    for number in range(kills):
        problem = one_kill(number, chance, leaks=bool(options.plant))
        print(problem or f"kill {number}: clean, resumed", flush=True)
        wrong += [problem] if problem else []
    named = faults() if not options.quick else []
    for problem in named:
        print(problem, flush=True)
    needed = 4 if ROOT else 2
    named_note = "" if options.quick else f"; {needed - len(named)} of {needed} faults named"
    return Outcome(
        f"{kills - len(wrong)} of {kills} kills left nothing and resumed to all blocks, none twice{named_note}",
        not wrong and not named,
    )


if __name__ == "__main__":
    main()
