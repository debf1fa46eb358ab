"""Some hosts behind each engine, and a real controller: all of them get killed, cut off and healed.

Behind sshd they have process namespaces of their own. On a real Slurm, in pods of a double of Kubernetes' API (kubectl
is real), and behind the workers of a real Dask cluster they are this host, with a ledger each. Only the measurement is
a stand-in: `partywall run` there writes the time into a file while it goes on, and ends after some seconds. What is
said of a schedule comes from these files and from the hosts' ledgers.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from frame import NotMeasured
from partywall.fleet.ledger.lease import Book, now_ns
from partywall.testing.worlds import Judged
from tests import kubernetes_cluster, slurm_cluster, ssh_server

FEW = ("east", "west", "south")
ENDS_S, CELL_S = 240.0, 6.0
AT_ONCE = 20
SOURCE = Path(__file__).parents[1] / "src"
# A run that is asked to end cleans up first, which may take longer than its lease still lasts.
STAND_IN = """
import json, os, signal, sys, time
if sys.orig_argv[1:5] == ["-P", "-m", "partywall", "run"]:
    clock = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    began, ends = clock(), [clock() + MEASURES_S * 1e9]
    signal.signal(signal.SIGTERM, lambda *_: ends.append(clock() + CLEANS_UP_S * 1e9))
    file = open(f"cells-{os.getpid()}-{began}", "w")
    while (now := clock()) < min(ends):
        file.seek(0)
        file.write(json.dumps([began, now]))
        file.flush()
        time.sleep(0.02)
    if len(ends) > 1:
        os._exit(130)
    print(json.dumps({"result": {"headline": "", "cells": []}, "problems": []}), flush=True)
    os._exit(0)
