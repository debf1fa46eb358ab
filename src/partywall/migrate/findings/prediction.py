"""What a move will cost, before it is made: three models of pre-copy, side by side. Pure.

All start from the same facts: how much memory has content, how fast the link is, and how much memory the guest changes
in windows of different lengths (its dirty curve; pages that change twice in a window count once).

* `geometric`: the model of the literature (Clark et al. 2005; Liu et al. 2011). The guest dirties memory at one rate,
  so each pass is a constant fraction of the one before, until the rest can be sent within the downtime limit.
* `piecewise`: replays the passes with the dirty curve, each pass sending everything that is dirty when it begins.
* `replay`: ours. As `piecewise`, but by QEMU's own rule. A pass ends, and the dirty bitmap is read again, as soon as
  what is left could be sent within the downtime limit at the rate seen last; the rest of the pass stays dirty. To this
  come the fixed costs that calibration moves showed, and uncertainty from what varied between them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
import numpy.typing as npt
from scipy import optimize

from partywall.core.stats.estimate import Span
from partywall.migrate.document import Method, Move, MoveFinding, Prediction
from partywall.migrate.findings.response import SHARES, Service, p99_during

Floats = npt.NDArray[np.float64]

PASSES_MAX = 400
DRAWS = 400
LEVEL = 0.90
QUANTUM_S = 0.05
"""How long QEMU sends before it looks again at what is left."""
STALLED_BYTES = 64 << 10
FEWEST_LOOKS = 4
LOOKS = 32
"""Rates that are drawn for the looks of a move; after so many they begin again."""
WITHOUT_FIRST = 3
"""With so many calibration moves, the first one says nothing of zero pages."""
SETTLES_NS = 300_000_000
"""After this time, QEMU's view of the rate no longer shows what was before. It looks every 100 ms."""
DOWNTIME_LIMIT_S = 0.3
"""QEMU's default."""
BUFFER = 2 << 20
"""What TCP's buffer takes of a stream below the link's rate: half of the usual `net.ipv4.tcp_wmem`, whose other half is
the kernel's own. QEMU does not wait for it."""
UNKNOWN = 0.01
"""Relative spread of the bytes, and of the time that they take, that nothing observed beforehand explains."""
UNKNOWN_LEFT = 0.07
"""The same for what is left at the hand-over."""
BANDWIDTH = 128 << 20
"""QEMU's default max-bandwidth since version 5.2, bytes/s."""
REWRITTEN = 400e3
"""Bytes that an emulated guest was seen to write in a pass at most without a change of content. Samplers do not see it,
and it decides whether moves with a short downtime limit end."""
EARLIEST_S = 0.01
"""Below this, memory counts as changed evenly."""
RATE_S = 0.05
"""Shortest window that tells a rate. In shorter ones, pages that a guest changes all the time count for much."""


