"""The finished blocks of a run as columns, from their events. A long run has millions of slots."""

from __future__ import annotations

import io
from collections import Counter as Counts
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from partywall.core.arrow import values
from partywall.run.document.scenario import SWITCH_AFTER_NS
from partywall.run.record.observe import Columns
from partywall.run.values.observation import Flags, Objects, Times

KIND = "block_done"
BEGIN = f'{{"kind": "{KIND}"'.encode()
"""The beginning of the line of a finished block."""
_SLOT = pa.struct(
    [("treatment", pa.string()), ("start_ns", pa.int64()), ("measure_ns", pa.int64()), ("end_ns", pa.int64())]
)
_EVENT = pa.schema(
    [
        ("trial", pa.string()),
        ("visit", pa.string()),
        ("block", pa.int64()),
        ("stretch", pa.int64()),
        ("long", pa.bool_()),
        ("slots", pa.list_(_SLOT)),
    ]
)
_NEEDED = ("trial", "visit", "block", "stretch", "slots")
_BATCH_BYTES = 16 << 20


@dataclass(frozen=True)
class Blocks:
    """Finished blocks, in the order of their events: of each the turn, how long its slots are, and its slots."""

    turn: Objects
    stretch: Times
    columns: Columns

    @staticmethod
    def of(events: Sequence[Mapping[str, Any]]) -> Blocks:
        """From events. A value that older records lack is that of planned slots."""
        rows = [{"long": False, "visit": "", **event} for event in events]
        slots = [{"measure_ns": slot["start_ns"], "treatment": "", **slot} for row in rows for slot in row["slots"]]
        return Blocks(
            np.array([row["visit"] for row in rows], dtype=object),
            np.array([row["stretch"] for row in rows], dtype=np.int64),
            Columns(
                np.array([row["block"] for row in rows], dtype=np.int64),
                np.array([row["long"] for row in rows], dtype=bool),
                np.concatenate([[0], np.cumsum([len(row["slots"]) for row in rows])]).astype(np.int64),
                np.array([slot["treatment"] for slot in slots], dtype=object),
                *(
                    np.array([slot[name] for slot in slots], dtype=np.int64)
                    for name in ("start_ns", "measure_ns", "end_ns")
                ),
            ),
        ).latest()

    def __len__(self) -> int:
        return len(self.turn)

    @property
    def began_ns(self) -> Times:
        return self.columns.start_ns[self.columns.first[:-1]]

    @property
    def spent_ns(self) -> Times:
        """The part of the budget that each block used, from the end of the block before it."""
        return self.columns.end_ns[self.columns.first[1:] - 1] - self.began_ns + SWITCH_AFTER_NS

    def kept(self, which: Flags) -> Blocks:
        return Blocks(self.turn[which], self.stretch[which], self.columns.kept(which))

    def latest(self) -> Blocks:
        """Each number once: the last event of it."""
        _, last = np.unique(self.columns.number[::-1], return_index=True)
        which = np.zeros(len(self), dtype=bool)
        which[len(self) - 1 - last] = True
        return self if which.all() else self.kept(which)

    def valid(self, min_blocks: int = 1) -> Blocks:
        """The blocks of one slot length.

        It is the longest that every treatment has `min_blocks` blocks of. If the run ended before any has, it is the
        one with most blocks: slots that were lengthened too late must not leave a trial without a figure.
        """
        by_stretch = {int(stretch): self.kept(self.stretch == stretch) for stretch in np.unique(self.stretch)}
        counts = {stretch: own.fewest() for stretch, own in by_stretch.items()}
        enough = [stretch for stretch, count in counts.items() if count >= min_blocks]
        chosen = max(enough) if enough else max(counts, key=lambda stretch: (counts[stretch], stretch), default=1)
        return by_stretch.get(chosen, self)

    def fewest(self) -> int:
        """Blocks of the treatment with the fewest: short ones, or long ones if it is in no other."""
        treatments, long = self.columns.treatment, self.columns.long[self.columns.block]
        short, longer = (Counts(treatments[long == which].tolist()) for which in (False, True))
        return min((short[name] or longer[name] for name in {*short, *longer}), default=0)


def by_trial(lines: Iterable[bytes]) -> dict[str, Blocks] | None:
    """The blocks in the lines of finished blocks, by trial; None if a line is incomplete or invalid."""
    tables = []
    try:
        for batch in _batches(lines):
            parsed = pyarrow.json.read_json(
                io.BytesIO(batch),
                pyarrow.json.ReadOptions(use_threads=False, block_size=2 * _BATCH_BYTES),
                pyarrow.json.ParseOptions(explicit_schema=_EVENT, unexpected_field_behavior="ignore"),
            )
            tables.append(parsed)
    except pa.ArrowException:
        return None
    if not tables:
        return {}
    table = pa.concat_tables(tables).combine_chunks()
    slots = table["slots"].combine_chunks()
    if any(table[name].null_count for name in _NEEDED) or any(
        column.null_count for column in slots.flatten().flatten()
    ):
        return None
    first = values(slots.offsets).astype(np.int64)
    if (np.diff(first) < 1).any():
        return None
    treatment, *times = slots.values.flatten()
    encoded = treatment.dictionary_encode()
    names = np.array(encoded.dictionary.to_pylist(), dtype=object)
    number, stretch = (values(table[name]) for name in ("block", "stretch"))
    long = values(table["long"]) == 1
    every = Blocks(
        _objects(table["visit"]),
        stretch,
        Columns(number, long, first, names[values(encoded.indices)], *map(values, times)),
    )
    trial = _objects(table["trial"])
    return {name: every.kept(trial == name).latest() for name in dict.fromkeys(trial)}


def _objects(column: pa.ChunkedArray) -> Objects:
    """Texts, each of which exists once in memory."""
    encoded = column.combine_chunks().dictionary_encode()
    texts = np.array(encoded.dictionary.to_pylist(), dtype=object)
    return np.asarray(texts[values(encoded.indices)], dtype=object)


def _batches(lines: Iterable[bytes]) -> Iterable[bytes]:
    """Lines in pieces of bounded size."""
    batch, size = list[bytes](), 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if size >= _BATCH_BYTES:
            yield b"\n".join(batch)
            batch, size = [], 0
    if batch:
        yield b"\n".join(batch)