"""


@dataclass(frozen=True)
class Pace:
    """How long a run measures, cleans up if it is asked to end, and may go on without a controller. All in seconds.

    away_s: how long some controllers stay away that were killed; 0 if none does.
    """

    measures_s: float = CELL_S
    cleans_up_s: float = 0.0
    lease_s: float = 30.0
    away_s: float = 0.0

    @property
    def stand_in(self) -> str:
        """The stand-in for the measurement."""
        return STAND_IN.replace("MEASURES_S", str(self.measures_s)).replace("CLEANS_UP_S", str(self.cleans_up_s))


USUAL, SHORT_LEASES = Pace(), Pace(measures_s=20.0, cleans_up_s=12.0, lease_s=10.0, away_s=14.0)


class Behind:
    """How a controller reaches its hosts. lines: of the inventory, by host. env: for the controller.

    troubles: what can happen to a host, by name, and what undoes it again, if it is not over by itself.
    """

    engine = "ssh"

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}
        self.env: dict[str, str] = {}
        self.troubles: dict[str, tuple[Callable[[str], object], Callable[[str], object]]] = {}

    def stop(self) -> None:
        """Ends what was started."""


def _nothing(_: str) -> None:
    """What undoes a trouble that is over by itself."""


class BehindSsh(Behind):
    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__()
        if why := ssh_server.lacking():
            raise NotMeasured(why)
        self._servers = {name: ssh_server.SshServer(folder / name, alone=True) for name in names}
        for name, server in self._servers.items():
            own = folder / name
            known = f"-o UserKnownHostsFile={own}/known -o IdentitiesOnly=yes -o GlobalKnownHostsFile=none"
            self.lines[name] = (
                f"ansible_host=127.0.0.1 ansible_port={server.port} ansible_ssh_private_key_file={own}/user "
                f"ansible_ssh_common_args='{known}'"
            )
        self.troubles = {"link": (lambda name: self._signal(name, signal.SIGSTOP),
                                  lambda name: self._signal(name, signal.SIGCONT))}  # fmt: skip

    def _signal(self, name: str, number: signal.Signals) -> None:
        _kill(b"sshd", str(self._servers[name].folder).encode(), number)

    def stop(self) -> None:
        for server in self._servers.values():
            server.stop()


class OnSlurm(Behind):
    engine = "slurm"

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__()
        if why := slurm_cluster.lacking():
            raise NotMeasured(why)
        (folder / "slurm").mkdir()
        self._cluster = slurm_cluster.SlurmCluster(folder / "slurm", dict.fromkeys(names))
        self.lines, self.env = dict.fromkeys(names, ""), {"SLURM_CONF": str(self._cluster.configuration)}
        daemons = self._cluster.daemons
        self.troubles = {
            "link": (lambda name: daemons[name].send_signal(signal.SIGSTOP),
                     lambda name: daemons[name].send_signal(signal.SIGCONT)),
            "slurmctld": (lambda _: self._cluster.crash(), _nothing),
        }  # fmt: skip

    def stop(self) -> None:
        self._cluster.cancel_all()
        self._cluster.stop()


class InPods(Behind):
    engine = "kubernetes"

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__()
        if why := kubernetes_cluster.lacking():
            raise NotMeasured(why)
        (folder / "kubernetes").mkdir()
        self._cluster = kubernetes_cluster.KubernetesCluster(folder / "kubernetes", names)
        # Each pod is started twice.
        self._cluster.starts = 2
        self.lines = dict.fromkeys(names, f"kubernetes_args='{self._cluster.arguments}'")
        self.troubles = {
            "API": (lambda _: self._set(is_down=True), lambda _: self._set(is_down=False)),
            "eviction": (self._cluster.evict, _nothing),
        }

    def _set(self, *, is_down: bool) -> None:
        self._cluster.is_down = is_down

    def stop(self) -> None:
        self._cluster.stop()


class ThroughDask(Behind):
    engine = "dask"

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__()
        self._cluster = dask_cluster(folder)
        scheduler = self._cluster.scheduler_address
        self.lines = dict.fromkeys(names, f"dask_scheduler={scheduler} dask_carries=local")
        self.troubles = {"worker": (lambda _: kill_worker(self._cluster), _nothing)}

    def stop(self) -> None:
        self._cluster.close()


KINDS: dict[str, Callable[[Path, Sequence[str]], Behind]] = {
    "ssh": BehindSsh, "slurm": OnSlurm, "kubernetes": InPods, "dask": ThroughDask,
}  # fmt: skip


def dask_cluster(folder: Path) -> Any:
    """A scheduler and three workers, each a process of its own, which starts again when it has ended."""
    try:
        import distributed  # noqa: PLC0415 - one kind of four needs it
    except ImportError:
        raise NotMeasured("distributed is not installed") from None
    return distributed.LocalCluster(
        n_workers=3, threads_per_worker=2, processes=True, dashboard_address=None, silence_logs=50,
        local_directory=str(folder),
    )  # fmt: skip


def kill_worker(cluster: Any) -> None:
    """Kills the process of one worker; its nanny starts another."""
    for nanny in cluster.workers.values():
        if nanny.pid:
            os.kill(nanny.pid, signal.SIGKILL)
            return


@contextlib.contextmanager
def hosts(folder: Path, kind: str, names: Sequence[str], pace: Pace) -> Iterator[Behind]:
    """Hosts behind an engine, with an inventory in the folder."""
    (folder / "sitecustomize.py").write_text(pace.stand_in)
    for name in names:
        (folder / name / "ledger").mkdir(mode=0o700, parents=True)
    behind = KINDS[kind](folder, names)
    try:
        about = f"partywall_path={folder}:{SOURCE} partywall_python={sys.executable} partywall_ledger={folder}/"
        (folder / "hosts.ini").write_text(
            "".join(
                f"{n} {of} {about}{n}/ledger partywall_state={folder}/{n}/state\n" for n, of in behind.lines.items()
            )
        )
        yield behind
    finally:
        for begun in behind.troubles.values():
            for name in names:
                begun[1](name)
        behind.stop()


def judged(folder: Path, seed: int, kind: str = "ssh", names: Sequence[str] = FEW, pace: Pace = USUAL) -> Judged:
    """Carries out a schedule, until a controller has ended by itself."""
    record, judged = folder / "record", Judged()
    with hosts(folder, kind, names, pace) as behind:
        watched = {name: _Watched(folder / name / "ledger", judged) for name in names}
        schedule = _Schedule(behind, names, watched, random.Random(seed), judged, pace)
        began_s, controller = time.monotonic(), _controller(folder, record, behind, pace)
        while not any(folder.glob("*/ledger/runs/*/begun-*")) and time.monotonic() < began_s + ENDS_S:
            time.sleep(0.1)
        began_s = time.monotonic()
        while (now_s := time.monotonic() - began_s) < ENDS_S:
            schedule.go_on(now_s, controller)
            for each in watched.values():
                each.look()
            if controller.poll() is not None and now_s >= schedule.back_s:
                if schedule.is_over and _is_ended(record):
                    break
                controller = _controller(folder, record, behind, pace)
                # Faults of other engines meet more hosts than one, and a start of a hundred takes its time.
                if pace.away_s:
                    for name in names:
                        watched[name].expect(is_up=name not in schedule.cut)
            time.sleep(0.1)
        controller.kill()
        controller.wait()
    judged.lost += not _is_ended(record)
    for each in watched.values():
        each.judge()
    return judged


class _Watched:
    """A host's ledger, looked at from time to time: until when each grant lasted, and when a controller came back."""

    def __init__(self, ledger: Path, judged: Judged) -> None:
        self.ledger, self._judged = ledger, judged
        self._until_ns: dict[int, int] = {}
        self._token, self._up_s, self._is_expected = 0, 0.0, False

    def expect(self, *, is_up: bool) -> None:
        """A new controller is there. is_up: the link to the host too."""
        self._is_expected, self._up_s = True, time.monotonic() if is_up else 0.0

    def heal(self) -> None:
        """The link to the host is up again."""
        self._up_s = time.monotonic() if self._is_expected else 0.0

    def is_down(self) -> None:
        self._up_s = 0.0

    def look(self) -> None:
        """Reads the lease, and whether a new controller has asked."""
        lease = Book(self.ledger).lease()
        # What was extended after its end ended too late all the same.
        if lease is not None and now_ns() < self._until_ns.get(lease.grant, math.inf):
            self._until_ns[lease.grant] = lease.expires_ns
        token = max((int(file.read_text() or 0) for file in self.ledger.glob("runs/*/token")), default=0)
        if token > self._token:
            if self._up_s and self._token:
                self._judged.resumed_s = max(self._judged.resumed_s, time.monotonic() - self._up_s)
            self._token, self._up_s, self._is_expected = token, 0.0, False

    def judge(self) -> None:
        """Adds what the host says. Files of cells are its runs: when they began, and when they were last seen."""
        lines = [json.loads(line) for line in (self.ledger / "ledger.jsonl").read_text().splitlines()]
        began = [(line["run"], line["attempt"]) for line in lines if line["what"] == "began"]
        files = [file for file in self.ledger.glob("runs/*/cells-*") if file.stat().st_size]
        cells = sorted(json.loads(file.read_text()) for file in files)
        self._judged.silent += len(began) - len(set(began)) + max(0, len(cells) - len(began))
        self._judged.twice += sum(after[0] < before[1] for before, after in pairwise(cells))
        tokens = [line["token"] for line in lines if line["what"] in ("granted", "stop")]
        self._judged.fenced += sum(after < before for before, after in pairwise(tokens))
        told = ("began", "ended", "stopped", "lost")
        self._judged.ends += Counter(line["what"] for line in lines if line["what"] in told)
        # A keeper that was killed does not say how its attempt ended, and cannot end it in time.
        kept = {line["grant"] for line in lines if line["what"] in ("ended", "stopped", "lost")}
        for cell in cells:
            grant = max(line["grant"] for line in lines if line["what"] == "began" and line["at_ns"] <= cell[0])
            if grant in kept:
                self._judged.late_s = max(self._judged.late_s, (cell[1] - self._until_ns[grant]) / 1e9)


