"""Hosts for tests and benchmarks: real libvirt daemons, each with mounts, a network and processes of its own.

A host of `Hosts` can lose its power, which ends its daemon and its guests at once, and can get it back. All of them are
on one network with the clients of their guests. Nothing of them outlives the process that started them. Nothing here is
used in a measurement of a user's hosts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from partywall.errors import TrialError
from partywall.host import Host
from partywall.sandbox import cgroups, qemu
from partywall.sandbox.lab import ip

DRIVER = "libvirt/connection-driver/libvirt_driver_qemu.so"
# A daemon has folders of its own for libvirt's files; all else is this host's.
PRIVATE = ("/etc/libvirt", "/var/lib/libvirt", "/var/log/libvirt", "/var/cache/libvirt", "/run/libvirt")
START_S, STOP_S = 30.0, 10.0
BRIDGE = "br0"
SUBNET = "198.18.77"
"""Addresses that RFC 2544 keeps for measuring: no user's own network has them."""
CLIENTS = f"{SUBNET}.254"

FIRMWARE = """
<domain type='qemu'><name>{name}</name><memory unit='MiB'>48</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='pc-i440fx-7.2'>hvm</type></os><features><acpi/></features>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator>{devices}</devices></domain>
"""
"""A guest that has nothing to boot, in few MiB."""


