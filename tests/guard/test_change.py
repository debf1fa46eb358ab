"""What of a policy can be changed while its guard runs."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from partywall.errors import UsageError
from partywall.guard.change import changes, refuse
from partywall.guard.check import loads
from partywall.guard.document import Policy
from tests.guard.policy_corpus import replaced
from tests.guard.records import guard, guard_record

TEXT = """partywall_guard: 1
name: edge
link: {capacity: 1Gbit/s}
tenants:
  acme: {ceiling: 500Mbit/s}
vifs:
  vm1: {interface: eth1, tenant: acme, send: {guarantee: 100Mbit/s, packets: 20k/s}}
  vm2:
    interface: eth2
    send: {guarantee: 200Mbit/s}
    flows: {voice: {protocol: udp, guarantee: 10Mbit/s}}
"""


def policy(text: str = TEXT) -> Policy:
    return loads(text)


changed = functools.partial(replaced, TEXT)


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (("guarantee: 100M", "guarantee: 150M"), ("vifs.vm1.send.guarantee: 100 Mbit/s → 150 Mbit/s",)),
        (("packets: 20k", "packets: 30k"), ("vifs.vm1.send.packets: 20 kp/s → 30 kp/s",)),
        (("ceiling: 500M", "ceiling: 600M"), ("tenants.acme.ceiling: 500 Mbit/s → 600 Mbit/s",)),
        (("guarantee: 10M", "guarantee: 20M"), ("vifs.vm2.flows.voice.guarantee: 10 Mbit/s → 20 Mbit/s",)),
        (("link: {capacity: 1G", "period: 20ms\nlink: {capacity: 2G"),
         ("link.capacity: 1 Gbit/s → 2 Gbit/s", "period: 50 ms → 20 ms")),
        (("vm1: {", "vm1: {burst: 20ms, "), ("vifs.vm1.burst: none → 20 ms",)),
    ],
)  # fmt: skip
def test_promises_and_times_can_be_changed(pair: tuple[str, str], said: tuple[str, ...]) -> None:
    new = policy(changed(pair))
    refuse(policy(), new)
    assert changes(policy(), new) == said


@pytest.mark.parametrize(
    ("pair", "named"),
    [
        (("vm1:", "vm3:"), ("vif 'vm3' is not in the running policy", "vif 'vm1' of the running policy is missing")),
        (("name: edge", "name: other"), ("called 'other'",)),
        (("interface: eth2", "interface: eth9"), ("interface of vif 'vm2'",)),
        (("interface: eth2", "interface: eth2\n    excess: drop"), ("excess of vif 'vm2'",)),
        (("interface: eth2", "interface: eth2\n    receive: {ceiling: 1Mbit/s}"), ("received traffic of vif 'vm2'",)),
        (("voice:", "video:"), ("flow class of vif 'vm2' 'video'", "'voice' of the running policy is missing")),
        (("protocol: udp", "protocol: tcp"), ("flow class 'voice' of vif 'vm2'",)),
        (("link: {", "queue: tbf\nlink: {"), ("kind of queue",)),
        (("capacity: 1G", "interface: eth0, capacity: 1G"), ("interface of the link",)),
    ],
)  # fmt: skip
def test_what_decides_where_packets_are_counted_is_refused_by_name(
    pair: tuple[str, str], named: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as refused:
        refuse(policy(), policy(changed(pair)), "edge.yaml")
    for text in (*named, "start the guard"):
        assert text in str(refused.value)


def test_the_command_sends_a_checked_policy_to_a_running_guard_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = guard_record(tmp_path / "series", TEXT)
    new = tmp_path / "edge.yaml"
    new.write_text(changed(("guarantee: 100M", "guarantee: 150M")))
    with pytest.raises(UsageError, match="has ended, so its policy cannot be changed"):
        guard("adjust", record.path, new)
    with record.exclusive():
        assert guard("adjust", record.path, new) == 0
        assert capsys.readouterr().out == "vifs.vm1.send.guarantee: 100 Mbit/s → 150 Mbit/s\n"
        new.write_text(changed(("vm1:", "vm3:")))
        with pytest.raises(UsageError, match="'vm3' is not in the running policy"):
            guard("adjust", record.path, new)
    assert (record.path / "control.jsonl").read_text().count("\n") == 1
