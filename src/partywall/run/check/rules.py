"""Checks across keys, which the format alone cannot express. Pure; the host is not read.

Each check yields mistakes with their key paths. `check` combines them, and tries every combination of the factors'
levels: a level is wrong if the resulting scenario is.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from pydantic import ValidationError

from partywall import units
from partywall.agent.catalogue import Catalogue, Role
from partywall.agent.metric import MetricError, reader
from partywall.agent.requests import requests_of
from partywall.core.document.decode import Path
from partywall.core.document.explain import Mistake, did_you_mean, explain
from partywall.load.document import Load
from partywall.run.document import factors
from partywall.run.document.scenario import SWITCH_AFTER_NS, Aggressor, Goal, Passing, Scenario, Victim
from partywall.run.plan.pace import SLOT_SLICES, BlockKind, Forecast, forecast, needed_ns, shares, treatments
from partywall.run.values.plan import meet
from partywall.sandbox.addresses import ADDRESSES, wrong_address
from partywall.sandbox.backends import BACKENDS, LIVE_DISK, SETTINGS
from partywall.sandbox.document import Disk, Sandbox
from partywall.values import Level

Kind = Literal["victims", "aggressors"]

TRIALS_MAX = 1000
TREATMENTS_MAX = 200
RESERVED = ("baseline", "null", "none")
# What is on or off.
UNGRADED = {"load": "virtual users", "migration": "a migration"}
THRESHOLDS = ("isolation_factor", "latency_impact_p99", "latency_p99", "efficiency")

# Why a setting alone gives no efficiency.
NO_PROMISE = {
    "cpu_limit": "a constant cpu_limit leaves no unlimited baseline for comparison",
    "cpu_reservation": "a cpu_reservation needs aggressors, and there are none",
    "cpu_weight": "a cpu_weight is relative to other users of the CPU, and guarantees no share",
}
FILE_NAME = re.compile(r"[A-Za-z0-9._+-]{1,255}")
# The agent's own name on a machine that is reached by ssh, and a folder of each file system that is made for a guest.
FILES_TAKEN = ("agent", "lost+found")
MACHINE_DISK = ("cache", "size", "device")


def check(scenario: Scenario, catalogue: Catalogue) -> list[Mistake]:
    """All mistakes of a scenario that has the right form."""
    varied, mistakes = usable_factors(scenario)
    too_many = list(_too_many(scenario, varied))
    mistakes += too_many
    mistakes += check_parts(scenario, catalogue) if too_many else _every_combination(scenario, varied, catalogue)
    mistakes += [] if too_many else _held_by_nothing(scenario.model_copy(update={"factors": varied}), catalogue)
    mistakes += _timing(scenario)
    if not mistakes:
        mistakes += _budget(scenario, catalogue)
    return mistakes


def check_parts(scenario: Scenario, catalogue: Catalogue) -> list[Mistake]:
    """Checks victims, aggressors and goals as they are, without factors."""
    return [
        *_names(scenario),
        *(m for name, victim in scenario.victims.items() for m in _victim(name, victim, catalogue)),
        *(m for name, aggressor in scenario.aggressors.items() for m in _aggressor(name, aggressor, catalogue)),
        *_together(scenario),
        *_reservations(scenario),
        *_devices(scenario),
        *_domains_twice(scenario),
        *(m for index, goal in enumerate(scenario.goals) for m in _goal(index, goal, scenario)),
    ]


# Victims and aggressors


def _victim(name: str, victim: Victim, catalogue: Catalogue) -> Iterator[Mistake]:
    at = ("victims", name)
    yield from _source(at, victim, victim.probe, "probe", catalogue)
    if victim.command is not None and victim.metric is None:
        message = "a measured command needs a metric, to read its progress while it runs"
        yield Mistake((*at, "metric"), message, "add metric: with regex, json or csv_column; see docs/scenario.md")
    if victim.sandbox.cpus in ("same", "next"):
        message = f"a victim's cpus cannot be {victim.sandbox.cpus!r}, which is relative to the victim"
        yield Mistake((*at, "sandbox", "cpus"), message, "give auto or a list such as 0,2-3")
    yield from _sandbox((*at, "sandbox"), victim.sandbox)


def _aggressor(name: str, aggressor: Aggressor, catalogue: Catalogue) -> Iterator[Mistake]:
    at = ("aggressors", name)
    yield from _source(at, aggressor, aggressor.stressor, "stressor", catalogue)
    twice = [value for value, count in Counter(aggressor.intensity).items() if count > 1]
    if twice:
        yield Mistake((*at, "intensity"), f"the intensity {twice[0]:g} is given twice", "give each once")
    if aggressor.stressor is None and aggressor.intensity != (1.0,):
        what = next((text for key, text in UNGRADED.items() if getattr(aggressor, key) is not None), "a command")
        message = f"{what} can only be switched on and off, so the only intensity is 1"
        remedy = "leave intensity out, and vary its own settings in aggressors of their own"
        yield Mistake((*at, "intensity"), message, remedy)
    yield from _sandbox((*at, "sandbox"), aggressor.sandbox)


def _source(
    at: Path, work: Victim | Aggressor, kernel: str | None, role: Role, catalogue: Catalogue
) -> Iterator[Mistake]:
    migration = work.migration if isinstance(work, Aggressor) else None
    sources = {role: kernel, "command": work.command, "load": work.load, "migration": migration}
    given = [key for key, value in sources.items() if value is not None]
    if len(given) != 1:
        remedy = f"give exactly one: {role}: a built-in kernel, command: [program, arguments], load: a URL or plan"
        remedy += ", or migration" if isinstance(work, Aggressor) else ""
        said = f"both {given[0]} and {given[1]} are given" if given else f"neither {role} nor command is given"
        yield Mistake(at, said, remedy)
        return
    if work.command is None:
        yield from _only_for_commands(at, work)
    if kernel is not None:
        yield from _kernel(at, work, kernel, role, catalogue)
    elif work.load is not None:
        yield from _load(at, work, work.load, role)
    elif migration is not None:
        yield from _migration(at, work, migration)
    else:
        yield from _command(at, work, role)


def _only_for_commands(at: Path, work: Victim | Aggressor) -> Iterator[Mistake]:
    for key in ("files", "version"):
        if getattr(work, key):
            yield Mistake((*at, key), f"{key} belong{'s' * (key == 'version')} to a command", "leave it out")


def _load(at: Path, work: Victim | Aggressor, load: Load, role: Role) -> Iterator[Mistake]:
    here = (*at, "load")
    if (load.url is None) == (load.plan is None):
        said = "both url and plan are given" if load.url is not None else "neither url nor plan is given"
        yield Mistake(here, said, "give one: url: the URL of all requests, or plan: the file of a load plan")
    if load.plan is not None and (given := [k for k in ("users", "rate", "think") if k in load.model_fields_set]):
        yield Mistake((*here, given[0]), f"{given[0]} is part of the plan", "move it to the plan")
    if load.program is not None:
        yield Mistake((*here, "program"), "the program is made when the run is planned", "give url or plan")
    if work.metric is not None:
        yield Mistake((*at, "metric"), "virtual users count their own responses", "leave metric out")
    if work.params:
        yield Mistake((*at, "params"), "params are for built-in kernels", f"put them into the plan, or give {role}")
    if work.sandbox.backend == "qemu" and work.sandbox.network != "user":
        message = "virtual users in a guest need a network that leads to the host"
        remedy = "add sandbox.network: user, and address the host's services at 10.0.2.2; or use backend: container"
        yield Mistake((*at, "sandbox", "network"), message, remedy)
    if work.sandbox.backend == "libvirt" and work.sandbox.domain is None:
        message = "a domain that is made for the run has no network"
        yield Mistake((*at, "sandbox", "domain"), message, "name your own domain, or use backend: qemu with network")


def _migration(at: Path, work: Victim | Aggressor, migration: Passing) -> Iterator[Mistake]:
    if migration.resent >= 1:
        dirty = f"dirty: {units.format_bytes(migration.dirty or 0)}/s"
        message = f"{dirty} is not less than what a link of {units.format_bit_rate(migration.rate)} carries"
        yield Mistake((*at, "migration", "dirty"), message, "lower dirty or raise rate, so that the migration ends")
    for key in ("params", "threads", "env", "metric"):
        if getattr(work, key) != type(work).model_fields[key].get_default(call_default_factory=True):
            yield Mistake((*at, key), f"a migration has no {key}", "leave it out, and set the keys below migration")
    if work.sandbox.backend != "process":
        message = f"a migration cannot run in the {work.sandbox.backend} backend, because it uses this host's QEMU"
        yield Mistake((*at, "sandbox", "backend"), message, "use backend: process")


def _kernel(at: Path, work: Victim | Aggressor, kernel: str, role: Role, catalogue: Catalogue) -> Iterator[Mistake]:
    if work.metric is not None:
        yield Mistake(
            (*at, "metric"), "a metric belongs to a command; a kernel counts its own work", "leave metric out"
        )
    info = catalogue.kernel(kernel)
    if info is None:
        remedy = did_you_mean(kernel, _offered(catalogue, role))
        yield Mistake((*at, role), f"no kernel is called {kernel[:60]!r}", remedy)
        return
    if kernel == "null":
        yield Mistake((*at, role), "null is always measured, as the A/A check", "leave this out")
    elif not info.can_be(role):
        yield Mistake((*at, role), f"{kernel} cannot be a {role}", did_you_mean("", _offered(catalogue, role)))
        return
    if work.params.get("to") == "peer" and work.sandbox.network is None:
        message = "the sandbox has no network on which a peer could be reached"
        remedy = "add sandbox: {backend: qemu, network: bridge}, or give the address and port of your own peer"
        yield Mistake((*at, "params", "to"), message, remedy)
    for key, message, remedy in catalogue.check_params(kernel, work.params):
        yield Mistake((*at, "params", *key.split(".")) if key else (*at, "params"), message, remedy)


def _offered(catalogue: Catalogue, role: Role) -> tuple[str, ...]:
    return tuple(name for name in catalogue.names(role) if name != "null")


def _command(at: Path, work: Victim | Aggressor, role: Role) -> Iterator[Mistake]:
    command = work.command or ()
    if not command or not command[0].strip():
        yield Mistake((*at, "command"), "the command is empty", "give a list: [program, arguments]")
    for key in work.env:
        if not key or "=" in key:
            yield Mistake(
                (*at, "env", key), f"{key[:60]!r} cannot be the name of a variable", "use letters, digits and '_'"
            )
    for key in ("params", "threads"):
        if getattr(work, key) != type(work).model_fields[key].get_default(call_default_factory=True):
            message = f"{key} are for built-in kernels; a command has arguments"
            yield Mistake((*at, key), message, f"put them into command, or give {role} instead of command")
    if work.sandbox.backend == "qemu" and work.sandbox.root is None:
        message = "a guest without a root image contains only the agent and no programs"
        remedy = f"add sandbox.root: [PACKAGE…] with the packages that contain {command[0] if command else 'it'!r}"
        yield Mistake((*at, "command"), message, remedy)
    if work.sandbox.backend == "libvirt" and work.sandbox.domain is None:
        message = "a domain that is made for the run holds the agent and no programs"
        yield Mistake(
            (*at, "command"), message, "name your own domain in sandbox.domain, or use backend: qemu with root"
        )
    if work.version is not None and not (work.version and work.version[0].strip()):
        remedy = "give a list such as [./bench, --version], or leave it out"
        yield Mistake((*at, "version"), "the command that prints the version is empty", remedy)
    yield from _files((*at, "files"), work)
    yield from _programs(at, work)
    if work.metric is not None:
        yield from _metric((*at, "metric"), work)


def _files(at: Path, work: Victim | Aggressor) -> Iterator[Mistake]:
    """What is wrong with its own files, as far as the scenario says. The files themselves are not read here."""
    if work.files and work.sandbox.domain is not None and work.sandbox.host is None:
        message = f"files cannot be copied into domain {work.sandbox.domain[:60]} through its port"
        yield Mistake(
            at, message, "add sandbox.host, so that the domain is reached by ssh, or copy them there yourself"
        )
    seen: dict[str, int] = {}
    for index, file in enumerate(work.files):
        here = (*at, index)
        if not file.source.strip():
            yield Mistake((*here, "from"), "the path is empty", "give the path of a file, relative to the scenario")
            continue
        name = file.name
        if not FILE_NAME.fullmatch(name) or name in (".", ".."):
            message = f"{name[:60]!r} is not the name of a file in the command's working directory"
            remedy = "give to: a name of letters, digits and . _ + -, without folders, for example to: input.bin"
            yield Mistake((*here, "to") if file.to is not None else here, message, remedy)
        elif name in FILES_TAKEN:
            yield Mistake(here, f"the name {name!r} is taken in some sandboxes", "give another name with to:")
        elif name in seen:
            message = f"{name!r} is the name of files[{seen[name]}] too, and one copy would replace the other"
            yield Mistake(here, message, "give one of them another name with to:")
        seen.setdefault(name, index)


def _programs(at: Path, work: Victim | Aggressor) -> Iterator[Mistake]:
    """Programs that a sandbox would not find: its working directory contains nothing but the workload's files."""
    if work.sandbox.domain is not None and work.sandbox.host is None:
        return
    names = {file.name for file in work.files}
    for key, argv in (("command", work.command), ("version", work.version)):
        program = argv[0] if argv else ""
        if program in names:
            message = f"{program!r} is searched for on the PATH, and not among the workload's files"
            yield Mistake((*at, key), message, f"write ./{program}, or give the file another name with to:")
        elif "/" in program and not program.startswith("/") and program.removeprefix("./") not in names:
            message = f"{program[:60]!r} is not in the command's working directory, which contains the workload's files"
            yield Mistake((*at, key), message, "add it to files and write ./NAME, or give its absolute path")