@dataclass(frozen=True)
class Curve:
    """How much memory a guest changes. windows_s: ascending; changed: (samples, windows) bytes, nan if unknown.

    errors: standard errors of a sample, if pages were sampled. early: how the guest changes memory within the shortest
    window, from evenly, 0, to as early as the longer windows allow, 1.
    """

    windows_s: tuple[float, ...]
    changed: Floats
    errors: tuple[float, ...] = ()
    early: float = 0.0

    def mean(self) -> Curve:
        return replace(self, changed=np.nanmean(self.changed, axis=0, keepdims=True))

    def draw(self, chance: np.random.Generator) -> Curve:
        """One that might have been observed instead: a mean of samples drawn with replacement."""
        rows = chance.integers(len(self.changed), size=len(self.changed))
        if np.isnan(self.changed[rows]).all(axis=0).any():
            drawn = self.mean()
        else:
            drawn = replace(self, changed=np.nanmean(self.changed[rows], axis=0, keepdims=True))
        drawn = replace(drawn, early=float(chance.random()))
        return drawn.with_errors(chance, (~np.isnan(self.changed)).sum(axis=0)) if self.errors else drawn

    def with_errors(self, chance: np.random.Generator, samples: npt.NDArray[np.int64]) -> Curve:
        """As other samples of pages would have shown it. A longer window never shows less."""
        errors = np.array(self.errors) / np.sqrt(np.maximum(1, samples))
        changed = np.maximum(0.0, self.changed + chance.normal(0.0, errors))
        return replace(self, changed=np.maximum.accumulate(changed, axis=1), errors=())

    def at(self, seconds: float) -> float:
        """Bytes changed in a window. Beyond the longest window the last slope goes on."""
        windows, changed = np.array((0.0, *self.windows_s)), np.array((0.0, *np.nanmean(self.changed, axis=0)))
        if seconds <= windows[-1]:
            evenly = float(np.interp(seconds, windows, changed))
            return evenly if seconds >= windows[1] or not self.early else self._early(seconds, evenly, windows, changed)
        slope = (changed[-1] - changed[-2]) / (windows[-1] - windows[-2]) if len(windows) > 2 else 0.0
        return float(changed[-1] + max(0.0, slope) * (seconds - windows[-1]))

    def _early(self, seconds: float, evenly: float, windows: Floats, changed: Floats) -> float:
        """Within the shortest window. A curve never bends upwards, so it is below the line that continues backwards."""
        after = (changed[2] - changed[1]) / (windows[2] - windows[1]) if len(windows) > 2 else 0.0
        most = max(evenly, float(changed[1] - after * (windows[1] - seconds)))
        return evenly + (most - evenly) * self.early * min(1.0, seconds / EARLIEST_S)

    def working_set(self, most: float, share: float = 0.5) -> float:
        """Bytes that the guest changes again and again, at most `most`.

        At least what changed in the longest window. If the curve still rises there, it may be more: at most what it
        approaches if it bends exponentially from its middle to its end. Its beginning is steeper, because a guest
        always changes some pages. share: from the least, 0, to the most that this allows, 1.
        """
        windows, changed = np.array((0.0, *self.windows_s)), np.array((0.0, *np.nanmean(self.changed, axis=0)))
        slopes, least = np.diff(changed) / np.diff(windows), float(changed[-1])
        # By time: how short the shortest window is does not matter.
        middle = min(int(np.searchsorted(windows[1:], math.sqrt(windows[1] * windows[-1]))), len(slopes) - 2)
        highest = least
        if len(slopes) > 1 and slopes[-1] > 0:
            centres = (windows[1:] + windows[:-1]) / 2
            bend = (
                math.log(slopes[middle] / slopes[-1]) / (centres[-1] - centres[middle]) if slopes[middle] > 0 else 0.0
            )
            # What is missing decays from the last slope on.
            after_s = windows[-1] - centres[-1]
            highest = least + slopes[-1] * math.exp(-bend * after_s) / bend if bend > 0 else math.inf
        return least + (max(least, min(most, highest)) - least) * share

    @property
    def rate(self) -> float:
        """Bytes/s by the shortest window that tells a rate."""
        place = rate_window(self.windows_s)
        return float(np.nanmean(self.changed[:, place]) / self.windows_s[place])


def rate_window(windows_s: Sequence[float]) -> int:
    """Which of some windows tells how fast a guest changes memory: the shortest of RATE_S or more, or the longest."""
    return next((place for place, window_s in enumerate(windows_s) if window_s >= RATE_S), len(windows_s) - 1)


NOTHING = Curve((1.0,), np.zeros((1, 1)))


@dataclass(frozen=True)
class Facts:
    """What is known of a guest and its link.

    memory: bytes; content: bytes of pages that are not zero; rate: bytes/s over the link; empty_rate: bytes/s of zero
    pages, which are looked at and hardly sent; sync_s: to read the dirty bitmap between two passes; layout: content in
    equal parts of the memory, by address, or empty if it lies evenly; service: what clients saw before the move.
    looked: the rates that QEMU sees when it decides whether to hand over, one after the other, as shares of `rate`.
    rewritten: bytes that QEMU finds written in each pass although their content is what it was. content_least: if the
    content is only known to lie between the two. bandwidth, downtime_s: limits of a method that sets none, bytes/s and
    s.
    """

    memory: float
    content: float
    rate: float
    empty_rate: float = math.inf
    sync_s: float = 0.0
    curve: Curve = NOTHING
    layout: tuple[float, ...] = ()
    looked: tuple[float, ...] = (1.0,)
    rewritten: float = 0.0
    service: Service | None = None
    content_least: float | None = None
    bandwidth: float = BANDWIDTH
    downtime_s: float = DOWNTIME_LIMIT_S

    def drawn(self, chance: np.random.Generator) -> Facts:
        """With a content and a dirty curve that they may stand for."""
        curve = self.curve.draw(chance)
        if self.content_least is None:
            return replace(self, curve=curve)
        content = float(chance.uniform(self.content_least, self.content))
        if self.layout:
            layout = tuple(part * content / max(1.0, self.content) for part in self.layout)
        else:
            # How much of it lies in the later half is not known either.
            half = self.memory / 2
            later = float(chance.uniform(max(0.0, content - half), min(content, half)))
            layout = (content - later, later)
        return replace(self, curve=curve, content=content, layout=layout)

    def in_last(self, size: float) -> float:
        """Content in so many last bytes of the memory."""
        parts = self.layout or (self.content,)
        edges = np.linspace(0.0, self.memory, len(parts) + 1)
        return float(np.interp(size, edges, np.concatenate([[0.0], np.cumsum(parts[::-1])])))

    def last_with(self, content: float) -> float:
        """How many last bytes of the memory hold so much content: the inverse of `in_last`."""
        parts = self.layout or (self.content,)
        sums = np.concatenate([[0.0], np.cumsum(parts[::-1])])
        return float(np.interp(content, sums + np.arange(len(sums)) * 1e-6, np.linspace(0.0, self.memory, len(sums))))


