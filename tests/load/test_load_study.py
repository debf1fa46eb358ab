"""The study of load generation: its file, its order, and how observations become the paper's exhibits."""

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import get_args

import jsonschema
import pytest
from typer.testing import CliRunner

from partywall import study as all_studies
from partywall.cli.app import app
from partywall.core.report import figures
from partywall.errors import UsageError
from partywall.host import Host
from partywall.host.label import Label
from partywall.load import monitors, tomcat
from partywall.load.measure import Monitor
from partywall.load.overhead import response
from partywall.sandbox import Spent, reaper
from partywall.study import exhibits, page, papers
from partywall.study.agreement import Agreement, Likeness, judge
from partywall.study.document import StudyRequest
from partywall.study.generation import cells as studies
from partywall.study.generation.model import COUNTERS, METRICS, Cell, Observed, SetupItem
from partywall.study.paper import Place
from partywall.study.record import StudyDirectory
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
def test_a_backend_from_which_the_service_cannot_be_requested_is_refused_before_anything_is_made(study, backend):
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
        assert not cell.compress or steps[-1]["compress"]["threads"] == cell.users


def test_kept_cpus_are_the_hosts_and_one_is_always_the_generators(study, tmp_path):
    cpus = len(os.sched_getaffinity(0))
    for cell in study.cells:
        setup = studies.setup_of(cell, "a", tmp_path, seed=1, backend="container")
        assert len(setup.cpus) == max(1, cpus - round(cpus * cell.kept / 100))
        # As the paper's Dom-0, the host's side has the kept CPUs alone, and shares the others.
        assert len(setup.host_cpus) == cpus
        assert setup.backend == ("process" if cell.generator == "physical" else "container")


@pytest.mark.parametrize(
    ("cpus", "measured"), [(1, {0}), (2, {0, 50}), (3, {0}), (4, {0, 25, 50}), (6, {0, 50}), (8, {0, 25, 50})]
)
def test_a_share_of_the_cpus_that_is_not_a_whole_number_of_them_is_left_out_with_the_reason(study, cpus, measured):
    assert {cell.kept for cell in studies.possible(study, cpus)} == measured
    left_out = [cell for cell in study.cells if studies.why_not(cell, cpus)]
    assert {studies.why_not(cell, cpus) for cell in left_out} <= {studies.NOT_WHOLE}
    assert {cell.kept for cell in left_out} == {0, 25, 50} - measured


def test_a_test_beside_another_one_stands_for_itself_alone():
    several = Cell(generator="sandbox", users=50, tests=2)
    shown = {name for name, rules in studies.TABLES.items() for _, place in rules if place(several) is not None}
    assert shown == {"section I (tests at once)"}
    assert (several.id, several.boxes) == ("sandbox, 50 users, 2 tests at once", 2)


def test_one_of_three_cpus_is_33_percent():
    cell = Cell(generator="sandbox", users=1, kept=33)
    assert (studies.kept_of(cell, 3), studies.why_not(cell, 3)) == (1, "")


def test_every_figure_of_the_paper_has_its_metric_and_points(study):
    paper = papers.load(study.paper)
    assert set(studies.TABLES) == {exhibit.id for exhibit in paper.exhibits}
    for beside in studies.comparisons(study, list(made_up(study))):
        claimed = {place for claim in beside.table.claims for place in (claim.left, claim.than)}
        measured = set(beside.points)
        stated = claimed | set(beside.table.values) if beside.table.has_statements else measured
        assert len(measured & stated) >= 2, beside.table.id


