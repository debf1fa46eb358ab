"""The files of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from partywall.errors import UsageError
from partywall.model.plan import Plan
from partywall.store.pending import Pending, compact

FORMAT = 1


class RunDirectory:
    """A run's folder. All writing appends or replaces whole files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, scenario_text: str, plan: Plan, host: dict[str, Any]) -> RunDirectory:
        """A new run directory; UsageError if there is something at `path` already."""
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise UsageError(
                f"{path} exists already; give another --out, or go on with it: partywall run --resume {path}"
            ) from None
        except OSError as error:
            raise UsageError(f"{path} cannot be made: {error.strerror}; give another --out") from None
        (path / "scenario.yaml").write_text(scenario_text)
        (path / "host.json").write_text(json.dumps(host, indent=1))
        # The plan last: with it the directory is complete enough to be resumed.
        (path / "plan.json").write_text(plan.model_dump_json(indent=1))
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing one; UsageError if there is none at `path`."""
        if not (path / "plan.json").is_file():
            raise UsageError(
                f"{path} is no run directory (it has no plan.json); give the folder that 'partywall run' named at its end"
            )
        return cls(path)

    @property
    def name(self) -> str:
        """The run's name, which labels what it makes on the host."""
        return self.path.resolve().name

    @property
    def plan(self) -> Plan:
        return Plan.model_validate_json((self.path / "plan.json").read_text())

    @property
    def host(self) -> dict[str, Any]:
        return dict(json.loads((self.path / "host.json").read_text()))

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
        """The events, of these kinds or all, in the order of writing; torn lines are left out."""
        file = self.path / "events.jsonl"
        for line in file.read_text(errors="replace").splitlines() if file.exists() else []:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and (not kinds or event.get("kind") in kinds):
                yield event

    def blocks_done(self, trial: str) -> dict[int, dict[str, Any]]:
        """The finished blocks of a trial by number, with their slots, visit and stretch."""
        return {event["block"]: event for event in self.events("block_done") if event["trial"] == trial}

    def pending(self, trial: str, visit: str) -> Pending:
        """Where the lines of a visit are written."""
        return Pending(self.path / "pending" / f"{trial}~{visit}.jsonl")

    def compact(self) -> None:
        """Turns what visits that ended, or were killed, left pending into Parquet."""
        for file in sorted((self.path / "pending").glob("*.jsonl")):
            compact(file, self.path)
