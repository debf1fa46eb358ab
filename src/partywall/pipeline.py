"""The stages of the main job, each one function, in the order in which data flows through them.

check → plan → measure → analyse → report. Only `measure` touches the host beyond reading facts about it.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import functools
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import FrameType
from typing import Any

from partywall import __version__, stats, units
from partywall.agent import binary, memory
from partywall.agent.catalogue import Catalogue, shipped
from partywall.agent.client import AgentClient, start_agent
from partywall.errors import (
    AgentError,
    CapabilityError,
    Failures,
    PartywallError,
    Problem,
    TrialError,
    UsageError,
)
from partywall.load.lasting import lasting
from partywall.model import factors
from partywall.model.evidence import Evidence
from partywall.model.finding import Findings
from partywall.model.observation import Observation
from partywall.model.plan import Plan, Trial
from partywall.model.scenario import Scenario, Workload
from partywall.model.trace import Asked, ClockBound, Report, Start, TraceEvidence, merged
from partywall.pace import MACHINES
from partywall.plan import Topology
from partywall.plan import make as make_plan
from partywall.run import PILOTS, Decisions, Progress, execute, governor, idle
from partywall.sandbox import Label, Reaped, Settings, block, cgroups, libvirt, qemu, reap, reaper, ssh, switch
from partywall.sandbox.runtime import Runtime
from partywall.store import RunDirectory
from partywall.store import evidence as read_evidence
from partywall.store.trace import TraceDirectory
from partywall.trace import Session

# Disk kernels must meet a disk: /tmp is often memory.
WORK_ROOT = Path("/var/tmp")  # noqa: S108 - a folder of the run's own is made in it

MEMORY_LEAST = 64 << 20
# What a guest gets above its usual memory comes in such steps.
GUEST_STEP = 64 << 20
MEMORY_CHECK_NS = 10_000_000_000
MEMORY_DOUBTS = {
    "time_up": "there was no time to touch all of it twice",
    "major_faults": "pages had to be read back from a disk",
    "swapped": "the host wrote pages to swap meanwhile",
    "jump": "part of it was much slower to reach again than the rest",
    "not_resident": "all of it was slower to reach again than to get, as if a hypervisor took it away",
}
"""What the agent's memory check doubts, in words."""


def catalogue() -> Catalogue:
    """What the kernels of this version say of themselves."""
    return shipped()


@contextlib.contextmanager
def host_agent() -> Iterator[AgentClient]:
    """An agent on the host, outside any sandbox, for facts and checks."""
    process = start_agent([str(binary.find()), "serve", "--die-with-parent"])
    client = AgentClient("host", process, lambda _method, _params: None)
    try:
        client.greet()
        yield client
    finally:
        client.close()


def host_facts() -> dict[str, Any]:
    """What the agent can tell of this host, with the catalogue's entries by kernel."""
    with host_agent() as agent:
        facts = dict(agent.call("facts"))
    kernels = catalogue()
    facts["kernels"] = {name: info.model_dump() for name in kernels.names() if (info := kernels.kernel(name))}
    return facts


def machine_facts(scenario: Scenario, work_root: Path = WORK_ROOT) -> dict[str, dict[str, Any]]:
    """Facts about every other machine of a scenario, as its agent tells them, by the name it is reached by.

    CapabilityError, for all machines at once, if one cannot be reached or lacks a program that shall run there.
    """
    found: dict[str, dict[str, Any]] = {}
    failures: list[str] = []
    for (backend, machine), programs in _elsewhere(scenario).items():
        try:
            if backend == "ssh":
                found[machine] = ssh.survey(machine, str(work_root), sorted(programs))
            else:
                found[machine] = libvirt.survey(machine)
                failures += _unusable_domains(scenario, machine)
        except CapabilityError as error:
            failures.append(str(error))
    if failures:
        raise CapabilityError("\n".join(failures))
    return found


def _elsewhere(scenario: Scenario) -> dict[tuple[str, str], set[str]]:
    """The other machines of a scenario, by backend, with the programs that shall run on each."""
    found: dict[tuple[str, str], set[str]] = {}
    for _, _, applied in factors.trials(scenario):
        for workload in workloads(applied).values():
            if machine := workload.sandbox.machine:
                found.setdefault((workload.sandbox.backend, machine), set()).update((workload.command or ())[:1])
    return found


