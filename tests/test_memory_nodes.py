"""NUMA nodes that a scenario names for memory: what a host lacks for them, and how they reach a sandbox."""

import pytest
from typer.testing import CliRunner

from partywall.agent.catalogue import shipped
from partywall.cli.app import app
from partywall.cli.doctor import examined
from partywall.core.capability import Options
from partywall.errors import CapabilityError
from partywall.events import silent
from partywall.host import memory_nodes
from partywall.run.capability import Runs
from partywall.run.check import rules
from partywall.run.document import factors
from partywall.run.document.scenario import Scenario
from partywall.run.plan import Topology, make
from partywall.run.plan.requirements import sandboxes
from partywall.run.plan.room import check_node_memory
from partywall.run.plan.settings import settings_of
from partywall.run.record import RunDirectory
from partywall.sandbox.needs import lacking_nodes
from partywall.testing.hosts import fake_host

GIB = 1 << 30
FOUR = Topology((0, 1, 2, 3), ((0, 1), (2, 3)))


def node(number, cpus, size=8 * GIB):
    return {"node": number, "cpus": cpus, "total_bytes": size}


TWO_NODES = [node(0, [0, 1]), node(1, [2, 3])]


def host(nodes=TWO_NODES, tmp_path=None, allowed="0-1", **facts):
    """tmp_path: the folder of its files; without one it has none, and its allowed nodes are unknown."""
    where = {} if tmp_path is None else {"root": tmp_path}
    if tmp_path is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/status").write_text(f"Cpus_allowed_list:\t0-3\nMems_allowed_list:\t{allowed}\n")
    return fake_host({"memory": {"usable_bytes": 1 << 40, "nodes": nodes}} | facts, cpus=4, **where)


def scenario(box, other=None, **more):
    content = {"partywall": 1, "name": "x", "victims": {"v": {"probe": "integer", "sandbox": box}}, "budget": "10min"}
    if other is not None:
        content["aggressors"] = {"a": {"stressor": "integer", "sandbox": other}}
    return Scenario.model_validate(content | more)


def lacking(made, on):
    return [(problem.key, problem.message) for problem in lacking_nodes(sandboxes(made), on)]


GUEST = {"backend": "qemu", "memory_nodes": 1}


def test_nodes_that_can_hold_memory_are_accepted(tmp_path):
    assert lacking(scenario(GUEST, {"backend": "qemu", "memory_nodes": [0, 1]}), host(tmp_path=tmp_path)) == []
    assert lacking(scenario(GUEST), host()) == []
    assert lacking(scenario({"backend": "qemu"}), host(nodes=[])) == []


def test_a_node_that_does_not_exist_is_named_with_those_that_do():
    ((key, message),) = lacking(scenario(GUEST | {"memory_nodes": "1-2"}), host())
    assert key == "victims.v.sandbox.memory_nodes"
    assert message == "NUMA node 2 does not exist; usable: 0 (8 GiB, 2 CPUs), 1 (8 GiB, 2 CPUs)"


def test_a_node_without_memory_is_refused():
    ((_, message),) = lacking(scenario(GUEST), host(nodes=[node(0, [0, 1, 2, 3]), node(1, [], 0)]))
    assert message == "NUMA node 1 has no memory; usable: 0 (8 GiB, 4 CPUs)"


def test_a_node_that_this_process_may_not_use_is_refused(tmp_path):
    ((_, message),) = lacking(scenario(GUEST), host(tmp_path=tmp_path, allowed="0"))
    assert message.startswith("NUMA node 1 is not in cpuset.mems of this process's cgroup; usable: 0 (")


def test_a_host_whose_nodes_are_unknown_is_refused():
    assert lacking(scenario(GUEST), host(nodes=[])) == [
        ("victims.v.sandbox.memory_nodes", "no NUMA nodes of this host are known")
    ]


def test_one_problem_names_all_sandboxes_that_have_it_at_any_level():
    made = scenario({"backend": "qemu"}, {"backend": "qemu"}, factors={"sandbox.memory_nodes": [0, 7]})
    ((key, message),) = lacking(made, host())
    assert key == "victims.v.sandbox.memory_nodes, aggressors.a.sandbox.memory_nodes"
    assert message.startswith("NUMA node 7 does not exist")


def test_nodes_of_another_machine_are_that_machines():
    box = {"backend": "libvirt", "uri": "qemu+ssh://far/system", "boot": "/boot", "memory_nodes": 1}
    far = {"qemu+ssh://far/system": {"memory": {"nodes": [node(0, [0])]}}}
    assert lacking(scenario(box), host()) == []
    ((_, message),) = lacking(scenario(box), host(machines=far))
    assert message == "NUMA node 1 of qemu+ssh://far/system does not exist; usable: 0 (8 GiB, 1 CPU)"


def test_a_container_needs_the_controller_cpuset(tmp_path):
    (tmp_path / "cgroup").mkdir()
    controllers = tmp_path / "cgroup/cgroup.controllers"
    controllers.write_text("cpu memory\n")
    bound = scenario({"backend": "container", "memory_nodes": 1})
    here = host(tmp_path=tmp_path)
    (tmp_path / "proc/self/mountinfo").write_text("20 1 0:20 / /cgroup rw - cgroup2 cgroup2 rw\n")
    ((_, message),) = lacking(bound, here)
    assert "no cgroup controller cpuset" in message
    controllers.write_text("cpu cpuset memory\n")
    assert lacking(bound, here) == []


