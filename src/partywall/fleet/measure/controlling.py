"""All hosts of a fleet: canaries first, as many at a time as the policy allows, and one table of all."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from partywall.errors import Exit, PartywallError, TrialError
from partywall.events import Doing, Emit, Left, Note, Seen
from partywall.fleet.engines.engine import Engine
from partywall.fleet.findings.findings import opened
from partywall.fleet.inventory import Place
from partywall.fleet.ledger.lease import Phase
from partywall.fleet.measure.following import WORDS_MOST, Follower, Given, NotNow, Progress, Superseded, Time
from partywall.fleet.record import Became, Failed, FleetRecord, Measured, Standing, Tried

STEP_S = 0.2
AGAIN_S = 30.0
"""How long a host that may not begin yet waits until it is asked again."""


class Controller:
    """Measures the hosts that a record lacks. A lock orders the lines of its threads."""

    def __init__(self, record: FleetRecord, engine: Engine, emit: Emit) -> None:
        self._record, self._engine, self._emit, self._job = record, engine, emit, record.job
        self._queue: queue.SimpleQueue[Progress] = queue.SimpleQueue()
        self._over, self._lock = threading.Event(), threading.Lock()
        self._table = {place.name: Standing(place.name, "waits") for place in self._job.places}
        self._began_s = time.monotonic()
        # How long the last host took, for what nobody knows the time of beforehand.
        self._took_s, self._asked_s = 0.0, dict[str, float]()

    def run(self) -> None:
        """Measures what is left. Raises KeyboardInterrupt after Ctrl-C; hosts measure on then."""
        token, done = self._record.begin(), self._record.measured
        for place in self._job.places:
            self._record.home(place.name).forget_unwritten()
        for name in done:
            self._put(Standing(name, "measured", 1.0))
        places = [place for place in self._job.places if place.name not in done]
        first = [place for place in places if place.name in self._job.first]
        rest = [place for place in places if place.name not in self._job.first]
        self._show()
        try:
            for group in (first, rest):
                if harm := self._harm():
                    self._hold(rest, harm)
                    return
                self._together(group, token, 1)
            for number in range(2, self._job.rounds + 1):
                self._together(self._open(number), token, number)
        finally:
            self._over.set()

    def _open(self, number: int) -> list[Place]:
        """The hosts that a round measures: those of the one before that are open, or that it has begun with."""
        measured, tried, share = self._record.measured, self._record.attempts(), number / self._job.rounds
        left = opened(measured, self._job.least) | {name for name, line in tried.items() if line.share == share}
        before = {name for name, line in measured.items() if math.isclose(line.share, share - 1 / self._job.rounds)}
        return [place for place in self._job.places if place.name in left & before]

    def _together(self, places: Sequence[Place], token: int, number: int) -> None:
        """Measures hosts for a round."""
        share, tried = number / self._job.rounds, self._record.attempts()
        going: dict[Future[Measured], Place] = {}
        waiting = [(0.0, place) for place in places]
        for place in places:
            self._put(Standing(place.name, "waits"))
        with ThreadPoolExecutor(self._job.at_once) as pool:
            try:
                while (waiting or going) and not (self._over.is_set() and not going):
                    now_s, later = time.monotonic(), []
                    for when_s, place in waiting:
                        if when_s > now_s:
                            later.append((when_s, place))
                            continue
                        attempt = _attempt(tried.get(place.name), share)
                        self._asked_s[place.name] = now_s
                        going[pool.submit(self._follower(place, token, share).follow, attempt)] = place
                    self._listen(STEP_S)
                    over = [(future, going.pop(future)) for future in list(going) if future.done()]
                    busy = [place for future, place in over if not self._take(place.name, future)]
                    waiting = [*later, *((time.monotonic() + AGAIN_S, place) for place in busy)]
                if self._over.is_set():
                    path = self._record.path
                    said = "partywall fleet stop or another controller has taken over, so this one ends"
                    raise TrialError(f"{said}; later: partywall fleet run --resume {path}")  # noqa: TRY301
            except TrialError:
                raise
            except BaseException:
                self._over.set()
                pool.shutdown(wait=False, cancel_futures=True)
                if left := [name for name, row in self._table.items() if row.share is not None and row.share < 1]:
                    said = f"{', '.join(left)} measure on; partywall fleet stop {self._record.path} ends them"
                    self._emit(Note(said))
                raise

    def _listen(self, for_s: float) -> None:
        """Takes what hosts have said, and what they say for a moment."""
        until, is_news = time.monotonic() + for_s, False
        while time.monotonic() < until + STEP_S:
            try:
                said = self._queue.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            is_news = True
            before = self._table[said.host]
            if (before.attempt, before.state) != (said.attempt, str(said.phase)) and said.attempt:
                seconds = round(time.monotonic() - self._began_s, 1)
                line = Became(host=said.host, attempt=said.attempt, phase=said.phase, why=said.why, seconds=seconds)
                self._write(line)
            state = "no answer" if said.phase is Phase.NONE else str(said.phase)
            self._put(Standing(said.host, state, said.share, said.attempt, said.why))
        if is_news:
            self._show()

    def _follower(self, place: Place, token: int, share: float) -> Follower:
        record, home = self._record, self._record.home(place.name)
        # An attempt is written before it is ordered, so that a controller that follows knows of it.
        return Follower(
            place, self._engine, self._job, record.name, token, home, self._write, self._queue.put,
            Time(self._over), share,
        )  # fmt: skip

    def _write(self, line: Tried | Became | Measured | Failed) -> None:
        with self._lock:
            self._record.stream.append(line)

    def _take(self, host: str, future: Future[Measured]) -> bool:
        """Writes what became of a host. Returns False if it may not begin yet."""
        self._listen(0.0)
        try:
            measured = future.result()
        except Superseded:
            self._over.set()
            return True
        except Given:
            return True
        except NotNow as why:
            self._put(Standing(host, "waits", why=str(why)))
            self._show()
            return False
        except PartywallError as error:
            self._fail(host, str(error))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # Whatever a host or an engine answers is this host's own matter: the others go on.
            self._fail(host, f"{host}: what it or its engine answered cannot be used: {error!r}"[:WORDS_MOST])
        else:
            self._took_s = time.monotonic() - self._asked_s[host]
            self._write(measured)
            self._put(Standing(host, "measured", 1.0))
        self._show()
        return True

    def _fail(self, host: str, why: str) -> None:
        self._write(Failed(host=host, why=why))
        self._put(Standing(host, "failed", why=why))
        self._emit(Note(why, is_warning=True))

    def _harm(self) -> str:
        """Why the hosts after the canaries are not measured; empty if all canaries hold."""
        for name in self._job.first:
            measured = self._record.measured.get(name)
            if measured is None and name in self._record.failed:
                return f"canary {name} could not be measured"
            if measured is not None and measured.exit == Exit.VIOLATED:
                return f"canary {name} violates a goal of the scenario"
        return ""

    def _hold(self, places: Sequence[Place], why: str) -> None:
        for place in places:
            self._fail(place.name, f"{place.name}: not measured, because {why}")

    def _put(self, standing: Standing) -> None:
        self._table[standing.host] = standing

    def _show(self) -> None:
        rows = tuple(self._table.values())
        done = sum(row.state in ("measured", "failed") for row in rows)
        self._emit(Doing(f"{done} of {len(rows)} hosts"))
        rounds = -(-(len(rows) - done) // self._job.at_once)
        if seconds := self._job.seconds or self._took_s:
            self._emit(Left(rounds * seconds / self._job.rounds))
        self._emit(Seen(rows, is_kept=False))


def _attempt(tried: Tried | None, share: float) -> int:
    """The attempt that may have begun to measure a share, or the first that will."""
    if tried is None:
        return 1
    return tried.attempt if tried.share >= share else tried.attempt + 1
