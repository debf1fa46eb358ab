"""The study of load generation: its file, its order, and how observations become the paper's exhibits."""

import json
import os
import shutil
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from partywall import study as all_studies
from partywall.cli.app import app
from partywall.errors import UsageError
from partywall.host import Host
from partywall.load import tomcat
from partywall.model.agreement import Likeness, judge
from partywall.model.study import StudyRequest
from partywall.report import study_page
from partywall.sandbox import Label, reaper
from partywall.scenario import papers
from partywall.stats.overhead import response
from partywall.store.study import StudyDirectory
from partywall.study.generation import cells as studies
from partywall.study.generation.model import METRICS, Observed
from partywall.testing import fake_host

NAME = "papers/load-generation-netto"
SCHEMA = json.loads((Path(__file__).parents[2] / "schema" / "agent.schema.json").read_text())
START = SCHEMA["methods"]["workload.start"]["params"]


@pytest.fixture(scope="module")
def study():
    return studies.load(all_studies.find(NAME).read_bytes(), NAME)


def kept(path):
    about = {"partywall": "0", "host": {"kernel": {"release": "6"}}}
    return StudyDirectory.create(path, all_studies.find(NAME).read_bytes(), StudyRequest(rounds=3), about)


def made_up(study, rounds=3):
    """The physical generator twice as fast as the sandbox, more so with more users; rounds vary a little."""
    for number in range(rounds):
        for cell in study.cells:
            slower = 1.0 if cell.generator == "physical" else 1.5 + cell.users / 100 + cell.sandboxes / 10
            value = slower * (1 + 0.001 * number)
            values = dict.fromkeys(METRICS, value) | {"iterations_per_s": cell.users / value, "doubtful": 0.0}
            yield Observed(cell=cell, round=number, values=values)


def test_each_round_holds_each_cell_once_in_an_order_of_its_own(study):
    form = study.forms["short"]
    jobs = studies.order(study.cells, form, seed=1)
    assert len(jobs) == form.rounds * len(study.cells)
    rounds = [[cell.id for number, cell in jobs if number == n] for n in range(form.rounds)]
    assert {tuple(sorted(ids)) for ids in rounds} == {tuple(sorted(cell.id for cell in study.cells))}
    assert rounds[0] != rounds[1]
    assert jobs == studies.order(study.cells, form, seed=1)


@pytest.mark.parametrize("backend", ["foo", "libvirt"])
def test_a_backend_from_which_the_service_cannot_be_asked_is_refused_before_anything_is_made(study, backend):
    with pytest.raises(UsageError, match=f"--backend: .*{backend}.*give container or process or qemu"):
        all_studies.KINDS["partywall_load_study"].outline(study, StudyRequest(backends=(backend,)), fake_host())


@pytest.mark.long
def test_the_compression_is_in_the_iteration_where_the_cell_has_it(study):
    form = study.forms["short"]
    for cell in study.cells:
        made = studies.program_of(study, form, "http://127.0.0.1:1", cell)
        jsonschema.validate({"id": "a", "work": {"load": made}, "pace": "scheduled", "work_dir": "/w"}, START)
        steps = made["kinds"][0]["actions"][0]["transaction"]["steps"]
        assert ("compress" in steps[-1]) == cell.compress


def test_kept_cpus_are_the_hosts_and_one_is_always_the_generators(study, tmp_path):
    cpus = len(os.sched_getaffinity(0))
    for cell in study.cells:
        setup = studies.setup_of(cell, "a", tmp_path, seed=1, backend="container")
        assert len(setup.cpus) == max(1, cpus - round(cpus * cell.kept / 100))
        assert setup.backend == ("process" if cell.generator == "physical" else "container")


def test_every_exhibit_of_the_paper_has_its_metric_and_points(study):
    paper = papers.load(study.paper)
    assert set(studies.TABLES) == {exhibit.id for exhibit in paper.exhibits}
    for beside in studies.comparisons(study, list(made_up(study))):
        claimed = {place for claim in beside.table.claims for place in (claim.left, claim.than)}
        measured = set(beside.points)
        assert len(measured & (claimed | set(beside.table.values))) >= 2, beside.table.id


