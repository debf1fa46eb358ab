"""The changing parts of a record's page, rendered once for all that watch it. Knows no HTTP.

Each part has the version since which it is as it is. A page that was rendered at a version, or a connection that was
lost at one, therefore gets only what has changed since.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

POLL_S = 0.1
_versions = itertools.count(1)


@dataclass(frozen=True)
class Part:
    """A part as it would be rendered. stamp: equal to the one before if the result would be the same."""

    stamp: object
    render: Callable[[], str]


class Shown:
    """The parts of a page by their names, in the order in which they are sent. version: that of the newest part."""

    def __init__(self) -> None:
        self.version = 0
        self.stamp: object = None
        self._parts: dict[str, tuple[object, int, str]] = {}

    def take(self, parts: Mapping[str, Part]) -> None:
        """Replaces the parts. Those that are as before keep their version."""
        version = next(_versions)
        taken = {}
        for name, part in parts.items():
            stamp, since, text = self._parts.get(name, (None, 0, ""))
            if since == 0 or stamp != part.stamp:
                before, text = text, part.render()
                since = since if since and text == before else version
            taken[name] = part.stamp, since, text
        self._parts = taken
        self.version = max((since for _, since, _ in taken.values()), default=0)

    def after(self, version: int) -> dict[str, str]:
        """The parts that have changed since a version."""
        return {name: text for name, (_, since, text) in self._parts.items() if since > version}


class Feed:
    """Looks at a record for all that watch it, as long as somebody does. look: returns the page as it is now."""

    def __init__(self, look: Callable[[], Shown]) -> None:
        self._look = look
        self._watchers = 0
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Looks until the last watcher leaves."""
        self._watchers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._keep_looking())
        try:
            yield
        finally:
            self._watchers -= 1
            if self._watchers == 0:
                self._task.cancel()
                self._task = None

    async def change(self, within_s: float) -> bool:
        """Waits for the next change. False if there is none within a time. Raises what a look raised."""
        changed = self._changed
        if self._task is not None and self._task.done():
            self._task.result()
        try:
            await asyncio.wait_for(changed.wait(), within_s)
        except TimeoutError:
            return False
        return True

    async def _keep_looking(self) -> None:
        seen: int | None = None
        try:
            while True:
                # Not in a thread: that would wake two threads, which costs more than most looks.
                version = self._look().version
                if version != seen:
                    seen = version
                    self._wake()
                await asyncio.sleep(POLL_S)
        finally:
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
