import io

from rich.console import Console

from partywall.model.comparison import Change, ComparedCell, Comparison
from partywall.model.finding import Estimate
from partywall.report import compare_view


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
