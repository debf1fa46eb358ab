"""A migration that passes by as an aggressor: how it is planned, refused, paced and measured."""

import contextlib
import itertools
import os
import shutil
from pathlib import Path

import pytest

from partywall.agent.catalogue import Warn, shipped
from partywall.core import here
from partywall.errors import CapabilityError
from partywall.events import silent
from partywall.migrate.measure import passing
from partywall.run import stages
from partywall.run.document.scenario import Passing, Scenario
from partywall.run.measure import stage
from partywall.run.plan import make
from partywall.run.plan.placement import topology_of
from partywall.run.record import RunDirectory
from partywall.sandbox.qemu.machine import PROGRAM
from partywall.testing import VirtualClock, fake_host

MIB = 1 << 20
SMALL = {"memory": "64MiB", "content": 0.5, "rate": "400Mbit/s"}


def scenario(**migrations):
    content = {"partywall": 1, "name": "passing", "victims": {"v": {"probe": "integer"}}, "budget": "8s"}
    aggressors = {name: {"migration": keys} for name, keys in migrations.items()}
    return Scenario.model_validate(content | {"aggressors": aggressors, "min_blocks": 8})


def test_a_migration_is_a_program_of_this_python_whose_link_is_the_most_it_can_do():
    aggressor = scenario(source=SMALL | {"role": "source", "dirty": "5MB/s"}).aggressors["source"]
    program = stage.work_of(aggressor, None)["command"]["argv"]
    assert program[1:3] == ["-m", passing.__name__]
    assert Passing.model_validate_json(program[3]) == aggressor.migration
    assert aggressor.migration.bytes_per_s == 50_000_000
    assert aggressor.migration.resent == 0.1
    assert aggressor.is_program
    assert aggressor.readings.unit == "B/s"


def test_a_destination_also_keeps_the_stream_that_arrives():
    source, destination = (Passing.model_validate(SMALL | {"role": role}) for role in ("source", "destination"))
    assert destination.held_bytes - source.held_bytes == 32 * MIB
    changing = Passing.model_validate(SMALL | {"role": "destination", "dirty": "25MB/s"})
    assert changing.held_bytes - source.held_bytes == 64 * MIB


def test_a_host_without_qemu_and_with_too_little_memory_is_refused_for_both_at_once():
    large = {"role": "destination", "memory": "3GiB"}
    host = fake_host(memory=1 << 30, which=lambda name: None if name == PROGRAM else f"/usr/bin/{name}")
    with pytest.raises(CapabilityError) as caught:
        stages.plan(scenario(one=large, other=large), host)
    program, memory = (str(problem) for problem in caught.value.problems)
    assert program.startswith(f"aggressors.one.migration, aggressors.other.migration: {PROGRAM} was not found — ")
    assert memory.startswith("the guests of one trial need 12.19 GiB of memory, and 1 GiB are available; lower ")


def test_a_link_does_not_make_up_for_the_time_in_which_it_was_stopped():
    clock, reported = VirtualClock(), []
    link = passing.Link(1e9, reported.append, clock)
    quotas = link.quotas()
    assert [next(quotas) for _ in range(3)] == [5_000_000] * 3
    clock.sleep_until(clock.now_ns() + 10_000_000_000)
    assert [next(quotas) for _ in range(3)] == [20_000_000, 5_000_000, 5_000_000]


def test_a_link_reports_the_sum_of_what_it_has_carried_some_50_times_a_second():
    clock, reported = VirtualClock(), []
    link = passing.Link(1e9, reported.append, clock)
    for quota in itertools.islice(link.quotas(), 200):
        link.carried(quota)
    assert 45 <= len(reported) <= 50
    assert reported == sorted(reported)
    assert reported[-1] == pytest.approx(1e9, rel=0.05)


def programs_with(text):
    """IDs of other processes with a text in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.name != str(os.getpid()) and text in (folder / "environ").read_text("utf-8", "replace"):
                found.append(folder.name)
    return found


@pytest.mark.host
@pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"migrations need {PROGRAM}")
def test_both_ends_are_measured_move_bytes_and_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    both = scenario(source=SMALL | {"role": "source", "dirty": "5MB/s"}, destination=SMALL | {"role": "destination"})
    facts = here.host_facts()
    run = RunDirectory.create(tmp_path / "run", "", make(both, topology_of(facts), shipped()), facts)
    assert stages.measure(run, silent) == ()
    _, findings = stages.analyse(run)
    cells = {cell.aggressor: cell for cell in findings.cells if cell.aggressor}
    assert set(cells) == {"source", "destination"}
    for cell in cells.values():
        assert 0.1 < cell.achieved < 1.3
        assert not {Warn.AGGRESSOR_IDLE, Warn.AGGRESSOR_NOT_STOPPED} & set(cell.warnings)
    assert programs_with(str(tmp_path / "state")) == []
    assert list((tmp_path / "state").glob("run*")) == []
