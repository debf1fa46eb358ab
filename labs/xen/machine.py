"""The emulated machine of the Xen lab: libvirt of its dom0 by TCP, and a shell in dom0 by ssh."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

from labs.building import Say, drive, free_port, ssh
from labs.hosts.image import key
from partywall.errors import TrialError

LIBVIRT_PORT, SSH_PORT = 16509, 22
READY_S = 300.0
# AMD models stop libvirt's Xen driver, and newer ones crash here.
CPU = "Westmere"
# Nobody attacks this Xen, and an emulated processor is slow to change page tables at each call of a guest.
XEN_OPTIONS = "console=com1 com1=115200,8n1 loglvl=warning sched=credit spec-ctrl=no xpti=no"
# Dom0, Xen's own, and up to four guests of 256 MiB.
DOM0_MIB = 640
MEMORY_MIB = 2304


class Lab:
    """The emulated machine. Use as a context manager."""

    def __init__(self, folder: Path, say: Say) -> None:
        self._say = say
        self._console = folder / "console"
        self.port, self._shell_port = free_port(), free_port()
        self._connection = tempfile.TemporaryDirectory(prefix="partywall-xen-")
        self._argv = [
            *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-name", "partywall-xen-lab"),
            *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-machine", "pc", "-cpu", CPU),
            *("-m", str(MEMORY_MIB), "-smp", "2", "-accel", "tcg,thread=multi,tb-size=256"),
            *("-serial", f"file:{self._console}", "-kernel", str(folder / "xen.elf")),
            *("-append", f"dom0_mem={DOM0_MIB}M,max:{DOM0_MIB}M {XEN_OPTIONS}"),
            *("-initrd", f"{folder / 'vmlinux'} console=hvc0 quiet mitigations=off,{folder / 'initramfs'}"),
            *drive("root", folder / "root.img"),
            *drive("guests", folder / "guests.img"),
            *("-netdev", ",".join(("user", "id=n", "restrict=on", *self._forwarded()))),
            *("-device", "virtio-net-pci,netdev=n"),
        ]

    def _forwarded(self) -> list[str]:
        ports = ((self.port, LIBVIRT_PORT), (self._shell_port, SSH_PORT))
        return [f"hostfwd=tcp:127.0.0.1:{ours}-:{theirs}" for ours, theirs in ports]

    @property
    def uri(self) -> str:
        return f"xen+tcp://127.0.0.1:{self.port}/system"

    def __enter__(self) -> Self:
        self._console.unlink(missing_ok=True)
        self._process = subprocess.Popen(self._argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        began = time.monotonic()
        while "lab: ready" not in self._said():
            waited = time.monotonic() - began
            if self._process.poll() is not None or waited > READY_S:
                self.__exit__()
                errors = self._process.stderr.read() if self._process.stderr else ""
                ended = "\n".join(f"  {line}" for line in self._said().splitlines()[-12:])
                raise TrialError(f"dom0 did not come up in {waited:.0f} s {errors}; its console ended with:\n{ended}")
            self._say(f"booting Xen and dom0: {waited:.0f} s (usually 20 to 60)")
            time.sleep(2)
        self._say(f"libvirt answers in dom0 after {time.monotonic() - began:.0f} s: {self.uri}")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._connection.cleanup()

    def shell(self, command: str) -> list[str]:
        """The command line that runs a shell command in dom0, as root."""
        return ssh(key(), self._shell_port, "root", self._connection.name, command)

    def run(self, command: str, text: str = "", timeout_s: float = 300) -> str:
        """Runs a shell command in dom0 and returns its output. text: its standard input. TrialError if it fails."""
        done = subprocess.run(
            self.shell(command), input=text, capture_output=True, text=True, check=False, timeout=timeout_s
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise TrialError(f"in dom0: {command[:60]}: {said[-1] if said else f'exit status {done.returncode}'}")
        return done.stdout

    def _said(self) -> str:
        return self._console.read_text(errors="replace") if self._console.exists() else ""
