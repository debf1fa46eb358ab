"""The sandboxes of one turn: created, filled with workloads, calibrated, and always removed."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from partywall.agent import memory, memory_check
from partywall.agent.calibration import Calibration, calibrate
from partywall.agent.catalogue import shipped
from partywall.agent.memory_check import Checks
from partywall.errors import AgentError, RefusalError, TrialError
from partywall.events import silent
from partywall.run.document.scenario import Aggressor, Workload
from partywall.run.plan.pace import NULL
from partywall.run.plan.settings import MONITOR, kernel_of, monitor_of, settings_of
from partywall.run.values.evidence import VICTIM
from partywall.run.values.plan import Trial
from partywall.sandbox import Sandbox
from partywall.sandbox.peer import PEER
from partywall.session import Session

CALIBRATION_NS = 150_000_000
# A disk kernel writes its file before it starts, which may take minutes on a slow disk.
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 5.0
WARM_UP_NS = 500_000_000
PASSING = "partywall.migrate.measure.passing"
"""The program of a passing migration, by the name of its module: this stage does not use it."""
PASSING_START_S = 60.0
VERSION = "version"
"""The workload that prints the version of a command. It has ended before the command starts."""
VERSION_S = 10.0
VERSION_MAX = 200
VERSION_REMEDY = "correct version, or leave it out"
TAKE_S = 0.1

UNREAD = {
    "what": "counters of the host",
    "cost": "likely causes are not known, and other load there is not detected",
    "remedy": "run partywall on that host itself",
}


@dataclass
class Stage:
    """The workloads of one turn, in the sandboxes of a session."""

    trial: Trial
    session: Session
    calibrations: dict[str, Calibration] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    counters: list[dict[str, Any]] = field(default_factory=list)
    missing: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def rate_max(self) -> dict[str, float]:
        """Work per second of each aggressor at full intensity. A migration has a link of a known rate."""
        links = {name: a.migration.bytes_per_s for name, a in self.trial.aggressors.items() if a.migration is not None}
        return {name: calibration.rate for name, calibration in self.calibrations.items()} | links

    @property
    def disturbed(self) -> dict[str, str]:
        """Aggressors whose calibration was disturbed, and how."""
        return {name: calibration.warning for name, calibration in self.calibrations.items() if calibration.warning}

    def schedule(self, name: str, switches: list[tuple[int, float]]) -> None:
        """Sends an aggressor its switch times and intensities."""
        moments = [{"at_ns": at_ns, "intensity": intensity} for at_ns, intensity in switches]
        self.session.client(name).call("workload.schedule", id=name, switches=moments)

    def finish(self) -> dict[str, Any]:
        """Stops the workloads. Returns each kernel's final facts by name, from agents that still answer."""
        facts = {}
        for name in self.facts:
            with contextlib.suppress(AgentError, TrialError):
                facts[name] = self.session.client(name).call("workload.stop", timeout_s=STOP_TIMEOUT_S, id=name)[
                    "facts"
                ]
        return facts

    @property
    def emulated(self) -> list[str]:
        """Sandboxes with an emulated processor, according to their agents."""
        clients = {name: sandbox.client for name, sandbox in self.session.sandboxes.items() if name != MONITOR}
        return [name for name, client in clients.items() if client and client.hello.get("emulated")]

    def explain(self, name: str, reason: str) -> TrialError:
        """The error for a workload that has ended."""
        return TrialError(
            f"{self.trial.victim_name}: {_role(name)} ended during the trial: {self.session.reason_gone(name, reason)}"
        )


def _role(name: str) -> str:
    return "the victim" if name == VICTIM else f"aggressor {name}"


@contextlib.contextmanager
def staged(
    trial: Trial,
    session: Session,
    *,
    slice_ns: int,
    seed: int,
    host_cpus: tuple[int, ...],
    checks: Checks | None = None,
) -> Iterator[Stage]:
    """Creates the sandboxes of `trial` in a session and starts their workloads. Ends the session on leaving.

    checks: of the guests' memory; by default they wait as long as usual and tell nobody.
    """
    with session:
        stage = Stage(trial, session)
        _fill(stage, slice_ns, seed, host_cpus, checks or Checks(silent))
        yield stage


