"""What --dry-run says of a plan."""

import io
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from partywall.agent.catalogue import shipped
from partywall.cli import show
from partywall.cli.scenario import check
from partywall.core import here
from partywall.run.check import expected
from partywall.run.document.scenario import Scenario
from partywall.run.plan import Topology, make

CONTENT = {
    "partywall": 1,
    "name": "shown",
    "victims": {"v": {"probe": "memory-copy"}},
    "aggressors": {
        "quick": {"stressor": "syscall"},
        "slow": {"stressor": "disk-direct-write", "settle": "100ms", "sandbox": {"cpus": "1"}},
    },
    "budget": "60s",
}


def shown(topology=(0, 1), **changes):
    console = Console(file=io.StringIO(), width=200)
    show.plan(console, make(Scenario.model_validate(CONTENT | changes), Topology(topology), shipped()))
    return console.file.getvalue()


def row(text, name):
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [name])


def test_it_tells_how_many_blocks_of_each_kind_and_which_treatment_is_in_which():
    text = shown()
    counts = re.search(r"1 min: about (.*)", text)[1]
    result = re.findall(r"(\d+) (\w+) blocks of (\S+) ms", counts)
    took = {kind: float(count) * float(block_ms) for count, kind, block_ms in result}
    # Five eighths of the time are for the slow one, and a third of the rest for counters of the others.
    expected = {"long": 7_500, "slow": 37_500, "short": 15_000}
    assert took == {kind: pytest.approx(ms, rel=0.05) for kind, ms in expected.items()}
    assert row(text, "quick")[-1] == "short"
    assert row(text, "slow")[-3:] == ["60", "ms", "slow"]
    first, second = (next(line.strip() for line in text.splitlines() if f"block {n} (" in line) for n in (1, 2))
    assert "(long)" in first
    assert sorted(first.split(": ")[1].split(", ")) == ["baseline", "null", "quick"]
    assert "(slow)" in second
    assert sorted(second.split(": ")[1].split(", ")) == ["baseline", "null", "slow"]


@pytest.mark.parametrize(("grows", "said"), [(None, ""), (0.5, "; up to 30 s more if the host is too noisy")])
def test_it_tells_how_much_longer_a_noisy_host_may_take(grows, said):
    first = shown(budget_grows=grows).splitlines()[0]
    assert first.partition("about ")[2].partition(" s")[2].startswith(said)
    assert ("more" in first) == bool(said)


def test_blocks_that_are_all_alike_are_not_called_long():
    limited = {"probe": "integer", "sandbox": {"backend": "container", "cpu_limit": "50%"}}
    text = shown(victims={"v": limited})
    assert "about 100 blocks of 598 ms" in text
    assert "(long)" not in text


def test_a_budget_that_the_hosts_cpus_make_too_small_is_reported_with_what_it_would_take():
    text = shown(budget="10s")
    said = "The budget is too small for 20 blocks of 000-v: with fewer blocks, no goal can be judged."
    assert f"{said} Give --budget 12s or more." in text
    assert "decides no goal" not in shown()


def checked(lacking="", others=(), **changes):
    console = Console(file=io.StringIO(), width=200)
    scenario = Scenario.model_validate(CONTENT | changes)
    show.checked(console, "my.yaml", scenario, expected(scenario, shipped()), lacking, others)
    return console.file.getvalue()


def test_a_check_predicts_the_blocks_that_the_plan_holds():
    text = checked()
    assert "my.yaml: no mistakes: 1 victim, 2 aggressors" in text
    predicted = re.search(r"v: 1 trial of 4 treatments; (.*)", text)[1]
    assert predicted in shown()
    assert re.fullmatch(r"1 min: about \d+ long blocks of .*, \d+ slow blocks of .*, \d+ short blocks of .*", predicted)


def test_a_check_counts_trials_that_are_alike_once():
    text = checked(factors={"victim.threads": [1, 2, 4]}, budget="3min")
    assert text.count("\n") == 2
    assert "v: 3 trials of 4 treatments; 1 min each: about" in text


@pytest.mark.host
def test_a_check_finds_what_only_this_host_refuses_with_its_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("far.yaml").write_text(
        "partywall: 1\nname: far\nvictims:\n  v:\n    probe: integer\n    sandbox:\n      cpus: '4000'\nbudget: 20s\n"
    )
    assert check(SimpleNamespace(obj=here.this_host), "far.yaml") == 0
    said = capsys.readouterr().out
    assert "It cannot run on this host:\nfar.yaml:7: victims.v.sandbox.cpus: " in said


@pytest.mark.host
def test_a_check_finds_levels_and_programs_that_are_not_there_together_each_with_its_line(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("two.yaml").write_text(
        "partywall: 1\nname: two\nvictims:\n  v:\n    probe: integer\naggressors:\n  a:\n    command: [nosuchprog]\n"
        "factors:\n  victims.v.sandbox.cpus: ['0', '4000']\nbudget: 2min\n"
    )
    assert check(SimpleNamespace(obj=here.this_host), "two.yaml") == 0
    said = capsys.readouterr().out
    assert "two.yaml:8: aggressors.a.command: 'nosuchprog' is not installed" in said
    assert "two.yaml:10: victims.v.sandbox.cpus: CPU 4000 is not online" in said


def test_a_check_says_which_machines_were_not_requested():
    assert "web1: not contacted, so some requirements were not checked" in checked(others=["web1"])
    assert "was not asked" not in checked()


def test_a_plan_says_what_comes_first():
    console = Console(file=io.StringIO(), width=200)
    plan = make(Scenario.model_validate(CONTENT), Topology((0, 1)), shipped())
    show.plan(console, plan, ["the root image of v (fio) is built first"])
    assert "the root image of v (fio) is built first" in console.file.getvalue()


def test_a_plan_lists_commands_and_the_files_that_they_get():
    own = {"command": ["./[job]"], "files": ["/srv/job"]}
    text = shown(aggressors={"own": own})
    assert "aggressors.own.files[0], on this host: /srv/job as job\n" in text
    assert "aggressors.own.command, on this host: ./[job]\n" in text
    assert "commands" not in shown()


def test_a_check_says_what_this_host_lacks_without_refusing_the_scenario():
    text = checked("backend: container needs root")
    assert "no mistakes" in text
    assert "It cannot run on this host:\nbackend: container needs root" in text
