"""Network namespaces on a bridge that stand for machines: each has an address, and those with a clock an sshd too."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
NEEDS = ("sshd", "ssh", "ssh-keygen", "ip", "unshare")


@dataclass(frozen=True)
class Machines:
    """plain: machines without an sshd. ahead_s: by how much the clock of each other one is ahead of this host's."""

    folder: Path
    prefix: str
    plain: tuple[str, ...]
    ahead_s: Mapping[str, int]

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.plain, *self.ahead_s)

    def space(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def address(self, name: str) -> str:
        return f"10.88.0.{self.names.index(name) + 1}"

    def within(self, name: str) -> list[str]:
        return ["ip", "netns", "exec", self.space(name)]

    def on_switch(self) -> list[str]:
        """A command that runs others where the bridge is; its port to a machine has the machine's name."""
        return ["ip", "netns", "exec", self.space("switch")]

    @property
    def client(self) -> str:
        """For $PARTYWALL_SSH."""
        return f"ssh -F {self.folder / 'ssh.conf'}"

    @property
    def work_root(self) -> Path:
        """The folder below which every agent there makes its own."""
        return self.folder / "work"

    def build(self) -> None:
        switch = self.space("switch")
        run("ip", "netns", "add", switch)
        run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "br0", "up")
        for name in self.names:
            space = self.space(name)
            run("ip", "netns", "add", space)
            run("ip", "link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", name, "netns", switch)
            run("ip", "-n", switch, "link", "set", name, "up", "master", "br0")
            run("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            for port in ("eth0", "lo"):
                run("ip", "-n", space, "link", "set", port, "up")
        self.work_root.mkdir()
        self._write_configurations()

    def _write_configurations(self) -> None:
        for key in ("host", "user"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key))
        Path("/run/sshd").mkdir(exist_ok=True)
        (self.folder / "sshd.conf").write_text(
            f"HostKey {self.folder}/host\nPidFile none\nAuthorizedKeysFile {self.folder}/user.pub\nStrictModes no\n"
            "UsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
        )
        key = (self.folder / "host.pub").read_text()
        (self.folder / "known").write_text("".join(f"{name} {key}" for name in self.ahead_s))
        # Each connection has an sshd of its own, which is in the machine's network and time.
        hosts = [
            f"Host {name}\n  IdentityFile {self.folder}/user\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.folder}/known\n  GlobalKnownHostsFile none\n"
            f"  ProxyCommand ip netns exec {self.space(name)} unshare --time --monotonic {ahead} --fork --kill-child "
            f"{SSHD} -i -f {self.folder}/sshd.conf\n"
            for name, ahead in self.ahead_s.items()
        ]
        (self.folder / "ssh.conf").write_text("".join(hosts))

    def remove(self) -> None:
        for name in (*self.names, "switch"):
            subprocess.run(["ip", "netns", "del", self.space(name)], check=False, capture_output=True)

    def pids(self, name: str) -> list[int]:
        """The processes on a machine."""
        return [int(pid) for pid in run("ip", "netns", "pids", self.space(name)).split()]

    def left(self) -> list[str]:
        """What is left on the machines with an sshd. Agents end a moment after their connection."""
        deadline = time.monotonic() + 20
        while True:
            left = [f"process {pid}" for name in self.ahead_s for pid in self.pids(name)]
            left += map(str, self.work_root.iterdir())
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.1)


def run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def machines(plain: Sequence[str], ahead_s: Mapping[str, int]) -> Iterator[Machines]:
    """Machines that are there until the end, and the client's configuration that leads to them."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        made = Machines(Path(folder), f"pwr{os.getpid()}", tuple(plain), ahead_s)
        try:
            made.build()
            os.environ["PARTYWALL_SSH"] = made.client
            yield made
        finally:
            made.remove()
