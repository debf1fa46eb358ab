"""Receives agents' messages, stores them immediately, and returns blocks whose slices have all arrived."""

from __future__ import annotations

import queue
from collections import Counter as Counts
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partywall.agent.metric import Extractor
from partywall.clock import Clock
from partywall.errors import TrialError
from partywall.events import Counters
from partywall.run.measure.stage import Stage
from partywall.run.record.evidence import metric_rows, metrics
from partywall.run.record.observe import Block, Samples, Window, observe
from partywall.run.record.pending import Pending
from partywall.run.values.evidence import VICTIM, Counter
from partywall.run.values.observation import Observations
from partywall.run.values.plan import Slot
from partywall.sandbox.clock import Looks

# If its slices are missing this long after a block's end, the victim counts as stuck.
PATIENCE_NS = 15_000_000_000
KEPT_NS = 5_000_000_000
WATCHED_NS = 1_000_000_000
"""The least time between two reports of counters to those who watch."""


@dataclass
class Expected:
    """A scheduled block. error_ns: clock error that its guard times allow; clock_off_ns: the actual one.

    lost: slices of it that an agent could not send.
    """

    block: Block
    stretch: int
    error_ns: int
    clock_off_ns: int = 0
    lost: int = 0

    @property
    def end_ns(self) -> int:
        return self.block.slots[-1].end_ns

    @property
    def is_refuted(self) -> bool:
        return self.clock_off_ns > self.error_ns

    def event(self, turn: str) -> dict[str, Any]:
        """The block as an event of the run."""
        off = {"clock_off_ns": self.clock_off_ns} if self.is_refuted else {}
        lost = {"slices_lost": self.lost} if self.lost else {}
        return {
            "trial": self.block.trial,
            "visit": turn,
            "block": self.block.number,
            "stretch": self.stretch,
            "long": self.block.long,
            "slots": [slot.model_dump() for slot in self.block.slots],
        } | off | lost  # fmt: skip


