"""Differences between the hosts and workloads of two runs, which are reported before their figures are compared.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from partywall.run.values.plan import Plan

HOST = {
    "processor": ("cpu", "model"),
    "microcode": ("cpu", "microcode"),
    "CPUs online": ("cpu", "online"),
    "hyper-threading": ("cpu", "smt"),
    "memory": ("memory", "total_bytes"),
    "huge pages": ("memory", "transparent_huge_pages"),
    "kernel": ("kernel", "release"),
    "machine": ("virtualisation", "product"),
    "firmware": ("virtualisation", "firmware"),
}
"""Facts that identify a host, and their places."""

_ABSENT = object()


def hosts_differ(run: Mapping[str, Any], reference: Mapping[str, Any]) -> tuple[str, ...]:
    """Differences between two hosts' facts, and those of machines that both name, as text.

    Facts that either lacks are skipped.
    """
    machines, before = run.get("machines", {}), reference.get("machines", {})
    pairs = [("", run, reference)]
    pairs += [(f" of {name}", machines[name], before[name]) for name in machines if name in before]
    return tuple(text for pair in pairs for text in _facts_differ(*pair))


def _facts_differ(whose: str, run: Mapping[str, Any], reference: Mapping[str, Any]) -> Iterator[str]:
    for name, path in HOST.items():
        now, before = _at(run, path), _at(reference, path)
        if now is not None and before is not None and now != before:
            yield f"{name}{whose}: {_shown(now)} in the run, {_shown(before)} in the reference"


def workloads_differ(run: Plan, reference: Plan) -> dict[tuple[str, str], str]:
    """Workloads with the same name that differ, by (role, name), with the differences as text.

    A workload is its kernel or command, parameters, threads and sandbox; parameters as requested and as planned.
    """
    differences = _planned_otherwise(run, reference)
    for role in ("victims", "aggressors"):
        now, before = getattr(run.scenario, role), getattr(reference.scenario, role)
        for name in now.keys() & before.keys():
            # The same files may be in another folder.
            pair = [
                w.model_dump(mode="json", exclude={"files": {"__all__": {"path"}}}) for w in (now[name], before[name])
            ]
            # Intensities are separate treatments, which are matched individually.
            if changed := [text for text in _changes(*pair) if not text.startswith("intensity")]:
                differences[role.removesuffix("s"), name] = "; ".join(changed)
    return differences


def _planned_otherwise(run: Plan, reference: Plan) -> dict[tuple[str, str], str]:
    """Workloads whose parameters differ only because the plan derived sizes from the host."""
    differences = {}
    before = {trial.id: trial for trial in reference.trials}
    for trial in run.trials:
        if (same := before.get(trial.id)) is None or same.levels != trial.levels:
            continue
        pairs = {("victim", trial.victim_name): (trial.victim.params, same.victim.params)} | {
            ("aggressor", name): (trial.aggressors[name].params, same.aggressors[name].params)
            for name in trial.aggressors.keys() & same.aggressors.keys()
        }
        for who, (now, then) in pairs.items():
            if changed := list(_changes(now, then, "params.")):
                differences[who] = "; ".join(changed)
    return differences


def _changes(now: Mapping[str, Any], before: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key in dict.fromkeys([*now, *before]):
        here, there = now.get(key, _ABSENT), before.get(key, _ABSENT)
        if isinstance(here, dict) and isinstance(there, dict):
            yield from _changes(here, there, f"{above}{key}.")
        elif here != there:
            yield f"{above}{key} is {_shown(here)}, was {_shown(there)}"


def _at(facts: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = facts
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _shown(value: Any) -> str:
    if value is _ABSENT or value is None:
        return "not given"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
