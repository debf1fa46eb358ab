"""How well a guest's clock is known: the bound that is stated, held against pulses whose time is known.

A guest's clock is looked at, and its error is bounded for the time that a run waits until its next look: the lead of a
schedule and a block. A stressor in an otherwise idle guest is told to press and, at the end of that time, to let go.
The host watches its virtual CPU, which is busy and then idle for good from the moments that the guest takes for those
told.

When it lets go no timer has a part in it, for it looks at its clock between one piece of work and the next: the
difference is its clock's error plus the rest of a piece of work, which is not negative. So no pulse may end earlier
than its bound allows. A clock that is late makes beginnings and ends late alike. An end is later by what letting go
takes, for certain; a beginning by what waking takes, unless something else had woken the guest just before. So of any
ten pulses, one after the other, the promptest end or the middle one of the beginnings must be later by no more than the
bound and what an emulated guest takes for such a thing. Ten come long after a look, as in slow blocks. The guest's CPU
is then kept busy, and bounds are asked for again and again.

Bar: every bound to the next look, idle or busy, at most 1 ms; pulses within the bounds, both ways, soon after a look
and long after it.
"""

from __future__ import annotations

import ctypes
import math
import os
import statistics
import struct
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from common import arguments, conclude
from guests import client, come_up, guests, needed
from partywall.run.execute import BATCH_NS, LEAD_NS
from partywall.sandbox import Sandbox

LONG_NS = 8_000_000
# Watched from so long before it begins.
BEFORE_NS = 4_000_000
# Idleness that is shorter is a part of a pulse, and shorter work is none.
IDLE_NS = 100_000
# The least time in which a schedule arrives.
TOLD_NS = 120_000_000
EVERY_NS = 150_000_000
SPAN_NS = LEAD_NS + BATCH_NS
# Of so many pulses some surely find the host calm, and then an emulated guest takes so long to wake, or to let go.
PROMPT_OF = 10
PROMPT_NS = 500_000


