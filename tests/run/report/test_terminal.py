import io

import pytest
from rich.console import Console

from partywall.agent.catalogue import Warn
from partywall.core.report import figures
from partywall.run.report import terminal
from partywall.run.report.advice import ADVICE
from partywall.run.report.matrix import Severity
from partywall.run.values.finding import CpuTime


def shown(run, width: int = 80, **options) -> str:
    out = io.StringIO()
    terminal.show(*run, Console(file=out, width=width, **options))
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 132])
def test_no_line_is_wider_than_the_terminal(run, width):
    assert max(map(len, shown(run, width).splitlines())) <= width


@pytest.mark.parametrize("width", [60, 80, 200])
def test_every_factor_is_shown_whole_with_its_interval_at_any_width(run, width):
    text = shown(run, width)
    for cell in run[0].cells:
        if cell.role != "limit":
            assert figures.ratio(cell.isolation) in text


def test_headline_verdict_band_causes_and_advice_are_there(run):
    text = " ".join(shown(run, 200).split())
    assert run[0].headline in text
    assert "✗ violated" in text
    assert "A/A check" in text
    assert run[0].cells[2].causes[0].text in text
    assert ADVICE[Warn.CARRY_OVER].remedy in text


def test_goals_that_do_not_hold_are_reported_one_by_one_and_the_others_counted(run):
    text = " ".join(shown(run, 200).split())
    assert "✗ violated copy beside memory-copy at 100 %: isolation factor at least 0.9." in text
    assert "✓ holds in 1 of 2 cells that goals speak of" in text


def test_goals_that_hold_on_few_blocks_are_counted_apart(run):
    verdicts = tuple(v.model_copy(update={"blocks": 24, "rough": True}) for v in run[0].verdicts)
    text = " ".join(shown((run[0].model_copy(update={"verdicts": verdicts}), run[1]), 200).split())
    assert "cells that goals speak of, 1 of them from so few blocks (24) that the interval may be too narrow" in text


def test_without_colour_the_marks_still_tell_severity(run, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(run, force_terminal=True, color_system="standard")
    assert "\x1b[3" not in text
    assert Severity.SEVERE.mark in text


def test_colour_is_used_where_the_terminal_has_it(run, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;31m" in shown(run, force_terminal=True, color_system="standard")


def test_emulated_runs_say_so_at_the_top_and_beside_every_cell(emulated_run):
    text = shown(emulated_run, 200)
    assert "EMULATED" in text
    assert all(f"{figures.ratio(cell.isolation)}" in text for cell in emulated_run[0].cells if cell.role != "limit")
    assert "E emulated" in text


def test_a_run_without_any_cell_is_reported_without_a_crash(run):
    findings = run[0].model_copy(
        update={"cells": (), "bands": (), "curves": (), "verdicts": (), "incomplete": ("t1: died",)}
    )
    text = shown((findings, run[1]))
    assert "? inconclusive" in text
    assert "not finished: t1: died" in text
    assert "No null aggressor" in text


def test_text_from_a_user_is_not_read_as_markup(run):
    findings = run[0].model_copy(update={"headline": "[bold]odd[/bold] [/nothing]"})
    assert "[bold]odd[/bold] [/nothing]" in shown((findings, run[1]))


def test_an_a_a_check_that_holds_takes_one_line_and_one_that_failed_names_its_victims(run):
    sound = [cell.model_copy(update={"warnings": ()}) for cell in run[0].cells]
    text = " ".join(shown((run[0].model_copy(update={"cells": tuple(sound)}), run[1]), 200).split())
    assert "A/A check: an idle neighbour changed nothing beyond chance (3 checks, the widest known within ±" in text
    assert "Judged by that band" not in text
    failed = [c.model_copy(update={"warnings": (Warn.NULL_EFFECT,)}) if c.victim == "ring" else c for c in sound]
    text = " ".join(shown((run[0].model_copy(update={"cells": tuple(failed)}), run[1]), 200).split())
    assert "A/A check failed for 1 of 3: ring " in text


def test_a_limit_shows_the_cpu_time_that_it_gave(run):
    share = run[0].cells[0].isolation.model_copy(update={"value": 0.298, "low": 0.296, "high": 0.3})
    given = CpuTime(promised=0.3, got=share)
    cells = [c.model_copy(update={"cpu_time": given}) if c.role == "limit" else c for c in run[0].cells]
    text = " ".join(shown((run[0].model_copy(update={"cells": tuple(cells)}), run[1]), 200).split())
    assert "30 % 29.8 % ± 0.2 99.3 % ± 0.7" in text
