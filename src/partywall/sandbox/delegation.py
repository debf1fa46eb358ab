"""The cgroups that an unprivileged user may divide: those that systemd delegated, with their controllers.

Only version 2 can be delegated. A cgroup that passes controllers down may contain no processes. Therefore the scope's
processes, including this one, move to a leaf while sandboxes exist, and return after the last run. Nothing here
requests a scope from systemd: users do, with the command that `remedies` shows. Kernel documentation: cgroup-v2.rst
(Delegation, No Internal Process Constraint). systemd: CGROUP_DELEGATION.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from partywall.errors import CapabilityError, TrialError
from partywall.files import write_whole
from partywall.host import Host
from partywall.host.label import Label
from partywall.sandbox.cgroups import Cgroups

LEAF = "partywall-controller"
CONTROLLERS = ("cpu", "cpuset", "io", "memory")
"""Controllers for settings of a sandbox. Pinning uses affinity and needs none."""
_EMPTY_WITHIN_S = 2.0


@dataclass(frozen=True)
class Scope:
    """A cgroup that this user may divide. top: where version 2 is mounted. path: below it."""

    top: Path
    path: str
    controllers: frozenset[str]

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return self.top / self.path.lstrip("/")

    @property
    def handed_down(self) -> tuple[str, ...]:
        """The controllers available to sandboxes."""
        return tuple(name for name in CONTROLLERS if name in self.controllers)

    def enter(self, label: Label) -> None:
        """Creates the cgroup of a run below the scope. May be called again.

        TrialError if the scope's processes cannot be moved, or the kernel refuses.
        """
        # Recorded first, so that the scope can be found for clean-up from anywhere.
        write_whole(_note(label), self.path)
        try:
            with _locked(self.folder):
                self._vacate()
                for folder in (self.folder, *self._folders(label)):
                    folder.mkdir(exist_ok=True)
                    _hand_down(folder, self.handed_down)
        except OSError as error:
            where = error.filename or self.folder
            raise TrialError(f"the cgroup {self.path} cannot be divided: {where}: {error.strerror}") from error

    def _folders(self, label: Label) -> tuple[Path, Path]:
        """The folders of all runs and of this run."""
        own = self.folder / label.cgroup.lstrip("/")
        return own.parent, own

    def _vacate(self) -> None:
        if (self.folder / "cgroup.subtree_control").read_text().split():
            return
        leaf = self.folder / LEAF
        leaf.mkdir(exist_ok=True)
        deadline = time.monotonic() + _EMPTY_WITHIN_S
        # Repeated until none is left: a process may have forked between listing and moving.
        while _move(self.folder, leaf):
            if time.monotonic() > deadline:
                raise TrialError(f"the processes in the cgroup {self.path} cannot be moved into one below it")

    def leave(self, label: Label) -> None:
        """Restores the scope, unless another run or another program has cgroups in it."""
        with contextlib.suppress(OSError), _locked(self.folder):
            everyone = self._folders(label)[0]
            if everyone.is_dir():
                everyone.rmdir()
            children = [child.name for child in self.folder.iterdir() if child.is_dir()]
            if children != [LEAF]:
                return
            _hand_down(self.folder, (self.folder / "cgroup.subtree_control").read_text().split(), sign="-")
            leaf = self.folder / LEAF
            deadline = time.monotonic() + _EMPTY_WITHIN_S
            while _move(leaf, self.folder) and time.monotonic() < deadline:
                pass
            leaf.rmdir()


def _note(label: Label) -> Path:
    return label.state / "scope"


def noted(label: Label, mounted: Cgroups) -> Scope | None:
    """The scope in which a run created its cgroups; None if it created them at the root, or none at all."""
    try:
        path = _note(label).read_text()
    except OSError:
        return None
    return Scope(mounted.unified, path, frozenset()) if mounted.unified else None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Locks a scope, because runs may begin and end in it at the same time."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def _hand_down(folder: Path, controllers: Sequence[str], sign: str = "+") -> None:
    if controllers:
        (folder / "cgroup.subtree_control").write_text(" ".join(f"{sign}{name}" for name in controllers))


def _move(source: Path, target: Path) -> bool:
    """Moves all processes. Returns whether there were any."""
    pids = (source / "cgroup.procs").read_text().split()
    for pid in pids:
        # It may have ended meanwhile.
        with contextlib.suppress(ProcessLookupError):
            (target / "cgroup.procs").write_text(pid)
    return bool(pids)


def may_divide_all(mounted: Cgroups, host: Host) -> bool:
    """True if this user may create cgroups at the root: as root, but not only in a user namespace."""
    if host.euid != 0:
        return False
    return not mounted.is_v2 or mounted.unified is None or host.access(mounted.unified, os.W_OK)


def own_path(membership: str) -> str | None:
    """The path of a process's cgroup in version 2, without our leaf; None if it has none. membership: /proc/PID/cgroup.

    A path that leaves this process's cgroup namespace cannot be divided here.
    """
    paths = [line.removeprefix("0::") for line in membership.split("\n") if line.startswith("0::")]
    if not paths or paths[0].startswith("/.."):
        return None
    return paths[0].removesuffix(f"/{LEAF}") or "/"


def _controllers(folder: Path) -> frozenset[str]:
    try:
        return frozenset((folder / "cgroup.controllers").read_text().split())
    except OSError:
        return frozenset()


def manager_controllers(mounted: Cgroups, host: Host) -> frozenset[str]:
    """Controllers that this user's systemd manager can pass to a scope; empty if there is no manager."""
    manager = f"user.slice/user-{host.euid}.slice/user@{host.euid}.service"
    return _controllers(mounted.unified / manager) if mounted.unified else frozenset()


