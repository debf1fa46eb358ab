"""Reads a run directory: observations from slices, counters from samples, and a timeline for drawing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from partywall.agent import counters as monitor
from partywall.agent.memory_check import Checked
from partywall.agent.metric import Extractor
from partywall.core.arrow import values
from partywall.core.stats.histogram import Numbers
from partywall.errors import Problem, UsageError
from partywall.run.record.blocks import Blocks
from partywall.run.record.directory import RunDirectory
from partywall.run.record.observe import Columns, Samples, Thread, Track, observed, track
from partywall.run.record.pending import OUTPUT, SAMPLES, SLICES, USAGE, table
from partywall.run.values.evidence import VICTIM, AgentFacts, Counter, Evidence, Readings, SlicePoint, Unread
from partywall.run.values.observation import Observations, Times
from partywall.run.values.plan import Trial

# Number of blocks of a trial whose slices are drawn: enough to show switching, few enough for a page.
TIMELINE_BLOCKS = 12

_LATENCY = ["latency_bucket", "latency_count"]
_COLUMNS = ["workload", "thread", "start_ns", "end_ns", "work", "cpu_ns"]


def evidence(run: RunDirectory) -> Evidence:
    """Everything about a run except its findings. Of blocks with slots of several lengths, those of one are taken."""
    if not run.is_settled:
        run.settle()
    plan, host = run.plan, run.host
    observations: dict[str, Observations] = {}
    timeline: dict[str, tuple[SlicePoint, ...]] = {}
    agent_facts: dict[str, AgentFacts] = {}
    counters: dict[str, Counter] = {}
    events, blocks = run.by_trial(), run.blocks()
    for trial in plan.trials:
        mine = events.get(trial.id, [])
        turns = _turns(mine)
        tables = _Tables(run, trial)
        for event in turns.values():
            if tables.has_samples(event["visit"]):
                counters |= {c.name: replace(c, phrase=monitor.phrase(c.name)) for c in _counters(event)}
        own = blocks.get(trial.id, Blocks.of([])).valid(plan.scenario.min_blocks)
        observations[trial.id] = Observations.joined(list(tables.parts(own, turns))).in_time
        agent_facts[trial.id] = _agent_facts(mine, turns, tables)
        timeline[trial.id] = tuple(_timeline(tables, own))
    ended = [event["kind"] for event in run.events("run_started", "run_ended")]
    return Evidence(
        run=run.name,
        started=next((event["wall_time"] for event in run.events("run_started")), ""),
        plan=plan,
        host=host,
        kernels=host.get("kernels", {}),
        observations=observations,
        counters=counters,
        timeline=timeline,
        agent_facts=agent_facts,
        decided={trial.id: decided(events.get(trial.id, ())) for trial in plan.trials},
        missing=_missing(host, agent_facts, run.events("memory_checked")),
        disturbances=tuple(itertools.chain.from_iterable(seen.disturbances for seen in observations.values())),
        incomplete=tuple(run.failures()),
        directory=str(run.path),
        interrupted=bool(ended) and ended[-1] == "run_started",
    )


def observations_of(run: RunDirectory, trial: Trial, stretch: int) -> Observations:
    """The observations of one trial with slots of one length, for a run that continues."""
    turns = _turns([event for event in run.events("visit") if event["trial"] == trial.id])
    done = run.blocks().get(trial.id, Blocks.of([]))
    return Observations.joined(list(_Tables(run, trial).parts(done.kept(done.stretch == stretch), turns))).in_time


def _turns(events: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {event["visit"]: event for event in events if event["kind"] == "visit"}


def _missing(
    host: Mapping[str, Any], agent_facts: Mapping[str, AgentFacts], checks: Iterable[Mapping[str, Any]]
) -> tuple[tuple[str, str, str], ...]:
    """Facts and memory that the host could not provide, and counters that its monitors could not read, each once."""
    gaps = (checked.gap for checked in map(Checked.of, checks) if checked.why_unreliable)
    facts = [Unread.of(gap) for gap in (*host.get("missing", []), *gaps)]
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
        emulated=_named(turns, "emulated"),
        disturbed=_named(turns, "disturbed"),
        versions=_versions(turns),
    )


def decided(events: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """The treatments of a trial that were decided with slots of the present length, and got no more blocks."""
    found = frozenset[str]()
    for event in events:
        if event["kind"] in ("decided", "stretched"):
            found = frozenset(event.get("treatments", ()))
    return found


def _named(turns: Mapping[str, Mapping[str, Any]], key: str) -> tuple[str, ...]:
    """Sandboxes that any turn names under a key that older records lack."""
    return tuple(dict.fromkeys(name for event in turns.values() for name in event.get(key, [])))


def _versions(turns: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """What each command said its version is, each text once. Older records have none."""
    said: dict[str, dict[str, None]] = {}
    for event in turns.values():
        for name, text in event.get("versions", {}).items():
            said.setdefault(name, {})[text] = None
    return {name: tuple(texts) for name, texts in said.items()}


def _counters(turn: Mapping[str, Any]) -> tuple[Counter, ...]:
    return tuple(Counter(**counter) for counter in turn["counters"])


class _Tables:
    """The Parquet files of one trial. Holds one turn's slices at a time: those of a long run need too much memory."""

    def __init__(self, run: RunDirectory, trial: Trial) -> None:
        self._run = run
        self._trial = trial
        self.readings: dict[tuple[str, str], Readings] = {}

    def has_samples(self, turn: str) -> bool:
        return self._file("samples", turn).exists()

    def parts(self, blocks: Blocks, turns: Mapping[str, Mapping[str, Any]]) -> Iterator[Observations]:
        """The observations of each turn. UsageError if the victim's slices are missing.

        A block is marked as done after its slices were written, so they were lost later.
        """
        for turn in dict.fromkeys(blocks.turn):
            yield self._part(turn, blocks.kept(blocks.turn == turn), turns.get(turn, {}))

    def _part(self, turn: str, own: Blocks, event: Mapping[str, Any]) -> Observations:
        tracks = self.tracks(turn)
        if (missing := _missing_blocks(own, tracks.get(VICTIM, ()))) is not None:
            message = f"the victim's slices of block {missing} are missing"
            remedy = "restore the file from a copy, or measure again"
            raise UsageError(Problem(message, remedy, str(self._file("slices", turn))))
        samples = self._samples(turn, event) if event else None
        seen = observed(own.columns, self._trial, tracks, event.get("rate_max", {}), samples, self._usage(turn))
        del tracks, samples
        # Otherwise Arrow keeps the memory of the turn's tables.
        pa.default_memory_pool().release_unused()
        return seen

    def tracks(self, turn: str, *, latencies: bool = True) -> dict[str, Track]:
        """Slices by workload. latencies: whether the victim's are read."""
        file = self._file("slices", turn)
        tracks = _tracks(file, latencies=latencies) if file.exists() else {}
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in self._metric_rows(turn):
            rows.setdefault(row["workload"], []).append(row)
        return tracks | {name: track(own) for name, own in rows.items()}

    def _samples(self, turn: str, event: Mapping[str, Any]) -> Samples | None:
        """Columns differ between turns, because processes have different numbers."""
        file = self._file("samples", turn)
        if not file.exists():
            return None
        samples = table(file, SAMPLES)
        at_ns = values(samples["at_ns"])
        # Of an older record that has no values, too.
        counted = values(samples["values"].combine_chunks().flatten())
        return Samples(_counters(event), at_ns, counted.astype(np.float64).reshape(len(at_ns), -1))

    def _usage(self, turn: str) -> dict[str, list[dict[str, Any]]]:
        """Resource use of commands between switches, in order of time, by workload."""
        file = self._file("usage", turn)
        rows = sorted(table(file, USAGE).to_pylist(), key=lambda row: int(row["start_ns"])) if file.exists() else []
        by_workload: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            by_workload.setdefault(row["workload"], []).append(row)
        return by_workload

    def _file(self, kind: str, turn: str) -> Path:
        return self._run.path / kind / f"{self._trial.id}~{turn}.parquet"

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
    """How to read what a trial's commands and migrations report, by workload."""
    workloads = {VICTIM: trial.victim, **trial.aggressors}
    return {name: workload.readings for name, workload in workloads.items() if workload.readings is not None}


