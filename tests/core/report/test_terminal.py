"""Tables in terminals of any width."""

import io

import pytest
from rich.console import Console

from partywall.core.report.terminal import listed

COLUMNS = ("consumer", "CPU time", "with idle by CPU time")
ROWS = [["/web[x]", "5.22 s", "55.2 ± 0.1 W"], ["/mail", "2.32 s", "23.99 W"]]


def shown(width, columns=COLUMNS, rows=ROWS):
    console = Console(file=io.StringIO(), width=width)
    console.print(listed(columns, rows))
    return console.file.getvalue()


def test_a_table_that_fits_has_a_row_for_each_thing():
    assert [
        line for line in shown(80).splitlines() if "/web[x]" in line and "5.22 s" in line and "55.2 ± 0.1 W" in line
    ]


@pytest.mark.parametrize("width", range(10, 36))
def test_where_it_does_not_fit_each_value_stands_whole_beside_its_column(width):
    flat = "".join(shown(width).split())
    assert "with idle by CPU time".replace(" ", "") + "55.2±0.1W" in flat
    assert "…" not in "".join(line for line in shown(width).splitlines() if "─" not in line)


def test_a_table_of_names_only_folds_them():
    assert "".join(shown(10, ("name",), [["a-name-longer-than-this"]]).split()) == "a-name-longer-than-this"


@pytest.mark.parametrize("width", range(36, 47))
def test_titles_are_folded_before_a_table_becomes_lists(width):
    lines = shown(width).splitlines()
    assert max(map(len, lines)) <= width
    (row,) = (line for line in lines if "/web[x]" in line)
    assert [text.strip() for text in row.strip("│").split("│")] == ROWS[0]
