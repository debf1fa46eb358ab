"""What users brought to a run: their files, and what their commands said their version is."""

from __future__ import annotations

from collections.abc import Iterator

from partywall import units
from partywall.run.values.evidence import VICTIM, Evidence


def own_files(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """(name, text): the user's files that workloads got, and what their commands said their version is."""
    scenario = evidence.plan.scenario
    for kind, workloads in (("victim", scenario.victims), ("aggressor", scenario.aggressors)):
        for name, workload in workloads.items():
            for file in workload.files:
                about = (
                    f"{units.format_bytes(file.size or 0)}, SHA-256 {file.sha256[:16]}…" if file.sha256 else "not read"
                )
                yield f"file of {kind} {name}", f"{file.name}: {about}"
            if workload.version is not None:
                said = "; ".join(_versions(evidence, kind, name)) or "unknown, because no trial began"
                yield f"version of {kind} {name}", said


def _versions(evidence: Evidence, kind: str, name: str) -> Iterator[str]:
    """What the command of a workload said in any trial, each text once."""
    said: dict[str, None] = {}
    for trial in evidence.plan.trials:
        is_in = trial.victim_name == name if kind == "victim" else name in trial.aggressors
        facts = evidence.agent_facts.get(trial.id)
        if is_in and facts is not None:
            said |= dict.fromkeys(facts.versions.get(VICTIM if kind == "victim" else name, ()))
    yield from said
