"""Whether a stressor's dose is what it says: what a victim loses on the same resource, against the intensity asked for.

A victim runs flat out. A stressor of the same kind beside it takes turns of 100 ms at several intensities, at none and
at full intensity, in random order within each block. The loss at each intensity is compared with none in the same
block. For the CPU, both share one CPU, the full effect is the whole CPU, and intensities stay below the half that the
scheduler grants to each. Elsewhere the full effect is the loss beside the stressor at intensity 1. A line is fitted to
the median losses, as shares of the full effect. Intervals come from a bootstrap over blocks.

The CPU time that the agent reports is compared with the kernel's account of the agent's threads, over the whole time.

Bar: slope 0.97 to 1.03; intercept at most 0.5 points of a CPU for the CPU, 1 point of the full effect elsewhere; CPU
time reported within 0.5 points. An item whose interval is wider than the bar is measured again, up to three times, and
does not count as met. Items whose full effect is below 5 % on this host cannot be judged, and say so.

--quick: the CPU alone.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agents import Kernel, Resident, now_ns, rate, sleep_until
from common import arguments, conclude
from partywall.sandbox import WORK_ROOT, Label, reap, reaper

SLOT_NS, GUARD_NS, LEAD_NS = 100_000_000, 20_000_000, 50_000_000
SLOPE = (0.97, 1.03)
CPU_POINTS, EFFECT_POINTS, TOLD_POINTS = 0.5, 1.0, 0.5
LEAST_EFFECT = 0.05
BOOTSTRAPS = 400
FIRST, OTHER = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
MIB = 1 << 20
# By --plant, what a stressor is asked for beyond what it says.
PLANTED_POINTS = 5.0
WIDE = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True)
class Item:
    """A kind of stressor beside its own kind. whole: the full effect, if it is known without measuring it."""

    name: str
    kernel: Kernel
    cpus: tuple[int, int] = (FIRST, OTHER)
    intensities: tuple[float, ...] = WIDE
    whole: float | None = None
    intercept_points: float = EFFECT_POINTS


ITEMS = (
    Item("cpu", Kernel("integer", {}), (FIRST, FIRST), (0.05, 0.1, 0.2, 0.3, 0.4), 1.0, CPU_POINTS),
    Item("kernel", Kernel("syscall", {}), (FIRST, FIRST), (0.05, 0.1, 0.2, 0.3, 0.4), 1.0, CPU_POINTS),
    Item("cache", Kernel("cache", {"level": "L3", "order": "random"})),
    Item("memory bandwidth", Kernel("memory-triad", {})),
    Item("disk", Kernel("disk-direct-read", {"file_bytes": 64 * MIB, "request_bytes": 64 << 10})),
    Item("network", Kernel("tcp-stream", {})),
)


@dataclass
class Losses:
    """Blocks of losses: a row each, a column an intensity, and the loss at full intensity."""

    partial: list[list[float]] = field(default_factory=list)
    full: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Line:
    """Values and half widths of their 95 % intervals."""

    slope: tuple[float, float]
    intercept: tuple[float, float]
    whole: float


def line(item: Item, losses: Losses) -> Line:
    """Through medians, which a moment of foreign load does not move; intervals by bootstrap over blocks."""
    rows, full = np.array(losses.partial), np.array(losses.full)
    chance = np.random.default_rng(1)
    draws = [chance.integers(0, len(full), len(full)) for _ in range(BOOTSTRAPS)]
    fits = np.array([_fit(item, rows[drawn], full[drawn]) for drawn in draws])
    slope, intercept = _fit(item, rows, full)
    half = (np.quantile(fits, 0.975, axis=0) - np.quantile(fits, 0.025, axis=0)) / 2
    return Line((slope, float(half[0])), (intercept, float(half[1])), _whole(item, full))


def _fit(item: Item, rows: Any, full: Any) -> tuple[float, float]:
    slope, intercept = np.polyfit(item.intensities, np.median(rows, axis=0) / _whole(item, full), 1)
    return float(slope), float(100 * intercept)


def _whole(item: Item, full: Any) -> float:
    return item.whole or float(np.median(full))


def judged(item: Item, found: Line) -> bool:
    narrow = found.slope[1] <= SLOPE[1] - 1 and found.intercept[1] <= item.intercept_points
    return narrow and SLOPE[0] <= found.slope[0] <= SLOPE[1] and abs(found.intercept[0]) <= item.intercept_points


def measure(item: Item, label: Label, blocks: int, plant: float, chance: random.Random) -> tuple[Losses, float]:
    """Losses, and by how many points of a CPU the reported CPU time differs from the kernel's account."""
    with (
        Resident(label, item.kernel, (item.cpus[0],), flat_out=True) as victim,
        Resident(label, item.kernel, (item.cpus[1],), seed=2) as stressor,
    ):
        os.kill(victim.pid, signal.SIGSTOP)
        stressor.calibrate(0.5)
        os.kill(victim.pid, signal.SIGCONT)
        time.sleep(0.3)
        losses = Losses()
        told_ns, kept_ns, began_ns = 0, account_ns(stressor.pid), now_ns()
        stressor.forget()
        for _ in range(blocks):
            order = [0.0, *item.intensities, 1.0]
            chance.shuffle(order)
            first = now_ns() + LEAD_NS
            starts = [first + at * SLOT_NS for at in range(len(order))]
            asked = [share if share in (0.0, 1.0) else share + plant / 100 for share in order]
            end = starts[-1] + SLOT_NS
            stressor.schedule([*zip(starts, asked, strict=True), (end, 0.0)])
            sleep_until(end)
            slices = victim.slices(end)
            rates = {share: speed(slices, start) for share, start in zip(order, starts, strict=True)}
            victim.forget()
            if rates[0.0] == 0:
                continue  # Foreign load left the victim nothing.
            losses.partial.append([1 - rates[share] / rates[0.0] for share in item.intensities])
            losses.full.append(1 - rates[1.0] / rates[0.0])
        time.sleep(0.5)
        told_ns = sum(piece["cpu_ns"] for piece in stressor.slices(end) if piece["start_ns"] >= began_ns)
        kept_ns = account_ns(stressor.pid) - kept_ns
        return losses, 100 * (told_ns - kept_ns) / (now_ns() - began_ns)