def test_verdicts_follow_from_what_was_measured(study):
    shown = {beside.table.id: judge(beside) for beside in studies.comparisons(study, list(made_up(study)))}
    assert shown["fig 4a"].likeness in (Likeness.SAME_ORDER, Likeness.SAME_DIRECTION)
    assert shown["fig 7"].likeness is Likeness.SAME_ORDER
    assert shown["fig 10"].likeness is Likeness.DIFFERS
    assert {beside.likeness for beside in [judge(b) for b in studies.comparisons(study, [])]} == {Likeness.MISSING}


def test_a_study_is_reported_from_its_files(study, tmp_path):
    directory = kept(tmp_path / "run")
    for observed in made_up(study):
        directory.append(observed.model_dump_json())
    with (directory.path / "observations.jsonl").open("a") as stream:
        stream.write('{"cell": {"gen')
    assert len(directory.observations()) == 3 * len(study.cells)
    made = all_studies.report(directory)
    files = study_page.FILES.write(made, tmp_path / "out", ["html", "json", "csv"])
    text = files[0].read_text()
    for part in ("Table II: CPU usage", "Fig 10", "Of 17 tables and figures", "loopback"):
        assert part in text
    found = json.loads(files[1].read_text())
    assert len(found["exhibits"]) == 17
    assert set(found["cells"]) == set(METRICS)
    assert len(files[2].read_text().splitlines()) == 1 + 3 * len(study.cells)


def test_a_study_that_is_none_is_told_by_line():
    text = b"partywall_load_study: 1\nname: a\ncells: [{generator: both, users: 0}]\n"
    with pytest.raises(UsageError, match=r"a\.yaml:3: cells\[0\]\.generator"):
        studies.load(text, "a.yaml")


@pytest.mark.host
@pytest.mark.slow
@pytest.mark.skipif(bool(tomcat.missing(Host.here())), reason=tomcat.missing(Host.here()) or "-")
@pytest.mark.skipif(os.geteuid() != 0, reason="containers need root")
@pytest.mark.skipif(not (shutil.which("crun") or shutil.which("runc")), reason="no OCI runtime is installed")
def test_a_cell_is_measured_against_a_real_tomcat_and_nothing_is_left(study, tmp_path):
    label = Label.create(f"test-tomcat-{os.getpid()}", tmp_path)
    form = study.forms["short"].model_copy(update={"hold": 3_000_000_000})
    try:
        with tomcat.running(label) as url:
            cell = next(c for c in study.cells if c.sandboxes == 2)
            observed = studies.observe(study, form, url, cell, 0, tmp_path)
    finally:
        reaper.clean(label)
    assert observed.values["iterations_per_s"] > 1
    assert observed.values["response_s"] > observed.values["pages_s"] > 0
    assert not (tmp_path / f"partywall-{label.run}").exists()


@pytest.mark.long
def test_rounds_measured_both_ways_make_a_model_that_foretells_levels_it_has_not_seen(study, tmp_path):
    directory = kept(tmp_path / "run")
    for number in range(3):
        for cell in study.cells:
            own = 0.004 if cell.generator == "physical" else 0.005
            time_s = response(cell.users, 0.5, own)
            values = dict.fromkeys(METRICS, 0.0) | {
                "response_s": time_s,
                "iterations_per_s": cell.users / (time_s + 0.5),
            }
            observed = Observed(cell=cell, round=number, values=values | {"cpu_percent": cell.users / 2.0})
            directory.append(observed.model_dump_json())
    made = all_studies.report(directory)
    assert "mean error 0.0%" in made.sections[0].lead
    assert "What the bare host would have measured" in study_page.render(made)
    assert CliRunner().invoke(app, ["load", "model", str(directory.path)]).exit_code == 0
    asked = ["load", "model", str(directory.path), "--users", "75", "--response", "50ms", "--used", "40%"]
    assert "75 users:" in CliRunner().invoke(app, asked).output
    with pytest.raises(UsageError, match="--response and --used: missing"):
        CliRunner().invoke(app, [*asked[:5]], catch_exceptions=False)
