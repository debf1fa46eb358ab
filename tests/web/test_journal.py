"""The journal as it is written, and the state that a page derives from it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partywall.errors import UsageError
from partywall.events import Block, Broken, Doing, Left, Note, Started
from partywall.kinds.journal import FILE, Journal
from partywall.web.live import State, Watched, lines

EVENTS = (
    Doing("preparing"),
    Started(None),
    Doing("measuring"),
    Block("000-a", 3, "", {"x": (0.9, 0.8, 1.0)}),
    Left(3.21),
    Note("slots are longer", is_warning=True),
    Broken("disk full"),
    Block("000-a", 4, "±1 %"),
)


def written(path, events=EVENTS):
    with Journal() as journal:
        for event in events:
            journal(Started(path) if isinstance(event, Started) else event)
        journal.exit = 0
    return [json.loads(line) for line in (path / FILE).read_bytes().splitlines()]


def test_a_journal_has_every_event_in_order_also_those_before_the_record_existed(tmp_path):
    result = written(tmp_path)
    names = ["doing", "started", "doing", "block", "left", "note", "broken", "block", "ended"]
    assert [event["event"] for event in result] == names
    assert result[3]["cells"] == {"x": [0.9, 0.8, 1.0]}
    assert result[-1]["exit"] == 0


def test_without_a_record_no_journal_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Journal() as journal:
        journal(Started(None))
        journal(Doing("measuring"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (UsageError("no"), 2), (ValueError("bug"), 70)]
)
def test_a_journal_ends_with_the_exit_code_of_an_error(tmp_path, error, code):
    with pytest.raises(type(error)), Journal() as journal:  # noqa: PT012 - the journal is what is tested
        journal(Started(tmp_path))
        raise error
    assert json.loads((tmp_path / FILE).read_bytes().splitlines()[-1])["exit"] == code


def test_a_second_attempt_continues_after_an_incomplete_line(tmp_path):
    written(tmp_path)
    with (tmp_path / FILE).open("ab") as stream:
        stream.write(b'{"at":1,"eve')
    with Journal() as journal:
        journal(Started(tmp_path))
        journal(Doing("again"))
    watched = Watched(tmp_path)
    watched.advance()
    assert watched.state.attempts == 2
    assert watched.state.doing == "again"


def test_the_state_adds_up_the_events(tmp_path):
    written(tmp_path)
    watched = Watched(tmp_path)
    watched.advance()
    state = watched.state
    assert state.trials["000-a"].done == 4
    assert state.trials["000-a"].cells == {"x": (0.9, 0.8, 1.0)}
    assert [(text, warning) for _, text, warning in state.notes] == [("slots are longer", True), ("disk full", True)]
    assert (state.ended, state.exit, state.running) == (True, 0, False)


def test_cells_of_shorter_slots_are_forgotten():
    state = State()
    for done, cells in ((20, {"x": [1, 0.9, 1.1]}), (0, {})):
        state.take({"event": "block", "trial": "a", "done": done, "cells": cells})
    assert state.trials["a"].cells == {}


@given(st.lists(st.integers(1, 40), max_size=30), st.binary(max_size=60))
def test_however_a_journal_grows_no_event_is_lost_or_taken_twice(tmp_path_factory, pieces, rubbish):
    path = tmp_path_factory.mktemp("record")
    whole = b"".join(json.dumps({"event": "note", "text": str(n)}).encode() + b"\n" for n in range(9))
    whole += rubbish.replace(b"\n", b" ") + b"\n" + json.dumps({"event": "note", "text": "last"}).encode() + b"\n"
    watched, at = Watched(path), 0
    for size in [*pieces, len(whole)]:
        with (path / FILE).open("ab") as stream:
            stream.write(whole[at : at + size])
        at += size
        watched.advance()
    texts = [text for _, text, _ in watched.state.notes]
    assert texts[:9] == [str(n) for n in range(9)]
    assert texts[-1] == "last"
    assert watched.offset == len(whole)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_an_event_of_any_form_does_not_end_the_page(content):
    state = State()
    for name in ("counters", "block", "started", "left", "second", "report", "note", "ended"):
        event = {"event": name} | (
            content if isinstance(content, dict) else {"cells": content, "text": content, "figures": content}
        )
        try:
            state.take(event)
        except (TypeError, ValueError, AttributeError, KeyError, IndexError):
            continue  # as `Watched` does


def test_a_reader_continues_at_any_line(tmp_path):
    written(tmp_path)
    every = list(lines(tmp_path / FILE, 0))
    for number, (offset, _) in enumerate(every):
        assert list(lines(tmp_path / FILE, offset)) == every[number + 1 :]
