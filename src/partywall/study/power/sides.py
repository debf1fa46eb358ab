"""CPU time of the two QEMUs of a guest that moves, as two nodes that run nothing else."""

from __future__ import annotations

import contextlib
from pathlib import Path

from partywall.migrate.measure.series import Series
from partywall.power.activity import Process

PLACES = ("a", "b")


class Sides:
    """CPU seconds by host since the first reading. QEMUs come and go with each move."""

    def __init__(self, series: Series) -> None:
        self._series = series
        self._last: dict[int, float] = {}
        self._processes: dict[int, Process] = {}
        self._total = dict.fromkeys(PLACES, 0.0)

    def read(self) -> tuple[float, ...]:
        """CPU seconds of hosts a and b."""
        for side in (self._series.guest.here, self._series.guest.there):
            if side is not None:
                with contextlib.suppress(OSError):
                    pid = side.process.pid
                    seconds = self._processes.setdefault(pid, Process(Path("/proc") / str(pid)))()
                    self._total[side.place] += max(0.0, seconds - self._last.get(pid, 0.0))
                    self._last[pid] = max(seconds, self._last.get(pid, 0.0))
        return tuple(self._total[place] for place in PLACES)
