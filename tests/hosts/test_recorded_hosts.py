"""Every recorded host through facts, doctor, checks and plans; and that what is wrong with one is found."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import judge
import pytest

from partywall import pipeline
from partywall.plan import Topology
from partywall.testing import Entry, Tree, read, recorded

RECORDER = Path(__file__).parents[2] / "labs" / "hosts" / "record.py"


@pytest.mark.long
@pytest.mark.parametrize("name", judge.names())
def test_a_host_is_told_rightly_and_planned_for_without_a_crash(name):
    assert judge.judge(judge.load(name)) == []


@pytest.mark.parametrize("name", judge.names())
def test_a_tree_says_where_it_is_from(name):
    comments = [line for line in (judge.TREES / f"{name}.tree").read_text().splitlines() if line.startswith("#")]
    assert (
        sum(word in " ".join(comments) for word in ("Recorded by labs/hosts/record.py", "Composed, not recorded")) == 1
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("topology", "allowed", "0-2"),
        ("topology", "packages", ["0", "1"]),
        ("topology", "cores", 1),
        ("topology", "last_level_groups", ["0", "1"]),
        ("cgroup", "mode", "v1"),
        ("memory", "usable_bytes", 1),
        ("memory", "limit", "/sys/fs/cgroup"),
    ],
)
def test_a_wrong_count_is_found(tmp_path, part, key, value):
    host = judge.load("debian-13-vm")
    host.tree.lay_out(tmp_path)
    expected = host.expected | {part: host.expected[part] | {key: value}}
    complaints = list(judge.counts(recorded(tmp_path, []), expected))
    assert any(complaint.startswith(f"{key} is ") for complaint in complaints)


CPU, NODE = "/sys/devices/system/cpu", "/sys/devices/system/node"
# What is wrong in a copy of numa-smt-8, by the fact that is then told otherwise.
SPOILT = {
    "siblings": {
        f"{CPU}/cpu{cpu}/topology/{name}": group
        for cpu, group in ((0, "0,5"), (5, "0,5"), (1, "1,4"), (4, "1,4"))
        for name in ("core_cpus_list", "thread_siblings_list")
    },
    "cores": {f"{CPU}/cpu{cpu}/topology/core_id": "0" for cpu in (1, 5)},
    "threads_per_core": {f"{CPU}/cpu4/topology/core_id": "1"},
    "packages": {f"{CPU}/cpu1/topology/physical_package_id": "1", f"{CPU}/cpu5/topology/physical_package_id": "1"},
    "nodes": {f"{NODE}/node0/cpulist": "0-3", f"{NODE}/node1/cpulist": "4-7"},
    "nodes (memory)": {f"{NODE}/node1/meminfo": "Node 1 MemTotal: 8192000 kB"},
    "last_level": {f"{CPU}/cpu{cpu}/cache/index3/level": "2" for cpu in range(8)},
    "last_level_groups": {f"{CPU}/cpu{cpu}/cache/index3/shared_cpu_list": "0-7" for cpu in range(8)},
    "caches": {f"{CPU}/cpu{cpu}/cache/index0/size": "48K" for cpu in (2, 6)},
    "caches (type)": {f"{CPU}/cpu{cpu}/cache/index1/type": "Data" for cpu in range(8)},
    "caches (sharing)": {f"{CPU}/cpu{cpu}/cache/index2/shared_cpu_list": f"{cpu}" for cpu in range(8)},
    "cache sizes for planning": {f"{CPU}/cpu{cpu}/cache/index3/size": "8192K" for cpu in range(8)},
    "CPUs that planning groups": {f"{CPU}/cpu3/cache/index0/shared_cpu_list": "3"},
    "online": {f"{CPU}/online": "0-6"},
    "allowed": {"/proc/self/status": "Cpus_allowed_list:\t0-3"},
    "isolated": {f"{CPU}/isolated": "7"},
    "total_bytes": {"/proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 30000000 kB"},
}


@pytest.mark.long
@pytest.mark.parametrize("what", SPOILT)
def test_a_host_of_another_shape_than_expected_is_found(what):
    host = judge.load("numa-smt-8")
    tree = host.tree.changed({path: Entry("=", f"{text}\n") for path, text in SPOILT[what].items()})
    with judge.laid_out(tree) as root:
        complaints = list(judge.counts(recorded(root, []), host.expected))
    key = what.partition(" (")[0]
    assert [complaint for complaint in complaints if complaint.startswith(f"{key} is ") and "expected" in complaint]


@pytest.mark.long
def test_a_planner_that_groups_other_cpus_than_the_facts_is_found(monkeypatch, tmp_path):
    host = judge.load("numa-smt-8")
    host.tree.lay_out(tmp_path)
    monkeypatch.setattr(pipeline, "topology", lambda _facts: Topology((0, 1), ((0, 1),)))
    (complaint,) = judge.counts(recorded(tmp_path, []), host.expected)
    assert complaint.startswith("CPUs that planning groups is ['0-1'], expected ['0,4', ")


@pytest.mark.long
def test_a_scenario_that_cannot_be_planned_though_it_should_is_found():
    host = judge.load("one-cpu")
    complaints = judge.judge(dataclasses.replace(host, expected=host.expected | {"plannable": ["demo"]}))
    assert any("demo cannot be planned for user 0" in complaint for complaint in complaints)


@pytest.mark.long
def test_a_crash_is_found_in_every_command_that_meets_it(tmp_path):
    found = judge.load("debian-13-vm")
    found.tree.lay_out(tmp_path)
    host = recorded(tmp_path, found.expected["programs"])

    def crash(_name: str) -> None:
        raise FileNotFoundError("planted")

    complaints = list(judge.commands(dataclasses.replace(host, which=crash), tmp_path, found.expected))
    crashed = [complaint for complaint in complaints if "failed with FileNotFoundError: planted" in complaint]
    assert {complaint.split(" failed")[0] for complaint in crashed} > {"doctor", "run full --dry-run"}


@pytest.mark.long
def test_an_agent_that_reads_no_facts_is_found(monkeypatch):
    monkeypatch.setenv("PARTYWALL_AGENT", "/bin/false")
    (complaint,) = judge.judge(judge.load("debian-13-vm"))
    assert complaint.startswith("facts: partywall.errors.AgentError")


@pytest.mark.long
@pytest.mark.parametrize("name", ["vm-hybrid-v1", "epyc-128-holes", "odd-mounts", "kubernetes-pod"])
def test_what_the_recorder_writes_of_a_host_has_the_same_facts(name, tmp_path):
    host = judge.load(name)
    (tmp_path / "first").mkdir()
    host.tree.lay_out(tmp_path / "first")
    argv = [sys.executable, str(RECORDER), "--root", str(tmp_path / "first")]
    text = subprocess.run(argv, capture_output=True, check=True, text=True).stdout
    read(text).lay_out(tmp_path / "again")
    first, again = (recorded(tmp_path / folder, []).facts for folder in ("first", "again"))
    # Of the command line only what bears on measuring is kept.
    for facts in (first, again):
        facts["kernel"]["command_line"] = None
    assert again == first


def test_a_text_is_read_line_by_line():
    tree = read(
        "# a comment\n\n/a = 1\n/b := 2\n/c |\n| one\n|\n| two\n/d :|\n| x\n/e\n/f/\n/g -> ../a\n/h ! refused\n"
        "/i{0-1,3}/j = n\n/k\\040l = m\n"
    )
    lines = {"/a": "1\n", "/b": "2", "/c": "one\n\ntwo\n", "/d": "x", "/e": "", "/k l": "m\n"}
    numbered = {f"/i{number}/j": "n\n" for number in (0, 1, 3)}
    others = {"/f": Entry("/"), "/g": Entry("->", "../a"), "/h": Entry("!", "refused")}
    assert tree.entries == {path: Entry("=", text) for path, text in (lines | numbered).items()} | others


def test_what_is_no_tree_is_told_with_its_line():
    with pytest.raises(ValueError, match="line 2: 'nonsense' begins with no path"):
        read("/a = 1\nnonsense\n")


def test_a_laid_out_tree_has_its_files(tmp_path):
    entries = {"/a/b": Entry("=", "1\n"), "/c": Entry("->", "a/b"), "/d": Entry("!", "refused"), "/e": Entry("/")}
    Tree(entries).changed({"/e": None}).lay_out(tmp_path)
    assert (tmp_path / "c").read_text() == "1\n"
    assert not (tmp_path / "e").exists()
    with pytest.raises(OSError, match="directory"):
        (tmp_path / "d").read_text()
