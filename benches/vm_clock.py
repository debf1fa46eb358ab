"""How well a guest's clock is known: the bound that is stated, held against pulses whose time is known.

A stressor in an otherwise idle guest is told to press from a time of the host's on. The host watches the CPU time of
the guest's process, which rises from the moment the guest takes for that time: the difference is its clock's error plus
the time the guest takes to wake up, which is never negative. The guest's CPU is then kept busy, and the bound is asked
for again and again.

Bar: every bound, idle or busy, at most 1 ms; no pulse earlier than its bound allows; the median pulse within 1 ms.
"""

from __future__ import annotations

import statistics
import time

from common import arguments, conclude
from guests import client, come_up, guests, needed
from partywall.sandbox import Sandbox

LONG_NS = 8_000_000
BEFORE_NS = 1_000_000


def cpu_ns(pid: int) -> int:
    """CPU time of a process, up to this moment. Source: clock_getcpuclockid(3) and the kernel's posix-timers.h."""
    return time.clock_gettime_ns((~pid << 3) | 2)


def wait_until(at_ns: int) -> None:
    while time.clock_gettime_ns(time.CLOCK_MONOTONIC) < at_ns:
        pass


def pulse(guest: Sandbox) -> int:
    """How much later than told the guest began to press, in nanoseconds."""
    pid = client(guest).process.pid
    at_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + 120_000_000
    switches = [{"at_ns": at_ns, "intensity": 1.0}, {"at_ns": at_ns + 2 * LONG_NS, "intensity": 0.0}]
    client(guest).call("workload.schedule", id="pulse", switches=switches)
    time.sleep(0.1)
    wait_until(at_ns - BEFORE_NS)
    idle = cpu_ns(pid)
    wait_until(at_ns + LONG_NS)
    busy, end_ns = cpu_ns(pid), time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    # Once it presses it uses all of a CPU, so it began as long ago as what it has used.
    return end_ns - (busy - idle) - at_ns


def main() -> None:
    options = arguments(__doc__ or "")
    needed("vm-clock")
    pulses, bounds = [], []
    # The host watches from CPU 0; the guest has CPU 1.
    with guests(1, cpus=(1,), host_cpus=(1,)) as made:
        come_up(made)
        guest = made[0]
        guest.settle()
        work = {"kernel": {"name": "integer", "params": {}}}
        start = {"work": work, "work_dir": guest.work_dir}
        client(guest).call("workload.start", id="pulse", pace="scheduled", **start)
        client(guest).call("workload.calibrate", id="pulse", for_ns=100_000_000)
        for _ in range(30 if options.quick else 200):
            bounds.append(guest.clock_error_ns())
            pulses.append(pulse(guest))
        client(guest).call("workload.start", id="busy", pace="flat_out", **start)
        for _ in range(20 if options.quick else 120):
            time.sleep(0.5)
            bounds.append(guest.clock_error_ns())
    worst, middle = max(bounds) / 1e6, statistics.median(pulses) / 1e6
    early = min(p + b for p, b in zip(pulses, bounds, strict=False)) / 1e6
    low, high = (sorted(pulses)[int(share * (len(pulses) - 1))] / 1e6 for share in (0.05, 0.95))
    print(f"{len(pulses)} pulses: {low:+.3f} to {high:+.3f} ms after the time told (5 to 95 %)")
    print(f"earliest against its bound: {early:+.3f} ms (negative would be outside)")
    figure = f"bound at most {worst:.2f} ms ({len(bounds)} looks, idle and busy), median pulse {middle:+.2f} ms late"
    conclude("vm-clock", figure, met=worst <= 1 and early >= 0 and abs(middle) <= 1)


if __name__ == "__main__":
    main()
