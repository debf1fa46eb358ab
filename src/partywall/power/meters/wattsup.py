"""Watts up? .Net and PRO: plug meters with a serial protocol over USB, at one record a second.

wattsup:/dev/ttyUSB0. 115200 baud, 8N1; packets such as `#d,-,18,719,…;`, whose first value is tenths of watts.
"""

from __future__ import annotations

import contextlib
import os
import select
import termios
import time
import tty

from partywall.host import Host
from partywall.power.address import Address, unusable
from partywall.power.meters.base import MeterError, Place, listed, now_ns, number
from partywall.power.values import MeterFacts, Reading

SCHEMES = ("wattsup",)
EVERY_S = 1
LATE_S = 2.5
"""A record comes each second; later than this the meter is silent."""
START, STOP = f"#L,W,3,E,{EVERY_S},{EVERY_S};", "#L,R,0;"
MOST_BYTES = 1 << 16


class WattsUp:
    """The meter sends; a reading is the next record."""

    def __init__(self, address: Address) -> None:
        self._device = address.path
        self._file: int | None = None
        self._buffer = b""
        self.facts = MeterFacts(
            meter=address.text, step=0.1, covers="what is plugged into it", sends=True, about=self._device
        )

    def read(self) -> Reading:
        begin_ns = now_ns()
        deadline = time.monotonic() + LATE_S
        try:
            if self._file is None:
                self._file = opened(self._device)
            record = self._record(self._file, deadline)
        except OSError as error:
            self.close()
            raise MeterError("gone", f"{self._device}: {error.strerror or error}") from None
        at_ns = now_ns()
        return Reading(meter=self.facts.meter, time_ns=at_ns, watts=watts_of(record), took_ns=at_ns - begin_ns)

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.write(self._file, STOP.encode())
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file, self._buffer = None, b""

    def _record(self, file: int, deadline: float) -> str:
        """The next data record; older ones that wait are left out."""
        last = ""
        while True:
            while b";" in self._buffer:
                packet, _, self._buffer = self._buffer.partition(b";")
                last = packet.decode("ascii", "replace").strip() or last
                if not last.startswith(("#d,", "#v,", "#h,", "#l,")):
                    raise MeterError("garbage", f"{self._device} sent {last[:40]!r}")
            waiting = 0.0 if last.startswith("#d,") else deadline - time.monotonic()
            if not select.select([file], [], [], max(0.0, waiting))[0]:
                if last.startswith("#d,"):
                    return last
                raise MeterError("silent", f"{self._device} sent no record within {LATE_S:g} s")
            if not (more := os.read(file, 4096)):
                raise OSError(0, "the meter was unplugged")
            self._buffer = (self._buffer + more)[-MOST_BYTES:]


def opened(device: str) -> int:
    """A serial line in raw mode at 115200 baud, and the request to send records."""
    file = os.open(device, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(file)
    settings = termios.tcgetattr(file)
    settings[4] = settings[5] = termios.B115200
    termios.tcsetattr(file, termios.TCSANOW, settings)
    termios.tcflush(file, termios.TCIFLUSH)
    os.write(file, START.encode())
    return file


def watts_of(record: str) -> float:
    """The watts of a data record. MeterError if it has none."""
    fields = record.split(",")
    if len(fields) < 4:
        raise MeterError("garbage", f"the record {record[:40]!r} is too short")
    return number(fields[3], "the record's watts", most=1e7) / 10


def check(address: Address) -> None:
    if not address.path:
        raise unusable(address.text, "it names no device", "give for example wattsup:/dev/ttyUSB0")


def make(address: Address, host: Host) -> WattsUp:
    device = host.path(address.path)
    if not device.exists():
        raise unusable(address.text, f"{address.path} does not exist", "is the meter plugged in?")
    return WattsUp(address)


def find(host: Host) -> list[Place]:
    ports = listed(host, "/dev", "ttyUSB*")
    if not ports:
        return [Place("wattsup:DEVICE", "Watts up? plug meter", "there is no /dev/ttyUSB*", "plug it in")]
    return [Place(f"wattsup:/dev/{port.name}", "a serial port; may be a Watts up? plug meter") for port in ports]
