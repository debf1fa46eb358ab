"""A capability of another package gets every face, and no file of Partywall knows it."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import partywall
from partywall import api, kinds, registry
from partywall.cli import main
from partywall.core.capability import Options
from partywall.errors import Exit, UsageError
from partywall.events import Note, silent
from partywall.fleet.engines.engine import named
from partywall.fleet.inventory import Place
from partywall.fleet.ledger.granting import Order
from partywall.fleet.ledger.lease import Phase
from partywall.testing.hosts import fake_host
from partywall.web import documents, forms, jobs, made
from partywall.web.jobs import Folder
from partywall.web.live import Watched
from partywall.web.runner import command
from partywall.web.security import Secrets, Site
from tests.waiting import until
from tests.web.web_site import Direct, Page

HERE = Path(__file__).parent
CODE = HERE / "partywall_nap"
CACHES = (registry.others, kinds.kind, api.functions, made.forms)
ORDER = {"kind": "nap", "options": {"lengths": ["1ms", "2ms"], "count": "3"}}


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """The package is installed, as far as Python can tell."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]))
    for cache in CACHES:
        cache.cache_clear()
    yield
    for cache in CACHES:
        cache.cache_clear()


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a command. Returns its exit code, and what it printed."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["partywall", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code, said.out + said.err

    return run


@pytest.fixture
def record(run, tmp_path):
    code, _ = run("nap", "1ms", "2ms", "--count", "3", "--limit", "1min", "--out", tmp_path / "one")
    assert code == 0
    return tmp_path / "one"


def test_it_has_fewer_than_200_lines_and_partywall_does_not_name_it():
    assert sum(len(file.read_text().splitlines()) for file in CODE.glob("*.py")) < 200
    sources = Path(partywall.__file__).parent.rglob("*.py")
    assert [
        file for file in sources if "partywall_nap" in file.read_text().replace("partywall_nap.capability", "")
    ] == []


def test_the_command_and_its_help_are_there(run):
    _, listed = run("--help")
    assert "Sleep, and say how much longer each sleep takes than it should." in listed
    _, shown = run("nap", "--help")
    for text in ("LENGTH...", "--count", "[default: 10]", "--limit", "--resume DIR", "--dry-run", "Exit code: 0 slept"):
        assert text in shown
    code, shown = run("nap", "2s", "--dry-run")
    assert (code, "10 sleeps of 2 s" in shown) == (0, True)
    code, shown = run("nap", "1ms", "x", "--count", "0")
    assert code == 2
    assert "LENGTH: 'x' is not a duration" in shown
    assert "--count must be at least 1, not 0 — give for example 10" in shown
    code, shown = run("nip")
    assert (code, "nap" in shown) == (2, True)


def test_it_leaves_a_page_tables_and_rows(run, record):
    code, shown = run("report", record, "-f", "html", "-f", "csv", "-f", "parquet", "-f", "svg")
    assert (code, "6 sleeps were at most" in shown) == (0, True)
    page = (record / "report.html").read_text()
    assert "✓ holds" in page
    assert 'data-chart="late"' in page
    assert "How much longer a sleep took than it should." in page
    assert (record / "naps.csv").read_text().startswith("wanted_ns,count,late_ns_p50,late_ns_max\n1000000,3,")
    assert pq.read_table(record / "findings.parquet").num_rows == 2
    assert (record / "charts" / "late.svg").exists()
    code, shown = run("report", record, "-f", "json")
    assert json.loads(shown)["result"]["naps"][0]["count"] == 3
    code, shown = run("sql", record, "SELECT count(*) AS sleeps FROM naps")
    assert (code, " 6 " in shown) == (0, True)


def test_two_records_are_compared(run, record, tmp_path):
    run("nap", "1ms", "2ms", "--count", "3", "--out", tmp_path / "two")
    code, shown = run("compare", record, tmp_path / "two")
    assert code == 3
    assert "1 ms: late, median" in shown
    assert " times " in shown


