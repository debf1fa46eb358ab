"""Switches live limits slot by slot, in its own thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from partywall.clock import Clock
from partywall.run.measure.stage import Stage
from partywall.run.values.evidence import VICTIM
from partywall.run.values.plan import Slot
from partywall.sandbox.document import Limits


class Limiter:
    """Follows one block at a time. Without live limits, it does nothing."""

    def __init__(self, stage: Stage, clock: Clock) -> None:
        self._stage = stage
        self._clock = clock
        self._live = any(treatment.victim_limits for treatment in stage.trial.treatments)
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._late: set[int] = set()
        self._now = Limits()

    def follow(self, slots: Sequence[Slot]) -> None:
        """Sets the victim's limits at each slot's start, after the previous block has ended."""
        if not self._live:
            return
        if self._thread is not None:
            self._thread.join()
        self.check()
        self._thread = threading.Thread(target=self._switch, args=(tuple(slots),), name="limiter", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises the error of the thread, if any."""
        if self._error is not None:
            raise self._error

    def was_late(self, slots: Sequence[Slot]) -> bool:
        """True if a limit was not set when the window of one of these slots began."""
        return any(slot.start_ns in self._late for slot in slots)

    def _switch(self, slots: Sequence[Slot]) -> None:
        sandbox = self._stage.session.sandboxes[VICTIM]
        try:
            for slot in slots:
                wanted = self._stage.trial.treatment(slot.treatment).victim_limits or Limits()
                # Skips unchanged limits: most slots are too short for another call of the runtime.
                if wanted == self._now:
                    continue
                self._clock.sleep_until(slot.start_ns)
                sandbox.limit(wanted)
                self._now = wanted
                if self._clock.now_ns() > slot.measure_ns:
                    self._late.add(slot.start_ns)
        except Exception as error:  # noqa: BLE001 - passed to the thread that waits for it
            self._error = error
