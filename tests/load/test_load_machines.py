"""The study of load generation on other machines: how they are named, what is refused, and what is reported."""

from __future__ import annotations

import os
import shutil

import pytest
from typer.testing import CliRunner

from partywall import api
from partywall import study as studies
from partywall.cli.app import app
from partywall.core.capability import Options
from partywall.errors import CapabilityError, Exit, TrialError, UsageError
from partywall.host import Host
from partywall.host.label import Label
from partywall.load import tomcat
from partywall.load.document import Generator
from partywall.load.second import Second
from partywall.sandbox import elsewhere, reaper
from partywall.study import page
from partywall.study.capability import Studies, StudyJob
from partywall.study.document import Machines, StudyRequest
from partywall.study.generation import cells, machines
from partywall.study.generation.model import METRICS, Cell, Observed
from partywall.study.record import StudyDirectory
from partywall.testing import fake_host
from tests import ssh_server

NAME = "papers/load-generation-netto"
CONTENT = studies.find(NAME).read_bytes()
FACTS = {
    "cpus_allowed": [0, 1, 2, 3],
    "cpu": {"model": "a made-up processor", "online": [0, 1, 2, 3]},
    "kernel": {"release": "6.1.0"},
    "memory": {"total_bytes": 1 << 33},
}
THREE = {"physical": "load1", "sandboxes": ["vm1", "vm2"], "application": "shop", "address": "10.0.0.7"}
OPTIONS = ["--machine", "physical=load1", "--machine", "sandbox=vm1", "--machine", "sandbox=vm2", "--machine"]
OPTIONS += ["application=shop", "--address", "10.0.0.7"]


@pytest.fixture
def named():
    return Machines.model_validate(THREE)


@pytest.fixture
def study():
    return cells.load(CONTENT, NAME)


@pytest.fixture
def answering(monkeypatch):
    """Machines that answer, by name, with the programs that they were asked about."""
    requested = {}

    def survey(destination, _base, programs):
        requested[destination] = tuple(programs)
        if destination.startswith("closed"):
            raise CapabilityError(f"{destination}, by ssh: it cannot be reached (Connection refused); check the port")
        return FACTS

    monkeypatch.setattr(elsewhere.ssh, "survey", survey)
    return requested


def invoke(*words):
    return CliRunner().invoke(app, ["study", *words], obj=fake_host)


def test_options_name_the_machines_and_the_dry_run_shows_them_with_the_cells(answering, tmp_path):
    said = invoke(NAME, *OPTIONS, "--dry-run", "--work-dir", str(tmp_path))
    assert said.exit_code == Exit.HOLDS, said.output
    for line in (
        "application: shop, at 10.0.0.7",
        "physical generator: load1",
        "virtual generators: vm1, vm2",
        "shop: 4 CPUs (a made-up processor), Linux 6.1.0",
        "left out: sandbox, 50 users, 4 sandboxes: it needs 4 machines for sandboxes, and 2 are named",
        f"left out: sandbox, 50 users, 25 % of CPUs kept: {machines.KEPT}",
    ):
        assert line in said.output
    assert answering == {"load1": (), "vm1": (), "vm2": (), "shop": tuple(sorted(tomcat.PROGRAMS))}


