"""Groups as people name them: by path, by a process, or by the name that other commands and tools show. Only reads."""

from __future__ import annotations

import difflib

from partywall.errors import Problem, UsageError
from partywall.files import kernel_text
from partywall.host import Host
from partywall.sandbox import cgroups, tenants
from partywall.sandbox.cgroups import Cgroups
from partywall.sandbox.group_names import known_names

SHOWN = 5


def every(groups: Cgroups) -> list[str]:
    """The paths of all tenants of this host."""
    top = groups.folder("cpu", "/")
    return [f"/{path.relative_to(top)}" for path in tenants.groups(top)]


def group_of(text: str, host: Host, key: str) -> str:
    """The path of a group that somebody named. UsageError if there is none, or if several have this name.

    text: a path, pid:NUMBER, a name as `partywall-watch` shows it (shop/web-1/nginx), or a unit (nginx.service, nginx).
    """
    tenant, groups = tenants.named(text, host), cgroups.read(host.root)
    if tenant.cgroup is None:
        return _of_process(tenant.pid or 0, host, groups)
    path = f"/{tenant.cgroup.strip('/')}"
    if groups.folder("cpu", path).is_dir():
        return path
    names = known_names(every(groups), host.root)
    called = {
        each: {name, each.rsplit("/", 1)[-1], each.rsplit("/", 1)[-1].partition(".")[0]} for each, name in names.items()
    }
    match [each for each, words in called.items() if text in words]:
        case [one]:
            return one
        case []:
            raise UsageError(Problem(f"there is no group {text}", _alike(text, called), key=key))
        case several:
            said = f"{len(several)} groups are called {text}"
            raise UsageError(Problem(said, f"give the path of one: {', '.join(several[:SHOWN])}", key=key))


def disk_of(device: str, host: Host) -> str:
    """The number of a disk by its name or number; empty if none is given. UsageError if there is no such disk."""
    if not device or ":" in device:
        return device
    text = kernel_text(str(host.path(f"/sys/class/block/{device}/dev")))
    if text is None:
        known = sorted(each.name for each in host.path("/sys/class/block").glob("*"))
        close = difflib.get_close_matches(device, known, SHOWN, 0.3) or known[:SHOWN]
        remedy = f"give one of {', '.join(close)}" if close else "give its number, such as 8:0"
        raise UsageError(Problem(f"there is no disk {device}", remedy, key="--device"))
    return text.strip()


def shown(paths: list[str], host: Host) -> list[str]:
    """Paths with the names that people know, if they have one."""
    names = known_names(paths, host.root)
    return [path if names[path] in (path, path.rsplit("/", 1)[-1]) else f"{path} ({names[path]})" for path in paths]


def _of_process(pid: int, host: Host, groups: Cgroups) -> str:
    """The group of a process in the hierarchy that limits CPU time."""
    # Only this ends a line: a name may have any other character.
    for line in (kernel_text(str(host.path(f"/proc/{pid}/cgroup"))) or "").split("\n"):
        _, controllers, path = line.split(":", 2) if line else ("", "-", "")
        if "cpu" in controllers.split(",") or (not controllers and groups.is_v2):
            return f"/{path.strip('/')}"
    return "/"


def _alike(text: str, called: dict[str, set[str]]) -> str:
    words = sorted({word for several in called.values() for word in several} | set(called))
    close = difflib.get_close_matches(text, words, SHOWN, 0.5)
    return (
        f"did you mean {' or '.join(close)}?"
        if close
        else "give a path as in /proc/PID/cgroup, or a unit such as nginx.service"
    )
