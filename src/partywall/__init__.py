"""Partywall measures, explains and enforces performance isolation between neighbours on a shared Linux host.

`partywall.api` contains the commands as functions. `import partywall` offers them too. It imports them only when they
are used, because the command line does not need them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partywall.api import *  # noqa: F403

__version__ = "0.1.0"

INTERFACE = frozenset(
    [
        "Block",
        "Broken",
        "CapabilityError",
        "Doing",
        "Event",
        "Exit",
        "Left",
        "Note",
        "PartywallError",
        "Report",
        "Result",
        "Second",
        "Started",
        "TrialError",
        "UsageError",
        "attribute_power",
        "calibrate_power",
        "compare_runs",
        "open_record",
        "plan_consolidation",
        "plan_scenario",
        "print_event",
        "read_power",
        "run_guard",
        "run_load",
        "run_migration",
        "run_scenario",
        "run_study",
        "run_trace",
        "simulate_consolidation",
        "this_host",
    ]
)
"""The names that `partywall.api` offers. Looking up any other name there would import it for every submodule."""


def __getattr__(name: str) -> Any:
    if name not in INTERFACE:
        raise AttributeError(f"module 'partywall' has no attribute {name!r}")
    return getattr(importlib.import_module("partywall.api"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *INTERFACE])
