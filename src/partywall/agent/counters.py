"""Descriptions of the agent's monitor counters, and what their changes mean.

Read from `counters.json`, the checked-in output of `partywall-agent counters`, so that a run can be reported without an
agent.
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any


@functools.cache
def shipped() -> dict[str, dict[str, Any]]:
    """Descriptions by name, without a subject. A counter has the same meaning in every file that it is read from."""
    text = resources.files("partywall.agent").joinpath("counters.json").read_text("utf-8")
    return {entry["name"]: entry for entry in json.loads(text)}


def phrase(name: str) -> str:
    """A description of SUBJECT.COUNTER or COUNTER; empty if this version does not know it."""
    return str(shipped().get(name.rpartition(".")[2], {}).get("phrase", ""))
