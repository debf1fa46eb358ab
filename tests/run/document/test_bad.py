"""Each wrong scenario of the corpus gets one message a mistake, with its line, key and remedy.

A file of the corpus begins with one comment a mistake: `# expect: line N | key | part of message | part of remedy`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from partywall.agent.catalogue import Catalogue
from partywall.errors import Problem, UsageError
from partywall.run.check import load

HERE = Path(__file__).parent
CORPUS = sorted((HERE / "bad").glob("*.yaml"))
EXPECT = re.compile(r"^# expect: line (\d+|-) \| (.*?) \| (.*?) \| (.*)$")


def expected(path: Path) -> list[tuple[int | None, str, str, str]]:
    lines = path.read_bytes().decode("utf-8", "replace").split("\n")
    result = [match for line in lines if (match := EXPECT.match(line))]
    return [(None if m[1] == "-" else int(m[1]), m[2], m[3], m[4]) for m in result]


def place(problem: Problem) -> tuple[int, str]:
    return problem.line or 0, problem.key


def test_the_corpus_is_large_and_states_what_it_expects():
    assert len(CORPUS) >= 70
    assert [path.name for path in CORPUS if not expected(path)] == []


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_each_mistake_gets_one_message_with_its_place_and_remedy(path: Path, catalogue: Catalogue):
    with pytest.raises(UsageError) as caught:
        load(path, catalogue)
    problems = sorted(caught.value.problems, key=place)
    wanted = sorted(expected(path), key=lambda e: (e[0] or 0, e[1]))
    assert [(p.line, p.key) for p in problems] == [(line, key) for line, key, _, _ in wanted], str(caught.value)
    for problem, (_, _, message, remedy) in zip(problems, wanted, strict=True):
        assert message in problem.message
        assert remedy in problem.remedy
        assert problem.remedy
        assert problem.file == str(path)
        assert "\n" not in str(problem)
        assert "pydantic" not in str(problem).lower()
