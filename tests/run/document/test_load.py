from __future__ import annotations

import os
from pathlib import Path

import pytest

from partywall.agent.catalogue import Catalogue, shipped
from partywall.errors import UsageError
from partywall.run.check import find, load, loads, names
from partywall.run.document import factors

GOOD = (Path(__file__).parent / "good.yaml").read_text("utf-8")


def refusal(text: str | bytes, catalogue: Catalogue) -> str:
    with pytest.raises(UsageError) as caught:
        loads(text, "x.yaml", catalogue)
    return str(caught.value)


def test_a_good_scenario_is_read_with_its_units(catalogue: Catalogue):
    scenario = loads(GOOD, catalogue=catalogue)
    assert scenario.victims["copy"].params == {"block_bytes": 64 << 20}
    assert scenario.aggressors["copy"].params == {"block_bytes": 64 << 20}
    assert scenario.victims["copy"].settle == 20_000_000
    assert scenario.victims["fio.read"].sandbox.cpu_limit == 0.5
    assert scenario.factors["aggressor.params.block_bytes"] == (4096, 64 << 20)
    assert scenario.budget == 1_800_000_000_000


def test_a_byte_order_mark_and_crlf_do_no_harm(catalogue: Catalogue):
    assert loads("\ufeff" + GOOD.replace("\n", "\r\n"), catalogue=catalogue) == loads(GOOD, catalogue=catalogue)


def test_a_file_and_its_text_give_the_same(tmp_path: Path, catalogue: Catalogue):
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    assert load(path, catalogue) == loads(GOOD, catalogue=catalogue)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.mkdir(), "this is a directory"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to(path), "symbolic link"),
        (lambda _: None, "No such file"),
        (lambda path: path.write_bytes(b""), "empty"),
        (lambda path: path.write_bytes(b"\xff\xfea\0"), "0xff is not UTF-8"),
        (lambda path: path.write_bytes(b"a: 1\n" * 20_000), "too long"),
    ],
    ids=["directory", "fifo", "loop", "absent", "empty", "utf-16", "huge"],
)
def test_a_path_that_cannot_be_read_is_named(tmp_path: Path, make, said):
    path = tmp_path / "x.yaml"
    make(path)
    with pytest.raises(UsageError) as caught:
        load(path)
    (problem,) = caught.value.problems
    assert said in problem.message
    assert problem.file == str(path)
    assert problem.remedy


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads files without permission")
def test_a_file_without_permission_is_named(tmp_path: Path):
    path = tmp_path / "x.yaml"
    path.write_text(GOOD)
    path.chmod(0)
    with pytest.raises(UsageError, match="Permission denied"):
        load(path)


def test_a_path_with_a_nul_is_refused():
    with pytest.raises(UsageError, match="cannot be read"):
        load("a\0b")


def test_lone_surrogates_are_refused(catalogue: Catalogue):
    assert "not UTF-8" in refusal("name: \ud800", catalogue)


def test_mistakes_of_form_do_not_hide_others(catalogue: Catalogue):
    text = (
        GOOD.replace("name: good", "name: not good")
        .replace("probe: memory-copy", "probe: memory-cpy")
        .replace("[0.5, 1]", "[0.5, 2]")
    )
    lines = refusal(text, catalogue).splitlines()
    assert [line.split(": ")[0] for line in lines] == ["x.yaml:2", "x.yaml:5", "x.yaml:14"]


def test_shipped_scenarios_are_found_by_name_and_files_by_path(tmp_path: Path):
    assert {"demo", "full", "real-tools"} <= set(names())
    assert find("demo").name == "demo.yaml"
    mine = tmp_path / "mine.yaml"
    mine.write_text(GOOD)
    assert find(str(mine)) == mine


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("dmo", "did you mean demo"),
        ("nothing/here", "give a path"),
        ("x" * 5000, "give a path"),
        ("a\0", "give a path"),
    ],
)
def test_a_scenario_that_is_not_there_is_named(name: str, remedy: str):
    with pytest.raises(UsageError, match=remedy):
        find(name)


@pytest.mark.parametrize("name", names())
def test_shipped_scenarios_are_right(name: str):
    scenario = load(find(name))
    assert scenario.name == name.rpartition("/")[2]
    assert scenario.description


def test_the_demo_takes_less_than_three_minutes_and_needs_no_root():
    demo = load(find("demo"))
    assert demo.budget <= 150_000_000_000
    parts = [*demo.victims.values(), *demo.aggressors.values()]
    assert {part.sandbox.backend for part in parts} == {"process"}
    assert all(part.command is None for part in parts)


