"""The sandboxes that a trial's workloads are started in. Pure: a function of the trial."""

from __future__ import annotations

from dataclasses import replace

from partywall import units
from partywall.agent.catalogue import shipped
from partywall.run.document.scenario import Workload
from partywall.run.plan.pace import NULL
from partywall.run.values.evidence import VICTIM
from partywall.run.values.plan import Trial, null_cpus
from partywall.sandbox import Settings
from partywall.sandbox.weights import weights

MONITOR = "monitor"


def settings_of(trial: Trial, host_cpus: tuple[int, ...] = ()) -> list[Settings]:
    """Every sandbox of a trial. Weights are derived from reservations among those that may share a CPU.

    host_cpus: CPUs of guests' emulator threads, unless the scenario sets them.
    """
    everyone = {VICTIM: trial.victim.sandbox} | {name: a.sandbox for name, a in trial.aggressors.items()}
    weight = weights(everyone)
    settings_of_all = []
    for name, sandbox in everyone.items():
        workload: Workload = trial.victim if name == VICTIM else trial.aggressors[name]
        cpus = trial.victim_cpus if name == VICTIM else trial.aggressor_cpus[name]
        settings = Settings(
            name=name,
            backend=sandbox.backend,
            cpus=cpus,
            cpu_limit=sandbox.cpu_limit,
            cpu_weight=weight[name],
            memory=sandbox.memory,
            memory_nodes=units.parse_nodes(sandbox.memory_nodes) if sandbox.memory_nodes is not None else (),
            disk=sandbox.disk,
            disk_switched=name == VICTIM and switches_disk(trial),
            command=workload.command is not None,
            files=keeps_files(workload),
            vcpus=sandbox.vcpus,
            host_cpus=host_cpus if sandbox.host_cpus is None else units.parse_cpus(sandbox.host_cpus),
            # The accelerator of another host's libvirt is not known in advance.
            accel=sandbox.accel or ("auto" if sandbox.backend == "libvirt" else "tcg"),
            network="own" if workload.load is None else "host",
            root=sandbox.root if sandbox.backend == "qemu" else None,
            interface=sandbox.network,
            host=sandbox.host,
            uri=sandbox.uri,
            domain=sandbox.domain,
            boot=sandbox.boot,
            copies=workload.files,
        )
        settings_of_all.append(settings)
    like = next((s for s in settings_of_all if s.name != VICTIM), settings_of_all[0])
    return [*settings_of_all, _null(like, null_cpus(trial), host_cpus)]


def monitor_of(trial: Trial, host_cpus: tuple[int, ...]) -> Settings | None:
    """Where counters are read: on the machine that the victim shares with others, if an agent can run there."""
    victim = trial.victim.sandbox
    if victim.backend == "libvirt" and victim.machine:
        return None
    if victim.backend == "ssh":
        return Settings(name=MONITOR, backend="ssh", cpus=trial.aside_cpus, host=victim.host, only=("monitor",))
    return Settings(name=MONITOR, backend="process", cpus=host_cpus, only=("monitor",))


def _null(like: Settings, cpus: tuple[int, ...], host_cpus: tuple[int, ...]) -> Settings:
    """The null aggressor's sandbox, of the same kind as the first aggressor's.

    If that is a user's domain, it is a second agent there; if the domain has only one port, a process here.
    """
    plain = Settings(
        NULL,
        like.backend,
        cpus,
        files=False,
        host_cpus=host_cpus,
        accel=like.accel,
        memory_nodes=like.memory_nodes,
    )
    if like.domain is not None:
        backend = "process" if like.host is None else "ssh"
        return replace(plain, backend=backend, cpus=cpus if like.host is None else (), host=like.host)
    if like.backend == "libvirt":
        # Another host may not have more memory than its guests are known to have.
        return replace(plain, uri=like.uri, boot=like.boot, memory=like.memory)
    return replace(plain, host=like.host)


def switches_disk(trial: Trial) -> bool:
    """True if limits of the victim's disk are switched by slot."""
    return any(t.victim_limits is not None and t.victim_limits.disk is not None for t in trial.treatments)


def keeps_files(workload: Workload) -> bool:
    """True if it needs a disk. A command may; among kernels, only disk kernels do."""
    if workload.load is not None:
        return True
    name = kernel_of(workload)
    info = shipped().kernel(name) if name else None
    return info is None or info.resource == "disk"


def kernel_of(workload: Workload) -> str | None:
    """The kernel of a victim or an aggressor; None for a command or a load."""
    return getattr(workload, "probe", None) or getattr(workload, "stressor", None)
