"""From records to the page: nothing is lost on the way through the files, and doubts are shown where they stand."""

import json
from pathlib import Path

import pytest
import vl_convert
from rich.console import Console

from partywall.cli import output, report
from partywall.core.report.charts import titled
from partywall.core.stats.estimate import Outcome
from partywall.errors import TrialError
from partywall.load import charts as load_charts
from partywall.load import monitors
from partywall.load.capability import Loads
from partywall.load.findings import load_run
from partywall.load.health import Health, Reason
from partywall.load.measure import KEPT, Monitor
from partywall.load.record import LoadDirectory, Readings
from partywall.load.second import Second

SECOND = 1_000_000_000
LABELS = [{"name": "GET /", "sort": "http"}, {"name": "buy", "sort": "transaction"}]
PLAN = {
    "partywall_load": 1,
    "name": "shop",
    "users": {"one": {"actions": [{"http": "http://a/"}]}},
    "closed": {"users": 2, "hold": "3s"},
    "thresholds": [{"p99": "1s"}, {"of": "GET /", "rate": 100}],
    "good_seconds": 0.1,
}
COUNTERS = [
    {"name": "cpu_user_ns", "subject": "cpu"},
    {"name": "cpu_user_ns", "subject": "cpu0"},
    {"name": "disk_write_wait_ns", "subject": "vda"},
    {"name": "disk_writes_count", "subject": "vda"},
    {"name": "memory_available_bytes", "subject": None},
    {"name": "tcp_listen_drops_count", "subject": None},
]


def page_of(run):
    _, render = Loads().files().documents["html"]
    return render(run)


@pytest.fixture
def kept(tmp_path, a_record):
    started = {"labels": LABELS, "origins": [], "stages_ns": 3 * SECOND}
    about = {
        "started": started,
        "plan": PLAN,
        "title": "shop <b>",
        "seed": 1,
        "cpus": [0],
        "threads": 1,
        "partywall": "0",
    }
    about["program"] = {"pacing": {"closed": {"stages": [{"to": 2, "for_ns": 3 * SECOND}]}}}
    directory = LoadDirectory.create(tmp_path / "run", about)
    for number in range(3):
        second = Second(number * SECOND, (number + 1) * SECOND)
        second.add(a_record(start_ns=number * SECOND, end_ns=(number + 1) * SECOND))
        warnings = {Reason.STEAL: "30% of its CPUs"} if number == 1 else {}
        directory.append(second, Health(warnings))
    values = {at: [at * 1.5e9, at * 1.5e9, at * 6e6, at * 3.0, 2e9, max(0, at - 1.0)] for at in range(4)}
    directory.add_readings(Readings("generator's host", COUNTERS, values))
    directory.finish(LABELS, 0)
    return directory


def test_what_was_recorded_is_what_is_reported(kept):
    run = load_run(kept)
    assert (run.responses, len(run.seconds), run.good) == (12, 3, 2)
    assert set(run.labels[0].corrected.values()) == {3}
    assert run.labels[0].mean_ns == 2500
    assert run.seconds[1].doubts == {"the hypervisor took CPU time away": "30% of its CPUs"}


def test_what_the_generator_put_right_and_left_out_is_in_the_notes(kept, tmp_path, a_record):
    about = kept.about()
    origin = {"name": "http://a:80", "protocol": "HTTP/1.1", "addresses": ["[::1]:80"]}
    about["started"]["origins"] = [origin | {"unreachable": ["127.0.0.1:80: Connection refused"]}]
    directory = LoadDirectory.create(tmp_path / "repaired", about)
    for number in range(2):
        second = Second(number * SECOND, (number + 1) * SECOND)
        changed = {"resent": 1, "rerouted": number, "start_ns": second.start_ns, "end_ns": second.end_ns}
        second.add(a_record(**changed))
        directory.append(second, Health({}))
    directory.finish(LABELS, 0)
    run = load_run(directory)
    assert run.errors == ()
    notes = " ".join(run.notes)
    assert "2 requests had to be sent once more" in notes
    assert "1 attempt to connect went on to the server's next address" in notes
    assert "http://a:80 is not used at 127.0.0.1:80: Connection refused" in notes
    assert not any("once more" in note or "next address" in note for note in load_run(kept).notes)


