"""Which method to use for a move: the one that is predicted to reach the goal soonest. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from partywall import units
from partywall.model.migration import Advice, Choice, Goal, Method, Prediction
from partywall.stats.prediction import Facts, Fixed, predict

DOWNTIMES_MS = (30, 100, 300, 1000)
"""Downtime limits that are considered beside those of the plan."""
SURE = 0.95
"""Chance of an end below which a method is not advised."""


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
    ends = [choice for choice in considered if choice.prediction.chance >= SURE]
    if not ends:
        return Advice(workload=workload, chosen=None, considered=considered, text=_hopeless(facts, fixed))
    goal_s = None if goal.downtime is None else goal.downtime / 1e9
    reaching = [choice for choice in ends if goal_s is not None and _waits(choice.prediction) <= goal_s]
    if reaching:
        chosen = min(reaching, key=lambda choice: choice.prediction.spans["total_s"].value)
    else:
        chosen = min(ends, key=lambda choice: choice.prediction.spans["longest_s"].value)
    return Advice(
        workload=workload,
        chosen=chosen,
        considered=considered,
        text=_text(chosen, goal_s, bool(reaching)),
        reaches=goal_s is None or bool(reaching),
    )


def is_modelled(method: Method) -> bool:
    """Compression, deltas, throttling and stops change what is sent, and how fast the guest changes its memory."""
    slowed = method.auto_converge or method.dirty_limit is not None or method.stop_after is not None
    is_cut = method.postcopy is not None and method.postcopy.pause > 0
    return not (method.cancel or method.compression or method.xbzrle or slowed or is_cut)


def _waits(prediction: Prediction) -> float:
    """How long clients wait in 95 of 100 moves, at the hand-over or at the start: what the goal is for."""
    return prediction.spans["longest_s"].high


def _text(chosen: Choice, goal_s: float | None, reaches: bool) -> str:
    spans = chosen.prediction.spans
    cost = (
        f"clients wait {_span(spans['longest_s'].low, spans['longest_s'].high)}, and the move takes "
        f"{_span(spans['total_s'].low, spans['total_s'].high)}"
    )
    if goal_s is None:
        return f"use {chosen.name}: {cost}"
    if reaches:
        return f"use {chosen.name}, the fastest method that reaches the goal of {_time(goal_s)}: {cost}"
    return f"no method is sure to reach the goal of {_time(goal_s)}; {chosen.name} comes closest: {cost}"


def _hopeless(facts: Facts, fixed: Mapping[bool, Fixed]) -> str:
    if not fixed:
        return "nothing can be said, because no calibration move was completed"
    rates = next(iter(fixed.values())).rates
    rate = sorted(rates)[len(rates) // 2]
    parts = [
        f"no pre-copy ends: the guest changes {units.format_bytes(facts.curve.rate)}/s, and the link carries "
        f"{units.format_bytes(rate)}/s"
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
