"""Interfaces of a policy under the other names that the kernel and `ip link` have for them."""

import os
import subprocess
from pathlib import Path

import pytest

from partywall.errors import UsageError
from partywall.guard.check import loads
from partywall.guard.measure.resolve import places
from partywall.sandbox.networks import own_name

POLICY = """partywall_guard: 1
name: names
link: {{capacity: 1Gbit/s, interface: "{link}"{namespace}}}
vifs:
  one: {{interface: "{vif}"{namespace}, send: {{ceiling: 100Mbit/s}}}}
"""


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def namespace():
    """A namespace with an interface pair, of which one has an alternative name."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    name = f"pw-names-{os.getpid()}"
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "add", "pwalt0", "type", "veth", "peer", "name", "pwalt1")
        ip("-n", name, "link", "property", "add", "dev", "pwalt0", "altname", "enp0s99pw")
        yield name
    finally:
        ip("netns", "del", name)


@pytest.mark.host
@pytest.mark.parametrize("given", ["pwalt0", "enp0s99pw", "pwalt0@pwalt1", "pwalt0@if7"])
def test_an_interface_is_found_by_each_of_its_names(namespace, given):
    policy = loads(POLICY.format(vif=given, link="pwalt1@pwalt0", namespace=f", namespace: {namespace}"))
    located, links = places(policy, Path("/run/netns"))
    assert located["one"].interface == "pwalt0"
    assert [place.interface for place in links.values()] == ["pwalt1"]


@pytest.mark.host
def test_two_names_of_one_interface_are_one_interface(namespace):
    text = POLICY.format(vif="pwalt0", link="pwalt1", namespace=f", namespace: {namespace}")
    text += f"  two: {{interface: enp0s99pw, namespace: {namespace}, send: {{ceiling: 1Mbit/s}}}}\n"
    with pytest.raises(UsageError, match="it is the interface pwalt0 that one is already"):
        places(loads(text), Path("/run/netns"))


def test_a_name_that_no_interface_has_stays_as_it_is():
    assert own_name("no-such-if0@eth9") == "no-such-if0@eth9"
    assert own_name("lo@if1") == own_name("lo") == "lo"
