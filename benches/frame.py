"""The frame of every benchmark: options, parts, planted faults, the last line and its record.

A benchmark is a file with a function that measures and returns an `Outcome`. The decorator `bench` states the faults
that it plants and how it may be called. claims.yaml has its claim and bar. A benchmark that SIGTERM or SIGHUP ends
cleans up as after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

import results
from common import speed_spread, spoilt_python, stolen_s
from partywall.host import Host
from partywall.sandbox import qemu, reap

PEERS = Path(__file__).parent / ".peers"
"""Programs to compare with that Debian does not package; `make bench-setup` gets them."""
PROGRAMS = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
"""Where programs that benchmarks need are looked for: those for root may be outside of $PATH."""
WHERE_AND_WHEN = ("--folder", "--minutes", "--keep")
"""Options with a value that say where results stay, or how much is measured at a time."""
UNFINISHED = 3
"""Exit code of a benchmark that has parts left."""
ENDS = (signal.SIGTERM, signal.SIGHUP)
# Time, load and stolen time at the start, for the record of results.
_BEGAN_S, _LOAD, _STOLEN_S = time.monotonic(), os.getloadavg()[0], stolen_s()
_earlier: dict[str, tuple[float, str]] = {}
"""Seconds and commit of each part that an earlier call measured."""
Part = TypeVar("Part")


@dataclass(frozen=True)
class Outcome:
    """What was found, and whether it meets the bar. parts: further figures with bars of their own."""

    figure: str
    met: bool
    parts: Mapping[str, tuple[str, bool]] = field(default_factory=dict)


@dataclass(frozen=True)
class Plant:
    """A fault in what is measured, which the benchmark must find.

    python: code that every Python program which is started meanwhile runs first. around: entered before anything is
    measured.
    """

    what: str
    python: str = ""
    around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext


class Options(argparse.Namespace):
    """What the benchmark was called with. plant: the name of the fault to plant; empty for none."""

    quick: bool
    record: bool
    plant: str = ""
    only: list[str] | None = None
    folder: Path | None = None
    minutes: float = 0.0


class NotMeasured(Exception):  # noqa: N818 - it is no error of the benchmark
    """The benchmark cannot run here: the reason and the remedy."""


class Terminated(SystemExit, KeyboardInterrupt):
    """A signal ends the benchmark. Whatever cleans up after Ctrl-C does so. The exit code is the shell's, 128 + signal.

    Clean-up may take some seconds. Until its end, further signals of this kind do nothing.
    """


@dataclass(frozen=True)
class Bench:
    """How a benchmark is called.

    plants: faults by name, each a phrase or a `Plant`; `--plant` without a name takes the first. parts: names for
    --only. folder: whether it takes --folder and --minutes, for `in_parts`. unjudged: bars that the short form does not
    judge; its last line names them. needs: programs without which nothing is measured. lacking: returns what else is
    missing, or nothing. more: further options, with what argparse takes for each.
    """

    measure: Callable[[Options], Outcome]
    plants: Mapping[str, str | Plant]
    parts: Sequence[str] = ()
    folder: bool = False
    unjudged: str = ""
    needs: Sequence[str] = ()
    lacking: Callable[[], str] = str
    more: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return Path(self.measure.__code__.co_filename).stem

    def __call__(self) -> NoReturn:
        """Measures, prints the figure on the last line, and exits with 0 if the bar is met, else with 1."""
        options = self.parser().parse_args(namespace=Options())
        # From here on, signals end the benchmark as Ctrl-C does.
        for number in ENDS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, _terminate)
        try:
            if missing := [name for name in self.needs if shutil.which(name, path=PROGRAMS) is None]:
                raise NotMeasured(f"it needs {', '.join(missing)}; run make bench-setup")  # noqa: TRY301
            if why := self.lacking():
                raise NotMeasured(why)  # noqa: TRY301
            reap()
            with self.planted(options.plant):
                outcome = self.measure(options)
        except NotMeasured as why:
            # Nothing is recorded.
            print(f"{self.name}: not measured: {why} [BAR NOT MET]", flush=True)
            sys.exit(1)
        figure = outcome.figure + (f"; not judged: {self.unjudged}" if options.quick and self.unjudged else "")
        if options.record:
            _record(self.name, options.plant, {"": (figure, outcome.met)} | dict(outcome.parts))
        print(f"{self.name}: {figure} [{'bar met' if outcome.met else 'BAR NOT MET'}]", flush=True)
        sys.exit(0 if outcome.met else 1)

    def parser(self) -> argparse.ArgumentParser:
        """The docstring is the description; claims and bars are those of claims.yaml."""
        text, form = self.measure.__globals__["__doc__"] or "", argparse.RawDescriptionHelpFormatter
        own = [claim for rows in results.claims().values() for claim in rows if claim.bench == self.name]
        bars = "\n".join(f"Claim: {claim.claim}. Bar: {claim.bar}." for claim in own)
        parser = argparse.ArgumentParser(description=text, epilog=bars, formatter_class=form)
        left_out = f"; does not judge {self.unjudged}" if self.unjudged else ""
        parser.add_argument("--quick", action="store_true", help=f"about a minute; wider intervals{left_out}")
        parser.add_argument("--record", action="store_true", help="add the result to benches/results.jsonl")
        if self.parts:
            parser.add_argument("--only", action="append", choices=self.parts, help="this part; may be given again")
        if self.folder:
            keep = "keep finished parts here; give it again to measure those that are left"
            parser.add_argument("--folder", type=Path, help=keep)
            minutes = "begin no part that would end later (default: 9)"
            parser.add_argument("--minutes", type=float, default=9.0, help=minutes)
        phrases = (f"{name}: {getattr(plant, 'what', plant)}" for name, plant in self.plants.items())
        listed = f"a fault to be found: {'; '.join(phrases)}".replace("%", "%%")
        first = next(iter(self.plants))
        parser.add_argument("--plant", nargs="?", choices=self.plants, const=first, default="", help=listed)
        for option, how in self.more.items():
            parser.add_argument(option, **how)
        return parser

    @contextlib.contextmanager
    def planted(self, name: str) -> Iterator[None]:
        plant = self.plants[name] if name else ""
        if isinstance(plant, str):
            yield
            return
        with spoilt_python(plant.python) if plant.python else contextlib.nullcontext(), plant.around():
            yield


def bench(**how: Any) -> Callable[[Callable[[Options], Outcome]], Bench]:
    """Makes a `Bench` of the function that measures."""
    return functools.partial(Bench, **how)


def _terminate(number: int, _frame: FrameType | None) -> None:
    # `timeout` sends it twice. Programs that clean up would inherit SIG_IGN, but inherit no function.
    for each in ENDS:
        signal.signal(each, lambda *_: None)
    raise Terminated(128 + number)


def in_parts(parts: Mapping[str, Callable[[], Part]], options: Options) -> dict[str, Part]:
    """The results of all parts, which are plain values. Ends the program with UNFINISHED if some are left.

    A part is expected to take as long as the longest so far. At least one is measured each time. What a folder keeps of
    a part is its result, the seconds that it took, and its commit, so that a record can state all of them.
    """
    folder = options.folder
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{name}.json" for name in parts} if folder else {}
    kept = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    done = {name: part["result"] for name, part in kept.items()}
    _earlier.update((name, (part["seconds"], part["commit"])) for name, part in kept.items())
    begun, longest_s = time.monotonic(), 0.0
    for name, measure in parts.items():
        if name in done:
            continue
        spent_s = time.monotonic() - begun
        if folder and longest_s and spent_s + longest_s > options.minutes * 60:
            left = len(parts) - len(done)
            print(f"{len(done)} of {len(parts)} parts are done, {left} left; run it again with --folder {folder}")
            sys.exit(UNFINISHED)
        done[name] = measure()
        took_s = time.monotonic() - begun - spent_s
        longest_s = max(longest_s, took_s)
        if folder:
            unfinished = files[name].with_suffix(".new")
            part = {"result": done[name], "seconds": round(took_s, 1), "commit": results.commit()}
            unfinished.write_text(json.dumps(part))
            unfinished.rename(files[name])
        print(f"part {name} took {took_s:.0f} s", flush=True)
    return {name: done[name] for name in parts}


def _record(bench: str, plant: str, parts: Mapping[str, tuple[str, bool]]) -> None:
    seconds = time.monotonic() - _BEGAN_S
    guests = any(claim.guests for rows in results.claims().values() for claim in rows if claim.bench == bench)
    machine = results.machine(kvm=qemu.choose("auto", Host.here()).name == "kvm" if guests else None)
    result = results.Result(
        bench=bench,
        arguments=tuple(_of_measurement(sys.argv[1:])),
        plant=plant,
        figure="",
        met=None,
        date=results.now(),
        seconds=round(seconds + sum(took for took, _ in _earlier.values()), 1),
        commit=", ".join(dict.fromkeys([*(commit for _, commit in _earlier.values()), results.commit()])),
        machine=machine,
        load=round(_LOAD, 2),
        stolen=round((stolen_s() - _STOLEN_S) / seconds / machine.cpus, 4),
        spread=speed_spread(),
    )
    results.append(
        [result.model_copy(update={"part": part, "figure": each, "met": met}) for part, (each, met) in parts.items()]
    )
    print("recorded in benches/results.jsonl; `make generate` writes docs/benchmarks.md")


def _of_measurement(words: Sequence[str]) -> Iterator[str]:
    """The arguments that change what is measured. Of a folder its name: where it is says nothing to others."""
    rest = iter(words)
    for word in rest:
        if word in WHERE_AND_WHEN:
            next(rest, None)
        elif word != "--record" and word.partition("=")[0] not in WHERE_AND_WHEN:
            yield Path(word).name if word.startswith("/") else word
