import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from partywall.blame.corpus.__main__ import LABS, main
from partywall.blame.corpus.detectors import OURS, answers, experiment
from partywall.blame.corpus.lab import RESOURCES, RHYTHMS, Lab, Neighbour, drawn
from partywall.blame.corpus.score import score
from partywall.blame.corpus.simulate import simulate


def test_the_corpus_has_what_it_promises():
    labs = [drawn(number) for number in range(LABS)]
    assert LABS >= 200
    assert {len(lab.guilty) for lab in labs} == {0, 1, 2, 3}
    assert {len(lab.neighbours) for lab in labs} == set(range(2, 16))
    assert {each.resource for lab in labs for each in lab.neighbours if each.effect} == set(RESOURCES)
    assert {each.rhythm for lab in labs for each in lab.neighbours} == set(RHYTHMS)
    effects = [each.effect for lab in labs for each in lab.neighbours if each.effect]
    assert 0.02 <= min(effects) < 0.025
    assert 0.4 < max(effects) <= 0.5
    assert sum(lab.throttled > 0 for lab in labs) > 20
    assert sum(lab.steal > 0 for lab in labs) > 20


def test_every_guilty_neighbour_takes_its_effect_and_gives_half_of_it_back_if_it_does_half():
    """Nobody is guilty of what no pulse could ever find: an effect that stays the same whatever the neighbour does."""
    guilty = [each for number in range(LABS) for each in drawn(number).neighbours if each.effect]
    hardest = sorted(guilty, key=lambda each: -each.effect / each.busy)[:12]
    for each in hardest:
        alone = each.model_copy(update={"grip": 1.0, "rebound": 0.0, "lag_ms": 0})
        lab = Lab(name="one", seed=3, neighbours=(alone,), noise=0.0, drift=0.0)
        nobody = Lab(name="none", seed=3, neighbours=(alone.model_copy(update={"effect": 0.0}),), noise=0.0, drift=0.0)
        free, half, without = (
            simulate(each_lab, 24_000, np.full((6_000, 1), depth)).rate.mean()
            for each_lab, depth in ((lab, 0.0), (lab, 0.5), (nobody, 0.0))
        )
        assert 1 - free / without == pytest.approx(each.effect, rel=0.05)
        assert (without - half) / (without - free) < 0.6


def test_a_lab_whose_neighbour_cannot_take_what_it_says_is_refused():
    with pytest.raises(ValueError, match="cannot take 45% of the work, because it is busy 30% of the time"):
        Neighbour(name="a", resource="cpu", effect=0.45, rhythm="clocked", duty=0.3)


def test_the_corpus_stays_as_it_is():
    text = "\n".join(drawn(number).model_dump_json() for number in range(LABS))
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "b58805203f5c95c9fd813c226051f506b2341a7bd58305c96349ea48c0c3ce71"
    )


def test_a_lab_does_what_its_file_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["show", "3"]) == 0
    file = tmp_path / "lab.json"
    file.write_text(capsys.readouterr().out)
    assert main(["run", str(file)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert set(said["guilty"]) == drawn(3).guilty
    assert len(said["answers"]) == 6


@pytest.mark.parametrize("rhythm", RHYTHMS)
def test_a_neighbour_takes_its_effect_from_the_victim(rhythm: str):
    quiet = {"noise": 0.0, "drift": 0.0, "seed": 3, "name": "one"}
    one = Neighbour.model_validate({"name": "a", "resource": "cpu", "effect": 0.2, "rhythm": rhythm, "period_s": 0.7})
    with_it, without = (
        simulate(Lab(neighbours=(each,), **quiet), 20_000).rate.mean()
        for each in (one, one.model_copy(update={"effect": 0.0}))
    )
    assert 1 - with_it / without == pytest.approx(0.2, abs=0.02)


def test_pulses_take_their_depth_from_those_that_are_pulsed_alone():
    lab = drawn(2)
    lab = lab.model_copy(update={"neighbours": tuple(n.model_copy(update={"rebound": 0.0}) for n in lab.neighbours)})
    depths = np.zeros((500, len(lab.neighbours)))
    depths[:, 0] = 0.3
    free, held = simulate(lab, 2000), simulate(lab, 2000, depths)
    assert held.use[:, 0] == pytest.approx(free.use[:, 0] * (1 - 0.3 * lab.neighbours[0].grip))
    assert (held.use[:, 1:] == free.use[:, 1:]).all()


def test_the_experiment_names_the_guilty_one_and_a_busy_innocent_one_on_the_same_clock_is_cleared():
    busy = {"resource": "cpu", "rhythm": "clocked", "clock": 1, "duty": 0.5, "period_s": 0.8}
    guilty = Neighbour.model_validate(busy | {"name": "guilty", "effect": 0.15, "cpu": 0.1})
    innocent = Neighbour.model_validate(busy | {"name": "innocent", "cpu": 1.5})
    lab = Lab(name="clock", seed=5, neighbours=(innocent, guilty))
    found = answers(lab)
    assert found[OURS].blamed == {"guilty"}
    assert found["CPU × stall (linnix's rule)"].first == "innocent"


def test_a_victim_that_its_own_limit_stops_is_blamed_on_nobody():
    labs = [lab for lab in (drawn(number) for number in range(0, LABS, 12)) if lab.throttled][:6]
    assert len(labs) == 6
    assert not [lab.name for lab in labs if experiment(lab).blamed]


def test_a_score_counts_first_places_and_percentiles():
    lab = drawn(1)
    assert lab.guilty
    wrong = {each.name: float(each.name not in lab.guilty) for each in lab.neighbours}
    answer = experiment(lab)
    assert score([lab], [answer]).first == 1.0
    assert score([lab], [type(answer)(wrong, frozenset(wrong))]).percentile == 0
