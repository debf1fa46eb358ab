"""What benchmarks of migration share: a plan from its parts, and a series that is over when the block ends."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from partywall.core import here
from partywall.events import silent
from partywall.host import Host
from partywall.migrate.document import MigrationPlan
from partywall.migrate.measure.series import Series, prepare
from partywall.sandbox import lab, qemu


def plan(**content: Any) -> MigrationPlan:
    """A plan of the given keys, over QEMU's defaults and Partywall's."""
    return MigrationPlan.model_validate({"partywall_migration": 1, "name": "bench"} | content)


def lacking() -> str:
    """What keeps guests from being moved here, with the remedy."""
    return lab.lacking() or qemu.lacking(Host.here())


@contextlib.contextmanager
def series(wanted: MigrationPlan) -> Iterator[Series]:
    """A guest that is up, and its two hosts. Its root image is built first, if it has one and it is not there yet."""
    host = here.this_host()
    prepare(wanted, host, silent)
    with Series(wanted, host, f"bench-moves-{secrets.token_hex(2)}", Path("/var/tmp")) as moves:
        yield moves
