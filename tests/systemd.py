"""A real systemd of this host's, first process of its own namespaces, with groups below one of this host's."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from partywall.host import mounts

PROGRAM = Path("/lib/systemd/systemd")
TOP = Path("/sys/fs/cgroup")
INSIDE = """
set -e
mount --make-rprivate /
{cgroups}
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /etc/systemd/system
mkdir -p /run/systemd/system /run/lock
printf '[Unit]\\nDefaultDependencies=no\\n' > /run/systemd/system/none.target
export container=oci
exec {program} --system --unit=none.target --log-target=console --log-level=warning
"""


def lacking() -> str:
    """Why no systemd can be started here; empty if one can."""
    if os.geteuid():
        return "no root"
    if not PROGRAM.exists() or shutil.which("nsenter") is None:
        return "no systemd"
    return "" if all(os.access(point, os.W_OK) for point in _hierarchies()) else "no right to make cgroups"


def _hierarchies() -> dict[Path, str]:
    """The mount points of this host's hierarchies, and how each is mounted again."""
    every = {}
    for mount in mounts(Path("/")):
        if mount.kind == "cgroup2":
            every[mount.point] = "-t cgroup2"
        elif mount.kind == "cgroup":
            name = mount.point.name
            every[mount.point] = f"-t cgroup -o {'none,name=systemd' if name == 'systemd' else name}"
    return every


class Host:
    """The namespaces of a systemd. pid: of it, as this host knows it."""

    def __init__(self, pid: int) -> None:
        self._enter = ("nsenter", "--target", str(pid), "--all")

    def argv(self, *words: str) -> list[str]:
        """A command line that runs a command beside it."""
        return [*self._enter, *words]

    def run(self, *words: str) -> str:
        """Runs a command to its end, and returns what it prints."""
        done = subprocess.run(self.argv(*words), check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def python(self, code: str, *arguments: str) -> str:
        return self.run(sys.executable, "-c", code, *arguments)

    def write(self, path: str, text: str) -> None:
        subprocess.run(self.argv("tee", path), input=text, text=True, check=True, stdout=subprocess.DEVNULL)

    def service(self, name: str, *lines: str) -> None:
        """Makes and starts a service that uses a CPU, with these lines of its section."""
        unit = ["[Unit]", "DefaultDependencies=no", "[Service]", "ExecStart=/bin/sh -c 'while :; do :; done'", *lines]
        self.write(f"/run/systemd/system/{name}", "\n".join([*unit, ""]))
        self.run("systemctl", "daemon-reload")
        self.run("systemctl", "start", name)


@contextlib.contextmanager
def started() -> Iterator[Host]:
    """Starts one, and ends it with all that it started."""
    points, name = _hierarchies(), f"partywall-systemd-{os.getpid()}"
    folders = [point / name for point in points]
    with contextlib.ExitStack() as stack:
        for folder in folders:
            folder.mkdir()
            stack.callback(_remove, folder)
            for file in ("cpuset.cpus", "cpuset.mems"):
                if (folder / file).exists() and folder.parent.name == "cpuset":
                    (folder / file).write_text((folder.parent / file).read_text())
        script = INSIDE.format(cgroups="\n".join(_mounted(points)), program=PROGRAM)
        join = " && ".join(f"echo $$ > {folder}/cgroup.procs" for folder in folders)
        spaces = ("--mount", "--pid", "--ipc", "--uts", "--cgroup", "--fork", "--kill-child")
        argv = ["sh", "-c", f'{join} && exec unshare {" ".join(spaces)} sh -c "$0"', script]
        quiet = subprocess.DEVNULL
        process = stack.enter_context(subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=quiet))
        stack.callback(process.kill)
        yield Host(_first(process, 30))


def _mounted(points: dict[Path, str]) -> Iterator[str]:
    if TOP not in points:
        yield f"mount -t tmpfs tmpfs {TOP}"
    for point, how in points.items():
        yield f"mkdir -p {point}; mount {how} none {point}"


def _first(process: subprocess.Popen[bytes], seconds: float) -> int:
    """The process that is the first one in there, as soon as systemd answers."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for child in children:
            words: Sequence[str] = Host(int(child)).argv("systemctl", "show", "--property", "Version")
            if subprocess.run(words, capture_output=True, check=False, timeout=30).returncode == 0:
                return int(child)
        time.sleep(0.1)
    raise TimeoutError("systemd did not start")


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + 10
    while folder.exists():
        for path in sorted(folder.rglob("*/"), reverse=True):
            with contextlib.suppress(OSError):
                path.rmdir()
        with contextlib.suppress(OSError):
            folder.rmdir()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{folder} is still in use")
        time.sleep(0.02)