def topology(facts: dict[str, Any]) -> Topology:
    """CPUs that may be used, and what they share, from the facts of this host or of another machine."""
    allowed = tuple(sorted(facts.get("cpus_allowed") or os.sched_getaffinity(0)))
    cpu = facts.get("cpu", {})
    groups = [place["siblings"] for place in cpu.get("places", [])] + [
        cache["shared_by"] for cache in cpu.get("caches", [])
    ]
    return Topology(allowed, tuple(dict.fromkeys(tuple(group) for group in groups)))


def plan(scenario: Scenario, facts: dict[str, Any], seed: int | None = None, work_root: Path = WORK_ROOT) -> Plan:
    """What would be done on this host; UsageError or CapabilityError, for all reasons at once, if it cannot be."""
    failures, notes = Failures(), tuple[str, ...]()
    with failures.kept():
        check_host(scenario, work_root)
        scenario, notes = with_accelerators(scenario)
        notes += tuple(_roots_to_build(scenario))
    machines = facts.get("machines", {})
    elsewhere = {machine: topology(told) for machine, told in machines.items()}
    notes += tuple(f"CPUs of {machine} are its own: {_in_words(told)}" for machine, told in machines.items())
    with failures.kept():
        made = make_plan(scenario, topology(facts), catalogue(), seed, elsewhere)
        made = made.model_copy(update={"trials": tuple(with_room(with_rings(t, facts), facts) for t in made.trials)})
        with failures.kept():
            check_guest_memory(made)
        with failures.kept():
            check_kernels_memory(made, facts)
    failures.tell()
    return made.model_copy(update={"warnings": (*made.warnings, *notes)})


def _in_words(facts: dict[str, Any]) -> str:
    cpus = units.counted(len(facts["cpus_allowed"]), "CPU")
    return f"{cpus} ({facts['cpu'].get('model') or 'unknown model'}), Linux {facts['kernel'].get('release')}"


def with_loads(scenario: Scenario, folder: Path) -> Scenario:
    """The scenario with the programs of its virtual users, whose plans are found relative to `folder`.

    Raises UsageError with all that is wrong in any of the plans.
    """
    changed: dict[str, dict[str, Any]] = {"victims": dict(scenario.victims), "aggressors": dict(scenario.aggressors)}
    problems: list[Problem] = []
    for key, workload in workloads(scenario).items():
        kind, _, name = key.partition(".")
        if workload.load is None:
            continue
        try:
            program = lasting(workload.load, folder)
        except UsageError as error:
            problems += error.problems
            continue
        load = workload.load.model_copy(update={"program": program})
        changed[kind][name] = workload.model_copy(update={"load": load})
    if problems:
        raise UsageError(*problems)
    return scenario.model_copy(update=changed)


def backends(scenario: Scenario) -> dict[str, set[str]]:
    """Every backend that a sandbox is given, by the workload's key, the levels of factors among them."""
    everyone: dict[str, set[str]] = {key: {workload.sandbox.backend} for key, workload in workloads(scenario).items()}
    for path, levels in scenario.factors.items():
        if path.endswith("sandbox.backend"):
            for kind, name, *_ in factors.targets(scenario, path):
                everyone[f"{kind}.{name}"] = set(map(str, levels))
    return everyone


def _on_qemu_here(scenario: Scenario) -> list[str]:
    """Keys of workloads whose guest this host's QEMU carries, ours or a local libvirt's."""

    def by_libvirt(key: str) -> bool:
        sandbox = workloads(scenario)[key].sandbox
        return sandbox.domain is None and not sandbox.machine and (sandbox.uri or "qemu").startswith("qemu")

    used = backends(scenario).items()
    return [key for key, names in used if "qemu" in names or ("libvirt" in names and by_libvirt(key))]


def with_accelerators(scenario: Scenario) -> tuple[Scenario, tuple[str, ...]]:
    """The scenario with what `accel: auto` means on this host, and what there is to say about it."""
    guests = _on_qemu_here(scenario)
    if not guests:
        return scenario, ()
    asked = {key: workloads(scenario)[key].sandbox.accel or "auto" for key in guests}
    chosen: dict[str, qemu.Accelerator] = {}
    for name in dict.fromkeys(asked.values()):
        try:
            chosen[name] = choose_accelerator(name)
        except CapabilityError as error:
            keys = ", ".join(key for key, wanted in asked.items() if wanted == name)
            raise CapabilityError(f"{keys}: {error}") from error
    for key, name in asked.items():
        scenario = factors.apply(scenario, f"{key}.sandbox.accel", chosen[name].name)
    emulated = chosen.get("auto")
    notes = (f"guests are emulated (tcg): {emulated.why}",) if emulated and emulated.name == "tcg" else ()
    return scenario, notes