@pytest.mark.parametrize(
    ("queue_ratio", "time_ratio", "queue", "time"),
    [
        (6.0, 0.9, Agreement.AGREES, Agreement.AGREES),
        (2.0, 0.5, Agreement.OTHER_SIZE, Agreement.OTHER_SIZE),
        (0.5, 1.2, Agreement.CONTRADICTS, Agreement.CONTRADICTS),
    ],
)
def test_sizes_that_the_text_states_are_judged(study, queue_ratio, time_ratio, queue, time):
    def values(cell, number):
        sandbox = queue_ratio if cell.generator == "sandbox" else 1.0
        return {"disk_queue": sandbox + number / 1000, "write_s": (time_ratio if cell.kept else 1.0) + number / 1000}

    observed = [Observed(cell=cell, round=n, values=values(cell, n)) for n in range(3) for cell in study.cells]
    shown = {beside.table.id: judge(beside) for beside in studies.comparisons(study, observed)}

    def sized(name):
        return [pair.agreement for pair in shown[name].pairs if pair.by is not None]

    assert sized("table III") == [queue]
    assert sized("table V") == [time, time]


def test_the_hosts_metrics_are_a_table_of_each_generator_without_a_chart(study):
    (beside,) = [b for b in studies.comparisons(study, list(made_up(study))) if b.table.id == "section IV.A (metrics)"]
    assert {place.x for place in beside.points} == {"physical", "sandbox"}
    assert {place.series for place in beside.points} == {f"{name} ({unit})" for name, (_, unit) in COUNTERS.items()}
    assert not exhibits.has_chart(beside)
    assert all(published == exhibits.NOT_PRINTED for _, _, published, _ in exhibits.rows(beside))


def test_disks_are_the_guests_own_with_the_hosts_beside_and_otherwise_the_hosts():
    host = {studies.QUEUE: 8.0, studies.WRITE_MS: 40.0}
    guests = [{studies.QUEUE: 2.0, studies.WRITE_MS: 10.0}, {studies.QUEUE: 4.0}]
    assert studies._of_disks(host, guests) == {
        "disk_queue": 3.0,
        "write_s": 0.01,
        "host_disk_queue": 8.0,
        "host_write_s": 0.04,
    }
    assert studies._of_disks(host, []) == {
        "disk_queue": 8.0,
        "write_s": 0.04,
        "host_disk_queue": None,
        "host_write_s": None,
    }
    assert studies._of_disks(host, [{}])["disk_queue"] is None


def test_the_hosts_side_is_emulators_and_softirq_and_without_guests_softirq_alone():
    host = {"CPU: packets and timers": 0.1}
    readings = [(0, Spent(0, 0)), (10, Spent(1, 7)), (20, Spent(13, 12)), (30, Spent(50, 40))]
    used = studies._rate(readings, (5, 25))
    assert used == (1.2, 0.5)
    # The CPU usage of a guest is that of its virtual CPUs, without the emulator.
    assert studies._of_processors(used.guest, 2, 2) == {"cpu_percent": 60.0, "cpu_percent_each": 30.0}
    values = studies._of_host_side(used.host_side, host, 2, guests=True)
    assert values == {"host_side_percent": 30.0, "emulators_percent": 25.0, "softirq_percent": 5.0}
    assert studies._of_host_side(None, host, 2, guests=False)["host_side_percent"] == 5.0
    assert studies._of_host_side(None, host, 2, guests=True)["host_side_percent"] is None
    assert studies._rate(readings[:2], (5, 25)) is None


def test_a_probe_beside_the_service_reads_its_process_alone():
    infos = [
        {"name": "process_user_ns", "subject": "pid 7"},
        {"name": "process_system_ns", "subject": "pid 7"},
        {"name": "process_run_queue_wait_ns", "subject": "pid 7"},
        {"name": "cpu_user_ns", "subject": "cpu"},
    ]
    monitor = Monitor(infos, readings={n: [n * 3e8, n * 1e8, n * 2e8, n * 1e9] for n in (1, 2, 3)})
    means = studies._means(monitor, (10**9, 3 * 10**9), monitors.SERVICE_FIGURES)
    values = studies._of_service(means, 2)
    assert values["service_cpu_percent"] == pytest.approx(20.0)
    assert values["service_waiting"] == pytest.approx(0.2)
    assert values["service_threads"] is None
    assert set(means) == {"Service: CPU time", "Service: waited for a CPU"}


