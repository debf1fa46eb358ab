"""Which settings of a scenario a controller holds, and what is said of those that none can hold here."""

import pytest

from partywall.host import Host
from partywall.run.document.scenario import Scenario
from partywall.run.plan.requirements import sandboxes
from partywall.sandbox import cgroups, delegation, needs, remedies
from partywall.sandbox.cgroups import Cgroups

ALICE = Host({}, euid=1000)


def scenario(sandbox, **more):
    return Scenario.model_validate(
        {"partywall": 1, "name": "x", "victims": {"v": {"probe": "integer", "sandbox": sandbox}}} | more
    )


def test_each_setting_has_its_controller():
    box = {"backend": "container", "cpu_limit": 0.5, "memory": "1GiB", "disk": {"read_bps": "1MB/s"}}
    assert needs.controllers_by_setting(sandboxes(scenario(box))) == {
        "victims.v.sandbox.cpu_limit": "cpu",
        "victims.v.sandbox.memory": "memory",
        "victims.v.sandbox.disk": "io",
    }


def test_a_factor_s_setting_counts_and_a_process_has_none():
    levels = {"victims.v.sandbox.disk.read_bps": ["1MB/s", "2MB/s"]}
    varied = scenario({"backend": "container"}, factors=levels)
    assert needs.controllers_by_setting(sandboxes(varied)) == {"victims.v.sandbox.disk": "io"}
    assert needs.controllers_by_setting(sandboxes(scenario({}))) == {}


def test_a_container_s_nodes_need_cpuset_and_a_guest_s_none():
    box = {"backend": "container", "memory_nodes": 0}
    assert needs.controllers_by_setting(sandboxes(scenario(box))) == {"victims.v.sandbox.memory_nodes": "cpuset"}
    assert needs.controllers_by_setting(sandboxes(scenario(box | {"backend": "qemu"}))) == {}


def test_qemu_holds_a_guest_s_memory_and_disk_by_itself():
    guest = {"backend": "qemu", "memory": "1GiB", "cpu_weight": 50}
    assert needs.controllers_by_setting(sandboxes(scenario(guest))) == {"victims.v.sandbox.cpu_weight": "cpu"}


@pytest.fixture
def delegated(monkeypatch, tmp_path):
    """An ordinary user in a scope with cpu and memory."""
    there = frozenset({"cpu", "memory", "pids"})
    tree = Cgroups(unified=tmp_path, unified_controllers=frozenset({"cpu", "io", "memory"}))
    monkeypatch.setattr(cgroups, "read", lambda *_: tree)
    monkeypatch.setattr(delegation, "find", lambda *_: delegation.Scope(tmp_path, "/s.scope", there))
    monkeypatch.setattr(delegation, "manager_controllers", lambda *_: there)
    monkeypatch.setattr(remedies, "lacking_namespaces", lambda *_: None)
    monkeypatch.setattr(needs.Runtime, "choose", lambda *_args, **_more: None)


@pytest.mark.usefixtures("delegated")
def test_in_a_scope_only_what_lacks_its_controller_is_refused():
    box = {"backend": "container", "cpu_limit": 0.5, "disk": {"read_bps": "1MB/s"}}
    (problem,) = needs.lacking_for_cgroups(sandboxes(scenario(box)), ALICE)
    assert problem.key == "victims.v.sandbox.disk"
    assert "controller io" in problem.message
    assert "Delegate=" in problem.remedy


@pytest.mark.usefixtures("delegated")
def test_outside_a_scope_containers_are_refused_once(monkeypatch):
    monkeypatch.setattr(delegation, "find", lambda *_: None)
    monkeypatch.setattr(remedies, "manager_runs", lambda *_: True)
    (problem,) = needs.lacking_for_cgroups(sandboxes(scenario({"backend": "container", "cpu_limit": 0.5})), ALICE)
    assert problem.key == "victims.v"
    assert problem.remedy.startswith("use backend: process")
    assert "systemd-run --user --scope" in problem.remedy
