"""What is to be known of a guest of the user's own before it moves, by its hypervisor alone.

Where the guest's memory is a file on this machine, its pages are counted as those of any guest (`survey`). Otherwise
the hypervisor tells how much changes, from a sample of pages and in whole MiB/s, and the kernel or libvirt how much
memory is in use. Nothing is changed in the guest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from partywall.errors import TrialError
from partywall.events import Doing, Emit, Left
from partywall.migrate.document import Survey
from partywall.migrate.measure.end import Memory, Watchable

WATCHED_S = (1, 2, 4)
"""Windows in which the hypervisor watches the guest. A second is the shortest that QEMU 7.2 takes."""
LOOK_S = 0.1
LATE_S = 20.0
MIB = 1 << 20
LARGEST_FILE = 8 << 30
"""A larger guest's memory is not read as a whole."""
SURVEY_S = float(sum(WATCHED_S)) + 1

Count = Callable[[Path], Survey]


def watched(workload: str, end: Watchable, count: Count, emit: Emit) -> Survey:
    """Watches a guest for some seconds. count: counts the pages of a file. TrialError if the hypervisor refuses."""
    memory = end.in_use()
    emit(Doing("watching how much memory the guest changes"))
    emit(Left(SURVEY_S))
    if memory.file is not None and memory.size <= LARGEST_FILE:
        return count(memory.file)
    return survey_of_rates(workload, memory, tuple(_rates(end, emit)))


def survey_of_rates(workload: str, memory: Memory, rates: tuple[int, ...]) -> Survey:
    """A survey from rates in whole MiB/s, one for each of WATCHED_S. Pure.

    A rate stands for all that would be cut to it. One of 0 stands for less than the half of 1, because most guests
    that change so little change next to nothing.
    """
    of_page = memory.size / memory.pages_sampled
    changed = [seconds * MIB * (rate + 0.5 if rate else 0.25) for seconds, rate in zip(WATCHED_S, rates, strict=True)]
    cut = [seconds * MIB * (0.29 if rate else 0.25) for seconds, rate in zip(WATCHED_S, rates, strict=True)]
    # Sampled pages that changed are a count, so their variance is their number.
    errors = (
        math.hypot(each, of_page * math.sqrt(all_ / of_page + 0.5)) for each, all_ in zip(cut, changed, strict=True)
    )
    return Survey(
        workload=workload,
        memory=memory.size,
        content=memory.content,
        content_least=memory.content_least,
        content_from=memory.content_from,
        layout=memory.layout,
        windows_ns=tuple(seconds * 1_000_000_000 for seconds in WATCHED_S),
        changed=(tuple(min(float(memory.size), each) for each in changed),),
        errors=tuple(errors),
        changes_from=f"a sample of {memory.pages_sampled} pages, by its hypervisor",
    )


def _rates(end: Watchable, emit: Emit) -> Iterator[int]:
    left_s = float(sum(WATCHED_S))
    for seconds in WATCHED_S:
        emit(Left(left_s))
        end.begin_sampling(seconds)
        yield _awaited(end, seconds)
        left_s -= seconds


def _awaited(end: Watchable, seconds: int) -> int:
    time.sleep(seconds)
    deadline = time.monotonic() + LATE_S
    while (rate := end.dirty_rate()) is None:
        if time.monotonic() > deadline:
            raise TrialError(f"the guest's hypervisor does not tell its dirty rate {LATE_S:g} s after it should")
        time.sleep(LOOK_S)
    return rate
