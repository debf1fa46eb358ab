"""QEMU's command line for a sandbox's settings. Pure.

Source: qemu(1) of version 7.2. `-nodefaults` omits all devices that are not requested: each costs boot time and CPU
time of the emulator's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from partywall.host.block import Throttle
from partywall.sandbox.base import Settings
from partywall.sandbox.document import Disk
from partywall.sandbox.switch import Port

PROGRAM = "qemu-system-x86_64"
PORT = "partywall.agent"
MEMORY = 512 << 20
LOSSY_MULTIPLE = 256 << 10
# Entries, a power of two. As in QEMU's own tests of dirty limits.
DIRTY_RING = 4096
# Fast string instructions are emulated byte by byte: guests whose libraries and kernel use them copied 24 MB/s instead
# of 960.
EMULATED_SLOWLY = ("erms", "fsrm")
# Memory that a guest's kernel and initramfs use: a constant part, and a 64th of all memory, which describes its pages.
# Measured with 128 MiB to 1 GiB, rounded up.
KERNEL_BYTES = 96 << 20
BYTES_PER_DESCRIBING_BYTE = 64
# By this serial number the agent finds the disk with its root, see agent/crates/init.
ROOT_SERIAL = "partywall-root"
# The first process is the agent. A panic ends QEMU, because it may not reboot. The clock watchdog is off: it would
# treat time that a neighbour takes from the guest as a fault of the time-stamp counter. The timer test is off too,
# because it makes a kernel panic that is delayed while it boots.
KERNEL_ARGUMENTS = "console=ttyS0 quiet loglevel=4 panic=-1 tsc=reliable no_timer_check random.trust_cpu=on -- init"
# The name of the guest's disk for QEMU's monitor: the backend of the PCI device that has the drive.
DISK = "/machine/peripheral/disk/virtio-backend"
# scenario key → QEMU's throttling option, and the argument of block_set_io_throttle
_THROTTLES = {
    "read_bps": ("throttling.bps-read", "bps_rd"),
    "write_bps": ("throttling.bps-write", "bps_wr"),
    "read_iops": ("throttling.iops-read", "iops_rd"),
    "write_iops": ("throttling.iops-write", "iops_wr"),
}


@dataclass(frozen=True)
class Nic:
    """A guest's network interface. backend: QEMU's -netdev; prefix: a command prefix for starting QEMU.

    address: the guest's, with prefix length; gateway: the host's, as the guest sees it. mtu: of the guest's interface
    in bytes; None for the usual one. ipv6: whether the guest has it.
    """

    backend: str
    mac: str
    address: str
    gateway: str
    prefix: tuple[str, ...] = ()
    mtu: int | None = None
    ipv6: bool = True

    @classmethod
    def user(cls) -> Nic:
        """Through QEMU's own network stack, with its default addresses."""
        return cls("user,id=nic", "52:54:00:00:00:01", "10.0.2.15/24", "10.0.2.2")

    @classmethod
    def on(cls, port: Port) -> Nic:
        """Through an existing tap in its namespace. Uses nsenter, because ip netns exec would hide the cgroups."""
        enter = ("nsenter", f"--net={port.path}")
        backend = f"tap,id=nic,ifname={port.interface},script=no,downscript=no"
        return cls(backend, port.mac, port.address, port.gateway, enter, port.mtu, port.ipv6)

    @property
    def device(self) -> str:
        """QEMU's -device. The guest's driver reads the MTU from it."""
        mtu = f",host_mtu={self.mtu}" if self.mtu else ""
        return f"virtio-net-pci,netdev=nic,mac={self.mac},romfile={mtu}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Kernel arguments for the guest's first process."""
        return ("--address", self.address, "--gateway", self.gateway)