def _metric(at: Path, work: Victim | Aggressor) -> Iterator[Mistake]:
    if work.metric is None:
        return
    try:
        reader(work.metric)
    except MetricError as error:
        yield Mistake((*at, error.key) if error.key else at, str(error), error.remedy)


# Sandboxes


def _sandbox(at: Path, sandbox: Sandbox) -> Iterator[Mistake]:
    yield from _cpus((*at, "cpus"), sandbox.cpus)
    for setting in SETTINGS:
        if getattr(sandbox, setting) is not None and setting not in BACKENDS[sandbox.backend].settings:
            able = " or ".join(name for name, backend in BACKENDS.items() if setting in backend.settings)
            yield Mistake((*at, setting), f"the {sandbox.backend} backend cannot do {setting}", f"use backend: {able}")
    yield from _disk_settings((*at, "disk"), sandbox)
    yield from _place_elsewhere(at, sandbox)
    if sandbox.host_cpus is not None:
        yield from _listed((*at, "host_cpus"), sandbox.host_cpus, units.parse_cpus)
    if sandbox.memory_nodes is not None:
        yield from _listed((*at, "memory_nodes"), sandbox.memory_nodes, units.parse_nodes)
    if (
        sandbox.cpu_limit is not None
        and sandbox.cpu_reservation is not None
        and sandbox.cpu_reservation > sandbox.cpu_limit
    ):
        message = f"cpu_reservation {sandbox.cpu_reservation:g} is more than cpu_limit {sandbox.cpu_limit:g} allows"
        yield Mistake((*at, "cpu_reservation"), message, "raise cpu_limit or lower cpu_reservation")
    if sandbox.memory == 0:
        yield Mistake((*at, "memory"), "no sandbox runs in 0 bytes of memory", "leave memory out for no ceiling")
    if sandbox.disk is not None and not sandbox.disk.model_fields_set:
        yield Mistake(
            (*at, "disk"), "disk is empty", "give read_bps, write_bps, read_iops or write_iops, or leave it out"
        )


