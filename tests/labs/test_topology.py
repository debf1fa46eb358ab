"""The lab compares the shape of a host that Partywall tells with what lscpu and free print."""

import copy
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from labs.hosts import checks, topology
from labs.hosts.bench import FailedError
from labs.hosts.machine import Output
from labs.hosts.topology import Tools, differences
from partywall import units
from partywall.core import here
from partywall.testing import read, recorded

TREES = Path(__file__).parents[1] / "hosts" / "trees"
# What lscpu 2.38 prints of a host of two NUMA nodes, two sockets, and four cores of two threads: numa-smt-8.
CPUS = """\
# The following is the parsable format, which can be fed to other
# programs. Each different item in every column has an unique ID
# starting usually from zero.
# CPU,Core,Socket,Node,,L1d,L1i,L2,L3
0,0,0,0,,0,0,0,0
1,1,0,0,,1,1,1,0
2,2,1,1,,2,2,2,1
3,3,1,1,,3,3,3,1
4,0,0,0,,0,0,0,0
5,1,0,0,,1,1,1,0
6,2,1,1,,2,2,2,1
7,3,1,1,,3,3,3,1
"""
CACHES = """\
{"caches": [
  {"name": "L1d", "one-size": "32768", "all-size": "131072", "ways": 8, "type": "Data", "level": 1},
  {"name": "L1i", "one-size": "32768", "all-size": "131072", "ways": 8, "type": "Instruction", "level": 1},
  {"name": "L2", "one-size": "1048576", "all-size": "4194304", "ways": 16, "type": "Unified", "level": 2},
  {"name": "L3", "one-size": 11534336, "all-size": 23068672, "ways": 11, "type": "Unified", "level": 3}
]}
"""
MEMORY = """\
               total        used        free      shared  buff/cache   available
Mem:     33554432000  2739286016 22382981120     9084928   515190784 22537216000
Swap:              0           0           0
"""
TOOLS = Tools(CPUS, CACHES, MEMORY)


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    root = tmp_path_factory.mktemp("numa-smt-8")
    read((TREES / "numa-smt-8.tree").read_text()).lay_out(root)
    return recorded(root, []).facts


def test_facts_that_agree_with_the_tools_have_no_differences(facts):
    assert differences(facts, TOOLS) == []


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        (("cpu", "online"), [0, 1, 2, 3], "CPUs"),
        (("cpu", "places", 1, "core"), 0, "cores"),
        (("cpu", "places", 1, "package"), 1, "sockets"),
        (("cpu", "places", 0, "siblings"), [0, 1], "siblings"),
        (("memory", "nodes", 0, "cpus"), [0, 1, 2, 3], "nodes"),
        (("memory", "nodes"), [], "nodes"),
        (("memory", "total_bytes"), 33_554_000_000, "bytes of memory"),
        (("memory", "swap_bytes"), 4096, "bytes of swap"),
        (("cpu", "caches", -1, "shared_by"), [2, 3], "CPUs of each L3 cache"),
        (("cpu", "caches", -2, "size_bytes"), 1 << 20, "bytes of the first L3 cache"),
        (("cpu", "caches", 0, "holds"), "instruction", "CPUs of each L1d cache"),
        (("cpu", "caches"), [], "CPUs of each L2 cache"),
    ],
)
def test_each_fact_that_differs_from_the_tools_is_reported(facts, path, value, what):
    spoilt = copy.deepcopy(facts)
    at = spoilt
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    assert [line for line in differences(spoilt, TOOLS) if line.startswith(f"{what}: Partywall says ")]


def test_a_host_without_numa_nodes_and_caches_agrees():
    memory = {"total_bytes": 4096, "swap_bytes": 0, "nodes": []}
    place = {"cpu": 0, "package": 0, "core": 0, "siblings": [0]}
    facts = {"cpu": {"online": [0], "places": [place], "caches": []}, "memory": memory}
    assert differences(facts, Tools("# CPU,Core,Socket,Node\n0,0,0,\n", "", "Mem: 4096 1\nSwap: 0 0\n")) == []


