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


def test_the_corpus_stays_as_it_is():
    text = "\n".join(drawn(number).model_dump_json() for number in range(LABS))
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "223ef22a322dfa23031731985a69fc9fac6df1a8e0111f01bbabc37d5958ced7"
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