@pytest.mark.parametrize("dry", [True, False])
def test_machines_that_cannot_be_reached_are_reported_all_at_once_and_nothing_is_made(answering, tmp_path, dry):
    out = tmp_path / "out"
    given = ["--machine", "physical=closed1", "--machine", "sandbox=closed2", "--address", "10.0.0.7"]
    said = invoke(NAME, *given, "--out", str(out), "--work-dir", str(tmp_path), *(["--dry-run"] if dry else []))
    assert isinstance(said.exception, CapabilityError)
    assert [problem.message.partition(",")[0] for problem in said.exception.problems] == ["closed1", "closed2"]
    assert set(answering) == {"closed1", "closed2"}
    assert not out.exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["foo=load1"], "'foo=load1' names no role and host — give ROLE=HOST"),
        (["physical"], "'physical' names no role and host"),
        (["physical=a", "physical=b", "sandbox=c"], "two machines are named for the role physical — name one"),
        (["physical=a"], "no machine is named for the role sandbox — add --machine sandbox=HOST"),
        (["physical=a", "sandbox=-x"], "'-x' is not a host for ssh"),
        (["physical=a", "sandbox=b", "sandbox=b"], "'b' is given twice — name a machine for each sandbox"),
        (["physical=a", *["sandbox=libvirt:b"] * 2], "'domain b' is given twice"),
        (["physical=a", "sandbox=libvirt:"], "--machine: 'libvirt:': domain cannot be ''"),
        (["application=libvirt:shop"], "'libvirt:shop' is not a host for ssh"),
    ],
)
def test_wrong_options_are_refused_with_a_remedy(given, said):
    words = [word for text in given for word in ("--machine", text)]
    with pytest.raises(UsageError) as reported:
        CliRunner().invoke(app, ["study", NAME, *words, "--address", "10.0.0.7"], obj=fake_host, catch_exceptions=False)
    assert said in str(reported.value)


def test_options_name_libvirt_domains_and_those_of_two_daemons_may_have_one_name(answering, monkeypatch, tmp_path):
    monkeypatch.setattr(elsewhere, "unusable_domains", lambda *_: iter(()))
    monkeypatch.setattr(elsewhere.libvirt, "survey", lambda _machine: FACTS)
    uris = [f"qemu+ssh://root@kvm{number}/system" for number in (1, 2)]
    given = ["physical=load1", *(f"sandbox=libvirt:vm1@{uri}" for uri in uris)]
    words = [word for text in given for word in ("--machine", text)]
    said = invoke(NAME, *words, "--address", "10.0.0.7", "--dry-run", "--work-dir", str(tmp_path))
    assert said.exit_code == Exit.HOLDS, said.output
    assert f"virtual generators: domain vm1 of {uris[0]}, domain vm1 of {uris[1]}" in said.output
    assert set(answering) == {"load1"}


def test_all_that_options_lack_is_reported_at_once():
    with pytest.raises(UsageError) as reported:
        CliRunner().invoke(app, ["study", NAME, "--machine", "physical=a"], obj=fake_host, catch_exceptions=False)
    assert [problem.key for problem in reported.value.problems] == ["--machine", "--address"]
    with pytest.raises(UsageError, match="no machine is named for the role physical"):
        CliRunner().invoke(app, ["study", NAME, "--address", "10.0.0.7"], obj=fake_host, catch_exceptions=False)


def test_a_study_file_names_machines_too_and_options_replace_them(study):
    text = CONTENT + b"machines: {physical: load1, sandboxes: [{domain: vm1}], address: 10.0.0.7}\n"
    made = cells.load(text, "a.yaml")
    assert machines.of(made, StudyRequest()).sandboxes == (Generator(domain="vm1"),)
    requested = StudyRequest(machines=Machines.model_validate(THREE))
    assert machines.of(made, requested) == requested.machines
    assert machines.of(study, StudyRequest()) is None
    boxes = {name: each.sandbox for name, each in machines.scenario(made.machines).aggressors.items()}
    assert {name: box.backend for name, box in boxes.items()} == {"physical": "ssh", "sandbox-1": "libvirt"}


def test_mistakes_in_a_study_file_are_reported_all_at_once_by_key():
    text = CONTENT + b"machines: {physical: {cpus: '0'}, sandboxes: [a, b, a], application: -x, address: a b}\n"
    with pytest.raises(UsageError) as reported:
        cells.load(text, "a.yaml")
    keys = [problem.key for problem in reported.value.problems]
    assert keys == ["machines.physical", "machines.sandboxes[2]", "machines.application", "machines.address"]
    assert "a.yaml" in str(reported.value)


