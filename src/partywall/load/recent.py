"""The last seconds of a load that goes on, or has ended, from its record. Changes nothing there."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from partywall.core.report.latency import quantiles
from partywall.errors import PartywallError
from partywall.host import Host
from partywall.load.record import LoadDirectory
from partywall.load.second import SECOND_NS, add_pairs, histogram

TAIL_BYTES = 4 << 20
"""Of a load's lines, what is read at most: seconds take some KiB each."""


def p99_s(path: Path, window_s: float, now_ns: int) -> float | None:
    """The p99 response time of the last `window_s` until `now_ns`; None without any response.

    Of a load that has ended, nothing is recent any more. None too for what is no record of a load yet, and for a load
    of an earlier boot, whose times are of another clock.
    """
    try:
        about = LoadDirectory.open(path).about()
        labels = about["started"]["labels"]
    except (PartywallError, KeyError):
        return None
    boot = Host.here().boot
    if about.get("boot", boot) != boot:
        return None
    counts: dict[int, int] = {}
    for second in _tail(path / LoadDirectory.LINES):
        # Records of earlier versions do not name the boot.
        if not now_ns - window_s * 1e9 < second["end_ns"] <= now_ns + SECOND_NS:
            continue
        for number, timing in second["timings"].items():
            if labels[int(number)]["sort"] == "http":
                add_pairs(counts, ((int(bucket), count) for bucket, count in timing["corrected"].items()))
    return quantiles(histogram(counts), (0.99,))[0] / 1e9 if counts else None


def _tail(file: Path) -> Iterator[Mapping[str, Any]]:
    """The whole lines at the end of a file of JSON lines. Nothing if it cannot be read."""
    with contextlib.suppress(OSError), file.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - TAIL_BYTES))
        lines: Iterable[bytes] = stream.read().split(b"\n")
        for line in lines:
            # The first may be cut off, and the last is perhaps being written.
            with contextlib.suppress(ValueError):
                yield json.loads(line)
