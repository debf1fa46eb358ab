"""A stock host that runs in QEMU, and commands in it as root or as an ordinary user, by ssh over loopback."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from labs.building import Say, drive, free_port
from labs.hosts import image
from labs.hosts.catalogue import Host
from partywall.errors import TrialError

BOOT_S = 240.0
COMMAND_S = 300.0
APPEND = "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=0"


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
        self._port = free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="partywall-hosts-")
        self._argv = [
            *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-name", f"partywall-{host.name}"),
            *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-machine", "q35"),
            *("-accel", "kvm" if accel == "kvm" else "tcg,thread=multi", "-cpu", "host" if accel == "kvm" else "max"),
            *("-smp", host.cpus, "-m", str(host.memory_mib), *host.machine),
            *("-kernel", str(built.kernel), "-initrd", str(built.initrd)),
            *("-append", f"{APPEND} {host.append}".strip(), "-serial", f"file:{self._console}"),
            *drive("root", built.disk),
            *("-netdev", f"user,id=n,restrict=on,hostfwd=tcp:127.0.0.1:{self._port}-:22"),
            *("-device", "virtio-net-pci,netdev=n", "-device", "virtio-rng-pci"),
        ]

    @property
    def _console(self) -> Path:
        return Path(self._folder.name) / "console"

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
        try:
            done = subprocess.run(
                self._ssh(user, command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
            )
            code, text = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            code, text = 124, late.stdout or b""
        output = Output(command, code, text.decode(errors="replace"), time.monotonic() - began)
        self.outputs.append(output)
        with self._log.open("a") as log:
            log.write(f"\n{user}@{self.host.name}$ {command}\n{output.text}[{code}, {output.seconds:.1f} s]\n")
        return output

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
        options = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
            "ConnectTimeout": "20",
            "IdentitiesOnly": "yes",
            "ControlMaster": "auto",
            "ControlPath": f"{self._folder.name}/%r",
            "ControlPersist": "600",
        }
        words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        place = ["-i", str(image.key()), "-p", str(self._port), f"{user}@127.0.0.1"]
        return ["ssh", "-F", "none", *words, *place, command]

    def _wait_until_up(self) -> float:
        began = time.monotonic()
        while (waited := time.monotonic() - began) < BOOT_S and self._process.poll() is None:
            self._say(f"{self.host.name}: booting, {waited:.0f} s (usually 20 to 60)")
            if self.run("systemctl is-system-running --wait", timeout_s=60).text.strip() in ("running", "degraded"):
                return time.monotonic() - began
            time.sleep(2)
        errors = self._process.stderr.read() if self._process.poll() is not None and self._process.stderr else ""
        console = self._console.read_text(errors="replace").splitlines() if self._console.exists() else []
        ended = "\n".join(f"  {line}" for line in console[-12:])
        raise TrialError(
            f"{self.host.name} did not come up in {waited:.0f} s {errors}; its console ended with:\n{ended}"
        )
