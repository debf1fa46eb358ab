"""What README and docs/ tell a reader to type: commands and options exist, and README's that only read work."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from partywall.cli import main
from partywall.cli.app import COMMANDS, command

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINES = [
    line.strip()
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if re.match(r"(sudo \S+/)?partywall ", line.strip())
]
ONLY_READS = [line for line in LINES if re.search(r"partywall (kernels|\w+ check|study +#)|\bstudy$", line)]


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TYPED = re.compile(r"\s*(?:sudo )?(?:\S+/)?partywall (\S.*)")


def typed(page: Path) -> list[list[str]]:
    """The words of each command line of Partywall that a page shows."""
    blocks = re.findall(r"^ *```(?:sh)?\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(re.split(r"\s#|[|;&>]", each[1])[0]) for line in lines if (each := TYPED.match(line))]


def unknown(words: list[str]) -> list[str]:
    """The command, or the options, of a line that there are not."""
    if words[0] not in COMMANDS:
        return words[:1]
    shown, rest = command(words[0]), words[1:]
    while hasattr(shown, "commands"):
        # A group without the name of a command runs the usual one.
        named = rest and rest[0] in shown.commands
        shown, rest = shown.commands[rest[0] if named else "run"], rest[1:] if named else rest
    if shown.context_settings.get("ignore_unknown_options"):
        return []
    there = {option for each in shown.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}
    return [word for word in rest if re.match("--?[a-z]", word) and word.partition("=")[0] not in there]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_line_of_a_page_names_a_command_and_options_that_there_are(page: Path):
    assert {" ".join(words): unknown(words) for words in typed(page) if unknown(words)} == {}


def test_a_line_with_a_wrong_command_or_option_is_noticed():
    assert len([words for page in PAGES for words in typed(page)]) > 80
    assert unknown(["rnu", "demo"]) == ["rnu"]
    assert unknown(["guard", "run", "x.yaml", "--fro", "2s"]) == ["--fro"]
    assert unknown(["load", "http://x/", "--users", "1", "--usres=1"]) == ["--usres=1"]


def words_of(line: str) -> list[str]:
    words = shlex.split(line.partition("  #")[0].partition(" #")[0])
    return words[[Path(word).name for word in words].index("partywall") + 1 :]


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