def test_a_load_that_was_killed_is_reported_from_what_it_had_written(kept, tmp_path, a_record):
    about = kept.about()
    killed = LoadDirectory.create(tmp_path / "killed", about)
    second = Second(0, SECOND)
    second.add(a_record(start_ns=0, end_ns=SECOND))
    killed.append(second, Health({}))
    for at in range(2):
        killed.add_readings(
            Readings("generator's host", COUNTERS, {at: [at * 1.5e9, at * 1.5e9, at * 6e6, at * 3.0, 2e9, 0.0]})
        )
    with (killed.path / killed.COUNTERS).open("a") as stream:
        stream.write('{"host": "generator')
    killed.settle()
    assert {(s.group, s.name): s.mean for s in load_run(killed).monitors}["CPU", "programs"] == pytest.approx(1.5)
    assert not (killed.path / killed.COUNTERS).exists()
    run = load_run(killed)
    assert (run.responses, run.rate, run.length_s, run.ended_early) == (4, 4, 1, True)
    assert run.outcome is not Outcome.HOLDS
    assert "ended early, after 1 s of 3 s" in page_of(run)
    killed.settle()
    assert load_run(killed).responses == 4


def test_a_kill_while_a_finished_load_is_tidied_loses_no_counter(kept, tmp_path, a_record, monkeypatch):
    load = LoadDirectory.create(tmp_path / "tidied", kept.about())
    second = Second(0, SECOND)
    second.add(a_record(start_ns=0, end_ns=SECOND))
    load.append(second, Health({}))
    load.add_readings(Readings("generator's host", COUNTERS, {0: [1.5e9, 1.5e9, 6e6, 3.0, 2e9, 0.0]}))
    unlink, removed = Path.unlink, []

    def killed_after_the_first(path, **given):
        if path.name in (load.LINES, load.COUNTERS):
            if removed:
                raise KeyboardInterrupt
            removed.append(path.name)
        unlink(path, **given)

    monkeypatch.setattr(Path, "unlink", killed_after_the_first)
    with pytest.raises(KeyboardInterrupt):
        load.finish(LABELS, 0)
    monkeypatch.undo()
    samples = load.table("samples")
    assert samples
    load.settle()
    assert load.table("samples") == samples


