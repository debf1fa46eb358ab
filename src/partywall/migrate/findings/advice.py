"""Which method to use for a move: of those predicted to reach the goal, one that is as fast as any. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from partywall import units
from partywall.migrate.document import Advice, Choice, Goal, Method, Prediction
from partywall.migrate.findings.prediction import Facts, Fixed, predict

DOWNTIMES_MS = (30, 60, 100, 300, 1000)
"""Downtime limits that are considered beside those of the plan."""
GOALS = {"longest_s": "a wait of at most", "p99_s": "a p99 of at most"}
AS_SOON = 1.05
"""Times of moves that differ by less are as good as each other, for predictions are off by 2 % in the median. Settings
are changed only for a gain: QEMU's defaults are advised if their time is among these, or else the method by which
clients wait as briefly as possible."""
SURE = 0.95
"""Chance of an end below which a method is advised only if no other is likelier to end."""


def candidates(methods: Mapping[str, Method]) -> dict[str, Method]:
    """The plan's methods, and pre-copy with several downtime limits."""
    limits = {f"downtime {ms} ms": Method(downtime=f"{ms}ms") for ms in DOWNTIMES_MS}
    named = {name: method for name, method in methods.items() if not method.cancel}
    return named | {name: method for name, method in limits.items() if method not in named.values()}


def advise(
    workload: str,
    methods: Mapping[str, Method],
    goal: Goal,
    facts: Facts,
    fixed: Mapping[bool, Fixed],
    give_up_s: float,
    seed: int,
) -> Advice:
    """fixed: costs of pre-copy (False) and post-copy (True), as far as they are known."""
    considered = tuple(
        Choice(name=name, method=method, prediction=predict(facts, costs, method, give_up_s, seed))
        for name, method in candidates(methods).items()
        if (costs := fixed.get(method.postcopy is not None)) is not None and is_modelled(method)
    )
    likeliest = max((choice.prediction.chance for choice in considered), default=0.0)
    ends = [each for each in considered if each.prediction.converges and each.prediction.chance >= min(SURE, likeliest)]
    if not ends:
        return Advice(workload=workload, chosen=None, considered=considered, text=_hopeless(facts, fixed))
    limits = goal.limits
    reaching = [choice for choice in ends if limits and _excess(choice.prediction, limits, "high") <= 1]
    if reaching:
        soonest_s = min(choice.prediction.spans["total_s"].value for choice in reaching)
        soon = [each for each in reaching if each.prediction.spans["total_s"].value <= soonest_s * AS_SOON]
        chosen = min(soon, key=lambda each: (each.method != Method(), each.prediction.spans["longest_s"].value))
    else:
        nearest = limits or {"longest_s": 1.0}
        chosen = min(ends, key=lambda choice: _excess(choice.prediction, nearest, "value"))
    return Advice(
        workload=workload,
        chosen=chosen,
        considered=considered,
        text=_text(chosen, limits, bool(reaching)) + _uncertain(chosen, give_up_s),
        reaches=not limits or bool(reaching),
    )


def is_modelled(method: Method) -> bool:
    """Compression, deltas, throttling and stops change what is sent, and how fast the guest changes its memory."""
    slowed = method.auto_converge or method.dirty_limit is not None or method.stop_after is not None
    is_cut = method.postcopy is not None and method.postcopy.pause > 0
    return not (method.cancel or method.compression or method.xbzrle or slowed or is_cut)


def _excess(prediction: Prediction, limits: Mapping[str, float], end: str) -> float:
    """The largest predicted figure as a share of its limit; infinite if one is not predicted. end: of its interval."""
    spans = prediction.spans
    return max(getattr(spans[name], end) / limit if name in spans else math.inf for name, limit in limits.items())


def _text(chosen: Choice, limits: Mapping[str, float], reaches: bool) -> str:
    spans = chosen.prediction.spans
    cost = (
        f"clients wait {_span(spans['longest_s'].low, spans['longest_s'].high)}, and the move takes "
        f"{_span(spans['total_s'].low, spans['total_s'].high)}"
    )
    if "p99_s" in limits and "p99_s" in spans:
        cost += f"; its p99 response is {_span(spans['p99_s'].low, spans['p99_s'].high)}"
    if not limits:
        return f"use {chosen.name}: {cost}"
    wanted = " and ".join(f"{GOALS[name]} {_time(limit)}" for name, limit in limits.items())
    if reaches:
        return f"use {chosen.name}, which reaches the goal of {wanted} as soon as any: {cost}"
    return f"no method is sure to reach the goal of {wanted}; {chosen.name} comes closest: {cost}"


def _uncertain(chosen: Choice, give_up_s: float) -> str:
    if chosen.prediction.chance >= SURE:
        return ""
    chance = f"{100 * chosen.prediction.chance:.0f} %"
    return f"; no method is sure to end: this one ends within {_time(give_up_s)} with a chance of {chance}"


def _hopeless(facts: Facts, fixed: Mapping[bool, Fixed]) -> str:
    if not fixed:
        return "nothing can be said, because no calibration move was completed"
    rates = next(iter(fixed.values())).rates
    rate = sorted(rates)[len(rates) // 2]
    parts = [
        f"no pre-copy is likely to end: the guest changes {units.format_bytes(facts.curve.rate)}/s, "
        f"and the link carries {units.format_bytes(rate)}/s"
    ]
    parts += list(_remedies(facts, rate, fixed))
    return "; ".join(parts)


def _remedies(facts: Facts, rate: float, fixed: Mapping[bool, Fixed]) -> Iterator[str]:
    """What would have to change."""
    limit_s = facts.curve.working_set(facts.content) / rate
    yield f"it would end with a downtime limit of {_time(limit_s)}, which sends all that changes while the guest stands"
    yield f"or with a link of more than {units.format_bit_rate(8 * facts.curve.rate)}"
    if True not in fixed:
        yield "or by post-copy: add a method with postcopy to the plan"


def _span(low: float, high: float) -> str:
    return f"{_time(low)} to {_time(high)}"


def _time(seconds: float) -> str:
    return units.format_duration(seconds * 1e9)