@pytest.mark.parametrize(
    ("page", "scenarios"),
    [
        ("docs/scenario.md", ["smallest", "cache-neighbours", "own-program", "neighbours-of-a-move", "disk-limits"]),
        ("docs/recipes.md", ["shop", "limit"]),
        ("README.md", ["checkout"]),
    ],
)
def test_the_examples_in_the_documentation_are_scenarios(page, scenarios):
    text = (Path(__file__).parents[3] / page).read_text("utf-8")
    examples = [part.split("```")[0] for part in text.split("```yaml\n")[1:]]
    assert [loads(example).name for example in examples] == scenarios


@pytest.mark.parametrize(
    ("probe", "key", "said"),
    [
        ("disk-direct-write", "read_iops", "disk-direct-write only writes, so read_iops would have no effect"),
        ("disk-read", "write_bps", "disk-read only reads, so write_bps would have no effect"),
        ("disk-reread", "read_bps", "disk-reread does not use a disk"),
    ],
)
def test_a_switched_limit_that_would_hold_nothing_back_is_refused(probe: str, key: str, said: str):
    victim = f"victims: {{a: {{probe: {probe}, sandbox: {{backend: container}}}}}}"
    text = f"partywall: 1\nname: x\nbudget: 10min\n{victim}\nfactors: {{victim.sandbox.disk.{key}: [1000]}}\n"
    message = refusal(text, shipped())
    assert f"x.yaml:5: factors.victim.sandbox.disk.{key}: {said}" in message
    assert message.count("\n") == 0


def test_a_switched_limit_of_a_disk_is_a_promise_that_a_goal_may_hold_it_to():
    text = (
        "partywall: 1\nname: x\nbudget: 10min\n"
        "victims: {a: {probe: disk-direct-read, sandbox: {backend: container}}}\n"
        "factors: {'victim.sandbox.disk.{read_bps,write_bps}': [5MB/s]}\ngoals: [{efficiency: [0.9, 1.1]}]\n"
    )
    assert loads(text, "x.yaml", shipped()).goals[0].efficiency == (0.9, 1.1)


CPUS = """
partywall: 1
name: cpus
victims:
  one: {probe: memory-copy, sandbox: {cpus: 0}}
  list: {probe: memory-copy, sandbox: {cpus: [0, 2]}}
  text: {probe: memory-copy, sandbox: {cpus: "0,2-3"}}
  mixed: {probe: memory-copy, sandbox: {cpus: [0, 2-3]}}
  emulator: {probe: memory-copy, sandbox: {backend: qemu, host_cpus: [0, 1]}}
factors:
  victims.one.sandbox.cpus: [0, [0, 1], 2-3]
budget: 5min
"""


def test_cpus_are_numbers_lists_or_text(catalogue: Catalogue):
    scenario = loads(CPUS, catalogue=catalogue)
    assert [victim.sandbox.cpus for victim in scenario.victims.values()] == ["0", "0,2", "0,2-3", "0,2-3", "auto"]
    assert scenario.victims["emulator"].sandbox.host_cpus == "0,1"
    assert scenario.factors == {"victims.one.sandbox.cpus": (0, "0,1", "2-3")}
    assert [applied.victims["one"].sandbox.cpus for _, applied in factors.expand(scenario)] == ["0", "0,1", "2-3"]


def test_nodes_are_numbers_lists_or_text(catalogue: Catalogue):
    text = CPUS.replace("{cpus:", "{backend: qemu, memory_nodes:").replace(
        "one.sandbox.cpus", "one.sandbox.memory_nodes"
    )
    scenario = loads(text, catalogue=catalogue)
    nodes = [victim.sandbox.memory_nodes for victim in scenario.victims.values()]
    assert nodes == ["0", "0,2", "0,2-3", "0,2-3", None]
    assert scenario.factors == {"victims.one.sandbox.memory_nodes": (0, "0,1", "2-3")}
    applied = [made.victims["one"].sandbox.memory_nodes for _, made in factors.expand(scenario)]
    assert applied == ["0", "0,1", "2-3"]
    said = refusal(text.replace("[0, [0, 1], 2-3]", "[[0, 0.5], [1, 1]]"), catalogue)
    assert "factors.victims.one.sandbox.memory_nodes[0]: NUMA nodes must be whole numbers or text" in said
    assert "'1,1' names NUMA node 1 twice" in refusal(text.replace("[0, [0, 1], 2-3]", "[[1, 1]]"), catalogue)


def test_a_list_of_cpus_among_levels_is_checked(catalogue: Catalogue):
    said = refusal(CPUS.replace("[0, [0, 1], 2-3]", "[[0, 0.5], [1, 1]]"), catalogue)
    assert "factors.victims.one.sandbox.cpus[0]: CPUs must be whole numbers or text" in said
