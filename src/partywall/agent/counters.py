"""What the agent's monitor says of its counters: in words, and what they mean when they move.

Read from `counters.json`, which the agent prints (`partywall-agent counters`) and which is checked in, so that a run
can be reported where no agent is.
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any


@functools.cache
def shipped() -> dict[str, dict[str, Any]]:
    """By name, without a subject; the same counter read from another file means the same."""
    text = resources.files("partywall.agent").joinpath("counters.json").read_text("utf-8")
    return {entry["name"]: entry for entry in json.loads(text)}


def phrase(name: str) -> str:
    """What SUBJECT.COUNTER or COUNTER counts, in words; empty if this version knows no such counter."""
    return str(shipped().get(name.rpartition(".")[2], {}).get("phrase", ""))