@dataclass(frozen=True)
class Fixed:
    """Costs that calibration moves showed; one value for each move, so that their spread is known.

    setup_s: before the first pass. syncs_s: to read the dirty bitmap between two passes; one move's is as often too
    short as too long, and may be below 0, so only the mean says something. rates, empty_rates: bytes/s of pages
    that are sent, and of zero pages. downtime_s: what QEMU's downtime is beyond the time for the bytes that were
    left. looked: the rates that QEMU saw, as shares of the move's; several for each. waited_s: how much longer
    clients wait than QEMU's downtime. extra_bytes: what an idle guest sends beyond its content. start_s: how long
    clients wait at the start. slower_s: by how much answers are slower outside the pauses, at
    `response.SHARES`.
    """

    setup_s: tuple[float, ...]
    syncs_s: tuple[float, ...]
    rates: tuple[float, ...]
    empty_rates: tuple[float, ...]
    downtime_s: tuple[float, ...]
    waited_s: tuple[float, ...]
    looked: tuple[float, ...] = (1.0,)
    extra_bytes: tuple[float, ...] = (0.0,)
    start_s: tuple[float, ...] = ()
    slower_s: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Course:
    """A predicted move. passes: over the memory, the last one with the guest stopped included."""

    converges: bool
    total_s: float
    bytes: float
    passes: int
    downtime_s: float
    waited_s: float
    p99_s: float = math.nan
    longest_s: float = math.nan


Model = Callable[[Facts, Method, float], Course]


def rate_of(facts: Facts, method: Method) -> float:
    """Bytes/s that a method can send."""
    limit = facts.bandwidth if method.bandwidth is None else method.bandwidth / 8
    return min(facts.rate, limit)


def limit_of(facts: Facts, method: Method) -> float:
    """The downtime limit, in seconds."""
    return facts.downtime_s if method.downtime is None else method.downtime / 1e9


def geometric(facts: Facts, method: Method, give_up_s: float) -> Course:
    """One dirty rate for all windows."""
    return _in_passes(facts, method, give_up_s, facts.memory, lambda pass_s: facts.curve.rate * pass_s)


def piecewise(facts: Facts, method: Method, give_up_s: float) -> Course:
    """The dirty curve, and whole passes."""
    return _in_passes(facts, method, give_up_s, facts.content, facts.curve.at)


def _in_passes(
    facts: Facts, method: Method, give_up_s: float, first: float, changed: Callable[[float], float]
) -> Course:
    """Each pass sends what changed during the one before. first: bytes of the first; changed: bytes by seconds."""
    rate, limit_s = rate_of(facts, method), limit_of(facts, method)
    left, sent, spent_s = first, 0.0, 0.0
    for number in range(1, PASSES_MAX):
        if left / rate <= limit_s:
            return _ended(left, sent, spent_s, number, rate)
        pass_s = left / rate
        sent, spent_s, left = sent + left, spent_s + pass_s, min(facts.memory, changed(pass_s))
        if spent_s > give_up_s:
            break
    return _endless(sent, spent_s, PASSES_MAX)


