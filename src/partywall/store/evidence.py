"""Reads a run directory: observations from slices, counters from samples, and a timeline for drawing."""

from __future__ import annotations

from collections import Counter as Counts
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from partywall.agent import counters as monitor
from partywall.agent.metric import Extractor
from partywall.errors import Problem, UsageError
from partywall.model.evidence import VICTIM, AgentFacts, Counter, Evidence, Readings, SlicePoint, Unread
from partywall.model.observation import Observation
from partywall.model.plan import Slot, Trial
from partywall.store.directory import RunDirectory, blocks_done
from partywall.store.observe import Block, Samples, Window, observe
from partywall.store.pending import OUTPUT, SAMPLES, SLICES, USAGE, table

# Number of blocks of a trial whose slices are drawn: enough to show switching, few enough for a page.
TIMELINE_BLOCKS = 12


def evidence(run: RunDirectory) -> Evidence:
    """Everything about a run except its findings. Of blocks with slots of several lengths, those of one are taken."""
    with run.exclusive():
        run.compact()
    plan, host = run.plan, run.host
    observations: list[Observation] = []
    timeline: dict[str, tuple[SlicePoint, ...]] = {}
    agent_facts: dict[str, AgentFacts] = {}
    counters: dict[str, Counter] = {}
    events = run.by_trial()
    for trial in plan.trials:
        mine = events.get(trial.id, [])
        blocks = valid_blocks(mine, plan.scenario.min_blocks)
        turns = {event["visit"]: event for event in mine if event["kind"] == "visit"}
        tables = _Tables(run.path, trial)
        samples = _samples(turns, tables)
        for turn in samples.values():
            counters |= {c.name: replace(c, phrase=monitor.phrase(c.name)) for c in turn.counters}
        for event in blocks:
            block = _block(event)
            windows = tables.windows(event["visit"], block)
            if VICTIM not in windows:
                raise _no_slices(run, event)
            observations += observe(
                block,
                trial,
                windows[VICTIM],
                windows,
                turns[event["visit"]]["rate_max"] if event["visit"] in turns else {},
                samples.get(event["visit"]),
                tables.usage(event["visit"], block),
            )
        agent_facts[trial.id] = _agent_facts(mine, turns, tables)
        timeline[trial.id] = tuple(_timeline(tables, blocks[:TIMELINE_BLOCKS]))
    ended = [event["kind"] for event in run.events("run_started", "run_ended")]
    return Evidence(
        run=run.name,
        started=next((event["wall_time"] for event in run.events("run_started")), ""),
        plan=plan,
        host=host,
        kernels=host.get("kernels", {}),
        observations=tuple(observations),
        counters=counters,
        timeline=timeline,
        agent_facts=agent_facts,
        missing=_missing(host, agent_facts),
        disturbances=tuple((o.trial, o.block, f"{o.treatment}: {text}") for o in observations for text in o.disturbed),
        incomplete=tuple(run.failures()),
        directory=str(run.path),
        interrupted=bool(ended) and ended[-1] == "run_started",
    )


def _missing(host: Mapping[str, Any], agent_facts: Mapping[str, AgentFacts]) -> tuple[tuple[str, str, str], ...]:
    """Facts that the host could not provide and counters that its monitors could not read, each once."""
    facts = [Unread.of(gap) for gap in host.get("missing", [])]
    unread = [gap for seen in agent_facts.values() for gap in seen.unread]
    known = {gap.what: (gap.what, gap.why, gap.remedy or gap.cost) for gap in reversed([*facts, *unread])}
    return tuple(reversed(known.values()))


