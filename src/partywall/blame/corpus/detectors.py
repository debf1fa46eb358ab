"""Six detectors of the guilty neighbour on the data of one lab: five that watch, and the experiment.

Each gives every neighbour a suspicion; the highest is the first suspect. A detector that has a threshold also says
whom it blames. The five are simple forms of published ones and see the whole budget without pulses; the experiment sees
only the slots until it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from partywall.blame.code import Array, Code
from partywall.blame.corpus.lab import Lab
from partywall.blame.corpus.simulate import PER_SLOT, TICK_NS, Observed, simulate
from partywall.blame.decide import Look, Rule

SECOND = 1_000_000_000 // TICK_NS
SLOT_NS = PER_SLOT * TICK_NS
BUDGET_NS = 300_000_000_000
HISTORY = 40
"""Earlier minutes that the detector with history has of each neighbour."""


@dataclass(frozen=True)
class Answer:
    """What a detector says. suspicion: by neighbour. blamed: their names; None if it has no threshold."""

    suspicion: Mapping[str, float]
    blamed: frozenset[str] | None
    seconds: float = BUDGET_NS / 1e9
    look: Look | None = None
    named_s: float | None = None

    @property
    def first(self) -> str:
        """The most suspicious one."""
        return max(self.suspicion, key=lambda name: self.suspicion[name])


def _named(lab: Lab, values: Array, threshold: float | None) -> Answer:
    suspicion = {each.name: float(value) for each, value in zip(lab.neighbours, values, strict=True)}
    blamed = None if threshold is None else frozenset(name for name, value in suspicion.items() if value > threshold)
    return Answer(suspicion, blamed)


def _means(series: Array, ticks: int) -> Array:
    whole = len(series) // ticks * ticks
    return np.asarray(series[:whole].reshape(-1, ticks, *series.shape[1:]).mean(axis=1))


def cpi2(lab: Lab, seen: Observed) -> Answer:
    """CPI² (Zhang and others, EuroSys 2013): CPU use of a neighbour weighted by how far the victim's CPI is off."""
    cycles = 1 / np.maximum(_means(seen.rate, SECOND), 1e-3)
    use = _means(seen.use, SECOND)
    use = use / np.maximum(use.sum(axis=0), 1e-9)
    limit = cycles.mean() + cycles.std()
    above = cycles > limit
    weighted = np.where(above, 1 - limit / cycles, cycles / limit - 1)
    return _named(lab, (use * weighted[:, None]).sum(axis=0), 0.35)


def panda(lab: Lab, seen: Observed) -> Answer:
    """In the manner of PANDA (arXiv 2511.08803): history says what a program usually does to its neighbours.

    The history has minutes with each neighbour beside other victims, which are on average half as sensitive, and whose
    speed varies by a tenth. Current CPI is combined with it by its precision.
    """
    random = np.random.default_rng([lab.seed, 1])
    effect = np.array([each.effect for each in lab.neighbours])
    past = np.stack([0.5 * effect + 0.1 * random.standard_normal(len(effect)) for _ in range(HISTORY)])
    use = _means(seen.use, SECOND)
    slow = -_means(seen.rate, SECOND)
    now = np.array([_correlation(use[:, at], slow) for at in range(use.shape[1])])
    return _named(lab, past.mean(axis=0) / (0.1 / np.sqrt(HISTORY)) + now * np.sqrt(len(use)) / 2, None)


def granger(lab: Lab, seen: Observed) -> Answer:
    """Granger's test of each neighbour's CPU use on the victim's rate, four lags of 250 ms; Bonferroni's threshold."""
    rate, use = _means(seen.rate, 10), _means(seen.use, 10)
    lags = 4
    past = np.column_stack([np.ones(len(rate) - lags), *(rate[lags - k : -k] for k in range(1, lags + 1))])
    target = rate[lags:]
    whole = _squares(past, target)
    out = []
    for at in range(use.shape[1]):
        more = np.column_stack([past, *(use[lags - k : -k, at] for k in range(1, lags + 1))])
        dof = len(target) - more.shape[1]
        rest = _squares(more, target)
        out.append(-float(stats.f.logsf((whole - rest) / lags / (rest / dof), lags, dof)))
    return _named(lab, np.array(out), -float(np.log(0.05 / len(out))))


def _squares(design: Array, target: Array) -> float:
    solution = np.linalg.lstsq(design, target, rcond=None)[0]
    return float(np.square(target - design @ solution).sum())


def cpu_times_stall(lab: Lab, seen: Observed) -> Answer:
    """The rule of linnix: the victim's stalled time, shared among neighbours by their CPU time in the same second."""
    use, waited = _means(seen.use, SECOND), _means(seen.waited, SECOND)
    shares = use / np.maximum(use.sum(axis=1, keepdims=True), 1e-9)
    blamed = (shares * waited[:, None]).mean(axis=0)
    return _named(lab, blamed, 0.05)


def queue_pairs(lab: Lab, seen: Observed) -> Answer:
    """Seconds in which a neighbour ran while the victim waited for a CPU (what scheduler tracepoints give)."""
    return _named(lab, seen.beside.mean(axis=0), 0.05)


def _correlation(left: Array, right: Array) -> float:
    spread = left.std() * right.std()
    return float(((left - left.mean()) * (right - right.mean())).mean() / spread) if spread > 0 else 0.0


def rule_of(lab: Lab, budget_ns: int = BUDGET_NS) -> Rule:
    """The rule of an experiment in a lab."""
    return Rule(Code(len(lab.neighbours) + 1, lab.seed), SLOT_NS, budget_ns, PER_SLOT)


def experiment(lab: Lab, rule: Rule | None = None) -> Answer:
    """The experiment, with its own looks: it ends as it would on a host. `named_s`: when it first named somebody."""
    rule = rule or rule_of(lab)
    depths = rule.depths(rule.blocks_most)
    seen = simulate(lab, len(depths) * PER_SLOT, depths)
    use = _means(seen.use, PER_SLOT)
    names = [each.name for each in lab.neighbours]
    named_s, named = None, set[str]()
    for blocks in rule.looks:
        slots = blocks * rule.code.block_slots
        look = rule.look(names, seen.rate[: slots * PER_SLOT], use[:slots], before=named)
        named |= {each.suspect for each in look.guilty}
        named_s = look.seconds if named_s is None and look.guilty else named_s
        if look.enough:
            break
    suspicion = {each.suspect: float(len(names) - place) for place, each in enumerate(look.standings)}
    return Answer(suspicion, frozenset(each.suspect for each in look.guilty), look.seconds, look, named_s)


PASSIVE: Mapping[str, Callable[[Lab, Observed], Answer]] = {
    "CPI²-like (CPU time share)": cpi2,
    "PANDA-like (history)": panda,
    "Granger": granger,
    "CPU × stall (linnix's rule)": cpu_times_stall,
    "run-queue pairs": queue_pairs,
}
OURS = "partywall blame"


def answers(lab: Lab) -> dict[str, Answer]:
    """The answers of all six."""
    seen = simulate(lab, BUDGET_NS // TICK_NS)
    return {name: detector(lab, seen) for name, detector in PASSIVE.items()} | {OURS: experiment(lab)}
