"""Whether a stressor's dose is what it says: what a victim loses on the same resource, against the requested intensity.

A victim runs flat out. A stressor of the same kind beside it takes turns of 100 ms at several intensities, twice at
none and once at full intensity, in random order within each block. The loss at each intensity is compared with none
nearby. Turns take 10 ms for memory and 40 ms for the disk, because their speed changes within 100 ms on some hosts.
Where both share one CPU, the full effect is the whole CPU, and intensities stay below the half that the scheduler
grants to each. The same holds for the network: both send a TCP stream over one link of 200 Mbit/s, from network
namespaces of their own to sinks of their own, and TCP grants each a half. Its turns take 1 s, because TCP needs some
round trips to find its share. Elsewhere the full effect is the loss beside the stressor at intensity 1. A line is
fitted to the losses, as shares of the full effect: their medians, or ratios of means for turns so short that they
contain few bursts of a stressor. Intervals come from a bootstrap over blocks.

On a shared CPU, the CPU times of victim and stressor show when something else had the CPU, a hypervisor included. Such
turns are left out and counted. The CPU time that the agent reports is compared with the kernel's account of the agent's
threads, over the whole time.

Bar: slope 0.97 to 1.03; intercept at most 0.5 points of a CPU for the CPU, 1 point of the full effect elsewhere; CPU
time reported within 0.5 points. An item is measured until its intervals are as narrow as the bar, for twenty minutes at
most, and is not met if they stay wider. Items whose full effect is below 5 % on this host cannot be judged, and say so.

--quick: the CPU alone, for less than a minute. If its intervals stay wider than the bar, they have to reach into it,
and that of the intercept must be narrower than 5 points. With --folder, each call measures items until --minutes are
over, at least one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import random
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agents import SLICE_NS, Kernel, Resident, now_ns, sleep_until
from common import work
from frame import Options, Outcome, bench, in_parts
from partywall.host.label import Label
from partywall.sandbox import Settings, lab
from partywall.sandbox.peer import Peer

Array = npt.NDArray[np.float64]
SLOT_NS, GUARD_NS, LEAD_NS = 100_000_000, 20_000_000, 50_000_000
TOGETHER_NS = 1_000_000_000
SLOPE = (0.97, 1.03)
CPU_POINTS, EFFECT_POINTS, REPORTED_POINTS = 0.5, 1.0, 0.5
LEAST_EFFECT = 0.05
BOOTSTRAPS = 400
# Blocks between two looks at the intervals, and the time for one item.
BLOCKS, QUICK_BLOCKS, FEWEST_BLOCKS = 40, 30, 20
MOST_S, QUICK_MOST_S = 1200, 40
# Slices of both come at about the same time.
COMING_S = 0.05
# The widest interval of an intercept that says something, and the planted fault, which is larger.
QUICK_POINTS, PLANTED_POINTS = 5.0, 10.0
CALIBRATIONS = 20
# A turn is left out if others had more of a shared CPU than this.
OTHERS_MOST = 0.02
FIRST, OTHER = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
MIB = 1 << 20
WIDE = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9)
SHARED = (0.05, 0.1, 0.2, 0.3, 0.4)


@dataclass(frozen=True)
class Item:
    """A kind of stressor beside its own kind. whole: the full effect, if it is known without measuring it.

    link: the rate of the link that both send over, in tc's notation.
    """

    name: str
    kernel: Kernel
    cpus: tuple[int, int] = (FIRST, OTHER)
    intensities: tuple[float, ...] = WIDE
    whole: float | None = None
    intercept_points: float = EFFECT_POINTS
    slot_ns: int = SLOT_NS
    guard_ns: int = GUARD_NS
    slice_ns: int = SLICE_NS
    link: str = ""

    @property
    def levels(self) -> list[float]:
        """Intensities of a block, one for each turn."""
        return [0.0, 0.0, *self.intensities, 1.0]

    @property
    def blocks_at_once(self) -> int:
        """Blocks that are scheduled together, because each schedule costs some 0.1 s."""
        return max(1, TOGETHER_NS // (len(self.levels) * self.slot_ns))

    @property
    def shares_cpu(self) -> bool:
        return self.cpus[0] == self.cpus[1]


ITEMS = (
    Item("cpu", Kernel("integer", {}), (FIRST, FIRST), SHARED, 1.0, CPU_POINTS),
    Item("kernel", Kernel("syscall", {}), (FIRST, FIRST), SHARED, 1.0, CPU_POINTS),
    Item("cache", Kernel("cache", {"level": "L3", "order": "random"})),
    Item("memory bandwidth", Kernel("memory-triad", {}), slot_ns=10_000_000, guard_ns=2_000_000, slice_ns=2_000_000),
    Item(
        "disk",
        Kernel("disk-direct-read", {"file_bytes": 64 * MIB, "request_bytes": 1 * MIB}),
        slot_ns=40_000_000,
        guard_ns=8_000_000,
        slice_ns=2_000_000,
    ),
    Item(
        "network",
        Kernel("tcp-stream", {}),
        intensities=SHARED,
        whole=1.0,
        slot_ns=1_000_000_000,
        guard_ns=300_000_000,
        link="200mbit",
    ),
)


@dataclass
class Turns:
    """The victim's rates, by block and intensity; how many turns were left out; the error of the reported CPU time."""

    blocks: list[dict[float, list[float]]] = field(default_factory=list)
    left_out: int = 0
    off_points: list[float] = field(default_factory=list)

    def rates(self, levels: Sequence[float]) -> Array:
        """Mean rates of each block at each of `levels`, NaN where a turn was left out. Blocks without 0 are left out.

        Shape: blocks, levels.
        """
        kept = [block for block in self.blocks if block.get(0.0)]
        means = [[statistics.mean(block.get(level) or [math.nan]) for level in levels] for block in kept]
        return np.array(means).reshape(len(kept), len(levels))


