"""The corpus of loads that cannot be: one clear message each."""

import pytest

from tests.load import load_corpus


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    with load_corpus.world(folder) as known:
        yield known, folder


@pytest.mark.parametrize("case", load_corpus.CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_what_cannot_be_loaded_is_one_clear_message(case, world):
    known, folder = world
    assert load_corpus.complaints(case, known, folder) == []