def _place_elsewhere(at: Path, sandbox: Sandbox) -> Iterator[Mistake]:
    """Keys that say where a sandbox is, if it is not on this host."""
    if sandbox.backend == "ssh" and sandbox.host is None:
        remedy = "add host: a Host of ~/.ssh/config, user@name or ssh://user@name:port"
        yield Mistake((*at, "host"), "the ssh backend needs to know which machine", remedy)
    for key, example in ADDRESSES.items():
        value = getattr(sandbox, key)
        if value is not None and wrong_address(value):
            yield Mistake((*at, key), f"{key} cannot be {value[:60]!r}", f"write for example {example}")
    if sandbox.boot is not None and not sandbox.boot.startswith("/"):
        yield Mistake((*at, "boot"), f"boot {sandbox.boot[:60]!r} is not an absolute path", "begin with /")
    if sandbox.backend == "libvirt":
        yield from _domain(at, sandbox)
        yield from _daemon(at, sandbox)


def _domain(at: Path, sandbox: Sandbox) -> Iterator[Mistake]:
    """A user's own domain has fixed settings; one created by Partywall has no address."""
    if sandbox.domain is None:
        if sandbox.host is not None:
            yield Mistake((*at, "host"), "a domain that is made for the run has no address", "name your own in domain:")
        if sandbox.root is not None:
            message = "a domain that is made for the run boots the agent alone, without packages"
            yield Mistake((*at, "root"), message, "leave it out, name your own domain, or use backend: qemu")
        return
    for key in ("vcpus", "accel", "boot", "memory_nodes"):
        if getattr(sandbox, key) is not None:
            message = f"{key} is for domains that are made for a run, and {sandbox.domain} exists already"
            yield Mistake((*at, key), message, "leave it out")
    made = [key for key in MACHINE_DISK if sandbox.disk is not None and getattr(sandbox.disk, key) is not None]
    if made:
        message = f"disk.{made[0]} is for disks that are made for a run, and {sandbox.domain} has its own"
        yield Mistake((*at, "disk"), message, "leave it out")


