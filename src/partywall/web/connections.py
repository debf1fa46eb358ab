"""Connections that cannot keep others out: a request must arrive soon, and its answer must be read.

Uvicorn waits without limit for a request's head, and refuses everybody if too many connections are open. Knows no page.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 15.0
"""How long a connection may be without a request. Longer than uvicorn keeps one open after an answer."""
WAITING_MAX = 256
"""The most connections without a request. Less than the connections that uvicorn allows in all."""


class Prompt(H11Protocol):
    """A connection that is ended if no request is in progress for too long, or if it is the oldest of too many."""

    _waiting: ClassVar[dict[Prompt, None]] = {}

    def __init__(self, *arguments: Any, **fields: Any) -> None:
        super().__init__(*arguments, **fields)
        self._timer: asyncio.TimerHandle | None = None
        self._unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_busy():
            self._go_on()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_busy():
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._go_on()
        super().connection_lost(exc)

    def _is_busy(self) -> bool:
        """True while a request is answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._go_on()
        self._waiting[self] = None
        self._unread = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(REQUEST_S, self._late)
        if len(self._waiting) > WAITING_MAX:
            next(iter(self._waiting)).end()

    def _go_on(self) -> None:
        self._waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        """A client that still reads a large answer gets more time."""
        if 0 < self.transport.get_write_buffer_size() < self._unread:
            self._wait()
        else:
            self.end()

    def end(self) -> None:
        """Ends the connection at once, whatever has not been read."""
        self._go_on()
        self.transport.abort()
