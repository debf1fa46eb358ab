"""What a person writes is understood, or every mistake in it is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partywall.errors import UsageError
from partywall.trace.hops import ask


def problems(*hops, **options):
    with pytest.raises(UsageError) as caught:
        ask(hops, **options)
    return [str(problem) for problem in caught.value.problems]


def test_names_processes_paths_and_agents_are_reported_apart():
    requested = ask(
        ["eth0", "web/eth0:out", "123/eth0", "/proc/9/ns/net/eth1:in", "vm1/ens3"],
        agents=["vm1=ssh vm1 'partywall-agent' serve"],
    )
    assert [(hop.namespace, hop.agent, hop.interface, hop.hook) for hop in requested.hops] == [
        (None, None, "eth0", None),
        ("web", None, "eth0", "out"),
        ("123", None, "eth0", None),
        ("/proc/9/ns/net", None, "eth1", "in"),
        (None, "vm1", "ens3", None),
    ]
    assert requested.agents == {"vm1": ("ssh", "vm1", "partywall-agent", "serve")}
    assert requested.one_way


def test_all_mistakes_are_reported_at_once():
    reported = problems(
        "eth0:up",
        "a/b/",
        horizon="10",
        budget="200%",
        protocol="tpc",
        address="here",
        nat=["1.2.3.4", "1.2.3:80=10.0.0.1"],
        agents=["vm1"],
    )
    for words in (
        "'eth0:up': 'up' is not a hook",
        "'a/b/' is not a hop",
        "--horizon",
        "200%",
        "'tpc'",
        "'here'",
        "'1.2.3.4'",
        "'vm1'",
    ):
        assert any(words in each for each in reported), words
    assert all("—" in each or "write" in each for each in reported), reported


@pytest.mark.parametrize("hops", [["eth0"], [f"v{n}" for n in range(9)], ["eth0", "eth0"]])
def test_a_path_has_two_to_eight_hops_each_once(hops):
    assert len(problems(*hops)) == 1


def test_translations_are_read_with_and_without_ports_in_both_versions():
    requested = ask(
        ["a", "b"], nat=["198.51.100.1:4000=10.0.0.5:80", "2001:db8::1=fd00::1", "[2001:db8::2]:5=[fd00::2]:6"]
    )
    ends = [(t.outside.address, t.outside.port, t.inside.address, t.inside.port) for t in requested.translations]
    assert ends == [
        ("198.51.100.1", 4000, "10.0.0.5", 80),
        ("2001:db8::1", None, "fd00::1", None),
        ("2001:db8::2", 5, "fd00::2", 6),
    ]


def test_an_agent_without_a_hop_is_a_mistake():
    assert "has no hop" in problems("a", "b", agents=["vm1=true"])[0]


@given(st.lists(st.text(max_size=30), max_size=10), st.text(max_size=20), st.text(max_size=20))
def test_any_text_is_requested_or_refused(hops, nat, protocol):
    try:
        requested = ask(hops, nat=[nat], protocol=protocol or None)
    except UsageError:
        return
    assert len(requested.hops) == len(hops)


def test_only_hops_of_this_host_can_be_counted():
    assert ask(["eth0", "eth1"], one_in=64).one_in == 64
    (problem,) = problems("eth0", "vm1/ens3", agents=["vm1=ssh vm1 agent"], one_in=64)
    assert "--one-in" in problem
    assert "another agent" in problem
    assert ask(["eth0", "vm1/ens3"], agents=["vm1=ssh vm1 agent"]).one_in == 1


@pytest.mark.parametrize("one_in", [0, -1, 1_000_001])
def test_the_share_of_recorded_packets_is_within_bounds(one_in):
    (problem,) = problems("eth0", "eth1", one_in=one_in)
    assert f"must be from 1 to 1,000,000, not {one_in}" in problem