def test_an_interrupted_record_is_continued(run, tmp_path):
    left = [2]

    def sleep(_):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1

    naps = type(kinds.kind("nap"))(sleep)
    job = naps.jobs[0].parsed({"lengths": ["1ms"], "count": 5})
    with pytest.raises(KeyboardInterrupt):
        naps.begin(job, Options(fake_host(), tmp_path / "one"), silent)
    record = kinds.opened(tmp_path / "one")
    assert kinds.of(record).continued_by(record) == ("nap", "--resume", str(tmp_path / "one"))
    code, shown = run("nap", "--resume", tmp_path / "one", "2ms")
    assert (code, "leave out LENGTH" in shown) == (2, True)
    code, shown = run("nap", "--resume", tmp_path / "one")
    assert (code, "5 sleeps were" in shown) == (0, True)
    notes = []
    partywall.resume_record(tmp_path / "one", on_event=lambda each: isinstance(each, Note) and notes.append(each.text))
    assert any("nothing is left to measure" in note for note in notes)


def test_the_python_function_has_the_fields_as_keywords(tmp_path):
    assert "run_nap" in dir(partywall)
    assert list(inspect.signature(partywall.run_nap).parameters) == ["lengths", "count", "limit", "out", "on_event"]
    result = partywall.run_nap(lengths=["1ms"], count=2, out=tmp_path / "one")
    assert (result.kind, result.outcome, result.rows()[0]["count"]) == ("nap", Exit.HOLDS, 2)
    with pytest.raises(UsageError, match="count: must be at most 1000, not 2000"):
        partywall.run_nap(lengths=["1ms"], count=2000)
    with pytest.raises(TypeError, match="unexpected keyword argument 'counts'"):
        partywall.run_nap(lengths=["1ms"], counts=2)


def test_the_page_has_a_form_that_starts_it(tmp_path):
    folder = Folder(tmp_path)
    folder.make()
    page = Page(Direct(folder, Site(8733), Secrets(folder.own), read_host=fake_host))
    start = page.get("/start").text
    assert "Or: Sleep, and say how much longer each sleep takes than it should" in start
    assert 'name="options.lengths"' in start
    shown = page.submit("/dry-run", kind="nap", **{"options.lengths": "1ms 2ms", "options.count": "3"}).text
    assert "3 sleeps of 2 ms" in shown
    assert '<input type="hidden" name="options.lengths" value="1ms 2ms">' in shown
    wrong = page.submit("/dry-run", kind="nap", **{"options.lengths": "1ms", "options.count": "many"})
    assert wrong.status_code == 400
    assert "must be a whole number, not &#39;many&#39;" in wrong.text
    order = jobs.Order.model_validate(ORDER)
    forecast = documents.forecast(order, fake_host(), allow_commands=False)
    assert forecast.lines == ("3 sleeps of 1 ms", "3 sleeps of 2 ms")
    assert command(order, tmp_path, Path("record")) == ["nap", "--out=record", "--count=3", "--", "1ms", "2ms"]
    with pytest.raises(UsageError, match="a page may not give this"):
        command(forms.checked_order(ORDER | {"options": {"out": "/etc"}}), tmp_path, Path("record"))


def test_a_job_of_the_page_is_shown_while_it_goes_on(tmp_path):
    words = command(jobs.Order.model_validate(ORDER), tmp_path, tmp_path / "one")
    done = subprocess.run([sys.executable, "-m", "partywall", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    watched = Watched(tmp_path / "one")
    watched.advance()
    table = watched.state.tables[0]
    assert (watched.state.headline, watched.state.exit) == ("6 sleeps", 0)
    assert table.columns == ("sleep", "times", "late, median", "late, at most")
    assert [row[:2] for row in table.rows] == [("1 ms", "3"), ("2 ms", "3")]


@pytest.mark.host
def test_an_engine_of_another_package_reaches_hosts(run, tmp_path):
    code, shown = run("fleet", "run", "localhost", "demo", "--engine", "shell", "--dry-run")
    assert (code, "1 hosts by shell" in shown) == (0, True)
    code, shown = run("fleet", "run", "localhost", "demo", "--engine", "shall", "--dry-run")
    assert (code, "there is no engine 'shall' — choose one of dask, kubernetes, local, shell" in shown) == (2, True)
    ledger = tmp_path / "ledger"
    engine = named("shell")([Place("here", (), {"partywall_ledger": str(ledger), "partywall_python": sys.executable})])
    order = Order("a", ("--version",))
    assert engine.ensure("here", order, 1).attempt == 1
    until(lambda: not engine.state("here", "a").phase.is_going)
    state = engine.state("here", "a")
    assert (state.phase, state.exit) == (Phase.ENDED, 0)
    assert engine.fetch("here", "a", {"result.json": 0}).chunks[0].content.startswith(b"partywall ")
    assert engine.ensure("here", order, 1).phase is Phase.ENDED