def _daemon(at: Path, sandbox: Sandbox) -> Iterator[Mistake]:
    """What a daemon cannot do, according to its URI."""
    uri = urlsplit(sandbox.uri or "")
    if uri.scheme and uri.scheme.partition("+")[0] not in ("qemu", "xen"):
        remedy = did_you_mean(uri.scheme, ("qemu", "xen"), "write for example qemu:///system or xen:///system")
        yield Mistake((*at, "uri"), f"libvirt's driver {uri.scheme[:60]!r} is not one of qemu and xen", remedy)
    if uri.scheme.startswith("qemu") and uri.path not in ("/system", "/session", "/embed"):
        message = f"libvirt knows no {sandbox.uri}"
        right = [f"{uri.scheme}://{uri.netloc}{path}" for path in ("/system", "/session")]
        yield Mistake((*at, "uri"), message, did_you_mean(sandbox.uri or "", right))
    if uri.scheme.startswith("xen") and sandbox.memory_nodes is not None:
        message = "libvirt cannot bind a domain's memory to NUMA nodes under Xen"
        yield Mistake((*at, "memory_nodes"), message, "leave it out, or use a daemon of QEMU's")
    if uri.path == "/session":
        for key in ("cpu_limit", "cpu_weight", "cpu_reservation"):
            if getattr(sandbox, key) is not None:
                message = f"libvirt has no {key} for domains of {sandbox.uri}, whose daemon is without root"
                yield Mistake((*at, key), message, "use qemu:///system, or leave it out")
    if uri.scheme.startswith("xen") and sandbox.domain is not None and sandbox.cpus not in ("auto", "same", "next"):
        message = f"libvirt cannot pin {sandbox.domain}, which runs under Xen already"
        yield Mistake((*at, "cpus"), message, "pin it with xl vcpu-pin, and leave cpus out")


def _cpus(at: Path, cpus: str) -> Iterator[Mistake]:
    words = ("auto", "same", "next")
    if cpus in words:
        return
    if cpus[:1].isalpha():
        yield Mistake(
            at,
            f"cpus cannot be {cpus[:60]!r}",
            did_you_mean(cpus, words, "give auto, same, next or a list such as 0,2-3"),
        )
        return
    yield from _listed(at, cpus, units.parse_cpus)


def _listed(at: Path, numbers: str, parse: Callable[[str], object]) -> Iterator[Mistake]:
    try:
        parse(numbers)
    except ValueError as error:
        message, _, remedy = str(error).partition("; ")
        yield Mistake(at, message, remedy)


def _disk_settings(at: Path, sandbox: Sandbox) -> Iterator[Mistake]:
    given = [key for key in MACHINE_DISK if sandbox.disk is not None and getattr(sandbox.disk, key) is not None]
    if given and sandbox.backend == "container":
        yield Mistake((*at, given[0]), f"the container backend cannot do disk.{given[0]}", "use backend: qemu")
    if sandbox.disk is not None:
        yield from _device(at, sandbox, sandbox.disk)
        yield from _unlimitable(at, sandbox)


