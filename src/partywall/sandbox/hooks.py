"""Hooks on interfaces that a run created, and how the next start finds those of a killed run.

The agent removes its own hooks when its stream ends. These notes are for the case that the agent was killed too.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

from partywall.agent import binary
from partywall.errors import CapabilityError
from partywall.files import write_whole
from partywall.host.label import Label

FILE = "hooks.json"
TIMEOUT_S = 20


def note(label: Label, places: Sequence[tuple[str | None, str]]) -> None:
    """Records (namespace, interface) of hooks that will be created. All are named after the run."""
    write_whole(label.state / FILE, json.dumps([list(place) for place in places]))


def remove(label: Label) -> tuple[list[str], list[str]]:
    """Removes the rest of a run's hooks: (removed, not removed)."""
    try:
        places = [tuple(place) for place in json.loads((label.state / FILE).read_text())]
    except (OSError, ValueError):
        return [], []
    arguments = [f"{namespace or ''}={interface}" for namespace, interface in places]
    try:
        argv = [str(binary.find()), "unhook", f"{label.run}_", *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False)
    except (CapabilityError, OSError, subprocess.TimeoutExpired) as error:
        return [], [f"hooks at {', '.join(arguments)} ({error})"]
    left = [f"hooks at {', '.join(arguments)} ({done.stderr.strip()})"] if done.returncode else []
    return done.stdout.splitlines(), left
