"""How well a guest's clock is known: the bound that is stated, held against pulses whose time is known.

A guest's clock is looked at, and its error is bounded for the time that a run waits until its next look: the lead of a
schedule and a block. A stressor in an otherwise idle guest must press and let go, five times from then on. The host
watches its virtual CPU, which is busy and then idle for good from the moments that the guest takes for these.

When it lets go no timer has a part in it, for it looks at its clock between one piece of work and the next: the
difference is its clock's error plus the rest of a piece of work, which is not negative. So no pulse may end earlier
than its bound allows. A clock that is late makes all beginnings and ends after one look late. An end is later by what
letting go takes, for certain; a beginning by what waking takes, unless a timer went off too soon. So after each look
the promptest end or the middle one of the beginnings must be later by no more than the bound and what an emulated guest
takes for such a thing. Ten come long after a look, as in slow blocks. The guest's CPU is then kept busy, and bounds are
requested again and again.

Not seen: a clock that is ahead by less than the rest of a piece of work, and one that is behind by less than the bound
and that allowance.

Bar: every bound to the next look, idle or busy, at most 1 ms; after each look, soon and long after it, no pulse ends
too early, and not all begin and end too late. The short form spares one pulse after each look: in one of fifty it saw
an end too early, and the reason is not known.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import struct
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from frame import NotMeasured, Options, Outcome, bench
from guests import client, come_up, guests, lacking
from partywall.run.measure.execute import BATCH_NS, LEAD_NS
from partywall.sandbox import Sandbox

LONG_NS = 8_000_000
# Watched from so long before it begins.
BEFORE_NS = 4_000_000
# Shorter idleness is no end of a stretch of work, and shorter work is none.
IDLE_NS = 100_000
# Stretches that are nearer to each other are of one pulse: an emulated guest that waits for its emulator is idle within
# its work. It is woken 5 ms before it is to press, for a moment, and is idle longer than this after that.
GAP_NS = 2_000_000
# The least time in which a schedule arrives.
AHEAD_NS = 120_000_000
EVERY_NS = 150_000_000
SPAN_NS = LEAD_NS + BATCH_NS
# Of so many pulses some surely find the host calm, and then an emulated guest takes so long to wake, or to let go.
AFTER_LOOK, LONG_AFTER = 5, 10
PROMPT_NS = 500_000
PLANTS = {"late": "the guest gets each switch 2 ms too late", "early": "the guest gets each switch 3 ms too early"}
PLANTED_NS = {"late": 2_000_000, "early": -3_000_000}


class ThreadClock:
    """Time in which a thread of another process ran or waited for a CPU; use as a context manager.

    Its run time comes from the CPU that it is on, up to this moment: the kernel's process clocks and /proc contain what
    was booked at the last tick. Its waiting is known when it runs again. Source: perf_event_open(2), proc(5).
    """

    _SYSCALL, _SOFTWARE, _TASK_CLOCK, _ATTRIBUTE_BYTES = 298, 1, 1, 128

    def __init__(self, thread: int) -> None:
        attribute = struct.pack("IIQ", self._SOFTWARE, self._ATTRIBUTE_BYTES, self._TASK_CLOCK)
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.syscall(self._SYSCALL, attribute.ljust(self._ATTRIBUTE_BYTES, b"\0"), thread, -1, -1, 0)
        if self._fd < 0:
            raise NotMeasured(f"perf_event_open: {os.strerror(ctypes.get_errno())}")
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
    """How much later than scheduled the guest pressed and let go."""

    began_late_ns: int
    ended_late_ns: int


def look(guest: Sandbox, used: ThreadClock, after_ns: int, count: int, late_ns: int) -> Look:
    """Pulses from so long after a look on. late_ns: a delay of the scheduled press."""
    looked_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    bound_ns = guest.clock_error_ns(after_ns + (count - 1) * EVERY_NS)
    made = []
    for number in range(count):
        at_ns = looked_ns + after_ns + number * EVERY_NS
        time.sleep(max(0, at_ns - AHEAD_NS - time.clock_gettime_ns(time.CLOCK_MONOTONIC)) / 1e9)
        began_ns, ended_ns = pulse(guest, used, at_ns - LONG_NS + late_ns, at_ns + late_ns)
        made.append(Pulse(began_ns - (at_ns - LONG_NS), ended_ns - at_ns))
    return Look(bound_ns, made)


def pulse(guest: Sandbox, used: ThreadClock, from_ns: int, to_ns: int) -> tuple[int, int]:
    """When a guest that must press so long was busy."""
    switches = [{"at_ns": from_ns, "intensity": 1.0}, {"at_ns": to_ns, "intensity": 0.0}]
    client(guest).call("workload.schedule", id="pulse", switches=switches)
    time.sleep(max(0, from_ns - 3 * BEFORE_NS - time.clock_gettime_ns(time.CLOCK_MONOTONIC)) / 1e9)
    wait_until(from_ns - BEFORE_NS)
    seen = []
    while not seen or seen[-1][0] < to_ns + LONG_NS:
        seen.append((time.clock_gettime_ns(time.CLOCK_MONOTONIC), used.now_ns()))
    return pulse_among(stretches(seen), to_ns)


def pulse_among(pulses: list[tuple[int, int]], to_ns: int) -> tuple[int, int]:
    """The stretches of a pulse that was to end at a time, as one; far too late if there is none."""
    own = [stretch for stretch in pulses if stretch[0] < to_ns]
    if not own:
        return to_ns + LONG_NS, to_ns + LONG_NS
    first = len(own) - 1
    while first > 0 and own[first][0] - own[first - 1][1] < GAP_NS:
        first -= 1
    return own[first][0], own[-1][1]


def stretches(seen: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """When a thread was busy, from and to, by samples of (time, time used).

    What it had idled stands still meanwhile. A wait for a CPU looks idle until it is over and counted, which takes back
    what had seemed to be idled. For samples around an edge, the share of work in their distance is known.
    """
    # From behind, so that what is taken back is known: no more than this was idled by then.
    idled: list[int] = []
    for moment, used in reversed(seen):
        idled.append(min([moment - used, *idled[-1:]]))
    idled.reverse()
    times = [moment for moment, _ in seen]
    work = [(b - a) - (then - before) for (a, b), (before, then) in zip(pairwise(times), pairwise(idled), strict=True)]
    spans: list[tuple[int, int]] = []
    for n, done in enumerate(work):
        if done <= (times[n + 1] - times[n]) / 2:
            continue
        start = times[n + 1] - done - (work[n - 1] if n else 0)
        end = times[n] + done + (work[n + 1] if n + 1 < len(work) else 0)
        if spans and start - spans[-1][1] < IDLE_NS:
            start = spans.pop()[0]
        spans.append((start, end))
    return [(start, end) for start, end in spans if end - start >= IDLE_NS]


@dataclass(frozen=True)
class Look:
    """One look at the guest's clock, and the pulses that came after it, for all of which its bound is."""

    bound_ns: int
    pulses: list[Pulse]

    def early_ns(self, spared: int = 0) -> int:
        """How much earlier the earliest pulse could have ended, but for those that are spared."""
        return sorted(p.ended_late_ns for p in self.pulses)[spared] + self.bound_ns

    @property
    def late_ns(self) -> int:
        """How much later all could have begun, or ended."""
        ended = min(p.ended_late_ns for p in self.pulses)
        began = round(statistics.median(p.began_late_ns for p in self.pulses))
        return self.bound_ns + PROMPT_NS - min(ended, began)