def tries_kvm(scenario: Scenario) -> bool:
    """Whether planning it will first see if KVM carries a guest, which takes up to `qemu.DEADLINE_S` seconds, once."""
    guests = _on_qemu_here(scenario)
    return any(workloads(scenario)[key].sandbox.accel != "tcg" for key in guests) and qemu.untried()


def choose_accelerator(asked: str) -> qemu.Accelerator:
    """What a guest gets here. The first time KVM is asked for, a guest is started on it, which takes some seconds."""
    return qemu.choose(asked, lambda: fails_to_come_up("kvm"))


def fails_to_come_up(accel: str, deadline_s: float = qemu.DEADLINE_S) -> str:
    """Why a guest on this accelerator does not say hello in time; empty if it does."""
    label = Label.create(f"vm-probe-{secrets.token_hex(4)}", WORK_ROOT)
    cpus = tuple(sorted(os.sched_getaffinity(0)))[:1]
    guest = qemu.Qemu(Settings(name="probe", backend="qemu", cpus=cpus, files=False, accel=accel), label)
    try:
        guest.start(lambda _method, _params: None, deadline_s)
    except TrialError as error:
        return str(error).partition("did not come up: ")[2].partition("; its console")[0].splitlines()[0]
    finally:
        guest.stop()
        reaper.clean(label)
    return ""


def _kernels(trial: Trial) -> Iterator[tuple[str, str | None, Workload]]:
    """(key, kernel, workload) of every workload of a trial."""
    yield f"victims.{trial.victim_name}", trial.victim.probe, trial.victim
    for name, aggressor in trial.aggressors.items():
        yield f"aggressors.{name}", aggressor.stressor, aggressor


def _caches(workload: Workload, facts: dict[str, Any]) -> dict[int, int]:
    """Of the machine that it, or its guest, runs on."""
    return memory.caches_of(facts.get("machines", {}).get(workload.sandbox.machine, facts))


def _held(trial: Trial, facts: dict[str, Any]) -> Iterator[tuple[str, Workload, int]]:
    """(key, workload, bytes its kernel holds) of every workload of a trial."""
    for key, kernel, workload in _kernels(trial):
        yield key, workload, memory.held_bytes(kernel, workload, catalogue(), _caches(workload, facts))


def check_kernels_memory(plan: Plan, facts: dict[str, Any]) -> None:
    """UsageError if a kernel holds more than its own sandbox may have."""
    if problems := list(dict.fromkeys(p for trial in plan.trials for p in _beyond_memory(trial, facts))):
        raise UsageError(*problems)


def _beyond_memory(trial: Trial, facts: dict[str, Any]) -> Iterator[Problem]:
    """Kernels that would be killed by the memory limit of their own sandbox."""
    for key, workload, held in _held(trial, facts):
        limit = workload.sandbox.memory
        beside = memory.AGENT_BYTES
        if workload.sandbox.guest:
            limit, beside = _least_memory(trial, key) or limit or qemu.MEMORY, beside + qemu.KERNEL_BYTES
        if limit is not None and held + beside > limit:
            needed = units.format_bytes(held + beside)
            yield Problem(
                f"its kernel and agent hold {needed}, and its sandbox may have {units.format_bytes(limit)}",
                f"give at least {needed}, or a smaller size in {key}.params",
                key=f"{key}.sandbox.memory",
            )


def _least_memory(trial: Trial, key: str) -> int | None:
    """The lowest level to which a victim's memory is switched; None if it is not."""
    limits = (treatment.victim_limits for treatment in trial.treatments if key.startswith("victims."))
    return min((limit.memory for limit in limits if limit is not None and limit.memory is not None), default=None)


def workloads(scenario: Scenario) -> dict[str, Workload]:
    """Every workload of a scenario by its key."""
    victims = {f"victims.{name}": victim for name, victim in scenario.victims.items()}
    return victims | {f"aggressors.{name}": aggressor for name, aggressor in scenario.aggressors.items()}


def try_here(scenario: Scenario) -> None:
    """Plans it for this host as far as that takes nothing of other machines; UsageError or CapabilityError."""
    if _elsewhere(scenario):
        check_host(scenario)
    else:
        plan(scenario, host_facts())


