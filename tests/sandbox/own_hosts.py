"""Guests of "the user's own" for tests: firmware in few MiB under a QEMU, which finds nothing to boot, or a writer."""

import struct
import subprocess
import time
from pathlib import Path

MIB = 1 << 20
BEGIN, PAGE, TICKS = 2 * MIB, 4096, 18.2065
# A boot sector (made by GNU as). In real mode with a segment of 4 GiB it writes a byte to each page from BEGIN to
# `filled`, and then, at each tick of the timer (18.2 Hz, hlt), increments a byte of each of the next `pages` pages,
# from BEGIN to `end` and round again.
WRITER = bytes.fromhex(
    "fa31c08ed88ed0bc007ce4920c02e692ea157c0000e84b0066bf00002000663b3e917c730e6467fe47016681c700100000eb"
    "eb66bf00002000fbf4fae82400668b0e997c67e3f2663b3e957c720666bf000020006467fe076681c7001000006649ebe10f"
    "01168b7c0f20c00c010f22c0bb08008ee324fe0f22c0c30000000000000000ffff00000092cf000f007b7c00001111111122"
    "22222233333333"
)


def writer(folder, filled, working_set, rate):
    """A read-only floppy that boots a guest with so much content, which changes a part of it at a rate. Bytes."""
    values = {0x11: BEGIN + filled, 0x22: BEGIN + working_set, 0x33: round(rate / TICKS / PAGE)}
    code = WRITER
    for mark, value in values.items():
        code = code.replace(bytes([mark] * 4), struct.pack("<I", value))
    image = Path(folder, f"writer-{filled}-{working_set}-{rate}.img")
    image.write_bytes((code.ljust(510, b"\0") + b"\x55\xaa").ljust(1474560, b"\0"))
    return image


def booted(image):
    """Options of a QEMU that boots it."""
    return "-drive", f"if=floppy,file={image},format=raw,readonly=on", "-boot", "a"


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
