"""The Python interface: what the docs show runs, and says what the commands say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import partywall
from partywall import api
from partywall.errors import UsageError
from partywall.guard.record import GuardInterval
from partywall.web import records
from partywall.web.jobs import Folder
from tests.guard.records import guard_record

DOCS = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_package_gives_what_the_interface_lists():
    assert all(getattr(partywall, name) is getattr(api, name) for name in api.__all__)
    assert set(dir(partywall)) >= set(api.__all__)


def test_a_module_is_imported_without_the_whole_interface():
    source = "import sys; from partywall import units; import partywall; assert 'partywall.api' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="no attribute 'cached_property'"):
        getattr(partywall, "cached_property")  # noqa: B009 - a name of the module that is not in its interface


@pytest.mark.parametrize("for_", ["0s", "-1s", "soon"])
def test_a_length_of_time_that_is_none_is_refused_by_name(for_):
    with pytest.raises(UsageError, match="for_"):
        partywall.run_load("http://127.0.0.1:9", users=1, for_=for_)


def test_the_docs_name_every_function():
    functions = {name for name in api.__all__ if name.islower()}
    assert functions <= set(re.findall(r"\w+", DOCS.read_text()))


# The demo itself takes two minutes; benches/first_minutes.py runs it.
SMALL = """
partywall: 1
name: small
victims: {integer: {probe: integer}, ring: {probe: pipe}}
aggressors:
  copy: {stressor: memory-copy}
  same-core: {stressor: integer, sandbox: {cpus: same}}
  system-calls: {stressor: syscall}
timing: {slot: 30ms}
min_blocks: 8
"""


@pytest.mark.host
def test_the_first_cell_of_the_docs_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL)
    (cell, *_) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    cell, places = re.subn('"demo", budget="120s"', '"small.yaml", budget="6s"', cell)
    assert places == 2
    *before, last = cell.strip().splitlines()
    names: dict[str, object] = {}
    exec("\n".join(before), names)  # noqa: S102 - our own docs
    shown = eval(last, names)  # noqa: S307
    assert len(shown) >= 8
    assert (shown["isolation_factor_low"] <= shown["isolation_factor_high"]).all()
    result = names["result"]
    assert result.path.is_dir()
    assert result.frame("SELECT count(*) AS n FROM slices")["n"][0] > 0
    assert "<iframe" in result._repr_html_()
    assert "left" in capsys.readouterr().out
    again = partywall.open_record(result.path)
    assert again.outcome == result.outcome
    assert [row["treatment"] for row in again.rows()] == [row["treatment"] for row in result.rows()]


def test_a_record_of_a_guard_has_a_row_for_each_vif(tmp_path):
    record = guard_record(tmp_path / "g")
    row = {"offered_bps": 2.0, "granted_bps": 1.0, "passed_bps": 1.0, "dropped_packets": 3}
    record.add(GuardInterval(0, 10**9, {"vm": row}, {}, (("vm", "exceeded", "more than promised"),), 0, 0))
    result = partywall.open_record(tmp_path / "g")
    assert (result.kind, result.outcome) == ("guard", partywall.Exit.VIOLATED)
    assert result.frame()["dropped_packets"].tolist() == [3]
    assert result.frame("SELECT passed_bps FROM guard")["passed_bps"].tolist() == [1.0]


def test_a_record_that_python_made_shows_its_finding_and_outcome_in_lists(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    row = {"offered_bps": 2.0, "granted_bps": 1.0, "passed_bps": 1.0, "dropped_packets": 3}

    def measure(emit):
        record = guard_record(tmp_path / "g")
        emit(partywall.Started(record.path))
        record.add(GuardInterval(0, 10**9, {"vm": row}, {}, (("vm", "exceeded", "more than promised"),), 0, 0))
        return record

    result = api._measured(measure, lambda _: None)
    (named,) = (each for each in records.named(tmp_path) if each.name == "g")
    shown = records.row(Folder(tmp_path), named)
    assert shown.outcome == ("violated", "✗ violated")
    assert shown.headline == "Kept for 1 s: 1 finding, see below"
    assert not shown.running
    assert result.outcome == partywall.Exit.VIOLATED


def test_mistakes_are_errors_that_name_the_argument(tmp_path):
    with pytest.raises(partywall.UsageError, match="there is no scenario 'demmo'"):
        partywall.plan_scenario("demmo")
    with pytest.raises(partywall.UsageError, match="budget"):
        partywall.plan_scenario("demo", budget="soon")
    with pytest.raises(partywall.UsageError, match="length"):
        partywall.run_study("papers/vits", length="middling")
    with pytest.raises(partywall.UsageError, match="not a record"):
        partywall.open_record(tmp_path)