def replayed(
    facts: Facts,
    method: Method,
    give_up_s: float,
    phase: float = 0.5,
    overlap: float = 0.5,
    wide: float = 0.5,
    place: float | None = None,
) -> Course:
    """QEMU's rule, see the module. Post-copy hands over after its passes, and sends what is dirty then once more.

    phase: when within a quantum QEMU looks, 0 to 1. overlap: whether the guest changes pages again that wait to be
    sent: 1 if it picks pages at random, 0 if it takes them in turn, because the next ones were sent long ago. wide: the
    share of `Curve.working_set`. place: where in the content the working set lies, in one piece, from its beginning, 0,
    to its end, 1, which is sent last; None: it is spread over all of it.
    """
    rate, limit_s = rate_of(facts, method), limit_of(facts, method)
    quantum = rate * QUANTUM_S
    empty_s = (facts.memory - facts.content) / facts.empty_rate
    # QEMU goes through the memory by address, and counts pages as left until it has looked at them, zero pages too.
    every = facts.curve.working_set(facts.content, wide) + facts.rewritten
    ahead, fresh, dirty, sent, spent_s = facts.memory, facts.content, 0.0, 0.0, 0.0
    for number in range(1, PASSES_MAX):
        if method.postcopy is not None and number > method.postcopy.after_passes:
            left = fresh + dirty
            return Course(True, spent_s + left / rate, sent + left, number + 1, 0.0, 0.0)
        threshold = rate * facts.looked[number % len(facts.looked)] * limit_s
        # What it has not looked at yet comes first.
        needed = max(0.0, fresh - facts.in_last(max(0.0, threshold - dirty))) + max(0.0, dirty - threshold)
        now = min(fresh + dirty, quantum * (math.ceil(needed / quantum) + phase))
        looked = min(fresh, now)
        fresh, dirty, before = fresh - looked, dirty - (now - looked), ahead
        ahead = facts.last_with(fresh) if fresh else 0.0
        pass_s = now / rate + facts.sync_s + empty_s * (before - ahead) / facts.memory
        sent, spent_s = sent + now, spent_s + pass_s
        changed = min(every, facts.curve.at(pass_s) + facts.rewritten)
        # What changes again before it is sent is one page to send, not two.
        if changed:
            at_random, in_turn = dirty * min(1.0, changed / every), max(0.0, dirty + changed - every)
            changed -= overlap * at_random + (1 - overlap) * in_turn
        dirty = min(facts.memory - fresh, dirty + changed * (1 - _unsent(facts.content, every, fresh, place)))
        if ahead + dirty <= threshold:
            # The rest is sent without the method's limit.
            left, buffered = fresh + dirty, BUFFER if rate < facts.rate else 0
            last_s = max(0.0, left - buffered) / facts.rate
            return Course(True, spent_s + last_s, sent + left, number + 1, last_s, last_s)
        if spent_s > give_up_s:
            break
    return _endless(sent, spent_s, PASSES_MAX)


def _unsent(content: float, every: float, fresh: float, place: float | None) -> float:
    """The share of a working set that has not been sent at all yet: changes there need nothing more."""
    if place is None or not every:
        return fresh / max(content, 1.0)
    end = place * (content - every) + every
    return min(1.0, max(0.0, end - (content - fresh)) / every)


def _ended(left: float, sent: float, spent_s: float, passes: int, rate: float) -> Course:
    last_s = left / rate
    return Course(True, spent_s + last_s, sent + left, passes, last_s, last_s)


def _endless(sent: float, spent_s: float, passes: int) -> Course:
    return Course(False, spent_s, sent, passes, math.inf, math.inf)


BASELINES: dict[str, Model] = {"geometric": geometric, "piecewise": piecewise}