def test_a_run_that_goes_on_is_checked_as_a_new_one(tmp_path):
    plan = make(scenario(GUEST | {"memory": "6GiB"}), FOUR, shipped())
    record = RunDirectory.create(tmp_path / "run", "", plan, {})
    shrunk = host(nodes=[node(0, [0, 1]), node(1, [2, 3], 4 * GIB)])
    with pytest.raises(CapabilityError, match=r"need 6 GiB of memory, and NUMA node 1 has 4 GiB"):
        Runs().resume(record, Options(shrunk), silent)


SCENARIO = """
partywall: 1
name: nodes
victims:
  near: {probe: integer, sandbox: {cpus: 9}}
  far:
    probe: integer
    sandbox: {backend: qemu, memory_nodes: [0, 7]}
budget: 5min
"""


def test_the_command_says_it_with_the_line_beside_the_other_problems(tmp_path):
    file = tmp_path / "nodes.yaml"
    file.write_text(SCENARIO)
    outcome = CliRunner().invoke(app, ["scenario", "check", str(file)], obj=lambda: host())
    text = " ".join(outcome.output.split())
    assert "nodes.yaml:8: victims.far.sandbox.memory_nodes: NUMA node 7 does not exist; usable: 0 (8 GiB" in text
    assert "nodes.yaml:5: victims.near.sandbox.cpus: CPU 9 is not online or not allowed here" in text


# What the nodes hold


def planned(*boxes, **more):
    return make(scenario(*boxes, **more), FOUR, shipped())


def test_guests_that_do_not_fit_on_their_nodes_are_refused():
    box = {"backend": "qemu", "memory": "5GiB", "memory_nodes": 1}
    check_node_memory(planned(box, box | {"memory_nodes": 0}), host())
    check_node_memory(planned(box, box | {"memory_nodes": "0-1"}), host())
    with pytest.raises(CapabilityError, match=r"need 10 GiB of memory, and NUMA node 1 has 8 GiB"):
        check_node_memory(planned(box, box), host())
    larger = box | {"memory": "12GiB", "memory_nodes": "0-1"}
    with pytest.raises(CapabilityError, match=r"need 17 GiB of memory, and NUMA nodes 0, 1 together have 16 GiB"):
        check_node_memory(planned(larger, box), host())


def test_a_kernel_that_does_not_fit_on_its_containers_node_is_refused():
    box = {"backend": "container", "memory_nodes": 1}
    large = {"v": {"probe": "memory-copy", "params": {"block_bytes": "6GiB"}, "sandbox": box}}
    with pytest.raises(CapabilityError, match=r"victims\.v\.sandbox\.memory_nodes: .* need 12\.0. GiB"):
        check_node_memory(planned(box, victims=large), host())


# How they reach a sandbox


def test_every_sandbox_of_a_trial_gets_its_nodes_and_the_null_aggressor_its_neighbours():
    (trial,) = planned(
        {"backend": "container", "memory_nodes": 0}, {"backend": "container", "memory_nodes": "0-1"}
    ).trials
    nodes = {settings.name: settings.memory_nodes for settings in settings_of(trial)}
    assert nodes == {"victim": (0,), "a": (0, 1), "null": (0, 1)}


def test_nodes_can_be_varied_between_trials():
    made = scenario({"backend": "container"}, factors={"victim.sandbox.memory_nodes": [0, "0-1"]})
    assert factors.split(made)[0] == {}
    trials = make(made, FOUR, shipped()).trials
    assert [settings_of(trial)[0].memory_nodes for trial in trials] == [(0,), (0, 1)]


@pytest.mark.parametrize(
    ("box", "said"),
    [
        ({"memory_nodes": 0}, "the process backend cannot do memory_nodes"),
        ({"backend": "ssh", "host": "web1", "memory_nodes": 0}, "the ssh backend cannot do memory_nodes"),
        ({"backend": "libvirt", "domain": "d", "memory_nodes": 0}, "memory_nodes is for domains that are made for"),
        ({"backend": "libvirt", "uri": "xen:///system", "memory_nodes": 0}, "under Xen"),
        ({"backend": "qemu", "memory_nodes": "1-0"}, "'1-0' is not a list of NUMA nodes: 1-0 runs backwards"),
        ({"backend": "qemu", "memory_nodes": 1024}, "'1024' names NUMA node 1024"),
        ({"backend": "qemu", "memory_nodes": "auto"}, "'auto' is not a list of NUMA nodes"),
    ],
)
def test_what_no_backend_can_do_is_refused_by_key(box, said):
    (mistake,) = rules.check(scenario(box), shipped())
    assert mistake.path == ("victims", "v", "sandbox", "memory_nodes")
    assert said in mistake.message
    assert mistake.remedy


def test_doctor_lists_the_nodes_with_their_memory(tmp_path):
    checks = examined(lambda: host(tmp_path=tmp_path, allowed="1"))
    (result,) = [check.found for check in checks if check.what == "NUMA nodes"]
    assert result == "0 (8 GiB, 2 CPUs, not allowed); 1 (8 GiB, 2 CPUs)"
    assert [str(node) for node in memory_nodes(host(nodes=[node_of_unknown_size()]))] == ["3 (unknown size, 0 CPUs)"]


def node_of_unknown_size():
    return node(3, [], None)
