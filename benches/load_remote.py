"""Generators on other machines: whether what they measure together is what the service did.

Three network namespaces on a bridge stand for machines: one has the service, two have an sshd each, and clocks an hour
and two hours ahead of this host's. One controller places a generator on both by ssh, and their histograms are merged.
The service is the one of load_truth.py, with known delays and a log of its own.

- Percentiles of both generators together against the service's log, at a rate (open model) and with a number of users
  (closed model). Every request on the log is counted, and each generator sent its part.
- Second by second, the merged records agree with the log: responses that ended in a second, on one clock.
- Everything on one machine is killed during a load: the load ends with one error that names the generator and its
  machine.
- Nothing is left on any machine, once the killed one was connected to again.

The log counts until the last byte was written, the generators until they read it: on a loaded host these differ. Loads
with doubtful seconds are repeated, and that is said.

Bar: percentiles within 1 % of the log's; no request missing; at a rate, parts of 49 to 51 %; seconds agree within 1 %
of the responses; the loss is reported; nothing is left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from common import arguments, conclude
from generators import Loaded, load
from load_truth import SECOND, TRIES, Log, Server, Span, compared, server, timing
from partywall.errors import PartywallError
from partywall.load.prepared import PreparedLoad, Setup
from partywall.load.quick import Quick, program
from partywall.model.load_plan import Generator
from partywall.sandbox import reap
from partywall.sandbox.ssh import survey

NAMES = ("service", "east", "west")
AHEAD_S = {"east": 3600, "west": 7200}
USERS, RATE = 60, 300
BAR = 0.01
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


@dataclass(frozen=True)
class Machines:
    """Namespaces on one bridge, each with an address, and the client's configuration that leads to their sshd."""

    folder: Path
    prefix: str

    def space(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    @staticmethod
    def address(name: str) -> str:
        return f"10.88.0.{NAMES.index(name) + 1}"

    def within(self, name: str) -> list[str]:
        return ["ip", "netns", "exec", self.space(name)]

    @property
    def client(self) -> str:
        """For $PARTYWALL_SSH."""
        return f"ssh -F {self.folder / 'ssh.conf'}"

    @property
    def work_root(self) -> Path:
        """The folder below which every agent there makes its own."""
        return self.folder / "work"

    def build(self) -> None:
        switch = self.space("switch")
        run("ip", "netns", "add", switch)
        run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "br0", "up")
        for name in NAMES:
            space = self.space(name)
            run("ip", "netns", "add", space)
            run("ip", "link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", name, "netns", switch)
            run("ip", "-n", switch, "link", "set", name, "up", "master", "br0")
            run("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            for port in ("eth0", "lo"):
                run("ip", "-n", space, "link", "set", port, "up")
        self.work_root.mkdir()
        self._write_configurations()

    def _write_configurations(self) -> None:
        for key in ("host", "user"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key))
        Path("/run/sshd").mkdir(exist_ok=True)
        (self.folder / "sshd.conf").write_text(
            f"HostKey {self.folder}/host\nPidFile none\nAuthorizedKeysFile {self.folder}/user.pub\nStrictModes no\n"
            "UsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
        )
        key = (self.folder / "host.pub").read_text()
        (self.folder / "known").write_text("".join(f"{name} {key}" for name in AHEAD_S))
        # Each connection has an sshd of its own, which is in the machine's network and time.
        hosts = [
            f"Host {name}\n  IdentityFile {self.folder}/user\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.folder}/known\n  GlobalKnownHostsFile none\n"
            f"  ProxyCommand ip netns exec {self.space(name)} unshare --time --monotonic {ahead} --fork --kill-child "
            f"{SSHD} -i -f {self.folder}/sshd.conf\n"
            for name, ahead in AHEAD_S.items()
        ]
        (self.folder / "ssh.conf").write_text("".join(hosts))

    def remove(self) -> None:
        for name in (*NAMES, "switch"):
            subprocess.run(["ip", "netns", "del", self.space(name)], check=False, capture_output=True)

    def left(self) -> list[str]:
        """What loads have left on the machines. Agents end a moment after their connection."""
        deadline = time.monotonic() + 20
        while True:
            pids = [pid for name in AHEAD_S for pid in run("ip", "netns", "pids", self.space(name)).split()]
            left = [*(f"process {pid}" for pid in pids), *map(str, self.work_root.iterdir())]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.1)


def run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def machines() -> Iterator[Machines]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        made = Machines(Path(folder), f"pwr{os.getpid()}")
        try:
            made.build()
            os.environ["PARTYWALL_SSH"] = made.client
            yield made
        finally:
            made.remove()


def setup(made: Machines) -> Setup:
    there = {name: Generator(host=name) for name in AHEAD_S}
    return Setup(name="remote", cpus=(), work_root=made.work_root, generators=there)


