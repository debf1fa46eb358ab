"""What --dry-run predicts from an earlier record, and what the report puts beside it."""

import re

import numpy as np
import pytest
from rich.console import Console

from partywall.agent.catalogue import shipped
from partywall.core.capability import Options
from partywall.core.report import terminal
from partywall.errors import UsageError
from partywall.host import Host
from partywall.migrate import check as plans
from partywall.migrate.capability import Migrations
from partywall.migrate.document import Move, Progress, ServiceSeen, Survey
from partywall.migrate.job import MigrationJob
from partywall.migrate.record import CALIBRATION, MigrationDirectory
from partywall.migrate.report import forecast as told

MIB, MS = 1 << 20, 1_000_000
ABOUT = {"started_at": "2026-11-24T22:00:00+00:00", "memory_bytes": 256 * MIB, "qemu": "7.2.0", "emulated": False}
PLAN = """
partywall_migration: 1
name: told
guest: {memory: %s}
link: {rate: 400Mbit/s}
workloads: {idle: null}
moves: 3
"""


def plan(memory="256MiB"):
    return plans.loads((PLAN % memory).encode(), "plan.yaml", shipped())


def moved(number, downtime_ms, total_ms=2000):
    """A move of 2 s whose guest stands still at 1.8 s."""
    begin = 1000 * MS
    # 60 MiB of content at 40 MiB/s, and then the zero pages.
    course = [(at * 2, 256 - at * 2) for at in range(31)] + [(60, 196 - at * 32) for at in range(1, 7)]
    looks = tuple(
        Progress(at_ns=begin + 100 * MS + at * 50 * MS, sent=sent * MIB + 1, left=left * MIB, passes=1)
        for at, (sent, left) in enumerate(course)
    )
    return Move(
        workload="idle", method="pre-copy" if number < 0 else "default", round=max(0, number), number=number,
        source="a", outcome="completed", begin_ns=begin, end_ns=begin + 2100 * MS, setup_ns=100 * MS,
        downtime_ns=downtime_ms * MS, total_ns=total_ms * MS, paused_ns=begin + 1800 * MS,
        resumed_ns=begin + (1850 + downtime_ms) * MS, stopped_ns=(50 + downtime_ms) * MS, offset_ns=0, progress=looks,
        memory={"transferred": 60 * MIB, "dirty-sync-count": 3, "duplicate": 40_000, "downtime-bytes": MIB},
    )  # fmt: skip


def pings(move):
    due = np.arange(0, 5000, dtype=np.int64) * MS + MS
    answered = due + 2 * MS
    waits = (answered > move.paused_ns) & (answered < move.resumed_ns + 20 * MS)
    answered[waits] = move.resumed_ns + 20 * MS + np.arange(waits.sum())
    return np.column_stack([due, due, answered])


def record(path, requested, *, moves=0):
    made = MigrationDirectory.create(path, MigrationJob(plan=requested), {})
    made.learn(**ABOUT)
    service = ServiceSeen(quantiles_ns=(2 * MS,) * 10, rate=1000.0)
    changed = tuple((0.1 * MIB, 0.2 * MIB) for _ in range(20))
    survey = Survey(
        workload="idle", memory=256 * MIB, content=60 * MIB, windows_ns=(50 * MS, 400 * MS), changed=changed
    )
    made.add_survey(survey.model_copy(update={"service": service}))
    for number, downtime in enumerate((40, 50, 60), 1):
        move = moved(-number, downtime)
        made.append(move, {"pings": pings(move)}, CALIBRATION)
    for number in range(moves):
        move = moved(number, 45 + number, 2015 + 10 * number)
        made.append(move, {"pings": pings(move)})
    made.end()
    return made


def forecast(requested, runs, known=None):
    return Migrations().forecast(MigrationJob(plan=requested), known, runs)


def test_the_newest_record_of_such_a_guest_is_used(tmp_path):
    record(tmp_path / "other", plan("512MiB"))
    made = record(tmp_path / "fits", plan())
    forecasts = forecast(plan(), tmp_path)
    assert forecasts.record == made.path
    spans = forecasts.predictions["idle", "default"].spans
    assert spans["total_s"].value == pytest.approx(2.0, rel=0.03)
    # 100 to 120 ms pass between STOP and the next answer.
    assert 0.1 < spans["clients_s"].value < 0.15
    assert 0.02 < spans["p99_s"].value < spans["clients_s"].high
    console = Console(width=200, record=True)
    terminal.show(told(forecasts, ""), console)
    text = console.export_text()
    for name in ("idle, default", "p99 response", "geometric model", "piecewise model"):
        assert name in text


def test_nothing_is_predicted_without_a_record_that_fits(tmp_path):
    made = record(tmp_path / "other", plan("512MiB"))
    assert forecast(plan(), tmp_path) is None
    assert forecast(plan(), tmp_path / "nothing") is None
    with pytest.raises(UsageError, match="its guest is not that of the plan"):
        forecast(plan(), tmp_path, made.path)


def test_the_report_shows_what_came_beside_what_was_predicted(tmp_path):
    kind, made = Migrations(), record(tmp_path / "record", plan(), moves=3)
    result = kind.findings(made)
    (cell,) = result.findings.cells
    measured = cell.measured["total_s"]
    assert measured.n == measured.inside == 3
    assert measured.low <= measured.value <= measured.high
    assert cell.measured["p99_s"].value > 0
    console = Console(width=200, record=True)
    kind.files().show(result, console)
    assert "3 of 3" in console.export_text()
    page = kind.files().documents["html"][1](result)
    assert "Predicted and measured" in page
    (curve,) = result.findings.curves
    assert dict(zip(curve.windows_s, curve.changed, strict=True)) == pytest.approx({0.05: 0.1 * MIB, 0.4: 0.2 * MIB})
    assert "<td>60 MiB</td><td>102.4 KiB</td><td>204.8 KiB</td><td>all pages were counted</td>" in page
    # Each column has a heading.
    heads, rows = (
        re.findall(r"<tr>(.*?)</tr>", page[page.index('id="predictions"') :], re.DOTALL)[at] for at in (0, 1)
    )
    assert heads.count("<th") == rows.count("<th") + rows.count("<td")
    assert "3 of 3" in page
    assert kind.outline(MigrationJob(plan=plan()), Options(Host.here())).lines
