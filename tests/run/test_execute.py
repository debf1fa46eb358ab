"""A run as a whole, on this host, in short."""

import errno
import os
from dataclasses import replace

import pytest

from partywall.agent.catalogue import shipped
from partywall.core import here
from partywall.errors import PartywallError, TrialError
from partywall.events import Broken, Note, silent
from partywall.run import stages
from partywall.run.document.scenario import Scenario
from partywall.run.plan import make
from partywall.run.plan.placement import topology_of
from partywall.run.record import RunDirectory
from partywall.sandbox import reaper
from partywall.sandbox.clock import Look, Looks, Offset
from partywall.session import Session

pytestmark = pytest.mark.host


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    content = {
        "partywall": 1,
        "name": "short",
        "victims": {"sum": {"probe": "integer"}},
        "aggressors": {"same": {"stressor": "integer", "sandbox": {"cpus": "same"}}},
        "timing": {"slot": "30ms"},
        "min_blocks": 8,
        "budget": "2s",
    }
    facts = here.host_facts()
    plan = make(Scenario.model_validate(content), topology_of(facts), shipped())
    return RunDirectory.create(tmp_path / "run", "", plan, facts)


def test_a_run_ends_with_its_blocks_and_gives_the_cpus_back(run, tmp_path):
    before = os.sched_getaffinity(0)
    stages.measure(run, silent)
    assert os.sched_getaffinity(0) == before
    assert run.ended
    _, findings = stages.analyse(run)
    (cell,) = [cell for cell in findings.cells if cell.aggressor]
    # Two busy threads on one CPU: each gets about half.
    assert cell.isolation.value < 0.8
    assert not (tmp_path / "state" / "run").exists()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "{run}: No space left on device; free some space, then continue",
        ),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "{run}: Disk quota exceeded; free some space, then continue"),
        (OSError(errno.EROFS, "Read-only file system"), "{run}: Read-only file system; once that is fixed, continue"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/x/y"),
            "/x/y: Permission denied; once that is fixed, continue",
        ),
    ],
)
def test_what_the_host_refuses_is_reported_with_what_would_mend_it(run, monkeypatch, error, said):
    def refused(*_):
        raise error

    monkeypatch.setattr(stages, "check_memory", refused)
    with pytest.raises(PartywallError) as caught:
        stages.measure(run, silent)
    assert str(caught.value).startswith(said.format(run=run.path))
    assert str(caught.value).endswith(f"continue with: partywall run --resume {run.path}")


def test_what_a_run_could_not_put_back_is_noted_and_reported(run, monkeypatch):
    def clean(label):
        done = clean_really(label)
        return replace(done, left=("domain web1",))

    def note(event):
        if isinstance(event, Note | Broken):
            notes.append(event.text)

    clean_really, notes = reaper.clean, []
    monkeypatch.setattr(reaper, "clean", clean)
    assert stages.measure(run, note) == ("domain web1",)
    assert notes[-1] == "could not be removed or restored: domain web1"


def test_what_an_agent_refused_is_the_headline_where_nothing_was_measured(run):
    (trial,) = run.plan.trials
    wrong = trial.victim.model_copy(update={"probe": "matrix-vector", "params": {"size": 0}})
    plan = run.plan.model_copy(update={"trials": (trial.model_copy(update={"victim": wrong}),)})
    refused = RunDirectory.create(run.path.parent / "refused", "", plan, run.host)
    stages.measure(refused, silent)
    _, findings = stages.analyse(refused)
    assert findings.headline.startswith("Nothing was measured: sum: the victim could not start: agent victim")


BOUND_NS, OFF_NS = 100_000, 5_000_000


def looked(monkeypatch, broken):
    """Replaces looks at clocks: all are within the bound but the third one, which is `broken`. When each was."""
    moments = []

    def look(_session, now_ns, _for_ns=0):
        moments.append(now_ns)
        off_ns = broken() if len(moments) == 3 else BOUND_NS
        return Looks(now_ns, (Look(Offset(now_ns, off_ns if off_ns > BOUND_NS else 0, off_ns), 0),))

    monkeypatch.setattr(Session, "look", look)
    return moments


def bounds(run):
    return {event["block"]: event["error_ns"] for event in run.events("clock_bound")}


def test_blocks_under_a_clock_that_broke_its_bound_are_void_and_those_after_it_have_wider_guards(run, monkeypatch):
    moments = looked(monkeypatch, lambda: OFF_NS)
    stages.measure(run, silent)
    void = [event for event in run.events("block_void") if "clock_off_ns" in event]
    assert void
    assert all(bounds(run)[event["block"]] == BOUND_NS and event["clock_off_ns"] == OFF_NS for event in void)
    # Nothing counts that was measured between the last look that was well and the one that was not.
    done = list(run.events("block_done"))
    assert done
    between = [
        e for e in done if moments[1] < e["slots"][-1]["end_ns"] + BOUND_NS and e["slots"][0]["start_ns"] < moments[2]
    ]
    assert between == []
    assert OFF_NS in bounds(run).values()


def test_nothing_counts_that_was_measured_before_a_jump_was_seen(run, monkeypatch):
    def jumped():
        raise TrialError("the clock there jumped")

    moments = looked(monkeypatch, jumped)
    stages.measure(run, silent)
    assert [event["reason"] for event in run.events("trial_failed")] == ["the clock there jumped"]
    done = list(run.events("block_done"))
    assert [
        e for e in done if moments[1] < e["slots"][-1]["end_ns"] + BOUND_NS and e["slots"][0]["start_ns"] < moments[2]
    ] == []
    # It is tried again, and well.
    assert any(event["slots"][0]["start_ns"] > moments[2] for event in done)
