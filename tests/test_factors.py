from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from partywall.run.document.factors import FactorError, apply, concerning, expand, split, targets, trials
from partywall.run.document.scenario import Scenario


def scenario(**keys) -> Scenario:
    sandbox = {"backend": "container"}
    plain = {
        "partywall": 1,
        "name": "x",
        "victims": {
            "a": {"probe": "k", "sandbox": sandbox, "settle": "5ms"},
            "a.b": {"probe": "k", "sandbox": sandbox},
        },
        "aggressors": {"n": {"stressor": "k", "sandbox": sandbox}},
    }
    return Scenario.model_validate(plain | keys)


@pytest.mark.parametrize(
    ("path", "result"),
    [
        ("victim.threads", (("victims", "a", "threads"), ("victims", "a.b", "threads"))),
        ("victims.a.threads", (("victims", "a", "threads"),)),
        ("victims.a.b.threads", (("victims", "a.b", "threads"),)),
        ("aggressor.sandbox.disk.read_bps", (("aggressors", "n", "sandbox", "disk", "read_bps"),)),
        ("aggressors.n.params.x.y", (("aggressors", "n", "params", "x.y"),)),
        (
            "sandbox.cpus",
            tuple(
                (kind, name, "sandbox", "cpus")
                for kind, name in [("victims", "a"), ("victims", "a.b"), ("aggressors", "n")]
            ),
        ),
    ],
)
def test_a_path_names_its_keys(path: str, result):
    assert targets(scenario(), path) == result


@pytest.mark.parametrize(
    "path",
    [
        "",
        "victim",
        "victim.",
        "threads",
        "victims.z.threads",
        "victims.a",
        "victim.sandbox",
        "victim.sandbox.disk",
        "victim.threads.x",
        "victim.intensity",
        "victim.metric.scale",
        "victim.command",
        "victim.params",
        "victim.params.",
        "sandbox.",
        "sandbox.disk.x",
    ],
)
def test_a_path_that_names_no_value_is_refused(path: str):
    with pytest.raises(FactorError):
        targets(scenario(), path)


def test_a_level_is_read_like_the_file_and_the_rest_stays():
    applied = apply(scenario(), "victims.a.sandbox.disk.read_bps", "5MB/s")
    disk = applied.victims["a"].sandbox.disk
    assert disk is not None
    assert disk.read_bps == 5_000_000
    assert applied.victims["a"].settle == 5_000_000
    assert applied.victims["a.b"] == scenario().victims["a.b"]


def test_a_level_of_the_wrong_type_is_refused():
    with pytest.raises(ValidationError):
        apply(scenario(), "victim.sandbox.cpu_limit", "150%")


def test_levels_combine_fully_the_last_factor_fastest():
    varied = scenario(factors={"victim.threads": [1, 2], "aggressor.params.x": ["u", "v"]})
    result = [(levels, s.victims["a"].threads, s.aggressors["n"].params) for levels, s in expand(varied)]
    assert [(levels["victim.threads"], levels["aggressor.params.x"]) for levels, _, _ in result] == [
        (1, "u"),
        (1, "v"),
        (2, "u"),
        (2, "v"),
    ]
    assert all(
        threads == levels["victim.threads"] and params == {"x": levels["aggressor.params.x"]}
        for levels, threads, params in result
    )


def test_without_factors_there_is_the_scenario_itself():
    assert expand(scenario()) == [({}, scenario())]


def test_only_the_victims_cpu_ceiling_and_weight_and_limits_of_its_disk_are_live():
    factors = {
        "victims.a.sandbox.disk.read_bps": ["5MB/s"],
        "victims.a.sandbox.disk.{write_bps,write_iops}": [5000],
        "victim.sandbox.disk.cache": ["none"],
        "aggressor.sandbox.disk.write_bps": ["5MB/s"],
        "victim.sandbox.cpu_limit": [0.5, 1.0],
        "victims.a.sandbox.cpu_weight": [50, 100],
        "aggressor.sandbox.cpu_limit": [0.5],
        "sandbox.cpu_limit": [0.5],
        "victim.sandbox.memory": ["1GiB"],
        "victim.threads": [1],
    }
    live, static = split(scenario(factors=factors))
    assert set(live) == {
        "victim.sandbox.cpu_limit",
        "victims.a.sandbox.cpu_weight",
        "victims.a.sandbox.disk.read_bps",
        "victims.a.sandbox.disk.{write_bps,write_iops}",
    }
    assert set(static) == set(factors) - set(live)


def test_in_processes_nothing_is_live():
    inside = scenario(victims={"a": {"probe": "k"}}, factors={"victim.sandbox.cpu_limit": [0.5]})
    assert split(inside)[0] == {}


def test_a_backend_that_varies_keeps_limits_static():
    varied = scenario(factors={"sandbox.backend": ["container", "process"], "victim.sandbox.cpu_limit": [0.5, 1]})
    assert split(varied)[0] == {}


def test_another_victims_factor_makes_no_trials_of_this_one():
    varied = scenario(factors={"victims.a.threads": [1, 2, 3], "aggressor.threads": [1, 2]})
    assert set(concerning(varied, varied.factors, "a.b")) == {"aggressor.threads"}
    assert [name for name, _, _ in trials(varied)] == ["a"] * 6 + ["a.b"] * 2


@given(
    st.lists(st.integers(1, 1024), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(1, 10_000), min_size=1, max_size=4, unique=True),
)
def test_there_are_as_many_scenarios_as_combinations_and_all_differ(threads: list[int], weights: list[int]):
    result = expand(scenario(factors={"victim.threads": threads, "victim.sandbox.cpu_weight": weights}))
    assert len(result) == len(threads) * len(weights)
    assert len({repr(applied.victims) for _, applied in result}) == len(result)


LINKED = "victims.a.sandbox.{cpu_limit,cpu_reservation}"


def test_names_in_braces_get_the_same_level_and_are_switched_live_together():
    assert targets(scenario(), LINKED) == (
        ("victims", "a", "sandbox", "cpu_limit"),
        ("victims", "a", "sandbox", "cpu_reservation"),
    )
    sandbox = apply(scenario(), LINKED, 0.5).victims["a"].sandbox
    assert (sandbox.cpu_limit, sandbox.cpu_reservation) == (0.5, 0.5)
    live, static = split(scenario(factors={LINKED: [0.5], "victims.a.b.sandbox.cpu_reservation": [0.5]}))
    assert list(live) == [LINKED]
    assert list(static) == ["victims.a.b.sandbox.cpu_reservation"]
    with pytest.raises(FactorError, match="'cpu_lim' is not a key"):
        targets(scenario(), "victims.a.sandbox.{cpu_lim,cpu_reservation}")


def test_braces_that_would_name_too_many_keys_are_refused_before_they_are_expanded():
    with pytest.raises(FactorError, match="more than 64 keys"):
        targets(scenario(), "victims.a." + "{a,b}" * 60)