def test_the_interface_takes_the_same_values_and_says_what_is_wrong_with_them(answering):
    with pytest.raises(UsageError, match=r"machines\.address: Field required"):
        api.run_study(NAME, machines={"physical": "load1", "sandboxes": ["vm1"]})
    with pytest.raises(CapabilityError, match="closed1"):
        api.run_study(NAME, machines={**THREE, "physical": "closed1"})
    assert set(answering) == {"closed1", "vm1", "vm2", "shop"}


@pytest.mark.parametrize("name", [name for name in studies.names() if name != NAME])
def test_studies_without_generators_refuse_machines(name, named):
    job, options = StudyJob.read(name, StudyRequest(machines=named)), Options(fake_host())
    for start in (Studies().outline, Studies().check, lambda *given: Studies().measure(*given, lambda _event: None)):
        with pytest.raises(UsageError, match=r"--machine: .* has no load generators to place on other machines"):
            start(job, options)


def test_a_backend_is_refused_beside_machines(study, named):
    request = StudyRequest(machines=named, backends=("qemu",))
    with pytest.raises(UsageError, match="--backend: its sandboxes are on the machines that were named for them"):
        studies.KINDS["partywall_load_study"].outline(study, request, fake_host())


def test_each_cell_has_its_generators_and_the_probe_is_beside_the_application(named, tmp_path):
    def setup(cell):
        return cells.setup_of(cell, "a", tmp_path, seed=1, backend="container", machines=named)

    physical = setup(Cell(generator="physical", users=25))
    assert physical.generators == {"physical": Generator(host="load1")}
    assert (physical.cpus, physical.server_host) == ((), "shop")
    assert list(setup(Cell(generator="sandbox", users=25)).generators.values()) == [Generator(host="vm1")]
    two = setup(Cell(generator="sandbox", users=50, sandboxes=2)).generators
    assert [(name, there.place) for name, there in two.items()] == [("sandbox-1", "vm1"), ("sandbox-2", "vm2")]


def test_counters_are_the_machines_means_and_a_guests_host_is_not_known():
    own = {"Generator's process: programs": 0.5, "Generator's process: kernel": 0.5, "CPU: packets and timers": 0.2}
    one = own | {cells.QUEUE: 2.0, cells.WRITE_MS: 10.0}
    other = {name: 2 * value for name, value in one.items()}
    physical = cells._of_machines([(one, 2)], Cell(generator="physical", users=1))
    assert (physical["cpu_percent"], physical["cpu_percent_each"]) == (50.0, 50.0)
    assert (physical["host_side_percent"], physical["softirq_percent"]) == (10.0, 10.0)
    assert (physical["disk_queue"], physical["host_disk_queue"]) == (2.0, None)
    guests = cells._of_machines([(one, 2), (other, 4)], Cell(generator="sandbox", users=1, sandboxes=2))
    assert (guests["cpu_percent_each"], guests["disk_queue"], guests["write_s"]) == (50.0, 3.0, pytest.approx(0.015))
    assert (guests["host_side_percent"], guests["host_disk_queue"]) == (None, None)
    assert set(guests) <= set(METRICS)


def test_requests_are_counted_by_machine():
    one, two = (
        {"physical": Generator(host="load1")},
        {"sandbox-1": Generator(host="a"), "sandbox-2": Generator(domain="b")},
    )
    assert cells._sent([Second(0, 1, requests=3), Second(1, 2, requests=4)], one) == {"load1": 7}
    parts = {"sandbox-1": Second(0, 1, requests=1), "sandbox-2": Second(0, 1, requests=2)}
    seconds = [Second(0, 1, requests=3, parts=parts), Second(1, 2, requests=3, parts={"sandbox-1": parts["sandbox-1"]})]
    assert cells._sent(seconds, two) == {"a": 2, "domain b": 2}
    assert cells._sent(seconds, {}) == {}


def test_an_address_that_this_host_does_not_have_is_reported_before_tomcat_starts():
    with pytest.raises(TrialError, match=r"Tomcat cannot listen at 192\.0\.2\.1: .*; give an address of this host"):
        tomcat._free_port("192.0.2.1")


