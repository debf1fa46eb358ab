"""Each public input does what is written beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inputs import cases


def test_there_are_many_inputs():
    assert len(cases.names()) >= 60


@pytest.mark.long
@pytest.mark.parametrize("name", cases.names())
def test_an_input_does_what_is_written_beside_it(name: str, tmp_path: Path):
    if lacks := cases.case(name).missing:
        pytest.skip(f"this host lacks {lacks}")
    assert cases.complaints(name, tmp_path / name) == []


def write(folder: Path, text: str) -> None:
    (folder / "odd").mkdir(parents=True)
    (folder / "odd" / "case.yaml").write_text("about: an input that is made up for this test\n" + text)


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run: python -c 'print(1)'\noutput: {has: ['1']}", []),
        ("run: python -c 'print(1)'\nexit: 3", ["it ended with 0, not 3", "it said: 1"]),
        ("run: python -c 'print(12)'\noutput: {has: ['7'], lacks: ['12']}", ["does not have '7'", "has '12'"]),
        ("run: python -c 'raise KeyError'\nexit: 1", ["it shows 'Traceback'"]),
        ("run: [sh -c 'exit 4', sh -c 'echo a > b']", ["command 1 ended with 4"]),
        ("run: sh -c 'echo x > made'\nfiles: {made: {has: [x]}, more: {}}", ["there is no more"]),
        ("run: sh -c 'echo {served}'\nserve: sh -c 'echo 80; exec sleep 60'\noutput: {has: ['80']}", []),
        ("run: sh -c 'echo > begun; exit 2'\nexit: 2", ["it began begun"]),
    ],
)
def test_an_answer_that_differs_is_found(
    text: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path / "cases", text)
    monkeypatch.setattr(cases, "HERE", tmp_path / "cases")
    said = cases.complaints("odd", tmp_path / "run")
    assert len(said) >= len(expected)
    assert all(any(part in line for line in said) for part in expected)
    assert bool(said) == bool(expected)
