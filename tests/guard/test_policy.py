from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partywall import units
from partywall.errors import CapabilityError, UsageError
from partywall.guard.check import loads
from partywall.guard.document import Policy
from partywall.guard.measure.flatten import flatten
from partywall.guard.measure.resolve import VifPlace, resolve
from partywall.guard.promised import sums
from tests.guard.policy_corpus import ALSO, BAD, GOOD

WITHOUT_CLASSES = GOOD.replace(", service_class: silver}", "}")
PLACES = {
    "vm1": VifPlace("vnet0", None, False),
    "vm2": VifPlace("eth0", "/run/netns/blue", True),
    "vm3": VifPlace("vnet1", None, False),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_policy_is_reported_with_line_key_and_remedy(name: str) -> None:
    old, new, line, key, words = BAD[name]
    good = GOOD.replace(*ALSO[name]) if name in ALSO else GOOD
    assert old in good
    with pytest.raises(UsageError) as raised:
        loads(good.replace(old, new), "p.yaml")
    result = [p for p in raised.value.problems if p.key == key and words in str(p)]
    assert result, str(raised.value)
    assert line is None or result[0].line == line
    assert result[0].file == "p.yaml"
    assert result[0].remedy


def test_a_policy_without_service_classes_has_one_for_all_and_the_check_says_so() -> None:
    lines = [line for line in WITHOUT_CLASSES.splitlines() if "service_class" not in line]
    policy = loads("\n".join([*lines, ""]))
    assert policy.has_default_class
    assert {leaf["priority"] for leaf in flatten(policy, PLACES).start["leaves"]} == {1}
    assert "the policy has no service_classes, so all vifs are in one class (default)" in "\n".join(sums(policy))


def test_a_vif_without_a_service_class_is_in_the_only_one() -> None:
    lines = [line for line in WITHOUT_CLASSES.splitlines() if "service_class" not in line]
    policy = loads("\n".join([*lines, "service_classes: {only: 3}", ""]))
    assert not policy.has_default_class
    assert {policy.class_of(vif) for vif in policy.vifs.values()} == {"only"}
    assert "has no service_classes" not in "\n".join(sums(policy))


def test_all_mistakes_are_reported_at_once() -> None:
    spoilt = GOOD.replace("service_class: gold", "service_class: glod").replace("5000-5100", "0")
    with pytest.raises(UsageError) as raised:
        loads(spoilt)
    assert [problem.line for problem in raised.value.problems] == [16, 20]


def test_the_flat_form_names_everything_by_number() -> None:
    flat = flatten(loads(GOOD), PLACES)
    assert flat.leaves == ("vm1", "vm2", "vm2:voice", "vm2:bulk", "vm2 (receives)", "vm3")
    start = flat.start
    hooks = [(hook["interface"], hook["direction"], hook["leaf"], hook["hold"]) for hook in start["hooks"]]
    assert hooks == [
        ("vnet0", "ingress", 0, True),
        ("eth0", "egress", 1, True),
        ("eth0", "ingress", 4, True),
        ("vnet1", "ingress", 5, False),
    ]
    assert start["hooks"][1]["rules"] == [
        {"leaf": 2, "protocol": 17, "ports": (5000, 5100), "dscp": None},
        {"leaf": 3, "protocol": None, "ports": None, "dscp": 8},
    ]
    guarantees = [leaf["guarantee_bps"] for leaf in start["leaves"]]
    assert guarantees == [150_000_000, 690_000_000, 10_000_000, 0, 0, 150_000_000]
    totals = [(total["name"], total["ceiling_bps"], total["ceiling_pps"]) for total in start["totals"]]
    assert totals == [("acme", 400_000_000, 80_000), ("vm2", 900_000_000, None)]
    assert [leaf["totals"] for leaf in start["leaves"]] == [[0], [1], [1], [1], [], [0]]
    assert start["fallback_after_ns"] == 1_000_000_000


def test_flow_classes_share_their_vifs_limits_and_their_tenants() -> None:
    mine = GOOD.replace("service_class: gold\n", "service_class: gold\n    tenant: acme\n")
    policy = loads(mine.replace("ceiling: 400Mbit/s", "ceiling: 1Gbit/s"))
    start = flatten(policy, PLACES).start
    assert [total["name"] for total in start["totals"]] == ["acme", "vm2"]
    assert [leaf["totals"] for leaf in start["leaves"]] == [[0], [1, 0], [1, 0], [1, 0], [], [0]]


def test_flow_classes_of_what_is_received_are_hooked_on_the_way_in() -> None:
    policy = loads(GOOD.replace("bulk: {dscp: 8,", "bulk: {way: receive, dscp: 8,"))
    start = flatten(policy, PLACES).start
    names = [leaf["name"] for leaf in start["leaves"]]
    assert names == ["vm1", "vm2", "vm2:voice", "vm2 (receives)", "vm2 (receives):bulk", "vm3"]
    inward = start["hooks"][2]
    assert (inward["direction"], inward["leaf"], inward["rules"][0]["leaf"]) == ("ingress", 3, 4)
    assert [leaf["pool"] for leaf in start["leaves"]] == [0, 0, 0, 1, 1, 0]
    assert start["totals"][-1]["ceiling_bps"] == 500_000_000


def test_a_goal_in_delay_is_of_all_that_its_service_class_sends_and_bounds_what_may_wait() -> None:
    policy = loads(GOOD.replace("{gold: 2,", "{gold: {priority: 2, delay: 2ms},"))
    start = flatten(policy, PLACES, links={"": VifPlace("eth1", None, False)}).start
    assert start["pools"][0]["link"] == {"namespace": None, "interface": "eth1"}
    assert start["goals"] == [
        {"name": "gold", "pool": 0, "delay_ns": 2_000_000, "jitter_ns": None, "leaves": [1, 2, 3]}
    ]
    assert [leaf["hold_ns"] for leaf in start["leaves"]][:3] == [20_000_000, 1_000_000, 1_000_000]


def test_promised_packets_are_divided_among_a_vif_and_its_flow_classes() -> None:
    more = GOOD.replace("capacity: 1Gbit/s", "capacity: 1Gbit/s, packets: 100k/s")
    more = more.replace("guarantee: 700Mbit/s,", "guarantee: 700Mbit/s, packets_guarantee: 50k/s,")
    start = flatten(loads(more.replace("guarantee: 10Mbit/s", "packets_guarantee: 10k/s")), PLACES).start
    assert [leaf["guarantee_pps"] for leaf in start["leaves"]] == [0, 40_000, 10_000, 0, 0, 0]
    assert start["pools"][0]["capacity_pps"] == 100_000


def test_a_vif_is_found_by_the_sandbox_of_a_run_that_is_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path))
    policy = loads(GOOD.replace("namespace: blue", "sandbox: web"))
    with pytest.raises(UsageError, match=r"vifs\.vm2: no run has a container called 'web' now"):
        resolve(policy)
    for run in ("run-a", "run-b"):
        bundle = tmp_path / run / "bundles" / "web"
        bundle.mkdir(parents=True)
        (bundle / "pid").write_text(f"{os.getpid()}\n")
        if run == "run-a":
            assert resolve(policy)["vm2"] == VifPlace("eth0", f"/proc/{os.getpid()}/ns/net", True)
    # A run that has just ended, whose file can no longer be read.
    (tmp_path / "run-0" / "bundles" / "web" / "pid").mkdir(parents=True)
    with pytest.raises(UsageError, match="several runs have a sandbox 'web': run-a, run-b"):
        resolve(policy)
    named = loads(GOOD.replace("namespace: blue", "sandbox: run-b/web"))
    assert resolve(named)["vm2"].inside