def test_verdicts_follow_from_what_was_measured(study):
    shown = {beside.table.id: judge(beside) for beside in studies.comparisons(study, list(made_up(study)))}
    assert shown["fig 4a"].likeness in (Likeness.SAME_ORDER, Likeness.SAME_DIRECTION)
    assert shown["fig 7"].likeness is Likeness.SAME_ORDER
    assert shown["fig 10"].likeness is Likeness.DIFFERS
    assert shown["section VI (switches)"].likeness is Likeness.SAME_ORDER
    named = {name for name, verdict in shown.items() if verdict.likeness is Likeness.UNSTATED}
    assert named == {f"section {name}" for name in ("II.A (availability)", "II.A (memory)", "IV.A (pages)")} | {
        "section IV.A (metrics)"
    }
    assert {beside.likeness for beside in [judge(b) for b in studies.comparisons(study, [])]} == {Likeness.MISSING}


def test_a_study_is_reported_from_its_files(study, tmp_path):
    directory = kept(tmp_path / "run")
    for observed in made_up(study):
        directory.append(observed.model_dump_json())
    with (directory.path / "observations.jsonl").open("a") as stream:
        stream.write('{"cell": {"gen')
    assert len(directory.observations()) == 3 * len(study.cells)
    made = all_studies.report(directory)
    files = page.FILES.write(made, tmp_path / "out", ["html", "json", "csv"])
    text = files[0].read_text()
    sections = ("The system under test", "Xen 3.4 on Oracle VM Server 2.2", "the short form compresses")
    for part in ("Table II: CPU usage", "Fig 10", "Of 25 tables and figures", "loopback", *sections):
        assert part in text
    result = json.loads(files[1].read_text())
    assert len(result["exhibits"]) == 25
    assert set(result["cells"]) == set(METRICS)
    assert len(files[2].read_text().splitlines()) == 1 + 3 * len(study.cells)


def test_the_papers_form_takes_its_two_hours_a_cell_and_differs_neither_in_time_nor_in_the_file(study, tmp_path):
    path = tmp_path / "run"
    request = StudyRequest(length="paper", backends=("qemu",))
    about = {"partywall": "0", "host": {"kernel": {"release": "6"}, "cpus_allowed": [0, 1]}}
    directory = StudyDirectory.create(path, all_studies.find(NAME).read_bytes(), request, about)
    outline = all_studies.KINDS["partywall_load_study"].outline(study, request, fake_host())
    assert outline.seconds > 2 * 2 * 3600 * 20
    for observed in made_up(study, rounds=2):
        directory.append(
            observed.model_copy(update={"emulated": True, "service": "Apache Tomcat/10.1.6"}).model_dump_json()
        )
    made = all_studies.report(directory)
    assert not any("form" in line for beside in made.comparisons for line in beside.differs)
    setup = {row[0]: row[1:] for section in made.sections if section.id == "setup" for row in section.rows}
    assert setup["duration of a cell"] == ("two hours", "2 h, in each of 2 rounds")
    assert setup["CPUs kept for the host"] == ("none, 2 of 8, 4 of 8", "0 of 2, 0 of 2, 1 of 2")
    assert setup["sandboxes"][1] == "guests of QEMU, emulated"
    assert setup["service"] == ("Tomcat 5.5.29", "Apache Tomcat/10.1.6")
    assert set(setup) == set(get_args(SetupItem))


def test_figures_of_emulated_generators_are_marked_and_those_of_the_physical_ones_are_not(study, tmp_path):
    directory = kept(tmp_path / "run")
    for observed in made_up(study):
        guest = observed.cell.generator == "sandbox"
        directory.append(observed.model_copy(update={"emulated": guest}).model_dump_json())
    made = all_studies.report(directory)
    shown = {beside.table.id: beside.points for beside in made.comparisons}
    for name in ("fig 4a", "table II"):
        assert {place.series: point.emulated for place, point in shown[name].items()} == {
            "sandbox": "victim",
            "physical": None,
        }
    assert shown["table III"][Place("sandbox, host", 25.0)].emulated == "victim"
    assert {place.x: point.emulated for place, point in shown["fig 7"].items()} == {
        0.0: None,
        1.0: "victim",
        2.0: "victim",
        4.0: "victim",
    }
    tables = {section.id: section for section in made.sections}
    assert {row[0].partition(",")[0]: row[0].endswith(" E") for row in tables["cells"].rows} == {
        "physical": False,
        "sandbox": True,
    }
    assert "sandbox, 25 users E" in tables["counters"].columns
    assert all(row[1].endswith(" E") for row in tables["model"].rows)
    for name in ("service", "cells", "counters", "model"):
        assert figures.EMULATED in tables[name].lead
    assert figures.EMULATED in "".join(str(part) for part in exhibits.parts(made.comparisons))