@dataclass(frozen=True)
class Line:
    """Values and half widths of their 95 % intervals, as shares of the full effect; the intercept in points of it."""

    slope: tuple[float, float]
    intercept: tuple[float, float]
    whole: tuple[float, float]


def line(item: Item, turns: Turns) -> Line | None:
    """Intervals by bootstrap over blocks. None if an intensity has no turn."""
    rates = turns.rates([0.0, *item.intensities, 1.0])
    if not np.isfinite(rates).any(axis=0).all():
        return None
    rows, loss = (rates, mean_loss) if item.slot_ns < SLOT_NS else (losses(rates), median_loss)
    drawn = np.random.default_rng(1).integers(0, len(rows), (BOOTSTRAPS, len(rows)))
    fits = np.array([_fit(item, loss(rows[blocks])) for blocks in drawn])
    half = (np.nanquantile(fits, 0.975, axis=0) - np.nanquantile(fits, 0.025, axis=0)) / 2
    slope, intercept, whole = zip(_fit(item, loss(rows)), map(float, half), strict=True)
    return Line(slope, intercept, whole)


def mean_loss(rates: Array) -> Array:
    """The loss at each intensity, of means over blocks: exact even if a turn contains one burst or none."""
    has = np.isfinite(rates[:, 1:])
    beside = np.where(has, rates[:, 1:], 0.0).sum(axis=0)
    return 1 - beside / (rates[:, :1] * has).sum(axis=0)


def losses(rates: Array) -> Array:
    """The loss at each intensity in each block, against none in it and its neighbours."""
    idle = np.pad(rates[:, 0], 1, constant_values=np.nan)
    return 1 - rates[:, 1:] / np.nanmedian([idle[:-2], idle[1:-1], idle[2:]], axis=0)[:, None]


def median_loss(losses: Array) -> Array:
    """A moment of foreign load does not move it."""
    return np.nanmedian(losses, axis=0)


def _fit(item: Item, losses: Array) -> tuple[float, float, float]:
    *partial, full = losses
    whole = float(item.whole or full)
    slope, intercept = np.polyfit(item.intensities, np.array(partial) / whole, 1)
    return float(slope), float(100 * intercept), whole


def narrow(item: Item, line: Line) -> bool:
    return line.slope[1] <= SLOPE[1] - 1 and line.intercept[1] <= item.intercept_points


def too_small(line: Line) -> bool:
    """Whether this host shows no full effect to speak of, for certain."""
    return line.whole[0] + line.whole[1] < LEAST_EFFECT


def met(item: Item, line: Line, off_points: float) -> bool:
    within = SLOPE[0] <= line.slope[0] <= SLOPE[1] and abs(line.intercept[0]) <= item.intercept_points
    return narrow(item, line) and within and off_points <= REPORTED_POINTS


def may_be_met(item: Item, line: Line, off_points: float) -> bool:
    """Whether wide intervals reach into the bar."""
    (slope, slope_half), (points, points_half) = line.slope, line.intercept
    within = slope - slope_half <= SLOPE[1] and slope + slope_half >= SLOPE[0]
    within = within and abs(points) - points_half <= item.intercept_points
    return within and points_half <= QUICK_POINTS and off_points <= REPORTED_POINTS


