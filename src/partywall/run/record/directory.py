"""The files of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from partywall.core.record import Record, decode, first_line
from partywall.errors import UsageError
from partywall.run.record import blocks, event
from partywall.run.record.blocks import Blocks
from partywall.run.record.pending import Pending, compact
from partywall.run.values.plan import Plan

T = TypeVar("T")


class RunDirectory(Record):
    """The record of a run."""

    KIND, MARK, MADE_BY = "run", "plan.json", "partywall run"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        # Parts of the events, by name, and how many bytes of events there were.
        self._known: dict[str, tuple[int, Any]] = {}

    @classmethod
    def create(cls, path: Path, scenario_text: str, plan: Plan, host: dict[str, Any]) -> RunDirectory:
        """Creates a run directory. UsageError if something exists at `path`."""
        run = cls.make(path, f", or continue it: partywall run --resume {path}")
        run.put("scenario.yaml", scenario_text)
        run.put("host.json", json.dumps(host, indent=1))
        run.put("plan.json", plan.model_dump_json(indent=1))
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Opens a run directory. UsageError if there is none at `path`, or its plan or host facts are invalid."""
        if why := _no_run(path):
            raise UsageError(f"{path} is not a run directory ({why}); give a folder as printed by 'partywall run'")
        run = cls(path)
        _ = run.plan, run.host
        run._check()
        return run

    @property
    def plan(self) -> Plan:
        return self.decoded("plan.json", Plan.model_validate_json)

    def append(self, kind: str, **content: Any) -> None:
        """Appends an event. What was read of the events before stays known, so that a long run is not read again."""
        line, before = json.dumps({"kind": kind} | content, allow_nan=False), self._size()
        self.append_line(line)
        for name, (size, value) in list(self._known.items()):
            # Finished blocks are known apart from the other events.
            if size == before and (name == "blocks") != (kind == blocks.KIND):
                self._known[name] = self._size(), value
            elif size == before and name == "others":
                self._known[name] = self._size(), [*value, json.loads(line)]

    def events(self, *kinds: str) -> Iterator[dict[str, Any]]:
        """The events in order, all or of these kinds. Incomplete last lines are skipped.

        UsageError for a line that is neither an event nor the beginning of one.
        """
        lines = self._others() if kinds and blocks.KIND not in kinds else self._lines()
        return (event_line for event_line in lines if not kinds or event_line["kind"] in kinds)

    def _others(self) -> list[dict[str, Any]]:
        """The events whose lines are not those of finished blocks."""
        return self._once("others", lambda: list(self._lines(skip=(blocks.BEGIN,))))

    def _size(self) -> int:
        file = self.path / self.LINES
        return file.stat().st_size if file.exists() else 0

    def _once(self, name: str, read: Callable[[], T]) -> T:
        """What `read` makes of the events. It is called again only when there are more."""
        size = self._size()
        if name not in self._known or self._known[name][0] != size:
            self._known[name] = size, read()
        value: T = self._known[name][1]
        return value

    def _lines(
        self, check: Callable[[dict[str, Any]], None] | None = None, skip: tuple[bytes, ...] = ()
    ) -> Iterator[dict[str, Any]]:
        """skip: beginnings of lines that are not decoded."""
        for number, line in self.lines():
            if skip and line.startswith(skip):
                continue
            try:
                decoded = decode(line)
                if decoded and check:
                    check(decoded)
            except ValueError as error:
                raise self.damaged(self.LINES, first_line(error), number) from None
            if decoded:
                yield decoded

    def _check(self) -> None:
        """UsageError for an event without required content."""
        # Finished blocks are checked together, and one by one only to name the wrong one.
        skip = () if self._whole_blocks() is None else (blocks.BEGIN,)
        for _ in self._lines(event.check, skip):
            pass

    def _whole_blocks(self) -> dict[str, Blocks] | None:
        """The finished blocks of each trial; None if one of their lines is incomplete or invalid."""
        begun = (line for _, line in self.lines() if line.startswith(blocks.BEGIN))
        return self._once("blocks", lambda: blocks.by_trial(begun))

    def blocks(self) -> dict[str, Blocks]:
        """The finished blocks of each trial."""
        by_trial = self._whole_blocks()
        if by_trial is None:
            # A kill left the beginning of a line.
            events: dict[str, list[dict[str, Any]]] = {}
            for event in self.events(blocks.KIND):
                events.setdefault(event["trial"], []).append(event)
            by_trial = {trial: Blocks.of(own) for trial, own in events.items()}
        return dict(by_trial)

    def extend(self, plan: Plan) -> None:
        """Replaces the plan by an extended one. Trials that were precise enough are measured again."""
        with self.exclusive():
            for trial in plan.trials:
                self.append("extended", trial=trial.id, budget=plan.scenario.budget, precision=plan.scenario.precision)
            self.replace(plan)

    def replace(self, plan: Plan) -> None:
        """Stores a plan in place of the one so far, of a record that this process has locked."""
        self.put(self.MARK, plan.model_dump_json(indent=1))

    @property
    def ended(self) -> bool:
        """True if nothing is left to measure: the run reached its end, and no turn failed for good."""
        kinds = [each["kind"] for each in self.events("run_ended", "run_started", "extended")]
        return kinds[-1:] == ["run_ended"] and not self.failures()

    def failures(self) -> list[str]:
        """Why turns failed and were not repeated with success, each reason once."""
        paid = {(each["trial"], each["visit"]) for each in self.events("visit_ended")}
        failed = [each for each in self.events("trial_failed") if (each["trial"], each["visit"]) not in paid]
        return list(dict.fromkeys(f"{each['trial']}: {each['reason']}" for each in failed))

    def by_trial(self) -> dict[str, list[dict[str, Any]]]:
        """The events of each trial but finished blocks, in order."""
        by_trial: dict[str, list[dict[str, Any]]] = {}
        for event_line in self._others():
            if "trial" in event_line and event_line["kind"] != blocks.KIND:
                by_trial.setdefault(event_line["trial"], []).append(event_line)
        return by_trial

    def pending(self, trial: str, turn: str) -> Pending:
        """The file for the lines of a turn."""
        return Pending(self.path / "pending" / f"{trial}~{turn}.jsonl")

    def compact(self) -> None:
        """Converts the pending lines of finished or killed turns to Parquet."""
        for file in sorted((self.path / "pending").glob("*.jsonl")):
            compact(file, self.path)

    @property
    def is_settled(self) -> bool:
        """True if no lines of a turn wait to be converted, so that reading the record changes nothing in it."""
        return not any((self.path / "pending").glob("*.jsonl"))

    def settle(self) -> None:
        """See `Record.settle`. UsageError while the run is being measured."""
        with self.exclusive():
            self.compact()


def _no_run(path: Path) -> str:
    try:
        (path / "plan.json").lstat()
    except FileNotFoundError:
        return "it has no plan.json" if path.is_dir() else "it does not exist"
    except OSError as error:
        return error.strerror or str(error)
    return ""
