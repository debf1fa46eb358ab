"""A real libvirtd of a test's own: private mounts, network and processes, so that nothing of it outlives the test."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import time
from pathlib import Path

from partywall.host import Host
from partywall.sandbox import cgroups, qemu

DRIVER = "libvirt/connection-driver/libvirt_driver_qemu.so"
# Its own view of what libvirt keeps; all else is this host's.
PRIVATE = ("/etc/libvirt", "/var/lib/libvirt", "/var/log/libvirt", "/var/cache/libvirt", "/run/libvirt")


def lacking():
    """What keeps such a daemon from running here, if anything does."""
    if os.geteuid() != 0:
        return "root"
    found = [name for name in ("libvirtd", "unshare") if not shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")]
    if importlib.util.find_spec("libvirt") is None:
        found.append("libvirt-python")
    if not any(Path(folder, DRIVER).exists() for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")):
        found.append("libvirt's driver for QEMU")
    return ", ".join([*found, *([why] if (why := qemu.lacking(Host.here())) else [])])


class Daemon:
    """user: whom its QEMU runs as. hostname, host_uuid: of its own, for libvirt moves no guest to the same host.

    hosts: lines that its /etc/hosts has besides.
    """

    def __init__(self, folder, user="root", hostname=None, host_uuid=None, hosts=""):
        self.folder = Path(folder)
        (self.folder / "libvirtd.conf").write_text(
            f'listen_tls = 0\nauth_unix_rw = "none"\nunix_sock_group = "root"\nunix_sock_dir = "{self.folder}"\n'
            + (f'host_uuid = "{host_uuid}"\n' if host_uuid else "")
        )
        mounts = []
        for number, place in enumerate(PRIVATE):
            own = self.folder / f"private-{number}"
            own.mkdir()
            Path(place).mkdir(parents=True, exist_ok=True)
            mounts.append(f"mount --bind {own} {place}")
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
            'stdio_handler = "file"\n'
        )
        # The shell reaps what libvirt's processes leave, as the first process must.
        named = [f"hostname {hostname}"] if hostname else []
        script = "; ".join([*mounts, *named, f"libvirtd -f {self.folder}/libvirtd.conf -p {self.folder}/pid & wait"])
        separate = [
            "--mount",
            "--uts",
            "--net",
            "--pid",
            "--propagation",
            "private",
            "--mount-proc",
            "--fork",
            "--kill-child",
        ]
        self._log = (self.folder / "log").open("wb")
        self.process = subprocess.Popen(
            ["unshare", *separate, "sh", "-ec", script], stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        self._wait()

    @property
    def uri(self):
        return f"qemu+unix:///system?socket={self.folder}/libvirt-sock"

    def stop(self):
        self.process.kill()
        self.process.wait(10)
        self._log.close()
        for path in cgroups.read().paths("/machine"):
            for folder in sorted(path.rglob("*"), reverse=True) if path.is_dir() else []:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            with contextlib.suppress(OSError):
                path.rmdir()

    def _wait(self):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self.process.poll() is None:
            if (self.folder / "libvirt-sock").exists():
                return
            time.sleep(0.02)
        raise AssertionError((self.folder / "log").read_text())
