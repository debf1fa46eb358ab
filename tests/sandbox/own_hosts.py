"""Guests of "the user's own" for tests: firmware that finds nothing to boot, in few MiB, under a QEMU or a libvirtd."""

import subprocess
import time
from pathlib import Path

from libvirt_daemon import Daemon

DOMAIN = """
<domain type='qemu'><name>web</name><memory unit='MiB'>48</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='pc-i440fx-7.2'>hvm</type></os><features><acpi/></features>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator>{devices}</devices></domain>
"""


class Monitored:
    """A QEMU with a monitor that the user could have started. arriving: it waits for a guest."""

    def __init__(self, folder, name, *, arriving=False, options=()):
        self.socket = Path(folder, f"{name}.qmp")
        argv = [
            *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-nodefaults", "-display", "none"),
            *("-accel", "tcg", "-m", "48384k", "-qmp", f"unix:{self.socket},server=on,wait=off", *options),
            *(("-incoming", "defer", "-S") if arriving else ()),
        ]
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while not self.socket.exists() and time.monotonic() < deadline and self.process.poll() is None:
            time.sleep(0.02)

    def stop(self):
        self.process.kill()
        self.process.wait()


class TwoDaemons:
    """Two libvirtd with a network between them."""

    def __init__(self, folder):
        self.daemons = []
        try:
            hosts = "198.18.77.1 host1\n198.18.77.2 host2"
            for number in (1, 2):
                own = Path(folder, f"host{number}")
                own.mkdir()
                uuid = f"{number}1111111-2222-3333-4444-555555555555"
                self.daemons.append(Daemon(own, hostname=f"host{number}", host_uuid=uuid, hosts=hosts))
            one, two = (daemon.process.pid for daemon in self.daemons)
            run(
                "ip",
                "link",
                "add",
                "move0",
                "netns",
                str(one),
                "type",
                "veth",
                "peer",
                "name",
                "move0",
                "netns",
                str(two),
            )
            for number, pid in enumerate((one, two), 1):
                inside = ("nsenter", f"--net=/proc/{pid}/ns/net", "ip")
                run(*inside, "addr", "add", f"198.18.77.{number}/24", "dev", "move0")
                run(*inside, "link", "set", "move0", "up")
                run(*inside, "link", "set", "lo", "up")
        except BaseException:
            self.stop()
            raise

    def stop(self):
        for daemon in self.daemons:
            daemon.stop()


def run(*argv):
    subprocess.run(argv, check=True, capture_output=True)
