"""What README tells a newcomer to type works, or says what it needs."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from partywall.cli import main
from partywall.cli.app import COMMANDS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINES = [
    line.strip()
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if re.match(r"(sudo \S+/)?partywall ", line.strip())
]
ONLY_READS = [line for line in LINES if re.search(r"partywall (kernels|\w+ check|study +#)|\bstudy$", line)]


def words_of(line: str) -> list[str]:
    words = shlex.split(line.partition("  #")[0].partition(" #")[0])
    return words[[Path(word).name for word in words].index("partywall") + 1 :]


def test_every_line_names_a_command_that_there_is():
    assert len(LINES) > 15
    assert [line for line in LINES if words_of(line)[0] not in COMMANDS] == []


def test_every_file_that_a_line_names_is_shipped():
    named = [word for line in LINES for word in words_of(line) if word.endswith(".yaml")]
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_scenario_shown_is_the_one_that_is_shipped():
    shown = re.search(r"```yaml\n(.*?)```", README, re.DOTALL)[1]
    assert (ROOT / "docs/examples/checkout.yaml").read_text(encoding="utf-8").endswith(shown)


@pytest.mark.long
@pytest.mark.parametrize("line", ONLY_READS)
def test_lines_that_only_read_work_as_they_stand(line: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["partywall", *words_of(line)])
    with pytest.raises(SystemExit) as ended:
        main()
    lacks = 4 if "scenario check" in line else 0
    assert ended.value.code in (0, lacks)


def test_readme_says_which_marks_make_test_leaves_out():
    """A reader thought that moves of guests were tested."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = dict(re.findall(r"^([a-z-]+):[^\n]*\n((?:\t[^\n]*\n)+)", makefile, re.MULTILINE))
    tests = [rules[name] for name in ("test-host", "test-controller")]
    never = set.intersection(*(set(re.findall(r"not (\w+)", rule)) for rule in tests))
    assert never == {"slow"}
    for mark in never:
        assert re.search(rf"leaves out the tests marked `{mark}`.*`make test-{mark}`", README, re.DOTALL)
        assert f"-m {mark}" in rules[f"test-{mark}"]