def metric_rows(workload: str, extractor: Extractor, lines: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Converts lines of output to slices. A command reports no CPU time or latency."""
    for line in lines:
        for start_ns, end_ns, work in extractor.feed(line["at_ns"], line["text"]):
            base = {"workload": workload, "thread": 0, "start_ns": start_ns, "end_ns": end_ns, "work": work}
            yield base | {"cpu_ns": None, "intensity": 1.0, "latency": []}


def _tracks(file: Path, *, latencies: bool) -> dict[str, Track]:
    """Slices by workload and thread. No observation uses a neighbour's latencies, so at most the victim's are read."""
    victims = pc.field("workload") == VICTIM
    read = [*_COLUMNS, *_LATENCY] if latencies else _COLUMNS
    return _threads(table(file, SLICES, read, victims)) | _threads(table(file, SLICES, _COLUMNS, ~victims))


def _threads(slices: pa.Table) -> dict[str, Track]:
    slices = slices.combine_chunks()
    workload = slices["workload"].combine_chunks().dictionary_encode()
    thread = values(slices["thread"])
    threads: dict[str, list[Thread]] = {}
    for code, name in enumerate(workload.dictionary.to_pylist()):
        own = np.flatnonzero(values(workload.indices) == code)
        for number in np.unique(thread[own]):
            which = own[thread[own] == number]
            threads.setdefault(name, []).append(_thread(slices if len(which) == len(slices) else slices.take(which)))
    return dict(threads)


def _thread(slices: pa.Table) -> Thread:
    start_ns = values(slices["start_ns"])
    if (np.diff(start_ns) < 0).any():
        slices = slices.take(np.argsort(start_ns, kind="stable"))
    cpu_ns = values(slices["cpu_ns"]).astype(np.float64)
    start_ns, end_ns, work = (values(slices[name]) for name in ("start_ns", "end_ns", "work"))
    return Thread(start_ns, end_ns, work, cpu_ns, _buckets(slices))


def _buckets(slices: pa.Table) -> tuple[Times, Numbers, Numbers]:
    """See `Thread.latency`. None if latencies were not read."""
    if _LATENCY[0] not in slices.column_names:
        return np.zeros(len(slices) + 1, np.int64), np.zeros(0, np.uint16), np.zeros(0, np.uint8)
    buckets, counts = (slices[name].combine_chunks() for name in _LATENCY)
    first = values(buckets.offsets).astype(np.int64)
    many = values(counts.flatten())
    few = many.astype(np.min_scalar_type(int(many.max(initial=0))))
    return first - first[0], values(buckets.flatten()).astype(np.uint16), few


def _missing_blocks(blocks: Blocks, victim: Track) -> int | None:
    """The number of a block in which the victim has no slice at all; None if there is none."""
    began_ns, ended_ns = blocks.began_ns, blocks.columns.end_ns[blocks.columns.first[1:] - 1]
    covered = np.zeros(len(blocks), dtype=bool)
    for thread in victim:
        covered |= thread.first_after(began_ns) <= thread.last_before(ended_ns)
    return None if covered.all() else int(blocks.columns.number[~covered][0])


def _timeline(tables: _Tables, blocks: Blocks) -> Iterator[SlicePoint]:
    """The slices of the first blocks. Reads their turns again."""
    order = np.argsort(blocks.began_ns, kind="stable")[:TIMELINE_BLOCKS]
    tracks: dict[str, Track] = {}
    for at in sorted(order.tolist(), key=lambda place: int(blocks.began_ns[place])):
        turn, own = blocks.turn[at], blocks.columns
        if turn not in tracks:
            tracks = {turn: tables.tracks(turn, latencies=False).get(VICTIM, ())}
        slots = slice(own.first[at], own.first[at + 1])
        for thread in tracks[turn][:1]:
            yield from _points(thread, own, slots, int(own.number[at]))


def _points(thread: Thread, columns: Columns, slots: slice, block: int) -> Iterator[SlicePoint]:
    starts, ends = columns.start_ns[slots], columns.end_ns[slots]
    first, last = int(thread.first_after(starts[:1])[0]), int(thread.last_before(ends[-1:])[0])
    for at in range(first, last + 1):
        start_ns, end_ns = int(thread.start_ns[at]), int(thread.end_ns[at])
        middle_ns = (start_ns + end_ns) // 2
        holding = np.flatnonzero((starts <= middle_ns) & (middle_ns < ends))
        if len(holding):
            slot = slots.start + int(holding[0])
            speed = float(thread.work[at]) * 1e9 / (end_ns - start_ns)
            guard = middle_ns < int(columns.measure_ns[slot])
            yield SlicePoint(start_ns, end_ns, speed, columns.treatment[slot], block, guard)
