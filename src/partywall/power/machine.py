"""A simulated machine: a stated physical model, driven by CPU time that is really used, and the display of its meter.

The stated model: in each tick of 20 ms, each core is busy for its share of the tick, independently of the others. Power
is that of a profile, averaged over the numbers of busy cores. Leakage adds 2 % of the power above idle, and follows it
with a time constant of 15 s. The fit is not given these two numbers.

A display shows the mean power of its last refresh period, `lag_s` old, with noise, in steps. The true power is kept, so
that recovered values can be compared with it.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from partywall.power.values import NodeModel, chances

TICK_S = 0.02
LEAKAGE, LEAKAGE_S = 0.02, 15.0


@dataclass(frozen=True)
class Display:
    """How a meter shows power. noise: standard deviation in watts. window_s: what it averages over; None: refresh_s."""

    lag_s: float = 0.3
    refresh_s: float = 1.0
    noise: float = 0.4
    step: float = 0.1
    window_s: float | None = None
    seed: int = 1

    @property
    def stated(self) -> str:
        text = f"a new value each {self.refresh_s:g} s, {self.lag_s:g} s old, noise {self.noise:g} W"
        return f"{text}, steps of {self.step:g} W"


@dataclass
class Machine:
    """A machine of which only the CPU time is real. busy_s: reads CPU seconds of each of its cores or threads.

    cpus: cores of the machine; None for as many as `busy_s` returns.
    """

    model: NodeModel
    busy_s: Callable[[], Sequence[float]]
    cpus: int | None = None
    leakage: float = LEAKAGE

    def __post_init__(self) -> None:
        # One entry a tick: the time, and the joules up to it.
        self._times_ns: list[int] = []
        self._joules: list[float] = []
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def stated(self) -> str:
        return f"power by busy cores each {TICK_S * 1e3:g} ms, {self.leakage:.0%} leakage with {LEAKAGE_S:g} s"

    def start(self) -> bool:
        """Begins, if it has not begun. Returns true if it has begun now."""
        if self._thread is not None:
            return False
        self._thread = threading.Thread(target=self._run, name="simulated-machine", daemon=True)
        self._thread.start()
        while len(self._times_ns) < 2:
            time.sleep(TICK_S / 4)
        return True

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def mean(self, begin_ns: int, end_ns: int) -> float:
        """Mean true watts of a time; before the first tick, those of the first."""
        return (self.joules(end_ns) - self.joules(begin_ns)) / (end_ns - begin_ns) * 1e9

    def joules(self, at_ns: int) -> float:
        """True energy from the first tick up to a moment; negative before it."""
        with self._lock:
            return self._joules_at(at_ns)

    def _joules_at(self, at_ns: int) -> float:
        times, joules = self._times_ns, self._joules
        after = min(max(bisect_left(times, at_ns), 1), len(times) - 1)
        watts = (joules[after] - joules[after - 1]) / (times[after] - times[after - 1])
        return joules[after - 1] + watts * (at_ns - times[after - 1])

    def shown(self, display: Display, at_ns: int) -> float:
        """What a display shows at a moment."""
        refresh_ns = round(display.refresh_s * 1e9)
        number = at_ns // refresh_ns
        end_ns = number * refresh_ns - round(display.lag_s * 1e9)
        width_ns = refresh_ns if display.window_s is None else round(display.window_s * 1e9)
        noise = float(np.random.default_rng([display.seed, number]).normal(0.0, display.noise))
        value = max(0.0, self.mean(end_ns - width_ns, end_ns) + noise)
        return round(value / display.step) * display.step if display.step else value

    def _run(self) -> None:
        last_ns, last, leaked = time.monotonic_ns(), self.busy_s(), 0.0
        self._keep(last_ns, 0.0, 0.0)
        while not self._ended.wait(TICK_S):
            at_ns, busy = time.monotonic_ns(), self.busy_s()
            passed_s = (at_ns - last_ns) / 1e9
            shares = [max(0.0, (now - then) / passed_s) for now, then in zip(busy, last, strict=False)]
            base = self.watts(shares)
            leaked += (self.leakage * (base - self.model.idle_watts) - leaked) * (1 - math.exp(-passed_s / LEAKAGE_S))
            self._keep(at_ns, base + leaked, passed_s)
            last_ns, last = at_ns, busy

    def lasting(self, busy: float) -> float:
        """Watts with this many busy cores, all the time."""
        return self.model.at(busy) + self.leakage * (self.model.at(busy) - self.model.idle_watts)

    def watts(self, shares: Sequence[float]) -> float:
        """Watts without leakage."""
        cpus = self.cpus or len(shares)
        return float(self.model.levels(cpus) @ chances(shares, cpus))

    def _keep(self, at_ns: int, watts: float, passed_s: float) -> None:
        with self._lock:
            self._times_ns.append(at_ns)
            self._joules.append((self._joules[-1] if self._joules else 0.0) + watts * passed_s)


class Feed:
    """Writes what a display shows to a protocol's server, at each refresh. write: takes watts."""

    def __init__(self, machine: Machine, display: Display, write: Callable[[float], None]) -> None:
        self._machine, self._display, self._write = machine, display, write
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def __enter__(self) -> Self:
        self._machine.start()
        self._write(self._machine.shown(self._display, time.monotonic_ns()))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        refresh_ns = round(self._display.refresh_s * 1e9)
        while not self._ended.is_set():
            now_ns = time.monotonic_ns()
            next_ns = (now_ns // refresh_ns + 1) * refresh_ns
            if self._ended.wait((next_ns - now_ns) / 1e9):
                break
            with contextlib.suppress(OSError):
                self._write(self._machine.shown(self._display, next_ns + 1))
