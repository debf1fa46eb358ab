"""The notebooks of docs/notebooks run from top to bottom, and show what they showed when they were written."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs/notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LONGEST_S = 240


def test_there_are_three():
    assert len(NOTEBOOKS) >= 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_gave(path):
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert sum(bool(cell.outputs) for cell in code) >= 2, "run it once, with its outputs kept"
    said = [output for cell in code for output in cell.outputs if output.output_type == "error"]
    assert said == []


@pytest.mark.host
@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path):
    book = nbformat.read(path, as_version=4)
    NotebookClient(
        book, timeout=LONGEST_S, kernel_name="python3", resources={"metadata": {"path": "/var/tmp"}}
    ).execute()