def _device(at: Path, sandbox: Sandbox, disk: Disk) -> Iterator[Mistake]:
    """A device as the disk of a guest created for the run."""
    if disk.device is None:
        if disk.overwrite:
            yield Mistake((*at, "overwrite"), "overwrite needs a device", "leave it out")
        return
    if not disk.device.startswith("/dev/"):
        message = f"device {disk.device[:60]!r} is not the path of a device"
        yield Mistake((*at, "device"), message, "write for example /dev/sdb")
    if sandbox.backend == "libvirt" and sandbox.domain is None:
        yield Mistake((*at, "device"), "the libvirt backend cannot do disk.device", "use backend: qemu")
    if disk.size is not None:
        yield Mistake((*at, "size"), f"the size of the disk is that of {disk.device}", "leave size out")


def _unlimitable(at: Path, sandbox: Sandbox) -> Iterator[Mistake]:
    """Disks of libvirt domains that cannot be limited, or do not exist."""
    if sandbox.backend != "libvirt":
        return
    if sandbox.throttle is not None and urlsplit(sandbox.uri or "").scheme.startswith("xen"):
        yield Mistake(at, "Xen cannot limit a disk", "leave the limits out, or use a daemon of QEMU's")
    elif sandbox.domain is None and sandbox.machine:
        yield Mistake(at, f"a domain made on {sandbox.machine} has no disk", "leave disk out, or name your own domain")


def _held_by_nothing(scenario: Scenario, catalogue: Catalogue) -> list[Mistake]:
    """Switched disk limits for a victim that does not use a disk, or not in that direction."""
    live, _ = factors.split(scenario)
    mistakes: list[Mistake] = []
    for name, _, applied in factors.trials(scenario):
        for path in factors.concerning(applied, live, name):
            ats = [at for at in factors.targets(applied, path) if at[:2] == ("victims", name)]
            keys = [at[4] for at in ats if at[3] == "disk"]
            mistakes += _without_effect(("factors", path), applied.victims[name], keys, catalogue) if keys else []
    return list(dict.fromkeys(mistakes))


def _without_effect(at: Path, victim: Victim, keys: list[str], catalogue: Catalogue) -> Iterator[Mistake]:
    if victim.command is not None or (victim.probe is not None and catalogue.kernel(victim.probe) is None):
        return
    asks = requests_of(victim.probe, victim.params, victim.threads, catalogue)
    what = victim.probe or "virtual users"
    if asks is None:
        message = f"{what} does not use a disk, so {' and '.join(keys)} would have no effect"
        yield Mistake(at, message, "vary it for a victim that does, such as disk-direct-read, or leave it out")
    elif not any(map(asks.is_held_by, keys)):
        message = f"{what} only {asks.direction}s, so {' and '.join(keys)} would have no effect"
        yield Mistake(at, message, f"use {asks.direction}_bps or {asks.direction}_iops")


def _devices(scenario: Scenario) -> Iterator[Mistake]:
    """Each device can be the disk of only one sandbox of a trial."""
    for at, first, sandbox in _twice(scenario, lambda box: box.disk and box.disk.device):
        device = sandbox.disk.device if sandbox.disk else None
        message = f"{device} is already the disk of {first}, which runs at the same time"
        yield Mistake((*at, "disk", "device"), message, "give each a device of its own, or a file")


def _domains_twice(scenario: Scenario) -> Iterator[Mistake]:
    """Each domain can be only one sandbox of a trial, because its settings and its agent's port exist once."""

    def resource_of(box: Sandbox) -> tuple[str | None, str] | None:
        return (box.uri, box.domain) if box.backend == "libvirt" and box.domain is not None else None

    for at, first, sandbox in _twice(scenario, resource_of):
        message = f"domain {sandbox.domain} is already the sandbox of {first}, which runs at the same time"
        remedy = "name another, or use backend: ssh for both, which does not change the domain"
        yield Mistake((*at, "domain"), message, remedy)


def _twice(scenario: Scenario, resource_of: Callable[[Sandbox], object]) -> Iterator[tuple[Path, str, Sandbox]]:
    """(path, other user, sandbox) of sandboxes that request the same thing as another of their trial.

    Victims are never in the same trial. resource_of: returns the requested thing, or None.
    """
    taken: dict[object, str] = {}
    everyone = [("aggressors", name, a.sandbox) for name, a in scenario.aggressors.items()]
    everyone += [("victims", name, v.sandbox) for name, v in scenario.victims.items()]
    for kind, name, sandbox in everyone:
        thing = resource_of(sandbox)
        if thing is None:
            continue
        if thing in taken:
            yield (kind, name, "sandbox"), taken[thing], sandbox
        elif kind == "aggressors":
            taken[thing] = f"{kind}.{name}"