def test_a_policy_that_keeps_the_last_rates_never_falls_back() -> None:
    policy = loads(GOOD.replace("name: edge", "name: edge\nif_daemon_dies: keep"))
    assert flatten(policy, PLACES).start["fallback_after_ns"] is None


def test_a_vif_in_a_namespace_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"vifs\.vm2: there is no network namespace 'blue'"):
        resolve(loads(GOOD), tmp_path)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(Policy.model_fields)), st.one_of(st.none(), st.integers(), st.text())))
def test_any_values_are_a_policy_or_reported(data: dict[str, object]) -> None:
    lines = "\n".join(f"{key}: {value!r}" for key, value in data.items())
    with pytest.raises(UsageError):
        loads(lines)


@pytest.mark.parametrize(
    ("text", "bps"), [("150Mbit/s", 150_000_000), ("1Gbit/s", 10**9), ("64kbit/s", 64_000), ("10 Mbps", 10_000_000)]
)
def test_bit_rates_are_read_with_their_unit(text: str, bps: int) -> None:
    assert units.parse_bit_rate(text) == bps


@pytest.mark.parametrize(("text", "pps"), [("20k/s", 20_000), ("20kp/s", 20_000), (600, 600), ("1Mpps", 10**6)])
def test_packet_rates_are_read(text: str | int, pps: int) -> None:
    assert units.parse_packet_rate(text) == pps


