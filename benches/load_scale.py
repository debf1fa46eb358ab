"""20,000 users who mostly think, on one core.

Each asks, is answered, and thinks for 10 s; all come within 10 s. Told: memory of the generator's process in all and a
user, CPU, and how many were there. The kernel's memory for their sockets is the kernel's, and told beside it.

Bar: all 20,000 are there at the same time, without errors, in under 1 GiB.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from common import arguments, conclude
from generators import GENERATOR_CPU, nginx
from partywall.load.quick import Quick, program
from partywall.load.session import Session, Setup
from partywall.sandbox import reap

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


def main() -> None:
    options = arguments(__doc__ or "")
    hold = 15 if options.quick else 60
    reap()
    most_bytes = most_users = socket_most = errors = responses = 0
    busy_ns = 0.0
    with nginx() as url:
        asked = Quick(url=url, for_ns=hold * SECOND, users=USERS, ramp_ns=10 * SECOND, think_ns=10 * SECOND)
        with Session(program(asked), Setup(name="scale", cpus=(GENERATOR_CPU,))) as session:
            pid = session.generator_pid or 0
            before = resident_bytes(pid)
            for second in session.run():
                with contextlib.suppress(OSError):
                    most_bytes = max(most_bytes, resident_bytes(pid))
                if second is None:
                    continue
                socket_most = max(socket_most, socket_bytes())
                most_users = max(most_users, second.users)
                errors += sum(second.errors.values())
                responses += sum(second.statuses.values())
                busy_ns = max(busy_ns, sum(thread["cpu_ns"] for thread in second.threads))
    each = (most_bytes - before) / max(most_users, 1)
    print(f"{most_users} users at the same time, {responses} responses, {errors} errors")
    print(
        f"generator: {most_bytes / 2**20:.0f} MiB, {each:.0f} bytes a user; "
        f"busiest second {busy_ns / 1e9:.0%} of a core"
    )
    print(f"the kernel's TCP memory, both ends: {socket_most / 2**20:.0f} MiB")
    figure = f"{most_users} users in {most_bytes / 2**20:.0f} MiB ({each:.0f} bytes a user)"
    conclude("load-scale", figure, met=most_users >= USERS and most_bytes < 2**30 and errors == 0)


if __name__ == "__main__":
    main()
