"""Power controls by kind. A new one is one file and one entry, and its keys in `model.cluster.Control`."""

from __future__ import annotations

from collections.abc import Callable

from partywall.consolidate.control import commands, redfish
from partywall.consolidate.seams import Power
from partywall.model.cluster import Control

CONTROLS: dict[str, Callable[[Control], Power]] = {
    "redfish": redfish.of,
    "ipmi": commands.of,
    "wol": commands.of,
    "command": commands.of,
}