@dataclass(frozen=True)
class Machine:
    """The parts of one guest.

    qmp: file descriptor for QMP. image: its disk, if any. root: a shared image that it does not write; of a movable
    guest, an overlay of its own, or the URL of a server that has it. nic: its network interface, if any. tsc_khz: rate
    of an emulated guest's time-stamp counter, if known. movable: whether it can migrate; other processes of this host
    can then read its memory. dirty_ring: whether KVM lists the pages that each virtual CPU writes, without which QEMU
    cannot limit them. stream: file descriptor of the agent's stream; QEMU's standard input and output if None.
    incoming: whether the guest arrives by migration.
    """

    settings: Settings
    accel: str
    kernel: Path
    initramfs: Path
    console: Path
    qmp: int
    image: Path | None = None
    root: Path | str | None = None
    nic: Nic | None = None
    tsc_khz: int | None = None
    movable: bool = False
    dirty_ring: bool = False
    stream: int | None = None
    incoming: bool = False

    @property
    def vcpus(self) -> int:
        return self.settings.vcpus or len(self.settings.cpus)

    @property
    def memory(self) -> int:
        """Bytes. Live migration of an emulated guest loses writes if they are a multiple of 256 KiB.

        Seen with QEMU 7.2: of four such migrations three left a dead guest, of 22 of other sizes none.
        """
        bytes_wanted = self.settings.memory or MEMORY
        aligned = self.movable and self.accel == "tcg" and bytes_wanted % LOSSY_MULTIPLE == 0
        return bytes_wanted - LOSSY_MULTIPLE // 2 if aligned else bytes_wanted

    def argv(self) -> list[str]:
        """The command line."""
        return [word for words in self._options() for word in words]

    def _options(self) -> Iterator[tuple[str, ...]]:
        # QEMU must not outlive the process that started it.
        yield ("setpriv", "--pdeathsig", "KILL", *(self.nic.prefix if self.nic else ()), PROGRAM)
        yield ("-name", f"partywall-{_plain(self.settings.name)},debug-threads=on")
        yield ("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none")
        backing = self._backing()
        backed = ",memory-backend=ram" if backing else ""
        yield ("-machine", f"pc,graphics=off,vmport=off{backed}", *self._accelerator())
        yield ("-smp", str(self.vcpus), "-m", self._memory())
        if backing:
            yield ("-object", backing)
        yield ("-kernel", str(self.kernel), "-initrd", str(self.initramfs), "-append", self._arguments())
        yield ("-chardev", f"file,id=console,path={_escaped(self.console)}", "-serial", "chardev:console")
        yield ("-chardev", f"socket,id=qmp,fd={self.qmp}", "-mon", "chardev=qmp,mode=control")
        stream = "stdio,id=agent,signal=off" if self.stream is None else f"socket,id=agent,fd={self.stream}"
        yield ("-chardev", stream)
        yield ("-device", "virtio-serial-pci", "-device", f"virtserialport,chardev=agent,name={PORT}")
        yield ("-device", "virtio-balloon-pci,id=balloon")
        if self.root is not None:
            # The source of a move writes to the disk of the destination until the guest has arrived.
            shared = ",share-rw=on" if self.incoming else ""
            yield (
                "-drive",
                self._root(self.root),
                "-device",
                f"virtio-blk-pci,drive=root,serial={ROOT_SERIAL}{shared}",
            )
        if self.image is not None:
            yield ("-drive", drive(self.image, self.settings.disk), "-device", "virtio-blk-pci,drive=disk,id=disk")
        if self.nic is not None:
            yield ("-netdev", self.nic.backend, "-device", self.nic.device)
        if self.incoming:
            # It starts only on command, after the source has released the guest.
            yield ("-incoming", "defer", "-S")

    def _accelerator(self) -> tuple[str, ...]:
        if self.accel == "kvm":
            ring = f",dirty-ring-size={DIRTY_RING}" if self.dirty_ring else ""
            return ("-accel", f"kvm{ring}", "-cpu", "host")
        # Kernels size their buffers by the reported caches. The host's caches are those that the memory passes through.
        model = ["max", "host-cache-info=on", *(f"-{feature}" for feature in EMULATED_SLOWLY)]
        return ("-accel", "tcg,thread=multi", "-cpu", ",".join(model))

    def _backing(self) -> str:
        """The object with the guest's memory, if it is shared or bound to nodes; else QEMU's default, and empty."""
        nodes = "".join(f",host-nodes={node}" for node in self.settings.memory_nodes)
        bound = f"{nodes},policy=bind" if nodes else ""
        if self.movable:
            return f"memory-backend-memfd,id=ram,size={self.memory},share=on{bound}"
        return f"memory-backend-ram,id=ram,size={self._memory()}{bound}" if bound else ""

    def _root(self, image: Path | str) -> str:
        if isinstance(image, str):
            return f"file={image},if=none,id=root,format=raw,cache=none"
        if self.movable:
            # Both ends write to one overlay, one after the other.
            return f"file={_escaped(image)},if=none,id=root,format=qcow2,cache=none"
        # Writes go to a file without a name in $TMPDIR. It is gone with QEMU.
        return f"file={_escaped(image)},if=none,id=root,format=raw,snapshot=on,cache=unsafe"

    def _memory(self) -> str:
        # Both ends of a migration must agree to the byte.
        return f"{_mebibytes(self.memory)}M" if not self.movable else f"{self.memory >> 10}k"

    def _arguments(self) -> str:
        # Otherwise the kernel measures the rate against an emulated timer. In a guest that had to wait for a CPU
        # meanwhile, seconds then lasted a third of their length.
        rate = (f"tsc_early_khz={self.tsc_khz}",) if self.tsc_khz else ()
        without = ("ipv6.disable=1",) if self.nic and not self.nic.ipv6 else ()
        return " ".join([*rate, *without, KERNEL_ARGUMENTS, *(self.nic.arguments if self.nic else ())])


def kernel_bytes(memory: int) -> int:
    """Bytes that the kernel and initramfs use in a guest with this memory."""
    return KERNEL_BYTES + memory // BYTES_PER_DESCRIBING_BYTE


def memory_for(used: int) -> int:
    """The least bytes of memory of a guest whose programs use so many bytes."""
    return -(-(used + KERNEL_BYTES) * BYTES_PER_DESCRIBING_BYTE // (BYTES_PER_DESCRIBING_BYTE - 1))


def drive(image: Path, disk: Disk | None) -> str:
    """The -drive option of a guest's disk."""
    disk = disk or Disk()
    limits = [
        f"{option}={value}" for key, (option, _) in _THROTTLES.items() if (value := getattr(disk, key)) is not None
    ]
    return ",".join(
        [f"file={_escaped(image)}", "if=none", "id=disk", "format=raw", f"cache={disk.cache or 'none'}", *limits]
    )


def throttles(throttle: Throttle) -> dict[str, int]:
    """Arguments of block_set_io_throttle, which needs all of them; 0 is no limit."""
    rates = {argument: getattr(throttle, key) or 0 for key, (_, argument) in _THROTTLES.items()}
    return {"bps": 0, "iops": 0} | rates


def _mebibytes(size: int) -> int:
    return -(-size // (1 << 20))


def _plain(name: str) -> str:
    return name.replace(",", "-")


def _escaped(path: Path) -> str:
    """Doubles commas in a value, as QEMU requires."""
    return str(path).replace(",", ",,")
