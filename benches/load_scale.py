"""20,000 users who mostly think, on one core.

Each asks, is answered, and thinks for 10 s; all come within 10 s. Printed: memory of the generator's process in all
and a user, CPU, and how many were there. Where a process may not open so many files, generators on the same core share
the users. The kernel's memory for their sockets is the kernel's, and printed beside it.
"""

from __future__ import annotations

import contextlib
import resource
import threading
from collections import Counter
from pathlib import Path

from frame import Options, Outcome, bench
from generators import GENERATOR_CPU, nginx
from partywall.load.measure import PreparedLoad, Setup
from partywall.load.quick import Quick, program

SECOND = 1_000_000_000
USERS = 20_000


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def socket_bytes() -> int:
    """TCP's memory, both ends of every connection of this host."""
    for line in Path("/proc/net/sockstat").read_text().splitlines():
        if line.startswith("TCP:"):
            return int(line.split()[-1]) * 4096
    return 0


class Generator(threading.Thread):
    """One generator with its share of the users, followed to its end."""

    def __init__(self, url: str, users: int, hold_s: int) -> None:
        super().__init__()
        think, ramp = 10 * SECOND, 10 * SECOND
        quick = Quick(url=url, for_ns=hold_s * SECOND, users=users, ramp_ns=ramp, think_ns=think)
        self.session = PreparedLoad(program(quick), Setup(name="scale", cpus=(GENERATOR_CPU,)))
        self.pid = self.session.generator_pid or 0
        self.before = self.most_bytes = resident_bytes(self.pid)
        self.users: Counter[int] = Counter()
        self.cpu_ns: Counter[int] = Counter()
        self.errors = self.responses = self.socket_bytes = 0

    def run(self) -> None:
        with self.session:
            for second in self.session.run():
                with contextlib.suppress(OSError):
                    self.most_bytes = max(self.most_bytes, resident_bytes(self.pid))
                if second is None:
                    continue
                number = second.start_ns // SECOND
                self.users[number] = second.users
                self.cpu_ns[number] = int(sum(thread["cpu_ns"] for thread in second.threads) / second.length_s)
                self.errors += sum(second.errors.values())
                self.responses += sum(second.statuses.values())
                self.socket_bytes = max(self.socket_bytes, socket_bytes())


@bench(plants={"gone": "the server ends in the middle"}, needs=("nginx",))
def main(options: Options) -> Outcome:
    hold_s = 15 if options.quick else 60
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    parts = 1 if limit == resource.RLIM_INFINITY else -(-USERS // max(1, limit - 100))
    # Started one after the other, for each reaps what dead ones left before it begins.
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(nginx(workers=parts))
        generators = [Generator(url, (USERS + number) // parts, hold_s) for number in range(parts)]
        for generator in generators:
            generator.start()
        if options.plant:
            threading.Timer(hold_s, stack.close).start()
        for generator in generators:
            generator.join()
    users = max(sum((g.users for g in generators), Counter()).values())
    busiest = max(sum((g.cpu_ns for g in generators), Counter()).values()) / SECOND
    most_bytes = sum(g.most_bytes for g in generators)
    each = (most_bytes - sum(g.before for g in generators)) / max(users, 1)
    errors = sum(g.errors for g in generators)
    print(f"{users} users at the same time, {sum(g.responses for g in generators)} responses, {errors} errors")
    if parts > 1:
        print(f"in {parts} generators, for a process may have {limit} files here")
    print(f"{most_bytes / 2**20:.0f} MiB in all, {each:.0f} bytes a user; busiest second {busiest:.0%} of the core")
    print(f"the kernel's TCP memory, both ends: {max(g.socket_bytes for g in generators) / 2**20:.0f} MiB")
    figure = f"{users} users in {most_bytes / 2**20:.0f} MiB ({each:.0f} bytes a user)"
    return Outcome(figure, users >= USERS and most_bytes < 2**30 and errors == 0)


if __name__ == "__main__":
    main()
