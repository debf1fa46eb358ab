"""Where workloads run. Each backend starts an agent in a place with the requested settings, and changes them live.

Everything created here is labelled with its run, so that `reap` can remove what a killed run left behind.

Backends are imported when they are used: those who only read groups of the host need none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partywall.sandbox.base import Sandbox, Settings, Spent, make
    from partywall.sandbox.reaper import Reaped, reap

__all__ = ["Reaped", "Sandbox", "Settings", "Spent", "make", "reap"]
_REAPER = ("Reaped", "reap")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{'reaper' if name in _REAPER else 'base'}"), name)