def controllers(mounted: Cgroups, host: Host) -> frozenset[str]:
    """The controllers in this user's scope, or in the one that systemd would create."""
    scope = find(mounted, host)
    return scope.controllers if scope else manager_controllers(mounted, host)


def unit_of(path: str) -> tuple[str, bool] | None:
    """(systemd unit of a cgroup, True if a user's manager created it); None if the path contains no unit."""
    names = path.strip("/").split("/")
    last = next((at for at in reversed(range(len(names))) if names[at].endswith((".scope", ".service"))), None)
    if last is None:
        return None
    return names[last], any(name.startswith("user@") for name in names[:last])


def delegates(path: str, host: Host) -> bool:
    """True if systemd delegates the cgroup to its processes. systemd does not manage cgroups that it does not know.

    Any answer other than yes, including an error, means no.
    """
    unit = unit_of(path)
    if unit is None or not host.which("systemctl"):
        return True
    name, of_user = unit
    argv = ["systemctl", *(["--user"] if of_user else []), "show", "--property=Delegate", "--value", "--", name]
    return host.output(argv).strip() == "yes"


def find(mounted: Cgroups, host: Host, is_delegated: Callable[[str, Host], bool] = delegates) -> Scope | None:
    """The cgroup of this process with its controllers, if systemd delegates it to this user.

    is_delegated: whether systemd delegates a cgroup to its processes.
    """
    path = own_path(host.text("/proc/self/cgroup") or "")
    if not mounted.is_v2 or mounted.unified is None or path is None:
        return None
    folder = mounted.unified / path.lstrip("/")
    needed = (folder, folder / "cgroup.procs", folder / "cgroup.subtree_control")
    if not all(host.access(file, os.W_OK) for file in needed) or not is_delegated(path, host):
        return None
    return Scope(mounted.unified, path, _controllers(folder))


def scope_for(mounted: Cgroups) -> Scope | None:
    """The scope for this user's containers; None for root, who may use all cgroups.

    CapabilityError if there is none.
    """
    host = Host.here()
    if may_divide_all(mounted, host):
        return None
    scope = find(mounted, host)
    if scope is None:
        raise CapabilityError("no cgroup is delegated to this user; see docs/no-root.md")
    return scope
