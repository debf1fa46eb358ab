"""Power controls by kind. A new one is one file and one entry, and its keys in `consolidate.document.Control`."""

from __future__ import annotations

from collections.abc import Callable

from partywall.consolidate.document import Control
from partywall.consolidate.measure.control import commands, redfish
from partywall.consolidate.measure.seams import Power

CONTROLS: dict[str, Callable[[Control], Power]] = {
    "redfish": redfish.of,
    "ipmi": commands.of,
    "wol": commands.of,
    "command": commands.of,
}