def observations(study, named):
    for number in range(2):
        for cell in cells.possible(study, 2, named):
            values = dict.fromkeys(METRICS, 1.0 + number) | {"doubtful": 0.0}
            sent = {there.place: 100 for there in machines.generators(named, cell).values()}
            yield Observed(cell=cell, round=number, values=values, sent=sent, clock_error_ns=250_000)


def test_the_report_says_where_each_part_ran_what_it_sent_and_how_exact_the_clocks_were(study, named, tmp_path):
    about = {
        "partywall": "0",
        "host": {**FACTS, "machines": {"load1": FACTS, "shop": FACTS | {"kernel": {"release": "5"}}}},
    }
    directory = StudyDirectory.create(tmp_path / "run", CONTENT, StudyRequest(machines=named), about)
    assert directory.request.machines == named
    for observed in observations(study, named):
        directory.append(observed.model_dump_json())
    made = studies.report(directory)
    facts = dict(made.facts)
    assert facts["application"] == "shop, at 10.0.0.7"
    assert facts["virtual generators"] == "vm1, vm2"
    assert "from load1" in facts["requests sent"]
    assert facts["clocks"] == "within 250 µs of the controller's"
    setup = {row[0]: row[2] for section in made.sections if section.id == "setup" for row in section.rows}
    assert setup["machines"].startswith("application: shop, at 10.0.0.7; physical generator: load1; virtual generators")
    assert setup["operating system"] == "controller: Linux 6.1.0; load1: Linux 6.1.0; shop: Linux 5"
    assert setup["processors"] == "a made-up processor, 4 CPUs"
    assert any(machines.KEPT in note and "4 sandboxes" not in note for note in made.notes)
    assert not any("loopback" in line for beside in made.comparisons for line in beside.differs)
    assert "controller" in page.render(made)


needs_service = [
    pytest.mark.host,
    pytest.mark.slow,
    pytest.mark.skipif(bool(tomcat.missing(Host.here())), reason=tomcat.missing(Host.here()) or "-"),
    pytest.mark.skipif(bool(ssh_server.lacking()), reason=ssh_server.lacking()),
]


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A name for ssh that leads to this host, an hour ahead."""
    folder = tmp_path / "sshd"
    folder.mkdir()
    server = ssh_server.SshServer(folder, ahead_s=3600)
    monkeypatch.setenv("PARTYWALL_SSH", server.client)
    yield "there"
    server.stop()


class TestOnAnotherMachine:
    pytestmark = needs_service

    def test_a_cell_is_measured_with_each_part_there_and_nothing_is_left(self, study, there, tmp_path):
        base = tmp_path / "base"
        base.mkdir()
        named = Machines(
            physical=Generator(host=there), sandboxes=(Generator(host=there),), application=there, address="127.0.0.1"
        )
        label = Label.create(f"test-machines-{os.getpid()}", base)
        form = study.forms["short"].model_copy(update={"hold": 3_000_000_000})
        cell = Cell(generator="physical", users=4)
        try:
            with tomcat.running_on(there, label, named.address) as service:
                cells.warm_up(study, form, service, named, base)
                observed = cells.observe(study, form, [service], cell, 0, base, machines=named)
        finally:
            reaper.clean(label)
        assert observed.values["errors"] == 0
        assert observed.sent[there] > 10
        assert 0 < observed.clock_error_ns < 1e9
        assert observed.values["service_threads"] > 5
        assert observed.values["service_cpu_percent"] > 0
        shutil.rmtree(label.work, ignore_errors=True)
        assert not list(base.iterdir())

    def test_an_address_of_another_machine_is_reported_with_what_tomcat_said(self, there, tmp_path):
        label = Label.create(f"test-machines-{os.getpid()}", tmp_path)
        try:
            with (
                pytest.raises(TrialError, match=r"Tomcat ended on there, .*BindException"),
                tomcat.running_on(there, label, "192.0.2.1"),
            ):
                pass
        finally:
            reaper.clean(label)
