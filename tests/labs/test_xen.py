"""The guard's part of the Xen lab: its policy, its guests and its judgement. The lab itself takes too long here."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from labs.xen import network
from labs.xen.network import CEILING_BPS, FLOOD, GUARANTEE_BPS, LINK_BPS, OFFERED_BPS, STEADY, Held, Rates
from partywall import guard
from partywall.errors import TrialError

FREE = {STEADY: Rates(OFFERED_BPS, 0.3 * OFFERED_BPS), FLOOD: Rates(5 * LINK_BPS, 0.8 * LINK_BPS)}
GUARDED = {STEADY: Rates(OFFERED_BPS, OFFERED_BPS), FLOOD: Rates(5 * LINK_BPS, CEILING_BPS)}
HELD = Held(free=FREE, guarded=GUARDED, after=FREE, left=(), kernel="6.1", xen="4.17")


def test_the_policy_is_good_and_names_the_guests_by_their_domains(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(json.dumps(network.policy()))
    policy = guard.load(file)
    assert {name: vif.domain for name, vif in policy.vifs.items()} == {
        STEADY: network.domain(STEADY),
        FLOOD: network.domain(FLOOD),
    }
    assert policy.vifs[FLOOD].send.ceiling == CEILING_BPS
    assert policy.vifs[STEADY].send.guarantee == GUARANTEE_BPS > OFFERED_BPS


def test_a_guest_has_an_interface_on_the_bridge_and_sends_to_its_own_sink():
    texts = (network.guest(name) for name in (STEADY, FLOOD))
    first, second = (ET.fromstring(text) for text in texts)  # noqa: S314 - our own
    assert first.get("type") == "xen"
    assert first.find("devices/interface/source").get("bridge") == network.BRIDGE
    assert first.findtext("os/cmdline").endswith("-- init --console /dev/hvc0 198.18.1.1/16 198.18.2.1:9 958 500")
    assert second.findtext("os/cmdline").endswith(" 198.18.1.2/16 198.18.2.2:9 958 null")
    macs = {guest.find("devices/interface/mac").get("address") for guest in (first, second)}
    assert len(macs) == 2


def test_rates_come_from_two_readings_of_the_counters():
    text = "10.00\n100\n50\n0\n0\n12.00\n350\n175\n1000\n0\n"
    assert network.FRAME_BYTES == 1000
    assert network.rates(text, (STEADY, FLOOD)) == {STEADY: Rates(1e6, 0.5e6), FLOOD: Rates(4e6, 0)}
    assert network.span_s(text, 2) == 2
    with pytest.raises(TrialError, match="counters cannot be read: '10"):
        network.rates("10.00\n1000\n", (STEADY, FLOOD))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"free": FREE | {FLOOD: Rates(LINK_BPS, LINK_BPS)}}, "too little to show anything"),
        ({"guarded": GUARDED | {FLOOD: Rates(5 * LINK_BPS, 1.1 * CEILING_BPS)}}, "passed a ceiling of 3.00 Mbit/s"),
        ({"guarded": GUARDED | {STEADY: Rates(OFFERED_BPS, 0.9 * OFFERED_BPS)}}, "only 3.60 Mbit/s of 4.00 Mbit/s"),
        ({"left": ("qdisc clsact",)}, "the guard left qdisc clsact"),
    ],
)
def test_what_does_not_hold_is_named(changed, said):
    assert HELD.faults == []
    (fault,) = replace(HELD, **changed).faults
    assert said in fault


def test_a_steady_guest_that_offers_more_than_its_guarantee_is_owed_the_guarantee():
    more = GUARDED | {STEADY: Rates(2 * GUARANTEE_BPS, GUARANTEE_BPS)}
    assert replace(HELD, guarded=more).faults == []