def lacking() -> str:
    """What keeps such a daemon from running here, if anything does."""
    if os.geteuid() != 0:
        return "root"
    missing = [name for name in ("libvirtd", "unshare") if not shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")]
    if importlib.util.find_spec("libvirt") is None:
        missing.append("libvirt-python")
    if not any(Path(folder, DRIVER).exists() for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")):
        missing.append("libvirt's driver for QEMU")
    return ", ".join([*missing, *([why] if (why := qemu.lacking(Host.here())) else [])])


class Daemon:
    """A libvirtd. user: whom its QEMU runs as; prefix: of the command that starts it.

    hostname, host_uuid: of its own, because libvirt moves no guest to the same host. hosts: further lines of its
    /etc/hosts. cgroups: whether it gives each guest a control group.
    """

    def __init__(
        self,
        folder: Path,
        user: str = "root",
        hostname: str | None = None,
        host_uuid: str | None = None,
        hosts: str = "",
        *,
        prefix: Sequence[str] = (),
        with_cgroups: bool = True,
    ) -> None:
        self.folder = Path(folder)
        (self.folder / "libvirtd.conf").write_text(
            f'listen_tls = 0\nauth_unix_rw = "none"\nunix_sock_group = "root"\nunix_sock_dir = "{self.folder}"\n'
            + (f'host_uuid = "{host_uuid}"\n' if host_uuid else "")
        )
        mounts = []
        for number, place in enumerate(PRIVATE):
            own = self.folder / f"private-{number}"
            own.mkdir(exist_ok=True)
            Path(place).mkdir(parents=True, exist_ok=True)
            mounts.append(f"mount --bind {own} {place}")
        # A host that boots finds nothing in /run.
        shutil.rmtree(self.folder / f"private-{len(PRIVATE) - 1}")
        (self.folder / f"private-{len(PRIVATE) - 1}").mkdir()
        for socket in self.folder.glob("libvirt-sock*"):
            socket.unlink()
        # Debian makes the user that the driver looks for with a package that also starts a daemon of the host's own.
        for name, line in (
            ("passwd", "libvirt-qemu:x:64055:64055::/nonexistent:/bin/false"),
            ("group", "libvirt-qemu:x:64055:"),
            ("hosts", hosts),
        ):
            own = self.folder / name
            own.write_text(Path(f"/etc/{name}").read_text() + f"{line}\n")
            mounts.append(f"mount --bind {own} /etc/{name}")
        (self.folder / "private-0" / "qemu.conf").write_text(
            f'user = "{user}"\ngroup = "{user}"\nremember_owner = 0\nnamespaces = []\nsecurity_driver = "none"\n'
            'stdio_handler = "file"\n' + ("" if with_cgroups else "cgroup_controllers = []\n")
        )
        # The shell reaps what libvirt's processes leave, as the first process must. Guests outlive their daemon.
        named = [f"hostname {hostname}"] if hostname else []
        serve = f"libvirtd -f {self.folder}/libvirtd.conf -p {self.folder}/pid & wait"
        stay = f"test -e {self.folder}/libvirt-sock; while sleep 1; do :; done"
        script = "; ".join([*mounts, *named, serve, stay])
        separate = ("--mount", "--uts", "--net", "--pid", "--propagation", "private", "--mount-proc", "--fork")
        self._log = (self.folder / "log").open("wb")
        self.process = subprocess.Popen(
            [*prefix, "unshare", *separate, "--kill-child", "sh", "-ec", script],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        with contextlib.ExitStack() as failed:
            failed.callback(self.stop)
            self._wait()
            failed.pop_all()

    @property
    def uri(self) -> str:
        return f"qemu+unix:///system?socket={self.folder}/libvirt-sock"

    def stop(self) -> None:
        """Ends it and everything that it started, without warning."""
        self.process.kill()
        self.process.wait(STOP_S)
        self._log.close()
        for path in cgroups.read().paths("/machine"):
            for folder in sorted(path.rglob("*"), reverse=True) if path.is_dir() else []:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            with contextlib.suppress(OSError):
                path.rmdir()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if (self.folder / "libvirt-sock").exists():
                return
            time.sleep(0.02)
        raise TrialError(f"libvirtd did not start within {START_S:g} s: {(self.folder / 'log').read_text()[-500:]}")


class Hosts:
    """Libvirt hosts by name, on one network with their guests and clients. Use as a context manager.

    prefixes: of the commands that start them, such as one that enters a control group. rate: of each host's network
    card, in tc's notation; None for no limit.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        *,
        prefixes: Sequence[Sequence[str]] | None = None,
        rate: str | None = None,
        with_cgroups: bool = True,
    ) -> None:
        self.names = tuple(names)
        self.daemons: dict[str, Daemon] = {}
        self._folder, self._rate, self._with_cgroups = Path(folder), rate, with_cgroups
        self._prefixes = dict(zip(names, prefixes or [()] * len(names), strict=True))
        self._clients: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # It ends with us, and its network with it.
        holder = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", "echo; exec sleep infinity"]
        with contextlib.ExitStack() as stack:
            clients = stack.enter_context(subprocess.Popen(holder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE))
            stack.callback(clients.kill)
            self._await_clients(clients)
            self._clients = clients
            self._inside(clients.pid, "link", "set", "lo", "up")
            self._bridge(clients.pid, CLIENTS)
            for name in self.names:
                stack.callback(self.switch_off, name)
                self.switch_on(name)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def enter(self) -> tuple[str, ...]:
        """What a command in the network of the clients begins with."""
        if self._clients is None:
            raise TrialError(f"hosts {', '.join(self.names)} were not started; use Hosts as a context manager")
        return ("nsenter", f"--net=/proc/{self._clients.pid}/ns/net")

    def address(self, name: str) -> str:
        """Of a host, for moves."""
        return f"{SUBNET}.{self.names.index(name) + 1}"

    def uri(self, name: str) -> str:
        """Of a host's daemon, also while the host is off."""
        return f"qemu+unix:///system?socket={self._folder / name}/libvirt-sock"

    def switch_on(self, name: str) -> None:
        """Starts the daemon, and connects the host. Returns once it can be used."""
        if name in self.daemons or self._clients is None:
            return
        own = self._folder / name
        own.mkdir(exist_ok=True)
        number = self.names.index(name) + 1
        daemon = Daemon(
            own,
            hostname=name,
            host_uuid=f"{number:08d}-2222-3333-4444-555555555555",
            hosts="\n".join(f"{self.address(each)} {each}" for each in self.names),
            prefix=self._prefixes[name],
            with_cgroups=self._with_cgroups,
        )
        self.daemons[name] = daemon
        pid, port = daemon.process.pid, f"to-{number}"
        self._inside(pid, "link", "set", "lo", "up")
        self._bridge(pid, self.address(name))
        ends = ("type", "veth", "peer", "name", port, "netns", str(self._clients.pid))
        ip("link", "add", "uplink", "netns", str(pid), *ends)
        self._inside(pid, "link", "set", "uplink", "master", BRIDGE, "up")
        self._inside(self._clients.pid, "link", "set", port, "master", BRIDGE, "up")
        if self._rate:
            burst = ("burst", "64k", "latency", "50ms")
            queue = ("qdisc", "replace", "dev", "uplink", "root", "tbf", "rate", self._rate, *burst)
            _run(pid, "tc", *queue)

    def switch_off(self, name: str) -> None:
        """Ends the daemon and all guests there, without warning."""
        daemon = self.daemons.pop(name, None)
        if daemon is not None:
            daemon.stop()

    def _await_clients(self, holder: subprocess.Popen[bytes]) -> None:
        if holder.stdout is None or not holder.stdout.readline():
            raise TrialError(f"no network namespace for clients of {', '.join(self.names)} could be made; run as root")

    def _bridge(self, pid: int, address: str) -> None:
        self._inside(pid, "link", "add", BRIDGE, "type", "bridge", "mcast_snooping", "0")
        self._inside(pid, "addr", "add", f"{address}/24", "dev", BRIDGE)
        self._inside(pid, "link", "set", BRIDGE, "up")

    def _inside(self, pid: int, *arguments: str) -> None:
        _run(pid, "ip", *arguments)


def _run(pid: int, *command: str) -> None:
    """Runs a command in the network of a process. TrialError with its error output."""
    ran = subprocess.run(
        ["nsenter", f"--net=/proc/{pid}/ns/net", *command],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if ran.returncode:
        raise TrialError(f"{' '.join(command)}: {ran.stderr.strip()}")