def speed(slices: Iterable[dict[str, Any]], start_ns: int) -> float:
    return rate(slices, start_ns + GUARD_NS, start_ns + SLOT_NS)


def account_ns(pid: int) -> int:
    """CPU time of all threads of a process, as the scheduler has it."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def verdict(item: Item, label: Label, blocks: int, plant: float) -> bool:
    chance = random.Random(item.name)
    losses = Losses()
    for attempt in range(3):
        more, off = measure(item, label, blocks, plant, chance)
        losses.partial += more.partial
        losses.full += more.full
        found = line(item, losses)
        if abs(found.whole) < LEAST_EFFECT:
            print(
                f"--  {item.name:<18} full effect {100 * found.whole:.1f} %: too small to judge on this host",
                flush=True,
            )
            return True
        met = judged(item, found) and abs(off) <= TOLD_POINTS
        print(
            f"{'ok ' if met else 'OFF'} {item.name:<18} slope {found.slope[0]:.3f} ± {found.slope[1]:.3f}, intercept "
            f"{found.intercept[0]:+.2f} ± {found.intercept[1]:.2f} points, full effect {100 * found.whole:.1f} %, "
            f"CPU time reported {off:+.2f} points off ({len(losses.full)} blocks)",
            flush=True,
        )
        narrow = found.slope[1] <= SLOPE[1] - 1 and found.intercept[1] <= item.intercept_points
        if met or narrow or attempt == 2:
            return met
    return False


def main() -> None:
    given = arguments(__doc__ or "", [item.name for item in ITEMS], {"more": f"{PLANTED_POINTS:g} points more each"})
    plant = PLANTED_POINTS if given.plant else 0.0
    reap()
    chosen = [
        item
        for item in ITEMS
        if item.name in (given.only or ([ITEMS[0].name] if given.quick else [i.name for i in ITEMS]))
    ]
    label = Label.create("bench-dose", WORK_ROOT)
    try:
        results = [verdict(item, label, 15 if given.quick else 100, plant) for item in chosen]
    finally:
        reaper.clean(label)
    conclude("dose", f"{sum(results)} of {len(results)} kinds of stressor do what they say", met=all(results))


if __name__ == "__main__":
    main()
