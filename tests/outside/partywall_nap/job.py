"""What is measured: sleeps of some lengths."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from partywall.core.job import Duration, Job, Option


class NapJob(Job):
    """Sleep, and say how much longer each sleep takes than it should.

    A sleep that takes long means that the CPU was busy or asleep itself. It changes nothing on the host.

    Exit code: 0 slept, 1 a sleep was later than --limit, 2 bad option, 130 interrupted.
    """

    lengths: Annotated[
        tuple[Duration, ...],
        Field(min_length=1),
        Option("A length of a sleep, e.g. 1ms; may be given again.", metavar="LENGTH...", example="1ms"),
    ]
    count: Annotated[int, Field(ge=1, le=1000), Option("Sleeps of each length.", example="10")] = 10
    limit_ns: Annotated[
        Duration | None, Option("The most that a sleep may be late, e.g. 1ms.", flag="--limit", example="1ms")
    ] = None