def _reservations(scenario: Scenario) -> Iterator[Mistake]:
    """Reservations on one CPU must fit it. All aggressors of a trial exist beside its victim."""
    for victim_name, victim in scenario.victims.items():
        own = _places(victim.sandbox.cpus, None)
        promised: Counter[str] = Counter(dict.fromkeys(own, victim.sandbox.cpu_reservation or 0.0))
        last: dict[str, Path] = dict.fromkeys(own, ("victims", victim_name))
        for name, aggressor in scenario.aggressors.items():
            for place in _places(aggressor.sandbox.cpus, own):
                promised[place] += aggressor.sandbox.cpu_reservation or 0.0  # type: ignore[assignment]
                last[place] = ("aggressors", name) if aggressor.sandbox.cpu_reservation else last.get(place, ())
        for place, share in promised.items():
            if share > 1 + 1e-9:
                message = (
                    f"reservations on {place} beside the victim {victim_name!r} add up to {share:g}, more than it has"
                )
                yield Mistake(
                    (*last[place], "sandbox", "cpu_reservation"), message, "lower them until they add up to at most 1"
                )
                break


def _places(cpus: str, victim: frozenset[str] | None) -> frozenset[str]:
    """CPUs as far as the file determines them: numbers if given, or else their relation to the victim's."""
    if cpus == "same" or (cpus == "auto" and victim is None):
        return victim if victim is not None else frozenset({"the victim's CPU"})
    if cpus in ("auto", "next"):
        return frozenset({"the next CPU"})
    try:
        return frozenset(f"CPU {cpu}" for cpu in units.parse_cpus(cpus))
    except ValueError:  # reported by _cpus
        return frozenset()


# Goals


def _goal(index: int, goal: Goal, scenario: Scenario) -> Iterator[Mistake]:
    at = ("goals", index)
    patterns: tuple[tuple[str, str, Kind], ...] = (
        ("victim", goal.victim, "victims"),
        ("aggressor", goal.aggressor, "aggressors"),
    )
    for key, pattern, kind in patterns:
        names = tuple(getattr(scenario, kind))
        if pattern != "*" and not fnmatch.filter(names, pattern):
            yield Mistake((*at, key), f"no {key} is called {pattern[:60]!r}", did_you_mean(pattern, names))
    given = [key for key in THRESHOLDS if getattr(goal, key) is not None]
    if len(given) != 1:
        said = f"a goal cannot have {' and '.join(given)} together" if given else "a goal needs a threshold"
        yield Mistake(at, said, f"give exactly one of {', '.join(THRESHOLDS)}; write a goal for each")
    elif given[0].startswith("latency") and not scenario.aggressors:
        yield Mistake(at, f"a goal for {given[0]} needs aggressors, and there are none", "add aggressors")
    if goal.efficiency is not None:
        yield from _efficiency((*at, "efficiency"), goal, goal.efficiency, scenario)


def _efficiency(at: Path, goal: Goal, bounds: tuple[float, float], scenario: Scenario) -> Iterator[Mistake]:
    low, high = bounds
    if not (0 <= low < high and math.isfinite(high)):
        yield Mistake(
            at, f"efficiency [{low:g}, {high:g}] is not a range", "give the lower bound first, for example [0.9, 1.1]"
        )
    named = fnmatch.filter(scenario.victims, goal.victim)
    if not named or any(_is_promised(scenario, name) for name in named):
        return
    said = {key: text for key, text in NO_PROMISE.items() if any(_has(scenario, name, key) for name in named)}
    why = next(iter(said.values()), "no victim has a limit")
    message = f"efficiency is the share of its promised capacity that a limited sandbox got, but {why}"
    live = f"factors: {{victims.{named[0]}.sandbox.cpu_limit: [25%, 50%]}}"
    able = " or ".join(name for name, backend in BACKENDS.items() if "cpu_limit" in backend.live)
    remedy = f"switch the limit by slot, with {live} and backend {able}"
    remedy += "; or promise the victim a cpu_reservation, without cpu_limit, beside aggressors"
    yield Mistake(at, message, remedy)


def _is_promised(scenario: Scenario, name: str) -> bool:
    """True if some cell of this victim has an efficiency, see `partywall.run.findings.effects.promise_of`."""
    sandbox = scenario.victims[name].sandbox
    reserved = sandbox.cpu_reservation is not None and sandbox.cpu_limit is None and bool(scenario.aggressors)
    return reserved or any(_is_switched(scenario, name, key) for key in ("cpu_limit", *LIVE_DISK))


def _has(scenario: Scenario, name: str, key: str) -> bool:
    return getattr(scenario.victims[name].sandbox, key) is not None or _is_switched(scenario, name, key)


def _is_switched(scenario: Scenario, name: str, key: str) -> bool:
    try:
        live, _ = factors.split(scenario)
        return any(("victims", name, "sandbox", *key.split(".")) in factors.targets(scenario, path) for path in live)
    except factors.FactorError:  # reported by usable_factors
        return True


def _together(scenario: Scenario) -> Iterator[Mistake]:
    for name, aggressor in scenario.aggressors.items():
        for index, other in enumerate(aggressor.together):
            at: Path = ("aggressors", name, "together", index)
            if other == name:
                yield Mistake(at, f"{name!r} is listed together with itself", "name others, or leave it out")
            elif other not in scenario.aggressors:
                names = tuple(pressing for pressing in scenario.aggressors if pressing != name)
                remedy = did_you_mean(other, names, f"known: {', '.join(names) or 'no others'}")
                yield Mistake(at, f"there is no {other!r} among the aggressors", remedy)
            elif other in aggressor.together[:index]:
                yield Mistake(at, f"{other!r} is named twice", "name each once")


