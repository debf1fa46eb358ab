"""A real runner and real runs: started, paused, killed and resumed."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from partywall.web import runner
from partywall.web.jobs import State
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.host]

DOCUMENT = """partywall: 1
name: tiny
budget: 20s
precision: 0.01%
min_blocks: 8
victims: {ring: {probe: pipe}}
aggressors: {copy: {stressor: memory-copy}}
"""


@pytest.fixture
def real(folder, monkeypatch, tmp_path):
    """A folder with a real runner. Neither it nor its jobs outlive the test."""
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    source = str(Path(runner.__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", source)
    runner.start_runner(folder)
    yield folder
    for job in folder.all():
        if job.pid is not None:
            with contextlib.suppress(OSError):
                os.killpg(job.pid, signal.SIGINT)
    kill(folder)


def kill(folder) -> None:
    with contextlib.suppress(ConnectionError):
        os.kill(runner.request(folder, "ping")["pid"], signal.SIGKILL)


def test_a_run_is_paused_resumed_and_stopped_while_the_runner_is_killed(real):
    for _ in range(2):
        runner.request(real, "start", key="key-00001", order={"kind": "run", "document": DOCUMENT})
    (job,) = real.all()
    journal = real.root / job.record / "journal.jsonl"
    until(lambda: journal.is_file() and b'"event":"block"' in journal.read_bytes(), within_s=90.0)
    pid = real.job(job.id).pid
    kill(real)
    runner.start_runner(real)
    assert real.job(job.id).pid == pid
    runner.request(real, "pause", key="key-00002", job=job.id)
    until(lambda: real.job(job.id).state is State.PAUSED, within_s=90.0)
    runner.request(real, "resume", key="key-00003", job=job.id)
    attempts = lambda: journal.read_bytes().split(b'"event":"started"')[1:]  # noqa: E731 - read anew each time
    until(lambda: len(attempts()) == 2 and b'"event":"block"' in attempts()[1], within_s=90.0)
    runner.request(real, "stop", key="key-00004", job=job.id)
    until(lambda: real.job(job.id).state is State.ENDED, within_s=90.0)
    until(lambda: (real.root / job.record / "report.html").is_file(), within_s=90.0)
    assert real.job(job.id).attempt == 2


def test_jobs_run_one_after_the_other(real):
    short = DOCUMENT.replace("20s", "1s")
    for number in range(2):
        runner.request(real, "start", key=f"key-0000{number}", order={"kind": "run", "document": short})
    seen = set()

    def watched() -> bool:
        states = tuple(job.state for job in real.all())
        seen.add(states)
        return states == (State.ENDED, State.ENDED)

    until(watched, within_s=90.0)
    assert (State.RUNNING, State.RUNNING) not in seen
    assert [job.exit in (0, 1, 3) for job in real.all()] == [True, True]
