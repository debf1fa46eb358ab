"""What benchmarks found: `results.jsonl`, and the parts of documents that are generated from it.

`claims.yaml` has the claim and the bar of each benchmark. A benchmark that is called with --record appends what it
found to `results.jsonl`, one JSON object a line; `make generate` writes the tables of docs/benchmarks.md and of
docs/internals/short-forms.md. Nothing here measures.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benches" / "results.jsonl"
CLAIMS = ROOT / "benches" / "claims.yaml"
PAGE = ROOT / "docs" / "benchmarks.md"
SHORT_FORMS = ROOT / "docs" / "internals" / "short-forms.md"
NONE = "–"
STEADY = {"CPU": 0.05, "memory": 0.15}
"""By resource: the largest spread of its speed on a host that is called steady."""


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Claim(Frozen):
    """One row of docs/benchmarks.md. part: of a benchmark with several. guests: whether it starts virtual machines."""

    bench: str
    part: str = ""
    claim: str
    bar: str
    guests: bool = False


class Machine(Frozen):
    """kvm: whether guests had it; None if the benchmark starts none."""

    cpu: str
    cpus: int
    kernel: str
    hypervisor: str = ""
    kvm: bool | None = None

    @property
    def emulates(self) -> bool:
        return self.kvm is False


class Result(Frozen):
    """What one call of a benchmark, or of one part of it, found.

    arguments: as it was called, without --record. plant: the fault that was planted, if any. met: None if the result
    does not say. date: with the time of day, or without in results that were recorded by hand; so are those without
    seconds and load. load: the load average of a minute at the start, of this program's own work free. stolen: share of
    the machine's CPU time that its hypervisor kept meanwhile. spread: by resource, how much its speed changed within a
    second at the end, from the first to the last decile, as a share of the median.
    """

    bench: str
    part: str = ""
    arguments: tuple[str, ...] = ()
    plant: str = ""
    figure: str
    met: bool | None
    note: str = ""
    date: str
    seconds: float | None = None
    commit: str = ""
    machine: Machine
    load: float | None = None
    stolen: float | None = None
    spread: dict[str, float] = {}

    @property
    def form(self) -> Literal["long", "short", "other"]:
        if self.plant:
            return "other"
        return {(): "long", ("--quick",): "short"}.get(self.arguments, "other")  # type: ignore[return-value]

    @property
    def is_busy(self) -> bool:
        """Whether other programs wanted more CPUs than there are when it began."""
        return self.load is not None and self.load > self.machine.cpus

    @property
    def host(self) -> str:
        """What about the host one has to know to judge the result; a changing speed only if the bar was not met."""
        unsteady = [name for name, most in STEADY.items() if self.spread.get(name, 0.0) > most and not self.met]
        changing = f"speed of its {' and '.join(unsteady)} changes" if unsteady else ""
        return ", ".join(filter(None, ["loaded host" if self.is_busy else "", changing]))

    @property
    def verdict(self) -> str:
        """For a table: whether the bar was met, and under which reservations."""
        met = {True: "yes", False: "**no**", None: "not known"}[self.met]
        reservations = [self.note, "short form" if self.form == "short" else "", self.host]
        return ", ".join([met, *filter(None, reservations)])


def append(added: Sequence[Result], file: Path = RESULTS) -> None:
    """Adds results, each whole and on a line of its own, however many programs do so at once."""
    lines = "".join(result.model_dump_json(exclude_defaults=True) + "\n" for result in added)
    with file.open("a", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.write(lines)


def recorded(file: Path = RESULTS) -> list[Result]:
    """All results, oldest first: lines of several branches may have been merged in any order."""
    with file.open(encoding="utf-8") as stream:
        return sorted(map(Result.model_validate_json, stream), key=lambda result: result.date)


def claims() -> dict[str, list[Claim]]:
    """By section, in the order of the page."""
    content = YAML(typ="safe").load(CLAIMS)
    return {section: [Claim.model_validate(row) for row in rows] for section, rows in content.items()}


def of(results: Iterable[Result], claim: Claim) -> Result | None:
    """What stands in a claim's row: the newest result of the long form, else of the short form."""
    own = [result for result in results if (result.bench, result.part) == (claim.bench, claim.part)]
    for form in ("long", "short"):
        if of_form := [result for result in own if result.form == form]:
            return of_form[-1]
    return None


# The machine and the moment


def machine(*, kvm: bool | None, root: Path = Path("/")) -> Machine:
    text = (root / "proc/cpuinfo").read_text()
    model = re.search(r"^(?:model name|Model)\s*: (.*)$", text, re.MULTILINE)
    return Machine(
        cpu=model[1] if model else platform.machine(),
        cpus=os.cpu_count() or 1,
        kernel=platform.release(),
        hypervisor=_hypervisor(),
        kvm=kvm,
    )


