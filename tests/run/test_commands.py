"""Commands as aggressors, on this host: whether they did anything, and whether they stopped, is found out."""

import sys
from types import SimpleNamespace

import pytest

from partywall.agent.catalogue import Warn, shipped
from partywall.core import here
from partywall.errors import RefusalError
from partywall.events import silent
from partywall.run import stages
from partywall.run.document.scenario import Scenario, Victim
from partywall.run.measure import stage
from partywall.run.plan import make
from partywall.run.plan.files import with_files
from partywall.run.plan.placement import topology_of
from partywall.run.record import RunDirectory
from tests.measured import fresh, measured

pytestmark = pytest.mark.host

BUSY = "while True: pass"
# A session of its own: signals to the group no longer reach it.
ESCAPED = f"import os\nif os.fork() == 0:\n    os.setsid()\n    {BUSY}\nos.wait()"


@measured
def test_what_commands_did_while_on_and_off_is_measured_and_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    commands = {
        "busy": [sys.executable, "-c", BUSY],
        "sleeping": ["sleep", "1000"],
        "escaped": [sys.executable, "-c", ESCAPED],
    }
    content = {
        "partywall": 1,
        "name": "commands",
        "victims": {"sum": {"probe": "integer"}},
        "aggressors": {name: {"command": argv, "sandbox": {"cpus": "same"}} for name, argv in commands.items()},
        "timing": {"slot": "50ms"},
        "min_blocks": 8,
        "budget": "5s",
    }
    facts = here.host_facts()
    run = RunDirectory.create(
        fresh(tmp_path) / "run", "", make(Scenario.model_validate(content), topology_of(facts), shipped()), facts
    )
    stages.measure(run, silent)
    evidence, findings = stages.analyse(run)
    reported = {cell.aggressor: cell for cell in findings.cells if cell.aggressor}
    watched = {Warn.AGGRESSOR_IDLE, Warn.AGGRESSOR_NOT_STOPPED}
    assert {name: watched & set(cell.warnings) for name, cell in reported.items()} == {
        "busy": set(),
        "sleeping": {Warn.AGGRESSOR_IDLE},
        "escaped": {Warn.AGGRESSOR_NOT_STOPPED},
    }
    (agent_facts,) = evidence.agent_facts.values()
    assert set(agent_facts.facts) == {"victim", "null", *commands}, "what kernels say at their end is kept"


OWN = """#!/bin/sh
case $1 in --version) echo; echo "own 1.2"; echo more; exit;; --silent) exit;; esac
while :; do :; done
"""


def own_command(folder, version):
    """A run with a command of the user's own that is copied into its sandbox."""
    (folder / "own.sh").write_text(OWN)
    files = [{"from": "own.sh", "to": "own", "executable": True}]
    own = {"command": ["./own"], "version": version, "files": files, "sandbox": {"cpus": "same"}}
    content = {"partywall": 1, "name": "own", "victims": {"sum": {"probe": "integer"}}, "aggressors": {"own": own}}
    content |= {"timing": {"slot": "50ms"}, "min_blocks": 8, "budget": "4s"}
    facts = here.host_facts()
    scenario = with_files(Scenario.model_validate(content), folder)
    plan = make(scenario, topology_of(facts), shipped())
    run = RunDirectory.create(folder / "run", "", plan, facts)
    stages.measure(run, silent)
    return run


@measured
def test_a_users_own_program_runs_in_its_sandbox_and_its_version_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    evidence, findings = stages.analyse(own_command(fresh(tmp_path), ["./own", "--version"]))
    (cell,) = [cell for cell in findings.cells if cell.aggressor == "own"]
    assert Warn.AGGRESSOR_IDLE not in cell.warnings
    # On the victim's CPU it takes half of it, unless the run itself says that others used the CPUs.
    assert cell.isolation.value < 0.8 or Warn.FOREIGN_LOAD in cell.warnings
    (agent_facts,) = evidence.agent_facts.values()
    assert agent_facts.versions == {"own": ("own 1.2",)}


def test_the_end_of_a_version_is_not_taken_for_the_end_of_its_command():
    def printed(sender, text):
        return sender, "output", {"id": stage.VERSION, "lines": [{"stream": "stdout", "text": text}]}

    # Another workload may have that name. The version ends between its line and the request to stop it.
    batches = [
        [printed("version", "not this")],
        [printed("victim", "1.2")],
        [("victim", "ended", {"id": stage.VERSION, "reason": "exit status 0"})],
    ]

    def call(method, **_):
        if method == "workload.stop":
            raise RefusalError("no workload is running")

    session = SimpleNamespace(
        client=lambda _name: SimpleNamespace(call=call),
        sandboxes={"victim": SimpleNamespace(work_dir="/work")},
        take=lambda _timeout_s: batches.pop(0),
    )
    began = stage.Stage(SimpleNamespace(victim_name="v"), session)
    assert stage._version(began, "victim", Victim(command=("x",)), ("x",)) == "1.2"
    assert not batches


def test_a_version_that_cannot_start_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    (failure,) = own_command(tmp_path, ["/nowhere/own"]).failures()
    assert "the version of aggressor own, /nowhere/own: " in failure
    assert failure.endswith("correct version, or leave it out")


def test_a_version_that_is_not_printed_ends_the_trial_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    (failure,) = own_command(tmp_path, ["./own", "--silent"]).failures()
    assert "the version of aggressor own, ./own --silent: the command ended with exit status 0" in failure
    assert failure.endswith("correct version, or leave it out")
