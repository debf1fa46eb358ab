"""Who is looked up again, and when."""

from __future__ import annotations

import pytest

from partywall.errors import Problem, UsageError
from partywall.guard.document import Policy, Vif
from partywall.guard.measure import follow
from partywall.guard.measure.follow import Follower
from partywall.guard.measure.resolve import VifPlace
from partywall.guard.record import GuardInterval

Where = dict[str, VifPlace | Exception]


def tap(name: str) -> VifPlace:
    return VifPlace(name, None, inside=False)


def note(*notes: tuple[str, str]) -> GuardInterval:
    return GuardInterval(0, 1, {}, {}, tuple((about, kind, "") for about, kind in notes), 0, 0)


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch) -> Where:
    """Where each domain is now."""
    places: Where = {"web": tap("vnet0"), "db": tap("vnet1")}

    def find(vif: Vif) -> VifPlace:
        result = places[vif.domain or ""]
        if isinstance(result, Exception):
            raise result
        return result

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
    result = {"a": tap("vnet0"), "b": tap("vnet1"), "c": tap("vnet2")}
    return Follower(Policy.model_validate(content | {"vifs": vifs}), result)


def test_nobody_is_looked_up_before_he_is_lost(where: Where) -> None:
    each = follower()
    where["web"] = tap("vnet9")
    each.hear(note(("c", "lost"), ("b", "exceeded")))
    assert each.moved() == {}


@pytest.mark.parametrize("error", [UsageError(Problem("no tap now", "start it")), FileNotFoundError("pid")])
def test_who_is_lost_is_looked_up_until_he_is_found_and_the_guard_was_reported(where: Where, error: Exception) -> None:
    each = follower()
    where["web"] = error
    each.hear(note(("a (receives)", "lost")))
    assert [each.moved(), each.moved()] == [{}, {}]
    where["web"] = tap("vnet9")
    assert [each.moved(), each.moved()] == [{"a": tap("vnet9")}] * 2, "the guard could not be told the first time"
    each.went({"a": tap("vnet9")})
    each.hear(note(("a", "repaired")))
    assert each.moved() == {}


def test_an_interface_of_the_same_name_may_be_anothers(where: Where) -> None:
    """Two domains that are started anew in another order exchange their taps."""
    each = follower()
    where |= {"web": tap("vnet1"), "db": tap("vnet0")}
    each.hear(note(("a", "repaired"), ("b", "repaired")))
    for name, place in (("a", tap("vnet1")), ("b", tap("vnet0"))):
        assert each.moved() == {name: place}
        each.went({name: place})
    assert [each.moved(), each.moved()] == [{}, {}]


@pytest.mark.parametrize("held", ["vnet1", "vnet2"])
def test_nobody_is_moved_to_where_another_is_for_sure(where: Where, held: str) -> None:
    each = follower()
    where["web"] = tap(held)
    each.hear(note(("a", "lost")))
    assert each.moved() == {}