def _agent_facts(
    events: Sequence[Mapping[str, Any]], turns: Mapping[str, Mapping[str, Any]], tables: _Tables
) -> AgentFacts:
    """Facts that agents reported beside measurements, over all turns of a trial."""
    left = [event for event in events if event["kind"] == "visit_left"]
    facts: dict[str, list[dict[str, Any]]] = {}
    dropped: dict[str, int] = {}
    for event in left:
        for name, threads in event["facts"].items():
            facts.setdefault(name, []).extend(threads)
        for name, lines in event["dropped"].items():
            dropped[name] = dropped.get(name, 0) + lines
    readings: dict[str, Readings] = {}
    for (_, name), reading in tables.readings.items():
        readings[name] = readings.get(name, Readings()) + reading
    unread = [Unread.of(reading) for event in turns.values() for reading in event.get("missing", [])]
    return AgentFacts(
        facts={name: tuple(threads) for name, threads in facts.items()},
        dropped={name: lines for name, lines in dropped.items() if lines},
        readings=readings,
        unread=tuple(dict.fromkeys(unread)),
        emulated=tuple(dict.fromkeys(name for event in turns.values() for name in event.get("emulated", []))),
    )


def valid_blocks(events: Sequence[dict[str, Any]], min_blocks: int = 1) -> list[dict[str, Any]]:
    """The finished blocks of one slot length, in order of time.

    It is the longest that every treatment has `min_blocks` blocks of. If the run ended before any has, it is the one
    with most blocks: slots that were lengthened too late must not leave a trial without a figure.
    """
    by_stretch: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in blocks_done(events).values():
        by_stretch[event["stretch"]].append(event)
    counts = {stretch: _fewest(blocks) for stretch, blocks in by_stretch.items()}
    enough = [stretch for stretch, count in counts.items() if count >= min_blocks]
    chosen = max(enough) if enough else max(counts, key=lambda stretch: (counts[stretch], stretch), default=1)
    return sorted(by_stretch[chosen], key=lambda event: event["slots"][0]["start_ns"])


def _fewest(blocks: Sequence[Mapping[str, Any]]) -> int:
    """Blocks of the treatment with the fewest: short ones, or long ones if it is in no other."""
    count = {
        long: Counts(s["treatment"] for b in blocks if b.get("long", False) == long for s in b["slots"])
        for long in (False, True)
    }
    return min(count[False][name] or count[True][name] for name in {*count[False], *count[True]})


def _no_slices(run: RunDirectory, event: Mapping[str, Any]) -> UsageError:
    """The error for missing slices.

    A block is marked as done after its slices were written, so they were lost later.
    """
    file = run.path / "slices" / f"{event['trial']}~{event['visit']}.parquet"
    remedy = "restore the file from a copy, or measure again"
    return UsageError(Problem(f"the victim's slices of block {event['block']} are missing", remedy, str(file)))


def _block(event: Mapping[str, Any]) -> Block:
    slots = tuple(Slot.model_validate(slot) for slot in event["slots"])
    return Block(event["trial"], event["block"], slots, long=event.get("long", False))


def _samples(turns: Mapping[str, Mapping[str, Any]], tables: _Tables) -> dict[str, Samples]:
    """Samples by turn. Columns differ between turns, because processes have different numbers."""
    samples = {}
    for turn, event in turns.items():
        if columns := tables.samples(turn):
            counters = tuple(Counter(**counter) for counter in event["counters"])
            values = np.array([[np.nan if v is None else v for v in row] for row in columns["values"]], dtype=float)
            samples[turn] = Samples(
                counters, np.array(columns["at_ns"], dtype=np.int64), values.reshape(len(columns["at_ns"]), -1)
            )
    return samples


