"""A stock host that runs in QEMU, and commands in it as root or as an ordinary user, by ssh over loopback."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from labs.building import Say, drive, free_port, ssh
from labs.hosts import image
from labs.hosts.catalogue import Host
from partywall.errors import TrialError

BOOT_S = 240.0
COMMAND_S = 300.0
# A kernel that oopses ends the machine at once, so that nothing is tried on what is left of it.
APPEND = "root=/dev/vda rw console=ttyS0 quiet loglevel=5 systemd.show_status=0 oops=panic panic=-1"
# The kernel rewrites its own code when the first interface of all gets a hook, and when the last loses one, and QEMU's
# emulation (7.2, two threads) may run the breakpoint that stood there meanwhile: "Oops: int3", with plain `tc` within a
# second of traffic. The first group with a CPU quota does the same to the scheduler. So one hook in a network namespace
# of its own, in a unit with a quota, stays from the start, and nothing is rewritten in the midst of work.
HOLD_KEYS = (
    "systemd-run --quiet --unit=one-hook -p PrivateNetwork=yes -p CPUQuota=50% "
    "sh -c 'tc qdisc add dev lo clsact; exec sleep infinity'; sleep 1"
)
EMULATED = ("-accel", "tcg,thread=multi", "-cpu")
# QEMU 7.2 emulates AVX2 wrongly, and numpy's sort with it ends in a segmentation fault, so numpy does without. The
# processor keeps AVX2, for DuckDB's wheel needs it.
NUMPY_WITHOUT_AVX2 = "export NPY_DISABLE_CPU_FEATURES='X86_V3 X86_V4 AVX2 FMA3'; "
EMULATOR_FAULT = "Oops: int3"
# What a kernel prints when it finds a fault in itself. A lockup is left out: an emulated CPU may well stand still.
FAULT = re.compile(r"BUG: (?!soft lockup|workqueue)|WARNING: CPU|Oops|Kernel panic|general protection fault|KASAN")
CONSOLE_LINES = 60
# How often it is looked whether a host still answers, for how long, and how often in vain until it is given up.
LOOK_S, BANNER_S, SILENT = 60.0, 20.0, 5


class HostEndedError(TrialError):
    """The machine ended while it was in use, as after a panic of its kernel."""

    @property
    def is_emulators(self) -> bool:
        """Whether it was the emulator's fault, not the kernel's."""
        return EMULATOR_FAULT in str(self)


class EmulatorsError(HostEndedError):
    """It ended whatever ran on it, so a second boot hides nothing."""

    @property
    def is_emulators(self) -> bool:
        return True


class StoodStillError(EmulatorsError):
    """The machine answered nothing for minutes, while its emulated CPUs ran, so it was ended."""


class NotUpError(EmulatorsError):
    """The machine did not come up. Nothing of Partywall ran on it."""


@dataclass(frozen=True)
class Output:
    """What a command did. text: standard output and standard error, as a terminal would show them."""

    command: str
    code: int
    text: str
    seconds: float

    @property
    def last(self) -> str:
        """The last line that is not empty."""
        return next((line.strip() for line in reversed(self.text.splitlines()) if line.strip()), "")


class Machine:
    """Use as a context manager: the host is up inside, and gone after."""

    def __init__(self, host: Host, built: image.Built, accel: str, log: Path, say: Say) -> None:
        self.host = host
        self.outputs: list[Output] = []
        self._log, self._say = log, say
        self._emulated, self._stood_still = accel != "kvm", False
        self.console = log.with_suffix(".console")
        self.port = free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="partywall-hosts-")
        self._argv = [
            *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-name", f"partywall-{host.name}"),
            *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-machine", "q35"),
            *(("-accel", "kvm", "-cpu", "host") if accel == "kvm" else (*EMULATED, host.cpu)),
            *("-smp", host.cpus, "-m", str(host.memory_mib), *host.machine),
            *("-kernel", str(built.kernel), "-initrd", str(built.initrd)),
            *("-append", f"{APPEND} {host.append}".strip(), "-serial", f"file:{self.console}"),
            *drive("root", built.disk),
            *("-netdev", f"user,id=n,restrict=on,hostfwd=tcp:127.0.0.1:{self.port}-:22"),
            *("-device", "virtio-net-pci,netdev=n", "-device", "virtio-rng-pci"),
        ]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            self.boot_s = self._wait_until_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def run(self, command: str, user: str = "root", timeout_s: float = COMMAND_S) -> Output:
        """Runs a shell command in a login of `user`. Exit code 124 if it takes longer than `timeout_s`."""
        began = time.monotonic()
        with subprocess.Popen(
            self._ssh(user, NUMPY_WITHOUT_AVX2 * self._emulated + command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as shell:
            code, text = self._finished(shell, began + timeout_s)
        output = Output(command, code, text.decode(errors="replace"), time.monotonic() - began)
        self.outputs.append(output)
        with self._log.open("a") as log:
            log.write(f"\n{user}@{self.host.name}$ {command}\n{output.text}[{code}, {output.seconds:.1f} s]\n")
        if self._process.poll() is not None:
            ended = StoodStillError if self._stood_still else HostEndedError
            raise ended(f"{self.host.name} ended during: {command}; {self._console_end()}")
        return output

    def _finished(self, shell: subprocess.Popen[bytes], until: float) -> tuple[int, bytes]:
        """Waits for a command, but not beyond `until`, nor for a machine that is gone or stands still."""
        looked, silent = time.monotonic(), 0
        while True:
            try:
                text = shell.communicate(timeout=1)[0]
                return shell.returncode, text
            except subprocess.TimeoutExpired:
                if self._emulated and time.monotonic() - looked > LOOK_S:
                    silent = 0 if self._answers() else silent + 1
                    looked = time.monotonic()
                if silent == SILENT:
                    self._stood_still = True
                    self._process.kill()
                    self._process.wait()
                if time.monotonic() < until and self._process.poll() is None:
                    continue
            else:
                return shell.returncode, text
            shell.kill()
            return 124, shell.communicate()[0]

    def _answers(self) -> bool:
        """Whether its sshd says what it is."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), BANNER_S) as connection:
                connection.settimeout(BANNER_S)
                return bool(connection.recv(1))
        except OSError:
            return False

    def faults(self) -> list[str]:
        """What the kernel said of faults of its own, a line each."""
        return [line for line in self._console_lines() if FAULT.search(line)]

    def _console_lines(self) -> list[str]:
        return self.console.read_text(errors="replace").splitlines() if self.console.exists() else []

    def _console_end(self) -> str:
        lines = self._console_lines()
        first = next((number for number, line in enumerate(lines) if FAULT.search(line)), len(lines) - 12)
        shown = "\n".join(f"  {line}" for line in lines[max(0, first) :][:CONSOLE_LINES])
        return f"its console said:\n{shown}"

    def bring(self, files: Sequence[Path], to: str, user: str = "root") -> None:
        """Copies files or folders into a folder of the host, as tar: no program but ssh is needed there."""
        argv = ["tar", "-cz", *(word for file in files for word in ("-C", str(file.parent), file.name))]
        pack = subprocess.Popen(argv, stdout=subprocess.PIPE)
        unpack = f"mkdir -p {shlex.quote(to)} && tar -xzmC {shlex.quote(to)} --no-same-owner"
        done = subprocess.run(self._ssh(user, unpack), stdin=pack.stdout, check=False, timeout=COMMAND_S)
        if pack.wait() or done.returncode:
            raise TrialError(f"{self.host.name}: could not copy {', '.join(map(str, files))}")

    def take(self, path: str, to: Path) -> None:
        """Copies a file of the host here."""
        done = subprocess.run(self._ssh("root", f"cat {shlex.quote(path)}"), capture_output=True, check=False)
        if done.returncode:
            raise TrialError(f"{self.host.name}: no {path}")
        to.write_bytes(done.stdout)

    def _ssh(self, user: str, command: str) -> list[str]:
        return ssh(image.key(), self.port, user, self._folder.name, command)

    def _wait_until_up(self) -> float:
        began = time.monotonic()
        while (waited := time.monotonic() - began) < BOOT_S and self._process.poll() is None:
            self._say(f"{self.host.name}: booting, {waited:.0f} s (usually 20 to 60)")
            if self.run("systemctl is-system-running --wait", timeout_s=60).text.strip() in ("running", "degraded"):
                for command in filter(None, (HOLD_KEYS, self.host.hold)):
                    self.run(command)
                return time.monotonic() - began
            time.sleep(2)
        errors = self._process.stderr.read() if self._process.poll() is not None and self._process.stderr else ""
        ended = " (it ended)" if self._process.poll() is not None else ""
        raise NotUpError(f"{self.host.name} did not come up in {waited:.0f} s{ended} {errors}; {self._console_end()}")
