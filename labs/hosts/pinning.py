"""CPUs kept for the host, on a host with four: the cells of figures 5 and 6, tables V and VI of the load study.

The study leaves out a share that is less than one CPU, so it needs at least four. These are the emulator's, and share
the CPUs of the machine that emulates: the figures show that the study works there, not what such a host would gain.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ruamel.yaml import YAML

from labs.hosts.bench import MEASURED, Bench, expect
from partywall import study as studies
from partywall.study.paper import Beside, Measured
from partywall.study.record import StudyDirectory

STUDY = "papers/load-generation-netto"
FIGURES = {
    "fig 5": "response time",
    "fig 6": "throughput",
    "table V": "disk write",
    "table VI": "disk queue",
}
USERS, SHARES = (50, 150), (0, 25, 50)
# Long enough for the users of an emulated host to end some iterations in each cell.
HOLD = "15s"
ROUNDS = 4


def tried(bench: Bench) -> str:
    """Each figure with its interval, by users and share of the CPUs; its record is kept. FailedError if one is missing.

    `python -m labs.papers --record runs/hosts/pinning --lab hosts` shows it beside the paper.
    """
    _bring_study(bench)
    bench.shell("rm -rf pinning")
    bench.partywall("study /opt/try/pinning.yaml --out pinning", *MEASURED, timeout_s=3600)
    with bench.taken("pinning") as folder:
        report = studies.report(StudyDirectory.open(folder))
        shutil.rmtree(bench.out / "pinning", ignore_errors=True)
        shutil.copytree(folder, bench.out / "pinning")
    by_id = {beside.table.id: beside for beside in report.comparisons}
    return "; ".join(_said(by_id[id_], name) for id_, name in FIGURES.items())


def study(to: Path) -> None:
    """Writes the shipped study, with the cells of these figures alone."""
    yaml = YAML()  # It keeps the order of keys, whose first says of which kind a study is.
    content = yaml.load(studies.find(STUDY).read_bytes())
    content["cells"] = [{"generator": "sandbox", "users": users, "kept": kept} for users in USERS for kept in SHARES]
    content["forms"] = {"short": {**content["forms"]["short"], "hold": HOLD, "rounds": ROUNDS}}
    yaml.dump(content, to)


def _bring_study(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pinning.yaml"
        study(file)
        bench.machine.bring([file], "/opt/try")


def _said(beside: Beside, name: str) -> str:
    """A figure's points, one series after another."""
    series = dict.fromkeys(point.series for point in beside.measured)
    for users in USERS:
        shares = {point.x for point in beside.measured if point.series == f"{users} users"}
        expect(shares == set(SHARES), f"{beside.table.id}, {users} users: there are figures for {sorted(shares)} %")
    return f"{name} ({beside.table.y.unit}) " + ", ".join(" ".join(_points(beside, each)) for each in series)


def _points(beside: Beside, series: str) -> Iterator[str]:
    yield f"{series}:"
    points = sorted((point for point in beside.measured if point.series == series), key=lambda point: point.x)
    yield ", ".join(f"{_figure(point)} with {point.x:g} %" for point in points)


def _figure(point: Measured) -> str:
    return f"{_rounded(point.value, 3)} ± {_rounded((point.high - point.low) / 2, 2)}"


def _rounded(value: float, digits: int) -> str:
    """Without an exponent."""
    return f"{float(f'{value:.{digits}g}'):g}"
