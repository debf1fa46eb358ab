"""A cluster on one machine, for benchmarks of the consolidation manager: what a user's hosts are in a data centre.

Each host is a real libvirt daemon in namespaces and a control group of its own, which gives it a share of a CPU. Guests
are real QEMU machines, emulated, with a web server and a disk on shared storage. Power is switched through Redfish by
sushy-tools, whose systems change their state some seconds after a request, as boards do. A board carries out what the
state says: it starts the host after its boot time, or ends it with all that runs there. The watts of a host are those
of a simulated machine, driven by the real CPU time of its control group, and are read through Redfish too.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from partywall.errors import TrialError
from partywall.host import free_port
from partywall.power.machine import Display, Feed, Machine
from partywall.power.values import NodeModel
from partywall.sandbox import cgroups
from partywall.sandbox.qemu import initramfs
from partywall.sandbox.qemu.counter import khz
from partywall.sandbox.qemu.kernel import GuestKernel
from partywall.testing import libvirt, power

NAMES = ("a", "b", "c")
CARD = "400mbit"
MEMORY_KIB = 96 << 10
LOSSY_KIB = 128
"""Live migration of an emulated guest loses writes if its memory is a multiple of 256 KiB (docs/migrate.md). libvirt
rounds to MiB, so a wrapper around QEMU takes this away again."""
DISK_BYTES = 1 << 20
DISPLAY = Display(lag_s=0.3, refresh_s=1.0, noise=0.4, step=0)
LOOK_S = 0.2
ANSWER_S = 120.0
DOMAIN = """
<domain type='qemu'><name>{name}</name><memory unit='KiB'>{memory}</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='pc-i440fx-7.2'>hvm</type>
<kernel>{kernel}</kernel><initrd>{initrd}</initrd><cmdline>{arguments}</cmdline></os>
<features><acpi/></features>
<devices><emulator>{emulator}</emulator>
<disk type='network' device='disk'><driver name='qemu' type='raw' cache='none'/>
<source protocol='nbd'><host transport='unix' socket='{disk}'/></source><target dev='vda' bus='virtio'/></disk>
<interface type='bridge'><mac address='52:54:00:77:00:{number:02x}'/><source bridge='{bridge}'/>
<model type='virtio'/></interface>
<controller type='usb' model='none'/><memballoon model='none'/>
<serial type='file'><source path='{console}'/></serial>
</devices></domain>
"""
WRAPPER = """#!/bin/sh
# Takes {less} KiB from the guest's memory.
for word; do
    shift
    case $word in
        *size={kib}k*) word=$(printf %s "$word" | sed 's/size={kib}k/size={less_kib}k/') ;;
        {mib}) word={less_kib}k ;;
        *'"size":{bytes}'*) word=$(printf %s "$word" | sed 's/"size":{bytes}/"size":{less_bytes}/') ;;
    esac
    set -- "$@" "$word"