class Pair:
    """A victim and a stressor of the same kind, both resident."""

    def __init__(self, item: Item, victim: Resident, stressor: Resident, plant: float) -> None:
        self.item, self.victim, self.stressor, self.plant = item, victim, stressor, plant
        self.chance = random.Random(item.name)

    def measure(self, turns: Turns, blocks: int) -> None:
        """Adds at least so many blocks to `turns`."""
        reported_ns, kept_ns, began_ns = 0, account_ns(self.stressor.pid), now_ns()
        for _ in range(math.ceil(blocks / self.item.blocks_at_once)):
            reported_ns += self.add_blocks(turns)
        off_ns = reported_ns - (account_ns(self.stressor.pid) - kept_ns)
        turns.off_points.append(100 * off_ns / (now_ns() - began_ns))

    def add_blocks(self, turns: Turns) -> int:
        """Adds those that are scheduled at once; returns the stressor's CPU time as it tells it."""
        levels = self.item.levels
        starts = itertools.count(now_ns() + LEAD_NS, self.item.slot_ns)
        blocks = [
            [(next(starts), share) for share in self.chance.sample(levels, len(levels))]
            for _ in range(self.item.blocks_at_once)
        ]
        end = next(starts)
        switches = [(start, self.planted(share)) for block in blocks for start, share in block]
        self.stressor.schedule([*switches, (end, 0.0)])
        sleep_until(end)
        mine = self.victim.slices(end)
        time.sleep(COMING_S)
        theirs = self.stressor.come()
        measured = [self.rates(block, mine, theirs) for block in blocks]
        turns.blocks += measured
        turns.left_out += len(switches) - sum(len(kept) for block in measured for kept in block.values())
        self.victim.forget()
        self.stressor.forget()
        return sum(piece["cpu_ns"] for piece in theirs)

    def planted(self, share: float) -> float:
        return share if share in (0.0, 1.0) else min(1.0, max(0.0, share + self.plant / 100))

    def rates(
        self, switches: Sequence[tuple[int, float]], mine: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]
    ) -> dict[float, list[float]]:
        """The victim's rates in one block, by intensity. Disturbed turns are left out."""
        rates: dict[float, list[float]] = {}
        for start, share in switches:
            from_ns, to_ns = start + self.item.guard_ns, start + self.item.slot_ns
            inside = [piece for piece in mine if piece["start_ns"] >= from_ns and piece["end_ns"] <= to_ns]
            if inside and not (self.item.shares_cpu and others(inside, theirs) > OTHERS_MOST):
                rates.setdefault(share, []).append(speed(inside))
        return rates


def speed(slices: Sequence[dict[str, Any]]) -> float:
    return float(sum(piece["work"] for piece in slices) / (slices[-1]["end_ns"] - slices[0]["start_ns"]))