def test_a_killed_load_counts_from_its_beginning_and_not_from_before(kept, tmp_path, a_record):
    about = {name: value for name, value in kept.about().items() if name != "begin_ns"}
    killed = LoadDirectory.create(tmp_path / "killed", about)
    killed.begin(SECOND // 2)
    second = Second(0, SECOND)
    second.add(a_record(start_ns=0, end_ns=SECOND))
    killed.append(second, Health({}))
    killed.settle()
    assert load_run(killed).rate == 8


def test_a_load_that_ended_before_its_first_second_is_no_load(kept, tmp_path):
    empty = LoadDirectory.create(tmp_path / "empty", kept.about())
    empty.finish(LABELS, None)
    with pytest.raises(TrialError, match="within its first second"):
        load_run(empty)


def test_connections_that_a_full_server_dropped_are_a_note_about_the_service(kept):
    run = load_run(kept)
    (note,) = run.notes
    assert note.startswith("Connections were dropped before they were accepted in 2 of 3 seconds (generator's host)")
    assert "Raise its listen backlog" in note
    assert "listen backlog" not in "".join(remedy for _, remedy, _ in run.doubtful)


def test_counters_become_figures_and_each_cpu_counts_once(kept):
    means = {(s.group, s.name): s.mean for s in load_run(kept).monitors}
    assert means["CPU", "programs"] == pytest.approx(1.5)
    assert means["Disk time", "of a write"] == pytest.approx(2.0)
    assert means["Memory", "available"] == pytest.approx(2.0)
    assert ("Network bytes", "received") not in means


def test_what_passes_layers_counts_once_and_loopback_apart():
    def rows(at_ns, value):
        reported = {
            "disk_written_bytes": ("sda", "nvme0n1", "dm-0", "md127", "loop3", "zram0"),
            "network_received_bytes": ("lo", "eth0", "wlp2s0", "br0", "docker0", "veth12ab", "eth0.100", "vnet3"),
        }
        return [
            {"host": "server", "at_ns": at_ns, "counter": counter, "subject": subject, "value": value}
            for counter, subjects in reported.items()
            for subject in subjects
        ]

    result = monitors.series(rows(0, 5e6) + rows(SECOND, 6e6), 0)
    assert {(s.group, s.name): s.mean for s in result} == {
        ("Disk bytes", "written"): pytest.approx(2.0),
        ("Network bytes", "received"): pytest.approx(2.0),
        ("Network bytes", "received by loopback"): pytest.approx(1.0),
        ("Network bytes", "received by virtual interfaces"): pytest.approx(5.0),
    }


def test_figures_of_one_disk_leave_out_the_disk_below_it():
    rows = [
        {"host": "server", "at_ns": at_ns, "counter": "disk_queue_ns", "subject": subject, "value": at_ns * queue}
        for at_ns in (0, SECOND)
        for subject, queue in (("vda", 1), ("loop3", 12))
    ]
    (figure,) = monitors.series(rows, 0, monitors.on_disk(monitors.FIGURES, "loop3"))
    assert (figure.group, figure.mean) == ("Disk queue", pytest.approx(12.0))


def test_thresholds_are_judged_again_from_the_files(kept):
    run = load_run(kept)
    assert [bound.outcome for bound in run.bounds] == [Outcome.HOLDS, Outcome.VIOLATED]
    assert run.outcome is Outcome.VIOLATED


def test_the_page_stands_alone_and_shades_doubtful_seconds(kept):
    run = load_run(kept)
    text = page_of(run)
    assert "shop &lt;b&gt;" in text
    assert "shop <b>" not in text
    assert "doubtful: the hypervisor took CPU time away (30% of its CPUs)" in text
    assert "1 of 3 seconds doubtful" in text
    assert "https://" not in text.partition("<script")[0]


@pytest.mark.long
def test_each_chart_of_a_load_draws_without_any_network(kept):
    drawn = load_charts.all_charts(load_run(kept))
    assert {"percentiles", "rate", "users", "distribution", "generator", "monitor-cpu"} <= set(drawn)
    for title, _, draw in drawn.values():
        chart = draw()
        chart.to_dict(validate=True)
        svg = vl_convert.vegalite_to_svg(json.dumps(titled(chart, title)), allowed_base_urls=[])
        assert "NaN" not in svg


@pytest.mark.long
def test_every_format_is_written_and_an_unknown_one_is_refused(kept, tmp_path):
    files = Loads().files().write(load_run(kept), tmp_path / "out", ["html", "json", "csv", "parquet", "svg"])
    assert {path.suffix for path in files} == {".html", ".json", ".csv", ".parquet", ".svg"}
    with pytest.raises(Exception, match="--format: a load cannot be written as 'docx'"):
        Loads().files().write(load_run(kept), tmp_path, ["docx"])


def test_the_findings_of_a_load_are_printed_as_json(kept, capsys):
    code = report.show_record(kept, Console(stderr=True), ["json"], document="report")
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert (document["command"], document["exit"], said.err) == ("report", code, "")
    assert document["result"] == output.plain(json.loads((kept.path / "findings.json").read_text()))


def test_a_load_of_any_length_needs_no_more_memory_for_its_counters(tmp_path, kept):
    """Every counter of every second of every host stayed in memory until the end, and was lost with it."""
    monitor = Monitor(COUNTERS)
    long = LoadDirectory.create(tmp_path / "long", kept.about())
    for number in range(5000):
        monitor.add({"at_ns": number * SECOND, "values": [0.0] * len(COUNTERS)})
        long.add_readings(Readings("a host", monitor.counters, monitor.take()))
        assert len(monitor.readings) + len(monitor.fresh) <= KEPT + 1
        assert number == 0 or monitor.host(number - 1) is not None
    long.finish(LABELS, 0)
    samples = long.table("samples")
    assert len(samples) == 5000 * len(COUNTERS)
    assert {row["at_ns"] for row in samples} == {number * SECOND for number in range(5000)}


def test_the_document_begins_with_the_finding_and_the_number_of_goals_for_lists_of_records(kept):
    value = Loads().files().value(load_run(kept))
    assert list(value)[:2] == ["headline", "goals"]
    assert value["headline"].startswith("shop <b>: ")
    assert value["goals"] == 2