def test_what_a_tenants_vifs_receive_is_bound_together() -> None:
    more = GOOD.replace("packets: 80k/s}", "packets: 80k/s, receive: {ceiling: 300Mbit/s, packets: 9k/s}}")
    start = flatten(loads(more), PLACES).start
    receives = next(at for at, total in enumerate(start["totals"]) if total["name"] == "acme (receives)")
    assert (start["totals"][receives]["ceiling_bps"], start["totals"][receives]["ceiling_pps"]) == (300_000_000, 9_000)
    bound = [leaf["name"] for leaf in start["leaves"] if receives in leaf["totals"]]
    assert bound == ["vm1 (receives)", "vm3 (receives)"]
    assert all(leaf["pool"] == 1 for leaf in start["leaves"] if receives in leaf["totals"])


def virsh(monkeypatch: pytest.MonkeyPatch, run: Callable[..., subprocess.CompletedProcess[str]]) -> Policy:
    monkeypatch.setattr(shutil, "which", lambda _tool: "/usr/bin/virsh")
    monkeypatch.setattr(subprocess, "run", run)
    return loads(
        GOOD.replace("    interface: vnet1", "    domain: web\n    tap: 2").replace("blue", f"pid:{os.getpid()}")
    )


def test_any_tap_of_a_domain_can_be_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    def two_taps(*_args: object, **_more: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, " vnet7 network default\n vnet8 network other\n", "")

    assert resolve(virsh(monkeypatch, two_taps))["vm3"] == VifPlace("vnet8", None, False)


def test_a_tap_that_a_domain_does_not_have_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_tap(*_args: object, **_more: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, " vnet7 network default\n", "")

    with pytest.raises(UsageError, match=r"vifs\.vm3: libvirt domain 'web' has no tap 2; it has 1: vnet7"):
        resolve(virsh(monkeypatch, one_tap))


def test_a_virsh_that_does_not_answer_is_reported_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_args: object, **_more: object) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired("virsh", 10)

    with pytest.raises(CapabilityError, match="domain 'web': virsh did not answer within 10 s"):
        resolve(virsh(monkeypatch, silent))


def test_a_domain_and_an_interface_that_are_one_tap_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(*_args: object, **_more: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, " vnet7 network default\n vnet0 network other\n", "")

    with pytest.raises(UsageError, match=r"vifs\.vm3: it is the interface vnet0 that vm1 is already"):
        resolve(virsh(monkeypatch, same))


def test_a_namespace_that_may_not_be_looked_at_is_reported_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_path: Path) -> bool:
        raise PermissionError

    monkeypatch.setattr(Path, "exists", refused)
    with pytest.raises(CapabilityError, match="blue cannot be accessed; run with sudo"):
        resolve(loads(GOOD), tmp_path)
