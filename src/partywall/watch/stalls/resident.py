"""partywall-watch follows who waits for whom on this host, always, within a budget that it keeps itself.

Usage: partywall-watch [OPTION VALUE]...

It reads counters of all groups of this host (containers, pods, guests, units): how long each waits for a CPU, memory
and disks, what each uses, and how long its own limits stop it. A line says when a stall begins that is worth asking
about, and one when it ends. It changes nothing, and needs no root where the files of /sys/fs/cgroup can be read.
It is a program of its own: 'partywall watch' follows disks and their tenants, and keeps a record.

  --port PORT        serve /metrics (OpenMetrics) and /ready; 0 takes a free port
  --address ADDRESS  where to serve them, by default 127.0.0.1: this host alone
  --prometheus FILE  write the metrics every 15 s, for node_exporter's textfile collector
  --otlp URL         send them every 15 s to a collector of OpenTelemetry on HTTP, e.g. http://127.0.0.1:4318
  --ring FOLDER      keep the last hour there, at most 4 MiB
  --from SHARE       a stall begins above this share of the time, by default 10%
  --for DURATION     end after it, e.g. 10m; by default it goes on until a signal
  --version          print the version

It uses at most 0.1 % of one CPU. Where that does not allow a reading every 5 seconds, it reads less often and says so.
What cannot be written for a while, such as a file on a full disk, is said once and tried again.

Exit code: 0 watched, 2 bad option, 4 the host shows nothing of this, 5 its port cannot be used, or its lines cannot be
written and it serves nothing else, 130 interrupted before the end of --for.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import gc
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from partywall import __version__, streams, units
from partywall.clock import Monotonic
from partywall.errors import Exit, PartywallError, Problem, UsageError
from partywall.files import write_whole
from partywall.watch.stalls.budget import QUIET_NS, Budget
from partywall.watch.stalls.detect import FROM
from partywall.watch.stalls.reading import PAGE, RESOURCES, Lack, Reader
from partywall.watch.stalls.ring import Ring
from partywall.watch.stalls.serving import OPEN_METRICS, PLAIN, Answer, Server
from partywall.watch.stalls.totals import Family
from partywall.watch.stalls.watching import Watching

if TYPE_CHECKING:
    from partywall.watch.stalls.otlp import Collector

FILE_NS = 15_000_000_000
GATE_NS = 1_000_000_000
SLOW_NS = QUIET_NS + GATE_NS
"""Periods that are longer break the promise that a stall is found within some seconds."""
INTERRUPTED = 130
TRIED = {"file": "written", "ring": "written", "collector": "reached"}
"""What can fail for a while, and what is tried again."""
PROGRAM = "partywall-watch"
SEE_HELP = f"see {PROGRAM} --help"


@dataclass(frozen=True)
class Options:
    """What the program was called with."""

    port: int | None = None
    address: str = "127.0.0.1"
    file: Path | None = None
    otlp: Collector | None = None
    ring: Path | None = None
    threshold: float = FROM
    for_ns: int | None = None


def parsed(words: Sequence[str]) -> Options:
    """The options of a command line. UsageError with all mistakes at once."""
    found: dict[str, object] = {}
    problems = []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        name = RENAMED.get(name, name)
        if not name.startswith("--"):
            problems.append(Problem("is not an option", SEE_HELP, key=word))
            continue
        text = value if equals else next(rest, None)
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, 1)
            problems.append(
                Problem("there is no such option", f"did you mean {near[0]}?" if near else SEE_HELP, key=name)
            )
            continue
        if text is None:
            problems.append(Problem("has no value", SEE_HELP, key=name))
            continue
        field, parse = OPTIONS[name]
        try:
            found[field] = parse(text)
        except ValueError as error:
            problems.append(Problem(str(error), key=name))
    if "address" in found and "port" not in found:
        problems.append(Problem("needs --port", "add for example --port 9753", key="--address"))
    if problems:
        raise UsageError(*problems)
    return Options(**found)  # type: ignore[arg-type]


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise ValueError(f"{text!r} is not a port; write for example 9753")
    return int(text)


def _address(text: str) -> str:
    for kind in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(kind, text)
            return text
    raise ValueError(f"{text!r} is not an address; write for example 127.0.0.1")


def _collector(text: str) -> Collector:
    from partywall.watch.stalls.otlp import Collector  # noqa: PLC0415

    return Collector.parsed(text)


def _share(text: str) -> float:
    share = units.parse_share(text)
    if not 0 < share <= 1:
        raise ValueError(f"must be greater than 0 and at most 100 %, got {text}")
    return share


def _duration(text: str) -> int:
    if (duration_ns := units.parse_duration_ns(text)) <= 0:
        raise ValueError(f"must be greater than 0, got {text}")
    return duration_ns


OPTIONS: dict[str, tuple[str, Callable[[str], object]]] = {
    "--port": ("port", _port),
    "--address": ("address", _address),
    "--prometheus": ("file", Path),
    "--otlp": ("otlp", _collector),
    "--ring": ("ring", Path),
    "--from": ("threshold", _share),
    "--for": ("for_ns", _duration),
}
RENAMED = {"--textfile": "--prometheus"}
"""Old names of options, until version 0.3."""


class Resident:
    """The program's loop. say: takes lines for people."""

    def __init__(self, options: Options, reader: Reader, say: Callable[[str], None]) -> None:
        self._options, self._reader, self._say = options, reader, say
        self._clock = Monotonic()
        self._unwritten: dict[str, Lack] = {}
        others = (options.port, options.file, options.otlp, options.ring)
        self._has_more = any(each is not None for each in others)
        keep = None if options.ring is None else self._keep(options.ring)
        self._watching = Watching(lambda _stall, _at, text: self._tell(text), time.time_ns, options.threshold, keep)
        self._server = None if options.port is None else Server(options.address, options.port, self._answer)
        if self._server is not None:
            self._tell(f"metrics: http://{options.address}:{self._server.port}/metrics")
        self._read_ns = self._written_ns = 0
        self._began_ns = time.time_ns()
        self._is_slow = self._is_over = False
        self._said: set[str] = set()
        self._lacks: list[Lack] = []
        self._text = (0, "")
        if options.file is not None:
            _tried(options.file, "--prometheus", functools.partial(self._write, options.file))

    def run(self) -> None:
        """Watches until its time is over, or until a signal. The start is not part of the budget."""
        begin_ns = due_ns = self._clock.now_ns()
        self._read(begin_ns, RESOURCES)
        # What exists now stays, and nothing here makes cycles: to look for some costs as much as a reading.
        gc.freeze()
        gc.set_threshold(100_000)
        self._budget = Budget(self._clock.now_ns(), _spent_ns())
        end_ns = None if self._options.for_ns is None else begin_ns + self._options.for_ns
        try:
            while not self._is_over and (end_ns is None or due_ns < end_ns):
                now_ns = self._clock.now_ns()
                self._budget.account(now_ns, _spent_ns())
                due_ns = max(due_ns + GATE_NS, now_ns)
                self._wait(due_ns if end_ns is None else min(due_ns, end_ns))
                self._turn(self._clock.now_ns())
        finally:
            self._end()

    def stop(self) -> None:
        """Ends `run` after its present turn."""
        self._is_over = True

    def _wait(self, until_ns: int) -> None:
        if self._server is None:
            self._clock.sleep_until(until_ns)
        else:
            self._server.wait(until_ns, self._clock.now_ns)

    def _turn(self, now_ns: int) -> None:
        """Reads all groups, if somebody waits or it is time, and the budget allows it."""
        asked = self._reader.asked(now_ns)
        since_ns = now_ns - self._read_ns
        if not self._budget.is_due(since_ns, is_asked=bool(asked)):
            return
        spent_ns = _spent_ns()
        self._read(now_ns, asked)
        self._budget.has_read(_spent_ns() - spent_ns)
        self._judge_period(since_ns)
        if now_ns - self._written_ns >= FILE_NS:
            self._written_ns = now_ns
            self._hand_out()

    def _hand_out(self) -> None:
        """The metrics to where they are kept."""
        options = self._options
        if options.file is not None:
            self._attempt("file", options.file, functools.partial(self._write, options.file))
        if options.otlp is not None:
            self._attempt("collector", options.otlp, functools.partial(self._send, options.otlp))

    def _read(self, now_ns: int, asked: Iterable[str]) -> None:
        if self._reader.look(now_ns):
            self._watching.differences.cells = self._reader.cells
            self._lacks = list(self._reader.lacks())
            for lack in self._lacks:
                if lack.text not in self._said:
                    self._tell(f"missing: {lack.text}")
            # A text that is not true any more is said again when it is.
            self._said = {lack.text for lack in self._lacks}
        self._watching.take(self._reader.read(now_ns, asked), self._reader.names)
        self._read_ns = now_ns

    def _judge_period(self, since_ns: int) -> None:
        """Says once that it reads less often than it promises, and once that it does not any more."""
        is_slow = since_ns > SLOW_NS
        if is_slow and not self._is_slow:
            self._say(
                f"all groups are read every {units.format_duration(since_ns)}, because a reading of "
                f"{units.counted(len(self._reader.names), 'group')} takes more CPU time than the budget allows more "
                "often; stalls are found later than promised"
            )
        if self._is_slow and not is_slow:
            self._say("all groups are read as often as promised again")
        self._is_slow = is_slow

    def lacks(self) -> list[Lack]:
        """What this host does not show, and what cannot be written now. It is ready all the same."""
        return [*self._lacks, *self._unwritten.values()]

    def unready(self) -> list[str]:
        """Why it does not read as often as it promises."""
        late = (
            [] if not self._is_slow else ["all groups are read less often than every 5 s: the budget does not allow it"]
        )
        if self._clock.now_ns() - self._read_ns > 2 * SLOW_NS:
            late = [f"the last reading was {units.format_duration(self._clock.now_ns() - self._read_ns)} ago"]
        if not self._watching.period_ns:
            late = ["nothing was read twice yet"]
        return late

    def _answer(self, path: str) -> Answer:
        if path == "/metrics":
            return 200, OPEN_METRICS, self._served()
        if path == "/ready":
            reasons = self.unready()
            missing = (f"missing: {lack.text}" for lack in self.lacks())
            return 503 if reasons else 200, PLAIN, "\n".join([*(reasons or ["ready"]), *missing, ""])
        return 404, PLAIN, "there are /metrics and /ready\n"

    def _served(self) -> str:
        """The metrics as of at most a second ago: who asks all the time must not use up the budget."""
        made_ns, text = self._text
        if not text or self._clock.now_ns() - made_ns >= GATE_NS:
            made_ns, text = self._text = self._clock.now_ns(), self.text(is_open=True)
        return text

    def _families(self) -> Iterator[Family]:
        """The metrics but for the pairs."""
        watching = self._watching
        own = {
            "ready": int(not self.unready()),
            "groups": len(self._reader.names),
            "period_seconds": watching.period_ns / 1e9,
            "cpu_seconds_total": _spent_ns() / 1e9,
            "resident_bytes": _resident_bytes(),
        }
        lacks = {lack.what for lack in self.lacks()}
        return watching.totals.families(watching.host, watching.detector.now, own, lacks)

    def text(self, *, is_open: bool) -> str:
        """The metrics."""
        lines = self._watching.totals.lines(self._families(), is_open=is_open)
        return "\n".join([*lines, *(["# EOF"] if is_open else []), ""])

    def _send(self, collector: Collector) -> None:
        """Sends the metrics to a collector of OpenTelemetry. Without the option, nothing of it is loaded."""
        from partywall.watch.stalls import otlp  # noqa: PLC0415

        about = {"service.name": PROGRAM, "service.version": __version__, "host.name": socket.gethostname()}
        pairs = self._watching.totals.pairs()
        content = otlp.document(self._families(), pairs, about, self._began_ns, time.time_ns())
        collector.send(content)

    def _write(self, file: Path) -> None:
        write_whole(file, self.text(is_open=False), 0o644)

    def _keep(self, folder: Path) -> Callable[[int, dict[str, Any]], None]:
        """Makes the ring. Returns what adds a line to it."""
        ring = Ring(folder)
        _tried(folder, "--ring", ring.make)
        return lambda at_ns, line: self._attempt("ring", folder, lambda: ring.add(at_ns, line))

    def _tell(self, text: str) -> None:
        """Says a line. If nobody can read lines any more, the rest goes on, if there is any."""
        try:
            self._say(text)
        except OSError as error:
            if not self._has_more:
                raise
            self._unwritten["lines"] = Lack("lines", f"lines cannot be written: {error.strerror}")
        else:
            self._unwritten.pop("lines", None)

    def _attempt(self, what: str, place: Path | Collector, write: Callable[[], None]) -> None:
        """Writes to a disk that may be full for a while. That ends nothing, and it is tried again the next time."""
        try:
            write()
        except OSError as error:
            text = f"the {what} {place} cannot be {TRIED[what]}: {error.strerror or error}; it is tried again"
            if what not in self._unwritten:
                self._tell(f"missing: {text}")
            self._unwritten[what] = Lack(what, text)
        else:
            if self._unwritten.pop(what, None):
                self._tell(f"the {what} can be {TRIED[what]} again")

    def _end(self) -> None:
        if self._options.ring is not None:
            self._watching.keep(self._clock.now_ns())
        self._hand_out()
        if self._server is not None:
            self._server.close()
        self._reader.close()