# Names


def _names(scenario: Scenario) -> Iterator[Mistake]:
    kinds: tuple[Kind, ...] = ("victims", "aggressors")
    for kind in kinds:
        seen: dict[str, str] = {}
        for name in getattr(scenario, kind):
            plain = name.casefold()
            if plain in seen:
                yield Mistake(
                    (kind, name), f"{name!r} and {seen[plain]!r} differ only in case", "give them different names"
                )
            seen[plain] = name
            letters = "".join(char for char in plain if char.isalnum())
            alike = next((word for word in RESERVED if letters.rstrip("s") == word), None)
            if alike:
                yield Mistake(
                    (kind, name), f"the name {name!r} is too similar to the reserved {alike!r}", "choose another name"
                )


# Factors


def usable_factors(scenario: Scenario) -> tuple[dict[str, tuple[Level, ...]], list[Mistake]]:
    """The applicable factors and levels, and the mistakes in the others."""
    usable: dict[str, tuple[Level, ...]] = {}
    problems: list[Mistake] = []
    claimed: dict[factors.At, str] = {}
    for path, levels in scenario.factors.items():
        try:
            ats = factors.targets(scenario, path)
        except factors.FactorError as error:
            remedy = did_you_mean(path.split(".")[-1], error.near, error.remedy) if error.near else error.remedy
            problems.append(Mistake(("factors", path), str(error), remedy))
            continue
        rival = next((claimed[at] for at in ats if at in claimed), None)
        claimed |= dict.fromkeys(ats, path)
        mistakes = [
            *_levels(path, levels, rival),
            *(m for i, level in enumerate(levels) for m in _level(scenario, path, i, level)),
        ]
        problems += mistakes
        spoiled = {mistake.path[2] for mistake in mistakes if len(mistake.path) > 2}
        kept = tuple(level for index, level in enumerate(levels) if index not in spoiled)
        if kept and rival is None:
            usable[path] = kept
    return usable, problems


def _levels(path: str, levels: tuple[Level, ...], rival: str | None) -> Iterator[Mistake]:
    if not levels:
        yield Mistake(("factors", path), "a factor needs levels", "give a list, for example [0.25, 0.5, 1]")
    seen: set[tuple[type, Level]] = set()
    for index, level in enumerate(levels):
        if (type(level), level) in seen:
            yield Mistake(("factors", path, index), f"the level {level!r} is given twice", "give each once")
        seen.add((type(level), level))
    if rival is not None:
        yield Mistake(("factors", path), f"{rival!r} varies the same setting", "keep one of the two")


def _level(scenario: Scenario, path: str, index: int, level: Level) -> Iterator[Mistake]:
    try:
        factors.apply(scenario, path, level)
    except ValidationError as error:
        first = explain(error, level, form=Scenario)[0]
        key = path.rpartition(".")[2]
        yield Mistake(("factors", path, index), first.message.replace("the file", key, 1), first.remedy)


def _too_many(scenario: Scenario, varied: dict[str, tuple[Level, ...]]) -> Iterator[Mistake]:
    combined = math.prod(len(levels) for levels in varied.values())
    if combined * len(scenario.victims) > TRIALS_MAX:
        message = (
            f"{len(scenario.victims)} victims × {combined} combinations of levels are more than {TRIALS_MAX} trials"
        )
        yield Mistake(("factors",), message, "give fewer factors or levels, or split the scenario")
    treatments = _treatment_count(scenario, varied)
    if treatments > TREATMENTS_MAX:
        message = f"{treatments} treatments in a block are more than {TREATMENTS_MAX}"
        yield Mistake(("aggressors",), message, "give fewer aggressors or intensities, or split the scenario")


def _every_combination(scenario: Scenario, varied: dict[str, tuple[Level, ...]], catalogue: Catalogue) -> list[Mistake]:
    """Mistakes under each combination of levels. Those that only some levels cause are attributed to these levels."""
    where: dict[Mistake, list[factors.Levels]] = {}
    combined = list(factors.combinations(varied))
    for levels in combined:
        applied = scenario
        for path, level in levels.items():
            applied = factors.apply(applied, path, level)
        for mistake in check_parts(applied, catalogue):
            where.setdefault(mistake, []).append(levels)
    mistakes = [_blame(scenario, mistake, levels, len(combined)) for mistake, levels in where.items()]
    return list({(mistake.path, mistake.message): mistake for mistake in mistakes}.values())


def _blame(scenario: Scenario, mistake: Mistake, where: list[factors.Levels], combined: int) -> Mistake:
    reaching = [path for path in where[0] if any(_touches(mistake.path, at) for at in factors.targets(scenario, path))]
    if len(where) == combined and not reaching:
        return mistake
    common = [
        path
        for path in where[0]
        if len({repr(levels[path]) for levels in where}) == 1 and len(scenario.factors[path]) > 1
    ]
    path = next(iter([p for p in reaching if p in common] or reaching or common), None)
    if path is None:
        return mistake
    index = scenario.factors[path].index(where[0][path])
    return Mistake(
        ("factors", path, index),
        f"at this level, {'.'.join(map(str, mistake.path))}: {mistake.message}",
        mistake.remedy,
    )