def test_this_machine_is_reported_as_its_own_tools_tell_it():
    texts = []
    for command in (topology.LSCPU, topology.LSCPU_CACHES, topology.FREE):
        if shutil.which(command.split()[0]) is None:
            pytest.skip(f"{command.split()[0]} is not installed")
        texts.append(subprocess.run(command.split(), capture_output=True, check=True, text=True).stdout)
    assert differences(here.host_facts(), Tools(*texts)) == []


@pytest.mark.parametrize("name", sorted(path.stem for path in TREES.glob("*.tree")))
def test_lscpu_reads_a_recorded_host_as_the_agent_does(name, tmp_path):
    """A second opinion: lscpu shares no code with the agent, and reads no table beside a tree."""
    read((TREES / f"{name}.tree").read_text()).lay_out(tmp_path)
    if shutil.which("lscpu") is None:
        pytest.skip("lscpu is not installed")
    if not (tmp_path / "sys/devices/system/cpu/possible").exists():
        pytest.skip("lscpu cannot read a host without /sys")
    _write_masks(tmp_path)
    cpus, caches = (
        subprocess.run([*command.split(), "-s", tmp_path], capture_output=True, check=True, text=True).stdout
        for command in (topology.LSCPU, topology.LSCPU_CACHES)
    )
    facts = recorded(tmp_path, []).facts
    memory = f"Mem: {facts['memory']['total_bytes']}\nSwap: {facts['memory']['swap_bytes']}\n"
    assert differences(facts, Tools(cpus, caches, memory)) == []


def _write_masks(root):
    """The files that lscpu reads in the place of lists: the same CPUs as bits."""
    folder = root / "sys/devices/system"
    masks = {"core_cpus_list": "core_cpus", "thread_siblings_list": "thread_siblings"}
    masks |= {"shared_cpu_list": "shared_cpu_map", "cpulist": "cpumap"}
    for name, mask in masks.items():
        for path in folder.rglob(name):
            path.with_name(mask).write_text(_mask(units.parse_cpus(path.read_text().strip())))
    packages = {}
    for path in folder.glob("cpu/cpu*/topology/physical_package_id"):
        packages.setdefault(path.read_text(), []).append(path.parent)
    for folders in packages.values():
        cpus = [int(place.parent.name.removeprefix("cpu")) for place in folders]
        for place in folders:
            (place / "core_siblings").write_text(_mask(cpus))
            (place / "package_cpus").write_text(_mask(cpus))


def _mask(cpus):
    digits = f"{sum(1 << cpu for cpu in cpus):064x}"
    return ",".join(digits[at : at + 8] for at in range(0, 64, 8)) + "\n"


class ShownBench:
    """Where Partywall says of itself what a test says it does."""

    def __init__(self, facts, tools, allowed):
        self.said = json.dumps({"facts": facts, "tools": [tools.cpus, tools.caches, tools.memory]})
        self.allowed = allowed
        self.commands = []

    def shell(self, command, **_):
        self.commands.append(command)
        return Output(command, 0, f"{self.said}\n", 0.1)

    def partywall(self, arguments):
        return Output(arguments, 0, f'{{"found": "{self.allowed} allowed (a CPU)"}}\n', 0.1)


def test_the_check_tells_the_shape_or_fails_with_the_difference(facts):
    bench = ShownBench(facts, TOOLS, 8)
    text = checks.CHECKS["topology"](bench)
    assert text == "2 sockets, 2 nodes, 4 cores, 8 CPUs and their caches as lscpu states; memory as free states"
    assert bench.commands == [
        f"python3 /opt/try/inside/facts.py '{topology.LSCPU}' '{topology.LSCPU_CACHES}' '{topology.FREE}'"
    ]
    less = Tools(CPUS, CACHES, MEMORY.replace("33554432000", "33554431000"))
    with pytest.raises(
        FailedError, match="bytes of memory: Partywall says 33554432000, the host's tools say 335544310"
    ):
        checks.CHECKS["topology"](ShownBench(facts, less, 8))
    with pytest.raises(FailedError, match="doctor counts other CPUs"):
        checks.CHECKS["topology"](ShownBench(facts, TOOLS, 4))


def test_the_topology_is_compared_before_the_tour():
    names = list(checks.CHECKS)
    assert names.index("topology") < names.index("tour")