def ask(made: Machines, url: str, seconds: float, rate: float | None) -> tuple[Loaded, Span]:
    """A load without doubtful seconds, if the host has one, and when it was."""
    quick = Quick(url=url, for_ns=int(seconds * SECOND), users=USERS, rate=rate, timeout_ns=5 * SECOND)
    for _ in range(TRIES):
        begin_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        loaded = load(program(quick), setup(made))
        span = begin_ns, time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        doubtful = loaded.summary.seconds - loaded.summary.good
        if not doubtful:
            break
        reasons = ", ".join(loaded.summary.doubtful)
        print(f"{url}: {doubtful} doubtful seconds of {loaded.summary.seconds} ({reasons})", flush=True)
    return loaded, span


def of_span(log: Log, path: str, span: Span) -> list[tuple[int, int]]:
    """(when it ended, how long it took) of each request on the log."""
    return [(at_ns + took, took) for at_ns, took, _ in log[path] if span[0] <= at_ns <= span[1]]


def parts(loaded: Loaded) -> dict[str, int]:
    """Requests that each generator sent."""
    sent = dict.fromkeys(AHEAD_S, 0)
    for second in loaded.seconds:
        for name, part in second.parts.items():
            sent[name] += part.requests
    return sent


def strayed(loaded: Loaded, ended: Sequence[tuple[int, int]]) -> float:
    """Responses that were counted in another second than on the log, as a share of all."""
    apart, counted_all, logged_all = 0, 0, 0
    for second in loaded.seconds:
        counted_all += sum(second.statuses.values())
        logged_all += sum(second.start_ns <= at < second.end_ns for at, _ in ended)
        # A response that one clock reports late moves over a second's end: the sums up to there differ by as many.
        apart = max(apart, abs(counted_all - logged_all))
    return apart / max(1, counted_all)


def loss(made: Machines, there: Server) -> str:
    """The message of a load that loses the connection to a generator in its third second."""
    quick = Quick(url=f"{there.url}/fixed", for_ns=60 * SECOND, users=10)
    with PreparedLoad(program(quick), setup(made)) as session:
        killer = threading.Timer(3, _kill_ssh, (made, "west"))
        killer.start()
        try:
            for _ in session.run():
                pass
        except PartywallError as error:
            return str(error)
        finally:
            killer.join()
    return ""


def _kill_ssh(made: Machines, name: str) -> None:
    """Kills what is in a machine, as its crash would."""
    for pid in run("ip", "netns", "pids", made.space(name)).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def main() -> None:
    plants = {
        "log": "the service logs 5 % less than each request took",
        "clock": "the service logs every request 0.2 s later than it was",
    }
    options = arguments(__doc__ or "", plants=plants)
    seconds = 4 if options.quick else 16
    reap()
    with machines() as made, server(made.address("service"), made.within("service")) as there:
        loads = {
            ("/fixed", "open"): ask(made, f"{there.url}/fixed", seconds, RATE),
            ("/bimodal", "open"): ask(made, f"{there.url}/bimodal", seconds, RATE),
            ("/slow", "closed"): ask(made, f"{there.url}/slow", seconds, None),
        }
        said = loss(made, there)
        print(f"a generator's machine dies: {said or 'NOTHING is said'}")
        survey("west", str(made.work_root), ())
        left = made.left()
        log = there.log()
    if options.plant == "log":
        log = {path: [(at, round(took * 0.95), what) for at, took, what in rows] for path, rows in log.items()}
    elif options.plant == "clock":
        log = {path: [(at + SECOND // 5, took, what) for at, took, what in rows] for path, rows in log.items()}
    worst, moved, lowest = 0.0, 0.0, 1.0
    for (path, model), (loaded, span) in loads.items():
        ended = of_span(log, path, span)
        worst = max(worst, compared(path, timing(loaded).raw, sorted(took for _, took in ended)))
        sent, stray = parts(loaded), strayed(loaded, ended)
        moved = max(moved, stray)
        if model == "open":
            lowest = min(lowest, min(sent.values()) / max(1, sum(sent.values())))
        print(f"{path:9} {model}: sent {sent}; {stray:.2%} of responses in another second than on the log", flush=True)
    reported = "west" in said and "ended" in said
    figure = (
        f"merged percentiles within {worst:.2%} of the log's, seconds within {moved:.2%}; "
        f"the smaller part {lowest:.1%}; "
        f"a lost generator {'is reported' if reported else 'is NOT reported'}; "
        f"{'nothing is' if not left else f'{left} IS'} left"
    )
    met = worst <= BAR and moved <= BAR and lowest >= 0.49 and reported and not left
    conclude("load-remote", figure, met=met)


if __name__ == "__main__":
    main()