class Recorder:
    """The receiver of one turn's messages."""

    def __init__(self, stage: Stage, pending: Pending, turn: str) -> None:
        self._stage = stage
        self._pending = pending
        self._turn = turn
        self._windows: dict[str, Window] = {}
        self._extractors = {name: Extractor(metric) for name, metric in metrics(stage.trial).items()}
        self._samples: deque[tuple[int, list[float | None]]] = deque(maxlen=1000)
        self._counters = tuple(Counter(**counter) for counter in stage.counters)
        self._reported: tuple[int, list[float | None]] | None = None
        self._expected: deque[Expected] = deque()
        self._tail: deque[str] = deque(maxlen=3)
        # Dropped lines of output that arrived too fast or were too long, by workload.
        self.dropped: Counts[str] = Counts()

    def expect(
        self, number: int, stretch: int, slots: Sequence[Slot], *, long: bool = False, error_ns: int = 0
    ) -> None:
        """Registers a scheduled block, with guard times for clock errors up to `error_ns`."""
        block = Block(self._stage.trial.id, number, tuple(slots), long=long)
        self._expected.append(Expected(block, stretch, error_ns))

    def complete(self, looks: Looks) -> Iterator[tuple[Observations, dict[str, Any]]]:
        """Blocks that were complete before the clocks were read, with the event to write.

        Without observations if a slot is unknown, a clock error exceeds the block's guard times, or an agent lost
        slices.
        """
        self._take_messages()
        for expected in self._expected:
            expected.clock_off_ns = max(expected.clock_off_ns, looks.certain_ns)
        while self._expected and self._is_complete(self._expected[0], looks.at_ns):
            expected = self._expected.popleft()
            yield (
                Observations.of(()) if expected.is_refuted or expected.lost else self._observe(expected.block),
                expected.event(self._turn),
            )
            self._forget(expected.block.slots[0].start_ns - KEPT_NS)

    def _is_complete(self, expected: Expected, looked_ns: int) -> bool:
        """True if all its slices have arrived, and clocks were read after its end by any of them."""
        return self._until_ns() >= expected.end_ns and looked_ns >= expected.end_ns + expected.error_ns

    def take_rest(self) -> None:
        """Stores messages since the last block. The end of a workload is no longer an error."""
        while not self._stage.session.messages.empty():
            name, method, params = self._stage.session.messages.get()
            if method not in ("ended", "gone"):
                self._take(name, method, params)

    def wait_for_all(self, clock: Clock) -> None:
        """Waits until every expected block is complete. TrialError if the victim is stuck."""
        if not self._expected:
            return
        end_ns = self._expected[-1].end_ns
        while self._until_ns() < end_ns:
            if clock.now_ns() > end_ns + PATIENCE_NS:
                raise self._stuck()
            clock.sleep_until(max(end_ns, clock.now_ns() + 50_000_000))
            self._take_messages()

    def wait_for_first(self, clock: Clock) -> None:
        """Waits until the victim has reported for the first time. TrialError if it does not."""
        deadline_ns = clock.now_ns() + PATIENCE_NS
        while not self._until_ns():
            if clock.now_ns() > deadline_ns:
                raise self._stuck()
            clock.sleep_until(clock.now_ns() + 50_000_000)
            self._take_messages()

    def _until_ns(self) -> int:
        return self._windows.get(VICTIM, Window()).until_ns

    def _take_messages(self) -> None:
        while True:
            try:
                name, method, params = self._stage.session.messages.get_nowait()
            except queue.Empty:
                break
            self._take(name, method, params)
        if self._expected and self._is_silent():
            raise self._stuck()

    def read(self) -> Counters | None:
        """What the monitor read since the last call that returned something. None if that was under a second ago."""
        if not self._samples:
            return None
        if self._reported is None:
            self._reported = self._samples[0]
        (began_ns, before), (at_ns, after) = self._reported, self._samples[-1]
        if at_ns - began_ns < WATCHED_NS:
            return None
        self._reported = self._samples[-1]
        names = (counter.name.rpartition(".") for counter in self._counters)
        columns = tuple((subject, name) for subject, _, name in names)
        return Counters(columns, before, after, (at_ns - began_ns) / 1e9)

    def _is_silent(self) -> bool:
        """True if the oldest block ended so long ago that its slices will not arrive."""
        youngest = self._expected[-1].block.slots[0].start_ns
        return self._until_ns() + PATIENCE_NS < youngest and self._expected[0].end_ns + PATIENCE_NS < youngest

    def _take(self, name: str, method: str, params: dict[str, Any]) -> None:
        match method:
            case "slices":
                self._pending.write({"workload": params["id"], "slices": params["slices"]})
                self._windows.setdefault(params["id"], Window()).extend(params["slices"])
            case "sample":
                self._pending.write({key: params[key] for key in ("at_ns", "until_ns", "values")})
                self._samples.append((params["at_ns"], params["values"]))
            case "output":
                self._pending.write({"workload": params["id"], "lines": params["lines"]})
                self._read_metric(params["id"], params["lines"])
                self.dropped[params["id"]] += params["dropped"]
            case "usage":
                self._pending.write({"workload": params["id"], "intervals": params["intervals"]})
            case "dropped":
                self._lose(params["id"], params["what"], params["count"])
            case "ended" | "gone":
                raise self._stage.explain(name, params["reason"])

    def _lose(self, workload: str, what: str, count: int) -> None:
        """Records messages that an agent dropped because nobody read them in time. The affected block is unknown."""
        match what:
            case "output":
                self.dropped[workload] += count
            case "slices":
                for expected in self._expected:
                    expected.lost += count

    def _read_metric(self, workload: str, lines: Sequence[dict[str, Any]]) -> None:
        if workload == VICTIM:
            self._tail.extend(line["text"] for line in lines)
        if extractor := self._extractors.get(workload):
            stdout = [line for line in lines if line["stream"] == "stdout"]
            self._windows.setdefault(workload, Window()).extend(list(metric_rows(workload, extractor, stdout)))

    def _observe(self, block: Block) -> Observations:
        victim = self._windows[VICTIM]
        return observe(block, self._stage.trial, victim, self._windows, self._stage.rate_max, self._as_samples())

    def _as_samples(self) -> Samples:
        values = np.array([[np.nan if v is None else v for v in row] for _, row in self._samples], dtype=float)
        at_ns = np.array([at for at, _ in self._samples], dtype=np.int64)
        return Samples(self._counters, at_ns, values.reshape(len(at_ns), len(self._counters)))

    def _forget(self, before_ns: int) -> None:
        for window in self._windows.values():
            window.forget_before(before_ns)
        while self._samples and self._samples[0][0] < before_ns:
            self._samples.popleft()

    def _stuck(self) -> TrialError:
        trial = self._stage.trial
        seconds = PATIENCE_NS // 1_000_000_000
        if trial.victim.metric is None:
            return TrialError(
                f"{trial.victim_name}: the victim finished no operation for {seconds} s; its resource may be blocked"
            )
        tail = " | ".join(self._tail) or "no output"
        return TrialError(
            f"{trial.victim_name}: the command printed nothing usable for its metric for {seconds} s; "
            f"last lines: {tail}; check victims.{trial.victim_name}.metric, and that the command flushes its output"
        )