def _hypervisor() -> str:
    """As systemd-detect-virt calls it, `kvm` or `qemu` (which emulates) for example; empty on metal and if unknown."""
    try:
        said = subprocess.run(["systemd-detect-virt", "--vm"], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        said = subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout
        match = re.search(r"^Hypervisor vendor:\s*(\S+)", said, re.MULTILINE)
        return match[1].lower() if match else ""
    return said.strip().removeprefix("none")


def commit() -> str:
    """Of the sources, with `-dirty` if they differ from it, results apart; empty without a repository."""
    if not (known := _git("rev-parse", "--short", "HEAD")):
        return ""
    # Git excludes nothing by an absolute path.
    sources = ("agent", "benches", "src", f":!{RESULTS.relative_to(ROOT)}")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *sources)
    return f"{known}-dirty" if changed else known


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


# Generated parts of documents


def pages() -> Iterator[tuple[Path, str]]:
    """Each document with generated parts, as it has to be."""
    results, listed = recorded(), claims()
    tables = {section: table(rows, results) for section, rows in listed.items()} | {"machines": machines(results)}
    yield PAGE, written(PAGE.read_text("utf-8"), tables)
    names = list(dict.fromkeys(claim.bench for rows in listed.values() for claim in rows))
    yield SHORT_FORMS, written(SHORT_FORMS.read_text("utf-8"), {"short forms": short_forms(names, results)})


def written(text: str, parts: Mapping[str, str]) -> str:
    """A document with its generated parts replaced, each between the marks that name it; the rest is kept."""
    for name, fresh in parts.items():
        before, rest = text.split(f"<!-- {name}: written by ")
        program, rest = rest.split(" -->\n", 1)
        end = f"<!-- end of {name} -->"
        text = f"{before}<!-- {name}: written by {program} -->\n{fresh}\n{end}{rest.split(end)[1]}"
    return text


def table(rows: Sequence[Claim], results: Sequence[Result]) -> str:
    """A row a claim."""
    letters = lettered(results)
    lines = ["| benchmark | claim | bar | figure | date | on | met |", "|---|---|---|---|---|---|---|"]
    for claim in rows:
        name = f"`{claim.bench}.py`" + (f", {claim.part}" if claim.part else "")
        result = of(results, claim)
        shown = (NONE, NONE, NONE, "not recorded")
        if result:
            on = letters[_sort(result.machine)] + (" (E)" if result.machine.emulates else "")
            shown = (cut(result.figure), result.date[:10], on, result.verdict)
        lines.append(f"| {' | '.join([name, claim.claim, claim.bar, *shown])} |")
    return "\n".join(lines)


def cut(figure: str, most: int = 140) -> str:
    """A figure of at most so many characters, without its last parts; `|` would end a cell."""
    figure = figure.replace("|", "/")
    if len(figure) <= most:
        return figure
    kept = figure[: most - 2]
    parts = [kept.rfind(mark) for mark in ("; ", ", ", " ")]
    return kept[: next(at for at in parts if at > most // 3)] + " …"


def machines(results: Sequence[Result]) -> str:
    lines = ["| host | processor | CPUs | kernel | hypervisor |", "|---|---|---|---|---|"]
    for (cpu, cpus, kernel, hypervisor), letter in lettered(results).items():
        lines.append(f"| {letter} | {cpu} | {cpus} | Linux {kernel} | {hypervisor or 'none'} |")
    return "\n".join(lines)


def lettered(results: Iterable[Result]) -> dict[tuple[str, int, str, str], str]:
    """A letter for each sort of machine, in the order of their first results."""
    sorts = dict.fromkeys(_sort(result.machine) for result in results)
    return {sort: chr(ord("A") + number) for number, sort in enumerate(sorts)}


def _sort(of: Machine) -> tuple[str, int, str, str]:
    return of.cpu, of.cpus, ".".join(re.split(r"[.-]", of.kernel)[:2]), of.hypervisor


def short_forms(names: Iterable[str], results: Sequence[Result]) -> str:
    """A row a benchmark: its short form as it is, and with a fault planted."""
    lines = ["| benchmark | seconds | load | passes | planted fault | fails with it |", "|---|---|---|---|---|---|"]
    whole = [result for result in results if not result.part]
    for name in names:
        own = [result for result in whole if result.bench == name and "--quick" in result.arguments]
        good = [result for result in own if result.form == "short"]
        planted = {result.plant: result for result in own if result.plant}
        shown = (NONE, NONE, NONE)
        if good and good[-1].seconds is not None:
            load = NONE if good[-1].load is None else f"{good[-1].load:.1f}"
            passes = _yes(good[-1].met) + (f", {good[-1].host}" if good[-1].host and not good[-1].met else "")
            shown = (f"{good[-1].seconds:.0f}", load, passes)
        faults = ", ".join(planted) or NONE
        fails = ", ".join(_yes(result.met is False) for result in planted.values()) or NONE
        lines.append(f"| {' | '.join([f'`{name}.py`', *shown, faults, fails])} |")
    return "\n".join(lines)


def _yes(holds: bool | None) -> str:
    return {True: "yes", False: "**no**", None: "not known"}[holds]
