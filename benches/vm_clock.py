"""How well a guest's clock is known: the bound that is stated, held against pulses whose time is known.

A guest's clock is looked at, and its error is bounded for the time that a run waits until its next look: the lead of a
schedule and a block. A stressor in an otherwise idle guest presses and is told to let go at the end of that time. No
timer has a part in that, for it looks at its clock between one piece of work and the next. The host watches its virtual
CPU, which is idle for good from the moment that the guest takes for the one told: the difference is its clock's error
plus the rest of a piece of work, which is not negative. So no pulse may end earlier than its bound allows; and of any
ten, one after the other, the promptest may be later by no more than letting go takes: a clock that is late makes all of
them late, a host that is busy for a moment some. Ten come long after a look, as in slow blocks. The guest's CPU is then
kept busy, and bounds are asked for again and again.

Bar: every bound to the next look, idle or busy, at most 1 ms; pulses within the bounds, both ways, soon after a look
and long after it.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import struct
import time
from dataclasses import dataclass
from typing import Self

from common import arguments, conclude
from guests import client, come_up, guests, needed
from partywall.run.execute import BATCH_NS, LEAD_NS
from partywall.sandbox import Sandbox

LONG_NS = 8_000_000
# Watched from so long before its end; for so long of that it presses for certain.
BEFORE_NS, SURELY_NS = 4_000_000, 2_000_000
# So long a guest that has let go is idle before anything wakes it; less than that is no end of a pulse.
IDLE_NS = 100_000
# The least time in which a schedule arrives.
TOLD_NS = 120_000_000
EVERY_NS = 150_000_000
SPAN_NS = LEAD_NS + BATCH_NS
# Of so many pulses one surely finds the host calm, and then an emulated guest takes so long to let go at the most.
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
    """How much later than told the guest let go, and how far its clock could be off by then at the most."""

    late_ns: int
    bound_ns: int


def pulses(guest: Sandbox, used: ThreadClock, after_ns: int, count: int = 1) -> list[Pulse]:
    """Pulses so long after one look at the guest's clock, whose bound is for all of them."""
    looked_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    bound_ns = guest.clock_error_ns(after_ns + count * EVERY_NS)
    made = []
    for number in range(count):
        at_ns = looked_ns + after_ns + number * EVERY_NS
        time.sleep(max(0, at_ns - TOLD_NS - time.clock_gettime_ns(time.CLOCK_MONOTONIC)) / 1e9)
        made.append(Pulse(late_ns(guest, used, at_ns), bound_ns))
    return made


def late_ns(guest: Sandbox, used: ThreadClock, at_ns: int) -> int:
    """How much later than told the guest lets go."""
    switches = [{"at_ns": at_ns - 2 * LONG_NS, "intensity": 1.0}, {"at_ns": at_ns, "intensity": 0.0}]
    client(guest).call("workload.schedule", id="pulse", switches=switches)
    time.sleep(max(0, at_ns - 7 * BEFORE_NS - time.clock_gettime_ns(time.CLOCK_MONOTONIC)) / 1e9)
    wait_until(at_ns - BEFORE_NS)
    seen = []
    while not seen or seen[-1][0] < at_ns + LONG_NS:
        seen.append((time.clock_gettime_ns(time.CLOCK_MONOTONIC), used.now_ns()))
    return end_ns(seen) - at_ns


def end_ns(seen: list[tuple[int, int]]) -> int:
    """When a busy thread became idle, by samples of (time, time used): so long before it had been idle for IDLE_NS.

    A wait for a CPU looks idle until it is over and counted, so what counts is the last moment of less idleness.
    """
    idle = [moment - used for moment, used in seen]
    busy = statistics.median(found for found, (at, _) in zip(idle, seen, strict=True) if at < seen[0][0] + SURELY_NS)
    last = max(n for n, found in enumerate(idle) if found < busy + IDLE_NS)
    return seen[last][0] - max(0, round(idle[last] - busy))


def margin_ns(made: list[Pulse]) -> int:
    """By how much pulses are within their bounds: the earliest, and the promptest of any ten in a row."""
    rows = [made[n : n + PROMPT_OF] for n in range(max(1, len(made) - PROMPT_OF + 1))]
    late = PROMPT_NS + min(max(p.bound_ns - p.late_ns for p in row) for row in rows)
    return min(late, *(p.late_ns + p.bound_ns for p in made))


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


def told(short: list[Pulse], long: list[Pulse], busy: list[int]) -> None:
    """The figures and the verdict."""
    worst = max([p.bound_ns for p in short] + busy) / 1e6
    for made, when in ((short, f"{SPAN_NS / 1e9:.2f} s after a look"), (long, "long after a look")):
        late = sorted(p.late_ns for p in made)
        shown = ", ".join(f"{late[int(share * (len(late) - 1))] / 1e6:+.3f}" for share in (0, 0.05, 0.5, 0.95, 1))
        print(
            f"{len(made)} pulses {when}: {shown} ms late (0, 5, 50, 95, 100 %), bounds up to "
            f"{max(p.bound_ns for p in made) / 1e6:.3f} ms, within them by {margin_ns(made) / 1e6:.3f} ms"
        )
    middle = statistics.median(p.late_ns for p in short) / 1e6
    margin = min(margin_ns(short), margin_ns(long)) / 1e6
    figure = (
        f"bound to the next look at most {worst:.2f} ms ({len(short) + len(busy)} looks, idle and busy), "
        f"median pulse {middle:+.2f} ms late, all within their bounds by {margin:+.2f} ms"
    )
    conclude("vm-clock", figure, met=worst <= 1 and margin >= 0)


if __name__ == "__main__":
    main()