done
exec {qemu} "$@"
"""
KERNEL = "console=ttyS0 quiet loglevel=4 panic=-1 tsc=reliable no_timer_check random.trust_cpu=on"


def lacking() -> str:
    """What keeps such a cluster from being built here, with the remedy; empty if nothing does."""
    for missing in (libvirt.lacking(), power.Redfish.missing()):
        if missing:
            return f"{missing} is missing; make bench-setup installs what is needed"
    for tool, package in (("gcc", "gcc libc6-dev"), ("qemu-nbd", "qemu-utils"), ("curl", "curl")):
        if not shutil.which(tool):
            return f"{tool} is missing; apt-get install {package}"
    return ""


class Group:
    """A control group with a share of a CPU. What it used is read from the kernel."""

    def __init__(self, name: str, cpus: float) -> None:
        known = cgroups.read()
        self._v2 = known.is_v2
        own = _own_group("" if self._v2 else "cpu")
        # In version 2 a group with processes has no controllers for groups below it.
        above = str(Path(own).parent) if self._v2 and own != "/" else own
        self._folders = {known.folder(each, f"{above}/{name}") for each in ("cpu", "cpuacct")[: 1 if self._v2 else 2]}
        files = cgroups.cpu_files((0,), cpus, None, v2=self._v2)
        for folder in self._folders:
            folder.mkdir(parents=True)
        cgroups.write(known.folder("cpu", f"{above}/{name}"), files)
        self._usage = (
            known.folder("cpu", f"{above}/{name}") / "cpu.stat"
            if self._v2
            else known.folder("cpuacct", f"{above}/{name}") / "cpuacct.usage"
        )

    @property
    def prefix(self) -> tuple[str, ...]:
        """What a command that runs in it begins with."""
        file = "cgroup.procs"
        joined = "; ".join(f"echo $$ > {folder}/{file}" for folder in self._folders)
        return ("sh", "-c", f'{joined}; exec "$@"', "sh")

    def used_s(self) -> float:
        """CPU time so far."""
        text = self._usage.read_text()
        return int(text.split()[1]) / 1e6 if self._v2 else int(text) / 1e9

    def remove(self) -> None:
        deadline = time.monotonic() + 10
        for folder in self._folders:
            while folder.exists() and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                time.sleep(0.05)


def _own_group(controller: str) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") if controller else not controllers:
            return path.rstrip("/")
    return ""


class HostMachine(Machine):
    """A simulated machine that can be off, or boot at a stated power. cpus: of a real CPU that make up its cores."""

    def __init__(self, model: NodeModel, group: Group, cpus: float, boot_w: float) -> None:
        # All its cores are as busy as its share of a CPU.
        super().__init__(model, lambda: [group.used_s() / cpus] * model.cpus, cpus=model.cpus)
        self._boot_w = boot_w
        self.state = "on"

    def watts(self, shares: Sequence[float]) -> float:
        if self.state == "on":
            return super().watts(shares)
        return self._boot_w if self.state == "boots" else self.model.off_watts or 0.0


class Boards:
    """The power control of all hosts: sushy-emulator, whose systems have the names of hosts."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder, self._port = folder, free_port()
        self.systems = {name: f"{number:08d}-1111-2222-3333-444444444444" for number, name in enumerate(names, 1)}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        systems = [
            {"uuid": uuid, "name": name, "power_state": "On", "external_notifier": False, "nics": []}
            for name, uuid in self.systems.items()
        ]
        settings = {
            "SUSHY_EMULATOR_LISTEN_IP": "127.0.0.1",
            "SUSHY_EMULATOR_LISTEN_PORT": self._port,
            "SUSHY_EMULATOR_FAKE_DRIVER": True,
            "SUSHY_EMULATOR_FAKE_SYSTEMS": systems,
            "SUSHY_EMULATOR_STATE_DIR": str(self._folder),
        }
        file = self._folder / "sushy.conf"
        file.write_text("".join(f"{key} = {value!r}\n" for key, value in settings.items()))
        program = str(Path(sys.executable).parent / "sushy-emulator")
        with (self._folder / "sushy.log").open("wb") as log:
            self._process = subprocess.Popen(
                [program, "--config", str(file)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        awaited(lambda: all(self.is_on(name) for name in self.systems), 40, "sushy-emulator does not answer")
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def is_on(self, name: str) -> bool | None:
        """What it says; None if it does not answer."""
        address = f"{self.address}/redfish/v1/Systems/{self.systems[name]}"
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - a server of our own
                return bool(json.load(answer)["PowerState"] == "On")
        except (OSError, ValueError):
            return None


def awaited(is_so: Callable[[], bool], within_s: float, otherwise: str) -> None:
    """Waits for a condition. TrialError if it does not come about in time."""
    deadline = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > deadline:
            raise TrialError(otherwise)
        time.sleep(0.1)


@dataclass
class Switched:
    """A host that was switched: when, to what, and the time at which that was complete."""

    host: str
    to: str
    begun_s: float
    done_s: float = 0.0


@dataclass
class Cluster:
    """Use it as a context manager. cpus: of a real CPU, of each host; boot_s: from power-on until a daemon starts.

    work: of each request, in steps. guests: each one's host. idles: hosts that are off go on to take power. used_s: the
    CPU time of each host so far, as a function.
    """

    folder: Path
    model: NodeModel
    cpus: float
    boot_s: float
    boot_w: float
    work: int
    guests: Mapping[str, str]
    idles: bool = False
    switched: list[Switched] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._open = contextlib.ExitStack()
        self._ended = threading.Event()
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._open.close()

    def _build(self) -> None:
        for name in ("shared", "boards", *(f"meter-{name}" for name in NAMES)):
            (self.folder / name).mkdir(parents=True)
        self._emulator()
        self._initrd()
        groups = {name: Group(f"partywall-bench-{os.getpid()}-{name}", self.cpus) for name in NAMES}
        for group in groups.values():
            self._open.callback(group.remove)
        self.used_s = {name: group.used_s for name, group in groups.items()}
        self.hosts = libvirt.Hosts(
            self.folder, NAMES, prefixes=[groups[name].prefix for name in NAMES], rate=CARD, with_cgroups=False
        )
        self._open.enter_context(self.hosts)
        self.boards = self._open.enter_context(Boards(self.folder / "boards", NAMES))
        self.machines, self.meters = {}, {}
        for name, group in groups.items():
            machine = HostMachine(self.model, group, self.cpus, self.boot_w)
            server = power.Redfish(self.folder / f"meter-{name}")
            self._open.callback(machine.stop)
            self._open.enter_context(Feed(machine, DISPLAY, server.write))
            self._open.enter_context(server)
            self.machines[name], self.meters[name] = machine, server.name
        for number, (guest, host) in enumerate(self.guests.items(), 1):
            self._start(number, guest, host)
        for name in NAMES:
            follower = threading.Thread(target=self._follow, args=(name,), name=f"board-{name}", daemon=True)
            follower.start()
            self._open.callback(follower.join)
            self._open.callback(self._ended.set)
        self.first = {guest: self.page(guest, ANSWER_S) for guest in self.guests}

    def address(self, guest: str) -> str:
        return f"{libvirt.SUBNET}.{100 + list(self.guests).index(guest) + 1}"

    def page(self, guest: str, within_s: float = 10.0) -> str:
        """What the guest serves, which is its boot identifier; empty if it does not answer in time."""
        command = [*self.hosts.enter, "curl", "-s", "-m", "5", f"http://{self.address(guest)}/"]
        deadline = time.monotonic() + within_s
        while True:
            said = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
            if said or time.monotonic() > deadline:
                return said
            time.sleep(0.2)

    def pages(self, guest: str, count: int) -> None:
        """Asks for so many pages over one connection."""
        urls = [f"http://{self.address(guest)}/"] * count
        subprocess.run([*self.hosts.enter, "curl", "-s", *urls], capture_output=True, check=True)

    def counter(self, guest: str) -> int:
        """What the guest has counted on its disk, read from the storage."""
        text = self._disk(guest).read_bytes()[:32].partition(b"\n")[0]
        return int(text) if text.isdigit() else 0

    def _disk(self, guest: str) -> Path:
        return self.folder / "shared" / f"{guest}.raw"

    def restart(self, guest: str) -> None:
        """Ends a guest where it is and starts it again there, as a crash would."""
        import libvirt as library  # noqa: PLC0415 - not everywhere

        for host in self.hosts.daemons:
            connection = library.open(self.hosts.uri(host))
            with contextlib.closing(connection), contextlib.suppress(library.libvirtError):
                domain = connection.lookupByName(guest)
                xml = domain.XMLDesc(0)
                domain.destroy()
                connection.createXML(xml, 0)

    # Parts

    def _emulator(self) -> None:
        """The wrapper around QEMU."""
        less = MEMORY_KIB - LOSSY_KIB
        text = WRAPPER.format(
            less=LOSSY_KIB, kib=MEMORY_KIB, less_kib=less, mib=MEMORY_KIB >> 10, bytes=MEMORY_KIB << 10,
            less_bytes=less << 10, qemu=shutil.which("qemu-system-x86_64"),
        )  # fmt: skip
        self.emulator = self.folder / "qemu"
        self.emulator.write_text(text)
        self.emulator.chmod(0o755)

    def _initrd(self) -> None:
        program = self.folder / "web"
        source = Path(__file__).with_name("web.c")
        subprocess.run(["gcc", "-O2", "-static", "-o", str(program), str(source)], check=True)
        self.kernel = GuestKernel.prepared()
        content = initramfs.initramfs(program.read_bytes(), self.kernel.module_contents())
        (self.folder / "initrd").write_bytes(content)

    def _start(self, number: int, guest: str, host: str) -> None:
        import libvirt as library  # noqa: PLC0415 - not everywhere

        disk, socket = self._disk(guest), self.folder / "shared" / f"{guest}.nbd"
        with disk.open("wb") as file:
            file.truncate(DISK_BYTES)
        served = ["qemu-nbd", "-k", str(socket), "-f", "raw", "--cache=none", "--shared=8", "--persistent", str(disk)]
        server = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *served], stdin=subprocess.DEVNULL)
        self._open.callback(server.wait)
        self._open.callback(server.kill)
        awaited(socket.exists, 20, f"the storage of {guest} does not start")
        rate = f"tsc_early_khz={frequency} " if (frequency := khz()) else ""
        arguments = f"{rate}{KERNEL} -- --address {self.address(guest)} --work {self.work}"
        xml = DOMAIN.format(
            name=guest, memory=MEMORY_KIB, kernel=self.kernel.image, initrd=self.folder / "initrd",
            arguments=arguments, emulator=self.emulator, disk=socket, number=number, bridge=libvirt.BRIDGE,
            console=self.folder / f"{guest}.console",
        )  # fmt: skip
        connection = library.open(self.hosts.uri(host))
        try:
            connection.createXML(xml, 0)
        finally:
            connection.close()

    def _follow(self, name: str) -> None:
        """What the board does: it starts and ends the host as its power control says."""
        is_on = True
        while not self._ended.wait(LOOK_S):
            wanted = self.boards.is_on(name)
            if wanted is None or wanted == is_on:
                continue
            is_on = wanted
            change = Switched(name, "on" if is_on else "off", time.monotonic())
            self.switched.append(change)
            if is_on:
                self.machines[name].state = "boots"
                self._ended.wait(self.boot_s)
                if not self._ended.is_set():
                    self.hosts.switch_on(name)
                    self.machines[name].state = "on"
            else:
                self.hosts.switch_off(name)
                self.machines[name].state = "on" if self.idles else "off"
            change.done_s = time.monotonic()
