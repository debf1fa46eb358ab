"""Benchmarks notice that others use the host, and measure again, but not without end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

BENCHES = Path(__file__).resolve().parents[1] / "benches"


@pytest.fixture
def disturbance(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(BENCHES)
    import disturbance  # noqa: PLC0415 - found through the folder just added

    yield disturbance
    for name in {"disturbance", "common", "results"} - before:
        sys.modules.pop(name, None)


def spin(cpu_s: float, name: str = "") -> list[str]:
    """A command that uses so much CPU time, under a name of its own."""
    named = f"open('/proc/self/comm', 'w').write({name!r})\n" if name else ""
    return [sys.executable, "-c", f"import time\n{named}while time.process_time() < {cpu_s}: pass"]


@contextmanager
def orphan(name: str) -> Iterator[int]:
    """A busy process of this name whose parent has ended, so that it does not descend from this one."""
    code = f"import subprocess; subprocess.Popen({spin(60, name)!r}, start_new_session=True)"
    subprocess.run([sys.executable, "-c", code], check=True)
    deadline = time.monotonic() + 60
    while not (pids := [int(item.name) for item in Path("/proc").glob("[0-9]*") if _comm(item) == name]):
        assert time.monotonic() < deadline, f"{name} did not start"
        time.sleep(0.01)
    try:
        yield pids[0]
    finally:
        os.kill(pids[0], signal.SIGKILL)


def test_time_of_others_counts_and_that_of_children_does_not(disturbance: ModuleType):
    with orphan("somebody") as pid, disturbance.watched() as seen:
        child = subprocess.Popen(spin(60, "mine"))
        deadline = time.monotonic() + 60
        while "somebody" not in (used := dict(disturbance._others().values())) or used["somebody"] < 0.3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        pids = {each for each, _ in disturbance._others()}
        child.kill()
        child.wait(10)
    assert pid in pids
    assert child.pid not in pids
    assert seen.others > 0
    assert seen.by


def test_a_process_of_a_run_of_ours_is_no_other(
    disturbance: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path))
    tmp_path.chmod(0o700)
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "owner.json").write_text(f'{{"pid": {os.getpid()}}}')
    monkeypatch.setenv("PARTYWALL_RUN", "r")
    with orphan("sandboxed") as pid:
        assert pid not in {each for each, _ in disturbance._others()}


def _comm(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return ""


def seen(disturbance: ModuleType, monkeypatch: pytest.MonkeyPatch, others: list[float]) -> None:
    """What each measurement in turn sees of others."""
    left = iter(others)

    class Reported:
        def __enter__(self) -> object:
            return disturbance.Seen(others=next(left), by="dpkg")

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(disturbance, "watched", Reported)
    monkeypatch.setattr(disturbance, "await_undisturbed", lambda: None)


@pytest.mark.parametrize(
    ("others", "figures", "result"),
    [
        ([0.0], [1], 1),  # Calm: a miss stays a miss.
        ([0.5, 0.0], [1, 2], 2),  # Disturbed and missed: once more.
        ([0.5], [9], 9),  # Disturbed, and met all the same.
        ([0.5, 0.5, 0.5], [1, 2, 3], 3),  # Never calm: the last counts.
    ],
)
def test_a_miss_on_a_disturbed_host_is_measured_again_three_times_at_most(
    disturbance: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    others: list[float],
    figures: list[int],
    result: int,
):
    seen(disturbance, monkeypatch, others)
    left = iter(figures)
    assert disturbance.undisturbed(lambda: next(left), lambda figure: figure == 9) == result
    assert list(left) == []
    said = capsys.readouterr().out.splitlines()
    disturbed = [share for share in others if share]
    assert len(said) == len(disturbed)
    assert all("dpkg most" in line for line in said)
    assert sum("measuring again" in line for line in said) == len(figures) - 1
