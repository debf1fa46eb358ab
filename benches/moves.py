"""What benchmarks of migration share: a plan from its parts, a series that is over when the block ends, and parts."""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from common import Parser
from partywall import pipeline
from partywall.events import silent
from partywall.host import Host
from partywall.migrate.series import Series, prepare
from partywall.model.migration import MigrationPlan
from partywall.sandbox import lab, qemu

Result = TypeVar("Result")
UNFINISHED = 3
"""Exit code of a benchmark that has parts left."""


def arguments(description: str, plants: Mapping[str, str]) -> argparse.Namespace:
    """As `common.arguments`, with --folder and --minutes: for one that takes longer than it may run at a time."""
    parser = Parser(description, plants=plants)
    parser.add_argument(
        "--folder", type=Path, help="keep finished parts here; give it again to measure those that are left"
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="begin no part that would end later (default: 9)")
    return parser.parse_args()


def in_parts(parts: Mapping[str, Callable[[], Result]], options: argparse.Namespace) -> dict[str, Result]:
    """The results of all parts, which are plain values. Ends the program with UNFINISHED if some are left.

    A part counts as long as the longest so far. At least one is measured each time.
    """
    folder: Path | None = options.folder
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{name}.json" for name in parts} if folder else {}
    done = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    begun, longest_s = time.monotonic(), 0.0
    for name, measure in parts.items():
        if name in done:
            continue
        spent_s = time.monotonic() - begun
        if folder and longest_s and spent_s + longest_s > options.minutes * 60:
            left = len(parts) - len(done)
            print(f"{len(done)} of {len(parts)} parts are done, {left} left; run it again with --folder {folder}")
            sys.exit(UNFINISHED)
        done[name] = measure()
        longest_s = max(longest_s, time.monotonic() - begun - spent_s)
        if folder:
            unfinished = files[name].with_suffix(".new")
            unfinished.write_text(json.dumps(done[name]))
            unfinished.rename(files[name])
        print(f"part {name} took {time.monotonic() - begun - spent_s:.0f} s", flush=True)
    return {name: done[name] for name in parts}


def plan(**content: Any) -> MigrationPlan:
    """A plan of the given keys, over QEMU's defaults and Partywall's."""
    return MigrationPlan.model_validate({"partywall_migration": 1, "name": "bench"} | content)


def lacking() -> str:
    """What keeps guests from being moved here, with the remedy."""
    return lab.lacking() or qemu.lacking(Host.here())


@contextlib.contextmanager
def series(wanted: MigrationPlan) -> Iterator[Series]:
    """A guest that is up, and its two hosts. Its root image is built first, if it has one and it is not there yet."""
    host = pipeline.this_host()
    prepare(wanted, host, silent)
    with Series(wanted, host, f"bench-moves-{secrets.token_hex(2)}", Path("/var/tmp")) as moves:
        yield moves
