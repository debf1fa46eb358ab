"""Server-sent events: the changing parts of a page, and the lines of a journal."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from partywall.web.live import lines
from partywall.web.parts import CONTROLS
from partywall.web.shown import POLL_S
from partywall.web.site import Server

WATCHERS_MAX = 64
PING_S = 15.0


def answer(server: Server, content: AsyncIterator[bytes]) -> Response:
    """An answer of server-sent events. Refused if too many are open."""
    if server.watchers >= WATCHERS_MAX:
        raise HTTPException(503, "Too many pages are being watched. Close some.")

    async def counted() -> AsyncIterator[bytes]:
        server.watchers += 1
        try:
            yield b"retry: 500\n\n"
            async for event in content:
                yield event
        finally:
            server.watchers -= 1

    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(counted(), media_type="text/event-stream", headers=headers)


async def panels(server: Server, name: str, token: str, *, may_change: bool) -> AsyncIterator[bytes]:
    """The parts of the watching page that changed, as often as the journal or the job does.

    may_change: whether to send the controls.
    token: that of the page as the browser has it, from `Server.token`; another text brings all parts.
    """
    version = server.version(token)
    feed = server.feed(name)
    with feed.watched():
        while True:
            version, changed = await feed.after(version, PING_S)
            identity = server.token(version)
            sent = [_event(part, text, identity) for part, text in changed.items() if may_change or part != CONTROLS]
            yield b"".join(sent) or b": still here\n\n"


async def events(file: Path, offset: int) -> AsyncIterator[bytes]:
    """The lines of a journal from an offset on. The identity of each is the offset after it."""
    quiet_s = 0.0
    with contextlib.suppress(OSError):
        if file.stat().st_size < offset:
            offset = 0
    while True:
        for offset, event in await asyncio.to_thread(_read, file, offset):  # noqa: B020 - it goes on from there
            quiet_s = 0.0
            if event is not None:
                yield _event("line", json.dumps(event), offset)
        await asyncio.sleep(POLL_S)
        quiet_s += POLL_S
        if quiet_s >= PING_S:
            quiet_s = 0.0
            yield b": still here\n\n"


def _read(file: Path, offset: int) -> list[tuple[int, dict[str, Any] | None]]:
    return list(lines(file, offset))


def _event(name: str, text: str, identity: object) -> bytes:
    data = "\n".join(f"data: {line}" for line in text.splitlines())
    return f"id: {identity}\nevent: {name}\n{data}\n\n".encode("utf-8", "replace")
