"""Whole loads beside each other: their figures, and whether the intervals contain the truth."""

from collections import defaultdict

import numpy as np
import pytest

from partywall.core.stats.histogram import bucket_of
from partywall.kinds.compared import side_by_side
from partywall.load.health import Health
from partywall.load.intervals import BEYOND, FEWEST, SHARES, intervals
from partywall.load.record import LoadDirectory
from partywall.load.second import Second, Timing

SECOND = 1_000_000_000
LABELS = [{"name": "GET /", "sort": "http"}]


def seconds(random: np.random.Generator, count: int, rate: float = 500.0, often: float = 0.1) -> list[Second]:
    """Responses of a service that is slower for two seconds at a time. often: in which share of all seconds."""
    made, left = [], 0
    for number in range(count):
        left = left - 1 if left else 2 * int(random.random() < often / 2)
        second = Second(number * SECOND, (number + 1) * SECOND)
        responses = random.poisson(rate / (2 if left else 1))
        times = random.lognormal(15, 0.5, responses) * (3 if left else 1)
        buckets, counts = np.unique([bucket_of(int(time)) for time in times], return_counts=True)
        second.timings[0] = Timing(responses, corrected=dict(zip(buckets.tolist(), counts.tolist(), strict=True)))
        second.statuses = defaultdict(int, {200: int(responses)})
        made.append(second)
    return made


@pytest.mark.long
@pytest.mark.parametrize(("count", "often"), [(10, 0.5), (30, 0.2), (120, 0.1)])
def test_intervals_of_a_whole_load_contain_the_truth(count, often):
    """What is so rare that most loads do not see it, no interval of one load contains."""
    random = np.random.default_rng(3)
    truth = {name: (low + high) / 2 for name, (low, high) in intervals(seconds(random, 4000, often=often), [0]).items()}
    inside = dict.fromkeys(["rate", *SHARES], 0)
    trials = 60
    for _ in range(trials):
        for name, (low, high) in intervals(seconds(random, count, often=often), [0]).items():
            inside[name] += low <= truth[name] <= high
    assert all(inside[name] >= 0.83 * trials for name in ("rate", "p50", "p90")), inside


def test_too_few_seconds_or_responses_have_no_interval():
    random = np.random.default_rng(1)
    assert intervals(seconds(random, FEWEST - 1), [0]) == {}
    few = intervals(seconds(random, 30, rate=BEYOND), [0])
    assert {"rate", "p50"} <= few.keys()
    assert "p99" not in few


def load(path, rate: float):
    """A load of 12 s at a rate, whose last, partial second has hardly any responses, and one error."""
    about = {
        "started": {"labels": LABELS, "origins": [], "stages_ns": 12 * SECOND},
        "program": {"pacing": {"closed": {"stages": [{"to": 2, "for_ns": 12 * SECOND}]}}},
        "seed": 1,
        "cpus": [0],
        "threads": 1,
        "partywall": "0",
    }
    directory = LoadDirectory.create(path, about)
    random = np.random.default_rng(2)
    directory.begin(0)
    for second in seconds(random, 12, rate):
        directory.append(second, Health({}))
    last = Second(12 * SECOND, 12 * SECOND + 2_600_000)
    last.timings[0] = Timing(1, corrected={bucket_of(9_000_000_000): 1})
    last.statuses = defaultdict(int, {200: 1})
    directory.append(last, Health({}))
    directory.finish(LABELS, 0)
    return directory


def test_whole_loads_are_compared_and_not_their_last_split_second(tmp_path):
    both = side_by_side(load(tmp_path / "fast", 5000.0), load(tmp_path / "slow", 500.0))
    rows = dict(both.rows)
    fast, slow = rows["responses"]
    assert fast.value == pytest.approx(5000, rel=0.2)
    assert fast.low < fast.value < fast.high
    assert slow.value == pytest.approx(500, rel=0.2)
    assert {f"response time {name}" for name in ("p50", "p90", "p99")} <= rows.keys()
    assert all(1e6 < figure.value < 1e8 for name in SHARES for figure in rows[f"response time {name}"])
    assert {"errors", "seconds with a good generator", "length"} <= rows.keys()
    texts = {of: texts for of, *texts in both.texts}
    assert "ms" in texts["response time p50"][0]
    assert texts["seconds with a good generator"][0] == "100 %"
    assert float(texts["responses"][2]) == pytest.approx(10, rel=0.1)
