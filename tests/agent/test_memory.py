"""What kernels hold is known before a run, and held against the host and against each sandbox's own limit."""

import shutil

import pytest

from partywall.agent.catalogue import shipped
from partywall.agent.memory import AGENT_BYTES, caches_of, file_bytes, held_bytes, sized
from partywall.errors import CapabilityError, UsageError
from partywall.run import stages
from partywall.run.document.scenario import Scenario
from partywall.run.plan import room
from partywall.run.plan.room import memory_needed
from partywall.sandbox import qemu
from partywall.testing import fake_host, read

MIB = 1 << 20
CACHES = {1: 32 << 10, 2: MIB, 3: 32 * MIB}
FACTS = {
    "cpu": {
        "places": [],
        "caches": [
            {"level": 1, "holds": "instruction", "size_bytes": 99 * MIB, "shared_by": [0]},
            {"level": 3, "holds": "unified", "size_bytes": 32 * MIB, "shared_by": [0]},
        ],
    }
}


@pytest.mark.parametrize(
    ("kernel", "params", "threads", "held"),
    [
        ("memory-read", {"block_bytes": MIB}, 1, MIB),
        ("memory-copy", {"block_bytes": "1MiB"}, 1, 2 * MIB),
        ("memory-triad", {}, 2, 2 * 3 * 64 * MIB),
        ("memory-space", {"bound_bytes": 5 * MIB}, 4, 5 * MIB),
        ("memory-space", {}, 4, 0),
        ("cache", {}, 1, 40 * MIB),
        ("cache", {"level": "L2"}, 2, 2 * MIB * 5 // 4),
        ("cache", {"bytes": MIB}, 3, 3 * MIB),
        ("memory-latency", {}, 1, 256 * MIB),
        ("memory-latency", {"bound_bytes": MIB}, 2, 2 * MIB),
        ("matrix-vector", {"size": 1000}, 2, 8 * (1_000_000 + 3000)),
        ("shared-memory", {"slots": 64, "message_bytes": "1MiB"}, 2, 2 * 66 * MIB),
        ("pipe", {}, 3, 3 * 2 * 65536),
        ("tcp-stream", {"message_bytes": 1000}, 1, 2000),
        ("disk-read", {"queue_depth": 8, "request_blocks": 4}, 2, 2 * 8 * 4 * 8192),
        ("disk-direct-write", {"queue_depth": 8, "request_bytes": "1MiB"}, 1, 8 * MIB),
        ("disk-reread", {}, 1, 8192),
        ("udp-send", {}, 9, 0),
        ("integer", {}, 9, 0),
        (None, {}, 1, 0),
    ],
)
def test_what_a_kernel_holds_follows_from_its_parameters_and_threads(kernel, params, threads, held):
    assert held_bytes(kernel, params, threads, shipped(), CACHES) == held


def test_what_is_read_before_the_work_needs_room_on_the_disk_once():
    params = {"file_bytes": "2MiB", "read_before_bytes": "4GiB"}
    assert file_bytes("disk-read", params, 3, shipped()) == 3 * 2 * MIB + 4096 * MIB


@pytest.mark.parametrize(
    ("kernel", "params", "caches", "sized_as"),
    [
        ("cache", {}, CACHES, {"bytes": 40 * MIB}),
        ("cache", {"level": "L2", "order": "random"}, CACHES, {"order": "random", "bytes": MIB * 5 // 4}),
        ("cache", {"bytes": MIB}, CACHES, {"bytes": MIB}),
        ("cache", {"level": "L3"}, {1: 32 << 10}, {"level": "L3"}),
        ("memory-latency", {}, CACHES, {"bytes": 256 * MIB}),
        ("memory-latency", {}, {3: 384 * MIB}, {"bytes": 1 << 30}),
        ("memory-latency", {"bound_bytes": "300MiB"}, {3: 384 * MIB}, {"bound_bytes": "300MiB", "bytes": 300 * MIB}),
        ("memory-latency", {}, {}, {}),
        ("memory-copy", {}, CACHES, {}),
        (None, {}, CACHES, {}),
    ],
)
def test_a_guests_ring_is_as_large_as_the_hosts_caches_ask_for(kernel, params, caches, sized_as):
    assert sized(kernel, params, shipped(), caches) == sized_as


def test_instruction_caches_hold_no_data():
    assert caches_of(FACTS) == {3: 32 * MIB}


def test_files_of_the_users_own_folder_do_not_count_for_the_work_folder():
    assert file_bytes("disk-read", {"file_bytes": MIB}, 2, shipped()) == 2 * MIB
    assert file_bytes("disk-read", {"path": "/else"}, 1, shipped()) == 0


@pytest.fixture(autouse=True)
def guest_kernel(tmp_path, monkeypatch):
    """A kernel for guests, of which only its being there counts."""
    folder = tmp_path / "guest-kernel"
    folder.mkdir()
    (folder / "kernel.json").write_text('{"release": "6.1.0", "source": "made up", "modules": []}')
    (folder / "vmlinuz").touch()
    monkeypatch.setenv("PARTYWALL_CACHE", str(tmp_path))


def host(tmp_path, **changes):
    """A host with version 2 of cgroups."""
    tree = """
/proc/self/mountinfo = 30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
/sys/fs/cgroup/cgroup.controllers = cpuset cpu io memory pids
"""
    read(tree).lay_out(tmp_path)
    return fake_host(FACTS, root=tmp_path, **changes)


def planned(memory, host):
    box = {"backend": "container", "memory": memory, "cpus": "same"}
    content = {
        "partywall": 1,
        "name": "tight",
        "victims": {"sum": {"probe": "integer"}},
        "aggressors": {"triad": {"stressor": "memory-triad", "threads": 2, "sandbox": box}},
    }
    return stages.plan(Scenario.model_validate(content), host)


def test_a_kernel_that_its_own_sandbox_would_kill_is_refused_before_the_run(tmp_path):
    with pytest.raises(UsageError) as caught:
        planned("256MiB", host(tmp_path))
    (problem,) = caught.value.problems
    assert problem.key == "aggressors.triad.sandbox.memory"
    assert "400" in problem.message
    assert "give at least" in problem.remedy


def test_the_memory_check_counts_every_block_thread_and_agent(tmp_path):
    (trial,) = planned("1GiB", host(tmp_path)).trials
    assert memory_needed(trial, FACTS) == room.MEMORY_LEAST + 2 * 3 * 64 * MIB + 2 * AGENT_BYTES


def guests(host, victim, aggressor, **changes):
    content = {
        "partywall": 1,
        "name": "guests",
        "victims": {"sum": {"probe": "integer", "sandbox": {"backend": "qemu", "accel": "tcg"} | victim}},
        "aggressors": {
            "ram": {
                "stressor": "memory-write",
                "threads": 16,
                "sandbox": {"backend": "qemu", "accel": "tcg", "cpus": "same"} | aggressor,
            }
        },
    }
    return stages.plan(Scenario.model_validate(content | changes), host)


def test_a_guest_has_room_for_what_its_kernel_of_work_holds_unless_it_was_reported_how_much(tmp_path):
    (trial,) = guests(host(tmp_path), {}, {}).trials
    assert trial.victim.sandbox.memory is None
    held = qemu.memory_for(16 * 64 * MIB + AGENT_BYTES)
    assert held <= trial.aggressors["ram"].sandbox.memory < held + 64 * MIB
    assert room.guest_memory(trial) == trial.aggressors["ram"].sandbox.memory + 2 * qemu.MEMORY
    with pytest.raises(UsageError, match=r"aggressors\.ram\.sandbox\.memory: its kernel and agent use"):
        guests(host(tmp_path), {}, {"memory": "512MiB"})


@pytest.mark.parametrize("memory", [128 * MIB, 512 * MIB, 1 << 30, 8 << 30])
def test_the_memory_for_programs_is_what_the_kernel_leaves(memory):
    left = memory - qemu.kernel_bytes(memory)
    assert 0 <= memory - qemu.memory_for(left) <= 1
    assert qemu.memory_for(left + 2) > memory


def test_a_small_guest_has_room_for_a_small_kernel(tmp_path):
    small = {"memory": "128MiB"}
    content = {"stressor": "disk-read", "sandbox": {"backend": "qemu", "accel": "tcg"} | small}
    (trial,) = guests(host(tmp_path), small, {}, aggressors={"disk": content}).trials
    assert trial.aggressors["disk"].sandbox.memory == 128 * MIB


@pytest.mark.parametrize(("backend", "own"), [("qemu", {"bytes": 40 * MIB}), ("process", {})])
def test_rings_in_guests_follow_from_the_hosts_caches_and_not_from_those_a_guest_is_reported(backend, own, tmp_path):
    box = {"sandbox": {"backend": backend} | ({"accel": "tcg"} if backend == "qemu" else {})}
    content = {"partywall": 1, "name": "rings", "victims": {"ring": {"probe": "cache"} | box}}
    neighbours = {"far": {"stressor": "memory-latency"} | box}
    (trial,) = stages.plan(Scenario.model_validate(content | {"aggressors": neighbours}), host(tmp_path)).trials
    assert trial.victim.params == own
    assert trial.aggressors["far"].params == ({"bytes": 256 * MIB} if own else {})


def test_a_guest_whose_memory_is_switched_counts_with_the_most_of_it(tmp_path):
    changes = {"factors": {"victim.sandbox.memory": ["1GiB", "900GiB"]}, "budget": "10min"}
    with pytest.raises(CapabilityError, match=r"guests of one trial need 90\d\.\d+ GiB of memory"):
        guests(host(tmp_path, memory=1 << 38), {}, {}, **changes)


def test_a_host_that_does_not_tell_its_memory_is_not_refused_for_it(tmp_path):
    (trial,) = guests(host(tmp_path, memory=None), {}, {}).trials
    assert room.guest_memory(trial) > 0


def test_files_that_do_not_fit_on_the_disk_are_refused_before_the_run(tmp_path):
    content = {
        "partywall": 1,
        "name": "full",
        "victims": {"file": {"probe": "disk-read", "params": {"file_bytes": 1 << 44}}},
    }
    with pytest.raises(CapabilityError, match="--work-dir"):
        stages.plan(Scenario.model_validate(content), host(tmp_path, disk_usage=shutil.disk_usage), work_root=tmp_path)