def predict(facts: Facts, fixed: Fixed, method: Method, give_up_s: float, seed: int = 0) -> Prediction:
    """Our prediction. Each draw takes one calibration move's costs and one dirty curve that might have been seen.

    The simpler models get the same draws of the link's rate and the curve.
    """
    chance = np.random.default_rng(seed)
    courses, others = [], {name: list[Course]() for name in BASELINES}
    for _ in range(DRAWS):
        drawn = replace(
            facts,
            rate=_drawn(fixed.rates, chance),
            empty_rate=1 / max(1e-15, _drawn([1 / rate for rate in fixed.empty_rates], chance)),
            # A mean below 0 says how far off it is.
            sync_s=abs(_drawn_mean(fixed.syncs_s, chance)),
            looked=tuple(chance.choice(fixed.looked, LOOKS)),
            rewritten=float(chance.uniform(0.0, REWRITTEN)),
        ).drawn(chance)
        course = replayed(drawn, method, give_up_s, *chance.random(4))
        courses.append(_with_costs(course, drawn, fixed, chance))
        for name, model in BASELINES.items():
            others[name].append(model(drawn, method, give_up_s))
    ended = [course for course in courses if course.converges]
    return Prediction(
        chance=len(ended) / len(courses),
        spans=_spans(ended, OURS if facts.service is None else {**OURS, "p99_s": "p99_s"}),
        others={name: _spans_of_model(courses_of) for name, courses_of in others.items()},
    )


THEIRS = {"total_s": "total_s", "sent_bytes": "bytes", "downtime_s": "downtime_s"}
"""What all models predict: metrics, and where a course has them."""
OURS = {**THEIRS, "passes": "passes", "clients_s": "waited_s", "longest_s": "longest_s"}


def _with_costs(course: Course, facts: Facts, fixed: Fixed, chance: np.random.Generator) -> Course:
    """With the fixed costs of a move that might have been seen."""
    extra_s, extra_bytes = _drawn(fixed.downtime_s, chance), _drawn(fixed.extra_bytes, chance)
    more, longer = chance.lognormal(0.0, UNKNOWN, 2)
    sent = (course.bytes + extra_bytes) * float(more)
    sending_s = (course.total_s + extra_bytes / facts.rate) * float(more * longer)
    total_s = sending_s + _drawn(fixed.setup_s, chance) + extra_s
    downtime_s = course.downtime_s * float(chance.lognormal(0.0, UNKNOWN_LEFT)) + extra_s
    waited_s = downtime_s + _drawn(fixed.waited_s, chance)
    p99_s = math.nan
    start_s = _drawn(fixed.start_s, chance) if fixed.start_s else 0.0
    if facts.service is not None and course.converges:
        none = tuple(0.0 for _ in SHARES)
        slower_s = fixed.slower_s[chance.integers(len(fixed.slower_s))] if fixed.slower_s else none
        p99_s = p99_during(facts.service, slower_s, (start_s, waited_s), total_s)
    return replace(
        course, total_s=total_s, bytes=sent, downtime_s=downtime_s, waited_s=waited_s, p99_s=p99_s,
        longest_s=max(start_s, waited_s),
    )  # fmt: skip


def _spans(courses: Sequence[Course], metrics: Mapping[str, str]) -> dict[str, Span]:
    """None if there are no courses."""
    if not courses:
        return {}
    return {name: _span([float(getattr(course, key)) for course in courses]) for name, key in metrics.items()}


def _spans_of_model(courses: Sequence[Course]) -> dict[str, Span]:
    """What a simpler model says; nothing if it expects no end. It has no fixed costs and no clients."""
    ended = [course for course in courses if course.converges]
    return _spans(ended, THEIRS) if len(ended) * 2 >= len(courses) else {}


def fixed_of(moves: Sequence[MoveFinding], content: float | None = None) -> Fixed:
    """The fixed costs that calibration moves showed. content: bytes that the guest had in use, if they are known.

    Raises ValueError if none of the moves was completed.
    """
    usable = [finding for finding in moves if finding.move.outcome == "completed" and "clients_s" in finding.values]
    if not usable:
        raise ValueError("none of the calibration moves was completed")
    rates = [_rates(finding.move) for finding in usable]
    downtimes = [(finding.move.downtime_ns or 0) / 1e9 for finding in usable]
    return Fixed(
        setup_s=tuple((finding.move.setup_ns or 0) / 1e9 for finding in usable),
        # The rates of a move are fitted to its own first pass.
        syncs_s=tuple(_sync_s(finding.move, *rate) for finding, rate in zip(usable, rates, strict=True)),
        rates=tuple(rate for rate, _ in rates),
        # The first move goes over memory that its QEMU has never read, which takes longer.
        empty_rates=tuple(empty for _, empty in (rates[1:] if len(rates) >= WITHOUT_FIRST else rates)),
        downtime_s=tuple(
            max(0.0, downtime - finding.move.memory.get("downtime-bytes", 0) / rate)
            for finding, downtime, (rate, _) in zip(usable, downtimes, rates, strict=True)
        ),
        waited_s=tuple(
            finding.values["clients_s"] - downtime for finding, downtime in zip(usable, downtimes, strict=True)
        ),
        looked=tuple(
            seen / rate
            for finding, (rate, _) in zip(usable, rates, strict=True)
            for seen in rates_seen(finding.move, rate)
        ),
        extra_bytes=(0.0,)
        if content is None
        else tuple(max(0.0, finding.move.memory.get("transferred", 0) - content) for finding in usable),
        start_s=tuple(finding.values["start_s"] for finding in usable if "start_s" in finding.values),
        slower_s=tuple(tuple(each / 1e9 for each in finding.slower_ns) for finding in usable if finding.slower_ns),
    )


