"""What kernels hold is known before a run, and held against the host and against each sandbox's own limit."""

import pytest

from partywall import pipeline
from partywall.agent.catalogue import shipped
from partywall.agent.memory import AGENT_BYTES, RING_LEAST, caches_of, file_bytes, held_bytes
from partywall.errors import CapabilityError, UsageError
from partywall.model.scenario import Scenario, Workload

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
        ("memory-latency", {}, 1, RING_LEAST),
        ("memory-latency", {"bound_bytes": MIB}, 2, 2 * MIB),
        ("matrix-vector", {"size": 1000}, 2, 8 * (1_000_000 + 3000)),
        ("disk-read", {"queue_depth": 8, "request_blocks": 4}, 2, 2 * 8 * 4 * 8192),
        ("integer", {}, 9, 0),
        (None, {}, 1, 0),
    ],
)
def test_what_a_kernel_holds_follows_from_its_parameters_and_threads(kernel, params, threads, held):
    assert held_bytes(kernel, Workload(params=params, threads=threads), shipped(), CACHES) == held


def test_instruction_caches_hold_no_data():
    assert caches_of(FACTS) == {3: 32 * MIB}


def test_files_of_the_users_own_folder_do_not_count_for_the_work_folder():
    assert file_bytes("disk-read", Workload(params={"file_bytes": MIB}, threads=2), shipped()) == 2 * MIB
    assert file_bytes("disk-read", Workload(params={"path": "/else"}), shipped()) == 0


def planned(memory, monkeypatch):
    monkeypatch.setattr(pipeline, "check_host", lambda scenario: None)
    box = {"backend": "container", "memory": memory, "cpus": "same"}
    content = {
        "partywall": 1,
        "name": "tight",
        "victims": {"sum": {"probe": "integer"}},
        "aggressors": {"triad": {"stressor": "memory-triad", "threads": 2, "sandbox": box}},
    }
    return pipeline.plan(Scenario.model_validate(content), FACTS)


def test_a_kernel_that_its_own_sandbox_would_kill_is_refused_before_the_run(monkeypatch):
    with pytest.raises(UsageError) as caught:
        planned("256MiB", monkeypatch)
    (problem,) = caught.value.problems
    assert problem.key == "aggressors.triad.sandbox.memory"
    assert "400" in problem.message
    assert "give at least" in problem.remedy


def test_the_memory_check_counts_every_block_thread_and_agent(monkeypatch):
    (trial,) = planned("1GiB", monkeypatch).trials
    assert pipeline.memory_needed(trial, FACTS) == pipeline.MEMORY_LEAST + 2 * 3 * 64 * MIB + 2 * AGENT_BYTES


def test_files_that_do_not_fit_on_the_disk_are_refused_before_the_run(tmp_path):
    content = {
        "partywall": 1,
        "name": "full",
        "victims": {"file": {"probe": "disk-read", "params": {"file_bytes": 1 << 44}}},
    }
    plan = pipeline.plan(Scenario.model_validate(content), FACTS)
    with pytest.raises(CapabilityError, match="--work-dir"):
        pipeline.check_disk(plan, tmp_path)
