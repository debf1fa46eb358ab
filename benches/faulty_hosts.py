"""Three real hosts behind sshd, with process namespaces of their own, and a real controller, all of which get killed.

Only the measurement is a stand-in: `partywall run` there writes the time into a file while it goes on, and ends after
some seconds. What is said of a schedule comes from these files and from the hosts' ledgers.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from frame import NotMeasured
from partywall.testing.worlds import Judged
from tests import ssh_server

NAMES = ("east", "west", "south")
MEASURES_S, TROUBLE_S, ENDS_S = 6.0, 15.0, 240.0
SOURCE = Path(__file__).parents[1] / "src"
STAND_IN = f"""
import json, os, sys, time
if sys.orig_argv[1:5] == ["-P", "-m", "partywall", "run"]:
    began, file = time.monotonic_ns(), open(f"cells-{{os.getpid()}}-{{time.monotonic_ns()}}", "w")
    while (now := time.monotonic_ns()) < began + {MEASURES_S} * 1e9:
        file.seek(0)
        file.write(json.dumps([began, now]))
        file.flush()
        time.sleep(0.02)
    print(json.dumps({{"result": {{"headline": "", "cells": []}}, "problems": []}}), flush=True)
    os._exit(0)
"""


@contextlib.contextmanager
def hosts(folder: Path) -> Iterator[dict[str, ssh_server.SshServer]]:
    """Servers by name, with an inventory in the folder."""
    if why := ssh_server.lacking():
        raise NotMeasured(why)
    (folder / "sitecustomize.py").write_text(STAND_IN)
    servers, lines = {}, []
    try:
        for name in NAMES:
            own = folder / name
            own.mkdir()
            (own / "ledger").mkdir(mode=0o700)
            servers[name] = ssh_server.SshServer(own, alone=True)
            known = f"-o UserKnownHostsFile={own}/known -o IdentitiesOnly=yes -o GlobalKnownHostsFile=none"
            lines.append(
                f"{name} ansible_host=127.0.0.1 ansible_port={servers[name].port} ansible_ssh_private_key_file="
                f"{own}/user ansible_ssh_common_args='{known}' partywall_ledger={own}/ledger partywall_path={folder}:"
                f"{SOURCE} ansible_python_interpreter={sys.executable} partywall_state={own}/state\n"
            )
        (folder / "hosts.ini").write_text("".join(lines))
        yield servers
    finally:
        for server in servers.values():
            server.stop()


def judged(folder: Path, seed: int) -> Judged:
    """Carries out a schedule, until a controller has ended by itself."""
    chance, record, judged = random.Random(seed), folder / "record", Judged()
    with hosts(folder) as servers:
        faults = sorted(
            (chance.uniform(2, TROUBLE_S), chance.choice(("controller", "keeper", "link"))) for _ in range(4)
        )
        began_s, controller, healed = time.monotonic(), _controller(folder, record), []
        while time.monotonic() < began_s + ENDS_S:
            now_s = time.monotonic() - began_s
            if faults and faults[0][0] <= now_s:
                _, what = faults.pop(0)
                judged.faults[what] += 1
                name = chance.choice(NAMES)
                if what == "controller":
                    controller.kill()
                elif what == "keeper":
                    _kill(b"partywall.fleet.ledger.keeper", str(folder / name).encode(), signal.SIGKILL)
                else:
                    _kill(b"sshd", str(servers[name].folder).encode(), signal.SIGSTOP)
                    healed.append((now_s + chance.uniform(1, 6), name))
            for when_s, name in [each for each in healed if each[0] <= now_s]:
                _kill(b"sshd", str(servers[name].folder).encode(), signal.SIGCONT)
                healed.remove((when_s, name))
            if controller.poll() is not None:
                if not faults and not healed and _is_ended(record):
                    break
                controller = _controller(folder, record)
            time.sleep(0.1)
        controller.kill()
        controller.wait()
    judged.lost += not _is_ended(record)
    for name in NAMES:
        _judge(folder / name / "ledger", judged)
    return judged


def _controller(folder: Path, record: Path) -> subprocess.Popen[bytes]:
    options = ["--every=200ms", "--lease=30s", f"--out={record}", str(folder / "hosts.ini"), "demo"]
    words = ["--resume", str(record)] if (record / "fleet.json").exists() else options
    with (folder / "controllers.txt").open("ab") as said:
        argv = [sys.executable, "-P", "-m", "partywall", "fleet", "run", *words]
        return subprocess.Popen(argv, stdout=said, stderr=said, env=os.environ | {"PYTHONPATH": str(SOURCE)})


def _kill(*words: bytes | signal.Signals) -> None:
    """Sends a signal to the processes whose command line has all words."""
    *wanted, number = words
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes()
            if all(word in line for word in wanted) and not line.startswith(b"unshare"):
                os.kill(int(process.name), number)


def _is_ended(record: Path) -> bool:
    file = record / "events.jsonl"
    return file.exists() and '{"kind": "ended"}' in file.read_text()


def _judge(ledger: Path, judged: Judged) -> None:
    """Adds what a host says. Files of cells are its runs: when they began, and when they were last seen."""
    lines = [json.loads(line) for line in (ledger / "ledger.jsonl").read_text().splitlines()]
    began = [(line["run"], line["attempt"]) for line in lines if line["what"] == "began"]
    cells = sorted(json.loads(file.read_text()) for file in ledger.glob("runs/*/cells-*") if file.stat().st_size)
    judged.silent += len(began) - len(set(began)) + max(0, len(cells) - len(began))
    judged.twice += sum(after[0] < before[1] for before, after in pairwise(cells))
    judged.ends += Counter(line["what"] for line in lines if "exit" in line)
