"""A real sshd on loopback with keys and a configuration of its own, and a client's configuration that leads to it."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from partywall.host import free_port
from partywall.host.label import start_ticks

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


def lacking():
    """What keeps such a server from running here, if anything does."""
    tools = [tool for tool in ("ssh", "ssh-keygen", "unshare") if not shutil.which(tool)]
    if not os.access(SSHD, os.X_OK):
        tools.append("sshd")
    return f"{', '.join(tools)} not installed" if tools else "" if os.geteuid() == 0 else "not root"


class SshServer:
    """Names that its client's configuration knows: `there`, `unknown-key`, `refused` and `closed`.

    ahead_s: how far the monotonic clock of what runs there is ahead of this host's, by a time namespace. alone: whether
    it has namespaces of its own, so that everything there ends with it. inside: a folder of a cgroup that it is in.
    """

    def __init__(self, folder, *, ahead_s=0, force="", alone=False, inside=""):
        self.folder = Path(folder)
        for key in ("host", "user", "stranger"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key], check=True)
        self.port = free_port()
        shutil.copy(self.folder / "user.pub", self.folder / "authorized")
        self._write_configurations(force)
        Path("/run/sshd").mkdir(exist_ok=True)
        argv = [SSHD, "-D", "-e", "-f", str(self.folder / "sshd.conf")]
        if ahead_s:
            argv = ["unshare", "--time", "--monotonic", str(ahead_s), "--fork", "--kill-child", *argv]
        if alone:
            spaces = ["--pid", "--mount-proc", "--uts", "--ipc", "--fork", "--kill-child"]
            argv = ["unshare", *spaces, *argv]
        if inside:
            argv = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(inside), *argv]
        self._log = (self.folder / "log").open("wb")
        self.process = subprocess.Popen(argv, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL)
        self._wait()

    @property
    def client(self):
        """For $PARTYWALL_SSH."""
        return f"ssh -F {self.folder / 'ssh.conf'}"

    def stop(self):
        # Its helper, if there is one, takes the server along.
        self.process.kill()
        self.process.wait(10)
        self._log.close()

    def _write_configurations(self, force):
        (self.folder / "sshd.conf").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.folder}/host\nPidFile none\n"
            f"AuthorizedKeysFile {self.folder}/authorized\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            f"KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n{force}\n"
        )
        host_key = (self.folder / "host.pub").read_text()
        (self.folder / "known").write_text(f"[127.0.0.1]:{self.port} {host_key}")
        common = f"  HostName 127.0.0.1\n  IdentitiesOnly yes\n  GlobalKnownHostsFile none\n  Port {self.port}\n"
        known, key = f"  UserKnownHostsFile {self.folder}/known\n", f"  IdentityFile {self.folder}/user\n"
        (self.folder / "ssh.conf").write_text(
            f"Host there\n{common}{known}{key}  LocalForward 9 127.0.0.1:9\n  RemoteCommand echo people\n"
            f"Host unknown-key\n{common}{key}  UserKnownHostsFile none\n"
            f"Host refused\n{common}{known}  IdentityFile {self.folder}/stranger\n"
            f"Host closed\n  HostName 127.0.0.1\n  Port {free_port()}\n"
        )

    def _wait(self):
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError((self.folder / "log").read_text())


def is_alive(pid):
    return start_ticks(pid) is not None
