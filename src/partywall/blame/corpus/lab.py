"""A lab: a victim, its neighbours, and who of them is guilty. Labs are drawn from a seed, or read from a file."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from partywall.values import Frozen

Resource = Literal["cpu", "memory", "disk", "network", "locks"]
Rhythm = Literal["steady", "bursty", "clocked", "follows"]
RESOURCES: tuple[Resource, ...] = ("cpu", "memory", "disk", "network", "locks")
RHYTHMS: tuple[Rhythm, ...] = ("steady", "bursty", "clocked", "follows")
CPU_SHARE: dict[Resource, tuple[float, float]] = {
    "cpu": (0.2, 1.0),
    "memory": (0.2, 1.0),
    "disk": (0.02, 0.2),
    "network": (0.03, 0.3),
    "locks": (0.02, 0.3),
}
"""How much of a CPU the work on a resource takes."""
WORST = 0.95
"""The most that a neighbour takes of the victim's work at any moment."""
BUSY_MOST = 0.8
"""The most that it takes on average while it is busy, in labs that are drawn: then less of its work takes less."""


class Neighbour(Frozen):
    """A suspect of a lab."""

    name: str
    resource: Resource
    effect: float = Field(0.0, ge=0, le=0.9, description="mean share of the victim's work that it takes; 0: innocent")
    rhythm: Rhythm = "steady"
    period_s: float = Field(1.0, gt=0, description="mean length of a burst and a pause, or the period of its clock")
    duty: float = Field(0.5, gt=0, le=1, description="share of the time in which it is busy")
    cpu: float = Field(0.5, ge=0, description="mean share of a CPU that it uses")
    grip: float = Field(1.0, ge=0, le=1, description="how much of a pulse's depth reaches its work on the resource")
    rebound: float = Field(0.0, ge=0, le=1, description="share of the delayed work that it does in the next slot")
    lag_ms: int = Field(0, ge=0, description="how late the victim feels it")
    clock: int = Field(0, description="neighbours with the same number are busy at the same times")

    @model_validator(mode="after")
    def _can_take_it(self) -> Self:
        if self.effect > WORST * self.busy:
            raise ValueError(
                f"{self.name}: it cannot take {self.effect:.0%} of the work, because it is busy {self.busy:.0%} of the "
                f"time; give an effect of at most {WORST * self.busy:.0%}, or a larger duty"
            )
        return self

    @property
    def busy(self) -> float:
        """The share of the time in which it does something."""
        return self.duty if self.rhythm in ("bursty", "clocked") else 1.0


class Lab(Frozen):
    """A lab. noise: standard deviation of the victim's rate in 100 ms. drift: of the host's speed, over `drift_s`."""

    name: str
    seed: int
    neighbours: tuple[Neighbour, ...]
    noise: float = 0.03
    drift: float = 0.05
    drift_s: float = 3.0
    stalls: float = Field(0.0, description="share of ticks in which the victim stands still for reasons of its own")
    throttled: float = Field(0.0, description="share of the time in which the victim's own limit stops it")
    steal: float = Field(0.0, description="mean share of the time that the hypervisor takes from the host")

    @property
    def guilty(self) -> frozenset[str]:
        """The names of those with an effect."""
        return frozenset(each.name for each in self.neighbours if each.effect > 0)

    @property
    def effect(self) -> float:
        """The largest effect; 0 if nobody is guilty."""
        return max((each.effect for each in self.neighbours), default=0.0)


def drawn(number: int, seed: int = 53) -> Lab:
    """Draws lab `number` of a corpus.

    0 to 3 of 2 to 15 neighbours are guilty; a quarter of the labs have no guilty one. Effects are 2 to 50 %, uniform
    on the logarithmic scale, but no more than a neighbour can take in the time in which it is busy. In a third of the
    labs, neighbours share clocks. A quarter of the victims is stopped by
    its own limit at times; a quarter of the hosts loses time to its hypervisor.
    """
    random = np.random.default_rng([seed, number])
    count = int(random.integers(2, 16))
    guilty = 0 if number % 4 == 0 else int(random.integers(1, min(3, count) + 1))
    shares_clock = random.random() < 1 / 3
    neighbours = [
        _neighbour(random, at, is_guilty=at < guilty, clock=1 if shares_clock and at % 2 == 0 else 10 + at)
        for at in range(count)
    ]
    order = random.permutation(count)
    named = [neighbours[at].model_copy(update={"name": f"n{place + 1:02d}"}) for place, at in enumerate(order)]
    kind = number % 6
    return Lab(
        name=f"lab-{number:03d}",
        seed=int(random.integers(2**31)),
        neighbours=tuple(named),
        noise=_round(random.uniform(0.01, 0.05)),
        drift=_round(random.uniform(0.01, 0.1)),
        drift_s=_round(random.uniform(0.3, 10)),
        stalls=_round(random.choice([0.0, 0.002, 0.01])),
        throttled=_round(random.uniform(0.05, 0.4)) if kind == 1 or number % 12 == 0 else 0.0,
        steal=_round(random.uniform(0.02, 0.15)) if kind == 2 or number % 12 == 8 else 0.0,
    )


def _neighbour(random: np.random.Generator, at: int, *, is_guilty: bool, clock: int) -> Neighbour:
    resource = RESOURCES[int(random.integers(len(RESOURCES)))]
    rhythm: Rhythm = "clocked" if clock < 10 else RHYTHMS[int(random.integers(len(RHYTHMS)))]
    low, high = CPU_SHARE[resource]
    # An innocent one may be the busiest of all.
    cpu = random.uniform(low, high) if is_guilty else float(np.exp(random.uniform(np.log(0.02), np.log(1.5))))
    effect = float(np.exp(random.uniform(np.log(0.02), np.log(0.5)))) if is_guilty else 0.0
    # One clock has one period and one duty.
    period_s = 0.8 if clock < 10 else float(np.exp(random.uniform(np.log(0.2), np.log(8))))
    duty = 0.5 if clock < 10 else random.uniform(0.2, 0.9)
    return Neighbour(
        name=str(at),
        resource=resource,
        effect=_round(min(effect, BUSY_MOST * duty) if rhythm in ("bursty", "clocked") else effect),
        rhythm=rhythm,
        period_s=_round(period_s),
        duty=_round(duty),
        cpu=_round(cpu),
        grip=_round(random.uniform(0.6, 1.0)),
        rebound=_round(random.choice([0.0, 0.0, random.uniform(0, 0.5)])),
        lag_ms=int(random.choice([0, 0, 0, 25, 50, 100])),
        clock=clock,
    )


def _round(value: float) -> float:
    return round(float(value), 4)
