"""Waiting in tests for something that another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")


def until(
    condition: Callable[[], T],
    what: str | Callable[[], str] = "the condition was not met in time",
    within_s: float = 30.0,
    every_s: float = 0.02,
) -> T:
    """Returns the condition's value once that is true. what: the failure otherwise, or what gives its text then."""
    # Counted, so that a machine that stands still for a while uses up no deadline.
    for _ in range(round(within_s / every_s)):
        if value := condition():
            return value
        time.sleep(every_s)
    pytest.fail(what() if callable(what) else what)
