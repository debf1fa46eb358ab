"""What every kind of record shows, byte for byte: the text, the JSON document, the rows, the page, and a comparison.

The records are stored here (README.md), so they also show that records of earlier versions open. `UPDATE_GOLDEN=1`
writes what is shown now; read the difference before you commit it.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from partywall import __version__, kinds
from partywall.cli import main
from partywall.cli.live import Drawn

HERE = Path(__file__).parent
RECORDS = sorted(folder.name for folder in (HERE / "records").iterdir())
COMMANDS = {
    "report.txt": ("report", "NAME", "-f", "html", "-f", "csv"),
    "report.json": ("report", "NAME", "-f", "json"),
    "compare.txt": ("compare", "NAME", "again"),
}
"""What a command prints, by the name of its file."""
WRITTEN = {"report.html": "report.html", "*.csv": "rows.csv"}
"""Files that the first command writes into the record, and where they are kept here."""


@pytest.fixture
def place(tmp_path, monkeypatch) -> Iterator[Path]:
    """An empty folder, and a stated time zone and width. However long it takes, no line says how far it is."""
    monkeypatch.setattr(Drawn, "EVERY_S", math.inf)
    for name, value in {"TZ": "UTC", "COLUMNS": "120", "LC_ALL": "C.UTF-8", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    time.tzset()
    yield tmp_path
    monkeypatch.delenv("TZ")
    time.tzset()


def test_every_kind_has_a_record():
    assert {kinds.opened(HERE / "records" / name).KIND for name in RECORDS} == set(kinds.names())


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_shows_what_it_showed(name, place, monkeypatch, capsys):
    shutil.copytree(HERE / "records" / name, place / name)
    shown = {}
    for file, words in COMMANDS.items():
        if "again" in words:
            shutil.copytree(place / name, place / "again")
        monkeypatch.setattr(sys, "argv", ["partywall", *(name if word == "NAME" else word for word in words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        shown[file] = f"{said.out}{said.err}exit code {ended.value.code}\n"
    for pattern, kept in WRITTEN.items():
        (file,) = (place / name).glob(pattern)
        shown[kept] = file.read_text(encoding="utf-8")
    expected = HERE / "expected" / name
    if os.environ.get("UPDATE_GOLDEN"):
        expected.mkdir(parents=True, exist_ok=True)
        for file, text in shown.items():
            (expected / file).write_text(normal(text), encoding="utf-8")
    assert not [file for file, text in shown.items() if "Traceback" in text]
    assert sorted(shown) == sorted(file.name for file in expected.iterdir())
    for file, text in shown.items():
        assert normal(text) == (expected / file).read_text(encoding="utf-8"), file


def normal(text: str) -> str:
    """A text without what all pages share or what depends on a version: scripts, styles, the version itself.

    The data of charts is on lines of its own, so that a difference can be read.
    """
    text = re.sub(r"<(script|style)>.*?</\1>", r"<\1>…</\1>", text, flags=re.DOTALL)
    text = re.sub(r"(<script type=\"application/json\"[^>]*>)(.*?)(?=</script>)", spread, text, flags=re.DOTALL)
    return re.sub(r"vega-lite/v[0-9.]+", "vega-lite/VERSION", text).replace(__version__, "VERSION")


def spread(data: re.Match[str]) -> str:
    return data[1] + data[2].replace(',"', ',\n"')