def test_a_study_without_emulation_has_no_marks(study, tmp_path):
    directory = kept(tmp_path / "run")
    for observed in made_up(study):
        directory.append(observed.model_dump_json())
    made = all_studies.report(directory)
    assert not any(point.emulated for beside in made.comparisons for point in beside.measured)
    assert not any(figures.EMULATED in section.lead for section in made.sections)


def test_a_study_that_is_none_is_reported_by_line():
    text = b"partywall_load_study: 1\nname: a\ncells: [{generator: both, users: 0}]\n"
    with pytest.raises(UsageError, match=r"a\.yaml:3: cells\[0\]\.generator"):
        studies.load(text, "a.yaml")


def test_tomcats_version_is_read_from_its_library_and_is_not_known_without_it(tmp_path):
    assert tomcat.version(tmp_path) == ""
    (tmp_path / "lib").mkdir()
    with zipfile.ZipFile(tmp_path / "lib" / "catalina.jar", "w") as library:
        text = "# made up\nserver.info=Apache Tomcat/10.1.6 (Debian)\nserver.number=10.1.6.0\n"
        library.writestr("org/apache/catalina/util/ServerInfo.properties", text)
    assert tomcat.version(tmp_path) == "Apache Tomcat/10.1.6 (Debian)"
    (tmp_path / "lib" / "catalina.jar").write_bytes(b"cut off")
    assert tomcat.version(tmp_path) == ""


@pytest.mark.host
@pytest.mark.slow
@pytest.mark.skipif(bool(tomcat.missing(Host.here())), reason=tomcat.missing(Host.here()) or "-")
@pytest.mark.skipif(os.geteuid() != 0, reason="containers need root")
@pytest.mark.skipif(not (shutil.which("crun") or shutil.which("runc")), reason="no OCI runtime is installed")
@pytest.mark.parametrize("cell", [{"sandboxes": 2}, {"tests": 2}], ids=lambda given: next(iter(given)))
def test_a_cell_is_measured_against_a_real_tomcat_and_nothing_is_left(study, tmp_path, cell):
    label = Label.create(f"test-tomcat-{os.getpid()}", tmp_path)
    form = study.forms["short"].model_copy(update={"hold": 3_000_000_000})
    try:
        with tomcat.running(label) as service, tomcat.running(label) as other:
            observed = studies.observe(
                study, form, [service, other], Cell(generator="sandbox", users=50, **cell), 0, tmp_path
            )
    finally:
        reaper.clean(label)
    assert observed.values["iterations_per_s"] > 1
    assert observed.values["response_s"] > observed.values["pages_s"] > 0
    assert observed.values["service_cpu_percent"] > 0
    assert observed.values["service_threads"] > 1
    assert "Tomcat/10" in observed.service
    assert observed.values["host_side_percent"] == observed.values["softirq_percent"]
    assert not (tmp_path / f"partywall-{label.run}").exists()


@pytest.mark.long
def test_rounds_measured_both_ways_make_a_model_that_predicts_levels_it_has_not_seen(study, tmp_path):
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
    assert "What the bare host would have measured" in page.render(made)
    assert CliRunner().invoke(app, ["load", "model", str(directory.path)]).exit_code == 0
    requested = ["load", "model", str(directory.path), "--users", "75", "--response", "50ms", "--used", "40%"]
    assert "75 users:" in CliRunner().invoke(app, requested).output
    with pytest.raises(UsageError, match="--response and --used: missing"):
        CliRunner().invoke(app, [*requested[:5]], catch_exceptions=False)