def _touches(mistake: Path, at: factors.At) -> bool:
    """True if a mistake concerns the key that a factor sets, or a group of keys that contains it."""
    return mistake == at or (mistake[2:] == ("sandbox", "disk") and mistake == at[:4])


# Time


def _timing(scenario: Scenario) -> Iterator[Mistake]:
    timing = scenario.timing
    slot, slot_max, slice_ = map(units.format_duration, (timing.slot, timing.slot_max, timing.slice))
    # The default adapts to longer slices.
    if timing.slot < SLOT_SLICES * timing.slice and "slot" in timing.model_fields_set:
        message = f"a slot of {slot} holds fewer than two slices of {slice_}"
        yield Mistake(
            ("timing", "slot"),
            message,
            "lengthen the slot or shorten the slice; its halves are compared with each other",
        )
    if timing.guard < SWITCH_AFTER_NS:
        least = units.format_duration(SWITCH_AFTER_NS)
        message = f"guard {units.format_duration(timing.guard)} is too short, because neighbours are switched within it"
        yield Mistake(("timing", "guard"), message, f"give at least {least}")
    if timing.slot_max < timing.slot:
        message = f"slot_max {slot_max} is shorter than slot {slot}"
        yield Mistake(("timing", "slot_max"), message, "raise slot_max or shorten slot")


def _treatment_count(scenario: Scenario, varied: factors.Factors) -> int:
    """Most treatments in a block: baseline, null, each aggressor at each intensity, repeated under each live limit."""
    pressed = sum(len(aggressor.intensity) for aggressor in scenario.aggressors.values())
    live = list(factors.split(scenario.model_copy(update={"factors": varied}))[0])
    most = max((_live_count(scenario, varied, live, victim) for victim in scenario.victims), default=0)
    return 2 + pressed + most * (1 + pressed)


def _live_count(scenario: Scenario, varied: factors.Factors, live: list[str], victim: str) -> int:
    levels = factors.concerning(scenario, {path: varied[path] for path in live}, victim)
    return math.prod(len(values) for values in levels.values()) if levels else 0


@dataclass(frozen=True)
class Expected:
    """The expected content of a victim's trials, according to the file: treatments, blocks, and time in ns."""

    victim: str
    treatments: int
    blocks: Forecast
    share_ns: int


def expected(scenario: Scenario, catalogue: Catalogue) -> list[Expected]:
    """Expected content by trial. The plan knows the host's CPUs, and may find more sharing and longer blocks."""
    forecasts = _forecasts(scenario, catalogue)
    parts = shares(scenario.budget, needed_ns([blocks for _, _, blocks in forecasts], scenario.min_blocks))
    return [Expected(*forecast, share_ns) for forecast, share_ns in zip(forecasts, parts, strict=True)]


def _forecasts(scenario: Scenario, catalogue: Catalogue) -> list[tuple[str, int, Forecast]]:
    """For each trial: its victim, the number of treatments, and its blocks."""
    live, _ = factors.split(scenario)
    forecasts = []
    for name, _, applied in factors.trials(scenario):
        concerned = factors.concerning(applied, live, name)
        victim = applied.victims[name]
        held = tuple(treatments(applied, victim, concerned, catalogue, _sharing(applied, victim)))
        forecasts.append((name, len(held), forecast(held, scenario.timing)))
    return forecasts


def _sharing(scenario: Scenario, victim: Victim) -> frozenset[str]:
    """The aggressors on the victim's own CPU, according to the file. On the host there may be more."""
    own = _places(victim.sandbox.cpus, None)
    return frozenset(
        name
        for name, aggressor in scenario.aggressors.items()
        if meet(victim.sandbox, own, aggressor.sandbox, _places(aggressor.sandbox.cpus, own))
    )


def _budget(scenario: Scenario, catalogue: Catalogue) -> Iterator[Mistake]:
    forecasts = _forecasts(scenario, catalogue)
    needed = needed_ns([forecast for _, _, forecast in forecasts], scenario.min_blocks)
    if sum(needed) <= scenario.budget:
        return
    what = "the trial" if len(forecasts) == 1 else f"each of the {len(forecasts)} trials"
    dearest = max(range(len(forecasts)), key=needed.__getitem__)
    name, count, blocks = forecasts[dearest]
    slowest = max(blocks.judging, key=blocks.took_ns.__getitem__)
    message = (
        f"a budget of {units.format_duration(scenario.budget)} cannot hold {scenario.min_blocks} blocks of {what}: "
        f"that takes at least {units.format_duration(sum(needed))}. With {count} treatments, a {slowest} block of "
        f"victim {name!r} takes {units.format_duration(blocks.took_ns[slowest])}"
    )
    message += ", and as much time goes to its quick treatments" if slowest is BlockKind.SLOW else ""
    less = "fewer victims, aggressors, intensities or levels, or a smaller min_blocks"
    less += ", or a shorter timing.slot" if "slot" in scenario.timing.model_fields_set else ""
    remedy = f"give budget: {math.ceil(sum(needed) / 1e9)}s or more, or {less}"
    yield Mistake(("budget",), message, remedy)