def _fill(stage: Stage, slice_ns: int, seed: int, host_cpus: tuple[int, ...], checks: Checks) -> None:
    trial = stage.trial
    workloads: dict[str, Workload] = {**trial.aggressors, VICTIM: trial.victim}
    monitor = monitor_of(trial, host_cpus)
    everyone = [*settings_of(trial, host_cpus), *([monitor] if monitor else [])]
    stage.session.add(*everyone)
    for name, workload in workloads.items():
        _check_guest_memory(stage, name, workload, checks)
    for name in [NULL, *trial.aggressors]:
        work = {"kernel": {"name": NULL}} if name == NULL else work_of(workloads[name], trial.aggressors[name].stressor)
        _begin(stage, name, work, workloads.get(name), "scheduled", slice_ns, seed)
        if "kernel" in work:
            stage.calibrations[name] = _calibrated(stage, name)
        elif name != NULL and trial.aggressors[name].migration is not None:
            _await_migration(stage, name)
    _begin(stage, VICTIM, work_of(trial.victim, trial.victim.probe), trial.victim, "flat_out", slice_ns, seed)
    _watch(stage)


def _check_guest_memory(stage: Stage, name: str, workload: Workload, checks: Checks) -> None:
    """Touches and times as much memory inside a guest as its kernel will use (VITS, section 4.1).

    The host's check does not see what a balloon or a hypervisor on another machine withholds. A bad result does not
    end the turn: the report names it, as it names counters that could not be read.
    """
    needed = memory.held_bytes(kernel_of(workload), workload.params, workload.threads, shipped(), {})
    if not workload.sandbox.virtual or needed < memory_check.LEAST:
        return
    checked = checks.inside(stage.session.client(name), needed, "its workload", _role(name))
    if checked.why_unreliable:
        stage.missing.append(checked.gap)


def _begin(
    stage: Stage, name: str, work: dict[str, Any], workload: Workload | None, pace: str, slice_ns: int, seed: int
) -> None:
    sandbox = stage.session.sandboxes[name]
    threads = workload.threads if workload else 1
    request: dict[str, Any] = {
        "id": name,
        "work": work,
        "pace": pace,
        "threads": threads,
        "slice_ns": slice_ns,
        "work_dir": sandbox.work_dir,
        "seed": seed,
    }
    try:
        if workload is not None and workload.version is not None:
            stage.versions[name] = _version(stage, name, workload, workload.version)
        request["work"] = with_peer(work, sandbox)
        started = stage.session.client(name).call("workload.start", timeout_s=START_TIMEOUT_S, **request)
    except AgentError as error:
        raise _failed(stage, name, "could not start", error) from error
    stage.facts[name] = started["facts"]


def _version(stage: Stage, name: str, workload: Workload, argv: tuple[str, ...]) -> str:
    """The first line that the command's version prints in its sandbox. TrialError if it prints none in time."""
    client, lines, ended = stage.session.client(name), dict[str, str](), ""
    work = {"command": {"argv": list(argv), "env": workload.env}}
    what = f"the version of {_role(name)}, {' '.join(argv)}"
    try:
        client.call(
            "workload.start", id=VERSION, work=work, pace="flat_out", work_dir=stage.session.sandboxes[name].work_dir
        )
    except RefusalError as error:
        raise TrialError(
            f"{stage.trial.victim_name}: {what}: {error}; {VERSION_REMEDY}", is_lasting=error.is_lasting
        ) from error
    deadline = time.monotonic() + VERSION_S
    while "stdout" not in lines and not ended and time.monotonic() < deadline:
        ended = _lines_of_version(stage, name, TAKE_S, lines)
    with contextlib.suppress(RefusalError):
        client.call("workload.stop", timeout_s=STOP_TIMEOUT_S, id=VERSION)
    # All of its messages came before this answer. If it ended meanwhile, that is not the end of the trial's workload.
    ended = _lines_of_version(stage, name, 0, lines) or ended
    first = lines.get("stdout") or lines.get("stderr")
    if first is None:
        why = ended or f"it printed no line within {VERSION_S:g} s"
        raise TrialError(f"{stage.trial.victim_name}: {what}: {why}; {VERSION_REMEDY}", is_lasting=True)
    return first


def _lines_of_version(stage: Stage, name: str, timeout_s: float, lines: dict[str, str]) -> str:
    """Adds the first line of each stream to `lines`. Returns why the version has ended, if it has.

    TrialError if a workload has ended.
    """
    ended = ""
    for sender, method, params in stage.session.take(timeout_s):
        if (sender, params.get("id")) != (name, VERSION):
            if method in ("ended", "gone"):
                raise stage.explain(sender, params["reason"])
        elif method == "ended":
            ended = params["reason"]
        elif method == "output":
            for line in params["lines"]:
                if line["text"].strip():
                    lines.setdefault(line["stream"], line["text"].strip()[:VERSION_MAX])
    return ended


