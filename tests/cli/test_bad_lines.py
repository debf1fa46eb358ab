"""Each wrong command line gets one message with thing, place and remedy, the documented exit code, and does no more.

They run two at a time, as a user would run them; benches/bad_input.py runs those too that take long to be refused.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cli import corpus

pytestmark = pytest.mark.host
CASES = {case.name: case for case in corpus.cases()}
QUICK = [name for name, case in CASES.items() if not case.slow]


def answer(ground: Path, number: int, case: corpus.Case, finished: Path) -> corpus.Outcome:
    folder = ground / str(number)
    corpus.prepare(folder, case, finished)
    return corpus.run(folder, *case.arguments, case=case)


@pytest.fixture(scope="session")
def answers(ground: Path, finished: Path) -> dict[str, Future[corpus.Outcome]]:
    with ThreadPoolExecutor(2) as pool:
        return {
            name: pool.submit(answer, ground, number, CASES[name], finished)
            for number, name in enumerate(QUICK)
            if not corpus.missing(CASES[name])
        }


def test_the_corpus_is_large_and_names_its_cases_once():
    assert len(corpus.cases()) == len(CASES) >= 60
    assert [name for name, case in CASES.items() if case.exit not in (2, 4, 5)] == []


@pytest.mark.parametrize("name", QUICK)
def test_a_wrong_command_line_gets_one_clear_message(name: str, answers: dict[str, Future[corpus.Outcome]]):
    if lacking := corpus.missing(CASES[name]):
        pytest.skip(f"needs {lacking}")
    outcome = answers[name].result()
    assert corpus.complaints(CASES[name], outcome) == [], outcome.text