def check_host(scenario: Scenario, work_root: Path = WORK_ROOT) -> None:
    """CapabilityError, all at once, for what the scenario needs and this host or user lacks.

    work_root: where sandboxes keep their files.
    """
    everyone = workloads(scenario)
    missing = []
    if containers := [key for key, names in backends(scenario).items() if "container" in names]:
        if os.geteuid() != 0:
            missing.append(
                f"{', '.join(containers)}: backend: container needs root; run with sudo, or use backend: process"
            )
        else:
            try:
                Runtime.choose(Path("/"), cgroups.read(), prefer=os.environ.get("PARTYWALL_RUNTIME"))
            except CapabilityError as error:
                missing.append(str(error))
    if scenario.idle == "poll" and (why := idle.why_not()):
        missing.append(f"idle: idle CPUs cannot poll here: {why}; leave it out, and CPUs sleep as usual")
    missing += list(_lacking_for_disk_limits(scenario, work_root))
    missing += list(_lacking_for_guests(scenario))
    missing += list(_lacking_for_domains(scenario))
    used = backends(scenario)
    for key, workload in everyone.items():
        elsewhere = used[key] <= {"qemu", "libvirt"} or bool(workload.sandbox.machine)
        if workload.command and not elsewhere and not shutil.which(workload.command[0]):
            missing.append(
                f"{key}.command: {workload.command[0]!r} is not installed or not on the PATH; "
                "install it, or give its path"
            )
    if missing:
        raise CapabilityError("\n".join(missing))


def _lacking_for_disk_limits(scenario: Scenario, work_root: Path) -> Iterator[str]:
    """What keeps containers' disks from being limited, all the time or by slot; other backends bring their own."""
    held = [key for key in _disk_limited(scenario) if "container" in backends(scenario)[key]]
    if not held:
        return
    why = block.lacking(work_root)
    try:
        cgroups.read().folder("io", "/")
    except CapabilityError as error:
        why = str(error)
    if why:
        yield f"{', '.join(held)}: {why}"


def _disk_limited(scenario: Scenario) -> Iterator[str]:
    """Keys of the workloads whose disk is limited at some time."""
    varied = {at[:2] for path in scenario.factors for at in factors.targets(scenario, path) if at[3:4] == ("disk",)}
    for key, workload in workloads(scenario).items():
        if workload.sandbox.throttle is not None or tuple(key.split(".", 1)) in varied:
            yield key


def _lacking_for_guests(scenario: Scenario) -> Iterator[str]:
    """What keeps the scenario's guests from being started on this host."""
    if not any("qemu" in names for names in backends(scenario).values()):
        return
    for check in (qemu.version, qemu.GuestKernel.prepared):
        try:
            check()
        except CapabilityError as error:
            yield str(error)
    yield from _lacking_for_roots(scenario)
    yield from _lacking_devices(scenario)
    if any(workload.sandbox.network == "bridge" for workload in workloads(scenario).values()) and switch.lacking():
        yield switch.lacking()


def _lacking_devices(scenario: Scenario) -> Iterator[str]:
    """What keeps the host's devices from being guests' disks."""
    found: list[str] = []
    for _, _, applied in factors.trials(scenario):
        for key, workload in workloads(applied).items():
            asked = workload.sandbox.disk
            if asked is None or asked.device is None:
                continue
            if why := qemu.disk.unusable(Path(asked.device), overwrite=asked.overwrite):
                found.append(f"{key}.sandbox.disk.device: {why}")
    yield from dict.fromkeys(found)


def _rooted(scenario: Scenario) -> Iterator[tuple[str, Workload, tuple[str, ...]]]:
    """(key, workload, packages) of every workload whose guest has a root image."""
    for key, workload in workloads(scenario).items():
        if workload.sandbox.root is not None and "qemu" in backends(scenario)[key]:
            yield key, workload, workload.sandbox.root


def _lacking_for_roots(scenario: Scenario) -> Iterator[str]:
    """What keeps guests from holding the programs of their commands, as far as it can be told without building."""
    for key, workload, packages in _rooted(scenario):
        try:
            image = qemu.root.cached(qemu.root.Recipe.of(packages))
        except CapabilityError as error:
            yield f"{key}.sandbox.root: {error}"
            continue
        if image is None and (why := qemu.root.unbuildable(qemu.root.Recipe.of(packages))):
            yield f"{key}.sandbox.root: {why}"
        if image is not None and workload.command and not image.holds(workload.command[0]):
            yield _not_in_root(key, workload.command[0], packages)


def _not_in_root(key: str, program: str, packages: Sequence[str]) -> str:
    held = ", ".join(packages) or "no packages"
    return f"{key}.command: the guest's root ({held}) holds no {program!r}; add its package to {key}.sandbox.root"