def _tried(place: Path, option: str, write: Callable[[], None]) -> None:
    """Writes to a place for the first time. UsageError if it is a wrong one; a disk may be full for a while."""
    try:
        write()
    except OSError as error:
        if error.errno not in streams.CANNOT_WRITE:
            raise UsageError(
                Problem(f"{place} cannot be written to: {error.strerror}", "give another place", key=option)
            ) from None


def _spent_ns() -> int:
    return time.process_time_ns()


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * PAGE
    except (OSError, ValueError):
        return 0


class _Ended(Exception):  # noqa: N818 - it is no error
    """A signal ends the watch."""


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _Ended


def main(words: Sequence[str] | None = None, root: Path = Path("/")) -> int:
    """Runs the program. Returns its exit code."""
    streams.open_streams()
    try:
        return streams.flushed(PROGRAM, _ran(sys.argv[1:] if words is None else words, root))
    except OSError as error:
        if isinstance(error, BrokenPipeError) or error.errno in streams.CANNOT_WRITE:
            return streams.unwritten(PROGRAM, error)
        raise


def _ran(words: Sequence[str], root: Path) -> int:
    if {"--help", "-h"} & set(words):
        _say((__doc__ or "").strip())
        return Exit.HOLDS
    if "--version" in words:
        _say(f"{PROGRAM} {__version__}")
        return Exit.HOLDS
    for old, new in RENAMED.items():
        if old in {word.partition("=")[0] for word in words}:
            print(f"{PROGRAM}: {old} is now {new}; the old name works until version 0.3", file=sys.stderr)  # noqa: T201
    try:
        options = parsed(words)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)
        watch = Resident(options, Reader(root), _say)
        try:
            watch.run()
        finally:
            if "lines" in {lack.what for lack in watch.lacks()}:
                # It has gone on without readers of its lines, so they are no reason to end with an error.
                streams.stop_output()
    except _Ended:
        return INTERRUPTED if options.for_ns is not None else Exit.HOLDS
    except PartywallError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)  # noqa: T201
        return error.exit
    return Exit.HOLDS


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