class _Tables:
    """The Parquet files of one trial.

    Holds one turn's slices at a time, because those of a long run need too much memory.
    """

    def __init__(self, run: Path, trial: Trial) -> None:
        self._run = run
        self._trial = trial
        self.readings: dict[tuple[str, str], Readings] = {}
        self._turn = ""
        self._windows: dict[str, Window] = {}
        self._usage: list[dict[str, Any]] = []

    def samples(self, turn: str) -> dict[str, list[Any]] | None:
        file = self._file("samples", turn)
        return table(file, SAMPLES).to_pydict() if file.exists() else None

    def windows(self, turn: str, block: Block) -> dict[str, Window]:
        """Slices by workload, for workloads that have any in a block."""
        self._switch_to(turn)
        start_ns, end_ns = block.slots[0].start_ns, block.slots[-1].end_ns
        return {name: window for name, window in self._windows.items() if any(window.touching(start_ns, end_ns))}

    def usage(self, turn: str, block: Block) -> dict[str, list[dict[str, Any]]]:
        """Resource use of commands between switches, for intervals that overlap a block, by workload."""
        self._switch_to(turn)
        start_ns, end_ns = block.slots[0].start_ns, block.slots[-1].end_ns
        usage: dict[str, list[dict[str, Any]]] = {}
        for row in self._usage:
            if row["end_ns"] > start_ns and row["start_ns"] < end_ns:
                usage.setdefault(row["workload"], []).append(row)
        return usage

    def _switch_to(self, turn: str) -> None:
        if turn != self._turn:
            self._turn, self._windows = turn, self._load(turn)
            file = self._file("usage", turn)
            self._usage = table(file, USAGE).to_pylist() if file.exists() else []

    def _load(self, turn: str) -> dict[str, Window]:
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in [*self._slice_rows(turn), *self._metric_rows(turn)]:
            rows.setdefault(row["workload"], []).append(row)
        return {name: Window(of_name) for name, of_name in rows.items()}

    def _file(self, kind: str, turn: str) -> Path:
        return self._run / kind / f"{self._trial.id}~{turn}.parquet"

    def _slice_rows(self, turn: str) -> Iterator[dict[str, Any]]:
        file = self._file("slices", turn)
        for row in table(file, SLICES).to_pylist() if file.exists() else []:
            row["latency"] = list(zip(row.pop("latency_bucket"), row.pop("latency_count"), strict=True))
            yield row

    def _metric_rows(self, turn: str) -> Iterator[dict[str, Any]]:
        """Slices of commands, from the lines they printed."""
        file = self._file("output", turn)
        output = table(file, OUTPUT).to_pylist() if file.exists() else []
        lines = sorted((line for line in output if line["stream"] == "stdout"), key=lambda line: int(line["at_ns"]))
        for name, metric in metrics(self._trial).items():
            extractor = Extractor(metric)
            yield from metric_rows(name, extractor, [line for line in lines if line["workload"] == name])
            now = extractor.counts
            self.readings[turn, name] = Readings(now.readings - now.bunched, now.bad + now.malformed, now.bunched)


def metrics(trial: Trial) -> dict[str, Any]:
    """The metrics of a trial's commands, by workload."""
    workloads = {VICTIM: trial.victim, **trial.aggressors}
    return {name: workload.metric for name, workload in workloads.items() if workload.metric is not None}


def metric_rows(workload: str, extractor: Extractor, lines: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Converts lines of output to slices. A command reports no CPU time or latency."""
    for line in lines:
        for start_ns, end_ns, work in extractor.feed(line["at_ns"], line["text"]):
            base = {"workload": workload, "thread": 0, "start_ns": start_ns, "end_ns": end_ns, "work": work}
            yield base | {"cpu_ns": None, "intensity": 1.0, "latency": []}


def _timeline(tables: _Tables, blocks: Sequence[Mapping[str, Any]]) -> Iterator[SlicePoint]:
    for event in blocks:
        block = _block(event)
        window = tables.windows(event["visit"], block).get(VICTIM, Window())
        for row in window.touching(block.slots[0].start_ns, block.slots[-1].end_ns):
            middle = (row["start_ns"] + row["end_ns"]) // 2
            slot = next((s for s in block.slots if s.start_ns <= middle < s.end_ns), None)
            if slot is not None and row["thread"] == 0:
                speed = row["work"] * 1e9 / (row["end_ns"] - row["start_ns"])
                yield SlicePoint(
                    row["start_ns"], row["end_ns"], speed, slot.treatment, block.number, middle < slot.measure_ns
                )
