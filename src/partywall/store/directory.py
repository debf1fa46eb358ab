"""The files of a run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from partywall.errors import Problem, UsageError
from partywall.model.plan import Plan
from partywall.store import event, folder
from partywall.store.pending import Pending, compact

T = TypeVar("T")


class RunDirectory:
    """A run's folder. All writing appends or replaces whole files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, scenario_text: str, plan: Plan, host: dict[str, Any]) -> RunDirectory:
        """A new run directory; UsageError if there is something at `path` already."""
        folder.make(path, f", or go on with it: partywall run --resume {path}")
        (path / "scenario.yaml").write_text(scenario_text, encoding="utf-8")
        (path / "host.json").write_text(json.dumps(host, indent=1))
        # The plan last: with it the directory is complete enough to be resumed.
        (path / "plan.json").write_text(plan.model_dump_json(indent=1))
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing one; UsageError if there is none at `path`, or its plan or host facts cannot be used."""
        if why := _no_run(path):
            raise UsageError(
                f"{path} is no run directory ({why}); give the folder that 'partywall run' named at its end"
            )
        run = cls(path)
        _ = run.plan, run.host
        for _ in run._lines(event.check):
            pass
        return run

    @property
    def name(self) -> str:
        """The run's name, which labels what it makes on the host."""
        return self.path.resolve().name

    @property
    def plan(self) -> Plan:
        return self._decoded("plan.json", Plan.model_validate_json)

    @property
    def host(self) -> dict[str, Any]:
        return self._decoded("host.json", lambda text: dict(json.loads(text)))

    def _decoded(self, name: str, decode: Callable[[str], T]) -> T:
        """A file's content; UsageError if it cannot be read or understood."""
        file = str(self.path / name)
        try:
            return decode((self.path / name).read_text(encoding="utf-8"))
        except OSError as error:
            message, remedy = f"cannot be read: {error.strerror}", "check the path and its permissions"
        except (ValueError, TypeError) as error:
            message = f"cannot be understood: {_first(error)}"
            remedy = "it is damaged or of another version of Partywall; bring it back from a copy, or measure again"
        raise UsageError(Problem(message, remedy, file))

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """See `folder.exclusive`."""
        return folder.exclusive(self.path)

    def append(self, kind: str, **content: Any) -> None:
        """Writes an event; a torn line of a killed run is closed first, so that it spoils no other."""
        file = self.path / "events.jsonl"
        line = json.dumps({"kind": kind} | content, allow_nan=False) + "\n"
        with file.open("ab+") as stream:
            if stream.tell() > 0:
                stream.seek(-1, 2)
                if stream.read(1) != b"\n":
                    line = "\n" + line
            stream.write(line.encode())

    def events(self, *kinds: str) -> Iterator[dict[str, Any]]:
        """The events, of these kinds or all, in the order of writing; torn lines are left out.

        UsageError for a line that is neither an event nor the beginning of one.
        """
        return (found for found in self._lines() if not kinds or found["kind"] in kinds)

    def _lines(self, check: Callable[[dict[str, Any]], None] | None = None) -> Iterator[dict[str, Any]]:
        file = self.path / "events.jsonl"
        for number, line in enumerate(file.read_bytes().split(b"\n") if file.exists() else [], start=1):
            try:
                found = event.decode(line)
                if found and check:
                    check(found)
            except ValueError as error:
                remedy = "it is damaged or of another version of Partywall; bring it back from a copy, or measure again"
                raise UsageError(Problem(f"cannot be understood: {_first(error)}", remedy, str(file), number)) from None
            if found:
                yield found

    @property
    def ended(self) -> bool:
        """Whether nothing is left to measure: the run came to its end, and no visit failed for good."""
        kinds = [found["kind"] for found in self.events("run_ended", "run_started")]
        return kinds[-1:] == ["run_ended"] and not self.failures()

    def failures(self) -> list[str]:
        """Why visits failed that were not paid again with success, each reason once."""
        paid = {(found["trial"], found["visit"]) for found in self.events("visit_ended")}
        failed = [found for found in self.events("trial_failed") if (found["trial"], found["visit"]) not in paid]
        return list(dict.fromkeys(f"{found['trial']}: {found['reason']}" for found in failed))

    def by_trial(self) -> dict[str, list[dict[str, Any]]]:
        """The events that concern a trial, by trial, in the order of writing: one reading for all trials."""
        found: dict[str, list[dict[str, Any]]] = {}
        for one in self._lines():
            if "trial" in one:
                found.setdefault(one["trial"], []).append(one)
        return found

    def pending(self, trial: str, visit: str) -> Pending:
        """Where the lines of a visit are written."""
        return Pending(self.path / "pending" / f"{trial}~{visit}.jsonl")

    def compact(self) -> None:
        """Turns what visits that ended, or were killed, left pending into Parquet."""
        for file in sorted((self.path / "pending").glob("*.jsonl")):
            compact(file, self.path)


def blocks_done(events: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The finished blocks among a trial's events by number, with their slots, visit and stretch."""
    return {done["block"]: done for done in events if done["kind"] == "block_done"}


def _no_run(path: Path) -> str:
    try:
        (path / "plan.json").lstat()
    except FileNotFoundError:
        return "it has no plan.json" if path.is_dir() else "nothing is there"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _first(error: Exception) -> str:
    """One line of what a decoder complains of."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".lstrip(": ")
    return str(error).partition("\n")[0]