def _roots_to_build(scenario: Scenario) -> Iterator[str]:
    """What is said of root images that a run will first have to build."""
    wanted: dict[tuple[str, ...], list[str]] = {}
    for key, _, packages in _rooted(scenario):
        if qemu.root.cached(qemu.root.Recipe.of(packages)) is None:
            wanted.setdefault(packages, []).append(key)
    for packages, keys in wanted.items():
        held = ", ".join(packages) or "no packages"
        yield f"the root image of {', '.join(keys)} ({held}) is built first, once: about a minute more"


def build_roots(scenario: Scenario, say: Callable[[str], None]) -> None:
    """Builds the root images that the scenario's guests need and that are not there yet.

    CapabilityError if one cannot be built, or holds no program of the name of its command.
    """
    for key, workload, packages in _rooted(scenario):
        prefix = f"building the root image of {key} ({', '.join(packages) or 'no packages'}), once: "
        image = qemu.root.build(qemu.root.Recipe.of(packages), functools.partial(_said, say, prefix))
        if workload.command and not image.holds(workload.command[0]):
            raise CapabilityError(_not_in_root(key, workload.command[0], packages))


def _said(say: Callable[[str], None], prefix: str, text: str) -> None:
    say(prefix + text)


def _lacking_for_domains(scenario: Scenario) -> Iterator[str]:
    """What keeps this host's libvirt from making the scenario's domains. Other hosts are asked what they are anyway."""
    here = [w.sandbox for w in workloads(scenario).values() if w.sandbox.backend == "libvirt" and not w.sandbox.machine]
    checks: list[Callable[[], object]] = [
        functools.partial(libvirt.reachable, uri) for uri in dict.fromkeys(sandbox.uri for sandbox in here)
    ]
    if any(sandbox.guest and sandbox.boot is None for sandbox in here):
        checks.append(qemu.GuestKernel.prepared)
    unreachable = []
    for check in checks:
        try:
            check()
        except CapabilityError as error:
            unreachable.append(str(error))
    yield from unreachable or _unusable_domains(scenario, "")


def _unusable_domains(scenario: Scenario, machine: str) -> Iterator[str]:
    """Domains of the user's on a machine that cannot be sandboxes. CapabilityError if its daemon does not answer."""
    asked: dict[tuple[str | None, str, bool], list[str]] = {}
    for _, _, applied in factors.trials(scenario):
        for key, workload in workloads(applied).items():
            box = workload.sandbox
            if box.backend == "libvirt" and box.domain is not None and box.machine == machine:
                keys = asked.setdefault((box.uri, box.domain, box.host is not None), [])
                keys += [key] if key not in keys else []
    for (uri, domain, by_ssh), keys in asked.items():
        if why := libvirt.unusable(uri, domain, by_ssh=by_ssh):
            yield f"{', '.join(keys)}: {why}"


def with_room(trial: Trial, facts: dict[str, Any]) -> Trial:
    """The trial with guests that have room for what their kernels of work hold, where no memory was asked for."""
    return _with(trial, {key: _with_room(workload, held) for key, workload, held in _held(trial, facts)})


def with_rings(trial: Trial, facts: dict[str, Any]) -> Trial:
    """The trial with rings in guests that are as large as on the host, whatever caches a guest's kernel sees."""
    changed = {
        key: workload.model_copy(
            update={"params": memory.sized(kernel, workload, catalogue(), _caches(workload, facts))}
        )
        for key, kernel, workload in _kernels(trial)
        if workload.sandbox.backend in MACHINES
    }
    return _with(trial, changed)


def _with(trial: Trial, workloads: Mapping[str, Workload]) -> Trial:
    """The trial with other workloads, by key."""
    aggressors = {name: workloads.get(f"aggressors.{name}", aggressor) for name, aggressor in trial.aggressors.items()}
    victim = workloads.get(f"victims.{trial.victim_name}", trial.victim)
    return trial.model_copy(update={"victim": victim, "aggressors": aggressors})


