"""Where each vif of a policy is on this host: namespace, interface and side. Reads the host, changes nothing."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from partywall.errors import CapabilityError, Problem, UsageError
from partywall.model.policy import Policy, Vif
from partywall.sandbox.label import state_root
from partywall.sandbox.vif import HostVif, find

NETNS = Path("/run/netns")


@dataclass(frozen=True)
class Found:
    """A vif's place. namespace: a file that stands for it; None for the host's own."""

    interface: str
    namespace: str | None
    inside: bool


def resolve(policy: Policy, netns: Path = NETNS) -> Mapping[str, Found]:
    """Every vif's place; UsageError with all that cannot be found."""
    found: dict[str, Found] = {}
    problems: list[Problem] = []
    for name, vif in policy.vifs.items():
        try:
            found[name] = _find(vif, netns)
        except UsageError as error:
            problems += [Problem(p.message, p.remedy, key=f"vifs.{name}") for p in error.problems]
    if problems:
        raise UsageError(*problems)
    return found


def resolve_link(policy: Policy, netns: Path = NETNS) -> Found | None:
    """The link's own interface; None if the policy names none. UsageError if its namespace is not there."""
    link = policy.link
    if not link.interface:
        return None
    return Found(link.interface, _namespace(link.namespace, netns) if link.namespace else None, inside=False)


def _find(vif: Vif, netns: Path) -> Found:
    if vif.domain is not None:
        return Found(_tap(vif.domain), None, inside=False)
    namespace = _namespace(vif.namespace, netns) if vif.namespace else None
    if vif.sandbox is not None:
        if (guest := _guest(vif.sandbox)) is not None:
            # A tap is the host's end: what the guest sends comes in by it.
            return Found(guest.interface, str(guest.path), inside=vif.side == "inside")
        namespace = _sandbox(vif.sandbox)
    inside = vif.side == "inside" if vif.side else namespace is not None
    # A sandbox's own interface is called so, whatever made it.
    return Found(vif.interface or "eth0", namespace, inside)


def _namespace(text: str, netns: Path) -> str:
    path = Path(f"/proc/{text[4:]}/ns/net") if text.startswith("pid:") else netns / text
    if not path.exists():
        remedy = "is the process alive?" if text.startswith("pid:") else "'ip netns' lists those with names"
        raise UsageError(Problem(f"there is no network namespace {text!r} ({path})", remedy))
    return str(path)


def _guest(name: str) -> HostVif | None:
    """The tap of a guest of a run that is going on; None if no guest with a tap is called so."""
    found = find(name)
    if len(found) > 1:
        runs = ", ".join(vif.run for vif in found)
        raise UsageError(Problem(f"several runs have a sandbox {name!r}: {runs}", f"write RUN/{name}"))
    return found[0] if found else None


def _sandbox(name: str) -> str:
    """The namespace of a container of a run that is going on, by the process number its runtime wrote down."""
    run, _, own = name.rpartition("/")
    files = sorted(state_root().glob(f"{run or '*'}/bundles/{own}/pid"))
    alive = {file.parts[-4]: pid for file in files if (pid := file.read_text().strip()) and Path("/proc", pid).exists()}
    if not alive:
        remedy = (
            "a sandbox lives while its run does, and must have backend: container, or qemu with network: bridge; "
            "'partywall guard run' comes after"
        )
        raise UsageError(Problem(f"no run has a container called {own!r} now, or a guest with a tap", remedy))
    if len(alive) > 1:
        raise UsageError(Problem(f"several runs have a sandbox {own!r}: {', '.join(alive)}", f"write RUN/{own}"))
    return f"/proc/{alive.popitem()[1]}/ns/net"


def _tap(domain: str) -> str:
    if shutil.which("virsh") is None:
        raise CapabilityError(f"domain {domain!r}: virsh is not installed; install libvirt-clients, or give interface:")
    command = ["virsh", "--quiet", "domiflist", "--domain", domain]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    if ran.returncode != 0:
        said = ran.stderr.strip().splitlines()[:1]
        raise UsageError(Problem(f"libvirt domain {domain!r}: {' '.join(said)}", "'virsh list --all' lists them"))
    taps = [line.split()[0] for line in ran.stdout.splitlines() if line.split()]
    if not taps or taps[0] == "-":
        raise UsageError(Problem(f"libvirt domain {domain!r} has no tap now", "start it, and run again"))
    return taps[0]