class _Schedule:
    """The faults of a schedule, from a seed: four of three hosts, and more of more hosts.

    back_s: before then, no controller comes back. cut: the hosts that something has happened to.
    """

    def __init__(
        self,
        behind: Behind,
        names: Sequence[str],
        watched: Mapping[str, _Watched],
        chance: random.Random,
        judged: Judged,
        pace: Pace,
    ) -> None:
        self._behind, self._watched, self._chance, self._judged = behind, watched, chance, judged
        self._names, self._pace = names, pace
        troubles, count = ["controller", "keeper", *behind.troubles], max(4, len(names) // 4)
        within_s = 2 * pace.measures_s + len(names) / 2
        self._left = sorted((chance.uniform(0, within_s), chance.choice(troubles)) for _ in range(count))
        if pace.away_s:
            # Early, so that what is measured has not ended before its lease.
            self._left = sorted([*self._left, (chance.uniform(1, 5), "controller away")])
        self._healed: list[tuple[float, str, Callable[[str], object]]] = []
        self.back_s = 0.0

    @property
    def cut(self) -> set[str]:
        return {name for _, name, _ in self._healed}

    @property
    def is_over(self) -> bool:
        return not self._left and not self._healed

    def go_on(self, now_s: float, controller: subprocess.Popen[bytes]) -> None:
        """What is due happens, and is undone again."""
        if self._left and self._left[0][0] <= now_s:
            _, what = self._left.pop(0)
            self._judged.faults[what] += 1
            self._happen(what, self._chance.choice(self._names), now_s, controller)
        for each in [each for each in self._healed if each[0] <= now_s]:
            each[2](each[1])
            self._healed.remove(each)
            if each[1] not in self.cut:
                self._watched[each[1]].heal()

    def _happen(self, what: str, name: str, now_s: float, controller: subprocess.Popen[bytes]) -> None:
        if what.startswith("controller"):
            controller.kill()
            for each in self._watched.values():
                each.is_down()
            self.back_s = max(self.back_s, now_s + (self._pace.away_s if what == "controller away" else 0.0))
        elif what == "keeper":
            _kill(b"partywall.fleet.ledger.keeper", str(self._watched[name].ledger).encode(), signal.SIGKILL)
        else:
            begin, end = self._behind.troubles[what]
            begin(name)
            self._watched[name].is_down()
            self._healed.append((now_s + self._chance.uniform(1, 6), name, end))


def foil(folder: Path) -> int:
    """The same with Dask alone, with its defaults: how many of six cells were measured again when a worker died."""
    cluster = dask_cluster(folder)
    try:
        with cluster.get_client() as client:
            futures = [client.submit(_cell, str(folder), number, pure=False) for number in range(6)]
            time.sleep(CELL_S / 2)
            kill_worker(cluster)
            client.gather(futures)
    finally:
        cluster.close()
    begun = Counter(file.name.split("-")[1] for file in folder.glob("cell-*"))
    return sum(count > 1 for count in begun.values())


def _cell(folder: str, number: int) -> None:
    """A cell as a task: it leaves a file each time that it begins."""
    (Path(folder) / f"cell-{number}-{time.monotonic_ns()}").write_text("")
    time.sleep(CELL_S)


def _controller(folder: Path, record: Path, behind: Behind, pace: Pace) -> subprocess.Popen[bytes]:
    options = [
        f"--engine={behind.engine}",
        f"--at-once={AT_ONCE}",
        "--every=200ms",
        f"--lease={pace.lease_s:g}s",
        f"--out={record}",
        str(folder / "hosts.ini"),
        "demo",
    ]
    words = ["--resume", str(record)] if (record / "fleet.json").exists() else options
    with (folder / "controllers.txt").open("ab") as said:
        argv = [sys.executable, "-P", "-m", "partywall", "fleet", "run", *words]
        return subprocess.Popen(
            argv, stdout=said, stderr=said, env=os.environ | behind.env | {"PYTHONPATH": str(SOURCE)}
        )


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
