"""What is watched: the job, from which the command, the Python function and the form are made."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from partywall.core.job import Duration, Job, Option

LEAST_EVERY_NS = 100_000_000


class WatchJob(Job):
    """Watch the disks of this host: say when one is slow, and which tenants use it then.

    \b
      partywall watch    all disks and tenants, until Ctrl-C
      partywall watch --device sda --latency 20ms --for 10m
      partywall watch db=pid:1234 web=/docker/4f2…

    A disk is slow while it is saturated (busy for 90 % of a period) and its reads or writes take longer than --latency,
    or much longer than is usual for it. A line says when that begins, and one when it ends, with the tenants' shares of
    the disk's work. That is a coincidence, not a proof: 'partywall run' measures what one tenant costs another.

    It also says which group waits for which, for CPUs, memory and disks. It changes nothing on the host. What the host
    does not count is named at the start (docs/watch.md). The same always, as metrics, and within a budget: that is
    another program, 'partywall-watch' (docs/watch-always.md).

    Exit code: 0 watched, 1 a saturated disk exceeded --latency three periods in a row, 2 bad disk, tenant or option,
    3 a saturated disk could not be judged, 4 there is no disk, 130 interrupted before the end of --for.
    """  # noqa: D301 - Click keeps the lines after a backspace

    function: ClassVar[str] = "watch_disks"

    tenants: Annotated[
        tuple[str, ...],
        Option(
            "pid:NUMBER or a cgroup such as /system.slice/nginx.service; NAME=… names it. "
            "Default: all containers, guests and services, also those that start later.",
            metavar="TENANT...",
        ),
    ] = ()
    for_ns: Annotated[
        Duration | None, Option("How long, e.g. 10m. Default: until Ctrl-C.", flag="--for", example="10m")
    ] = None
    every_ns: Annotated[
        Duration, Field(ge=LEAST_EVERY_NS), Option("Length of a period.", flag="--every", example="1s")
    ] = 1_000_000_000
    disks: Annotated[
        tuple[str, ...],
        Option("A disk, e.g. sda; may be given again. Default: all disks.", flag="--device", keyword="disks"),
    ] = ()
    limit_ns: Annotated[
        Duration | None,
        Option(
            "A saturated disk is slow if its reads or writes take longer, e.g. 20ms.",
            flag="--latency",
            example="20ms",
        ),
    ] = None

    @property
    def ends(self) -> bool:
        """False without a duration: then Ctrl-C is the end."""
        return self.for_ns is not None