def _rates(move: Move) -> tuple[float, float]:
    """Bytes/s of pages that are sent, and of zero pages: least squares over looks at the first pass."""
    looks = [look for look in move.progress if look.passes <= 1 and look.sent > 0]
    sent = np.diff([look.sent for look in looks])
    empty = np.maximum(0, -np.diff([look.left for look in looks]) - sent)
    spent_s = np.diff([look.at_ns for look in looks]) / 1e9
    # At the end of the pass the bitmap is read, and nothing moves.
    moving = sent + empty > STALLED_BYTES
    if moving.sum() < FEWEST_LOOKS or not sent.sum():
        total_s = ((move.total_ns or 1) - (move.setup_ns or 0) - (move.downtime_ns or 0)) / 1e9
        return move.memory.get("transferred", 1) / total_s, math.inf
    work = np.column_stack([sent, empty])[moving]
    costs, _ = optimize.nnls(work, spent_s[moving])
    # What is fitted gives the whole pass its own length.
    costs *= spent_s[moving].sum() / max(1e-9, float(work.sum(axis=0) @ costs))
    return 1 / max(float(costs[0]), 1e-12), 1 / float(costs[1]) if costs[1] > 0 else math.inf


def rates_seen(move: Move, usual: float) -> list[float]:
    """The rates in bytes/s that QEMU saw in the first pass, by which it would have decided to hand over.

    Not while it went over zero pages, nor shortly after, when it filled TCP's buffer again. usual: if there are none.
    """
    looks = [look for look in move.progress if look.passes <= 1]
    seen, quiet_ns = [], (looks[0].at_ns if looks else 0) + SETTLES_NS
    for before, look in itertools.pairwise(looks):
        sent = look.sent - before.sent
        if before.left - look.left - sent > max(sent, STALLED_BYTES):
            quiet_ns = look.at_ns + SETTLES_NS
        elif look.at_ns > quiet_ns and look.rate and look.rate != before.rate:
            seen.append(look.rate)
    return seen or [usual]


def _sync_s(move: Move, rate: float, empty_rate: float) -> float:
    """What is left of a move's time when all bytes are accounted for, for each time that the bitmap was read.

    It may be below 0.
    """
    sent, page = move.memory.get("transferred", 0), move.memory.get("page-size", 4096)
    empty_s = move.memory.get("duplicate", 0) * page / empty_rate
    total_s = ((move.total_ns or 0) - (move.setup_ns or 0)) / 1e9
    syncs = max(1.0, move.memory.get("dirty-sync-count", 2) - 1)
    return (total_s - sent / rate - empty_s) / syncs


def _drawn(values: Sequence[float], chance: np.random.Generator) -> float:
    """One more value like these: few values leave its mean and its spread open, so Student's t. Never below 0."""
    known = [value for value in values if math.isfinite(value)]
    if len(known) < len(values) or len(known) < 2:
        return float(values[0])
    reach = float(np.std(known, ddof=1)) * math.sqrt(1 + 1 / len(known)) * float(chance.standard_t(len(known) - 1))
    # A rate or a time is not below a tenth of its mean, however wide the tail.
    return max(0.1 * float(np.mean(known)), float(np.mean(known)) + reach)


def _drawn_mean(values: Sequence[float], chance: np.random.Generator) -> float:
    """What the mean of many values like these may be: Student's t around the mean of the known ones."""
    if len(values) < 2:
        return float(values[0])
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return fmean(values) + error * float(chance.standard_t(len(values) - 1))


def _span(values: Sequence[float]) -> Span:
    low, middle, high = np.quantile(values, ((1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2))
    return Span(value=float(middle), low=float(low), high=float(high))
