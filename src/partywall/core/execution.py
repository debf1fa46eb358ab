"""Carries out what a user started, until it ends or is ended."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP end a run as Ctrl-C does: sandboxes are removed first.

    A signal that is ignored, such as SIGHUP under nohup, stays ignored. A program's own handler is called first.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if callable(own := before[number]):
            own(number, frame)
        raise KeyboardInterrupt

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    before = {int(number): handler for number, handler in handlers.items() if handler != signal.SIG_IGN}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
