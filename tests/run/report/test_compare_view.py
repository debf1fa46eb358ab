import io

from rich.console import Console

from partywall.core.stats.estimate import Estimate
from partywall.run.report import compare_view
from partywall.run.values.comparison import Change, ComparedCell, Comparison


def estimate(value: float, half: float) -> Estimate:
    return Estimate(value=value, low=value - half, high=value + half, n=40, method="test")


def cell(label: str, ratio: float, change: Change) -> ComparedCell:
    return ComparedCell(
        victim="copy",
        label=label,
        treatment=label,
        isolation=estimate(0.82 * ratio, 0.01),
        reference_isolation=estimate(0.82, 0.01),
        ratio=estimate(ratio, 0.01),
        latency={"p99": estimate(1.1, 0.02)},
        change=change,
        reason="test",
    )


def shown(*cells: ComparedCell, **more) -> str:
    out = io.StringIO()
    comparison = Comparison(run="new", reference="old", tolerance=0.02, cells=cells, **more)
    compare_view.show(comparison, Console(file=out, width=100))
    return out.getvalue()


def test_what_got_worse_comes_first():
    text = shown(cell("null", 1.0, Change.SAME), cell("memory-copy 100 %", 0.9, Change.WORSE))
    assert text.startswith("▼ worse")
    assert "of 2 cells 1 worse, 1 same" in text
    assert text.index("memory-copy 100 %") < text.index("copy, null")
    assert "of 1 cell 1 same" in shown(cell("null", 1.0, Change.SAME))


def test_a_changed_cell_is_told_in_one_sentence():
    text = shown(cell("batch", 0.969, Change.WORSE), cell("backup", 1.05, Change.BETTER), cell("null", 1, Change.SAME))
    assert "copy, batch: isolates 3 % ± 1 worse than old" in text
    assert "copy, backup: isolates 5 % ± 1 better than old" in text
    assert "copy, null: isolates" not in text


def test_each_cell_shows_both_factors_and_their_ratio_with_intervals():
    text = shown(cell("memory-copy 100 %", 0.9, Change.WORSE))
    assert all(figure in text for figure in ("0.82 ± 0.01", "0.74 ± 0.01", "0.90 ± 0.01", "1.10 ± 0.02"))


def test_cells_of_one_run_only_are_named():
    assert "Only in old: ring under disk-write" in shown(
        cell("null", 1.0, Change.SAME), only_reference=("ring under disk-write",)
    )


def test_runs_without_a_common_cell_are_inconclusive():
    text = shown()
    assert text.startswith("? inconclusive")
    assert "share no cell" in text


def test_a_cell_that_the_run_lost_is_reported_before_any_same():
    text = shown(cell("null", 1.0, Change.SAME), only_reference=("ring under disk-write",))
    assert text.startswith("? inconclusive")
    assert "of the reference's 1 missing" in " ".join(text.split())


def test_what_was_not_finished_is_named():
    text = shown(cell("null", 1.0, Change.SAME), incomplete=("new: trial t2: died",))
    assert text.startswith("? inconclusive")
    assert "Not finished, new: trial t2: died" in text


def test_why_a_cell_got_worse_is_reported():
    assert "▼ copy, memory-copy 100 %: test" in shown(cell("memory-copy 100 %", 0.9, Change.WORSE))


def test_emulated_cells_say_so():
    emulated = cell("memory-copy 100 %", 1.0, Change.SAME).model_copy(update={"emulated": True})
    assert "copy, memory-copy 100 % (emulated)" in " ".join(shown(emulated).split())


def test_all_that_a_run_did_not_finish_is_one_line():
    unfinished = tuple(f"new: trial t{number}: died" for number in range(7))
    text = " ".join(shown(cell("null", 1.0, Change.SAME), incomplete=unfinished).split())
    assert text.count("Not finished") == 1
    assert "new: trial t0: died; trial t1: died; trial t2: died; and 4 more" in text


def test_each_reason_of_inconclusive_cells_is_shown_once():
    cells = [
        cell(f"n{number}", 1.0, Change.INCONCLUSIVE).model_copy(update={"why": ("other programs disturbed the run",)})
        for number in range(9)
    ]
    text = " ".join(shown(*cells, cell("null", 1.0, Change.SAME)).split())
    assert text.count("disturbed the run") == 1
    assert "copy, n0; copy, n1; copy, n2; 6 more: other programs disturbed the run" in text


def test_a_comparison_is_printed_in_a_line():
    cells = tuple(cell(f"n{number}", 0.9, change) for number, change in enumerate([Change.WORSE, Change.SAME] * 20))
    comparison = Comparison(run="new", reference="old", tolerance=0.02, cells=cells)
    assert str(comparison) == repr(comparison)
    assert str(comparison) == "<Comparison of new with old: violated; cells: 20 worse, 20 same>"
    empty = Comparison(run="new", reference="old", tolerance=0.02, cells=())
    assert str(empty) == "<Comparison of new with old: inconclusive; cells: none in common>"