def _with_room(workload: Workload, held: int) -> Workload:
    needed = -(-(held + memory.AGENT_BYTES + qemu.KERNEL_BYTES) // GUEST_STEP) * GUEST_STEP
    if not workload.sandbox.guest or workload.sandbox.memory is not None or needed <= qemu.MEMORY:
        return workload
    return workload.model_copy(update={"sandbox": workload.sandbox.model_copy(update={"memory": needed})})


def check_guest_memory(plan: Plan) -> None:
    """CapabilityError if the guests of one trial would not fit into what this host, or our part of it, has left."""
    needed, there = max(map(guest_memory, plan.trials), default=0), available_memory()
    if needed > there:
        raise CapabilityError(
            f"the guests of one trial need {units.format_bytes(needed)} of memory, and {units.format_bytes(there)} are "
            "available; lower sandbox.memory, or list fewer aggressors"
        )


def guest_memory(trial: Trial) -> int:
    """Bytes that a trial's guests on this host have: its victim's, every aggressor's and the null one's."""
    own = [s.memory or qemu.MEMORY for s in trial.sandboxes if s.guest and not s.machine]
    return sum(own) + qemu.MEMORY if own else 0


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes that the kernel says can be had without swapping, and that our own cgroup's limits leave."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    left = cgroups.memory_left(cgroups.read(), Path("/proc/self/cgroup").read_text())
    return min(int(lines["MemAvailable"].split()[0]) * 1024, *([] if left is None else [left]))


def check_folder(work_root: Path) -> None:
    """UsageError if the files of disk kernels cannot be put there."""
    if not work_root.is_dir():
        what = "is no folder" if work_root.exists() else "there is no such folder"
    elif not os.access(work_root, os.W_OK | os.X_OK):
        what = "you may not write there"
    else:
        return
    raise UsageError(
        Problem(f"{work_root}: {what}", "give a folder of yours on the disk to be measured", key="--work-dir")
    )


def commands(scenario: Scenario) -> list[str]:
    """The commands that a scenario holds, as its user may want to read them."""
    used = backends(scenario)
    return [
        f"{key}.command, {_place(workload, used[key])}: {' '.join(workload.command)}"
        for key, workload in workloads(scenario).items()
        if workload.command
    ]


def _place(workload: Workload, used: AbstractSet[str]) -> str:
    """Where its command runs. used: the backends that its sandbox is given."""
    box = workload.sandbox
    places = {
        "process": "on this host",
        "container": "in a container on this host",
        "qemu": "in a guest",
        "ssh": f"on {box.host}",
        "libvirt": f"in domain {box.domain}",
    }
    return " or ".join(places[backend] for backend in places if backend in used)


def check_commands(scenario: Scenario, *, allowed: bool) -> None:
    """UsageError if the scenario holds commands and the user has not allowed them."""
    refuse_commands("scenario", [] if allowed else commands(scenario))


def refuse_commands(what: str, listed: Sequence[str]) -> None:
    """UsageError that shows the commands, if there are any."""
    if listed:
        listing = "\n".join(f"  {command}" for command in listed)
        raise UsageError(
            f"the {what} would run these commands:\n{listing}\nread them, and run again with --allow-commands"
        )


def new_run_name(scenario: Scenario) -> str:
    """Scenario, local time and a little chance: sorts by time, and never meets another."""
    now = datetime.datetime.now().astimezone()
    return f"{scenario.name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def measure(run: RunDirectory, progress: Progress, work_root: Path = WORK_ROOT) -> tuple[str, ...]:
    """Carries out what is left of a run's plan. Nothing of it is left on the host afterwards, however this ends.

    What could not be removed or put back all the same is noted and returned.
    """
    observations: Sequence[Observation] = read_evidence(run).observations if any(run.events("run_started")) else ()
    label = Label.create(f"{run.name}-{secrets.token_hex(2)}", work_root)
    with terminated_as_interrupt():
        try:
            with run.exclusive():
                build_roots(run.plan.scenario, progress.doing)
                check_memory(run, progress, work_root)
                with idle.polled() if run.plan.scenario.idle == "poll" else contextlib.nullcontext():
                    execute(run, label, decisions(run.plan), progress, observations)
        except OSError as error:
            raise PartywallError(_stopped_by(error, run)) from error
        finally:
            left = reaper.clean(label).left
            if left:
                progress.note(f"could not be removed or put back: {', '.join(left)}")
    return left


def _stopped_by(error: OSError, run: RunDirectory) -> str:
    """What the host refused, where, and how to go on; only a full disk is mended by making room."""
    first = "free some space, then " if error.errno in (errno.ENOSPC, errno.EDQUOT) else "once that is mended, "
    place = error.filename if error.filename is not None else run.path
    return f"{place}: {error.strerror or error}; {first}go on with: partywall run --resume {run.path}"


def check_memory(run: RunDirectory, progress: Progress, work_root: Path = WORK_ROOT) -> None:
    """Touches as much memory as the largest trial will use, and times it (VITS, section 4.1).

    CapabilityError if the host has not as much; a note, kept with the run, if it is not really there.
    """
    machines = run.host.get("machines", {})
    for machine in ("", *(name for name, told in machines.items() if told.get("agent", True))):
        _check_memory_of(machine, run, progress, work_root)


def _check_memory_of(machine: str, run: RunDirectory, progress: Progress, work_root: Path) -> None:
    needed = max(memory_needed(trial, run.host, machine) for trial in run.plan.trials)
    where = f" on {machine}" if machine else ""
    progress.doing(f"checking that {units.format_bytes(needed)} of memory are there{where}")
    with ssh.machine_agent(machine, str(work_root), run.name) if machine else host_agent() as agent:
        try:
            found = agent.call("memory.check", bytes=needed, budget_ns=MEMORY_CHECK_NS, timeout_s=60)
        except AgentError as error:
            remedy = f"then go on with: partywall run --resume {run.path}"
            raise CapabilityError(f"memory for the run's workloads{where}: {error}; {remedy}") from error
    run.append("memory_checked", bytes=needed, found=found, **({"machine": machine} if machine else {}))
    if found["doubt"] is not None:
        why = MEMORY_DOUBTS.get(found["doubt"], found["doubt"])
        progress.note(
            f"the {units.format_bytes(needed)} of memory asked for{where} may not really be there: {why}; memory and "
            "cache figures may be those of swap or of another guest's pressure. The run goes on"
        )


def memory_needed(trial: Trial, facts: dict[str, Any], machine: str = "") -> int:
    """Bytes that a trial's kernels and agents on a machine hold at the least, by their parameters.

    What commands hold is not known.
    """
    held = [held for _, workload, held in _held(trial, facts) if workload.sandbox.machine == machine]
    return MEMORY_LEAST + sum(held) + len(held) * memory.AGENT_BYTES


def check_disk(plan: Plan, work_root: Path) -> None:
    """CapabilityError if the files of disk kernels do not fit where they would be put."""
    needed = max(_files_of(trial) for trial in plan.trials)
    free = shutil.disk_usage(work_root).free
    if needed > free:
        raise CapabilityError(
            f"files of disk kernels: {units.format_bytes(needed)} are needed in {work_root} at a time, and "
            f"{units.format_bytes(free)} are free; give another --work-dir, or a smaller file_bytes"
        )


def _files_of(trial: Trial) -> int:
    kernels: list[tuple[str | None, Workload]] = [
        (trial.victim.probe, trial.victim),
        *((a.stressor, a) for a in trial.aggressors.values()),
    ]
    return sum(
        memory.file_bytes(kernel, workload, catalogue())
        for kernel, workload in kernels
        if not workload.sandbox.machine and not (workload.sandbox.disk and workload.sandbox.disk.device)
    )


def decisions(plan: Plan) -> Decisions:
    """Statistics' answers to what a run asks while it goes on."""

    def enough(trial: Trial, observations: Sequence[Observation]) -> tuple[bool, str]:
        precision = stats.enough(observations, trial.treatments, plan.scenario.precision, plan.scenario.min_blocks)
        if precision.half_width is None:
            return precision.reached, ""
        return (
            precision.reached,
            f"widest interval ±{precision.half_width:.1%} (asked ±{100 * plan.scenario.precision:g}%)",
        )

    def carries_over(trial: Trial, observations: Sequence[Observation]) -> bool:
        tests = stats.carry_over(observations, trial.treatments, looks=len(PILOTS))
        return any(test.present for test in tests.values())

    return Decisions(enough, carries_over)


@contextlib.contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP end a run as Ctrl-C does: sandboxes are taken down first."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def analyse(run: RunDirectory) -> tuple[Evidence, Findings]:
    """What a run found. Reads its directory only, so it can be done again at any time."""
    found = read_evidence(run)
    return found, stats.analyse(found)


def earlier_runs(reference: RunDirectory, apart_from: Sequence[Path] = ()) -> list[Findings]:
    """Findings of finished runs beside the reference that asked the same of the same host: they show how runs differ.

    A run whose findings were not written yet, or cannot be read, is passed over.
    """
    others = {path.resolve() for path in apart_from} | {reference.path.resolve()}
    found = []
    for file in sorted(reference.path.resolve().parent.glob("*/findings.json")):
        if file.parent not in others:
            with contextlib.suppress(PartywallError, ValueError, OSError):
                run = RunDirectory(file.parent)
                if run.ended and _same_kind(run, reference):
                    found.append(Findings.model_validate_json(file.read_text(encoding="utf-8")))
    return found


def _same_kind(run: RunDirectory, reference: RunDirectory) -> bool:
    """Whether scenario and host are the same in all that a figure depends on."""
    asked = [one.plan.scenario.model_dump(exclude={"description", "goals", "seed"}) for one in (run, reference)]
    return asked[0] == asked[1] and not stats.hosts_differ(run.host, reference.host)


def check_programs() -> None:
    """CapabilityError if this agent has no eBPF programs, which guard and trace need."""
    lacking = next((missing for missing in host_facts()["missing"] if missing["what"] == "eBPF programs"), None)
    if lacking is not None:
        raise CapabilityError(f"no eBPF programs: {lacking['why']}; {lacking['remedy']}")


def trace(
    asked: Asked,
    out: Path | None,
    duration_ns: int | None,
    report: Callable[[TraceEvidence, Report], None],
    tick: Callable[[int], None],
) -> TraceDirectory:
    """Traces until the time is up, or until Ctrl-C, and stores what is found. No hook is left, however this ends.

    report: told all that was found by now, and the last report; tick: told four times a second how long it has gone on.
    """
    with terminated_as_interrupt():
        return trace_while(asked, out, lambda session: _watch(session, duration_ns, tick), report)


def trace_while(
    asked: Asked,
    out: Path | None,
    happens: Callable[[Session], None],
    report: Callable[[TraceEvidence, Report], None] = lambda _whole, _last: None,
) -> TraceDirectory:
    """Traces while `happens` goes on, and stores what is found. No hook is left, however this ends."""
    now = datetime.datetime.now().astimezone()
    label = Label.create(f"trace-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}", WORK_ROOT)
    start = Start(
        asked=asked,
        started=now.isoformat(timespec="seconds"),
        wall_ns=time.time_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC),
        version=__version__,
    )
    log = _TraceLog(start, report)
    try:
        host = host_facts()
        with Session(asked, label, log.report, log.clock) as session:
            # Made only now, so that a trace that cannot start leaves no folder.
            log.open(TraceDirectory.create(out or Path("runs") / label.run, start, host), session.record_ns)
            happens(session)
            session.finish()
            return log.end()
    finally:
        reaper.clean(label)


