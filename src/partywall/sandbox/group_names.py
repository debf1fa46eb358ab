"""Names of groups as people know them: a pod's container, a container, a guest, a unit. Only reads.

Names of pods are those of the kubelet's folders of logs, so neither the cluster nor the container engine is asked.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from partywall.errors import one_line

LENGTH_MAX = 120
"""The most characters of a name."""
ENGINE = re.compile(r"/(docker|libpod)[-/]([0-9a-f]{12,64})(?:\.scope)?(?:/|$)")
"""Groups of Docker and podman, with either of their two drivers."""
TOOLS = {"docker": "docker", "libpod": "podman"}
POD = re.compile(r"/(?:[^/]*-)?pod([0-9a-f]{8}[-_][0-9a-f_-]{20,}|[0-9a-f]{32})(?:\.slice)?/([^/]+)")
"""A container's group in that of its pod, with the pod's uid."""
GUEST = re.compile(r"machine-(?:qemu|lxc)\\x2d\d+\\x2d(.+)\.scope$")
_ID = re.compile(r"([0-9a-f]{12,64})(?:\.scope)?$")
_UNIT = re.compile(r"([^/]+\.(?:service|scope))$")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
_LOG = re.compile(r"([^_]+)_([^_]+)_(.+)-([0-9a-f]{64})\.log$")


def known_names(cgroups: Iterable[str], root: Path = Path("/")) -> dict[str, str]:
    """The name of each cgroup, by its path. Two groups never have the same one."""
    containers = dict(_of_pods(root)) | dict(_of_engine(root))
    names: dict[str, str] = {}
    taken: set[str] = set()
    for cgroup in cgroups:
        path = f"/{cgroup.strip('/')}"
        name = _bounded(one_line(_known(path, containers)))
        if name in taken:
            name = _bounded(one_line(path))
        while name in taken:
            name = f"{name[: LENGTH_MAX - 1]}+"
        taken.add(name)
        names[cgroup] = name
    return names


def _known(path: str, containers: Mapping[str, str]) -> str:
    found = _ID.search(path)
    if found and (name := containers.get(found[1])):
        return name
    if pod := POD.search(path):
        uid = pod[1].replace("_", "-")
        return f"pod {uid[:8]}/{_short(pod[2])}"
    if engine := ENGINE.search(path):
        return f"{TOOLS[engine[1]]}/{engine[2][:12]}"
    if guest := GUEST.search(path):
        return f"guest/{_plain(guest[1])}"
    if unit := _UNIT.search(path):
        return _plain(unit[1])
    return path


def _short(name: str) -> str:
    found = _ID.search(name)
    return found[1][:12] if found else name


def _plain(unit: str) -> str:
    """Without systemd's escapes."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), unit)


def _bounded(name: str) -> str:
    """The end of a long path tells more than its beginning."""
    return name if len(name) <= LENGTH_MAX else f"…{name[1 - LENGTH_MAX :]}"


def _of_pods(root: Path) -> Iterator[tuple[str, str]]:
    """Namespace, pod and container by the container's number, from names of log files: pod_namespace_container-id."""
    with contextlib.suppress(OSError):
        for file in (root / "var/log/containers").iterdir():
            if found := _LOG.match(file.name):
                yield found[4], f"{found[2]}/{found[1]}/{found[3]}"


def _of_engine(root: Path) -> Iterator[tuple[str, str]]:
    """Names that Docker and podman keep."""
    folder = root / "var/lib/docker/containers"
    with contextlib.suppress(OSError):
        for each in folder.iterdir():
            with contextlib.suppress(OSError, ValueError, AttributeError):
                name = json.loads((each / "config.v2.json").read_text("utf-8")).get("Name")
                if isinstance(name, str) and name.strip("/"):
                    yield each.name, f"docker/{name.strip('/')}"
    with contextlib.suppress(OSError, ValueError, AttributeError):
        listed = root / "var/lib/containers/storage/overlay-containers/containers.json"
        for each in json.loads(listed.read_text("utf-8")):
            if each.get("id") and each.get("names"):
                yield each["id"], f"podman/{each['names'][0]}"
