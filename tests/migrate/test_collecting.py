"""What a guest sends while it moves is read then: an agent whose messages wait is cut off, and its guest ends."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from partywall.errors import TrialError
from partywall.migrate.document import Method
from partywall.migrate.measure.move import Moved, Mover
from partywall.migrate.measure.series import Series


class Guest(Series):
    """A series without a host: only what it takes is counted."""

    def __init__(self, error: str = "") -> None:
        self.taken, self._error = threading.Event(), error

    def _take(self, seconds: float, _until: Any = None) -> None:
        self.taken.set()
        time.sleep(min(seconds, 0.01))
        if self._error:
            raise TrialError(self._error)


class Move:
    """A move that lasts until something was taken."""

    def __init__(self, guest: Guest, outcome: str) -> None:
        self._guest, self._outcome = guest, outcome

    def move(self, *_: Any) -> Moved:
        assert self._guest.taken.wait(10)
        return Moved(begin_ns=0, outcome=cast("Any", self._outcome))


def moved(guest: Guest, outcome: str) -> Moved:
    return guest.move(cast("Mover", Move(guest, outcome)), Method(), 1)


def test_messages_are_taken_while_the_guest_moves() -> None:
    assert moved(Guest(), "completed").outcome == "completed"


def test_a_service_that_ends_during_the_move_is_an_error_unless_the_guest_is_lost() -> None:
    with pytest.raises(TrialError, match="the service ended"):
        moved(Guest("the service ended"), "completed")
    assert moved(Guest("the service ended"), "lost").outcome == "lost"


def test_a_bug_while_messages_are_taken_is_raised_even_if_the_guest_is_lost() -> None:
    guest = Guest()

    def take(*_: Any) -> None:
        guest.taken.set()
        raise KeyError("a message without its name")

    guest._take = take  # type: ignore[method-assign]
    for outcome in ("completed", "lost"):
        with pytest.raises(KeyError, match="a message without its name"):
            moved(guest, outcome)
