"""The changing parts of a record's page, rendered once for all that watch it. Knows no HTTP.

Each part has the version since which it is as it is. A page that was rendered at a version, or a connection that was
lost at one, therefore gets only what has changed since.
"""

from __future__ import annotations

import asyncio
import contextlib
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
    """The parts of a page by their names, in the order in which they are sent."""

    def __init__(self) -> None:
        self.stamp: object = None
        # The newest version and the parts change together: a request may read them in another thread.
        self._now: tuple[int, dict[str, tuple[object, int, str]]] = 0, {}

    def take(self, parts: Mapping[str, Part]) -> None:
        """Replaces the parts. Those that are as before keep their version."""
        version = next(_versions)
        _, old = self._now
        taken = {}
        for name, part in parts.items():
            stamp, since, text = old.get(name, (None, 0, ""))
            if since == 0 or stamp != part.stamp:
                before, text = text, part.render()
                since = since if since and text == before else version
            taken[name] = part.stamp, since, text
        self._now = max((since for _, since, _ in taken.values()), default=0), taken

    @property
    def version(self) -> int:
        """The version of the newest part."""
        return self._now[0]

    def after(self, version: int) -> tuple[int, dict[str, str]]:
        """The version of the newest part, and the parts that have changed since an older one."""
        newest, parts = self._now
        return newest, {name: text for name, (_, since, text) in parts.items() if since > version}


class Feed:
    """Looks at a record for all that watch it, as long as somebody does.

    look: returns the page as it is now. look_unless_busy: the same, or None if it would have to wait.
    """

    def __init__(self, look: Callable[[], Shown], look_unless_busy: Callable[[], Shown | None]) -> None:
        self._look, self._look_unless_busy = look, look_unless_busy
        self._shown: Shown | None = None
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
                self._task, self._shown = None, None

    async def after(self, version: int, within_s: float) -> tuple[int, dict[str, str]]:
        """What `Shown.after` gives, as soon as parts have changed since a version. No parts if none do within a time.

        Raises what a look raised.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._shown is None or self._shown.version <= version:
                    if self._task is not None and self._task.done():
                        self._task.result()
                    await self._changed.wait()
        return self._shown.after(version) if self._shown else (version, {})

    async def _keep_looking(self) -> None:
        seen: int | None = None
        try:
            # The first look may read a whole journal, and wait for another one.
            self._shown = await asyncio.to_thread(self._look)
            while True:
                # Not in a thread: that would wake two threads, which costs more than most looks.
                self._shown = self._look_unless_busy() or self._shown
                if self._shown.version != seen:
                    seen = self._shown.version
                    self._wake()
                await asyncio.sleep(POLL_S)
        finally:
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