def _calibrated(stage: Stage, name: str) -> Calibration:
    """What an aggressor reaches at full intensity. TrialError if it has no rate."""
    settings = stage.session.sandboxes[name].settings
    limit = None if settings.cpu_limit is None else settings.cpu_limit * max(1, len(settings.cpus))
    try:
        return calibrate(stage.session.client(name), name, CALIBRATION_NS, limit)
    except AgentError as error:
        raise _failed(stage, name, "could not be calibrated", error) from error


def _await_migration(stage: Stage, name: str) -> None:
    """Lets a migration run until it is under way, so that no slot contains its set-up. Then it is off.

    TrialError if it ends before, or takes too long.
    """
    stage.schedule(name, [(time.monotonic_ns(), 1.0)])
    deadline = time.monotonic() + PASSING_START_S
    while not _has_reported(stage, name):
        if time.monotonic() > deadline:
            raise TrialError(f"{stage.trial.victim_name}: {_role(name)} did not start within {PASSING_START_S:g} s")
    stage.schedule(name, [(time.monotonic_ns(), 0.0)])


def _has_reported(stage: Stage, name: str) -> bool:
    """True if a program has printed something since the last call. TrialError if any workload has ended."""
    reported = False
    for sender, method, params in stage.session.take(TAKE_S):
        if method in ("ended", "gone"):
            raise stage.explain(sender, params["reason"])
        lines = params["lines"] if (sender, method) == (name, "output") else ()
        reported |= any(line["stream"] == "stdout" for line in lines)
    return reported


def _failed(stage: Stage, name: str, what: str, error: AgentError) -> TrialError:
    """The error for a workload that did not start. A lasting refusal would be repeated."""
    # An agent that answers has not ended.
    is_refusal = isinstance(error, RefusalError)
    why = str(error) if is_refusal else stage.session.sandboxes[name].reason_gone(str(error))
    is_lasting = isinstance(error, RefusalError) and error.is_lasting
    return TrialError(f"{stage.trial.victim_name}: {_role(name)} {what}: {why}", is_lasting=is_lasting)


def work_of(workload: Workload, kernel: str | None) -> dict[str, Any]:
    """A workload in the form for the agent."""
    if workload.command is not None:
        return {"command": {"argv": list(workload.command), "env": workload.env, "warm_up_ns": WARM_UP_NS}}
    if workload.load is not None:
        return {"load": workload.load.program}
    if isinstance(workload, Aggressor) and workload.migration is not None:
        # The same environment as ours, which may be installed anywhere.
        return {"command": {"argv": [sys.executable, "-m", PASSING, workload.migration.model_dump_json()]}}
    return {"kernel": {"name": kernel, "params": workload.params}}


def with_peer(work: dict[str, Any], sandbox: Sandbox) -> dict[str, Any]:
    """The work with the address of its peer, which is started here if the scenario does not provide one."""
    params = work.get("kernel", {}).get("params", {})
    if params.get("to") != PEER:
        return work
    address = sandbox.peer(work["kernel"]["name"], params)
    return {"kernel": work["kernel"] | {"params": params | {"to": address}}}


def _watch(stage: Stage) -> None:
    """Starts the monitor of the host, the victim's process and its cgroup."""
    victim = stage.session.sandboxes[VICTIM]
    if MONITOR not in stage.session.sandboxes:
        stage.missing += [UNREAD | {"why": f"no agent runs on {stage.trial.victim.sandbox.machine} itself"}]
        return
    targets: dict[str, Any] = {"cpus": _watched_cpus(stage.trial)}
    if victim.pid is not None:
        targets["pids"] = [victim.pid]
        if victim.cgroup_member:
            targets |= {"cgroups_of": {VICTIM: victim.cgroup_member}, "cgroups_below": victim.label.cgroup}
    header = stage.session.client(MONITOR).call("monitor.start", id=MONITOR, **targets)
    stage.counters = [_counter(info, victim.pid) for info in header["counters"]]
    stage.missing += header["missing"]


def _watched_cpus(trial: Trial) -> list[int]:
    """CPUs that sandboxes and the monitor use on the victim's machine."""
    machine = trial.victim.sandbox.machine
    beside = [trial.aggressor_cpus[name] for name, a in trial.aggressors.items() if a.sandbox.machine == machine]
    return sorted({*trial.victim_cpus, *trial.aside_cpus, *(cpu for cpus in beside for cpu in cpus)})


def _counter(info: dict[str, Any], victim_pid: int | None) -> dict[str, Any]:
    """A column of the monitor as evidence.

    The victim's process has a fixed name, because its number changes between turns.
    """
    subject = VICTIM if info["subject"] == str(victim_pid) else info["subject"]
    name = f"{subject}.{info['name']}" if subject else info["name"]
    return {"name": name, "unit": info["unit"], "kind": info["kind"], "resource": info["resource"]}