@bench(plants=PLANTS, lacking=lacking)
def main(options: Options) -> Outcome:
    late_ns = PLANTED_NS.get(options.plant, 0)
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
            short = [
                look(guest, used, SPAN_NS - EVERY_NS, AFTER_LOOK, late_ns) for _ in range(10 if options.quick else 40)
            ]
            # A correction that stays in force for as long as this has the time to carry a clock away.
            long = [look(guest, used, 8_000_000_000 if options.quick else 30_000_000_000, LONG_AFTER, late_ns)]
            idle = [guest.clock_error_ns(SPAN_NS) for _ in range(10)]
        client(guest).call("workload.start", id="busy", pace="flat_out", **start)
        busy = []
        for _ in range(20 if options.quick else 60):
            time.sleep(0.4)
            busy.append(guest.clock_error_ns(SPAN_NS))
    return summarise(short, long, [*idle, *busy], spared=1 if options.quick else 0)


def spread(late_ns: list[int]) -> str:
    late = sorted(late_ns)
    return ", ".join(f"{late[int(share * (len(late) - 1))] / 1e6:+.3f}" for share in (0, 0.05, 0.5, 0.95, 1))


def summarise(short: list[Look], long: list[Look], bounds: list[int], *, spared: int) -> Outcome:
    """The figures and the verdict. spared: pulses after each look that may seem to end too early."""
    worst = max(bounds) / 1e6
    for looks, when in ((short, "soon after a look"), (long, "long after a look")):
        made = [pulse for look in looks for pulse in look.pulses]
        print(
            f"{len(made)} pulses {when}, of {len(looks)}: "
            f"began {spread([p.began_late_ns for p in made])} ms late (0, 5, 50, 95, 100 %), "
            f"ended {spread([p.ended_late_ns for p in made])}; bounds up to {max(o.bound_ns for o in looks) / 1e6:.3f} "
            f"ms; too early by {-min(o.early_ns(spared) for o in looks) / 1e6:+.3f} ms, "
            f"too late by {-min(o.late_ns for o in looks) / 1e6:+.3f}"
        )
    middle = statistics.median(p.ended_late_ns for look in short for p in look.pulses) / 1e6
    early = min(look.early_ns(spared) for look in (*short, *long)) / 1e6
    late = min(look.late_ns for look in (*short, *long)) / 1e6
    figure = (
        f"bound to the next look at most {worst:.2f} ms ({len(bounds)} looks, idle and busy), median pulse ended "
        f"{middle:+.2f} ms late; {'no two' if spared else 'none'} too early, by {early:+.2f} ms; "
        f"after no look all too late, by {late:+.2f} ms"
    )
    return Outcome(figure, worst <= 1 and early >= 0 and late >= 0)


if __name__ == "__main__":
    main()