def others(mine: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> float:
    """Share of the time that neither victim nor stressor had the CPU that they share."""
    first, last = mine[0]["start_ns"], mine[-1]["end_ns"]
    used = sum(piece["cpu_ns"] for piece in mine)
    for piece in theirs:
        inside = min(last, piece["end_ns"]) - max(first, piece["start_ns"])
        used += piece["cpu_ns"] * max(0, inside) / (piece["end_ns"] - piece["start_ns"])
    return float(1 - used / (last - first))


def account_ns(pid: int) -> int:
    """CPU time of the worker threads of a process, as the scheduler has it."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    workers = [task for task in tasks if (task / "comm").read_text().startswith("stress-")]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in workers)


def calibrate(stressor: Resident, *, alone: bool) -> bool:
    """Again, a few times at most, if others had its CPU meanwhile: what is left to it would become intensity 1.

    False if it never was alone.
    """
    for _ in range(CALIBRATIONS):
        stressor.forget()
        stressor.calibrate(0.5)
        time.sleep(COMING_S)
        slices = [piece for piece in stressor.come() if piece["intensity"] > 0]
        if not alone or (slices and others(slices, ()) <= OTHERS_MOST):
            return True
    return False


@contextlib.contextmanager
def residents(item: Item, label: Label) -> Iterator[tuple[Resident, Resident]]:
    """The victim and the stressor: beside each other, or behind one link, each with a sink of its own at its end."""
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(lab.lab(["victim", "stressor"], item.link)) if item.link else None

        def resident(name: str, cpu: int, seed: int) -> Resident:
            kernel, namespace = item.kernel, ""
            if made is not None:
                namespace, address = made.namespace(name), made.address(name, counted=False)
                enter = ("ip", "netns", "exec", made.namespace(f"{name}-sink"))
                sink = Peer.start(Settings(name, "process", (cpu,)), label, kernel.name, kernel.params, address, enter)
                stack.callback(sink.stop)
                kernel = Kernel(kernel.name, kernel.params | {"to": f"{address}:{sink.port}"})
            flat_out = name == "victim"
            return stack.enter_context(
                Resident(
                    label, kernel, (cpu,), flat_out=flat_out, seed=seed, slice_ns=item.slice_ns, namespace=namespace
                )
            )

        yield resident("victim", item.cpus[0], 1), resident("stressor", item.cpus[1], 2)


def looks(item: Item, label: Label, blocks: int, most_s: float, plant: float) -> Iterator[Turns]:
    """All turns so far, after every so many blocks."""
    turns = Turns()
    until_s = time.monotonic() + most_s
    with residents(item, label) as (victim, stressor):
        os.kill(victim.pid, signal.SIGSTOP)
        calibrated = calibrate(stressor, alone=item.shares_cpu)
        os.kill(victim.pid, signal.SIGCONT)
        time.sleep(0.3)
        stressor.forget()
        pair = Pair(item, victim, stressor, plant)
        while calibrated and time.monotonic() < until_s:
            pair.measure(turns, blocks)
            yield turns


def verdict(item: Item, label: Label, plant: float, *, quick: bool) -> tuple[bool | None, str]:
    """Whether the bar is met, and the figures; None if this host has no full effect to judge by."""
    blocks, most_s = (QUICK_BLOCKS, QUICK_MOST_S) if quick else (BLOCKS, MOST_S)
    good, text = False, "others had the CPU whenever it was calibrated"
    if item.link and (why := lab.lacking()):
        return None, why
    for turns in looks(item, label, max(FEWEST_BLOCKS, blocks * SLOT_NS // item.slot_ns), most_s, plant):
        off, fitted = max(map(abs, turns.off_points)), line(item, turns)
        if fitted is None:
            text = f"others had the CPU in {turns.left_out} turns, and left none to judge"
            continue
        full = f"full effect {100 * fitted.whole[0]:.1f} ± {100 * fitted.whole[1]:.1f} %"
        if not item.shares_cpu and too_small(fitted):
            return None, f"{full}: too small to judge on this host"
        text = (
            f"slope {fitted.slope[0]:.3f} ± {fitted.slope[1]:.3f}, intercept {fitted.intercept[0]:+.2f} ± "
            f"{fitted.intercept[1]:.2f} points, {'' if item.shares_cpu else full + ', '}"
            f"reported CPU time within {off:.2f} points ({len(turns.blocks)} blocks, {turns.left_out} turns left out)"
        )
        if narrow(item, fitted):
            return met(item, fitted, off), text
        good = quick and may_be_met(item, fitted, off)
    return good, f"not known well enough{', though the bar may be met' if good else ''}: {text}"


def measured(item: Item, plant: float, *, quick: bool) -> tuple[bool | None, str]:
    """The verdict on an item, with a work folder of its own."""
    with work("bench-dose") as label:
        return verdict(item, label, plant, quick=quick)


@bench(
    parts=[item.name for item in ITEMS],
    plants={"points": f"intensities are {PLANTED_POINTS:g} points larger than said"},
    folder=True,
    unjudged="all resources but the CPU",
)
def main(given: Options) -> Outcome:
    plant = PLANTED_POINTS if given.plant else 0.0
    names = given.only or [item.name for item in (ITEMS[:1] if given.quick else ITEMS)]
    parts = {
        item.name: functools.partial(measured, item, plant, quick=given.quick) for item in ITEMS if item.name in names
    }
    verdicts = in_parts(parts, given)
    for name, (good, text) in verdicts.items():
        print(f"{'--' if good is None else 'ok' if good else 'OFF':<3} {name:<18} {text}", flush=True)
    judged = [good for good, _ in verdicts.values() if good is not None]
    unjudged = [name for name, (good, _) in verdicts.items() if good is None]
    figure = f"{sum(judged)} of {len(judged)} kinds of stressor take what they say"
    figure += f"; not to be judged on this host: {', '.join(unjudged)}" if unjudged else ""
    return Outcome(figure, bool(judged) and all(judged))


if __name__ == "__main__":
    main()