class _TraceLog:
    """Stores what a trace tells, and keeps the sum of it for those who watch; that does not grow with time."""

    def __init__(self, start: Start, report: Callable[[TraceEvidence, Report], None]) -> None:
        self._start = start
        self._tell = report
        self._whole: Report | None = None
        self._directory: TraceDirectory | None = None
        self._clocks: list[ClockBound] = []

    def open(self, directory: TraceDirectory, record_ns: int | None) -> None:
        self._directory = directory
        directory.append("hooked", {"record_ns": record_ns})
        for bound in self._clocks:
            directory.append("clock", bound)

    def clock(self, bound: ClockBound) -> None:
        self._clocks.append(bound)
        del self._clocks[:-64]
        if self._directory:
            self._directory.append("clock", bound)

    def report(self, report: Report) -> None:
        if self._directory:
            self._directory.append("report", report)
        ways = tuple(way.model_copy(update={"packets": (), "slowest": ()}) for way in report.ways)
        bare = report.model_copy(update={"ways": ways, "flows": ()})
        self._whole = merged([self._whole, bare]) if self._whole else bare
        clocks = tuple(self._clocks)
        run = self._directory.name if self._directory else ""
        evidence = TraceEvidence(
            run=run,
            start=self._start,
            host={},
            reports=(self._whole,),
            clocks=clocks,
            record_ns=None,
            interrupted=False,
        )
        self._tell(evidence, report)

    def end(self) -> TraceDirectory:
        if self._directory is None:
            raise TrialError("the trace ended before it began")
        self._directory.append("ended", {})
        return self._directory


def _watch(session: Session, duration_ns: int | None, tick: Callable[[int], None]) -> None:
    """Until the time is up or Ctrl-C, which is how a trace without an end is ended."""
    begun = time.monotonic_ns()
    with contextlib.suppress(KeyboardInterrupt):
        while (spent := time.monotonic_ns() - begun) < (duration_ns or spent + 1):
            tick(spent)
            session.pump(0.25)


def clean_up(*, forget: bool = False) -> list[Reaped]:
    """Removes what dead runs left on this host. forget: also the memory of what can't be reached any more."""
    governor.put_back()
    return reap(forget=forget)
