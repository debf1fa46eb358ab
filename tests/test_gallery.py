"""The gallery: its examples can be read, each has run, and the page is the one that they give."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from labs import gallery
from partywall.cli import app
from partywall.core.document.formats import FORMATS, first_key
from partywall.errors import CapabilityError

ROOT = Path(__file__).parents[1]
EVERY = gallery.examples()


def test_there_are_as_many_as_promised_and_each_teaches_something():
    assert len(EVERY) >= 15
    assert [example.name for example in EVERY if len(example.taught.split()) < 10] == []
    assert len({example.asks for example in EVERY}) == len(EVERY)


@pytest.mark.parametrize("example", EVERY, ids=lambda example: example.name)
def test_an_example_has_run_and_has_its_picture(example):
    last = gallery.ran(example.name)
    assert last is not None
    assert last.headline
    assert (gallery.FOLDER / last.picture).stat().st_size > 1000
    assert all((ROOT / file).exists() for file in example.files)


def test_the_page_is_what_the_examples_gave():
    found = {example.name: last for example in EVERY if (last := gallery.ran(example.name))}
    page = gallery.page(EVERY, found)
    if os.environ.get("UPDATE_DOCS"):
        gallery.PAGE.write_text(page, encoding="utf-8")
    assert gallery.PAGE.read_text(encoding="utf-8") == page, "run python -m labs.gallery --page"


def test_every_example_file_is_used_by_an_example_or_a_page():
    used = {Path(file).name for example in EVERY for file in example.files}
    pages = "".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    files = [file.name for file in (ROOT / "docs/examples").iterdir()]
    tests = (ROOT / "tests/labs/test_site.py").read_text(encoding="utf-8")
    assert [name for name in files if name not in used and name not in pages and name not in tests] == []


FILES = [file for file in sorted((ROOT / "docs/examples").glob("*.yaml")) if "partywall_study" not in file.read_text()]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_example_can_be_read(file, monkeypatch):
    monkeypatch.chdir(ROOT)
    # The command that looks at a file of this kind, as users are told it.
    words = FORMATS[first_key(file)].use.partition(", or ")[0].format(file=file).split()[1:]
    done = CliRunner().invoke(app, [*words, "--dry-run"] if words[0] == "consolidate" else words)
    # This host may lack what the example needs; the file is right.
    assert done.exit_code == 0 or isinstance(done.exception, CapabilityError), (done.output, done.exception)
