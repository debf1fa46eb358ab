"""The clock of another machine, by ssh: QEMU stamps its events there with that machine's time."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from dataclasses import dataclass

from partywall.sandbox.ssh import connection

LOOKS = 9
LONGEST_S = 40.0
LOOP = "while read -r line; do date +%s%N || exit; done"


@dataclass(frozen=True)
class Ahead:
    """By how much its real-time clock is ahead of this one's, in ns, and the largest error."""

    ns: int
    bound_ns: int


def ahead(ssh: str) -> Ahead | None:
    """The look with the shortest way there and back counts. None if the machine does not tell its time."""
    looks: list[Ahead] = []
    with (
        subprocess.Popen(
            connection.argv(ssh, LOOP), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, errors="replace", bufsize=1, process_group=0, env=os.environ,
        ) as process,
        contextlib.suppress(OSError, ValueError),
    ):  # fmt: skip
        # Without an answer, reading would never end.
        limit = threading.Timer(LONGEST_S, process.kill)
        limit.start()
        try:
            while len(looks) < LOOKS:
                before_ns = time.time_ns()
                print(file=process.stdin, flush=True)
                theirs_ns = int(process.stdout.readline() if process.stdout else "")
                after_ns = time.time_ns()
                bound_ns = (after_ns - before_ns) // 2
                looks.append(Ahead(theirs_ns - before_ns - bound_ns, bound_ns))
        finally:
            limit.cancel()
            process.kill()
    return min(looks, key=lambda look: look.bound_ns, default=None)
