"""Who is looked up again, and when."""

from __future__ import annotations

import pytest

from partywall.errors import Problem, UsageError
from partywall.guard import follow
from partywall.guard.follow import Follower
from partywall.guard.resolve import VifPlace
from partywall.guard.run import Report
from partywall.model.policy import Policy, Vif

Where = dict[str, VifPlace | Exception]


def tap(name: str) -> VifPlace:
    return VifPlace(name, None, inside=False)


def note(*notes: tuple[str, str]) -> Report:
    return Report(0, 1, {}, {}, tuple((about, kind, "") for about, kind in notes), 0, 0)


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch) -> Where:
    """Where each domain is now."""
    places: Where = {"web": tap("vnet0"), "db": tap("vnet1")}

    def find(vif: Vif) -> VifPlace:
        found = places[vif.domain or ""]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(follow, "locate", find)
    monkeypatch.setattr(follow, "AGAIN_S", 0.0)
    return places


def follower() -> Follower:
    vifs = {
        "a": {"domain": "web", "service_class": "only"},
        "b": {"domain": "db", "service_class": "only"},
        "c": {"interface": "vnet2", "service_class": "only"},
    }
    content = {"partywall_guard": 1, "name": "p", "link": {"capacity": "1Gbit/s"}, "service_classes": {"only": 1}}
    found = {"a": tap("vnet0"), "b": tap("vnet1"), "c": tap("vnet2")}
    return Follower(Policy.model_validate(content | {"vifs": vifs}), found)


def test_nobody_is_looked_up_before_he_is_lost(where: Where) -> None:
    one = follower()
    where["web"] = tap("vnet9")
    one.hear(note(("c", "lost"), ("b", "exceeded")))
    assert one.moved() == {}


@pytest.mark.parametrize("error", [UsageError(Problem("no tap now", "start it")), FileNotFoundError("pid")])
def test_who_is_lost_is_looked_up_until_he_is_found_and_the_guard_was_told(where: Where, error: Exception) -> None:
    one = follower()
    where["web"] = error
    one.hear(note(("a (receives)", "lost")))
    assert [one.moved(), one.moved()] == [{}, {}]
    where["web"] = tap("vnet9")
    assert [one.moved(), one.moved()] == [{"a": tap("vnet9")}] * 2, "the guard could not be told the first time"
    one.went({"a": tap("vnet9")})
    one.hear(note(("a", "repaired")))
    assert one.moved() == {}


def test_an_interface_of_the_same_name_may_be_anothers(where: Where) -> None:
    """Two domains that are started anew in another order exchange their taps."""
    one = follower()
    where |= {"web": tap("vnet1"), "db": tap("vnet0")}
    one.hear(note(("a", "repaired"), ("b", "repaired")))
    for name, place in (("a", tap("vnet1")), ("b", tap("vnet0"))):
        assert one.moved() == {name: place}
        one.went({name: place})
    assert [one.moved(), one.moved()] == [{}, {}]


@pytest.mark.parametrize("held", ["vnet1", "vnet2"])
def test_nobody_is_moved_to_where_another_is_for_sure(where: Where, held: str) -> None:
    one = follower()
    where["web"] = tap(held)
    one.hear(note(("a", "lost")))
    assert one.moved() == {}
