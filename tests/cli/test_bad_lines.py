"""Each wrong command line gets one message with thing, place and remedy, the documented exit code, and does no more.

They run two at a time, as a user would run them. Those that take long to be refused run in `make test-slow`.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cli import corpus

pytestmark = pytest.mark.host
CASES = {case.name: case for case in corpus.cases()}


def answer(ground: Path, number: int, case: corpus.Case, finished: Path) -> corpus.Outcome:
    folder = ground / str(number)
    corpus.prepare(folder, case, finished)
    return corpus.run(folder, *case.arguments, case=case)


@pytest.fixture(scope="session")
def answers(ground: Path, finished: Path) -> dict[str, Future[corpus.Outcome]]:
    with ThreadPoolExecutor(2) as pool:
        return {
            name: pool.submit(answer, ground, number, CASES[name], finished)
            for number, (name, case) in enumerate(CASES.items())
            if not case.slow and not corpus.missing(case)
        }


def test_the_corpus_is_large_and_names_its_cases_once():
    assert len(corpus.cases()) == len(CASES) >= 60
    assert [name for name, case in CASES.items() if case.exit not in (2, 4, 5)] == []


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.slow])
def test_a_wrong_command_line_gets_one_clear_message(name: str, answers: dict[str, Future[corpus.Outcome]]):
    if lacking := corpus.missing(CASES[name]):
        pytest.skip(f"needs {lacking}")
    outcome = answers[name].result()
    assert corpus.complaints(CASES[name], outcome) == [], outcome.text


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.slow])
def test_a_line_that_takes_long_to_be_refused_gets_one_too(name: str, tmp_path: Path, finished: Path):
    if lacking := corpus.missing(CASES[name]):
        pytest.skip(f"needs {lacking}")
    outcome = answer(tmp_path, 0, CASES[name], finished)
    assert corpus.complaints(CASES[name], outcome) == [], outcome.text
