"""Guests of "the user's own" for tests: firmware that finds nothing to boot, in few MiB, under a QEMU."""

import subprocess
import time
from pathlib import Path


class Monitored:
    """A QEMU with a monitor that the user could have started. arriving: it waits for a guest."""

    def __init__(self, folder, name, *, arriving=False, options=()):
        self.socket = Path(folder, f"{name}.qmp")
        argv = [
            *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-nodefaults", "-display", "none"),
            *("-accel", "tcg", "-m", "48512k", "-qmp", f"unix:{self.socket},server=on,wait=off", *options),
            *(("-incoming", "defer", "-S") if arriving else ()),
        ]
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while not self.socket.exists() and time.monotonic() < deadline and self.process.poll() is None:
            time.sleep(0.02)

    def stop(self):
        self.process.kill()
        self.process.wait()