class ThreadClock:
    """Time in which a thread of another process ran or waited for a CPU; use as a context manager.

    What it ran is asked of the CPU that it is on, up to this moment: the kernel's process clocks and /proc tell what
    was booked at the last tick. What it waited is told when it runs again. Source: perf_event_open(2), proc(5).
    """

    _SYSCALL, _SOFTWARE, _TASK_CLOCK, _ATTRIBUTE_BYTES = 298, 1, 1, 128

    def __init__(self, thread: int) -> None:
        attribute = struct.pack("IIQ", self._SOFTWARE, self._ATTRIBUTE_BYTES, self._TASK_CLOCK)
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.syscall(self._SYSCALL, attribute.ljust(self._ATTRIBUTE_BYTES, b"\0"), thread, -1, -1, 0)
        if self._fd < 0:
            conclude("vm-clock", f"not measured: perf_event_open: {os.strerror(ctypes.get_errno())}", met=False)
        self._waited = os.open(f"/proc/{thread}/schedstat", os.O_RDONLY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        os.close(self._waited)

    def now_ns(self) -> int:
        ran = int.from_bytes(os.read(self._fd, 8), "little")
        return ran + int(os.pread(self._waited, 100, 0).split()[1])


def wait_until(at_ns: int) -> None:
    while time.clock_gettime_ns(time.CLOCK_MONOTONIC) < at_ns:
        pass


@dataclass(frozen=True)
class Pulse:
    """How much later than told the guest pressed and let go, and how far its clock could be off by then at the most."""

    began_late_ns: int
    ended_late_ns: int
    bound_ns: int


def pulses(guest: Sandbox, used: ThreadClock, after_ns: int, count: int = 1) -> list[Pulse]:
    """Pulses so long after one look at the guest's clock, whose bound is for all of them."""
    looked_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    bound_ns = guest.clock_error_ns(after_ns + count * EVERY_NS)
    made = []
    for number in range(count):
        at_ns = looked_ns + after_ns + number * EVERY_NS
        time.sleep(max(0, at_ns - TOLD_NS - time.clock_gettime_ns(time.CLOCK_MONOTONIC)) / 1e9)
        began_ns, ended_ns = pulse(guest, used, at_ns - LONG_NS, at_ns)
        made.append(Pulse(began_ns - (at_ns - LONG_NS), ended_ns - at_ns, bound_ns))
    return made


def pulse(guest: Sandbox, used: ThreadClock, from_ns: int, to_ns: int) -> tuple[int, int]:
    """When a guest that is told to press so long was busy."""
    switches = [{"at_ns": from_ns, "intensity": 1.0}, {"at_ns": to_ns, "intensity": 0.0}]
    client(guest).call("workload.schedule", id="pulse", switches=switches)
    time.sleep(max(0, from_ns - 3 * BEFORE_NS - time.clock_gettime_ns(time.CLOCK_MONOTONIC)) / 1e9)
    wait_until(from_ns - BEFORE_NS)
    seen = []
    while not seen or seen[-1][0] < to_ns + LONG_NS:
        seen.append((time.clock_gettime_ns(time.CLOCK_MONOTONIC), used.now_ns()))
    # An emulated guest that waits for its emulator is idle for a moment amid its work.
    own = [stretch for stretch in stretches(seen) if stretch[0] < to_ns]
    return min((start for start, _ in own), key=lambda start: abs(start - from_ns)), own[-1][1]


def stretches(seen: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """When a thread was busy, from and to, by samples of (time, time used).

    What it had idled stands still meanwhile. A wait for a CPU looks idle until it is over and counted, which takes back
    what had seemed to be idled.
    """
    found: list[tuple[int, int]] = []
    # From behind, so that what is taken back is known: idled no more than this by then.
    idled, least = [], math.inf
    for moment, used in reversed(seen):
        least = min(least, moment - used)
        idled.append((moment, least))
    idled.reverse()
    for (before, first), (after, last) in pairwise(idled):
        if last - first >= (after - before) / 2:
            continue
        if found and before - found[-1][1] < IDLE_NS:
            found[-1] = (found[-1][0], after)
        else:
            found.append((before, after))
    return [(start, end) for start, end in found if end - start >= IDLE_NS]


def margin_ns(made: list[Pulse]) -> int:
    """By how much pulses are within their bounds: the earliest end, and the latest ten in a row."""
    rows = [made[n : n + PROMPT_OF] for n in range(max(1, len(made) - PROMPT_OF + 1))]
    late = PROMPT_NS + min(max(by_ends_ns(row), by_beginnings_ns(row)) for row in rows)
    return min(late, *(p.ended_late_ns + p.bound_ns for p in made))


def by_ends_ns(row: list[Pulse]) -> int:
    return max(p.bound_ns - p.ended_late_ns for p in row)


def by_beginnings_ns(row: list[Pulse]) -> int:
    return round(statistics.median(p.bound_ns - p.began_late_ns for p in row))


def main() -> None:
    options = arguments(__doc__ or "")
    needed("vm-clock")
    # The host watches from CPU 0; the guest has CPU 1.
    with guests(1, cpus=(1,), host_cpus=(1,)) as made:
        come_up(made)
        guest = made[0]
        guest.settle()
        work = {"kernel": {"name": "integer", "params": {}}}
        start = {"work": work, "work_dir": guest.work_dir}
        client(guest).call("workload.start", id="pulse", pace="scheduled", **start)
        client(guest).call("workload.calibrate", id="pulse", for_ns=100_000_000)
        # Opened once: opening waits for all CPUs of the host, for some milliseconds.
        with ThreadClock(guest.cgroup_member or client(guest).process.pid) as used:
            tries = 24 if options.quick else 80
            short = [pulse for _ in range(tries) for pulse in pulses(guest, used, SPAN_NS - EVERY_NS)]
            # A correction that stays in force for as long as this has the time to carry a clock away.
            long = pulses(guest, used, 8_000_000_000 if options.quick else 30_000_000_000, PROMPT_OF)
        client(guest).call("workload.start", id="busy", pace="flat_out", **start)
        busy = []
        for _ in range(20 if options.quick else 60):
            time.sleep(0.4)
            busy.append(guest.clock_error_ns(SPAN_NS))
    told(short, long, busy)


def spread(late_ns: list[int]) -> str:
    late = sorted(late_ns)
    return ", ".join(f"{late[int(share * (len(late) - 1))] / 1e6:+.3f}" for share in (0, 0.05, 0.5, 0.95, 1))


def told(short: list[Pulse], long: list[Pulse], busy: list[int]) -> None:
    """The figures and the verdict."""
    worst = max([p.bound_ns for p in short] + busy) / 1e6
    for made, when in ((short, f"{SPAN_NS / 1e9:.2f} s after a look"), (long, "long after a look")):
        began, ended = spread([p.began_late_ns for p in made]), spread([p.ended_late_ns for p in made])
        print(
            f"{len(made)} pulses {when}: began {began} ms late (0, 5, 50, 95, 100 %), ended {ended}, bounds up to "
            f"{max(p.bound_ns for p in made) / 1e6:.3f} ms, within them by {margin_ns(made) / 1e6:.3f} ms"
        )
    middle = statistics.median(p.ended_late_ns for p in short) / 1e6
    margin = min(margin_ns(short), margin_ns(long)) / 1e6
    figure = (
        f"bound to the next look at most {worst:.2f} ms ({len(short) + len(busy)} looks, idle and busy), "
        f"median pulse ended {middle:+.2f} ms late, all within their bounds by {margin:+.2f} ms"
    )
    conclude("vm-clock", figure, met=worst <= 1 and margin >= 0)


if __name__ == "__main__":
    main()
