"""Which kinds of block a trial has, what each holds, how they follow each other, and how long they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from partywall.run.document.scenario import Timing
from partywall.run.values.plan import Treatment

# Of the time for quick treatments, what goes to long slots; more if slow treatments leave them little time, because
# causes and carry-over need a number of long blocks. Half of it once they have that number.
LONG_SHARE, LONG_SHARE_BESIDE_SLOW = 1 / 4, 1 / 3
# Blocks of the rarest kind in a cycle, so that whole numbers come near enough to the shares.
RAREST = 4
# Of a trial's time, what goes to its slow treatments, if it has quick ones too: at first, and the least and the most
# once it has shown where intervals are wide. At first more than half, because a slow slot takes ten times a quick one's
# time and is no steadier for it on a host that drifts.
SLOW_SHARE = 5 / 8
SLOW_SHARE_MIN, SLOW_SHARE_MAX = 1 / 6, 3 / 4


def ceil_to(value_ns: int, grid_ns: int) -> int:
    """The first multiple of `grid_ns` that is not before `value_ns`."""
    return -(-value_ns // grid_ns) * grid_ns


class BlockKind(StrEnum):
    """What a block is for.

    LONG: the quick treatments in long slots, for counters and carry-over. SLOW: the treatments that short blocks cannot
    hold, beside a baseline and a null slot of their own. SHORT: the quick treatments in short slots. WHOLE: all
    treatments, in a trial without quick ones.
    """

    LONG = "long"
    SLOW = "slow"
    SHORT = "short"
    WHOLE = "whole"


@dataclass(frozen=True)
class Stretch:
    """How many times as long as planned slots and guards are."""

    slots: int = 1
    guards: int = 1

    @property
    def coarser(self) -> Stretch:
        """For a victim that reports too seldom: its slots are too short, its guards are not."""
        return Stretch(2 * self.slots, self.guards)

    @property
    def slower(self) -> Stretch:
        """For effects that need longer to appear or to disappear."""
        return Stretch(2 * self.slots, 2 * self.guards)


PLANNED = Stretch()


@dataclass(frozen=True)
class Rhythm:
    """quick, slow: ids of the treatments in long and in slow blocks, baseline and null in both. All if there is none.

    short: those in short blocks; without them, all quick ones.
    cycle: the kinds of successive blocks, repeated. long_ns: the least slot of all but short blocks.
    """

    quick: frozenset[str]
    slow: frozenset[str]
    cycle: tuple[BlockKind, ...]
    long_ns: int
    short: frozenset[str] = frozenset()

    def kind(self, block: int) -> BlockKind:
        return self.cycle[block % len(self.cycle)]

    def is_long(self, block: int) -> bool:
        """Whether it has long slots, in a trial that has short ones too."""
        return self.kind(block) in (BlockKind.LONG, BlockKind.SLOW)

    def holds(self, block: int, treatment: str) -> bool:
        """Whether a treatment gets a slot in a block."""
        held = {BlockKind.LONG: self.quick, BlockKind.SHORT: self.short or self.quick}
        return treatment in held.get(self.kind(block), self.slow)

    def slot_ns_min(self, block: int) -> int:
        """The shortest slot of a block."""
        return 0 if self.kind(block) is BlockKind.SHORT else self.long_ns

    def judging(self, treatment: str) -> BlockKind:
        """The kind of block by which a treatment is judged."""
        if not self.quick:
            return BlockKind.WHOLE
        return BlockKind.SHORT if treatment in self.quick else BlockKind.SLOW


def rhythm(
    treatments: Sequence[Treatment],
    timing: Timing,
    stretch: Stretch = PLANNED,
    slow_share: float = SLOW_SHARE,
    *,
    watched: bool = False,
    decided: Collection[str] = (),
) -> Rhythm:
    """The kinds of block of a trial with these treatments. watched: whether it has long blocks enough.

    decided: treatments that need no more blocks. They stay in long blocks, for counters and carry-over.

    Short blocks leave the host's drift the least room. Counters need long slots, and only beside longer slots does it
    show that an effect needs longer to come or to go. An inherently slow treatment would fill short blocks
    with its guards, and in long blocks of all treatments it would be measured too seldom.
    """
    quick = [t for t in treatments if is_quick(t, timing.long, stretch)]
    if not {"baseline", "aggressor"} <= {t.role for t in quick}:
        left = frozenset(t.id for t in treatments if t.id not in decided)
        return Rhythm(frozenset(), left, (BlockKind.WHOLE,), timing.long)
    apart = [t for t in treatments if t not in quick and t.id not in decided]
    short = [t for t in quick if t.id not in decided]
    controls = [t for t in quick if t.role in ("baseline", "null")]
    slow = [*controls, *apart] if apart else []
    took_ns = lengths_ns(quick, slow, short, timing, stretch)
    cycle = _cycle(took_ns, slow_share, watched=watched)
    ids, slow_ids, short_ids = (frozenset(t.id for t in held) for held in (quick, slow, short))
    return Rhythm(ids, slow_ids, cycle, timing.long, short_ids)


def lengths_ns(
    quick: Sequence[Treatment],
    slow: Sequence[Treatment],
    short: Sequence[Treatment],
    timing: Timing,
    stretch: Stretch,
) -> dict[BlockKind, int]:
    """How long a block of each kind takes, in a trial with quick treatments. slow: empty if there are none.

    short: what short blocks hold. There are none if that is no neighbour, but slow blocks.
    """
    long = {BlockKind.LONG: quick, BlockKind.SLOW: slow}
    took_ns = {kind: block_ns(held, timing.slice, stretch, timing.long) for kind, held in long.items() if held}
    if slow and all(t.role in ("baseline", "null") for t in short):
        return took_ns
    return took_ns | {BlockKind.SHORT: block_ns(short, timing.slice, stretch)}


def _cycle(took_ns: Mapping[BlockKind, int], slow_share: float, *, watched: bool) -> tuple[BlockKind, ...]:
    """A few blocks of the rarest kind, and as many of the others as give each its share of the time, spread evenly."""
    slow = min(max(slow_share, SLOW_SHARE_MIN), SLOW_SHARE_MAX) if BlockKind.SLOW in took_ns else 0.0
    long = (LONG_SHARE_BESIDE_SLOW if slow else LONG_SHARE) / (2 if watched else 1)
    shares = {BlockKind.LONG: long * (1 - slow), BlockKind.SLOW: slow, BlockKind.SHORT: (1 - long) * (1 - slow)}
    cycle_ns = RAREST * max(took / shares[kind] for kind, took in took_ns.items())
    counts = {kind: round(shares[kind] * cycle_ns / took) for kind, took in took_ns.items()}
    places = sorted(
        (at / count, place, kind) for place, (kind, count) in enumerate(counts.items()) for at in range(count)
    )
    return tuple(kind for _, _, kind in places)


def is_quick(t: Treatment, long_ns: int, stretch: Stretch = PLANNED) -> bool:
    """Whether what a treatment takes, in a slot no shorter than its guards, is little beside a long slot."""
    slot_ns = max(t.slot_ns * stretch.slots, settling_ns(t) * stretch.guards)
    return ((t.guard_ns + t.release_ns) * stretch.guards + slot_ns) * 2 <= long_ns


def settling_ns(t: Treatment) -> int:
    """The time for its effect to set in or to end, whichever is longer."""
    return max(t.guard_ns, t.release_ns)


def block_ns(treatments: Sequence[Treatment], grid_ns: int, stretch: Stretch = PLANNED, at_least_ns: int = 0) -> int:
    """How long a block of these takes, on average over its random orders."""
    slots_ns = sum(ceil_to(max(t.slot_ns * stretch.slots, at_least_ns), grid_ns) for t in treatments)
    return slots_ns + sum(_guards_ns(treatments, grid_ns, stretch))


def guard_ns(treatments: Sequence[Treatment], grid_ns: int) -> int:
    """The guard of a slot, on average over the slots and orders of a block of these."""
    return sum(_guards_ns(treatments, grid_ns, PLANNED)) // len(treatments)


def _guards_ns(treatments: Sequence[Treatment], grid_ns: int, stretch: Stretch) -> Iterator[int]:
    """The guard of each treatment, on average over what comes before it.

    After a switch, the longer of two times counts: the treatment's own guard time and the after-effect of the previous
    one. The previous one may be any other, and at the start of a block, rarely, the treatment itself.
    """
    count = len(treatments)
    left = Counter(t.release_ns for t in treatments)
    for t in treatments:
        after = {ns: ceil_to(max(t.guard_ns, ns) * stretch.guards, grid_ns) for ns in left}
        total_ns = (count + 1) * sum(after[ns] * many for ns, many in left.items()) - count * after[t.release_ns]
        yield total_ns // count**2
