"""Partywall measures, explains and enforces performance isolation between neighbours on a shared Linux host.

`partywall.api` contains the commands as functions. `import partywall` offers them too. It imports them only when they
are used, because the command line does not need them.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partywall.api import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # `from partywall import units` looks here first. It must not import the whole interface.
    if not name.startswith("_") and not importlib.util.find_spec(f"{__name__}.{name}"):
        api = importlib.import_module("partywall.api")
        if name in api.__all__ or name in api.functions():
            return getattr(api, name)
    raise AttributeError(f"module 'partywall' has no attribute {name!r}")


def __dir__() -> list[str]:
    api = importlib.import_module("partywall.api")
    return sorted([*globals(), *api.__all__, *api.functions()])
