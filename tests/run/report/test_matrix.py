import pytest

from partywall.core.stats.estimate import Estimate
from partywall.run.report.matrix import Severity, cell_title, describe, matrix, severity
from partywall.run.values.finding import Effect
from tests.run.report import synthetic


def cell_with(run, factor: float, **changes):
    isolation = Estimate(value=factor, low=factor - 0.001, high=factor + 0.001, n=40, method="test")
    cell = next(cell for cell in run[0].cells if cell.role == "aggressor")
    return cell.model_copy(update={"isolation": isolation, "effect": Effect.SEEN, **changes})


@pytest.mark.parametrize(
    ("factor", "level"),
    [(1.1, Severity.GAIN), (0.99, Severity.SLIGHT), (0.9, Severity.CLEAR), (0.5, Severity.SEVERE)],
)
def test_severity_follows_the_throughput_lost(run, factor, level):
    assert severity(cell_with(run, factor)) is level


def test_what_is_no_effect_or_not_known_has_a_mark_of_its_own_however_large_its_figure(run):
    assert severity(cell_with(run, 0.5, effect=Effect.NONE)) is Severity.NONE
    assert severity(cell_with(run, 0.5, effect=Effect.NOT_KNOWN)) is Severity.NOT_KNOWN


def test_no_effect_and_not_known_name_the_bound(run):
    assert describe(cell_with(run, 1.0, effect=Effect.NONE, effect_bound=0.05)) == "no effect above ±5 %"
    unknown = cell_with(run, 1.0, effect=Effect.NOT_KNOWN, effect_bound=0.05)
    assert describe(unknown.model_copy(update={"why": "only 7 blocks"})) == "not known: only 7 blocks"


def test_a_limit_that_takes_half_is_not_called_harm(run):
    assert severity(cell_with(run, 0.5, role="limit")) is Severity.NONE


def test_marks_and_words_tell_severities_apart_without_colour():
    assert len({level.mark for level in Severity}) == len({level.words for level in Severity}) == len(Severity)


def test_the_matrix_holds_every_cell_once_with_the_null_aggressor_first(run):
    grid = matrix(run[0])
    assert [row.victim for row in grid.rows] == ["copy", "ring", "files"]
    assert grid.columns[0].group == "null (A/A)"
    assert len(grid.columns) == 1 + len(synthetic.AGGRESSORS) * len(synthetic.INTENSITIES)
    assert all(grid.at(row, column) for row in grid.rows for column in grid.columns)


def test_intensities_of_one_aggressor_stand_side_by_side_in_rising_order(run):
    titles = [column.title for column in matrix(run[0]).columns]
    assert titles[1:3] == ["memory-copy at 50 %", "memory-copy at 100 %"]


def test_limits_are_apart_from_aggressors(run):
    assert {cell.role for cell in matrix(run[0], limits=True).cells.values()} == {"limit"}
    assert "limit" not in {cell.role for cell in matrix(run[0]).cells.values()}


def test_an_emulated_cell_says_so_in_its_title(emulated_run):
    assert all("(emulated)" in cell_title(cell) for cell in emulated_run[0].cells)


def test_levels_are_part_of_a_victims_title(run):
    cell = run[0].cells[0].model_copy(update={"levels": {"victim.sandbox.cpu_limit": 0.5}})
    assert cell_title(cell).startswith("copy (cpu_limit 0.5) beside")


def test_an_aggressor_with_intensity_1_alone_is_called_by_its_name(run):
    cell = cell_with(run, 0.5, label="memory-copy", intensity=1.0)
    assert cell_title(cell) == "copy beside memory-copy"


def test_an_aggressor_beside_a_limited_victim_has_a_column_of_its_own(run):
    plain = cell_with(run, 0.5, label="memory-copy", intensity=1.0)
    limited = plain.model_copy(update={"label": "memory-copy, cpu_limit=0.5", "treatment": "limited"})
    grid = matrix(run[0].model_copy(update={"cells": (plain, limited)}))
    assert [column.title for column in grid.columns] == ["memory-copy", "memory-copy cpu_limit=0.5"]
    assert list(grid.cells.values()) == [plain, limited]
