"""The strip of the last slots, from the journal to the lanes of the page."""

import math

import pytest

from partywall.events import Block, Started
from partywall.kinds.journal import Journal
from partywall.run.values.plan import Plan
from partywall.web.live import SLOTS_SHOWN, Watched
from partywall.web.strip import HEIGHT, WIDTH, strip


class Treatment:
    def __init__(self, id_, role="aggressor"):
        self.id, self.role, self.label = id_, role, f"beside {id_}"


class Trial:
    id = "000-v"
    treatments = (Treatment("base", "baseline"), Treatment("noise"), Treatment("null", "null"))


class OneTrial(Plan):
    """A plan of which only the trials are read."""

    @classmethod
    def made(cls):
        return cls.model_construct(trials=(Trial(),))


def watched(folder, *blocks):
    with Journal() as journal:
        journal(Started(folder))
        for block in blocks:
            journal(block)
    seen = Watched(folder)
    seen.advance()
    return seen.state


def block(*slots, trial="000-v"):
    return Block(trial, 1, "", slots=[(id_, ms * 1_000_000, rate) for id_, ms, rate in slots])


def test_lanes_show_when_each_neighbour_was_on_and_the_rate_beside_it(tmp_path):
    state = watched(tmp_path, block(("noise", 30, 50.0), ("base", 10, 100.0)), block(("base", 10, 100.0)))
    seen = strip(OneTrial.made(), state)
    assert seen.seconds == pytest.approx(0.05)
    base, noise, null = seen.lanes
    assert [lane.label for lane in seen.lanes] == ["no neighbour", "beside noise", "beside null"]
    assert [(bar.x, bar.width) for bar in noise.bars] == [(0, 0.6 * WIDTH)]
    assert [bar.x for bar in base.bars] == [0.6 * WIDTH, 0.8 * WIDTH]
    assert noise.bars[0].height == pytest.approx(base.bars[0].height / 2, abs=0.1)
    assert (base.typical, noise.typical, null.typical) == (1.0, 0.5, None)
    assert all(bar.height <= HEIGHT for lane in seen.lanes for bar in lane.bars)


def test_a_new_trial_begins_an_empty_strip(tmp_path):
    state = watched(tmp_path, block(("base", 10, 1.0)), block(trial="001-w"))
    assert not state.slots
    assert strip(OneTrial.made(), state) is None


def test_the_strip_keeps_a_bounded_number_of_slots(tmp_path):
    state = watched(tmp_path, *(block(("base", 10, 1.0), ("noise", 10, 1.0)) for _ in range(SLOTS_SHOWN)))
    assert len(state.slots) == SLOTS_SHOWN


@pytest.mark.parametrize("rate", [math.nan, math.inf, -1.0])
def test_slots_without_a_usable_rate_are_not_drawn(tmp_path, rate):
    state = watched(tmp_path, block(("base", 10, rate)))
    assert not state.slots
